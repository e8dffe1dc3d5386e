//! A vmlinux, by its 64-bit entry: the ELF entry point is `startup_64`'s physical address
//! (arch/x86/kernel/vmlinux.lds.S, Linux 7.3), and `rsi` the zero page, as for a bzImage.
//!
//! Segments may come in any order and the entry may be anywhere in them; notes are not looked at. What
//! the file does not have of a segment (.bss, .brk) is zero because guest memory is fresh.

use thiserror::Error;
use vm_memory::GuestMemoryMmap;

use super::kernel::Kernel;
use super::layout::HIGH_MEMORY;
use super::zero_page::protocol_header;
use crate::elf::{Elf, ElfError, Segment, Type};
use crate::machine::layout::KERNEL_BASE;

/// Why an ELF file is not an x86-64 vmlinux that fits.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum VmlinuxError {
    /// Not an ELF file for this kind of machine, or not all of one.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// A segment goes where there is no memory.
    #[error(
        "segment {index}: {size:#x} bytes at physical {address:#x} are outside of memory, \
         {HIGH_MEMORY:#x} to {memory_end:#x}"
    )]
    SegmentPlace {
        /// Number of its program header.
        index: u16,
        /// Its physical address.
        address: u64,
        /// Bytes in memory.
        size: u64,
        /// End of guest memory.
        memory_end: u64,
    },
    /// The entry point is in no segment.
    #[error("the entry point, physical {entry:#x}, is in no loadable segment")]
    Entry {
        /// Its physical address.
        entry: u64,
    },
    /// A program that is not a kernel.
    #[error(
        "segment {index}, which has the entry point: expected a kernel, linked at virtual {:#x}, got \
         a program linked at {virt:#x}",
        KERNEL_BASE.wrapping_add(*physical)
    )]
    NotAKernel {
        /// Number of the segment's program header.
        index: u16,
        /// Its virtual address.
        virt: u64,
        /// Its physical address.
        physical: u64,
    },
}

/// The ELF `file`, if it is one that can be a kernel.
pub(super) fn parse(file: &[u8]) -> Result<Elf<'_>, VmlinuxError> {
    let elf = Elf::parse(file, Type::ExecutableOrShared)?;
    let entry = elf.entry;
    let has_entry =
        |s: &&Segment| entry.checked_sub(s.physical).is_some_and(|at| at < s.memory_size);
    let s = elf.segments.iter().find(has_entry).ok_or(VmlinuxError::Entry { entry })?;
    if s.virt != KERNEL_BASE.wrapping_add(s.physical) {
        let (index, virt, physical) = (s.index, s.virt, s.physical);
        return Err(VmlinuxError::NotAKernel { index, virt, physical });
    }
    Ok(elf)
}

/// Copies the vmlinux `file` into fresh `memory`, which ends at `memory_end`.
pub(super) fn load(
    memory: &GuestMemoryMmap,
    file: &[u8],
    memory_end: u64,
) -> Result<Kernel, VmlinuxError> {
    let elf = parse(file)?;
    let mut end = 0;
    for s in &elf.segments {
        let inside = s.physical_end().filter(|end| *end <= memory_end);
        let Some(segment_end) = inside.filter(|_| s.physical >= HIGH_MEMORY) else {
            let (index, address, size) = (s.index, s.physical, s.memory_size);
            return Err(VmlinuxError::SegmentPlace { index, address, size, memory_end });
        };
        end = end.max(segment_end);
    }
    elf.load(memory)?;
    Ok(Kernel { entry: elf.entry, end, header: protocol_header() })
}

#[cfg(test)]
mod tests;
