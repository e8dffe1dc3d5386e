//! Symbol tables of ELF files, some of them not what they say.

use guest_model::kernel::Kernel;
use guest_model::wire::MAX_GROUPS;

use crate::introspect::bundled::{self, BundledSymbols};
use crate::introspect::places::SetupError;
use crate::introspect::symbols::{ElfSymbols, Symbol, SymbolError};

/// An x86-64 executable with only a symbol table: name, address, size, section.
fn elf(symbols: &[(&str, u64, u64, u16)]) -> Vec<u8> {
    let mut strtab = vec![0];
    let mut symtab = vec![0; 24];
    for &(name, address, size, section) in symbols {
        symtab.extend((strtab.len() as u32).to_le_bytes());
        symtab.extend([0x11, 0]);
        symtab.extend(section.to_le_bytes());
        symtab.extend(address.to_le_bytes());
        symtab.extend(size.to_le_bytes());
        strtab.extend(name.as_bytes());
        strtab.push(0);
    }
    let (symtab_at, strtab_at) = (64, 64 + symtab.len());
    let sections_at = strtab_at + strtab.len();

    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    for half in [2u16, 62] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1u32.to_le_bytes());
    for word in [0u64, 0, sections_at as u64] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 0, 64, 3, 2] {
        file.extend(half.to_le_bytes());
    }
    file.extend(symtab.iter());
    file.extend(strtab.iter());
    let mut section = |kind: u32, offset: usize, size: usize, link: u32, entry: u64| {
        file.extend(0u32.to_le_bytes());
        file.extend(kind.to_le_bytes());
        for word in [0, 0, offset as u64, size as u64] {
            file.extend(word.to_le_bytes());
        }
        file.extend(link.to_le_bytes());
        file.extend(1u32.to_le_bytes());
        file.extend(1u64.to_le_bytes());
        file.extend(entry.to_le_bytes());
    };
    section(0, 0, 0, 0, 0);
    section(2, symtab_at, symtab.len(), 2, 24);
    section(3, strtab_at, strtab.len(), 0, 0);
    file
}

const KERNEL_SIZE: u64 = size_of::<Kernel>() as u64;
const AT: u64 = 0xffff_ffff_8010_0000;

fn image() -> Vec<u8> {
    elf(&[("_start", 0xffff_ffff_8000_0000, 0, 1), ("rqscope_kernel", AT, KERNEL_SIZE, 1)])
}

fn refusal(data: &[u8]) -> String {
    ElfSymbols::parse("guest.elf", data).err().expect("the file was taken").to_string()
}

#[test]
fn a_symbol_is_found_by_its_name() {
    let image = image();
    let symbols = ElfSymbols::parse("guest.elf", &image).unwrap();
    assert_eq!(symbols.find("rqscope_kernel"), Ok(Symbol { address: AT, size: KERNEL_SIZE }));
}

#[test]
fn a_missing_symbol_is_named() {
    let image = elf(&[("rqscope_kernel", AT, KERNEL_SIZE, 0), ("rqscope_kernel2", AT, 8, 1)]);
    let symbols = ElfSymbols::parse("guest.elf", &image).unwrap();
    // The only one of that name is undefined.
    let error = symbols.find("rqscope_kernel").unwrap_err();
    assert_eq!(error.to_string(), "no symbol rqscope_kernel in guest.elf");
}

#[test]
fn one_name_at_two_addresses_is_refused_and_at_one_address_taken() {
    let image = elf(&[("a", 1, 8, 1), ("a", 2, 8, 1), ("b", 3, 8, 1), ("b", 3, 8, 1)]);
    let symbols = ElfSymbols::parse("vmlinux", &image).unwrap();
    let error = symbols.find("a").unwrap_err();
    assert_eq!(error.to_string(), "symbol a in vmlinux is ambiguous: it is at 0x1 and at 0x2");
    assert_eq!(symbols.find("b").unwrap().address, 3);
}

#[test]
fn an_image_whose_kernel_has_another_size_is_refused() {
    let image = elf(&[("rqscope_kernel", AT, KERNEL_SIZE - 8, 1)]);
    let error = BundledSymbols::of_image(&image).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "symbol rqscope_kernel in the guest image has {} bytes, expected {KERNEL_SIZE}",
            KERNEL_SIZE - 8
        )
    );
}

#[test]
fn files_that_are_no_x86_64_executables_are_refused_with_their_name() {
    assert_eq!(refusal(b""), "cannot read symbols of guest.elf: the file is empty");
    assert_eq!(
        refusal(b"#!/bin/sh"),
        "cannot read symbols of guest.elf: expected the ELF magic 7f454c46, got 23212f62"
    );
    assert_eq!(
        refusal(b"\x7fE"),
        "cannot read symbols of guest.elf: expected the ELF magic 7f454c46, got 7f45"
    );
    let patched = |at: usize, byte| {
        let mut file = image();
        file[at] = byte;
        file
    };
    for (at, byte, message) in [
        (4, 1, "expected EI_CLASS 2, got 1"),
        (5, 2, "expected EI_DATA 1, got 2"),
        (18, 0xb7, "expected e_machine 62, got 183"),
        (16, 3, "expected e_type 2, got 3"),
    ] {
        let expected = format!("cannot read symbols of guest.elf: {message}");
        assert_eq!(refusal(&patched(at, byte)), expected);
    }
}

#[test]
fn a_stripped_file_is_refused_with_the_way_out() {
    let mut file = image();
    let sections = u64::from_le_bytes(file[40..48].try_into().unwrap()) as usize;
    // The symbol table's section becomes one without a meaning.
    file[sections + 64 + 4] = 0;
    assert_eq!(
        refusal(&file),
        "cannot read symbols of guest.elf: it has no .symtab, use the unstripped file"
    );
}

#[test]
fn a_file_cut_anywhere_is_refused_or_lacks_the_symbol() {
    let image = image();
    for len in 1..image.len() {
        let cut = &image[..len];
        match BundledSymbols::of_image(cut) {
            Err(SymbolError::Malformed { .. } | SymbolError::NotElf { .. }) => {}
            Err(SymbolError::Foreign { .. }) if len < 20 => {}
            other => panic!("cut to {len} bytes: {other:?}"),
        }
    }
}

#[test]
fn no_single_byte_of_a_file_makes_the_parser_panic() {
    let image = image();
    for at in 0..image.len() {
        for byte in [0, 1, 0x7f, 0x80, 0xff] {
            let mut file = image.clone();
            file[at] = byte;
            let _ = BundledSymbols::of_image(&file);
        }
    }
}

#[test]
fn an_introspector_for_the_bundled_image_resolves_every_name() {
    let mem = super::PageTables::new(0x1_0000).mem;
    assert!(bundled::introspector(mem.clone(), 0x1000, &image(), MAX_GROUPS).is_ok());
    let too_many =
        bundled::introspector(mem.clone(), 0x1000, &image(), MAX_GROUPS + 1).err().unwrap();
    assert_eq!(too_many.to_string(), "cannot index 4161 task groups, expected 1 to 4160");
    let none = bundled::introspector(mem.clone(), 0x1000, &image(), 0).err().unwrap();
    assert!(matches!(none, SetupError::Groups(_)));
    let not_elf = bundled::introspector(mem, 0x1000, b"", 1).err().unwrap();
    assert_eq!(not_elf.to_string(), "cannot read symbols of the guest image: the file is empty");
}
