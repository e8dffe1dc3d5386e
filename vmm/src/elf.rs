//! ELF files that are loaded into guest memory: checked here, then linux-loader copies them.
//!
//! linux-loader trusts the header's class, machine and type and reads notes with 4-byte alignment, so
//! what a machine can run is decided here, and the notes are left alone.
//!
//! Structures: System V ABI, chapters 4 and 5 (`Elf64_Ehdr`, `Elf64_Phdr`).

use std::io::Cursor;

use linux_loader::loader::KernelLoader;
use linux_loader::loader::elf::Elf as Loader;
use thiserror::Error;
use vm_memory::{GuestAddress, GuestMemoryMmap};

/// Bytes of an ELF header and of a program header.
const EHDR_SIZE: usize = 64;
const PHDR_SIZE: usize = 56;
/// More program headers than any linker emits for a kernel.
const MAX_PHDRS: u16 = 64;
const EM_X86_64: u16 = 62;
const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;
const PT_LOAD: u32 = 1;

/// The first bytes of an ELF file.
pub const MAGIC: &[u8; 4] = b"\x7fELF";

/// Why a file is not an x86-64 ELF image.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ElfError {
    /// No bytes at all.
    #[error("the file is empty")]
    Empty,
    /// Shorter than an ELF header.
    #[error("truncated: expected an ELF header of {EHDR_SIZE} bytes, got {len} bytes")]
    TruncatedHeader {
        /// The file's length.
        len: usize,
    },
    /// Not an ELF file.
    #[error("not an ELF file: expected the magic 7f 45 4c 46, got {got:02x?}")]
    NotElf {
        /// Its first bytes.
        got: [u8; 4],
    },
    /// An ELF file of a kind that no machine here runs.
    #[error("{field}: expected {expected}, got {got}")]
    Unsupported {
        /// The header's field.
        field: &'static str,
        /// What runs, with its meaning.
        expected: &'static str,
        /// Its value.
        got: u16,
    },
    /// The program headers are not in the file.
    #[error(
        "truncated: {count} program headers at {offset:#x} are outside of the file ({len} bytes)"
    )]
    TruncatedProgramHeaders {
        /// How many.
        count: u16,
        /// Where, in the file.
        offset: u64,
        /// The file's length.
        len: usize,
    },
    /// There is nothing to load.
    #[error("no loadable segment")]
    NothingToLoad,
    /// A segment's bytes are not in the file.
    #[error(
        "truncated: segment {index}, {size:#x} bytes at {offset:#x}, is outside of the file ({len} bytes)"
    )]
    TruncatedSegment {
        /// Number of its program header.
        index: u16,
        /// Where, in the file.
        offset: u64,
        /// Bytes in the file.
        size: u64,
        /// The file's length.
        len: usize,
    },
    /// A segment is larger in the file than in memory.
    #[error("segment {index}: {file_size:#x} bytes in the file, {memory_size:#x} in memory")]
    SegmentSize {
        /// Number of its program header.
        index: u16,
        /// Bytes in the file.
        file_size: u64,
        /// Bytes in memory.
        memory_size: u64,
    },
    /// linux-loader refuses what passed the checks above.
    #[error("copy the segments into guest memory")]
    Loader(#[source] linux_loader::loader::Error),
}

/// A loadable segment whose bytes are in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Number of its program header.
    pub index: u16,
    /// Virtual address that it is linked for.
    pub virt: u64,
    /// Physical address that it is loaded to.
    pub physical: u64,
    /// Bytes in memory, not 0; what the file does not have is zero.
    pub memory_size: u64,
}

impl Segment {
    /// First physical address behind it, if there is one.
    pub fn physical_end(&self) -> Option<u64> {
        self.physical.checked_add(self.memory_size)
    }
}

/// What the ELF type may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `ET_EXEC` only.
    Executable,
    /// `ET_EXEC`, or `ET_DYN`, which runs where its physical addresses say.
    ExecutableOrShared,
}

/// An ELF file with something to load, all of it present.
#[derive(Debug, PartialEq, Eq)]
pub struct Elf<'a> {
    bytes: &'a [u8],
    /// The entry point.
    pub entry: u64,
    /// Segments in the file's order, at least one.
    pub segments: Vec<Segment>,
}

impl<'a> Elf<'a> {
    /// Checks that `bytes` is an x86-64 ELF file of type `kind`, with every segment's bytes in it.
    /// Where the segments go is for the caller to judge.
    pub fn parse(bytes: &'a [u8], kind: Type) -> Result<Self, ElfError> {
        if bytes.is_empty() {
            return Err(ElfError::Empty);
        }
        let header = Fields(bytes);
        if !bytes.starts_with(MAGIC) {
            return Err(ElfError::NotElf { got: header.get(0) });
        }
        if bytes.len() < EHDR_SIZE {
            return Err(ElfError::TruncatedHeader { len: bytes.len() });
        }
        let (types, type_names): (&[u16], _) = match kind {
            Type::Executable => (&[ET_EXEC], "2 (executable)"),
            Type::ExecutableOrShared => (&[ET_EXEC, ET_DYN], "2 (executable) or 3 (shared object)"),
        };
        let fields = [
            ("ELF class", "2 (64-bit)", header.get::<1>(4)[0].into(), &[2][..]),
            ("ELF byte order", "1 (little-endian)", header.get::<1>(5)[0].into(), &[1]),
            ("ELF type", type_names, header.u16(16), types),
            ("ELF machine", "62 (x86-64)", header.u16(18), &[EM_X86_64]),
            ("ELF program header size", "56", header.u16(54), &[PHDR_SIZE as u16]),
        ];
        for (field, expected, got, allowed) in fields {
            if !allowed.contains(&got) {
                return Err(ElfError::Unsupported { field, expected, got });
            }
        }

        let (offset, count) = (header.u64(32), header.u16(56));
        let table = usize::try_from(offset)
            .ok()
            .filter(|start| *start >= EHDR_SIZE && count <= MAX_PHDRS)
            .and_then(|start| bytes.get(start..)?.get(..usize::from(count) * PHDR_SIZE))
            .ok_or(ElfError::TruncatedProgramHeaders { count, offset, len: bytes.len() })?;
        let mut segments = Vec::new();
        for (index, phdr) in (0..).zip(table.chunks_exact(PHDR_SIZE)) {
            segments.extend(segment(index, &Fields(phdr), bytes.len())?);
        }
        if segments.is_empty() {
            return Err(ElfError::NothingToLoad);
        }
        Ok(Self { bytes, entry: header.u64(24), segments })
    }

    /// Copies the segments to their physical addresses. What they have in memory only is not written:
    /// it is zero in fresh memory.
    pub fn load(&self, memory: &GuestMemoryMmap) -> Result<(), ElfError> {
        // With an offset, be it 0, linux-loader leaves the notes alone.
        Loader::load(memory, Some(GuestAddress(0)), &mut Cursor::new(self.bytes), None)
            .map_err(ElfError::Loader)?;
        Ok(())
    }
}

/// The segment that `phdr` describes, if it is one to load.
fn segment(index: u16, phdr: &Fields, len: usize) -> Result<Option<Segment>, ElfError> {
    let (offset, file_size, memory_size) = (phdr.u64(8), phdr.u64(32), phdr.u64(40));
    if phdr.u32(0) != PT_LOAD || memory_size == 0 {
        return Ok(None);
    }
    if offset.checked_add(file_size).is_none_or(|end| end > len as u64) {
        return Err(ElfError::TruncatedSegment { index, offset, size: file_size, len });
    }
    if file_size > memory_size {
        return Err(ElfError::SegmentSize { index, file_size, memory_size });
    }
    Ok(Some(Segment { index, virt: phdr.u64(16), physical: phdr.u64(24), memory_size }))
}

/// Little-endian fields of a slice; what is outside of it is 0.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }
    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.get(at))
    }
    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.get(at))
    }
    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.get(at))
    }
}

/// ELF files for tests, here and in the modules that load them.
#[cfg(test)]
pub mod crafted {
    use super::*;

    /// A loadable segment of a crafted file.
    #[derive(Clone, Copy)]
    pub struct Load<'a> {
        /// Virtual address.
        pub virt: u64,
        /// Physical address.
        pub physical: u64,
        /// Its bytes.
        pub bytes: &'a [u8],
        /// Its size in memory.
        pub memory_size: u64,
    }

    /// An executable with `segments` in this order behind its headers.
    pub fn elf(entry: u64, segments: &[Load]) -> Vec<u8> {
        let mut header = vec![0; EHDR_SIZE];
        header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        header[16..18].copy_from_slice(&ET_EXEC.to_le_bytes());
        header[18..20].copy_from_slice(&EM_X86_64.to_le_bytes());
        header[24..32].copy_from_slice(&entry.to_le_bytes());
        header[32..40].copy_from_slice(&(EHDR_SIZE as u64).to_le_bytes());
        header[54..56].copy_from_slice(&(PHDR_SIZE as u16).to_le_bytes());
        header[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
        let mut offset = EHDR_SIZE + segments.len() * PHDR_SIZE;
        let mut phdrs = Vec::new();
        let mut contents = Vec::new();
        for s in segments {
            phdrs.extend(PT_LOAD.to_le_bytes());
            phdrs.extend(7u32.to_le_bytes());
            let file_size = s.bytes.len() as u64;
            for field in [offset as u64, s.virt, s.physical, file_size, s.memory_size, 1] {
                phdrs.extend(field.to_le_bytes());
            }
            contents.extend_from_slice(s.bytes);
            offset += s.bytes.len();
        }
        [header, phdrs, contents].concat()
    }

    /// Makes program header `index` a note with `p_align` 8, which holds notes aligned to 4.
    pub fn make_note(elf: &mut [u8], index: usize) {
        let phdr = EHDR_SIZE + index * PHDR_SIZE;
        elf[phdr..phdr + 4].copy_from_slice(&4u32.to_le_bytes());
        elf[phdr + 48..phdr + 56].copy_from_slice(&8u64.to_le_bytes());
    }

    /// Bytes of the headers of a file with `segments` segments.
    pub fn headers(segments: usize) -> usize {
        EHDR_SIZE + segments * PHDR_SIZE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crafted::{Load, elf};

    const LOAD: Load = Load { virt: 0x5000, physical: 0x1000, bytes: b"code", memory_size: 8 };

    fn parse(bytes: &[u8]) -> Result<Elf<'_>, ElfError> {
        Elf::parse(bytes, Type::Executable)
    }

    #[test]
    fn a_file_is_its_entry_and_its_segments() {
        let bytes = elf(0x5001, &[LOAD]);
        let parsed = parse(&bytes).unwrap();
        assert_eq!(parsed.entry, 0x5001);
        let expected = Segment { index: 0, virt: 0x5000, physical: 0x1000, memory_size: 8 };
        assert_eq!(parsed.segments, [expected]);
        assert_eq!(expected.physical_end(), Some(0x1008));
    }

    #[test]
    fn files_of_other_kinds_are_refused_by_what_they_are() {
        assert_eq!(parse(b""), Err(ElfError::Empty));
        assert_eq!(parse(b"#!/bin/sh\n"), Err(ElfError::NotElf { got: *b"#!/b" }));
        assert_eq!(parse(b"\x7fELF\x02\x01"), Err(ElfError::TruncatedHeader { len: 6 }));
        let good = elf(0x5000, &[LOAD]);
        let with = |at: usize, byte: u8| {
            let mut elf = good.clone();
            elf[at] = byte;
            parse(&elf).unwrap_err().to_string()
        };
        assert_eq!(with(4, 1), "ELF class: expected 2 (64-bit), got 1");
        assert_eq!(with(5, 2), "ELF byte order: expected 1 (little-endian), got 2");
        assert_eq!(with(16, 3), "ELF type: expected 2 (executable), got 3");
        assert_eq!(with(18, 183), "ELF machine: expected 62 (x86-64), got 183");
        assert_eq!(parse(&elf(0, &[])), Err(ElfError::NothingToLoad));
        let larger = elf(0, &[Load { memory_size: 3, ..LOAD }]);
        let size = ElfError::SegmentSize { index: 0, file_size: 4, memory_size: 3 };
        assert_eq!(parse(&larger), Err(size));
    }

    #[test]
    fn a_shared_object_is_accepted_where_it_may_be_one() {
        let mut bytes = elf(0x5000, &[LOAD]);
        bytes[16] = 3;
        assert!(Elf::parse(&bytes, Type::ExecutableOrShared).is_ok());
        bytes[16] = 1;
        let refused = Elf::parse(&bytes, Type::ExecutableOrShared).unwrap_err().to_string();
        assert_eq!(refused, "ELF type: expected 2 (executable) or 3 (shared object), got 1");
    }

    #[test]
    fn every_truncation_is_an_error() {
        let whole = elf(0x5000, &[LOAD, Load { physical: 0x2000, ..LOAD }]);
        for len in 0..whole.len() {
            assert!(parse(&whole[..len]).is_err(), "{len} bytes");
        }
        let cut = parse(&whole[..whole.len() - 1]).unwrap_err();
        assert!(matches!(cut, ElfError::TruncatedSegment { index: 1, .. }), "{cut}");
    }
}
