//! The paravirtual clock and steal pages, read by the published protocols.
//!
//! Layouts: `struct pvclock_vcpu_time_info` (arch/x86/include/asm/pvclock-abi.h, Linux 6.12) and
//! `struct kvm_steal_time` (arch/x86/include/uapi/asm/kvm_para.h); protocols:
//! Documentation/virt/kvm/x86/msr.rst, `MSR_KVM_SYSTEM_TIME_NEW` and `MSR_KVM_STEAL_TIME`. In both the
//! host makes `version` odd before it writes and even after; a reader takes only what was read
//! between two equal, even versions.
//!
//! The host writes the pages while the vCPU is stopped. The fields are atomics because the writer is
//! outside the program; their loads are plain `mov`s.

use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::sync::atomic::{AtomicI8, AtomicU8, AtomicU32, AtomicU64, fence};

/// Reads of a page that never becomes stable before the guest gives up (and panics, which the host
/// reports). A host that stops the vCPU to write needs one.
const MAX_TRIES: u32 = 1000;

/// `struct pvclock_vcpu_time_info`, alone on its page.
#[repr(C, align(4096))]
pub struct Pvclock {
    version: AtomicU32,
    pad0: u32,
    tsc_timestamp: AtomicU64,
    system_time: AtomicU64,
    tsc_to_system_mul: AtomicU32,
    tsc_shift: AtomicI8,
    flags: AtomicU8,
    pad: [u8; 2],
}

impl Pvclock {
    /// The page before the host has written it.
    pub const fn new() -> Self {
        Self {
            version: AtomicU32::new(0),
            pad0: 0,
            tsc_timestamp: AtomicU64::new(0),
            system_time: AtomicU64::new(0),
            tsc_to_system_mul: AtomicU32::new(0),
            tsc_shift: AtomicI8::new(0),
            flags: AtomicU8::new(0),
            pad: [0; 2],
        }
    }

    /// Guest time, ns: `system_time` and the scaled TSC ticks since `tsc_timestamp`.
    #[inline]
    pub fn read(&self, rdtsc: impl Fn() -> u64) -> u64 {
        for _ in 0..MAX_TRIES {
            let version = self.version.load(Acquire);
            let delta = rdtsc().wrapping_sub(self.tsc_timestamp.load(Relaxed));
            let shift = self.tsc_shift.load(Relaxed);
            let mul = self.tsc_to_system_mul.load(Relaxed);
            let ns = self.system_time.load(Relaxed).wrapping_add(scale(delta, mul, shift));
            fence(Acquire);
            if version & 1 == 0 && self.version.load(Relaxed) == version {
                return ns;
            }
        }
        panic!("the pvclock page never became stable");
    }
}

/// `delta * 2^shift * mul / 2^32`, as `pvclock_scale_delta()` defines it.
#[inline]
fn scale(delta: u64, mul: u32, shift: i8) -> u64 {
    let shifted = if shift < 0 {
        delta.wrapping_shr(shift.unsigned_abs().into())
    } else {
        delta.wrapping_shl(shift.unsigned_abs().into())
    };
    ((u128::from(shifted) * u128::from(mul)) >> 32) as u64
}

/// `struct kvm_steal_time`, alone on its page.
#[repr(C, align(4096))]
pub struct Steal {
    steal: AtomicU64,
    version: AtomicU32,
    flags: AtomicU32,
    preempted: AtomicU8,
    u8_pad: [u8; 3],
    pad: [u32; 11],
}

impl Steal {
    /// The page before the host has written it.
    pub const fn new() -> Self {
        Self {
            steal: AtomicU64::new(0),
            version: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            preempted: AtomicU8::new(0),
            u8_pad: [0; 3],
            pad: [0; 11],
        }
    }

    /// Time stolen from this CPU, ns.
    #[inline]
    pub fn read(&self) -> u64 {
        for _ in 0..MAX_TRIES {
            let version = self.version.load(Acquire);
            let steal = self.steal.load(Relaxed);
            fence(Acquire);
            if version & 1 == 0 && self.version.load(Relaxed) == version {
                return steal;
            }
        }
        panic!("the steal page never became stable");
    }
}
