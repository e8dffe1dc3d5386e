use super::*;
use crate::elf::crafted::{self, Load, elf};
use vm_memory::{Bytes, GuestAddress};

const MEMORY_END: u64 = 32 << 20;
const AT: u64 = 16 << 20;
const TEXT: Load =
    Load { virt: KERNEL_BASE + AT, physical: AT, bytes: b"text", memory_size: 0x1000 };
const DATA: Load = Load {
    virt: KERNEL_BASE + AT + 0x20_0000,
    physical: AT + 0x20_0000,
    bytes: b"data",
    memory_size: 0x3000,
};

fn memory() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY_END as usize)]).unwrap()
}

fn load(file: &[u8]) -> Result<(GuestMemoryMmap, Kernel), VmlinuxError> {
    let memory = memory();
    let kernel = super::load(&memory, file, MEMORY_END)?;
    Ok((memory, kernel))
}

fn at(memory: &GuestMemoryMmap, address: u64) -> [u8; 5] {
    memory.read_obj(GuestAddress(address)).unwrap()
}

#[test]
fn segments_go_to_their_physical_addresses_with_zeroes_behind() {
    let (memory, kernel) = load(&elf(AT, &[TEXT, DATA])).unwrap();
    assert_eq!((kernel.entry, kernel.end), (AT, AT + 0x20_3000));
    assert_eq!(&at(&memory, AT), b"text\0");
    assert_eq!(&at(&memory, AT + 0x20_0000), b"data\0");
    assert_eq!(at(&memory, AT + 0x20_2ffb), [0; 5]);
}

/// linux-loader#29.
#[test]
fn segments_in_descending_order_make_the_same_kernel() {
    let (memory, kernel) = load(&elf(AT, &[DATA, TEXT])).unwrap();
    assert_eq!((kernel.entry, kernel.end), (AT, AT + 0x20_3000));
    assert_eq!((&at(&memory, AT), &at(&memory, AT + 0x20_0000)), (b"text\0", b"data\0"));
}

/// OpenVMM#2298: the entry is in .init.text, above the lowest segment.
#[test]
fn the_entry_may_be_in_any_segment() {
    let (_, kernel) = load(&elf(AT + 0x20_0002, &[TEXT, DATA])).unwrap();
    assert_eq!(kernel.entry, AT + 0x20_0002);
    let (_, kernel) = load(&elf(AT + 0x20_2fff, &[TEXT, DATA])).unwrap();
    assert_eq!(kernel.entry, AT + 0x20_2fff);
}

/// linux-loader#71: `p_align` 8 with notes that are aligned to 4; here the note is nonsense as well.
#[test]
fn notes_are_not_looked_at() {
    let note = Load { virt: 0, physical: 0, bytes: &[0xff; 20], memory_size: 20 };
    let mut file = elf(AT, &[TEXT, note]);
    crafted::make_note(&mut file, 1);
    let (_, kernel) = load(&file).unwrap();
    assert_eq!(kernel.end, AT + 0x1000);
}

/// Linux 6.12 links its per-CPU data at virtual 0 into a segment of its own.
#[test]
fn a_segment_without_the_entry_may_be_linked_anywhere() {
    let percpu = Load { virt: 0, physical: AT + 0x10_0000, bytes: b"percpu", memory_size: 6 };
    assert!(load(&elf(AT, &[TEXT, percpu, DATA])).is_ok());
}

#[test]
fn segments_outside_of_memory_or_over_the_boot_structures_are_refused() {
    for (physical, memory_size) in [
        (0, 4),
        (0x7000, 4),
        (HIGH_MEMORY - 1, 4),
        (MEMORY_END - 3, 4),
        (MEMORY_END, 4),
        (AT, MEMORY_END),
        (AT, u64::MAX),
        (u64::MAX, 4),
    ] {
        let refused = load(&elf(AT, &[TEXT, Load { physical, memory_size, ..DATA }])).unwrap_err();
        let expected = VmlinuxError::SegmentPlace {
            index: 1,
            address: physical,
            size: memory_size,
            memory_end: MEMORY_END,
        };
        assert_eq!(refused, expected);
    }
}

#[test]
fn an_entry_outside_of_every_segment_is_refused() {
    for entry in [0, AT - 1, AT + 0x1000, KERNEL_BASE + AT, u64::MAX] {
        let refused = load(&elf(entry, &[TEXT, DATA])).unwrap_err();
        assert_eq!(refused, VmlinuxError::Entry { entry });
    }
}

#[test]
fn a_program_that_is_no_kernel_is_told_from_one() {
    let program = Load { virt: 0x40_0000, physical: 0x40_0000, bytes: b"main", memory_size: 4 };
    let refused = load(&elf(0x40_0000, &[program])).unwrap_err().to_string();
    assert_eq!(
        refused,
        "segment 0, which has the entry point: expected a kernel, linked at virtual \
         0xffffffff80400000, got a program linked at 0x400000"
    );
}

#[test]
fn no_byte_of_the_headers_can_make_the_loader_panic() {
    let good = elf(AT, &[TEXT, DATA]);
    let memory = memory();
    for at in 0..crafted::headers(2) {
        for byte in [0, 1, 0x7f, 0x80, 0xff] {
            let mut file = good.clone();
            file[at] = byte;
            let _ = super::load(&memory, &file, MEMORY_END);
        }
    }
}
