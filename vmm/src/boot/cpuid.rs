//! The processor that a Linux guest sees: of what KVM supports, the features named here. What a newer
//! processor brings stays hidden until somebody has decided that it may be seen:
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

/// Leaf 1, EDX: FPU, VME, DE, PSE, TSC, MSR, PAE, MCE, CX8; SEP; PGE, MCA, CMOV, PAT, PSE36; CLFSH; MMX,
/// FXSR, SSE, SSE2, self-snoop. Not APIC (9), MTRR (12: all memory is of one type), HTT (28).
const EDX_1: u32 =
    bits(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 14, 15, 16, 17, 19, 23, 24, 25, 26, 27]);
/// Leaf 1, ECX: SSE3, PCLMUL, SSSE3, CX16, SSE4.1, SSE4.2, MOVBE, POPCNT, AES. Not MONITOR (3), VMX (5),
/// FMA (12), PCID (17), x2APIC (21), TSC deadline (24), XSAVE (26), AVX (28), F16C (29), RDRAND (30).
const ECX_1: u32 = bits(&[0, 1, 9, 13, 19, 20, 22, 23, 25]);
const HYPERVISOR: u32 = 1 << 31;
/// Leaf 0x80000001, EDX: SYSCALL, NX, MMXEXT, FFXSR, 1 GiB pages, RDTSCP, LM; AMD repeats leaf 1's.
const EDX_EXTENDED: u32 = EDX_1 | bits(&[11, 20, 22, 25, 26, 27, 29]);
/// Leaf 0x80000001, ECX: LAHF, LZCNT, SSE4A, misaligned SSE, PREFETCHW. Not SVM (2), XOP (11), FMA4 (16),
/// topology (22), performance counters (23, 24, 28), MWAITX (29).
const ECX_EXTENDED: u32 = bits(&[0, 5, 6, 7, 8]);
/// Leaf 7, ECX: 57-bit addresses.
const LA57: u32 = 1 << 16;

const fn bits(numbers: &[u32]) -> u32 {
    let mut mask = 0;
    let mut i = 0;
    while i < numbers.len() {
        mask |= 1 << numbers[i];
        i += 1;
    }
    mask
}

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
            e.ecx = e.ecx & ECX_1 | HYPERVISOR;
            e.edx &= EDX_1;
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
            e.ecx &= ECX_EXTENDED;
            e.edx &= EDX_EXTENDED;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(function: u32, index: u32, [eax, ebx, ecx, edx]: [u32; 4]) -> kvm_cpuid_entry2 {
        kvm_cpuid_entry2 { function, index, eax, ebx, ecx, edx, ..Default::default() }
    }

    /// Every leaf that KVM may report, with every bit set.
    fn everything() -> Vec<kvm_cpuid_entry2> {
        let ranges = [0..=0x24, 0x4000_0000..=0x4000_0010, 0x8000_0000..=0x8000_0026];
        let leaves = ranges.into_iter().flatten().chain([0xc000_0000, 0xc000_0001]);
        leaves.flat_map(|leaf| [entry(leaf, 0, [!0; 4]), entry(leaf, 1, [!0; 4])]).collect()
    }

    fn get(entries: &[kvm_cpuid_entry2], function: u32) -> [u32; 4] {
        let e = entries.iter().find(|e| e.function == function).expect("the leaf is shown");
        [e.eax, e.ebx, e.ecx, e.edx]
    }

    #[test]
    fn what_owning_the_guests_time_forbids_is_hidden_from_a_processor_that_has_everything() {
        let shown = filter(&everything(), Options::default());
        let [_, _, ecx, edx] = get(&shown, 1);
        let hidden = [
            ("MONITOR", ecx, 3),
            ("VMX", ecx, 5),
            ("FMA", ecx, 12),
            ("PCID", ecx, 17),
            ("x2APIC", ecx, 21),
            ("TSC deadline", ecx, 24),
            ("XSAVE", ecx, 26),
            ("OSXSAVE", ecx, 27),
            ("AVX", ecx, 28),
            ("F16C", ecx, 29),
            ("RDRAND", ecx, 30),
            ("APIC", edx, 9),
            ("HTT", edx, 28),
            ("SVM", get(&shown, 0x8000_0001)[2], 2),
            ("TOPOEXT", get(&shown, 0x8000_0001)[2], 22),
            ("MWAITX", get(&shown, 0x8000_0001)[2], 29),
            ("APIC once more", get(&shown, 0x8000_0001)[3], 9),
            ("invariant TSC", get(&shown, 0x8000_0007)[3], 8),
        ];
        for (name, register, bit) in hidden {
            assert_eq!(register >> bit & 1, 0, "{name}");
        }
        assert_eq!(get(&shown, 7), [0; 4]);
        for function in [0xb, 0xd, 0x15, 0x1f, 0x4000_0002, 0x8000_001d, 0x8000_001e, 0xc000_0001] {
            assert!(shown.iter().all(|e| e.function != function), "{function:#x}");
        }
        assert_eq!((get(&shown, 0)[0], get(&shown, 0x8000_0000)[0]), (7, 0x8000_0008));
    }

    #[test]
    fn what_a_64_bit_kernel_cannot_do_without_is_shown() {
        let shown = filter(&everything(), Options::default());
        let [_, _, ecx, edx] = get(&shown, 1);
        for bit in [0, 3, 4, 5, 6, 8, 13, 15, 24, 25, 26] {
            assert_eq!(edx >> bit & 1, 1, "leaf 1, EDX bit {bit} (required-features.h)");
        }
        assert_eq!(ecx >> 31, 1, "hypervisor");
        for bit in [11, 20, 29] {
            assert_eq!(get(&shown, 0x8000_0001)[3] >> bit & 1, 1, "0x80000001, EDX bit {bit}");
        }
    }

    #[test]
    fn nothing_that_the_processor_lacks_is_shown_but_the_hypervisor() {
        let none: Vec<_> =
            everything().iter().map(|e| entry(e.function, e.index, [0; 4])).collect();
        let shown = filter(&none, Options::default());
        assert_eq!(get(&shown, 1), [0, 1 << 16, 1 << 31, 0]);
        for function in [0, 7, 0x8000_0001, 0x8000_0007] {
            assert_eq!(get(&shown, function), [0; 4], "{function:#x}");
        }
    }

    #[test]
    fn kvms_leaves_offer_the_two_clocks_and_nothing_else() {
        let shown = filter(&everything(), Options::default());
        let [eax, ebx, ecx, edx] = get(&shown, 0x4000_0000);
        let signature = [ebx, ecx, edx].map(u32::to_le_bytes).concat();
        assert_eq!((eax, signature.as_slice()), (0x4000_0001, &b"KVMKVMKVM\0\0\0"[..]));
        assert_eq!(get(&shown, 0x4000_0001), [1 | 1 << 3 | 1 << 5 | 1 << 24, 0, 0, 0]);
        let without = filter(&everything(), Options { steal: false, ..Options::default() });
        assert_eq!(get(&without, 0x4000_0001), [1 | 1 << 3 | 1 << 24, 0, 0, 0]);
        let leaves = shown.iter().filter(|e| e.function >> 24 == 0x40).count();
        assert_eq!(leaves, 2, "each once, though KVM reports its own");
    }

    #[test]
    fn there_is_one_processor_whatever_the_hosts_topology() {
        let host = [
            entry(1, 0, [0, 0x0708_0800, 0, !0]),
            entry(4, 0, [0xfc1c_c121, 1, 2, 3]),
            entry(0x8000_0008, 0, [0x0000_3030, 0, 0x0000_707f, 0]),
        ];
        let shown = filter(&host, Options::default());
        assert_eq!(get(&shown, 1)[1], 0x0001_0800, "APIC ID 0, one processor, the same CLFLUSH");
        assert_eq!(get(&shown, 4), [0x0121, 1, 2, 3], "one thread a cache, one core a package");
        assert_eq!(get(&shown, 0x8000_0008), [0x3030, 0, 0, 0]);
    }

    #[test]
    fn five_level_paging_is_shown_where_asked_for_and_there() {
        let wide = [entry(7, 0, [2, !0, !0, !0]), entry(0x8000_0008, 0, [0x3934, 0, 0, 0])];
        let options = Options { five_level: true, ..Options::default() };
        let shown = filter(&wide, options);
        assert_eq!(get(&shown, 7), [0, 0, 1 << 16, 0]);
        assert_eq!(get(&shown, 0x8000_0008)[0], 0x3934);
        assert_eq!(get(&filter(&wide, Options::default()), 0x8000_0008)[0], 0x3034);
        let narrow = filter(&[entry(7, 0, [0, !0, !(1 << 16), !0])], options);
        assert_eq!(get(&narrow, 7), [0; 4]);
    }
}
