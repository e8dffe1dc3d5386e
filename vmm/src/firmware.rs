//! `--guest firmware`: the bundled guest, or another image that speaks its protocol, in a virtual
//! machine.
//!
//! [`run`] is the loop around KVM_RUN; [`Handler`] takes each exit as a value and says what to do,
//! so it can be tested without a KVM. Guest time moves in the session only; the pages are written
//! before the guest runs again.
//!
//! Interrupts are delivered at exits that let time pass with interrupts on, one at each: when the guest
//! burns, does softirq work, or halts. Asking KVM for an interrupt window instead would deliver the
//! second of two that wait at the return from the first, but not on every KVM at the same
//! instruction, and a run must not depend on its host.

use std::sync::atomic::Ordering::Relaxed;

use guest_model::wire::{BootError, BootPage, VECTOR_BASE, control, port};
use kvm_bindings::kvm_regs;
use thiserror::Error;

use crate::engine::Injections;
use crate::introspect::{Introspector, ReadError, SetupError, bundled};
use crate::kvm::{Exit, Kvm, Vcpu, VcpuError};
use crate::machine::clock_pages::{ClockPageError, ClockPages};
use crate::machine::{self, Machine, MachineError, paging};
use crate::session::{Asked, Control, PassOutcome, Session, Stop};
use crate::trace::Trace;
use crate::view::Call;

/// Why a guest could not be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// The machine could not be built or the image not be loaded.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The image does not have what introspection needs.
    #[error("prepare introspection of the guest image")]
    Introspection(#[from] SetupError),
    /// The vCPU refused.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
}

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
    /// An exit that this program never asks for.
    #[error("unexpected exit {0}")]
    Unexpected(&'static str),
    /// The guest has made no exit for too long.
    #[error("guest spins without asking for time: no exit for {0} s")]
    Spinning(u64),
}

/// What to do after an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Run on.
    Resume,
    /// Answer the `in` with this, then run on.
    Answer(u32),
}

/// Handles exits.
pub struct Handler<I> {
    session: Session<I>,
    view: Introspector,
    pages: ClockPages,
    ready: bool,
    clock_updates: u64,
}

impl<I: Injections> Handler<I> {
    /// A handler of a guest that is seen through `view` and reads time from `pages`.
    pub fn new(session: Session<I>, view: Introspector, pages: ClockPages) -> Self {
        Self { session, view, pages, ready: false, clock_updates: 0 }
    }

    /// Handles one exit; `args` are `rdi`, `rsi` and `rdx` at the exit.
    #[inline]
    pub fn handle(&mut self, exit: Exit, args: [u64; 3]) -> Result<Reply, GuestError> {
        let before = self.session.clock().updates();
        let reply = match exit {
            Exit::Out { port: port::PROBE, size: 1, value } => {
                self.need_clock(port::PROBE)?;
                let call = self.view.decode(value as u8, args).map_err(Stop::View)?;
                if call == Call::UpdateRqClock {
                    self.look_twice()?;
                }
                self.session.probe(&self.view, call)?;
                Reply::Resume
            }
            Exit::In { port: port::BURN, size: 4 } => {
                self.need_clock(port::BURN)?;
                Reply::Answer(self.session.burn(&self.view, at_most_u32(args[0]))?)
            }
            Exit::In { port: port::SOFTIRQ, size: 4 } => {
                self.need_clock(port::SOFTIRQ)?;
                Reply::Answer(self.session.softirq(&self.view, at_most_u32(args[0]))?)
            }
            Exit::In { port: port::IRQ_STATUS, size: 4 } => {
                self.need_clock(port::IRQ_STATUS)?;
                Reply::Answer(self.session.irq_status(args[0])?)
            }
            Exit::Out { port: port::TIMER, size: 4, .. } => {
                self.session.set_timer(args[0]);
                Reply::Resume
            }
            Exit::Hlt => {
                self.session.idle(&self.view)?;
                Reply::Resume
            }
            Exit::Out { port: port::CONTROL, size: 4, value } => self.control(value, args)?,
            Exit::Wrmsr { index, value } => {
                self.pages.register(index, value)?;
                self.pages.publish(self.session.clock())?;
                Reply::Resume
            }
            Exit::Rdmsr { .. } | Exit::Interrupted => Reply::Resume,
            other => return Err(unhandled(other)),
        };
        if self.session.clock().updates() != before {
            self.pages.publish(self.session.clock())?;
        }
        self.session.tick::<ReadError>()?;
        Ok(reply)
    }

    /// Guest time is up.
    #[inline]
    pub fn finished(&self) -> bool {
        self.session.finished()
    }

    /// An interrupt waits for delivery.
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.session.has_pending()
    }

    /// The vector to deliver now.
    #[inline]
    pub fn deliver(&mut self) -> Option<u8> {
        // A line is below MAX_IRQS, so vector and base do not overflow.
        self.session.deliver().map(|line| VECTOR_BASE + line as u8)
    }

    /// Ends the pass.
    pub fn finish(self, stopped: Option<(Asked, String)>) -> (PassOutcome, Trace) {
        self.session.finish(&self.view, stopped)
    }

    /// Looks for contradictions in the whole run queue, ever more rarely: values that are still 0 when
    /// the guest says that it is ready tell nothing of a layout that is wrong. Not in a guest whose
    /// accounting is wrong on purpose, or whose steal counter stepped back: the checks judge those.
    #[inline]
    fn look_twice(&mut self) -> Result<(), GuestError> {
        self.clock_updates += 1;
        if self.ready && self.clock_updates.is_power_of_two() && self.session.undisturbed() {
            self.view.sanity(self.session.clock().now_ns()).map_err(Stop::View)?;
        }
        Ok(())
    }

    fn need_clock(&self, port: u16) -> Result<(), GuestError> {
        if self.pages.has_clock() { Ok(()) } else { Err(GuestError::NoClock { port }) }
    }

    fn control(&mut self, word: u32, [a, b, c]: [u64; 3]) -> Result<Reply, GuestError> {
        Err(match word {
            control::READY => {
                self.need_clock(port::CONTROL)?;
                self.ready = true;
                if !self.pages.has_steal() {
                    self.session.lacks_steal_clock();
                }
                self.view.sanity(self.session.clock().now_ns()).map_err(Stop::View)?;
                return Ok(Reply::Resume);
            }
            control::PANIC => {
                let file = self
                    .view
                    .panic_message(a, b)
                    .unwrap_or_else(|e| format!("(file name unreadable: {e})"));
                GuestError::Panic { file, line: c }
            }
            control::EXCEPTION => {
                GuestError::Exception { vector: a, name: exception_name(a), error: b, rip: c }
            }
            control::BAD_BOOT_PAGE => match BootError::from_number(a) {
                Some(e) => GuestError::BootPage(e),
                None => GuestError::BootPageUnknown(a),
            },
            other => GuestError::UnknownControl(other),
        })
    }
}

/// Burn requests are 32 bits wide; more is asked for again.
#[inline]
fn at_most_u32(want_ns: u64) -> u32 {
    u32::try_from(want_ns).unwrap_or(u32::MAX)
}

fn unhandled(exit: Exit) -> GuestError {
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
fn exception_name(vector: u64) -> &'static str {
    const NAMES: [&str; 22] = [
        "#DE", "#DB", "NMI", "#BP", "#OF", "#BR", "#UD", "#NM", "#DF", "reserved", "#TS", "#NP",
        "#SS", "#GP", "#PF", "reserved", "#MF", "#AC", "#MC", "#XM", "#VE", "#CP",
    ];
    usize::try_from(vector).ok().and_then(|v| NAMES.get(v)).copied().unwrap_or("unknown")
}

/// Refuses an image that [`run`] would refuse with `nr_groups` groups, without running anything.
pub fn check(image: &[u8], nr_groups: usize) -> Result<(), StartError> {
    let (memory, _) = machine::load(image)?;
    bundled::introspector(memory, paging::CR3, image, nr_groups)?;
    Ok(())
}

/// Boots `image` with `page` and runs `session` on it to its end. Whatever the guest does, what was
/// found until then is in the outcome. To be called on the thread that is to run the vCPU.
pub fn run<I: Injections>(
    kvm: &Kvm,
    image: &[u8],
    page: &BootPage,
    session: Session<I>,
) -> Result<(PassOutcome, Trace), StartError> {
    let Machine { memory, mut vcpu, .. } = Machine::new(kvm, image, page)?;
    let view = bundled::introspector(memory.clone(), paging::CR3, image, page.nr_groups.into())?;
    let control = session.control();
    control.set_kick(Some(vcpu.kick_handle()?));
    let mut handler = Handler::new(session, view, ClockPages::new(memory));
    let stopped = vcpu_loop(&mut vcpu, &mut handler).err().map(|e| {
        let asked = match e {
            GuestError::Session(Stop::Interrupted) => Asked::ByUser,
            _ => Asked::ByError,
        };
        let guests = asked == Asked::ByError && !matches!(e, GuestError::Session(Stop::Trace));
        let registers = if guests {
            vcpu.read_regs().map_or(String::new(), |r| format!("; {}", registers(&r)))
        } else {
            String::new()
        };
        (asked, format!("{}{registers}", crate::session::chain(&e)))
    });
    control.set_kick(None);
    Ok(handler.finish(stopped))
}

/// KVM_RUN until guest time is up.
fn vcpu_loop<I: Injections>(vcpu: &mut Vcpu, handler: &mut Handler<I>) -> Result<(), GuestError> {
    let control = handler.session.control();
    while !handler.finished() {
        turn(vcpu, handler, &control)?;
    }
    Ok(())
}

/// One KVM_RUN, and what its exit asks for. `control` is the session's.
#[inline]
pub fn turn<I: Injections>(
    vcpu: &mut Vcpu,
    handler: &mut Handler<I>,
    control: &Control,
) -> Result<Exit, GuestError> {
    control.in_guest.store(true, Relaxed);
    let exit = vcpu.run();
    control.in_guest.store(false, Relaxed);
    let exit = exit?;
    let regs = vcpu.regs()?;
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
    if let Reply::Answer(value) = handler.handle(exit, [regs.rdi, regs.rsi, regs.rdx])? {
        vcpu.answer_in(value)?;
    }
    if !handler.finished()
        && handler.has_pending()
        && passes_time(exit)
        && vcpu.can_inject()
        && let Some(vector) = handler.deliver()
    {
        vcpu.interrupt(vector)?;
    }
    Ok(exit)
}

/// Is this an exit at which an interrupt may be delivered?
fn passes_time(exit: Exit) -> bool {
    matches!(exit, Exit::Hlt | Exit::In { port: port::BURN | port::SOFTIRQ, .. })
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

#[cfg(test)]
mod tests;
