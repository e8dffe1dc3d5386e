//! Typed reads of guest virtual memory.

use thiserror::Error;
use vm_memory::{
    ByteValued, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, VolatileMemory, VolatileSlice,
};

use super::layout::Field;
use super::translate::{AddressSpace, PAGE_SIZE, TranslateError, Translation};

/// Why something of the guest could not be read.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ReadError {
    /// A member's address has no guest memory behind it.
    #[error("cannot read {structure}.{member} at {address:#x}")]
    Unreadable {
        /// The structure.
        structure: &'static str,
        /// The member.
        member: &'static str,
        /// Guest virtual address of the member.
        address: u64,
        /// What the walk met.
        source: TranslateError,
    },
    /// Text has no guest memory behind its first byte.
    #[error("cannot read {len} bytes of text at {address:#x}")]
    UnreadableText {
        /// Guest virtual address of the text.
        address: u64,
        /// Its length as the guest gave it.
        len: u64,
        /// What the walk met.
        source: TranslateError,
    },
    /// Text does not end.
    #[error("{what} at {address:#x} does not end after {limit} bytes")]
    TextEndless {
        /// The text.
        what: &'static str,
        /// Guest virtual address of the text.
        address: u64,
        /// Most bytes that it can have.
        limit: usize,
    },
    /// A pointer that must lead somewhere is null.
    #[error("{holder} is a null pointer, expected a {target}")]
    NullPointer {
        /// What holds the pointer.
        holder: &'static str,
        /// What it should point to.
        target: &'static str,
    },
    /// A pointer leads to none of the structures that the guest is known to have.
    #[error("{holder} is {address:#x}, expected one of the {known} known {target}s")]
    UnknownAddress {
        /// What holds the pointer.
        holder: &'static str,
        /// What it should point to.
        target: &'static str,
        /// The pointer.
        address: u64,
        /// How many are known.
        known: usize,
    },
    /// A pointer leads elsewhere than it must.
    #[error(
        "{structure}.{member} of the {structure} at {base:#x} is {got:#x}, expected {expected:#x}"
    )]
    WrongPointer {
        /// The structure.
        structure: &'static str,
        /// The member.
        member: &'static str,
        /// Guest virtual address of the structure.
        base: u64,
        /// The pointer that it must be.
        expected: u64,
        /// The pointer that it is.
        got: u64,
    },
    /// An entry of a list does not point back to the one before it.
    #[error("{list}: prev of the list_head at {node:#x} is {got:#x}, expected {expected:#x}")]
    ListBroken {
        /// The list.
        list: &'static str,
        /// Guest virtual address of the entry.
        node: u64,
        /// The entry before it.
        expected: u64,
        /// Its `prev`.
        got: u64,
    },
    /// A list does not come back to its head.
    #[error("{list} does not end after {bound} entries, expected its head at {head:#x}")]
    ListEndless {
        /// The list.
        list: &'static str,
        /// Guest virtual address of the head.
        head: u64,
        /// Most entries that it can have.
        bound: usize,
    },
    /// A value is out of its range: the layout, the symbols or the guest are wrong.
    #[error(
        "{structure}.{member} of the {structure} at {base:#x} is {got}, expected {range} {limit}"
    )]
    Implausible {
        /// The structure.
        structure: &'static str,
        /// The member.
        member: &'static str,
        /// Guest virtual address of the structure.
        base: u64,
        /// The value.
        got: u64,
        /// `"exactly"`, `"at least"` or `"at most"`.
        range: &'static str,
        /// The value's limit.
        limit: u64,
    },
    /// One of the kernel's own tasks has another name.
    #[error(
        "task_struct.comm of the task_struct at {address:#x} is \"{}\", expected \"{}\"",
        got.escape_ascii(), expected.escape_ascii()
    )]
    WrongName {
        /// Guest virtual address of the task.
        address: u64,
        /// What it must start with.
        expected: &'static [u8],
        /// What it is.
        got: [u8; 16],
    },
    /// A seqcount was odd, or moved, around each of some reads.
    #[error("{what} stayed inconsistent over {reads} reads: psi_seq went from {before} to {after}")]
    Torn {
        /// What was read.
        what: &'static str,
        /// How often.
        reads: u32,
        /// The seqcount before the last read.
        before: u32,
        /// The seqcount after it.
        after: u32,
    },
    /// A group index that the guest has no group for.
    #[error("no group {group}: the guest has {known}")]
    NoGroup {
        /// The index.
        group: u16,
        /// Number of groups.
        known: usize,
    },
    /// A probe number that names no function.
    #[error("unknown probe {number}")]
    UnknownProbe {
        /// The number.
        number: u8,
    },
    /// An argument of a probed function that it cannot have been called with.
    #[error("{function}() was called with {argument} {got:#x}, expected {expected:#x}")]
    ProbeArgument {
        /// The function.
        function: &'static str,
        /// The argument.
        argument: &'static str,
        /// What it must be, or its largest value.
        expected: u64,
        /// What it is.
        got: u64,
    },
}

/// Pages remembered by a [`Reader`].
const PAGES: usize = 32;

/// Reads one address space at one instant.
///
/// It remembers the pages that it has walked to, and lives no longer than one call into the
/// introspector, during which the guest stands still: the next call walks anew, so an entry that the
/// guest has changed in between is never served from memory.
pub(super) struct Reader<'m> {
    mem: &'m GuestMemoryMmap,
    space: AddressSpace,
    pages: [Option<(u64, VolatileSlice<'m>)>; PAGES],
    /// The last address that was walked to: most of a kernel lies in a few large pages, so the next
    /// is often mapped by the same entry.
    walked: Option<(u64, Translation)>,
}

impl<'m> Reader<'m> {
    pub fn new(mem: &'m GuestMemoryMmap, space: AddressSpace) -> Self {
        Self { mem, space, pages: [None; PAGES], walked: None }
    }

    /// The 4 KiB around `va`.
    fn page(&mut self, va: u64) -> Result<VolatileSlice<'m>, TranslateError> {
        let number = va / PAGE_SIZE;
        let slot = number as usize % PAGES;
        match self.pages[slot] {
            Some((n, slice)) if n == number => Ok(slice),
            _ => self.walk(va, slot),
        }
    }

    fn walk(&mut self, va: u64, slot: usize) -> Result<VolatileSlice<'m>, TranslateError> {
        let neighbour = self.walked.and_then(|(from, to)| to.of_neighbour(from, va));
        let to = match neighbour {
            Some(to) => to,
            None => self.space.translate(self.mem, va)?,
        };
        self.walked = Some((va, to));
        let start = GuestAddress(to.gpa & !(PAGE_SIZE - 1));
        let slice =
            GuestMemoryBackend::get_slice(self.mem, start, PAGE_SIZE as usize).map_err(|_| {
                TranslateError::PageOutside { va, level: to.level, entry: to.entry, gpa: to.gpa }
            })?;
        self.pages[slot] = Some((va / PAGE_SIZE, slice));
        Ok(slice)
    }

    /// The `T` at `va`, loaded in one piece if it does not straddle two pages.
    pub fn value<T: ByteValued + Default>(&mut self, va: u64) -> Result<T, TranslateError> {
        let page = self.page(va)?;
        match page.get_ref::<T>((va % PAGE_SIZE) as usize) {
            Ok(value) => Ok(value.load()),
            Err(_) => {
                let mut value = T::default();
                self.bytes(va, value.as_mut_slice())?;
                Ok(value)
            }
        }
    }

    /// The pointer at `address`, which is `member` of `structure` for errors.
    pub fn pointer(
        &mut self,
        structure: &'static str,
        member: &'static str,
        address: u64,
    ) -> Result<u64, ReadError> {
        self.value(address).map_err(|source| ReadError::Unreadable {
            structure,
            member,
            address,
            source,
        })
    }

    /// The variable of the name `member` at `address`, which is `structure`'s for errors.
    pub fn variable(
        &mut self,
        structure: &'static str,
        member: &'static str,
        address: u64,
    ) -> Result<u32, ReadError> {
        self.value(address).map_err(|source| ReadError::Unreadable {
            structure,
            member,
            address,
            source,
        })
    }

    /// The bytes from `va` on. On an error, those of the pages before it have been copied.
    pub fn bytes(&mut self, va: u64, mut to: &mut [u8]) -> Result<(), TranslateError> {
        let mut va = va;
        while !to.is_empty() {
            let offset = (va % PAGE_SIZE) as usize;
            let count = to.len().min(PAGE_SIZE as usize - offset);
            let (now, later) = to.split_at_mut(count);
            let page = self.page(va)?;
            // The range is within the page.
            if let Ok(from) = page.subslice(offset, count) {
                from.copy_to(now);
            }
            to = later;
            // Past the last page comes address 0, which a walk judges like any other.
            va = va.wrapping_add(count as u64);
        }
        Ok(())
    }

    /// A member of the structure at `base`. The common case, a page that is remembered and holds all
    /// of the member, is short enough to be inlined everywhere; the rest is [`Reader::walk_to`].
    #[inline(always)]
    pub fn get<T: ByteValued + Default>(
        &mut self,
        base: u64,
        field: &Field<T>,
    ) -> Result<T, ReadError> {
        let va = base.wrapping_add(field.offset);
        let number = va / PAGE_SIZE;
        if let Some((n, page)) = &self.pages[number as usize % PAGES]
            && *n == number
            && let Ok(value) = page.get_ref::<T>((va % PAGE_SIZE) as usize)
        {
            return Ok(value.load());
        }
        self.walk_to(va, field)
    }

    #[cold]
    #[inline(never)]
    fn walk_to<T: ByteValued + Default>(
        &mut self,
        address: u64,
        field: &Field<T>,
    ) -> Result<T, ReadError> {
        let (structure, member) = (field.structure, field.member);
        self.value(address).map_err(|source| ReadError::Unreadable {
            structure,
            member,
            address,
            source,
        })
    }
}
