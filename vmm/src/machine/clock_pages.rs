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
    pub const SYSTEM_TIME: u64 = 16;
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

/// Where the pages are.
#[derive(Debug)]
pub struct ClockPages {
    memory: GuestMemoryMmap,
    pvclock: Option<u64>,
    steal: Option<u64>,
    version: u32,
}

impl ClockPages {
    /// No page is registered yet.
    pub fn new(memory: GuestMemoryMmap) -> Self {
        Self { memory, pvclock: None, steal: None, version: 0 }
    }

    /// The guest wrote `value` to `msr`; true if it is one of the clock registers. The wall clock is
    /// not kept: nothing measured depends on it.
    pub fn register(&mut self, msr: u32, value: u64) -> Result<bool, ClockPageError> {
        let enabled = value & ENABLED != 0;
        match msr {
            MSR_KVM_WALL_CLOCK_NEW => {}
            MSR_KVM_SYSTEM_TIME_NEW => {
                let address = value & !ENABLED;
                self.pvclock = None;
                if enabled {
                    self.check("clock", msr, address, pvclock::ALIGN, pvclock::SIZE)?;
                    self.write(address, [0u64; pvclock::SIZE as usize / 8])?;
                    self.write(address + pvclock::FLAGS, PVCLOCK_TSC_STABLE_BIT)?;
                    self.pvclock = Some(address);
                }
            }
            MSR_KVM_STEAL_TIME => {
                let address = value & !ENABLED;
                self.steal = None;
                if enabled {
                    self.check("steal", msr, address, steal::ALIGN, steal::SIZE)?;
                    self.write(address, [0u64; steal::SIZE as usize / 8])?;
                    self.steal = Some(address);
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The guest has a clock page.
    #[inline]
    pub fn has_clock(&self) -> bool {
        self.pvclock.is_some()
    }

    /// The guest has a steal page.
    pub fn has_steal(&self) -> bool {
        self.steal.is_some()
    }

    /// Writes guest time and steal as they are now. The multiplier is 0: the guest's TSC does not
    /// count, and time stands still until the next call.
    #[inline]
    pub fn publish(&mut self, clock: &GuestClock) -> Result<(), ClockPageError> {
        self.version = self.version.wrapping_add(2);
        if let Some(page) = self.pvclock {
            use pvclock::{SIZE, SYSTEM_TIME, VERSION};
            self.update(page, SIZE, VERSION, SYSTEM_TIME, clock.page_system_time_ns())?;
        }
        if let Some(page) = self.steal {
            use steal::{SIZE, STEAL, VERSION};
            self.update(page, SIZE, VERSION, STEAL, clock.page_steal_ns())?;
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
            version.store(self.version.wrapping_sub(1));
            page.get_ref::<u64>(value_at as usize)?.store(value);
            version.store(self.version);
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
