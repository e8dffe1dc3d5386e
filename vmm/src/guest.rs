//! What ends a guest in a virtual machine before its time, whichever guest it is.

use std::sync::atomic::Ordering::Relaxed;

use guest_model::wire::BootError;
use kvm_bindings::kvm_regs;
use thiserror::Error;

use crate::device::virtio::DeviceError;
use crate::introspect::ReadError;
use crate::kvm::{Exit, StateError, Vcpu, VcpuError};
use crate::machine::clock_pages::ClockPageError;
use crate::session::{Asked, Control, Stop, chain};

/// What ended a guest before its time.
#[derive(Debug, Error)]
pub enum GuestError {
    /// The session cannot go on.
    #[error(transparent)]
    Session(#[from] Stop<ReadError>),
    /// A clock page is not where the guest says.
    #[error(transparent)]
    ClockPage(#[from] ClockPageError),
    /// The vCPU cannot go on.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
    /// The guest panicked.
    #[error("guest panicked at {file}:{line}")]
    Panic {
        /// Source file, as the guest gives it.
        file: String,
        /// Source line.
        line: u64,
    },
    /// The guest took an exception that it has no handler for.
    #[error("guest took exception {vector} ({name}), error code {error:#x}, at rip {rip:#x}")]
    Exception {
        /// Vector.
        vector: u64,
        /// Its mnemonic.
        name: &'static str,
        /// Error code, 0 where there is none.
        error: u64,
        /// Instruction pointer.
        rip: u64,
    },
    /// The guest refuses its boot page.
    #[error("guest refuses its boot page: {0:?}")]
    BootPage(BootError),
    /// The boot page was refused for a reason that this program does not know.
    #[error(
        "guest refuses its boot page with the unknown reason {0}: is the image from another build?"
    )]
    BootPageUnknown(u64),
    /// A control word that is not one.
    #[error("guest wrote the unknown word {0:#x} to its control port")]
    UnknownControl(u32),
    /// A probe or a request before the guest said that it is ready.
    #[error("guest used port {port:#x} before it registered its clock page")]
    NoClock {
        /// The port.
        port: u16,
    },
    /// A port that the machine does not have, or a wrong access size.
    #[error("guest {what} of {size} bytes at port {port:#x}, which has no such register")]
    UnknownPort {
        /// `read` or `write`.
        what: &'static str,
        /// The port.
        port: u16,
        /// Bytes.
        size: u8,
    },
    /// An access to memory that the machine does not have.
    #[error(
        "guest {what} of {size} bytes at physical address {address:#x}, where there is nothing"
    )]
    NoMemory {
        /// `read` or `write`.
        what: &'static str,
        /// Guest physical address.
        address: u64,
        /// Bytes.
        size: u8,
    },
    /// The guest halted with interrupts off: nothing can wake it.
    #[error("guest halted with interrupts off")]
    HaltedForGood,
    /// Triple fault.
    #[error("guest triple-faulted: an exception in its exception handling, with no way on")]
    TripleFault,
    /// KVM met an instruction that it cannot emulate.
    #[error(
        "KVM cannot emulate the guest's instruction {bytes}: on this KVM (see rqscope doctor) guests \
         run in an emulator that knows no SSE and few locked instructions"
    )]
    Emulation {
        /// The instruction's bytes in hexadecimal, or that they are unknown.
        bytes: String,
    },
    /// Another error inside KVM.
    #[error("KVM internal error {suberror}, data {data0:#x}")]
    Internal {
        /// `KVM_INTERNAL_ERROR_*`.
        suberror: u32,
        /// First data word.
        data0: u64,
    },
    /// The hardware refuses the vCPU's state.
    #[error("hardware refuses to enter the guest: reason {reason:#x} on host CPU {cpu}")]
    FailEntry {
        /// The hardware's reason.
        reason: u64,
        /// Host CPU.
        cpu: u32,
    },
    /// A device was used as no driver does.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The vCPU's state cannot be read or set.
    #[error(transparent)]
    State(#[from] StateError),
    /// The kernel panicked.
    #[error("guest kernel: {why}; {console}")]
    KernelPanic {
        /// The first line of the panic.
        why: String,
        /// What the console showed last.
        console: String,
    },
    /// The guest reset its machine.
    #[error("guest reset its machine; {console}")]
    Reset {
        /// What the console showed last.
        console: String,
    },
    /// The guest does not say that it is ready.
    #[error("guest was not ready after {seconds} s; {console}")]
    NotReady {
        /// How long it had, s.
        seconds: u64,
        /// What the console showed last.
        console: String,
    },
    /// Its clock cannot be the host's.
    #[error(
        "guest has no kvmclock, so its time cannot be the host's: build its kernel with \
         CONFIG_KVM_GUEST, and without no-kvmclock on its command line"
    )]
    NoKvmClock,
    /// The guest's clock is where no clock gets in a lifetime.
    #[error(
        "the guest's clock is at {ns} ns when it says that it is ready: its time-stamp counter does not tell the time"
    )]
    Clock {
        /// The guest's clock, ns.
        ns: u64,
    },
    /// PID 1 cannot go on.
    #[error("PID 1 of the guest: {message}")]
    Init {
        /// In its own words.
        message: String,
    },
    /// A task that the plan does not have.
    #[error("guest names task {0}, which the scenario does not have")]
    UnknownTask(u64),
    /// An exit that this program never asks for.
    #[error("unexpected exit {0}")]
    Unexpected(&'static str),
    /// A task of a Linux guest has made no exit for too long.
    #[error(
        "guest task {task} spins without asking for time: no exit for {seconds} s. In virtual time a task \
         must sleep, or burn through the doorbell (docs/linux.md)"
    )]
    TaskSpins {
        /// Its name and pid.
        task: String,
        /// How long, s.
        seconds: u64,
    },
    /// The guest has made no exit for too long.
    #[error("guest spins without asking for time: no exit for {0} s")]
    Spinning(u64),
}

/// Why an exit that no part of the machine takes cannot be handled.
pub fn unhandled(exit: Exit) -> GuestError {
    match exit {
        Exit::In { port, size } => GuestError::UnknownPort { what: "read", port, size },
        Exit::Out { port, size, .. } => GuestError::UnknownPort { what: "write", port, size },
        Exit::Mmio { address, size, written } => {
            let what = if written.is_some() { "write" } else { "read" };
            GuestError::NoMemory { what, address, size }
        }
        Exit::Shutdown => GuestError::TripleFault,
        Exit::InternalError { suberror: kvm_bindings::KVM_INTERNAL_ERROR_EMULATION, .. } => {
            GuestError::Emulation { bytes: "(bytes unknown)".into() }
        }
        Exit::InternalError { suberror, data0 } => GuestError::Internal { suberror, data0 },
        Exit::FailEntry { reason, cpu } => GuestError::FailEntry { reason, cpu },
        Exit::Other(name) => GuestError::Unexpected(name),
        Exit::InterruptWindow => GuestError::Unexpected("KVM_EXIT_IRQ_WINDOW_OPEN"),
        Exit::Hlt | Exit::Wrmsr { .. } | Exit::Rdmsr { .. } | Exit::Interrupted => {
            GuestError::Unexpected("an exit that is handled elsewhere")
        }
    }
}

/// Mnemonics of the exceptions (SDM 3A, table 6-1).
pub fn exception_name(vector: u64) -> &'static str {
    const NAMES: [&str; 22] = [
        "#DE", "#DB", "NMI", "#BP", "#OF", "#BR", "#UD", "#NM", "#DF", "reserved", "#TS", "#NP",
        "#SS", "#GP", "#PF", "reserved", "#MF", "#AC", "#MC", "#XM", "#VE", "#CP",
    ];
    usize::try_from(vector).ok().and_then(|v| NAMES.get(v)).copied().unwrap_or("unknown")
}

/// The general registers, in one line.
fn registers(r: &kvm_regs) -> String {
    format!(
        "registers: rip {:#x} rsp {:#x} rflags {:#x} rax {:#x} rbx {:#x} rcx {:#x} rdx {:#x} \
         rsi {:#x} rdi {:#x} rbp {:#x} r8 {:#x} r9 {:#x} r10 {:#x} r11 {:#x} r12 {:#x} r13 {:#x} \
         r14 {:#x} r15 {:#x}",
        r.rip,
        r.rsp,
        r.rflags,
        r.rax,
        r.rbx,
        r.rcx,
        r.rdx,
        r.rsi,
        r.rdi,
        r.rbp,
        r.r8,
        r.r9,
        r.r10,
        r.r11,
        r.r12,
        r.r13,
        r.r14,
        r.r15
    )
}

/// One KVM_RUN: the exit that it ends with, unless no guest can go on after it.
#[inline]
pub fn enter(vcpu: &mut Vcpu, control: &Control) -> Result<Exit, GuestError> {
    control.in_guest.store(true, Relaxed);
    let exit = vcpu.run();
    control.in_guest.store(false, Relaxed);
    let exit = exit?;
    match exit {
        Exit::Hlt if !vcpu.interrupts_on() => return Err(GuestError::HaltedForGood),
        Exit::Interrupted if !control.stopped() => {
            let silent_s = control.spinning_s.load(Relaxed);
            if silent_s != 0 {
                return Err(GuestError::Spinning(silent_s));
            }
        }
        Exit::InternalError { suberror: kvm_bindings::KVM_INTERNAL_ERROR_EMULATION, .. } => {
            let bytes = match vcpu.failed_instruction() {
                Some(i) => i.bytes().iter().map(|b| format!("{b:02x} ")).collect(),
                None => "(bytes unknown) ".to_owned(),
            };
            return Err(GuestError::Emulation { bytes: bytes.trim_end().into() });
        }
        _ => {}
    }
    Ok(exit)
}

/// `rip` of a processor after INIT (SDM 3A, table 10-1).
const RESET_RIP: u64 = 0xfff0;

/// Who ended a guest with `e`, and why in words, with the registers where they are the guest's doing.
pub fn broke_off(vcpu: &Vcpu, e: &GuestError) -> (Asked, String) {
    let asked = match e {
        GuestError::Session(Stop::Interrupted) => Asked::ByUser,
        _ => Asked::ByError,
    };
    let guests = asked == Asked::ByError && !matches!(e, GuestError::Session(Stop::Trace));
    let registers = match vcpu.read_regs() {
        // AMD's SVM leaves nothing to read after a triple fault, so KVM resets the vCPU.
        Ok(r) if matches!(e, GuestError::TripleFault) && r.rip == RESET_RIP => String::new(),
        Ok(r) if guests => format!("; {}", registers(&r)),
        _ => String::new(),
    };
    (asked, format!("{}{registers}", chain(e)))
}
