//! The virtual machine of a Linux guest.

use guest_model::wire::linux::MAX_MESSAGE;
use kvm_bindings::CpuId;
use thiserror::Error;
use vm_memory::GuestMemoryMmap;

use super::bus::Bus;
use super::console::Console;
use crate::boot::{self, BootError, cpuid, entry};
use crate::guest::GuestError;
use crate::introspect::user::read_user;
use crate::kvm::{Kvm, StateError, Vcpu, VcpuError, Vm, VmError};
use crate::machine::clock_pages::ClockPages;

/// Why a machine could not be built.
#[derive(Debug, Error)]
pub enum MachineError {
    /// The kernel, initrd or command line is not one that can be started.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// KVM refuses the virtual machine.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// KVM refuses the vCPU or its registers.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
    /// KVM refuses the vCPU's state.
    #[error(transparent)]
    State(#[from] StateError),
    /// More CPUID leaves than KVM takes.
    #[error("the guest's CPUID has {0} leaves, more than KVM takes")]
    Cpuid(usize),
}

/// A Linux guest's machine.
#[derive(Debug)]
pub struct Machine {
    /// Guest physical memory: hostile once the guest has run.
    pub memory: GuestMemoryMmap,
    /// The processor.
    pub vcpu: Vcpu,
    /// Its devices.
    pub bus: Bus,
    /// Its clock pages.
    pub pages: ClockPages,
    /// Its serial console.
    pub console: Console,
    vm: Vm,
}

/// The CPUID of a Linux guest on this host.
pub fn cpu(kvm: &Kvm, options: cpuid::Options) -> Result<CpuId, MachineError> {
    let entries = cpuid::filter(kvm.supported_cpuid().as_slice(), options);
    CpuId::from_entries(&entries).map_err(|_| MachineError::Cpuid(entries.len()))
}

impl Machine {
    /// A machine whose vCPU is at the first instruction of `linux`.
    pub fn new(
        kvm: &Kvm,
        linux: &boot::Linux<'_>,
        cpuid: &CpuId,
        console: Console,
    ) -> Result<Self, MachineError> {
        let loaded = linux.load()?;
        let mut machine = Self::with_memory(kvm, loaded.memory, cpuid, console)?;
        machine.vm.prefer_large_pages();
        let vcpu = &mut machine.vcpu;
        vcpu.set_sregs(&entry::sregs(vcpu.read_sregs()?))?;
        vcpu.set_regs(&entry::regs(loaded.entry))?;
        Ok(machine)
    }

    /// A machine as after power on.
    pub fn with_memory(
        kvm: &Kvm,
        memory: GuestMemoryMmap,
        cpuid: &CpuId,
        console: Console,
    ) -> Result<Self, MachineError> {
        let vm = Vm::new(kvm, memory.clone())?;
        let vcpu = vm.create_vcpu_with(kvm, cpuid)?;
        let (bus, pages) = (Bus::default(), ClockPages::new(memory.clone()));
        Ok(Self { memory, vcpu, bus, pages, console, vm })
    }

    /// What PID 1 says when it cannot go on: a message of `len` bytes at `address`, and an error number.
    pub fn failed(&self, address: u64, len: u64, errno: u64) -> GuestError {
        let message = self.message(address, len).unwrap_or_else(|e| format!("(unreadable: {e})"));
        let message = match errno {
            0 => message,
            n => format!("{message} ({})", std::io::Error::from_raw_os_error(n as i32)),
        };
        GuestError::Init { message }
    }

    fn message(&self, address: u64, len: u64) -> Result<String, Box<dyn std::error::Error>> {
        let sregs = self.vcpu.read_sregs()?;
        let mut bytes = vec![0; usize::try_from(len)?.min(MAX_MESSAGE)];
        read_user(&self.memory, super::address_space(&sregs), address, &mut bytes)?;
        Ok(super::console::printable(&String::from_utf8_lossy(&bytes)))
    }
}
