//! Virtual time of a Linux guest: before its run begins, and in it.

use crate::clock::{GuestClock, HostFault};
use crate::engine::{Engine, EngineError, Injections};
use crate::introspect::ReadError;
use crate::ledger::Context;
use crate::schedule::Event;
use crate::session::{Session, Stop};
use crate::trace::Trace;
use crate::view::GuestView;

/// Nothing is injected.
#[derive(Debug)]
pub struct Nothing;

impl Injections for Nothing {
    fn peek(&self) -> Option<u64> {
        None
    }
    fn next(&mut self) -> Option<Event> {
        None
    }
    fn steal_in_irq(&mut self, _: u16, _: u64) -> Option<(u64, i64)> {
        None
    }
}

/// Longest guest time that a guest may take to get ready for its run: 1,000 s.
pub const PREPARE_NS: u64 = 1_000_000_000_000;

/// Who lets time pass.
#[derive(Debug)]
pub enum Time<I> {
    /// The guest builds its workload and comes to rest; interrupts cost nothing.
    Prepare(Box<Engine<Nothing>>, Box<Trace>),
    /// The run.
    Run(Box<Session<I>>),
}

impl<I: Injections> Time<I> {
    /// Time before the run, from 0.
    pub fn prepare() -> Self {
        let engine = Engine::new(Nothing, PREPARE_NS, 0, HostFault::None);
        Self::Prepare(Box::new(engine), Box::new(Trace::hashed()))
    }

    /// Guest time and steal.
    #[inline]
    pub fn clock(&self) -> &GuestClock {
        match self {
            Self::Prepare(engine, _) => engine.clock(),
            Self::Run(session) => session.clock(),
        }
    }

    /// Time is up.
    #[inline]
    pub fn finished(&self) -> bool {
        match self {
            Self::Prepare(engine, _) => engine.finished(),
            Self::Run(session) => session.finished(),
        }
    }

    /// An interrupt can be delivered.
    #[inline]
    pub fn has_pending(&self) -> bool {
        match self {
            Self::Prepare(engine, _) => engine.has_pending(),
            Self::Run(session) => session.has_pending(),
        }
    }

    /// The lines that the guest's interrupt controller holds back.
    #[inline]
    pub fn set_masked(&mut self, lines: u32) {
        match self {
            Self::Prepare(engine, _) => engine.set_masked(lines),
            Self::Run(session) => session.set_masked(lines),
        }
    }

    /// Was the interrupt of `line` delivered, and its cost not spent yet?
    #[inline]
    pub fn in_service(&self, line: u16) -> bool {
        match self {
            Self::Prepare(engine, _) => engine.in_service(line),
            Self::Run(session) => session.in_service(line),
        }
    }

    /// Arms the timer; 0 disarms it.
    #[inline]
    pub fn set_timer(&mut self, deadline_ns: u64) {
        match self {
            Self::Prepare(engine, _) => engine.set_timer(deadline_ns),
            Self::Run(session) => session.set_timer(deadline_ns),
        }
    }

    /// The line to deliver now.
    #[inline]
    pub fn deliver(&mut self) -> Option<u16> {
        match self {
            Self::Prepare(engine, trace) => engine.deliver(trace),
            Self::Run(session) => session.deliver(),
        }
    }

    /// The handler of `line` spends its cost.
    #[inline]
    pub fn irq_status(&mut self, line: u16) -> Result<(), Stop<ReadError>> {
        match self {
            Self::Prepare(engine, trace) => {
                engine.irq_status(line.into(), trace).map(drop).map_err(stop)
            }
            Self::Run(session) => session.irq_status(line.into()).map(drop),
        }
    }

    /// A task burns up to `want_ns`; what it got, ns.
    #[inline]
    pub fn burn<V>(&mut self, view: &V, want_ns: u32) -> Result<u32, Stop<ReadError>>
    where
        V: GuestView<Error = ReadError>,
    {
        match self {
            Self::Prepare(engine, trace) => {
                Ok(engine.run_for(want_ns.into(), Context::Task, trace) as u32)
            }
            Self::Run(session) => session.burn(view, want_ns),
        }
    }

    /// Softirq work that interrupts raised and that is not done, ns.
    pub fn softirq_left_ns(&self) -> u64 {
        match self {
            Self::Prepare(..) => 0,
            Self::Run(session) => session.softirq_left_ns(),
        }
    }

    /// `want_ns` of the softirq work that is left is done, if nothing interrupts; how much of it is not,
    /// ns.
    pub fn softirq<V>(&mut self, view: &V, want_ns: u64) -> Result<u64, Stop<ReadError>>
    where
        V: GuestView<Error = ReadError>,
    {
        let Self::Run(session) = self else { return Ok(0) };
        if want_ns == 0 {
            return Ok(0);
        }
        let done_ns = session.softirq(view, want_ns.try_into().unwrap_or(u32::MAX))?;
        Ok(want_ns - u64::from(done_ns))
    }

    /// The CPU is halted until an interrupt can be delivered or time is up.
    #[inline]
    pub fn idle<V>(&mut self, view: &V) -> Result<(), Stop<ReadError>>
    where
        V: GuestView<Error = ReadError>,
    {
        match self {
            Self::Prepare(engine, trace) => {
                engine.idle(trace);
                Ok(())
            }
            Self::Run(session) => session.idle(view),
        }
    }
}

fn stop(e: EngineError) -> Stop<ReadError> {
    Stop::Engine(e)
}
