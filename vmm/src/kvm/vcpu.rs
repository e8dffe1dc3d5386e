//! A virtual processor: `KVM_RUN`, exits as plain values, registers and interrupts.
//!
//! The shared `kvm_run` page is read once an exit; nothing is allocated or formatted.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

use kvm_bindings::{CpuId, KVM_INTERNAL_ERROR_EMULATION, kvm_interrupt, kvm_regs, kvm_sregs};
use kvm_bindings::{
    KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES as INSTRUCTION_BYTES, KVMIO,
};
use kvm_ioctls::{SyncReg, VcpuExit, VcpuFd};
use thiserror::Error;
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::ioctl::ioctl_with_ref;
use vmm_sys_util::{errno, ioctl_iow_nr};

use super::Kvm;
use super::kick::VcpuKick;

ioctl_iow_nr!(KVM_INTERRUPT, KVMIO, 0x86, kvm_interrupt);

/// Why the vCPU stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// HLT with interrupts on or off; the next run continues behind it.
    Hlt,
    /// `in`: answer with [`Vcpu::answer_in`] before the next run, which completes the instruction.
    In {
        /// Port.
        port: u16,
        /// 1, 2 or 4 bytes.
        size: u8,
    },
    /// `out`.
    Out {
        /// Port.
        port: u16,
        /// 1, 2 or 4 bytes.
        size: u8,
        /// What was written, zero-extended.
        value: u32,
    },
    /// A write to one of [`super::FILTERED_MSRS`]; the next run completes it.
    Wrmsr {
        /// Register.
        index: u32,
        /// What was written.
        value: u64,
    },
    /// A read of one of [`super::FILTERED_MSRS`]; reads as 0 unless [`Vcpu::answer_rdmsr`] says
    /// otherwise before the next run.
    Rdmsr {
        /// Register.
        index: u32,
    },
    /// The guest can take an interrupt, as asked with [`Vcpu::request_interrupt_window`].
    InterruptWindow,
    /// [`VcpuKick::kick`] or another signal.
    Interrupted,
    /// Triple fault.
    Shutdown,
    /// KVM cannot go on; [`Vcpu::failed_instruction`] may know more.
    InternalError {
        /// `KVM_INTERNAL_ERROR_*`; 1 is an instruction that KVM cannot emulate.
        suberror: u32,
        /// First word of its data, or 0.
        data0: u64,
    },
    /// The hardware refuses the vCPU's state.
    FailEntry {
        /// The hardware's reason.
        reason: u64,
        /// Host CPU.
        cpu: u32,
    },
    /// An access outside guest memory. A read reads as 0 unless [`Vcpu::answer_mmio`] says otherwise
    /// before the next run.
    Mmio {
        /// Guest physical address.
        address: u64,
        /// Bytes, at most 8.
        size: u8,
        /// What was written, zero-extended; `None` for a read.
        written: Option<u64>,
    },
    /// Any other reason, by its KVM name.
    Other(&'static str),
}

/// The instruction that KVM failed to emulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedInstruction {
    bytes: [u8; 15],
    len: u8,
}

impl FailedInstruction {
    /// Its bytes, from its first on; KVM may have fetched more than it has.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

/// An ioctl of the vCPU failed, or an answer has nothing to answer.
#[derive(Debug, Error)]
pub enum VcpuError {
    /// No vCPU.
    #[error("create a vCPU (KVM_CREATE_VCPU)")]
    Create(#[source] io::Error),
    /// No CPUID.
    #[error("set the vCPU's CPUID (KVM_SET_CPUID2)")]
    Cpuid(#[source] io::Error),
    /// Running failed.
    #[error("run the vCPU (KVM_RUN)")]
    Run(#[source] io::Error),
    /// A register ioctl failed.
    #[error("{operation}")]
    Registers {
        /// What was tried, with the ioctl's name.
        operation: &'static str,
        /// The ioctl's error.
        source: io::Error,
    },
    /// The interrupt was refused.
    #[error("inject interrupt vector {vector:#x} (KVM_INTERRUPT)")]
    Interrupt {
        /// The vector.
        vector: u8,
        /// The ioctl's error.
        source: io::Error,
    },
    /// An answer was given where the last exit asked for none.
    #[error("answer {what}: the last exit asked for none")]
    NothingToAnswer {
        /// What the answer is to.
        what: &'static str,
    },
    /// KVM placed an exit's data outside of the shared page.
    #[error(
        "answer an in: data at {offset:#x}, {size} bytes, is outside of kvm_run ({run_size:#x} bytes)"
    )]
    DataOutside {
        /// Offset in the shared page.
        offset: u64,
        /// Bytes.
        size: u8,
        /// The page's size.
        run_size: usize,
    },
    /// What the last exit began has more than one part.
    #[error("complete the last exit: expected no other, got {exit:x?}")]
    Incomplete {
        /// The exit.
        exit: Exit,
    },
    /// The kick signal has no handler.
    #[error("install the handler of signal {signal}")]
    KickSignal {
        /// Signal number.
        signal: i32,
        /// The system's error.
        source: io::Error,
    },
}

/// What an exit wants answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    /// An `in`; where its answer goes in the shared page, and bytes.
    In { offset: u64, size: u8 },
    /// A read outside of memory.
    MmioRead,
    /// A read of a filtered MSR.
    Rdmsr,
}

/// A virtual processor.
#[derive(Debug)]
pub struct Vcpu {
    pub(super) fd: VcpuFd,
    run_size: usize,
    /// What the last exit wants answered.
    pending: Option<Pending>,
    /// Registers are in the shared page after each exit.
    sync_regs: bool,
    /// Without sync regs: the registers, once read after an exit.
    regs: Option<kvm_regs>,
    kick: VcpuKick,
    /// The vCPU's file descriptor keeps the machine alive in the kernel, and so must its memory be.
    _memory: GuestMemoryMmap,
}

impl Vcpu {
    pub(super) fn new(
        fd: VcpuFd,
        kvm: &Kvm,
        run_size: usize,
        memory: GuestMemoryMmap,
        cpuid: &CpuId,
    ) -> Result<Self, VcpuError> {
        fd.set_cpuid2(cpuid).map_err(|e| VcpuError::Cpuid(e.into()))?;
        let mut vcpu = Self {
            fd,
            run_size,
            pending: None,
            sync_regs: kvm.has_sync_regs(),
            regs: None,
            kick: VcpuKick::default(),
            _memory: memory,
        };
        if vcpu.sync_regs {
            vcpu.fd.set_sync_valid_reg(SyncReg::Register);
        }
        Ok(vcpu)
    }

    /// Runs the guest until something needs the host (KVM API 4.10). What the last exit asked for is
    /// completed first, then a queued interrupt is delivered.
    pub fn run(&mut self) -> Result<Exit, VcpuError> {
        self.pending = None;
        self.regs = None;
        let exit = match self.fd.run() {
            Ok(VcpuExit::IoIn(port, data)) => Exit::In { port, size: data.len() as u8 },
            Ok(VcpuExit::IoOut(port, data)) => {
                Exit::Out { port, size: data.len() as u8, value: little_endian(data) as u32 }
            }
            Ok(VcpuExit::Hlt) => Exit::Hlt,
            Ok(VcpuExit::X86Wrmsr(msr)) => {
                *msr.error = 0;
                Exit::Wrmsr { index: msr.index, value: msr.data }
            }
            Ok(VcpuExit::X86Rdmsr(msr)) => {
                *msr.error = 0;
                *msr.data = 0;
                self.pending = Some(Pending::Rdmsr);
                Exit::Rdmsr { index: msr.index }
            }
            Ok(VcpuExit::MmioRead(address, data)) => {
                data.fill(0);
                self.pending = Some(Pending::MmioRead);
                Exit::Mmio { address, size: data.len() as u8, written: None }
            }
            Ok(VcpuExit::MmioWrite(address, data)) => {
                let written = Some(little_endian(data));
                Exit::Mmio { address, size: data.len() as u8, written }
            }
            Ok(VcpuExit::Shutdown) => Exit::Shutdown,
            Ok(VcpuExit::FailEntry(reason, cpu)) => Exit::FailEntry { reason, cpu },
            Ok(VcpuExit::InternalError) => return Ok(self.internal_error()),
            Ok(VcpuExit::IrqWindowOpen) => Exit::InterruptWindow,
            Ok(VcpuExit::Intr) => Exit::Interrupted,
            Ok(other) => Exit::Other(reason_name(&other)),
            Err(e) if e.errno() == libc::EINTR => {
                self.kick.acknowledge();
                Exit::Interrupted
            }
            Err(e) => return Err(VcpuError::Run(e.into())),
        };
        match exit {
            Exit::In { .. } | Exit::Out { .. } => Ok(self.port_exit(exit)),
            _ => Ok(exit),
        }
    }

    /// Notes where an `in`'s answer goes, and sorts out string I/O, whose data is longer than its size.
    fn port_exit(&mut self, exit: Exit) -> Exit {
        // SAFETY: the exit reason is KVM_EXIT_IO, which fills this member.
        let io = unsafe { self.fd.get_kvm_run().__bindgen_anon_1.io };
        if io.count != 1 {
            return Exit::Other("string port I/O");
        }
        if matches!(exit, Exit::In { .. }) {
            self.pending = Some(Pending::In { offset: io.data_offset, size: io.size });
        }
        exit
    }

    fn internal_error(&mut self) -> Exit {
        // SAFETY: the exit reason is KVM_EXIT_INTERNAL_ERROR, which fills this member.
        let internal = unsafe { self.fd.get_kvm_run().__bindgen_anon_1.internal };
        let data0 = if internal.ndata > 0 { internal.data[0] } else { 0 };
        Exit::InternalError { suberror: internal.suberror, data0 }
    }

    /// The instruction behind an [`Exit::InternalError`] of suberror 1, if KVM says (KVM API 5,
    /// `emulation_failure`).
    pub fn failed_instruction(&mut self) -> Option<FailedInstruction> {
        let run = self.fd.get_kvm_run();
        if run.exit_reason != kvm_bindings::KVM_EXIT_INTERNAL_ERROR {
            return None;
        }
        // SAFETY: the exit reason says that one of the two members is filled; both begin with the
        // suberror and the number of valid words behind it.
        let failure = unsafe { run.__bindgen_anon_1.emulation_failure };
        let valid = failure.suberror == KVM_INTERNAL_ERROR_EMULATION
            && failure.ndata >= 3
            && failure.flags & u64::from(INSTRUCTION_BYTES) != 0;
        // SAFETY: the flag says that this member of the inner union is filled.
        let insn = unsafe { failure.__bindgen_anon_1.__bindgen_anon_1 };
        let len = insn.insn_size.min(insn.insn_bytes.len() as u8);
        valid.then_some(FailedInstruction { bytes: insn.insn_bytes, len })
    }

    /// What an [`Exit::In`] reads; bytes above its size are cut off.
    pub fn answer_in(&mut self, value: u32) -> Result<(), VcpuError> {
        let Some(Pending::In { offset, size }) = self.pending else {
            return Err(VcpuError::NothingToAnswer { what: "an in" });
        };
        let size_bytes = usize::from(size).min(size_of_val(&value));
        let end = offset.checked_add(size_bytes as u64);
        if end.is_none_or(|end| end > self.run_size as u64) {
            return Err(VcpuError::DataOutside { offset, size, run_size: self.run_size });
        }
        let run: *mut u8 = std::ptr::from_mut(self.fd.get_kvm_run()).cast();
        let bytes = value.to_le_bytes();
        // SAFETY: the shared page is mapped with `run_size` bytes and the target lies inside, as
        // checked above; nothing else refers to it, the vCPU being stopped and borrowed mutably.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), run.add(offset as usize), size_bytes);
        }
        Ok(())
    }

    /// What an [`Exit::Mmio`] of a read reads; bytes above its size are cut off.
    pub fn answer_mmio(&mut self, value: u64) -> Result<(), VcpuError> {
        if self.pending != Some(Pending::MmioRead) {
            return Err(VcpuError::NothingToAnswer { what: "a read outside of memory" });
        }
        // All eight bytes of the field; KVM takes as many as the access has.
        self.fd.get_kvm_run().__bindgen_anon_1.mmio.data = value.to_le_bytes();
        Ok(())
    }

    /// What an [`Exit::Rdmsr`] reads.
    pub fn answer_rdmsr(&mut self, value: u64) -> Result<(), VcpuError> {
        if self.pending != Some(Pending::Rdmsr) {
            return Err(VcpuError::NothingToAnswer { what: "an rdmsr" });
        }
        self.fd.get_kvm_run().__bindgen_anon_1.msr.data = value;
        Ok(())
    }

    /// Asks for an [`Exit::InterruptWindow`] as soon as the guest can take an interrupt, at every run
    /// until told otherwise (KVM API 5, `request_interrupt_window`).
    pub fn request_interrupt_window(&mut self, wanted: bool) {
        self.fd.get_kvm_run().request_interrupt_window = wanted.into();
    }

    /// Completes what the last exit began, without running the guest, so that the registers are those
    /// behind the instruction (KVM API 5, `immediate_exit`). A port or memory access is half done until
    /// then, and its other half is in no state that can be saved.
    ///
    /// A kick that arrives meanwhile is swallowed: look at what it was for.
    pub fn complete(&mut self) -> Result<(), VcpuError> {
        self.kick_handle()?.kick();
        match self.run()? {
            Exit::Interrupted => Ok(()),
            exit => Err(VcpuError::Incomplete { exit }),
        }
    }

    /// Can [`Vcpu::interrupt`] be called now? True if the guest has interrupts on and KVM holds no
    /// other (KVM API 5, `if_flag`, `ready_for_interrupt_injection`).
    pub fn can_inject(&mut self) -> bool {
        let run = self.fd.get_kvm_run();
        run.if_flag != 0 && run.ready_for_interrupt_injection != 0
    }

    /// Does the guest have interrupts on (KVM API 5, `if_flag`)?
    pub fn interrupts_on(&mut self) -> bool {
        self.fd.get_kvm_run().if_flag != 0
    }

    /// Queues an interrupt for the next run (KVM API 4.16). KVM takes it whether the guest has
    /// interrupts on or not, so ask [`Vcpu::can_inject`] first.
    pub fn interrupt(&mut self, vector: u8) -> Result<(), VcpuError> {
        let irq = kvm_interrupt { irq: vector.into() };
        // SAFETY: KVM_INTERRUPT reads a `kvm_interrupt`, which `irq` is.
        let result = unsafe { ioctl_with_ref(&self.fd, KVM_INTERRUPT(), &irq) };
        if result != 0 {
            let source = errno::Error::last().into();
            return Err(VcpuError::Interrupt { vector, source });
        }
        // One more would be refused until the next run.
        self.fd.get_kvm_run().ready_for_interrupt_injection = 0;
        Ok(())
    }

    /// The general registers, as the last exit left them or [`Vcpu::set_regs`] set them: from the shared
    /// page, or by an ioctl the first time after an exit where KVM cannot share them.
    pub fn regs(&mut self) -> Result<kvm_regs, VcpuError> {
        if self.sync_regs {
            // SAFETY: KVM fills this member at each exit, as asked with kvm_valid_regs; before the
            // first it is zero.
            return Ok(unsafe { self.fd.get_kvm_run().s.regs.regs });
        }
        match self.regs {
            Some(regs) => Ok(regs),
            None => Ok(*self.regs.insert(self.read_regs()?)),
        }
    }

    /// The general registers, by ioctl.
    pub fn read_regs(&self) -> Result<kvm_regs, VcpuError> {
        let operation = "read the general registers (KVM_GET_REGS)";
        self.fd.get_regs().map_err(|e| VcpuError::Registers { operation, source: e.into() })
    }

    /// The segment, control and table registers, by ioctl; `cr2` and `cr3` among them.
    pub fn read_sregs(&self) -> Result<kvm_sregs, VcpuError> {
        let operation = "read the special registers (KVM_GET_SREGS)";
        self.fd.get_sregs().map_err(|e| VcpuError::Registers { operation, source: e.into() })
    }

    /// Sets the general registers.
    pub fn set_regs(&mut self, regs: &kvm_regs) -> Result<(), VcpuError> {
        let operation = "set the general registers (KVM_SET_REGS)";
        self.regs = None;
        if self.sync_regs {
            self.fd.get_kvm_run().s.regs.regs = *regs;
        }
        self.fd.set_regs(regs).map_err(|e| VcpuError::Registers { operation, source: e.into() })
    }

    /// Sets the segment, control and table registers.
    pub fn set_sregs(&mut self, sregs: &kvm_sregs) -> Result<(), VcpuError> {
        let operation = "set the special registers (KVM_SET_SREGS)";
        self.fd.set_sregs(sregs).map_err(|e| VcpuError::Registers { operation, source: e.into() })
    }

    /// Are registers shared at each exit, so that [`Vcpu::regs`] costs no ioctl?
    pub fn has_sync_regs(&self) -> bool {
        self.sync_regs
    }

    /// A handle that stops this vCPU from another thread. Call it on the thread that runs the vCPU.
    pub fn kick_handle(&mut self) -> Result<VcpuKick, VcpuError> {
        let immediate_exit = NonNull::from(&mut self.fd.get_kvm_run().immediate_exit);
        self.kick.aim(immediate_exit)?;
        Ok(self.kick.clone())
    }
}

impl Drop for Vcpu {
    fn drop(&mut self) {
        self.kick.disarm();
    }
}

/// At most eight bytes, zero-extended.
fn little_endian(data: &[u8]) -> u64 {
    data.iter().take(8).rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn reason_name(exit: &VcpuExit) -> &'static str {
    match exit {
        VcpuExit::Unknown => "KVM_EXIT_UNKNOWN",
        VcpuExit::Exception => "KVM_EXIT_EXCEPTION",
        VcpuExit::Hypercall(_) => "KVM_EXIT_HYPERCALL",
        VcpuExit::Debug(_) => "KVM_EXIT_DEBUG",
        VcpuExit::SetTpr => "KVM_EXIT_SET_TPR",
        VcpuExit::TprAccess => "KVM_EXIT_TPR_ACCESS",
        VcpuExit::Nmi => "KVM_EXIT_NMI",
        VcpuExit::SystemEvent(..) => "KVM_EXIT_SYSTEM_EVENT",
        VcpuExit::IoapicEoi(_) => "KVM_EXIT_IOAPIC_EOI",
        VcpuExit::Hyperv => "KVM_EXIT_HYPERV",
        VcpuExit::MemoryFault { .. } => "KVM_EXIT_MEMORY_FAULT",
        VcpuExit::Unsupported(_) => "an exit reason newer than this program",
        _ => "an exit reason of another architecture",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_data_is_read_little_endian_and_zero_extended() {
        assert_eq!(little_endian(&[]), 0);
        assert_eq!(little_endian(&[0x80]), 0x80);
        assert_eq!(little_endian(&[1, 2, 3, 4]), 0x0403_0201);
        assert_eq!(little_endian(&[0xff; 9]), u64::MAX);
    }
}
