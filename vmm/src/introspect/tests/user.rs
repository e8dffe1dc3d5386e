//! Buffers of processes.

use vm_memory::{Bytes, GuestAddress};

use super::PageTables;
use crate::introspect::translate::{AddressSpace, Depth};
use crate::introspect::user::{UserError, read_user, write_user};

const BUFFER: u64 = 0x7f12_3456_7000;
const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const USER: u64 = 4;

/// A process with three pages, the second of which is mapped with `bits`.
fn process(bits: u64) -> (PageTables, AddressSpace) {
    let mut tables = PageTables::new(2 << 20);
    for (page, bits) in [(0, PRESENT | WRITABLE | USER), (1, bits), (2, PRESENT | WRITABLE | USER)]
    {
        let at = tables.entry(BUFFER + page * 0x1000, 0);
        // In reverse order.
        tables.put(at, (0x10_2000 - page * 0x1000) | bits);
    }
    let space = AddressSpace::new(tables.root, Depth::Four);
    (tables, space)
}

#[test]
fn a_buffer_is_written_and_read_across_its_pages() {
    let (tables, space) = process(PRESENT | WRITABLE | USER);
    let data: Vec<u8> = (0..10_000u32).map(|i| i as u8 ^ (i >> 8) as u8).collect();
    write_user(&tables.mem, space, BUFFER + 100, &data).unwrap();
    let mut back = vec![0; data.len()];
    read_user(&tables.mem, space, BUFFER + 100, &mut back).unwrap();
    assert!(back == data);
    let first: u8 = tables.mem.read_obj(GuestAddress(0x10_2000 + 100)).unwrap();
    let second: u8 = tables.mem.read_obj(GuestAddress(0x10_1000)).unwrap();
    assert_eq!((first, second), (data[0], data[4096 - 100]));
    assert_eq!(write_user(&tables.mem, space, 0, &[]), Ok(()), "nothing is anywhere");
}

#[test]
fn a_page_that_the_process_may_not_write_keeps_all_of_the_buffer_as_it_was() {
    for bits in [PRESENT | USER, PRESENT | WRITABLE] {
        let (tables, space) = process(bits);
        let error = write_user(&tables.mem, space, BUFFER, &[7; 0x3000]).unwrap_err();
        let (va, len) = (BUFFER + 0x1000, 0x3000);
        let entry = 0x10_1000 | bits;
        assert_eq!(error, UserError::ReadOnly { start: BUFFER, len, va, entry });
        let first: u8 = tables.mem.read_obj(GuestAddress(0x10_2000)).unwrap();
        assert_eq!(first, 0);
        // It can be read.
        read_user(&tables.mem, space, BUFFER, &mut [0; 0x3000]).unwrap();
    }
}

#[test]
fn a_buffer_that_ends_in_nothing_is_named_by_the_byte() {
    let (tables, space) = process(PRESENT | WRITABLE | USER);
    let error = write_user(&tables.mem, space, BUFFER + 8, &[7; 0x3000]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot reach byte {:#x} of the buffer of 12288 bytes at {:#x}",
            BUFFER + 0x3000,
            BUFFER + 8
        )
    );
    assert!(read_user(&tables.mem, space, BUFFER + 8, &mut [7; 0x3000]).is_err());
    for wild in [0, 1 << 47, u64::MAX - 2] {
        assert!(write_user(&tables.mem, space, wild, &[7; 8]).is_err());
        assert!(read_user(&tables.mem, space, wild, &mut [7; 8]).is_err());
    }
    // Mapped to where there is no memory.
    let (mut tables, space) = process(PRESENT | WRITABLE | USER);
    let at = tables.entry(BUFFER, 0);
    tables.put(at, 0x4000_0000_0000 | 7);
    assert!(write_user(&tables.mem, space, BUFFER, &[7; 8]).is_err());
}
