//! The state in which a kernel's 64-bit entry wants the processor, as pure data: identity page tables,
//! the boot descriptors, registers (Documentation/arch/x86/boot.rst, "64-bit Boot Protocol", Linux 7.3).

use kvm_bindings::{kvm_regs, kvm_sregs};

use super::layout::{GDT, IDENTITY_MAP_END, PAGE_TABLES, ZERO_PAGE};
use crate::machine::layout::{LARGE_PAGE, PAGE};
use crate::machine::long_mode::{self, CODE, DATA, Tables};
use crate::machine::paging::{A, D, P, PS, RW, Table};

/// The boot descriptors: `__BOOT_CS` is 0x10, `__BOOT_DS` is 0x18.
pub const DESCRIPTORS: [u64; 4] = [0, 0, CODE, DATA];

const TABLES: Tables = Tables {
    gdt: GDT.start,
    gdt_size: size_of_val(&DESCRIPTORS),
    code: 0x10,
    data: 0x18,
    cr3: PAGE_TABLES.start,
};

/// Entries of a table.
const ENTRIES: u64 = 512;

/// The page tables with the physical addresses at which they go: the first 4 GiB, which is more than
/// any memory, at their own addresses.
pub fn page_tables() -> Vec<(u64, Table)> {
    let (pml4, pdpt, directories) =
        (PAGE_TABLES.start, PAGE_TABLES.start + PAGE, PAGE_TABLES.start + 2 * PAGE);
    let count = IDENTITY_MAP_END / (ENTRIES * LARGE_PAGE);
    let table = |entry: &dyn Fn(u64) -> u64, used: u64| -> Table {
        std::array::from_fn(|i| if (i as u64) < used { entry(i as u64) } else { 0 })
    };
    let mut tables = vec![
        (pml4, table(&|_| pdpt | P | RW | A, 1)),
        (pdpt, table(&|i| (directories + i * PAGE) | P | RW | A, count)),
    ];
    tables.extend((0..count).map(|d| {
        let page = |i| ((d * ENTRIES + i) * LARGE_PAGE) | P | RW | A | D | PS;
        (directories + d * PAGE, table(&page, ENTRIES))
    }));
    tables
}

/// `base` (what KVM gives a new vCPU) in 64-bit mode, on the boot tables.
pub fn sregs(base: kvm_sregs) -> kvm_sregs {
    long_mode::sregs(base, &TABLES)
}

/// At `entry`, with `rsi` the zero page and interrupts off. The kernel brings its own stack.
pub fn regs(entry: u64) -> kvm_regs {
    kvm_regs { rip: entry, rsi: ZERO_PAGE.start, rflags: long_mode::RFLAGS, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A walk by the book, apart from the builder.
    fn walk(address: u64) -> Option<u64> {
        let tables = page_tables();
        let mut base = sregs(kvm_sregs::default()).cr3;
        for shift in [39, 30, 21] {
            let table = tables.iter().find(|(at, _)| *at == base).expect("entries name tables").1;
            let entry = table[((address >> shift) & 0x1ff) as usize];
            if entry & 3 != 3 {
                return None;
            }
            base = entry & 0x000f_ffff_ffff_f000;
            if shift == 21 {
                assert_ne!(entry & 0x80, 0, "a page directory maps pages");
            }
        }
        Some(base + (address & 0x1f_ffff))
    }

    #[test]
    fn the_first_4_gib_and_nothing_else_are_mapped_to_themselves() {
        for page in (0..2 * IDENTITY_MAP_END).step_by(LARGE_PAGE as usize) {
            let address = page + 0x1234;
            assert_eq!(walk(address), (page < IDENTITY_MAP_END).then_some(address));
        }
        assert_eq!(walk(0xffff_ffff_8000_0000), None);
    }

    #[test]
    fn the_tables_are_the_region_that_the_layout_has_for_them() {
        let places: Vec<u64> = page_tables().iter().map(|(at, _)| *at).collect();
        let region: Vec<u64> =
            (PAGE_TABLES.start..PAGE_TABLES.end()).step_by(PAGE as usize).collect();
        assert_eq!(places, region);
    }

    #[test]
    fn entry_state_is_what_the_64_bit_boot_protocol_asks_for() {
        let sregs = sregs(kvm_sregs::default());
        assert_eq!((sregs.cs.selector, sregs.cs.l, sregs.cs.base), (0x10, 1, 0));
        for data in [sregs.ds, sregs.es, sregs.ss] {
            assert_eq!((data.selector, data.base, data.limit), (0x18, 0, 0xffff_ffff));
        }
        assert_eq!((sregs.gdt.base, sregs.gdt.limit), (0x6000, 31));
        let regs = regs(0x100_0200);
        assert_eq!((regs.rip, regs.rsi), (0x100_0200, 0x7000));
        assert_eq!(regs.rflags & (1 << 9), 0, "interrupts are off");
    }
}
