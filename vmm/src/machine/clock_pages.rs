//! The guest's paravirtual clock pages, written while the guest stands still.
//!
//! Layouts and version protocol: Documentation/virt/kvm/x86/msr.rst, arch/x86/include/asm/pvclock-abi.h
//! and arch/x86/include/uapi/asm/kvm_para.h (`struct kvm_steal_time`), Linux 7.3.

use thiserror::Error;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, VolatileMemory};

use crate::clock::GuestClock;

/// `MSR_KVM_WALL_CLOCK_NEW`.
pub const MSR_KVM_WALL_CLOCK_NEW: u32 = 0x4b56_4d00;
/// `MSR_KVM_SYSTEM_TIME_NEW`.
pub const MSR_KVM_SYSTEM_TIME_NEW: u32 = 0x4b56_4d01;
/// `MSR_KVM_STEAL_TIME`.
pub const MSR_KVM_STEAL_TIME: u32 = 0x4b56_4d03;

/// Bit 0 of the registers: the page is in use.
const ENABLED: u64 = 1;
/// `PVCLOCK_TSC_STABLE_BIT`.
const PVCLOCK_TSC_STABLE_BIT: u8 = 1;

/// Offsets in `struct pvclock_vcpu_time_info` (32 bytes).
mod pvclock {
    pub const VERSION: u64 = 0;
    pub const TSC_TIMESTAMP: u64 = 8;
    pub const SYSTEM_TIME: u64 = 16;
    pub const TSC_TO_SYSTEM_MUL: u64 = 24;
    pub const TSC_SHIFT: u64 = 28;
    pub const FLAGS: u64 = 29;
    pub const SIZE: u64 = 32;
    pub const ALIGN: u64 = 4;
}

/// Offsets in `struct kvm_steal_time` (64 bytes).
mod steal {
    pub const STEAL: u64 = 0;
    pub const VERSION: u64 = 8;
    pub const SIZE: u64 = 64;
    pub const ALIGN: u64 = 64;
}

/// The guest registered a page that cannot be written.
#[derive(Debug, Error)]
pub enum ClockPageError {
    /// Where a page was to be is no memory, or it is misaligned.
    #[error(
        "guest registered its {what} page at {address:#x} (MSR {msr:#x}): expected {align}-byte \
         alignment and {size} bytes of guest memory"
    )]
    BadAddress {
        /// Which page.
        what: &'static str,
        /// The register.
        msr: u32,
        /// Guest physical address.
        address: u64,
        /// Needed alignment, bytes.
        align: u64,
        /// Needed size, bytes.
        size: u64,
    },
    /// Writing failed although the page is in guest memory.
    #[error("write the guest's clock page at {address:#x}")]
    Write {
        /// Guest physical address.
        address: u64,
        /// What vm-memory says.
        source: vm_memory::GuestMemoryError,
    },
}

/// Where the pages are, and what they show at guest time 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockPagesState {
    /// Guest physical address of the pvclock page.
    pub pvclock: Option<u64>,
    /// Guest physical address of the steal page.
    pub steal: Option<u64>,
    /// Version that was written last.
    pub version: u32,
    /// `system_time` at guest time 0, ns.
    pub origin_ns: u64,
    /// The steal counter when nothing has been stolen yet, ns.
    pub steal_origin_ns: u64,
}

/// How a guest with real time derives it from the TSC: `system_time` is `origin_ns` at `tsc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TscScale {
    /// TSC ticks a millisecond.
    pub khz: u32,
    /// The guest's TSC at the origin.
    pub tsc: u64,
    /// Guest time at the origin, ns.
    pub origin_ns: u64,
}

impl TscScale {
    /// `tsc_to_system_mul` and `tsc_shift`: time is `(ticks shifted by shift) * mul >> 32`
    /// (`pvclock_scale_delta()`, arch/x86/include/asm/pvclock.h).
    fn mul_shift(self) -> (u32, i8) {
        // ns a tick, as a 32.32 fixed-point number that is normalised to [0.5, 1).
        let mut ratio = (1_000_000u128 << 64) / u128::from(self.khz.max(1));
        let mut shift = 0i8;
        while ratio >= 1 << 64 {
            ratio >>= 1;
            shift += 1;
        }
        while ratio < 1 << 63 {
            ratio <<= 1;
            shift -= 1;
        }
        ((ratio >> 32) as u32, shift)
    }

    /// Guest time when the guest's TSC is `tsc`, as the guest itself computes it, ns.
    pub fn system_time_ns(self, tsc: u64) -> u64 {
        let (mul, shift) = self.mul_shift();
        let ticks = u128::from(tsc.saturating_sub(self.tsc));
        let ticks = if shift < 0 { ticks >> -shift } else { ticks << shift };
        self.origin_ns.wrapping_add(((ticks * u128::from(mul)) >> 32) as u64)
    }
}

/// Writes the pages.
#[derive(Debug)]
pub struct ClockPages {
    memory: GuestMemoryMmap,
    state: ClockPagesState,
}

impl ClockPages {
    /// No page is registered yet; guest time 0 is 0 on the pages.
    pub fn new(memory: GuestMemoryMmap) -> Self {
        Self::restore(memory, ClockPagesState::default())
    }

    /// Pages that a guest registered before.
    pub fn restore(memory: GuestMemoryMmap, state: ClockPagesState) -> Self {
        Self { memory, state }
    }

    /// Where the pages are.
    pub fn state(&self) -> ClockPagesState {
        self.state
    }

    /// What the pages show at guest time 0 from now on.
    pub fn set_origin(&mut self, origin_ns: u64, steal_origin_ns: u64) {
        self.state.origin_ns = origin_ns;
        self.state.steal_origin_ns = steal_origin_ns;
    }

    /// Lets the clock page run with the TSC: for a guest that boots in real time, and divides by the
    /// multiplier.
    pub fn run_with_tsc(&mut self, scale: TscScale) -> Result<(), ClockPageError> {
        let Some(page) = self.state.pvclock else { return Ok(()) };
        let (mul, shift) = scale.mul_shift();
        self.state.version = self.state.version.wrapping_add(2);
        let write = |at: u64, value: u32| self.write(page + at, value);
        write(pvclock::VERSION, self.state.version.wrapping_sub(1))?;
        self.write(page + pvclock::TSC_TIMESTAMP, scale.tsc)?;
        self.write(page + pvclock::SYSTEM_TIME, scale.origin_ns)?;
        write(pvclock::TSC_TO_SYSTEM_MUL, mul)?;
        self.write(page + pvclock::TSC_SHIFT, shift)?;
        write(pvclock::VERSION, self.state.version)
    }

    /// Stops the clock page: from the next [`ClockPages::publish`] on it shows what is published.
    pub fn freeze(&mut self) -> Result<(), ClockPageError> {
        let Some(page) = self.state.pvclock else { return Ok(()) };
        self.write(page + pvclock::TSC_TO_SYSTEM_MUL, 0u32)?;
        self.write(page + pvclock::TSC_SHIFT, 0i8)?;
        self.write(page + pvclock::TSC_TIMESTAMP, 0u64)
    }

    /// The guest wrote `value` to `msr`; true if it is one of the clock registers. The wall clock is
    /// not kept: nothing measured depends on it.
    pub fn register(&mut self, msr: u32, value: u64) -> Result<bool, ClockPageError> {
        let enabled = value & ENABLED != 0;
        match msr {
            MSR_KVM_WALL_CLOCK_NEW => {}
            MSR_KVM_SYSTEM_TIME_NEW => {
                let address = value & !ENABLED;
                self.state.pvclock = None;
                if enabled {
                    self.check("clock", msr, address, pvclock::ALIGN, pvclock::SIZE)?;
                    self.write(address, [0u64; pvclock::SIZE as usize / 8])?;
                    self.write(address + pvclock::FLAGS, PVCLOCK_TSC_STABLE_BIT)?;
                    self.state.pvclock = Some(address);
                }
            }
            MSR_KVM_STEAL_TIME => {
                let address = value & !ENABLED;
                self.state.steal = None;
                if enabled {
                    self.check("steal", msr, address, steal::ALIGN, steal::SIZE)?;
                    self.write(address, [0u64; steal::SIZE as usize / 8])?;
                    self.state.steal = Some(address);
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What a read of `msr` gives: what the guest wrote there last. The wall clock is not kept.
    pub fn registered(&self, msr: u32) -> u64 {
        let page = match msr {
            MSR_KVM_SYSTEM_TIME_NEW => self.state.pvclock,
            MSR_KVM_STEAL_TIME => self.state.steal,
            _ => None,
        };
        page.map_or(0, |address| address | ENABLED)
    }

    /// The guest has a clock page.
    #[inline]
    pub fn has_clock(&self) -> bool {
        self.state.pvclock.is_some()
    }

    /// The guest has a steal page.
    pub fn has_steal(&self) -> bool {
        self.state.steal.is_some()
    }

    /// Writes guest time and steal as they are now. The multiplier is 0: the guest's TSC does not
    /// count, and time stands still until the next call.
    #[inline]
    pub fn publish(&mut self, clock: &GuestClock) -> Result<(), ClockPageError> {
        self.state.version = self.state.version.wrapping_add(2);
        if let Some(page) = self.state.pvclock {
            use pvclock::{SIZE, SYSTEM_TIME, VERSION};
            let now_ns = self.state.origin_ns.wrapping_add(clock.page_system_time_ns());
            self.update(page, SIZE, VERSION, SYSTEM_TIME, now_ns)?;
        }
        if let Some(page) = self.state.steal {
            use steal::{SIZE, STEAL, VERSION};
            let steal_ns = self.state.steal_origin_ns.wrapping_add(clock.page_steal_ns());
            self.update(page, SIZE, VERSION, STEAL, steal_ns)?;
        }
        Ok(())
    }

    /// Writes a page's value between an odd version and the even one. The page is looked up once: this
    /// is in the path of each exit at which time passes.
    #[inline]
    fn update(
        &self,
        page: u64,
        size: u64,
        version_at: u64,
        value_at: u64,
        value: u64,
    ) -> Result<(), ClockPageError> {
        let write = || {
            let page = self.memory.get_slice(GuestAddress(page), size as usize)?;
            let version = page.get_ref::<u32>(version_at as usize)?;
            version.store(self.state.version.wrapping_sub(1));
            page.get_ref::<u64>(value_at as usize)?.store(value);
            version.store(self.state.version);
            Ok(())
        };
        write().map_err(|source| ClockPageError::Write { address: page, source })
    }

    fn check(
        &self,
        what: &'static str,
        msr: u32,
        address: u64,
        align: u64,
        size: u64,
    ) -> Result<(), ClockPageError> {
        let inside = self.memory.check_range(GuestAddress(address), size as usize);
        if address.is_multiple_of(align) && inside {
            return Ok(());
        }
        Err(ClockPageError::BadAddress { what, msr, address, align, size })
    }

    #[inline]
    fn write<T: vm_memory::ByteValued>(
        &self,
        address: u64,
        value: T,
    ) -> Result<(), ClockPageError> {
        self.memory
            .write_obj(value, GuestAddress(address))
            .map_err(|source| ClockPageError::Write { address, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::HostFault;

    const SIZE: u64 = 0x4000;

    fn pages() -> ClockPages {
        let ranges = [(GuestAddress(0), SIZE as usize)];
        ClockPages::new(GuestMemoryMmap::from_ranges(&ranges).unwrap())
    }

    #[test]
    fn both_pages_are_frozen_at_the_clocks_values_with_an_even_version() {
        let mut p = pages();
        assert!(p.register(MSR_KVM_SYSTEM_TIME_NEW, 0x1000 | 1).unwrap());
        assert!(p.register(MSR_KVM_STEAL_TIME, 0x2000 | 1).unwrap());
        assert!(!p.register(0x10, 0).unwrap());
        let mut c = GuestClock::new(HostFault::None);
        c.advance(1234);
        c.steal(0, -1);
        p.publish(&c).unwrap();
        let read = |at: u64| p.memory.read_obj::<u64>(GuestAddress(at)).unwrap();
        assert_eq!((read(0x1000) as u32, read(0x1010), read(0x1018)), (2, 1234, 1 << 40));
        assert_eq!((read(0x2000), read(0x2008) as u32), (u64::MAX, 2));
    }

    #[test]
    fn a_page_that_runs_with_the_tsc_shows_what_the_guest_computes_from_it() {
        for khz in [1_000, 999_999, 1_000_000, 2_445_406, 5_000_001, u32::MAX] {
            let scale = TscScale { khz, tsc: 77, origin_ns: 5 };
            // A second of ticks, to the precision of a 32-bit multiplier.
            let ns = scale.system_time_ns(77 + u64::from(khz) * 1000) - 5;
            assert!(ns.abs_diff(1_000_000_000) <= 1, "{khz} kHz: {ns} ns");
            assert!(scale.mul_shift().0 >= 1 << 31);
        }
        let mut p = pages();
        p.register(MSR_KVM_SYSTEM_TIME_NEW, 0x1000 | 1).unwrap();
        p.run_with_tsc(TscScale { khz: 1_000_000, tsc: 9, origin_ns: 8 }).unwrap();
        let read = |p: &ClockPages, at: u64| p.memory.read_obj::<u64>(GuestAddress(at)).unwrap();
        assert_eq!((read(&p, 0x1008), read(&p, 0x1010)), (9, 8));
        // One tick is 1 ns: half of 2^32, shifted by one.
        assert_eq!(read(&p, 0x1018), 1 << 40 | 1 << 32 | 1 << 31);
        p.freeze().unwrap();
        p.set_origin(100, 50);
        p.publish(&GuestClock::new(HostFault::None)).unwrap();
        assert_eq!((read(&p, 0x1010), read(&p, 0x1018)), (100, 1 << 40));
    }

    #[test]
    fn pages_outside_of_memory_across_its_end_or_misaligned_are_refused() {
        let mut p = pages();
        for address in [SIZE, SIZE - 16, 0xffff_ffff_ffff_f000, 0x1002] {
            let refused = p.register(MSR_KVM_SYSTEM_TIME_NEW, address | 1);
            assert!(matches!(refused, Err(ClockPageError::BadAddress { .. })), "{address:#x}");
        }
        assert!(p.register(MSR_KVM_STEAL_TIME, 0x1020 | 1).is_err());
        assert!(p.register(MSR_KVM_STEAL_TIME, 0x1020).unwrap(), "a page that is not enabled");
    }
}
