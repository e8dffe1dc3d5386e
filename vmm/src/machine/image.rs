//! The guest's ELF image: what this machine can run is checked here, then linux-loader copies it.
//!
//! Structures: System V ABI, chapters 4 and 5 (`Elf64_Ehdr`, `Elf64_Phdr`).

use std::io::Cursor;

use linux_loader::loader::KernelLoader;
use linux_loader::loader::elf::Elf;
use thiserror::Error;
use vm_memory::{GuestAddress, GuestMemoryMmap};

use super::layout::{IMAGE, KERNEL_BASE};

/// Bytes of an ELF header and of a program header.
const EHDR_SIZE: usize = 64;
const PHDR_SIZE: usize = 56;
/// More program headers than any linker emits for a kernel.
const MAX_PHDRS: u16 = 64;
const EM_X86_64: u16 = 62;
const ET_EXEC: u16 = 2;
const PT_LOAD: u32 = 1;

/// Why a file is not an image that this machine runs.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ImageError {
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
    /// An ELF file of a kind that this machine does not run.
    #[error("{field}: expected {expected}, got {got}")]
    Unsupported {
        /// The header's field.
        field: &'static str,
        /// The only value that runs, with its meaning.
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
    /// A segment goes where the machine has something else, or nothing.
    #[error(
        "segment {index}: {size:#x} bytes at physical {address:#x} are outside of the image's memory, {:#x} to {:#x}",
        IMAGE.start, IMAGE.end()
    )]
    SegmentPlace {
        /// Number of its program header.
        index: u16,
        /// Its physical address.
        address: u64,
        /// Bytes in memory.
        size: u64,
    },
    /// A segment's addresses do not agree with the machine's page tables.
    #[error(
        "segment {index}: linked at virtual {virt:#x}, but physical {physical:#x} is mapped at {physical:#x} and {:#x}",
        KERNEL_BASE.wrapping_add(*physical)
    )]
    SegmentMapping {
        /// Number of its program header.
        index: u16,
        /// Its virtual address.
        virt: u64,
        /// Its physical address.
        physical: u64,
    },
    /// The entry point is in no segment.
    #[error("the entry point {entry:#x} is in no loadable segment")]
    Entry {
        /// Its virtual address.
        entry: u64,
    },
    /// linux-loader refuses what passed the checks above.
    #[error("copy the segments into guest memory")]
    Loader(#[source] linux_loader::loader::Error),
}

/// A loadable segment.
struct Segment {
    offset: u64,
    virt: u64,
    physical: u64,
    file_size: u64,
    memory_size: u64,
}

/// Little-endian fields of a slice whose length the caller has checked.
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

/// Copies `elf` to the physical addresses that it names and returns its entry point's virtual address.
///
/// Segments may come in any order and the entry may be anywhere in them; notes are not looked at.
pub fn load(memory: &GuestMemoryMmap, elf: &[u8]) -> Result<u64, ImageError> {
    let entry = check(elf)?;
    // With an offset, be it 0, linux-loader leaves the notes alone.
    Elf::load(memory, Some(GuestAddress(0)), &mut Cursor::new(elf), None)
        .map_err(ImageError::Loader)?;
    Ok(entry)
}

/// Checks all that [`load`] relies on; returns the entry point.
fn check(elf: &[u8]) -> Result<u64, ImageError> {
    if elf.is_empty() {
        return Err(ImageError::Empty);
    }
    let header = Fields(elf);
    if !elf.starts_with(b"\x7fELF") {
        return Err(ImageError::NotElf { got: header.get(0) });
    }
    if elf.len() < EHDR_SIZE {
        return Err(ImageError::TruncatedHeader { len: elf.len() });
    }
    let fields = [
        ("ELF class", "2 (64-bit)", header.get::<1>(4)[0].into(), 2),
        ("ELF byte order", "1 (little-endian)", header.get::<1>(5)[0].into(), 1),
        ("ELF type", "2 (executable)", header.u16(16), ET_EXEC),
        ("ELF machine", "62 (x86-64)", header.u16(18), EM_X86_64),
        ("ELF program header size", "56", header.u16(54), PHDR_SIZE as u16),
    ];
    for (field, expected, got, only) in fields {
        if got != only {
            return Err(ImageError::Unsupported { field, expected, got });
        }
    }

    let (offset, count) = (header.u64(32), header.u16(56));
    let table = usize::try_from(offset)
        .ok()
        .filter(|start| *start >= EHDR_SIZE && count <= MAX_PHDRS)
        .and_then(|start| elf.get(start..)?.get(..usize::from(count) * PHDR_SIZE))
        .ok_or(ImageError::TruncatedProgramHeaders { count, offset, len: elf.len() })?;
    let entry = header.u64(24);
    let mut segments = 0;
    let mut entry_found = false;
    for (index, phdr) in (0..).zip(table.chunks_exact(PHDR_SIZE)) {
        let phdr = Fields(phdr);
        if phdr.u32(0) != PT_LOAD || phdr.u64(40) == 0 {
            continue;
        }
        let segment = Segment {
            offset: phdr.u64(8),
            virt: phdr.u64(16),
            physical: phdr.u64(24),
            file_size: phdr.u64(32),
            memory_size: phdr.u64(40),
        };
        check_segment(index, &segment, elf.len())?;
        segments += 1;
        entry_found |= entry.checked_sub(segment.virt).is_some_and(|at| at < segment.memory_size);
    }
    if segments == 0 {
        return Err(ImageError::NothingToLoad);
    }
    if !entry_found {
        return Err(ImageError::Entry { entry });
    }
    Ok(entry)
}

fn check_segment(index: u16, s: &Segment, len: usize) -> Result<(), ImageError> {
    if s.offset.checked_add(s.file_size).is_none_or(|end| end > len as u64) {
        let (offset, size) = (s.offset, s.file_size);
        return Err(ImageError::TruncatedSegment { index, offset, size, len });
    }
    if s.file_size > s.memory_size {
        let (file_size, memory_size) = (s.file_size, s.memory_size);
        return Err(ImageError::SegmentSize { index, file_size, memory_size });
    }
    let end = s.physical.checked_add(s.memory_size);
    if s.physical < IMAGE.start || end.is_none_or(|end| end > IMAGE.end()) {
        let (address, size) = (s.physical, s.memory_size);
        return Err(ImageError::SegmentPlace { index, address, size });
    }
    if s.virt != s.physical && s.virt != KERNEL_BASE.wrapping_add(s.physical) {
        let (virt, physical) = (s.virt, s.physical);
        return Err(ImageError::SegmentMapping { index, virt, physical });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
