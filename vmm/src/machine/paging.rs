//! Page tables, as pure data (SDM 3A, 4.5: 4-level paging).
//!
//! One page directory serves both the identity map and the kernel half. Its first entry is a page
//! table, so that only the regions of the layout are mapped there; the image has 2 MiB pages, which an
//! emulating KVM walks one level faster.

use super::layout::{
    self, BOOT_PAGE, GDT, IMAGE, LARGE_PAGE, MEMORY_SIZE, PAGE, PAGE_TABLES, STACK,
};

/// One page table of any level.
pub type Table = [u64; 512];

/// Present (SDM 3A, table 4-19; the bits below are in the same places at each level).
pub const P: u64 = 1 << 0;
/// Writable.
pub const RW: u64 = 1 << 1;
/// Accessed; set from the start, as dirty is, so that the CPU never writes them.
pub const A: u64 = 1 << 5;
/// Dirty, where it maps a page.
pub const D: u64 = 1 << 6;
/// Maps a page at the level of the page directory.
pub const PS: u64 = 1 << 7;

/// Physical addresses of the tables.
const PML4: u64 = PAGE_TABLES.start;
const PDPT_LOW: u64 = PML4 + PAGE;
const PDPT_KERNEL: u64 = PML4 + 2 * PAGE;
const PD: u64 = PML4 + 3 * PAGE;
const PT: u64 = PML4 + 4 * PAGE;

/// The value of CR3.
pub const CR3: u64 = PML4;

/// The index of `address`'s entry in a table of `level`, 4 for the PML4 (SDM 3A, figure 4-8).
const fn index(address: u64, level: u32) -> usize {
    (address >> (12 + 9 * (level - 1))) as usize % 512
}

/// All tables with the physical addresses at which they go.
pub fn tables() -> [(u64, Table); 5] {
    let table_entry = |table: u64| table | P | RW | A;

    let mut pml4 = [0; 512];
    pml4[index(0, 4)] = table_entry(PDPT_LOW);
    pml4[index(layout::KERNEL_BASE, 4)] = table_entry(PDPT_KERNEL);
    let mut pdpt_low = [0; 512];
    pdpt_low[index(0, 3)] = table_entry(PD);
    let mut pdpt_kernel = [0; 512];
    pdpt_kernel[index(layout::KERNEL_BASE, 3)] = table_entry(PD);

    let mut pd = [0; 512];
    pd[0] = table_entry(PT);
    for address in (IMAGE.start..MEMORY_SIZE).step_by(LARGE_PAGE as usize) {
        pd[index(address, 2)] = address | P | RW | A | D | PS;
    }
    // The guest only reads its descriptors and its boot page. Its page tables are not its to see.
    let mut pt = [0; 512];
    for (region, access) in [(GDT, P), (BOOT_PAGE, P), (STACK, P | RW)] {
        for address in (region.start..region.end()).step_by(PAGE as usize) {
            pt[index(address, 1)] = address | access | A | D;
        }
    }
    [(PML4, pml4), (PDPT_LOW, pdpt_low), (PDPT_KERNEL, pdpt_kernel), (PD, pd), (PT, pt)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::layout::{KERNEL_BASE, REGIONS};

    /// A walk by the book, apart from the builder: what `address` is mapped to, and whether writable.
    fn walk(address: u64) -> Option<(u64, bool)> {
        let tables = tables();
        let mut base = CR3;
        let mut writable = true;
        for shift in [39, 30, 21, 12] {
            let table = tables.iter().find(|(at, _)| *at == base).expect("entries name tables").1;
            let entry = table[((address >> shift) & 0x1ff) as usize];
            if entry & 1 == 0 {
                return None;
            }
            writable &= entry & 2 != 0;
            let page = entry & 0x000f_ffff_ffff_f000;
            if shift == 12 || entry & 0x80 != 0 {
                return Some((page + (address & ((1 << shift) - 1)), writable));
            }
            base = page;
        }
        None
    }

    #[test]
    fn every_page_of_both_halves_is_mapped_to_itself_or_not_at_all() {
        for physical in (0..2 * MEMORY_SIZE).step_by(PAGE as usize) {
            let region = REGIONS.iter().find(|r| (r.start..r.end()).contains(&physical));
            let expected = match region {
                None | Some(&PAGE_TABLES) => None,
                Some(&r) => Some((physical + 8, r == STACK || r == IMAGE)),
            };
            assert_eq!(walk(physical + 8), expected, "{physical:#x}");
            assert_eq!(walk(KERNEL_BASE + physical + 8), expected, "{physical:#x}");
        }
    }

    #[test]
    fn nothing_is_mapped_between_the_halves() {
        for address in
            [1 << 30, 1 << 39, 0xffff_8000_0000_0000, 0xffff_ffff_0000_0000, u64::MAX - 7]
        {
            assert_eq!(walk(address), None, "{address:#x}");
        }
    }
}
