//! Page-table walks, well-formed and hostile.

use vm_memory::{Bytes, GuestAddress};

use super::{PRESENT_WRITABLE, PageTables};
use crate::introspect::read::Reader;
use crate::introspect::translate::{AddressSpace, Depth, Level, TranslateError, Translation};

const KERNEL: u64 = 0xffff_ffff_8000_0000;
const LARGE: u64 = 1 << 7;

fn walk(tables: &PageTables, va: u64) -> Result<Translation, TranslateError> {
    AddressSpace::new(tables.root, Depth::Four).translate(&tables.mem, va)
}

#[test]
fn pages_of_each_size_lead_to_their_frames() {
    let mut tables = PageTables::new(1 << 20);
    tables.map(KERNEL, 0x8_0000);
    for (level, va, frame) in [(1, KERNEL + (1 << 30), 0x4000_0000), (2, 1 << 40, 0x80_4000_0000)] {
        let at = tables.entry(va, level);
        tables.put(at, frame | LARGE | PRESENT_WRITABLE | 1 << 63);
    }
    let to = |va| walk(&tables, va).map(|t| (t.gpa, t.level));
    assert_eq!(to(KERNEL + 0xabc), Ok((0x8_0abc, Level::Pte)));
    assert_eq!(to(KERNEL + (1 << 30) + 0x1f_fabc), Ok((0x401f_fabc, Level::Pde)));
    assert_eq!(to((1 << 40) + 0x3fff_fabc), Ok((0x80_7fff_fabc, Level::Pdpte)));
}

#[test]
fn pat_and_software_bits_are_not_part_of_the_address() {
    let mut tables = PageTables::new(1 << 20);
    let at = tables.entry(KERNEL, 0);
    tables.put(at, 0x7ff0_0000_0000_0000 | 0x8_0000 | 0xfff);
    assert_eq!(walk(&tables, KERNEL).unwrap().gpa, 0x8_0000);
    let large = tables.entry(1 << 30, 1);
    // Bit 12 of a 2 MiB entry is its PAT bit.
    tables.put(large, 0x20_0000 | 1 << 12 | LARGE | PRESENT_WRITABLE);
    assert_eq!(walk(&tables, 1 << 30).unwrap().gpa, 0x20_0000);
}

#[test]
fn the_low_and_high_bits_of_cr3_are_not_part_of_the_root() {
    let mut tables = PageTables::new(1 << 20);
    tables.map(KERNEL, 0x8_0000);
    let space = AddressSpace::new(tables.root | 0xfff | 1 << 63, Depth::Four);
    assert_eq!(space.translate(&tables.mem, KERNEL).unwrap().gpa, 0x8_0000);
}

#[test]
fn five_levels_walk_one_table_more() {
    let mut tables = PageTables::new(1 << 20);
    tables.map(KERNEL, 0x8_0000);
    let pml5 = 0x9_0000;
    tables.put(pml5 + 511 * 8, tables.root | PRESENT_WRITABLE);
    let space = AddressSpace::new(pml5, Depth::Five);
    assert_eq!(space.translate(&tables.mem, KERNEL + 5).unwrap().gpa, 0x8_0005);
    let low = 1 << 50;
    assert_eq!(
        space.translate(&tables.mem, low),
        Err(TranslateError::NotPresent {
            va: low,
            level: Level::Pml5e,
            entry_gpa: pml5 + (low >> 48) * 8,
            entry: 0
        })
    );
}

#[test]
fn an_address_that_is_not_canonical_is_refused_before_the_walk() {
    let tables = PageTables::new(1 << 20);
    for va in [0x8000_0000_0000, 0xffff_7fff_ffff_ffff, 1 << 63, 0x0001_0000_0000_0000] {
        assert_eq!(walk(&tables, va), Err(TranslateError::NotCanonical { va, bits: 48 }));
    }
    for va in [0x0000_7fff_ffff_ffff, 0xffff_8000_0000_0000, 0, u64::MAX] {
        assert!(matches!(walk(&tables, va), Err(TranslateError::NotPresent { .. })));
    }
    let five = AddressSpace::new(tables.root, Depth::Five);
    let va = 1 << 56;
    let got = five.translate(&tables.mem, va);
    assert_eq!(got, Err(TranslateError::NotCanonical { va, bits: 57 }));
}

#[test]
fn a_missing_entry_is_named_with_its_level_and_place() {
    let mut tables = PageTables::new(1 << 20);
    for (level, name) in [(3, "pml4e"), (2, "pdpte"), (1, "pde"), (0, "pte")] {
        let va = KERNEL;
        let entry_gpa = tables.entry(va, level);
        tables.put(entry_gpa, 0xabc0);
        let error = walk(&tables, va).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "address {va:#x} is not mapped: the {name} at {entry_gpa:#x} is 0xabc0, not present"
            )
        );
        tables.put(entry_gpa, 0);
    }
}

#[test]
fn reserved_bits_are_refused_as_the_cpu_would() {
    let mut tables = PageTables::new(1 << 20);
    for (level, entry, reserved) in [
        (3, 0x8_0000 | LARGE, LARGE),
        (2, 0x4000_0000 | LARGE | 1 << 13, 1 << 13),
        (2, 0x4000_0000 | LARGE | 1 << 29, 1 << 29),
        (1, 0x20_0000 | LARGE | 1 << 20, 1 << 20),
    ] {
        let at = tables.entry(KERNEL, level);
        tables.put(at, entry | PRESENT_WRITABLE);
        match walk(&tables, KERNEL) {
            Err(TranslateError::Reserved { reserved: got, .. }) => assert_eq!(got, reserved),
            other => panic!("{other:?}"),
        }
        tables.put(at, 0);
    }
}

#[test]
fn tables_outside_guest_memory_end_the_walk() {
    let mut tables = PageTables::new(1 << 20);
    for (level, next) in [(3, "pdpte"), (2, "pde"), (1, "pte")] {
        let at = tables.entry(KERNEL, level);
        tables.put(at, 0xf_ffff_ffff_f000 | PRESENT_WRITABLE);
        let error = walk(&tables, KERNEL).unwrap_err();
        assert!(matches!(error, TranslateError::TableOutside { .. }), "{error:?}");
        assert!(error.to_string().contains(next), "{error}");
        tables.put(at, 0);
    }
    let nowhere = AddressSpace::new(u64::MAX, Depth::Four);
    assert!(matches!(
        nowhere.translate(&tables.mem, KERNEL),
        Err(TranslateError::TableOutside { level: Level::Pml4e, .. })
    ));
}

#[test]
fn a_page_outside_guest_memory_is_refused_when_it_is_read() {
    let mut tables = PageTables::new(1 << 20);
    tables.map(KERNEL, 1 << 20);
    let mut at = Reader::new(&tables.mem, AddressSpace::new(tables.root, Depth::Four));
    let gpa = (1 << 20) + 8;
    assert_eq!(
        at.value::<u64>(KERNEL + 8),
        Err(TranslateError::PageOutside {
            va: KERNEL + 8,
            level: Level::Pte,
            entry: 1 << 20 | PRESENT_WRITABLE,
            gpa
        })
    );
}

#[test]
fn tables_that_point_at_themselves_are_walked_like_any_others() {
    let tables = PageTables::new(1 << 20);
    for i in 0..512 {
        tables.put(tables.root + i * 8, tables.root | PRESENT_WRITABLE);
    }
    // Each level is the same table, and so is the page.
    let got = walk(&tables, KERNEL + 0x123).unwrap();
    assert_eq!((got.gpa, got.level), (tables.root + 0x123, Level::Pte));
}

#[test]
fn a_value_across_two_pages_is_put_together_from_both() {
    let mut tables = PageTables::new(1 << 20);
    tables.map(KERNEL, 0x9_0000);
    tables.map(KERNEL + 0x1000, 0x8_0000);
    let space = AddressSpace::new(tables.root, Depth::Four);
    for split in 1..8u64 {
        let value = 0x1122_3344_5566_7788u64.to_le_bytes();
        let (low, high) = value.split_at(split as usize);
        tables.mem.write_slice(low, GuestAddress(0x9_1000 - split)).unwrap();
        tables.mem.write_slice(high, GuestAddress(0x8_0000)).unwrap();
        let mut at = Reader::new(&tables.mem, space);
        assert_eq!(at.value(KERNEL + 0x1000 - split), Ok(0x1122_3344_5566_7788u64));
    }
    let mut at = Reader::new(&tables.mem, space);
    let beyond = at.value::<u64>(KERNEL + 0x1ffc).unwrap_err();
    assert!(matches!(beyond, TranslateError::NotPresent { va, .. } if va == KERNEL + 0x2000));
    assert!(at.value::<u64>(u64::MAX - 3).is_err());
}

#[test]
fn more_pages_than_a_reader_remembers_are_still_read_right() {
    let mut tables = PageTables::new(1 << 20);
    for page in 0..100 {
        tables.map(KERNEL + page * 0x1000, 0x8_0000 + page * 0x1000);
        tables.put(0x8_0000 + page * 0x1000, page);
    }
    let mut at = Reader::new(&tables.mem, AddressSpace::new(tables.root, Depth::Four));
    for page in (0..100).chain((0..100).rev()).chain((0..100).map(|p| p * 37 % 100)) {
        assert_eq!(at.value(KERNEL + page * 0x1000), Ok(page));
    }
}

#[test]
fn an_address_is_taken_for_a_neighbour_only_within_the_page_that_its_entry_maps() {
    let (large, small) = (1u64 << 21, 1u64 << 12);
    for (level, size) in [(Level::Pde, large), (Level::Pte, small)] {
        let to = Translation { gpa: 5 * large + 0x123, level, entry: 0 };
        let from = KERNEL + 3 * large + 0x123;
        let page = KERNEL + 3 * large;
        let gpa = |va| to.of_neighbour(from, va).map(|t| t.gpa);
        assert_eq!(gpa(page), Some(5 * large));
        assert_eq!(gpa(page + size - 1), Some(5 * large + size - 1));
        for other in [page + size, page - 1, 0, u64::MAX, from ^ 1 << 63, from ^ 1 << 47] {
            assert_eq!(gpa(other), None, "{other:#x}");
        }
    }
}

#[test]
fn large_pages_side_by_side_lead_to_their_own_frames() {
    let mut tables = PageTables::new(8 << 20);
    for (page, frame) in [(0, 6u64), (1, 2), (2, 4)] {
        let at = tables.entry(KERNEL + page * 0x20_0000, 1);
        tables.put(at, frame << 20 | LARGE | PRESENT_WRITABLE);
        tables.put((frame << 20) + 0x1f_f008, page);
    }
    let mut at = Reader::new(&tables.mem, AddressSpace::new(tables.root, Depth::Four));
    for page in [0, 1, 0, 2, 1, 1, 0] {
        assert_eq!(at.value(KERNEL + page * 0x20_0000 + 0x1f_f008), Ok(page));
        assert_eq!(at.value(KERNEL + page * 0x20_0000 + 0x1000), Ok(0u64));
    }
}
