use super::*;
use crate::boot::bzimage::crafted::BzImageFile;
use vm_memory::Bytes;

const MEMORY_END: u64 = 32 << 20;

fn load(file: &[u8]) -> Result<(GuestMemoryMmap, Kernel), BzImageError> {
    let ranges = [(GuestAddress(0), MEMORY_END as usize)];
    let memory = GuestMemoryMmap::from_ranges(&ranges).unwrap();
    let kernel = super::load(&memory, file, MEMORY_END)?;
    Ok((memory, kernel))
}

fn refused(file: BzImageFile) -> String {
    load(&file.bytes()).unwrap_err().to_string()
}

#[test]
fn the_code_goes_to_the_preferred_address_and_starts_512_bytes_in() {
    let file = BzImageFile::default();
    let (memory, kernel) = load(&file.bytes()).unwrap();
    assert_eq!((kernel.entry, kernel.end), (0x100_0200, 0x100_0000 + 0x80_0000));
    let (cmdline_size, initrd_addr_max) =
        (kernel.header.cmdline_size, kernel.header.initrd_addr_max);
    assert_eq!((cmdline_size, initrd_addr_max), (2047, 0x7fff_ffff));
    let mut code = vec![0; file.code.len() + 1];
    memory.read_slice(&mut code, GuestAddress(0x100_0000)).unwrap();
    assert_eq!(code, [&file.code[..], &[0]].concat());
}

#[test]
fn no_setup_sectors_stand_for_four() {
    let file = BzImageFile { setup_sects: 0, ..Default::default() };
    let (memory, _) = load(&file.bytes()).unwrap();
    let first: u8 = memory.read_obj(GuestAddress(0x100_0000)).unwrap();
    assert_eq!(first, file.code[0]);
}

#[test]
fn a_signature_behind_the_code_is_no_harm() {
    let bytes = [BzImageFile::default().bytes(), vec![0x30; 1000]].concat();
    assert!(load(&bytes).is_ok());
}

#[test]
fn kernels_without_a_64_bit_entry_are_refused_by_what_they_lack() {
    assert_eq!(
        refused(BzImageFile { version: 0x20b, ..Default::default() }),
        "setup header: version: expected 0x20c or later (Linux 3.8), got 0x20b"
    );
    assert_eq!(
        refused(BzImageFile { xloadflags: 0x7e, ..Default::default() }),
        "setup header: xloadflags: expected XLF_KERNEL_64 (bit 0), a 64-bit kernel, got 0x7e"
    );
    assert_eq!(
        refused(BzImageFile { loadflags: 0, ..Default::default() }),
        "setup header: loadflags: expected LOADED_HIGH (bit 0), got 0x0"
    );
    assert_eq!(
        refused(BzImageFile { boot_flag: 0, ..Default::default() }),
        "setup header: boot_flag: expected 0xaa55, got 0x0"
    );
}

#[test]
fn places_that_do_not_fit_are_refused() {
    for pref_address in [0, 0x7000, 0xf_f000] {
        let file = BzImageFile { pref_address, kernel_alignment: 0x1000, ..Default::default() };
        let expected = "setup header: pref_address: expected 0x100000 or above, got";
        assert_eq!(refused(file), format!("{expected} {pref_address:#x}"));
    }
    assert_eq!(
        refused(BzImageFile { pref_address: 0x110_0000, ..Default::default() }),
        "setup header: pref_address: expected a multiple of kernel_alignment, got 0x1100000"
    );
    assert_eq!(
        refused(BzImageFile { init_size: 0x100, ..Default::default() }),
        "setup header: init_size: expected at least the protected-mode code, got 0x100"
    );
    for (address, size) in
        [(0x100_0000, 0x100_0001), (MEMORY_END, 0x1_0000), (!0 << 21, 0x20_0000), (!0 << 21, !0)]
    {
        let file = BzImageFile { pref_address: address, init_size: size, ..Default::default() };
        let size = size.into();
        assert_eq!(
            load(&file.bytes()).unwrap_err(),
            BzImageError::NoRoom { address, size, memory_end: MEMORY_END }
        );
    }
}

#[test]
fn every_truncation_is_an_error_that_says_what_is_cut_off() {
    let file = BzImageFile::default().bytes();
    for len in MAGIC.0 + 4..file.len() {
        let cut = load(&file[..len]).unwrap_err();
        assert!(matches!(cut, BzImageError::Truncated { .. }), "{len} bytes: {cut}");
    }
    let cut = |len: usize| load(&file[..len]).unwrap_err().to_string();
    assert_eq!(cut(0x240), "truncated: the setup header needs 620 bytes, the file has 576");
    assert_eq!(cut(1024), "truncated: the 64-bit entry needs 1537 bytes, the file has 1024");
    let len = file.len();
    assert_eq!(
        cut(len - 1),
        format!(
            "truncated: the protected-mode code (syssize) needs {len} bytes, the file has {}",
            len - 1
        )
    );
    let file = BzImageFile { payload_length: 0x10_0000, ..Default::default() };
    assert!(refused(file).starts_with("truncated: the compressed kernel (payload) needs"));
    let file = BzImageFile { payload_offset: !0, payload_length: !0, ..Default::default() };
    assert!(refused(file).starts_with("truncated: the compressed kernel (payload) needs"));
}

#[test]
fn no_byte_of_the_header_can_make_the_loader_panic() {
    let good = BzImageFile::default().bytes();
    let ranges = [(GuestAddress(0), MEMORY_END as usize)];
    let memory = GuestMemoryMmap::from_ranges(&ranges).unwrap();
    for at in HEADER..HEADER + size_of::<setup_header>() {
        for byte in [0, 1, 0x7f, 0x80, 0xff] {
            let mut file = good.clone();
            file[at] = byte;
            let _ = super::load(&memory, &file, MEMORY_END);
        }
    }
}
