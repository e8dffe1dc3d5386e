//! The guest's ELF image: it must lie where this machine has memory for it and be linked for the
//! addresses that this machine maps.

use thiserror::Error;
use vm_memory::GuestMemoryMmap;

use super::layout::{IMAGE, KERNEL_BASE};
use crate::elf::{Elf, ElfError, Segment, Type};

/// Why a file is not an image that this machine runs.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ImageError {
    /// Not an executable for this kind of machine, or not all of one.
    #[error(transparent)]
    Elf(#[from] ElfError),
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
}

/// Copies `elf` to the physical addresses that it names and returns its entry point's virtual address.
///
/// Segments may come in any order and the entry may be anywhere in them; notes are not looked at.
pub fn load(memory: &GuestMemoryMmap, elf: &[u8]) -> Result<u64, ImageError> {
    let image = check(elf)?;
    image.load(memory)?;
    Ok(image.entry)
}

/// Checks all that [`load`] relies on.
fn check(elf: &[u8]) -> Result<Elf<'_>, ImageError> {
    let image = Elf::parse(elf, Type::Executable)?;
    for segment in &image.segments {
        check_segment(segment)?;
    }
    let entry = image.entry;
    let inside = |s: &Segment| entry.checked_sub(s.virt).is_some_and(|at| at < s.memory_size);
    if !image.segments.iter().any(inside) {
        return Err(ImageError::Entry { entry });
    }
    Ok(image)
}

fn check_segment(s: &Segment) -> Result<(), ImageError> {
    let index = s.index;
    if s.physical < IMAGE.start || s.physical_end().is_none_or(|end| end > IMAGE.end()) {
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
