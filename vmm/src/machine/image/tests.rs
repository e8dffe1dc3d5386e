use super::*;
use crate::elf::crafted::{self, Load, elf};
use crate::machine::{FIRMWARE, layout};
use vm_memory::{Bytes, GuestAddress};

const AT: u64 = layout::IMAGE.start;
const VIRT: u64 = KERNEL_BASE + AT;
const CODE: Load = Load { virt: VIRT, physical: AT, bytes: b"code", memory_size: 4 };

fn memory() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), layout::MEMORY_SIZE as usize)]).unwrap()
}

#[test]
fn the_bundled_image_is_accepted() {
    let entry = load(&memory(), FIRMWARE).unwrap();
    assert_eq!(entry, KERNEL_BASE + layout::IMAGE.start);
}

#[test]
fn segments_in_descending_order_load_and_the_entry_may_be_above_the_lowest() {
    let high = Load { virt: VIRT + 0x2000, physical: AT + 0x2000, bytes: b"high", memory_size: 4 };
    let low = Load { bytes: b"low", memory_size: 0x1000, ..CODE };
    let elf = elf(VIRT + 0x2001, &[high, low]);
    let memory = memory();
    assert_eq!(load(&memory, &elf), Ok(VIRT + 0x2001));
    let mut seen = [0; 4];
    memory.read_slice(&mut seen, GuestAddress(AT + 0x2000)).unwrap();
    assert_eq!(&seen, b"high");
    memory.read_slice(&mut seen, GuestAddress(AT)).unwrap();
    assert_eq!(&seen, b"low\0");
}

#[test]
fn a_note_segment_of_odd_alignment_is_ignored() {
    let note = Load { virt: 0, physical: 0, bytes: &[0xff; 8], memory_size: 8 };
    let mut elf = elf(VIRT, &[CODE, note]);
    crafted::make_note(&mut elf, 1);
    assert_eq!(load(&memory(), &elf), Ok(VIRT));
}

#[test]
fn every_truncation_of_the_bundled_image_ends_in_an_error_or_the_same_entry() {
    let whole = check(FIRMWARE).unwrap().entry;
    for len in (0..FIRMWARE.len()).step_by(97).chain(0..300) {
        if let Ok(image) = check(&FIRMWARE[..len]) {
            assert_eq!(image.entry, whole);
        }
    }
    let cut = check(&FIRMWARE[..0x1100]).unwrap_err();
    assert!(matches!(cut, ImageError::Elf(ElfError::TruncatedSegment { index: 0, .. })), "{cut}");
}

#[test]
fn segments_outside_of_the_images_memory_are_refused() {
    for (physical, memory_size) in [
        (0, 4),
        (AT - 1, 4),
        (layout::MEMORY_SIZE - 3, 4),
        (AT, u64::MAX),
        (u64::MAX, 4),
        (AT, layout::MEMORY_SIZE),
    ] {
        let elf = elf(VIRT, &[Load { physical, memory_size, ..CODE }]);
        let refused = ImageError::SegmentPlace { index: 0, address: physical, size: memory_size };
        assert_eq!(check(&elf), Err(refused));
    }
    let elsewhere = elf(VIRT, &[Load { virt: VIRT + 1, ..CODE }]);
    assert!(matches!(check(&elsewhere), Err(ImageError::SegmentMapping { .. })));
    assert_eq!(check(&elf(VIRT + 4, &[CODE])), Err(ImageError::Entry { entry: VIRT + 4 }));
}

#[test]
fn no_byte_of_the_headers_can_make_the_loader_panic() {
    let data = Load { virt: VIRT + 0x1000, physical: AT + 0x1000, bytes: b"data", memory_size: 64 };
    let good = elf(VIRT, &[CODE, data]);
    let memory = memory();
    for at in 0..crafted::headers(2) {
        for byte in [0, 1, 0x7f, 0x80, 0xff] {
            let mut elf = good.clone();
            elf[at] = byte;
            let _ = load(&memory, &elf);
        }
    }
}
