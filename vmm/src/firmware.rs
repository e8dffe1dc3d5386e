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

use guest_model::wire::{BootError, BootPage, VECTOR_BASE, control, port};
use thiserror::Error;

use crate::engine::Injections;
use crate::guest::{GuestError, broke_off, enter, exception_name, unhandled};
use crate::introspect::{Introspector, ReadError, SetupError, bundled};
use crate::kvm::{Exit, Kvm, Vcpu, VcpuError};
use crate::machine::clock_pages::ClockPages;
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
        self.session.sample(&self.view)?;
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
    let stopped = vcpu_loop(&mut vcpu, &mut handler).err().map(|e| broke_off(&vcpu, &e));
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
    let exit = enter(vcpu, control)?;
    let regs = vcpu.regs()?;
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

#[cfg(test)]
mod tests;
