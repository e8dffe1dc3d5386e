use super::*;
use crate::elf::crafted::{Load, elf};
use crate::machine::layout::KERNEL_BASE;
use bzimage::crafted::BzImageFile;
use vm_memory::GuestMemoryBackend;

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 32 * MIB;

fn vmlinux() -> Vec<u8> {
    let at = 16 * MIB;
    let text =
        Load { virt: KERNEL_BASE + at, physical: at, bytes: b"text", memory_size: 0x12_3456 };
    elf(at, &[text])
}

fn linux<'a>(kernel: &'a [u8], initrd: Option<&'a [u8]>) -> Linux<'a> {
    Linux {
        kernel: File { name: "some/kernel", bytes: kernel },
        initrd: initrd.map(|bytes| File { name: "some/initrd", bytes }),
        cmdline: "a -- b",
        quiet: false,
        devices: &[],
        memory_size: MEMORY,
    }
}

fn refused(linux: &Linux) -> String {
    crate::session::chain(&linux.load().unwrap_err())
}

/// Fields of the zero page by their offsets in Documentation/arch/x86/zero-page.rst and boot.rst.
struct ZeroPage(Vec<u8>);

impl ZeroPage {
    fn of(loaded: &Loaded) -> Self {
        let mut page = vec![0; 0x1000];
        loaded.memory.read_slice(&mut page, GuestAddress(0x7000)).unwrap();
        Self(page)
    }
    fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }
    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().unwrap())
    }
    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().unwrap())
    }
    /// (address, size, type)
    fn e820(&self) -> Vec<(u64, u64, u32)> {
        let entry = |i: usize| 0x2d0 + 20 * i;
        (0..usize::from(self.u8(0x1e8)))
            .map(|i| (self.u64(entry(i)), self.u64(entry(i) + 8), self.u32(entry(i) + 16)))
            .collect()
    }
}

#[test]
fn a_vmlinux_finds_its_zero_page_command_line_and_memory_map() {
    let file = vmlinux();
    let loaded = linux(&file, None).load().unwrap();
    assert_eq!((loaded.kind, loaded.entry), (Kind::Vmlinux, 16 * MIB));
    let page = ZeroPage::of(&loaded);
    assert_eq!(page.u8(0x1ef), 0, "sentinel");
    assert_eq!((page.u8(0x210), page.u32(0x228)), (0xff, 0x2_0000), "loader, cmd_line_ptr");
    assert_eq!((page.u32(0x218), page.u32(0x21c)), (0, 0), "no initrd");
    assert_eq!((page.u64(0x70), page.u64(0x250)), (0, 0), "no RSDP, no setup_data");
    assert_eq!(page.e820(), [(0, 0x9_fc00, 1), (0x9_fc00, 0x6_0400, 2), (MIB, MEMORY - MIB, 1)]);
    let mut line = vec![0xff; loaded.cmdline.len() + 1];
    loaded.memory.read_slice(&mut line, GuestAddress(0x2_0000)).unwrap();
    assert_eq!(line, [loaded.cmdline.as_bytes(), b"\0"].concat());
    assert!(loaded.cmdline.starts_with("a ") && loaded.cmdline.ends_with(" -- b"));
}

#[test]
fn a_bzimage_finds_its_own_setup_header_with_what_a_loader_fills_in() {
    let file = BzImageFile { loadflags: 0b1000_0011, ..Default::default() }.bytes();
    let loaded = linux(&file, Some(b"cpio")).load().unwrap();
    assert_eq!((loaded.kind, loaded.entry), (Kind::BzImage, 0x100_0200));
    let page = ZeroPage::of(&loaded);
    assert_eq!(page.u32(0x202), u32::from_le_bytes(*b"HdrS"));
    assert_eq!(page.u64(0x258), 0x100_0000, "pref_address, as in the file");
    assert_eq!(page.u8(0x211), 0b1000_0001, "KASLR_FLAG is not the loader's to set");
    assert_eq!((page.u8(0x210), page.u32(0x228)), (0xff, 0x2_0000));
    assert_eq!((u64::from(page.u32(0x218)), page.u32(0x21c)), (MEMORY - 0x1000, 4));
}

#[test]
fn the_boot_tables_are_in_memory_where_the_registers_say() {
    let file = vmlinux();
    let loaded = linux(&file, None).load().unwrap();
    let sregs = entry::sregs(Default::default());
    let read = |at: u64| loaded.memory.read_obj::<u64>(GuestAddress(at)).unwrap();
    assert_eq!(read(sregs.gdt.base + u64::from(sregs.cs.selector)) >> 53 & 1, 1, "64-bit code");
    let pdpt = read(sregs.cr3) & !0xfff;
    assert_eq!(read(read(pdpt) & !0xfff) & 0x83, 0x83, "a large page");
}

/// 4097 bytes at the top of memory: two pages, the second with one byte.
#[test]
fn an_initrd_ends_in_the_last_page_of_memory() {
    let file = vmlinux();
    let initrd: Vec<u8> = (0..4097u32).map(|i| i as u8 | 1).collect();
    let loaded = linux(&file, Some(&initrd)).load().unwrap();
    let page = ZeroPage::of(&loaded);
    let (address, size) = (u64::from(page.u32(0x218)), page.u32(0x21c));
    assert_eq!((address, size), (MEMORY - 0x2000, 4097));
    let mut read = vec![0; 4098];
    loaded.memory.read_slice(&mut read, GuestAddress(address)).unwrap();
    assert_eq!(read, [&initrd[..], &[0]].concat());
}

#[test]
fn an_initrd_fits_down_to_the_kernels_end_and_not_a_byte_further() {
    let kernels = [(vmlinux(), 16 * MIB + 0x12_3456), (BzImageFile::default().bytes(), 24 * MIB)];
    for (file, end) in kernels {
        let room = MEMORY - end.next_multiple_of(0x1000);
        let initrd = vec![1; room as usize + 1];
        assert!(linux(&file, Some(&initrd[1..])).load().is_ok());
        assert_eq!(
            refused(&linux(&file, Some(&initrd))),
            format!(
                "load initrd some/initrd: its {:#x} bytes do not fit between the kernel's end, \
                 {end:#x}, and 0x2000000, in 0x2000000 bytes of guest memory: give the guest more \
                 memory",
                room + 1
            )
        );
    }
}

#[test]
fn an_initrd_larger_than_memory_and_an_empty_one_are_refused() {
    let file = vmlinux();
    let larger = vec![1; MEMORY as usize + 1];
    let refused_size = refused(&linux(&file, Some(&larger)));
    assert!(refused_size.starts_with("load initrd some/initrd: its 0x2000001 bytes do not fit"));
    assert_eq!(refused(&linux(&file, Some(b""))), "load initrd some/initrd: the file is empty");
}

#[test]
fn an_initrd_stays_below_what_the_kernel_can_reach() {
    let file = BzImageFile { initrd_addr_max: (28 * MIB - 1) as u32, ..Default::default() }.bytes();
    let loaded = linux(&file, Some(b"cpio")).load().unwrap();
    assert_eq!(u64::from(ZeroPage::of(&loaded).u32(0x218)), 28 * MIB - 0x1000);
}

#[test]
fn files_that_are_no_kernels_are_refused_by_name_and_by_what_they_look_like() {
    let padded = |at: usize, magic: &[u8]| {
        let mut file = vec![0x5a; 0x400];
        file[at..at + magic.len()].copy_from_slice(magic);
        file
    };
    for (file, expected) in [
        (vec![], "the file is empty"),
        (b"x".to_vec(), "1 bytes that begin with [78, 00, 00, 00]"),
        (b"#!/bin/sh\n".to_vec(), "10 bytes that begin with [23, 21, 2f, 62]"),
        (padded(0, b"\x1f\x8b"), "a gzip file: unpack it first"),
        (padded(0x38, b"ARMd"), "an arm64 kernel"),
        (padded(0, b"070701"), "a cpio archive: is it the initrd?"),
        (b"\x7fELF".to_vec(), "truncated: expected an ELF header of 64 bytes, got 4 bytes"),
        (padded(0x202, b"HdrS"), "setup header: boot_flag: expected 0xaa55, got 0x5a5a"),
    ] {
        let message = refused(&linux(&file, None));
        let prefix = "load kernel some/kernel (expected an x86-64 Linux vmlinux or bzImage): ";
        assert!(message.starts_with(prefix) && message.contains(expected), "{message}");
    }
    let mut arm = vmlinux();
    arm[18] = 183;
    assert_eq!(
        refused(&linux(&arm, None)),
        "load kernel some/kernel (expected an x86-64 Linux vmlinux or bzImage): ELF machine: \
         expected 62 (x86-64), got 183"
    );
}

#[test]
fn memory_of_an_impossible_size_is_refused() {
    let file = vmlinux();
    for memory_size in [0, MEMORY - 1, MEMORY + 1, layout::MEMORY_MAX + 0x1000, u64::MAX] {
        let message = refused(&Linux { memory_size, ..linux(&file, None) });
        assert_eq!(
            message,
            format!(
                "guest memory of {memory_size:#x} bytes: expected 0x2000000 (32 MiB) to 0xc0000000 \
                 (3072 MiB), a multiple of 0x1000"
            )
        );
    }
    let loaded = Linux { memory_size: MEMORY + 0x1000, ..linux(&file, None) }.load().unwrap();
    assert_eq!(loaded.memory.last_addr(), GuestAddress(MEMORY + 0xfff));
}

#[test]
fn a_command_line_that_the_kernel_would_cut_is_refused() {
    let file = BzImageFile { cmdline_size: 255, ..Default::default() }.bytes();
    let long = "x".repeat(200);
    let message = refused(&Linux { cmdline: &long, ..linux(&file, None) });
    assert!(message.starts_with("kernel command line: ") && message.contains("takes 255"));
}

#[test]
fn memory_begins_at_a_large_page_of_the_host() {
    for size in [layout::MEMORY_MIN, layout::MEMORY_DEFAULT] {
        let memory = allocate(size).unwrap();
        assert_eq!(memory.last_addr().0 + 1, size);
        // Not promised, but what Linux does.
        let begin = memory.get_host_address(GuestAddress(0)).unwrap() as u64;
        assert_eq!(begin % LARGE_PAGE, 0, "{begin:#x}");
    }
}
