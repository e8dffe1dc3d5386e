//! The processor that a Linux guest sees: what KVM supports, less what this machine must not show.
//!
//! - No APIC of any kind: there is no in-kernel irqchip, interrupts come from an 8259 pair.
//! - kvm-clock and steal time, and nothing else of KVM's paravirtual features. The MSRs of both exit to
//!   us whether or not this KVM offers them, so the leaf is written anew.
//! - No invariant TSC. With constant *and* nonstop TSC `kvmclock_init` lowers kvm-clock's rating to 299
//!   (arch/x86/kernel/kvmclock.c, Linux 7.3), below the TSC's 300 (arch/x86/kernel/tsc.c), and the guest
//!   would read a clock that does not stand still. Intel CPUs are taken for constant by their model,
//!   but nonstop comes from this bit alone.
//! - No XSAVE and nothing that needs it, and no leaf 7 (fast `rep movsb` among it): nested SVM under
//!   an emulator gets both wrong, and no measurement needs them.
//! - No RDRAND: entropy would differ between two runs from one snapshot.
//! - No MONITOR: idle is HLT, which exits.
//! - One processor, whatever the host's topology.
//!
//! Leaves: SDM 2A, CPUID; APM 3, appendix E; Documentation/virt/kvm/x86/cpuid.rst.

use kvm_bindings::kvm_cpuid_entry2;

/// What differs between guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The guest has a steal-time interface.
    pub steal: bool,
    /// The guest may turn on 5-level paging, if the host has it.
    pub five_level: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { steal: true, five_level: false }
    }
}

/// The highest leaves shown: topology, XSAVE, PMU and frequencies are above.
const BASIC_MAX: u32 = 7;
const EXTENDED_MAX: u32 = 0x8000_0008;

/// KVM's leaves.
const KVM_SIGNATURE: u32 = 0x4000_0000;
const KVM_FEATURES: u32 = 0x4000_0001;
/// `KVM_FEATURE_*` (arch/x86/include/uapi/asm/kvm_para.h).
const CLOCKSOURCE: u32 = 1 << 0;
const CLOCKSOURCE2: u32 = 1 << 3;
const STEAL_TIME: u32 = 1 << 5;
const CLOCKSOURCE_STABLE: u32 = 1 << 24;

/// Bits of leaf 1, ECX.
mod leaf_1_ecx {
    const DTES64: u32 = 1 << 2;
    const MONITOR: u32 = 1 << 3;
    const DS_CPL: u32 = 1 << 4;
    const VMX: u32 = 1 << 5;
    const SMX: u32 = 1 << 6;
    const EIST: u32 = 1 << 7;
    const TM2: u32 = 1 << 8;
    const FMA: u32 = 1 << 12;
    const PDCM: u32 = 1 << 15;
    const PCID: u32 = 1 << 17;
    const DCA: u32 = 1 << 18;
    const X2APIC: u32 = 1 << 21;
    const TSC_DEADLINE: u32 = 1 << 24;
    const XSAVE: u32 = 1 << 26;
    const OSXSAVE: u32 = 1 << 27;
    const AVX: u32 = 1 << 28;
    const F16C: u32 = 1 << 29;
    const RDRAND: u32 = 1 << 30;

    pub const HYPERVISOR: u32 = 1 << 31;
    pub const HIDDEN: u32 = DTES64
        | MONITOR
        | DS_CPL
        | VMX
        | SMX
        | EIST
        | TM2
        | FMA
        | PDCM
        | PCID
        | DCA
        | X2APIC
        | TSC_DEADLINE
        | XSAVE
        | OSXSAVE
        | AVX
        | F16C
        | RDRAND;
}

/// Bits of leaf 1, EDX; AMD repeats the lower ones in leaf 0x80000001.
const APIC: u32 = 1 << 9;
/// The machine has memory of one type only.
const MTRR: u32 = 1 << 12;
const DS: u32 = 1 << 21;
const ACPI: u32 = 1 << 22;
const SELF_SNOOP: u32 = 1 << 27;
const HTT: u32 = 1 << 28;
const TM: u32 = 1 << 29;
const PBE: u32 = 1 << 31;
const LEAF_1_EDX_HIDDEN: u32 = APIC | MTRR | DS | ACPI | SELF_SNOOP | HTT | TM | PBE;

/// Leaf 7, ECX: 57-bit addresses.
const LA57: u32 = 1 << 16;

/// Leaf 0x80000001, ECX, less what is kept: LAHF, LZCNT, SSE4A, misaligned SSE, PREFETCHW, TBM. XOP and
/// FMA4 need XSAVE; SVM, IBS, topology, counters and MWAITX are not for this machine.
const EXTENDED_ECX_SHOWN: u32 = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 21;

/// The entries for KVM_SET_CPUID2 from those of KVM_GET_SUPPORTED_CPUID.
pub fn filter(supported: &[kvm_cpuid_entry2], options: Options) -> Vec<kvm_cpuid_entry2> {
    let mut entries: Vec<_> = supported.iter().filter_map(|e| leaf(*e, options)).collect();
    entries.extend(kvm_leaves(options));
    entries
}

/// `e` as the guest sees it, if it does.
fn leaf(mut e: kvm_cpuid_entry2, options: Options) -> Option<kvm_cpuid_entry2> {
    match e.function {
        0 => e.eax = e.eax.min(BASIC_MAX),
        1 => {
            e.ecx = e.ecx & !leaf_1_ecx::HIDDEN | leaf_1_ecx::HYPERVISOR;
            e.edx &= !LEAF_1_EDX_HIDDEN;
            // APIC ID 0, one logical processor; the CLFLUSH line and the brand stay.
            e.ebx = e.ebx & 0xffff | 1 << 16;
        }
        2 | 0x8000_0002..=0x8000_0006 => {}
        // Caches: shared by one thread, one core a package.
        4 => e.eax &= 0x3fff,
        7 if e.index == 0 => {
            let la57 = if options.five_level { e.ecx & LA57 } else { 0 };
            (e.eax, e.ebx, e.ecx, e.edx) = (0, 0, la57, 0);
        }
        0x8000_0000 => e.eax = e.eax.min(EXTENDED_MAX),
        0x8000_0001 => {
            e.ecx &= EXTENDED_ECX_SHOWN;
            e.edx &= !(APIC | MTRR);
        }
        // Invariant TSC is in EDX, all else in here is power management.
        0x8000_0007 => (e.eax, e.ebx, e.ecx, e.edx) = (0, 0, 0, 0),
        0x8000_0008 => {
            let linear_bits = if options.five_level { e.eax >> 8 & 0xff } else { 48 };
            e.eax = e.eax & !0xff00 | linear_bits << 8;
            (e.ebx, e.ecx, e.edx) = (0, 0, 0);
        }
        _ => return None,
    }
    Some(e)
}

fn kvm_leaves(options: Options) -> [kvm_cpuid_entry2; 2] {
    let word = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
    let steal = if options.steal { STEAL_TIME } else { 0 };
    [
        kvm_cpuid_entry2 {
            function: KVM_SIGNATURE,
            eax: KVM_FEATURES,
            ebx: word(b"KVMK"),
            ecx: word(b"VMKV"),
            edx: word(b"M\0\0\0"),
            ..Default::default()
        },
        kvm_cpuid_entry2 {
            function: KVM_FEATURES,
            eax: CLOCKSOURCE | CLOCKSOURCE2 | CLOCKSOURCE_STABLE | steal,
            ..Default::default()
        },
    ]
}
