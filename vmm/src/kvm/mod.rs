//! Every KVM file descriptor and ioctl.
//!
//! [`Kvm`] is the device, [`Vm`] a virtual machine with its memory, [`Vcpu`] its processor. There is
//! no in-kernel interrupt controller: HLT exits to us and interrupts are injected with
//! `KVM_INTERRUPT`, which makes the vCPU's timeline ours alone.
//!
//! "KVM API n" cites section n of Documentation/virt/kvm/api.rst, Linux 6.12.

mod device;
mod host;
mod kick;
mod state;
mod vcpu;
mod vm;

pub use device::{Capability, Kvm, KvmError};
pub use host::HostKvm;
pub use kick::VcpuKick;
pub use state::{StateError, VcpuState};
pub use vcpu::{Exit, FailedInstruction, Vcpu, VcpuError};
pub use vm::{FILTERED_MSRS, Vm, VmError};
