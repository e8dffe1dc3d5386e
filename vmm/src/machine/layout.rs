//! The one map of guest physical addresses.
//!
//! The guest sees all of it twice: at its physical address and in the kernel half, [`KERNEL_BASE`]
//! above. Pages below [`IMAGE`] that no region names are not mapped, so that a null pointer and a stack
//! that overflows fault instead of writing.

use guest_model::wire::BootPage;

/// A 4 KiB page.
pub const PAGE: u64 = 0x1000;
/// A 2 MiB page.
pub const LARGE_PAGE: u64 = 0x20_0000;

/// Guest virtual minus guest physical address in the kernel half; x86-64 Linux's `__START_KERNEL_map`
/// (arch/x86/include/asm/page_64_types.h). firmware/link.ld links for it.
pub const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;

/// Guest memory, from physical address 0.
pub const MEMORY_SIZE: u64 = 16 << 20;

/// A range of guest physical memory, whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub size: u64,
}

impl Region {
    /// `size` bytes from `start` on, and what is left of the last page.
    pub const fn new(start: u64, size: u64) -> Self {
        Self { start, size: size.next_multiple_of(PAGE) }
    }

    /// First byte behind the region.
    pub const fn end(self) -> u64 {
        self.start + self.size
    }

    /// Where the region is in the kernel half.
    pub const fn virt(self) -> u64 {
        KERNEL_BASE + self.start
    }
}

/// End of the last of `regions`, which must be whole pages behind the null page, lowest first, and apart.
pub(crate) const fn end_of(regions: &[Region]) -> u64 {
    let mut free_from = PAGE;
    let mut i = 0;
    while i < regions.len() {
        let region = regions[i];
        assert!(
            region.size > 0
                && region.start.is_multiple_of(PAGE)
                && region.size.is_multiple_of(PAGE)
        );
        assert!(region.start >= free_from, "regions overlap or are out of order");
        free_from = region.end();
        i += 1;
    }
    free_from
}

/// PML4, two PDPTs, a page directory and a page table; behind the null page.
pub const PAGE_TABLES: Region = Region::new(PAGE, 5 * PAGE);
/// The segment descriptors that interrupt returns reload.
pub const GDT: Region = Region::new(PAGE_TABLES.end(), PAGE);
/// The boot page (several pages, in fact), behind an unmapped one.
pub const BOOT_PAGE: Region = Region::new(GDT.end() + PAGE, size_of::<BootPage>() as u64);
/// The stack, behind an unmapped page.
pub const STACK: Region = Region::new(BOOT_PAGE.end() + PAGE, 16 * PAGE);
/// The guest's image; firmware/link.ld links for its start.
pub const IMAGE: Region = Region::new(LARGE_PAGE, MEMORY_SIZE - LARGE_PAGE);

/// All regions, lowest first.
pub const REGIONS: [Region; 5] = [PAGE_TABLES, GDT, BOOT_PAGE, STACK, IMAGE];

const _: () = {
    let free_from = end_of(&REGIONS);
    assert!(free_from == MEMORY_SIZE);
    // paging.rs maps the first large page with one page table, the rest with large pages, all from
    // one page directory.
    assert!(IMAGE.start == LARGE_PAGE && MEMORY_SIZE.is_multiple_of(LARGE_PAGE));
    assert!(MEMORY_SIZE <= 512 * LARGE_PAGE);
};
