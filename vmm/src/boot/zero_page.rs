//! `struct boot_params`, the zero page: what the kernel is told of its machine, as pure data
//! (Documentation/arch/x86/zero-page.rst and boot.rst, Linux 7.3).

use linux_loader::loader::bootparam::{
    KASLR_FLAG, LOADED_HIGH, boot_e820_entry, boot_params, setup_header,
};

use super::layout::{COMMAND_LINE, HIGH_MEMORY, LOW_MEMORY_END};

/// `type_of_loader` of a loader that has no number assigned.
const LOADER_UNDEFINED: u8 = 0xff;

/// e820 types (`E820_TYPE_RAM`, `E820_TYPE_RESERVED`, arch/x86/include/asm/e820/types.h).
const RAM: u32 = 1;
const RESERVED: u32 = 2;

/// The setup header that a vmlinux would have if it were a bzImage: what the kernel and this loader
/// read of it (arch/x86/boot/header.S, Linux 7.3).
pub fn protocol_header() -> setup_header {
    setup_header {
        boot_flag: 0xaa55,
        header: u32::from_le_bytes(*b"HdrS"),
        version: 0x020f,
        loadflags: LOADED_HIGH,
        initrd_addr_max: 0x7fff_ffff,
        cmdline_size: COMMAND_LINE.size.min(2048) as u32 - 1,
        ..Default::default()
    }
}

/// The zero page of a kernel with setup header `header`, a command line where the layout has it, and an
/// initrd at (address, bytes), in a machine with memory up to `memory_end`.
pub fn build(header: setup_header, initrd: Option<(u32, u32)>, memory_end: u64) -> boot_params {
    let (ramdisk_image, ramdisk_size) = initrd.unwrap_or_default();
    let mut params = boot_params {
        hdr: setup_header {
            type_of_loader: LOADER_UNDEFINED,
            // The decompressor's word to the kernel, not the loader's.
            loadflags: header.loadflags & !KASLR_FLAG,
            cmd_line_ptr: COMMAND_LINE.start as u32,
            ramdisk_image,
            ramdisk_size,
            setup_data: 0,
            ..header
        },
        ..Default::default()
    };
    let map = e820(memory_end);
    params.e820_entries = map.len() as u8;
    params.e820_table[..map.len()].copy_from_slice(&map);
    params
}

/// Memory below the BIOS hole, the hole, memory above it.
fn e820(memory_end: u64) -> [boot_e820_entry; 3] {
    let entry = |start, end, r#type| boot_e820_entry { addr: start, size: end - start, r#type };
    [
        entry(0, LOW_MEMORY_END, RAM),
        entry(LOW_MEMORY_END, HIGH_MEMORY, RESERVED),
        entry(HIGH_MEMORY, memory_end, RAM),
    ]
}
