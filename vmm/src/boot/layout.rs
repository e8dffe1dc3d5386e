//! The one map of guest physical addresses of a Linux machine.
//!
//! Documentation/arch/x86/boot.rst, Linux 7.3, leaves the places of the zero page, the command line and
//! the boot tables to the loader. All are below the BIOS hole, which the kernel leaves alone until it
//! has copied what it needs of them; the decompressor's own page goes directly below the hole.

use crate::machine::layout::{LARGE_PAGE, PAGE, Region, end_of};

/// Conventional memory ends here, as it does on a PC: behind it come the extended BIOS data area, video
/// memory and ROMs.
pub const LOW_MEMORY_END: u64 = 0x9_fc00;
/// Memory goes on here.
pub const HIGH_MEMORY: u64 = 0x10_0000;

/// The boot descriptor table.
pub const GDT: Region = Region::new(0x6000, PAGE);
/// `struct boot_params`.
pub const ZERO_PAGE: Region = Region::new(0x7000, PAGE);
/// PML4, PDPT and four page directories: the first 4 GiB.
pub const PAGE_TABLES: Region = Region::new(0x9000, 6 * PAGE);
/// The command line with its NUL.
pub const COMMAND_LINE: Region = Region::new(0x2_0000, 2048);

/// What the loader has below the BIOS hole, lowest first.
pub const REGIONS: [Region; 4] = [GDT, ZERO_PAGE, PAGE_TABLES, COMMAND_LINE];

/// Guest memory's size if nothing else is asked for.
pub const MEMORY_DEFAULT: u64 = 128 << 20;
/// The least memory: a kernel of the usual load address, 16 MiB, and as much again.
pub const MEMORY_MIN: u64 = 32 << 20;
/// The most memory: all of it is below the devices.
pub const MEMORY_MAX: u64 = 3 << 30;

/// Bytes of a virtio-mmio device's registers; one page each.
pub const VIRTIO_MMIO_SIZE: u64 = PAGE;
/// Room for 16 virtio-mmio devices, outside of any memory.
pub const VIRTIO_MMIO: Region = Region::new(0xd000_0000, 16 * VIRTIO_MMIO_SIZE);

/// What the boot page tables map, to itself.
pub const IDENTITY_MAP_END: u64 = 4 << 30;

const _: () = {
    let free_from = end_of(&REGIONS);
    // The decompressor's trampoline is in the two pages below 0x9f000 (BIOS_START_MAX,
    // arch/x86/boot/compressed/pgtable_64.c).
    assert!(free_from <= 0x9_d000 && LOW_MEMORY_END > 0x9_f000);
    assert!(HIGH_MEMORY < MEMORY_MIN && MEMORY_MIN <= MEMORY_DEFAULT);
    assert!(MEMORY_DEFAULT <= MEMORY_MAX && MEMORY_MAX <= VIRTIO_MMIO.start);
    assert!(VIRTIO_MMIO.end() <= IDENTITY_MAP_END);
    assert!(PAGE_TABLES.size == (2 + IDENTITY_MAP_END / (512 * LARGE_PAGE)) * PAGE);
};
