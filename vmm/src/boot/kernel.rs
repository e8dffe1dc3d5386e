//! A kernel file of either kind in guest memory.

use linux_loader::loader::bootparam::setup_header;
use thiserror::Error;
use vm_memory::GuestMemoryMmap;

use super::bzimage::{self, BzImageError};
use super::vmlinux::{self, VmlinuxError};
use crate::elf;

/// What a kernel file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An ELF file, started by its own entry.
    Vmlinux,
    /// A compressed image, which unpacks itself and may move.
    BzImage,
}

/// Why a file is not a kernel that can be started.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum KernelError {
    /// No bytes at all.
    #[error("the file is empty")]
    Empty,
    /// Neither kind.
    #[error(
        "neither an ELF file (7f 45 4c 46 first) nor a bzImage (\"HdrS\" at 0x202): {len} bytes that \
         begin with {first:02x?}{looks_like}"
    )]
    Unknown {
        /// The file's length.
        len: usize,
        /// Its first bytes.
        first: [u8; 4],
        /// What it may be, behind a comma, or nothing.
        looks_like: &'static str,
    },
    /// An ELF file.
    #[error(transparent)]
    Vmlinux(#[from] VmlinuxError),
    /// A bzImage.
    #[error(transparent)]
    BzImage(#[from] BzImageError),
}

/// A kernel in guest memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Kernel {
    /// Physical address of its 64-bit entry.
    pub entry: u64,
    /// First byte behind the memory that it needs before it manages memory itself.
    pub end: u64,
    /// The setup header for the zero page: a bzImage's own, for a vmlinux what Linux's would say.
    pub header: setup_header,
}

/// What files are that are often taken for kernels: offset, bytes, name.
const LOOKALIKES: [(usize, &[u8], &str); 8] = [
    (0x38, b"ARMd", ", an arm64 kernel"),
    (0x30, b"RISCV", ", a RISC-V kernel"),
    (4, b"zimg", ", an EFI zboot kernel for another machine"),
    (0, b"\x1f\x8b", ", a gzip file: unpack it first"),
    (0, b"\xfd7zXZ", ", an xz file: unpack it first"),
    (0, b"\x28\xb5\x2f\xfd", ", a zstd file: unpack it first"),
    (0, b"070701", ", a cpio archive: is it the initrd?"),
    (0, b"!<arch>", ", a package or an archive: unpack it first"),
];

/// What kind of kernel `file` is, by its headers.
pub fn check(file: &[u8]) -> Result<Kind, KernelError> {
    let kind = kind(file)?;
    if kind == Kind::Vmlinux {
        vmlinux::parse(file)?;
    }
    Ok(kind)
}

/// What kind of kernel `file` is, by its first bytes.
fn kind(file: &[u8]) -> Result<Kind, KernelError> {
    let has = |at: usize, magic: &[u8]| file.get(at..).is_some_and(|f| f.starts_with(magic));
    if file.is_empty() {
        return Err(KernelError::Empty);
    }
    if has(0, elf::MAGIC) {
        return Ok(Kind::Vmlinux);
    }
    if has(bzimage::MAGIC.0, bzimage::MAGIC.1) {
        return Ok(Kind::BzImage);
    }
    let mut first = [0; 4];
    first.iter_mut().zip(file).for_each(|(to, from)| *to = *from);
    let looks_like = LOOKALIKES.iter().find(|(at, magic, _)| has(*at, magic));
    let looks_like = looks_like.map_or("", |(.., name)| name);
    Err(KernelError::Unknown { len: file.len(), first, looks_like })
}

/// Copies the kernel `file` into fresh `memory`, which ends at `memory_end`.
pub(super) fn load(
    memory: &GuestMemoryMmap,
    file: &[u8],
    memory_end: u64,
) -> Result<(Kind, Kernel), KernelError> {
    let kind = kind(file)?;
    let kernel = match kind {
        Kind::Vmlinux => vmlinux::load(memory, file, memory_end)?,
        Kind::BzImage => bzimage::load(memory, file, memory_end)?,
    };
    Ok((kind, kernel))
}
