//! `/dev/kvm`: opening it so that it is known to work, and what it can do.

use std::io;

use kvm_bindings::{CpuId, KVM_API_VERSION, KVM_MAX_CPUID_ENTRIES};
use kvm_ioctls::{Cap, VmFd};
use thiserror::Error;

/// Why there is no KVM to run on. Each message ends in the fix.
#[derive(Debug, Error)]
pub enum KvmError {
    /// There is no `/dev/kvm`.
    #[error(
        "open /dev/kvm: no such device: load kvm_intel or kvm_amd, or turn on (nested) \
         virtualisation where this machine is configured"
    )]
    Missing,
    /// The device may not be opened by this user.
    #[error(
        "open /dev/kvm: permission denied: add this user to the device's group \
         (sudo usermod -aG kvm \"$USER\", then log in again)"
    )]
    PermissionDenied,
    /// The device is there but cannot be opened.
    #[error("open /dev/kvm: {0}: check the kvm modules (dmesg | grep -i kvm)")]
    Open(io::Error),
    /// The device opens, but no virtual machine can be made.
    #[error(
        "create a virtual machine (KVM_CREATE_VM): {0}: /dev/kvm is there but does not work; check \
         that virtualisation is enabled and that no other hypervisor holds it"
    )]
    CreateVm(io::Error),
    /// Not the KVM API that has been stable since Linux 2.6.22 (KVM API 4.1).
    #[error(
        "KVM API version: expected {KVM_API_VERSION}, got {got}: this kernel's KVM is not usable"
    )]
    ApiVersion {
        /// The version that the device reports.
        got: i32,
    },
    /// A capability that nothing works without is missing.
    #[error("KVM capability {name} is missing ({needed_for}): a newer kernel is needed")]
    MissingCapability {
        /// Its name, as `KVM_CAP_*`.
        name: &'static str,
        /// What needs it.
        needed_for: &'static str,
    },
    /// The CPUID that KVM supports cannot be read.
    #[error("read the supported CPUID (KVM_GET_SUPPORTED_CPUID): {0}")]
    SupportedCpuid(io::Error),
    /// The list of MSRs cannot be read.
    #[error("list the MSRs of a vCPU (KVM_GET_MSR_INDEX_LIST): {0}")]
    MsrList(io::Error),
}

/// One capability of this host's KVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Its name, as `KVM_CAP_*`.
    pub name: &'static str,
    /// This KVM has it.
    pub present: bool,
    /// Nothing runs without it.
    pub required: bool,
    /// What it is needed for, in a few words.
    pub needed_for: &'static str,
}

/// The capabilities that the program uses: which, required or not, what for.
const USED: [(Cap, &str, bool, &str); 8] = [
    (Cap::UserMemory, "KVM_CAP_USER_MEMORY", true, "guest memory"),
    (
        Cap::X86UserSpaceMsr,
        "KVM_CAP_X86_USER_SPACE_MSR",
        true,
        "owning the guest's clocks: clock registrations exit",
    ),
    (
        Cap::X86MsrFilter,
        "KVM_CAP_X86_MSR_FILTER",
        true,
        "owning the guest's clocks: clock registrations are caught",
    ),
    (Cap::ImmediateExit, "KVM_CAP_IMMEDIATE_EXIT", true, "stopping a running vCPU"),
    (Cap::ExtCpuid, "KVM_CAP_EXT_CPUID", true, "giving the vCPU a CPUID"),
    (Cap::SyncRegs, "KVM_CAP_SYNC_REGS", false, "reading registers without an ioctl an exit"),
    (Cap::SetTssAddr, "KVM_CAP_SET_TSS_ADDR", false, "real-mode guests on old Intel CPUs"),
    (
        Cap::Irqchip,
        "KVM_CAP_IRQCHIP",
        false,
        "a real-time mode with an in-kernel interrupt controller",
    ),
];

/// An open `/dev/kvm` that is known to work.
#[derive(Debug)]
pub struct Kvm {
    device: kvm_ioctls::Kvm,
    cpuid: CpuId,
}

impl Kvm {
    /// Opens `/dev/kvm` and creates a virtual machine to know that it works; the presence of the
    /// device proves nothing.
    pub fn open() -> Result<Self, KvmError> {
        let device = kvm_ioctls::Kvm::new().map_err(|e| match e.errno() {
            libc::ENOENT | libc::ENODEV | libc::ENXIO => KvmError::Missing,
            libc::EACCES | libc::EPERM => KvmError::PermissionDenied,
            _ => KvmError::Open(e.into()),
        })?;
        let got = device.get_api_version();
        if got < 0 {
            // Another device under this name.
            return Err(KvmError::Open(io::Error::last_os_error()));
        }
        if got != KVM_API_VERSION as i32 {
            return Err(KvmError::ApiVersion { got });
        }
        let missing =
            USED.iter().find(|(cap, _, required, _)| *required && !device.check_extension(*cap));
        if let Some(&(_, name, _, needed_for)) = missing {
            return Err(KvmError::MissingCapability { name, needed_for });
        }
        let cpuid = device
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(|e| KvmError::SupportedCpuid(e.into()))?;
        let kvm = Self { device, cpuid };
        kvm.create_vm()?;
        Ok(kvm)
    }

    /// What this KVM has of what the program uses.
    pub fn capabilities(&self) -> Vec<Capability> {
        USED.iter()
            .map(|&(cap, name, required, needed_for)| Capability {
                name,
                present: self.device.check_extension(cap),
                required,
                needed_for,
            })
            .collect()
    }

    /// Can [`super::Vcpu`] read registers from the shared page (KVM API 8, `KVM_CAP_SYNC_REGS`)? The
    /// capability's value is the set of register sets; bit 0 is the general registers.
    pub(super) fn has_sync_regs(&self) -> bool {
        let sets = self.device.check_extension_int(Cap::SyncRegs);
        sets > 0 && sets as u32 & kvm_bindings::KVM_SYNC_X86_REGS != 0
    }

    /// The CPUID that this KVM and its processor can give a guest (KVM API 4.46).
    pub fn supported_cpuid(&self) -> &CpuId {
        &self.cpuid
    }

    /// The MSRs that make up a vCPU's state (KVM API 4.3, `KVM_GET_MSR_INDEX_LIST`).
    pub(super) fn msr_indices(&self) -> Result<Vec<u32>, KvmError> {
        let list = self.device.get_msr_index_list().map_err(|e| KvmError::MsrList(e.into()))?;
        Ok(list.as_slice().to_vec())
    }

    pub(super) fn has(&self, cap: Cap) -> bool {
        self.device.check_extension(cap)
    }

    pub(super) fn create_vm(&self) -> Result<VmFd, KvmError> {
        self.device.create_vm().map_err(|e| KvmError::CreateVm(e.into()))
    }
}
