//! From guest virtual to guest physical addresses: the walk that the CPU itself would do.
//!
//! Intel SDM volume 3A, section 4.5 "4-Level Paging and 5-Level Paging"; AMD APM volume 2, section 5.3
//! agrees. Access rights, accessed and dirty bits are the guest's business and are not looked at.
//! A walk reads at most five entries, so tables that point at themselves end it like any others.

use std::fmt;
use std::sync::atomic::Ordering;

use thiserror::Error;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

/// Smallest page, bytes.
pub const PAGE_SIZE: u64 = 4096;

/// Bit 0: the entry is in use.
const PRESENT: u64 = 1 << 0;
/// Bit 7 of a PDPTE or PDE: it maps a page (PS); reserved in the levels above.
const PAGE_SIZE_BIT: u64 = 1 << 7;
/// Bits 51:12 of CR3 or an entry: a physical address. No CPU has more than 52 bits of it.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Depth of the page tables: bit 12 of CR4 (LA57).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// 48-bit linear addresses.
    Four,
    /// 57-bit linear addresses.
    Five,
}

/// One level of the page tables, under the SDM's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Maps 4 KiB.
    Pte,
    /// Maps 2 MiB, or refers to a page table.
    Pde,
    /// Maps 1 GiB, or refers to a page directory.
    Pdpte,
    /// Refers to a page-directory-pointer table.
    Pml4e,
    /// Refers to a PML4 table.
    Pml5e,
}

impl Level {
    /// Lowest bit of the linear address that selects an entry of this level.
    const fn shift(self) -> u32 {
        12 + 9 * self as u32
    }

    fn below(self) -> Option<Self> {
        match self {
            Self::Pml5e => Some(Self::Pml4e),
            Self::Pml4e => Some(Self::Pdpte),
            Self::Pdpte => Some(Self::Pde),
            Self::Pde => Some(Self::Pte),
            Self::Pte => None,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pte => "pte",
            Self::Pde => "pde",
            Self::Pdpte => "pdpte",
            Self::Pml4e => "pml4e",
            Self::Pml5e => "pml5e",
        })
    }
}

/// Why a guest virtual address has no guest memory behind it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TranslateError {
    /// The upper bits do not repeat the sign bit of the linear address.
    #[error("address {va:#x} is not canonical: expected a sign-extended {bits}-bit address")]
    NotCanonical {
        /// The virtual address.
        va: u64,
        /// Width of a linear address.
        bits: u32,
    },
    /// An entry of the walk is not present.
    #[error(
        "address {va:#x} is not mapped: the {level} at {entry_gpa:#x} is {entry:#x}, not present"
    )]
    NotPresent {
        /// The virtual address.
        va: u64,
        /// Level of the entry.
        level: Level,
        /// Where the entry is, guest physical.
        entry_gpa: u64,
        /// The entry.
        entry: u64,
    },
    /// An entry has a bit set that the CPU would fault on.
    #[error(
        "address {va:#x} cannot be walked: the {level} at {entry_gpa:#x} is {entry:#x}, expected \
         its reserved bits {reserved:#x} to be 0"
    )]
    Reserved {
        /// The virtual address.
        va: u64,
        /// Level of the entry.
        level: Level,
        /// Where the entry is, guest physical.
        entry_gpa: u64,
        /// The entry.
        entry: u64,
        /// The reserved bits that are set.
        reserved: u64,
    },
    /// A table lies outside guest memory.
    #[error(
        "address {va:#x} cannot be walked: the {level} at {entry_gpa:#x} is outside guest memory"
    )]
    TableOutside {
        /// The virtual address.
        va: u64,
        /// Level of the entry that was to be read.
        level: Level,
        /// Where it was to be read, guest physical.
        entry_gpa: u64,
    },
    /// The page lies outside guest memory.
    #[error(
        "address {va:#x} is mapped to {gpa:#x} by the {level} {entry:#x}, outside guest memory"
    )]
    PageOutside {
        /// The virtual address.
        va: u64,
        /// Level of the entry that maps it.
        level: Level,
        /// The entry.
        entry: u64,
        /// The guest physical address that it gives.
        gpa: u64,
    },
}

/// Where a virtual address leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The guest physical address; not yet known to be guest memory.
    pub gpa: u64,
    /// Level of the entry that maps it.
    pub level: Level,
    /// That entry.
    pub entry: u64,
}

/// One set of page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressSpace {
    root: u64,
    depth: Depth,
}

impl Translation {
    /// Where `va` leads if the entry that maps `from`, whose translation this is, maps it too.
    #[inline]
    pub fn of_neighbour(&self, from: u64, va: u64) -> Option<Self> {
        let within = (1 << self.level.shift()) - 1;
        let gpa = self.gpa & !within | va & within;
        ((from ^ va) & !within == 0).then_some(Self { gpa, ..*self })
    }
}

impl AddressSpace {
    /// The tables that `cr3` names. Bits 11:0 (PCID or cache control) and 63:52 are not its address.
    pub fn new(cr3: u64, depth: Depth) -> Self {
        Self { root: cr3 & ADDRESS, depth }
    }

    /// Guest physical address of the topmost table.
    pub fn root(&self) -> u64 {
        self.root
    }

    fn check_canonical(&self, va: u64) -> Result<Level, TranslateError> {
        let (top, bits) = match self.depth {
            Depth::Four => (Level::Pml4e, 48),
            Depth::Five => (Level::Pml5e, 57),
        };
        let unused = 64 - bits;
        if ((va << unused) as i64 >> unused) as u64 != va {
            return Err(TranslateError::NotCanonical { va, bits });
        }
        Ok(top)
    }

    /// Walks the tables for `va`.
    pub fn translate<M: GuestMemoryBackend>(
        &self,
        mem: &M,
        va: u64,
    ) -> Result<Translation, TranslateError> {
        let mut level = self.check_canonical(va)?;
        let mut table = self.root;
        loop {
            let entry_gpa = table + (va >> level.shift() & 0x1ff) * 8;
            // An atomic load: the CPU and a running guest change entries whole.
            let entry: u64 = mem
                .load(GuestAddress(entry_gpa), Ordering::Relaxed)
                .map_err(|_| TranslateError::TableOutside { va, level, entry_gpa })?;
            if entry & PRESENT == 0 {
                return Err(TranslateError::NotPresent { va, level, entry_gpa, entry });
            }
            let (maps, reserved) = reserved_bits(level, entry);
            if entry & reserved != 0 {
                let reserved = entry & reserved;
                return Err(TranslateError::Reserved { va, level, entry_gpa, entry, reserved });
            }
            match level.below() {
                Some(below) if !maps => {
                    table = entry & ADDRESS;
                    level = below;
                }
                _ => {
                    let within = (1 << level.shift()) - 1;
                    let gpa = entry & ADDRESS & !within | va & within;
                    return Ok(Translation { gpa, level, entry });
                }
            }
        }
    }
}

/// Whether `entry` maps a page, and the bits that it must leave 0 (SDM tables 4-14 to 4-20).
/// Bits 51:MAXPHYADDR are not among them: an address up there fails as outside guest memory.
fn reserved_bits(level: Level, entry: u64) -> (bool, u64) {
    let large = entry & PAGE_SIZE_BIT != 0;
    match level {
        Level::Pte => (true, 0),
        // Bit 12 of an entry that maps a large page is its PAT bit.
        Level::Pde if large => (true, 0x1f_e000),
        Level::Pdpte if large => (true, 0x3fff_e000),
        Level::Pde | Level::Pdpte => (false, 0),
        Level::Pml4e | Level::Pml5e => (false, PAGE_SIZE_BIT),
    }
}
