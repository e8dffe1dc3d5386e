//! Buffers of a guest's processes, through the page tables of the process.

use thiserror::Error;
use vm_memory::{GuestAddress, GuestMemoryMmap};

use super::read::Reader;
use super::translate::{AddressSpace, PAGE_SIZE, TranslateError};

/// Bits 1 and 2 of an entry: R/W and U/S (SDM volume 3A, table 4-19).
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;

/// Why a process's buffer cannot be used.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum UserError {
    /// A page of it is not there.
    #[error("cannot reach byte {va:#x} of the buffer of {len} bytes at {start:#x}")]
    Unreachable {
        /// Start of the buffer.
        start: u64,
        /// Its length.
        len: usize,
        /// The byte.
        va: u64,
        /// What the walk met.
        source: TranslateError,
    },
    /// A page of it is not the process's own to write: it may be shared, as the zero page is.
    #[error(
        "the process cannot write byte {va:#x} of its buffer of {len} bytes at {start:#x}: its page \
         table entry is {entry:#x}; has it touched every page?"
    )]
    ReadOnly {
        /// Start of the buffer.
        start: u64,
        /// Its length.
        len: usize,
        /// The byte.
        va: u64,
        /// The entry that maps it.
        entry: u64,
    },
}

/// Reads a process's buffer. On an error `to` is partly filled.
pub fn read_user(
    mem: &GuestMemoryMmap,
    space: AddressSpace,
    start: u64,
    to: &mut [u8],
) -> Result<(), UserError> {
    let (len, at) = (to.len(), &mut Reader::new(mem, space));
    for (va, chunk) in pages(start, len) {
        let unreachable = |source| UserError::Unreachable { start, len, va, source };
        at.bytes(va, &mut to[chunk]).map_err(unreachable)?;
    }
    Ok(())
}

/// Writes a process's buffer: all of it, or nothing if the process could not write all of it itself.
pub fn write_user(
    mem: &GuestMemoryMmap,
    space: AddressSpace,
    start: u64,
    from: &[u8],
) -> Result<(), UserError> {
    let len = from.len();
    let mut to = Vec::new();
    for (va, chunk) in pages(start, len) {
        let unreachable = |source| UserError::Unreachable { start, len, va, source };
        let found = space.translate(mem, va).map_err(unreachable)?;
        let entry = found.entry;
        if entry & (WRITABLE | USER) != WRITABLE | USER {
            return Err(UserError::ReadOnly { start, len, va, entry });
        }
        let slice =
            vm_memory::GuestMemoryBackend::get_slice(mem, GuestAddress(found.gpa), chunk.len());
        let outside = TranslateError::PageOutside { va, level: found.level, entry, gpa: found.gpa };
        to.push((slice.map_err(|_| unreachable(outside))?, chunk));
    }
    for (slice, chunk) in to {
        slice.copy_from(&from[chunk]);
    }
    Ok(())
}

/// The parts of `start..start + len` that lie in one page each: where, and which bytes.
fn pages(start: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let va = start.wrapping_add(done as u64);
        let count = (len - done).min((PAGE_SIZE - va % PAGE_SIZE) as usize);
        done += count;
        Some((va, done - count..done))
    })
}
