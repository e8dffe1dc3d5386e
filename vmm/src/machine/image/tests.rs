use super::*;
use crate::machine::{FIRMWARE, layout};
use vm_memory::Bytes;

/// An ELF file with `segments` of (virtual, physical, bytes, memory size) behind its headers.
fn elf_of(entry: u64, segments: &[(u64, u64, &[u8], u64)]) -> Vec<u8> {
    let mut header = vec![0; EHDR_SIZE];
    header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    header[16..18].copy_from_slice(&ET_EXEC.to_le_bytes());
    header[18..20].copy_from_slice(&EM_X86_64.to_le_bytes());
    header[24..32].copy_from_slice(&entry.to_le_bytes());
    header[32..40].copy_from_slice(&(EHDR_SIZE as u64).to_le_bytes());
    header[54..56].copy_from_slice(&(PHDR_SIZE as u16).to_le_bytes());
    header[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
    let mut offset = EHDR_SIZE + segments.len() * PHDR_SIZE;
    let mut phdrs = Vec::new();
    let mut contents = Vec::new();
    for (virt, physical, bytes, memory_size) in segments {
        phdrs.extend(PT_LOAD.to_le_bytes());
        phdrs.extend(7u32.to_le_bytes());
        for field in [offset as u64, *virt, *physical, bytes.len() as u64, *memory_size, 1] {
            phdrs.extend(field.to_le_bytes());
        }
        contents.extend_from_slice(bytes);
        offset += bytes.len();
    }
    [header, phdrs, contents].concat()
}

const AT: u64 = layout::IMAGE.start;
const VIRT: u64 = KERNEL_BASE + AT;

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
    let elf = elf_of(
        VIRT + 0x2001,
        &[(VIRT + 0x2000, AT + 0x2000, b"high", 4), (VIRT, AT, b"low", 0x1000)],
    );
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
    let mut elf =
        elf_of(VIRT, &[(VIRT, AT, b"code", 4), (0, 0, b"\xff\xff\xff\xff\xff\xff\xff\xff", 8)]);
    let second = EHDR_SIZE + PHDR_SIZE;
    elf[second..second + 4].copy_from_slice(&4u32.to_le_bytes());
    elf[second + 48..second + 56].copy_from_slice(&8u64.to_le_bytes());
    assert_eq!(load(&memory(), &elf), Ok(VIRT));
}

#[test]
fn files_that_are_no_images_are_refused_by_what_they_are() {
    assert_eq!(check(b""), Err(ImageError::Empty));
    assert_eq!(check(b"#!/bin/sh\n"), Err(ImageError::NotElf { got: *b"#!/b" }));
    assert_eq!(check(b"\x7fELF\x02\x01"), Err(ImageError::TruncatedHeader { len: 6 }));
    let good = elf_of(VIRT, &[(VIRT, AT, b"code", 4)]);
    assert_eq!(check(&good), Ok(VIRT));
    let with = |at: usize, byte: u8| {
        let mut elf = good.clone();
        elf[at] = byte;
        check(&elf).unwrap_err().to_string()
    };
    assert_eq!(with(4, 1), "ELF class: expected 2 (64-bit), got 1");
    assert_eq!(with(5, 2), "ELF byte order: expected 1 (little-endian), got 2");
    assert_eq!(with(16, 3), "ELF type: expected 2 (executable), got 3");
    assert_eq!(with(18, 183), "ELF machine: expected 62 (x86-64), got 183");
    assert_eq!(check(&elf_of(VIRT, &[])), Err(ImageError::NothingToLoad));
}

#[test]
fn every_truncation_of_the_bundled_image_ends_in_an_error_or_the_same_entry() {
    let whole = check(FIRMWARE).unwrap();
    for len in (0..FIRMWARE.len()).step_by(97).chain(0..300) {
        if let Ok(entry) = check(&FIRMWARE[..len]) {
            assert_eq!(entry, whole);
        }
    }
    let cut = check(&FIRMWARE[..0x1100]).unwrap_err();
    assert!(matches!(cut, ImageError::TruncatedSegment { index: 0, .. }), "{cut}");
}

#[test]
fn segments_outside_of_the_images_memory_are_refused() {
    for (physical, size) in [
        (0, 4),
        (AT - 1, 4),
        (layout::MEMORY_SIZE - 3, 4),
        (AT, u64::MAX),
        (u64::MAX, 4),
        (AT, layout::MEMORY_SIZE),
    ] {
        let elf = elf_of(VIRT, &[(VIRT, physical, b"code", size)]);
        let address = physical;
        assert_eq!(check(&elf), Err(ImageError::SegmentPlace { index: 0, address, size }));
    }
    let elf = elf_of(VIRT, &[(VIRT + 1, AT, b"code", 4)]);
    assert!(matches!(check(&elf), Err(ImageError::SegmentMapping { .. })));
    let elf = elf_of(VIRT + 4, &[(VIRT, AT, b"code", 4)]);
    assert_eq!(check(&elf), Err(ImageError::Entry { entry: VIRT + 4 }));
    let elf = elf_of(VIRT, &[(VIRT, AT, b"code", 3)]);
    assert!(matches!(check(&elf), Err(ImageError::SegmentSize { .. })));
}

#[test]
fn no_byte_of_the_headers_can_make_the_loader_panic() {
    let good = elf_of(VIRT, &[(VIRT, AT, b"code", 4), (VIRT + 0x1000, AT + 0x1000, b"data", 64)]);
    let memory = memory();
    for at in 0..EHDR_SIZE + 2 * PHDR_SIZE {
        for byte in [0, 1, 0x7f, 0x80, 0xff] {
            let mut elf = good.clone();
            elf[at] = byte;
            let _ = load(&memory, &elf);
        }
    }
}
