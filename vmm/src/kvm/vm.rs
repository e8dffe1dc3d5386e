//! A virtual machine: memory slots, and the clock registers that exit.
#![allow(unsafe_code)]

use std::io;

use kvm_bindings::{
    CpuId, KVM_CAP_X86_USER_SPACE_MSR, KVM_MSR_EXIT_REASON_FILTER, kvm_enable_cap,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, VmFd};
use thiserror::Error;
use vm_memory::{
    Address, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, MemoryRegionAddress,
};

use super::{Kvm, KvmError, Vcpu, VcpuError};

/// The paravirtual clock and steal-time registers (Documentation/virt/kvm/x86/msr.rst): accesses
/// become [`super::Exit::Wrmsr`] and [`super::Exit::Rdmsr`].
pub const FILTERED_MSRS: std::ops::RangeInclusive<u32> = 0x4b56_4d00..=0x4b56_4d03;

/// Why a virtual machine could not be set up.
#[derive(Debug, Error)]
pub enum VmError {
    /// No virtual machine.
    #[error(transparent)]
    Create(#[from] KvmError),
    /// A region has no host address.
    #[error("find the host address of guest memory at {start:#x}")]
    HostAddress {
        /// Guest physical address.
        start: u64,
        /// What vm-memory says.
        source: vm_memory::GuestMemoryError,
    },
    /// A memory slot was refused.
    #[error("map guest memory {start:#x}, {size:#x} bytes, as slot {slot}")]
    MemorySlot {
        /// Slot number.
        slot: u32,
        /// Guest physical address.
        start: u64,
        /// Bytes.
        size: u64,
        /// The ioctl's error.
        source: io::Error,
    },
    /// MSR exits could not be turned on.
    #[error("enable KVM_CAP_X86_USER_SPACE_MSR")]
    UserSpaceMsr(#[source] io::Error),
    /// The MSR filter was refused.
    #[error("filter MSRs {:#x} to {:#x} (KVM_X86_SET_MSR_FILTER)", FILTERED_MSRS.start(), FILTERED_MSRS.end())]
    MsrFilter {
        /// The ioctl's error.
        source: io::Error,
    },
}

/// A virtual machine and the memory that it runs in.
#[derive(Debug)]
pub struct Vm {
    fd: VmFd,
    /// Keeps the mapping alive for as long as the kernel may use it.
    memory: GuestMemoryMmap,
}

impl Vm {
    /// A machine with `memory` as its RAM, without devices, whose paravirtual clock registers exit.
    pub fn new(kvm: &Kvm, memory: GuestMemoryMmap) -> Result<Self, VmError> {
        let fd = kvm.create_vm()?;
        for (slot, region) in (0u32..).zip(memory.iter()) {
            let start = region.start_addr().raw_value();
            let size = region.len();
            let host = region
                .get_host_address(MemoryRegionAddress(0))
                .map_err(|source| VmError::HostAddress { start, source })?;
            let slot_region = kvm_userspace_memory_region {
                slot,
                flags: 0,
                guest_phys_addr: start,
                memory_size: size,
                userspace_addr: host as u64,
            };
            // SAFETY: the region is a mapping of `size` bytes that `memory` owns; this struct and
            // every vCPU keep a handle to it, so it outlives the virtual machine. All slots are disjoint
            // because the regions of a GuestMemoryMmap are.
            unsafe { fd.set_user_memory_region(slot_region) }.map_err(|e| VmError::MemorySlot {
                slot,
                start,
                size,
                source: e.into(),
            })?;
        }
        Self::filter_msrs(&fd)?;
        Ok(Self { fd, memory })
    }

    /// KVM API 4.97 (`KVM_X86_SET_MSR_FILTER`) and 7.21 (`KVM_CAP_X86_USER_SPACE_MSR`).
    fn filter_msrs(fd: &VmFd) -> Result<(), VmError> {
        let mut cap = kvm_enable_cap { cap: KVM_CAP_X86_USER_SPACE_MSR, ..Default::default() };
        cap.args[0] = KVM_MSR_EXIT_REASON_FILTER.into();
        fd.enable_cap(&cap).map_err(|e| VmError::UserSpaceMsr(e.into()))?;
        // One bit a register, 0 to deny; the kernel reads whole longs.
        let denied = [0u8; 8];
        let range = MsrFilterRange {
            flags: MsrFilterRangeFlags::READ | MsrFilterRangeFlags::WRITE,
            base: *FILTERED_MSRS.start(),
            msr_count: FILTERED_MSRS.end() - FILTERED_MSRS.start() + 1,
            bitmap: &denied,
        };
        fd.set_msr_filter(MsrFilterDefaultAction::ALLOW, &[range])
            .map_err(|e| VmError::MsrFilter { source: e.into() })
    }

    /// Asks for large pages behind the memory (madvise(2), `MADV_HUGEPAGE`): a guest that touches much of it
    /// for the first time, as one that boots, then faults seldom. A host that has none does as before.
    pub fn prefer_large_pages(&self) {
        for region in self.memory.iter() {
            if let Ok(host) = region.get_host_address(MemoryRegionAddress(0)) {
                // SAFETY: the range is the region's mapping, which `self` keeps alive; the advice changes
                // how it is backed, not what it holds.
                unsafe { libc::madvise(host.cast(), region.len() as usize, libc::MADV_HUGEPAGE) };
            }
        }
    }

    /// The machine's processor, with every CPUID feature that KVM supports.
    pub fn create_vcpu(&self, kvm: &Kvm) -> Result<Vcpu, VcpuError> {
        self.create_vcpu_with(kvm, kvm.supported_cpuid())
    }

    /// The machine's processor, with the CPUID `cpuid`.
    pub fn create_vcpu_with(&self, kvm: &Kvm, cpuid: &CpuId) -> Result<Vcpu, VcpuError> {
        let fd = self.fd.create_vcpu(0).map_err(|e| VcpuError::Create(e.into()))?;
        Vcpu::new(fd, kvm, self.fd.run_size(), self.memory.clone(), cpuid)
    }
}
