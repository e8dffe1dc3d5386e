//! Registers of a processor that starts in 64-bit mode, as pure data.
//!
//! SDM 3A: 2.5 (control registers), 3.4.5 (segment descriptors), 9.8.5 (what long mode needs); APM 2,
//! 4.8 (segments in long mode) and 3.1.7 (EFER).

use kvm_bindings::{kvm_dtable, kvm_segment, kvm_sregs};

/// Protected mode; the coprocessor is a modern one; its errors are exceptions; write protection holds
/// for the kernel too; paging.
const CR0: u64 = PE | MP | ET | NE | WP | PG;
const PE: u64 = 1 << 0;
const MP: u64 = 1 << 1;
const ET: u64 = 1 << 4;
const NE: u64 = 1 << 5;
const WP: u64 = 1 << 16;
const PG: u64 = 1 << 31;

/// 4-level paging needs PAE. The bundled image has no SSE instruction, but with OSFXSR one that strays
/// in from a library would run where there is hardware for it; Linux sets CR4 anew.
const CR4: u64 = PAE | OSFXSR | OSXMMEXCPT;
const PAE: u64 = 1 << 5;
const OSFXSR: u64 = 1 << 9;
const OSXMMEXCPT: u64 = 1 << 10;

/// Long mode enabled and active.
const EFER: u64 = LME | LMA;
const LME: u64 = 1 << 8;
const LMA: u64 = 1 << 10;

/// Bit 1 is always set; interrupts are off (SDM 1, 3.4.3).
pub const RFLAGS: u64 = 1 << 1;

/// Code: present, DPL 0, execute and read, accessed, 64-bit, 4 KiB units.
pub const CODE: u64 = 0x00af_9b00_0000_ffff;
/// Data: present, DPL 0, read and write, accessed, 32-bit, 4 KiB units.
pub const DATA: u64 = 0x00cf_9300_0000_ffff;

/// What long mode starts with in guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables {
    /// Address of the descriptor table, as the guest sees it.
    pub gdt: u64,
    /// Bytes of the descriptor table.
    pub gdt_size: usize,
    /// Selector of [`CODE`] in it.
    pub code: u16,
    /// Selector of [`DATA`] in it.
    pub data: u16,
    /// Physical address of the highest page table.
    pub cr3: u64,
}

/// What the CPU would have cached from `descriptor` (SDM 3A, figure 3-8).
fn segment(selector: u16, descriptor: u64) -> kvm_segment {
    let field = |low: u32, width: u32| ((descriptor >> low) & ((1 << width) - 1)) as u8;
    kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector,
        type_: field(40, 4),
        s: field(44, 1),
        dpl: field(45, 2),
        present: field(47, 1),
        avl: field(52, 1),
        l: field(53, 1),
        db: field(54, 1),
        g: field(55, 1),
        unusable: 0,
        padding: 0,
    }
}

/// A busy 64-bit TSS of no content, which VMX wants to see loaded (SDM 3C, 26.3.1.2); the guest has
/// no ring but 0 and no interrupt stacks.
fn task_register() -> kvm_segment {
    kvm_segment { limit: 0x67, type_: 0xb, present: 1, ..Default::default() }
}

/// `base` (what KVM gives a new vCPU) in 64-bit mode, on `tables`.
pub fn sregs(base: kvm_sregs, tables: &Tables) -> kvm_sregs {
    let data = segment(tables.data, DATA);
    kvm_sregs {
        cs: segment(tables.code, CODE),
        ds: data,
        es: data,
        fs: data,
        gs: data,
        ss: data,
        tr: task_register(),
        ldt: kvm_segment { unusable: 1, ..Default::default() },
        gdt: kvm_dtable {
            base: tables.gdt,
            limit: tables.gdt_size as u16 - 1,
            ..Default::default()
        },
        idt: kvm_dtable::default(),
        cr0: CR0,
        cr3: tables.cr3,
        cr4: CR4,
        efer: EFER,
        ..base
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: Tables = Tables { gdt: 0x2000, gdt_size: 24, code: 8, data: 16, cr3: 0x1000 };

    #[test]
    fn segments_are_what_the_descriptors_say() {
        let code = segment(8, CODE);
        assert_eq!((code.type_, code.s, code.present, code.l, code.db), (0xb, 1, 1, 1, 0));
        let data = segment(16, DATA);
        assert_eq!((data.type_, data.s, data.present, data.l, data.db), (0x3, 1, 1, 0, 1));
    }

    #[test]
    fn what_kvm_set_and_long_mode_does_not_need_is_kept() {
        let base = kvm_sregs { apic_base: 0xfee0_0900, cr8: 3, ..Default::default() };
        let sregs = sregs(base, &TABLES);
        assert_eq!((sregs.apic_base, sregs.cr8), (0xfee0_0900, 3));
        assert_eq!(sregs.cr0 & 0x8000_0001, 0x8000_0001);
        assert_eq!(sregs.efer, 0x500);
    }

    #[test]
    fn segments_and_paging_are_on_the_given_tables() {
        let sregs = sregs(kvm_sregs::default(), &TABLES);
        assert_eq!((sregs.cs.selector, sregs.ss.selector, sregs.gs.selector), (8, 16, 16));
        assert_eq!((sregs.gdt.base, sregs.gdt.limit, sregs.cr3), (0x2000, 23, 0x1000));
    }
}
