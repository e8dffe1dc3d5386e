//! One pass over a scenario: the engine, the observer, the checks and the trace around a guest.
//!
//! Whoever runs the guest (the in-process model, the vCPU thread of a virtual machine) hands each
//! thing that the guest asks for to a [`Session`] and does what it answers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use guest_model::policy::{Fault, Policy};

use crate::check::{CheckId, CheckResult, Checks, Final, Measured, Setup};
use crate::clock::GuestClock;
use crate::engine::{Engine, EngineError, Injections};
use crate::kvm::VcpuKick;
use crate::ledger::{Context, Ledger};
use crate::observe::{Mark, Observer, Step, rq_values};
use crate::replay::{Conformance, Replay};
use crate::series::Series;
use crate::trace::{Kind, Record, Trace};
use crate::view::{Call, CfsRqView, CostsView, GuestView, LoadCall, LoadView, PsiView, RqView};

/// What another thread sees of a run, and how it ends it.
#[derive(Debug, Default)]
pub struct Control {
    stop: Arc<AtomicBool>,
    kick: Mutex<Option<VcpuKick>>,
    /// The vCPU is inside KVM_RUN: only then is it the guest that makes no exit.
    pub in_guest: AtomicBool,
    /// Exits so far: a guest whose count stands still spins.
    pub exits: AtomicU64,
    /// Set, before a kick, to the seconds without an exit after which the run is to end as spinning;
    /// 0 while exits come.
    pub spinning_s: AtomicU64,
    /// Guest time, ns.
    pub now_ns: AtomicU64,
    /// Probe hits.
    pub hits: AtomicU64,
}

impl Control {
    /// Ends the run at its next exit, and makes it exit.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
        self.kick();
    }

    /// The flag that [`Control::stop`] sets.
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    /// Was the run asked to end?
    pub fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// What another thread sees of a run that ends when this one is asked to.
    pub fn ends_with(&self) -> Self {
        Self { stop: self.stop_flag(), ..Self::default() }
    }

    /// Makes a running vCPU exit.
    pub fn kick(&self) {
        if let Some(kick) = &*self.kick.lock().unwrap_or_else(PoisonError::into_inner) {
            kick.kick();
        }
    }

    /// How to make the running vCPU exit; `None` when there is none.
    pub fn set_kick(&self, kick: Option<VcpuKick>) {
        *self.kick.lock().unwrap_or_else(PoisonError::into_inner) = kick;
    }
}

/// Who ended a pass before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The user, with Ctrl-C.
    ByUser,
    /// Something went wrong.
    ByError,
}

/// Why a session cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Stop<E> {
    /// The user asked for it.
    #[error("interrupted")]
    Interrupted,
    /// The trace's file takes no more.
    #[error("the trace cannot be written")]
    Trace,
    /// The guest asked for something that the engine cannot answer.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The guest's memory does not read as it should.
    #[error("cannot read the guest's run queue")]
    View(#[source] E),
    /// The guest keeps running without letting time pass.
    #[error(
        "guest is stuck: {exits} exits at guest time {at_ns} ns without any time passing \
         (last call: {last})"
    )]
    Stuck {
        /// Exits at this instant.
        exits: u64,
        /// The instant, ns.
        at_ns: u64,
        /// The last probed call.
        last: String,
    },
}

/// Exits without guest time passing after which a guest counts as stuck. A walk over 4,096
/// groups makes less than ten thousand.
pub const STUCK_EXITS: u64 = 200_000;

/// What a pass found.
#[derive(Clone, Debug)]
pub struct PassOutcome {
    /// The variant that ran.
    pub policy: Policy,
    /// Guest time that passed, ns.
    pub elapsed_ns: u64,
    /// The run queue at the end, or as last seen if the guest could not be read any more.
    pub rq: RqView,
    /// What the host did.
    pub ledger: Ledger,
    /// Interrupts waiting at the end.
    pub irqs_waiting: u64,
    /// Probe hits.
    pub hits: u64,
    /// The checks.
    pub checks: Vec<CheckResult>,
    /// The measurements.
    pub measured: Measured,
    /// Each group's PSI state as the guest has it; empty if it was stopped before its time.
    pub psi: Vec<PsiView>,
    /// The guest has a steal clock; without one it accounts no steal, which is not the same as 0.
    pub has_steal_clock: bool,
    /// The guest's own cost counters.
    pub costs: Option<CostsView>,
    /// How the guest compares with guest-model, and with each planted fault of a replay that had some;
    /// empty where the guest is guest-model.
    pub conformance: Vec<Conformance>,
    /// Samples at fixed distances, if they were asked for.
    pub series: Option<Series>,
    /// Who ended it early, and why in words.
    pub stopped: Option<(Asked, String)>,
}

/// A pass that runs.
#[derive(Debug)]
pub struct Session<I> {
    policy: Policy,
    groups: u16,
    engine: Engine<I>,
    observer: Observer,
    checks: Checks,
    replay: Option<Replay>,
    trace: Trace,
    control: Arc<Control>,
    has_steal_clock: bool,
    series: Option<Series>,
    exits: u64,
    exits_at_instant: u64,
    instant_ns: u64,
}

impl<I: Injections> Session<I> {
    /// A pass at guest time 0.
    pub fn new(
        setup: Setup,
        seed: u64,
        engine: Engine<I>,
        mut trace: Trace,
        control: Arc<Control>,
    ) -> Self {
        let policy = setup.policy;
        let values = [policy.rate_limit_clock as u64, policy.psi_zero_delta as u64, seed];
        trace.push(Record::host(0, Kind::Pass, values));
        Self {
            policy,
            groups: setup.parents.len() as u16,
            engine,
            observer: Observer::new(setup.parents.clone()),
            checks: Checks::new(setup),
            replay: None,
            trace,
            control,
            has_steal_clock: true,
            series: None,
            exits: 0,
            exits_at_instant: 0,
            instant_ns: 0,
        }
    }

    /// What other threads see of this session.
    pub fn control(&self) -> Arc<Control> {
        self.control.clone()
    }

    /// Guest time and steal, for the guest's clock pages.
    #[inline]
    pub fn clock(&self) -> &GuestClock {
        self.engine.clock()
    }

    /// No fault is planted and the steal counter never stepped back.
    pub fn undisturbed(&self) -> bool {
        self.policy.fault == Fault::None
            && !self.engine.has_fault()
            && self.engine.ledger().steal_backward_count == 0
    }

    /// The guest has no steal clock.
    pub fn lacks_steal_clock(&mut self) {
        self.has_steal_clock = false;
        self.checks.lacks(&[
            CheckId::StealAccounted,
            CheckId::StealInIrqOnce,
            CheckId::StealNotDropped,
        ]);
    }

    /// The guest lacks what these checks are about.
    pub fn lacks(&mut self, ids: &[CheckId]) {
        self.checks.lacks(ids);
    }

    /// The guest has run before guest time 0: what it holds by now is where the checks start from.
    pub fn begin<V: GuestView>(&mut self, view: &V) -> Result<(), Stop<V::Error>> {
        for group in 0..self.groups {
            self.checks.begin(&view.cfs_rq(group).map_err(Stop::View)?);
        }
        Ok(())
    }

    /// What the guest does is made again by `replay`, which begins here.
    pub fn replay(&mut self, replay: Replay) {
        self.replay = Some(replay);
    }

    /// Asks for `count` samples of the pass ([`Series::new`] says which).
    pub fn sample_times(&mut self, count: u32) {
        self.series = Some(Series::new(self.engine.end_ns(), count, self.groups));
    }

    /// Guest time is up.
    #[inline]
    pub fn finished(&self) -> bool {
        self.engine.finished()
    }

    /// An interrupt waits and can be delivered.
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.engine.has_pending()
    }

    /// The lines that the guest's interrupt controller holds back from now on.
    #[inline]
    pub fn set_masked(&mut self, lines: u32) {
        self.engine.set_masked(lines);
    }

    /// Was the interrupt of `line` delivered, and its status not read yet?
    #[inline]
    pub fn in_service(&self, line: u16) -> bool {
        self.engine.in_service(line)
    }

    /// Softirq work that interrupts raised and that is not done, ns.
    #[inline]
    pub fn softirq_left_ns(&self) -> u64 {
        self.engine.ledger().softirq_left_ns().max(0) as u64
    }

    /// The guest's scheduler tick begins.
    pub fn tick_begins(&mut self) {
        self.checks.tick(self.engine.clock().now_ns());
    }

    /// Arms the guest's timer; 0 disarms it.
    #[inline]
    pub fn set_timer(&mut self, deadline_ns: u64) {
        self.engine.set_timer(deadline_ns);
    }

    /// Takes the interrupt to deliver now.
    #[inline]
    pub fn deliver(&mut self) -> Option<u16> {
        self.engine.deliver(&mut self.trace)
    }

    /// The current task burns up to `want_ns`; returns what it got, ns.
    #[inline]
    pub fn burn<V: GuestView>(&mut self, view: &V, want_ns: u32) -> Result<u32, Stop<V::Error>> {
        self.outside_irq(view)?;
        Ok(self.engine.run_for(want_ns.into(), Context::Task, &mut self.trace) as u32)
    }

    /// No interrupt is being handled: all IRQ time must be accounted.
    #[inline]
    fn outside_irq<V: GuestView>(&mut self, view: &V) -> Result<(), Stop<V::Error>> {
        let total_ns = view.irqtime_total_ns().map_err(Stop::View)?;
        let (at_ns, irq_ns) = (self.engine.clock().now_ns(), self.engine.ledger().irq_ns());
        self.checks.outside_irq(at_ns, irq_ns, total_ns);
        Ok(())
    }

    /// Softirq work of up to `want_ns` is done; returns what was done, ns. In ksoftirqd it is task
    /// time, and whether ksoftirqd runs is read from the guest.
    pub fn softirq<V: GuestView>(&mut self, view: &V, want_ns: u32) -> Result<u32, Stop<V::Error>> {
        let ksoftirqd = view.runs_ksoftirqd().map_err(Stop::View)?;
        let left_ns = self.softirq_left_ns();
        self.checks.softirq_wanted(self.engine.clock().now_ns(), want_ns.into(), left_ns);
        let context = if ksoftirqd { Context::Ksoftirqd } else { Context::Softirq };
        Ok(self.engine.run_for(want_ns.into(), context, &mut self.trace) as u32)
    }

    /// The handler of `line` reads its status; returns the softirq work raised, ns.
    #[inline]
    pub fn irq_status<E>(&mut self, line: u64) -> Result<u32, Stop<E>> {
        let softirq_ns = self.engine.irq_status(line, &mut self.trace)?;
        if line == 0 {
            self.checks.timer_handled(self.engine.clock().now_ns());
        }
        Ok(softirq_ns)
    }

    /// The CPU is halted until an interrupt waits or time is up.
    #[inline]
    pub fn idle<V: GuestView>(&mut self, view: &V) -> Result<(), Stop<V::Error>> {
        self.outside_irq(view)?;
        let left_ns = self.softirq_left_ns();
        self.checks.halted(self.engine.clock().now_ns(), left_ns);
        self.engine.idle(&mut self.trace);
        Ok(())
    }

    /// A probe was hit.
    #[inline]
    pub fn probe<V: GuestView>(&mut self, view: &V, call: Call) -> Result<(), Stop<V::Error>> {
        let ledger = self.engine.ledger();
        let mark = Mark {
            at_ns: self.engine.clock().now_ns(),
            steal_ns: ledger.steal_counter_ns as u64,
            irq_ns: ledger.irq_ns(),
            steal_in_irq_ns: ledger.steal_in_irq_ns,
            idle_ns: ledger.idle_ns,
        };
        if let Call::UpdateIrqLoadAvg { running } = call {
            self.checks.irq_load_avg(mark.at_ns, running);
        }
        let (checks, replay) = (&mut self.checks, &mut self.replay);
        let on_step = |step: &Step<'_>| {
            checks.step(step);
            if let Some(replay) = replay {
                replay.step(step);
            }
        };
        self.observer.hit(view, call, mark, &mut self.trace, on_step).map_err(Stop::View)?;
        if let Some(replay) = &mut self.replay
            && call.is_nested()
        {
            replay.nested(call);
        }
        Ok(())
    }

    /// A function that moves load was entered: nothing but the replay is told.
    #[inline]
    pub fn load<V: LoadView>(&mut self, view: &V, call: LoadCall) -> Result<(), Stop<V::Error>> {
        let at_ns = self.engine.clock().now_ns();
        match &mut self.replay {
            Some(replay) => replay.load(view, at_ns, call).map_err(Stop::View),
            None => Ok(()),
        }
    }

    /// A probe of the user's was hit, with these in `rdi`, `rsi`, `rdx`, `rcx`, `r8` and `r9`.
    pub fn user_probe<V: GuestView>(
        &mut self,
        view: &V,
        index: u8,
        args: [u64; 6],
    ) -> Result<(), Stop<V::Error>> {
        let rq = view.rq().map_err(Stop::View)?;
        let [a, b, c, d, e, f] = args;
        let own = [index.into(), a, b, c, d, e, f];
        let at_ns = self.engine.clock().now_ns();
        self.trace.push(Record::call(at_ns, Kind::Probe, &own, rq_values(&rq)));
        Ok(())
    }

    /// To be called once per exit, before [`Session::tick`]: takes the samples that are due.
    #[inline]
    pub fn sample<V: GuestView>(&mut self, view: &V) -> Result<(), Stop<V::Error>> {
        let now = self.engine.clock().now_ns();
        match &mut self.series {
            Some(series) if series.is_due(now) => series.take(view, now).map_err(Stop::View),
            _ => Ok(()),
        }
    }

    /// To be called once per exit: tells other threads how far the run is and ends it if it was
    /// asked to end or no guest time has passed for [`STUCK_EXITS`] exits.
    #[inline]
    pub fn tick<E>(&mut self) -> Result<(), Stop<E>> {
        let now = self.engine.clock().now_ns();
        if now != self.instant_ns {
            self.instant_ns = now;
            self.exits_at_instant = 0;
            self.control.now_ns.store(now, Relaxed);
            self.control.hits.store(self.observer.hits(), Relaxed);
        }
        self.exits_at_instant += 1;
        if self.exits_at_instant > STUCK_EXITS {
            return Err(Stop::Stuck {
                exits: self.exits_at_instant,
                at_ns: now,
                last: self.observer.last().map_or("none".into(), |(c, _)| format!("{c:?}")),
            });
        }
        self.exits += 1;
        self.control.exits.store(self.exits, Relaxed);
        if self.control.stopped() {
            return Err(Stop::Interrupted);
        }
        if self.trace.failed() {
            return Err(Stop::Trace);
        }
        Ok(())
    }

    /// Ends the pass: reads the guest a last time and judges the end.
    ///
    /// A guest that was stopped before its time may be in the middle of an accounting rule, so what it
    /// holds then is not judged: what was found before stands.
    pub fn finish<V: GuestView>(
        mut self,
        view: &V,
        stopped: Option<(Asked, String)>,
    ) -> (PassOutcome, Trace) {
        let now = self.engine.clock().now_ns();
        let mut stopped = stopped;
        let mut rq = self.observer.last().map_or_else(RqView::default, |(_, rq)| rq);
        let mut state = Vec::new();
        if stopped.is_none()
            && let Err(e) = self.read_end(view, now, &mut rq, &mut state)
        {
            stopped = Some((Asked::ByError, chain(&Stop::View(e))));
        }
        let whole = stopped.is_none();
        let replay = self.replay.take();
        let groups = whole.then_some(state.as_slice());
        let conformance = replay.map(|replay| replay.finish(now, &rq, groups));
        let costs = view.costs().unwrap_or_else(|e| {
            stopped.get_or_insert_with(|| (Asked::ByError, chain(&Stop::View(e))));
            None
        });
        let end = Final {
            at_ns: now,
            costs,
            rq,
            groups: stopped.is_none().then_some(state.as_slice()),
            ledger: self.engine.ledger(),
            in_flight: self.engine.in_flight(),
        };
        let (checks, measured) = self.checks.finish(&end);
        let outcome = PassOutcome {
            policy: self.policy,
            elapsed_ns: now,
            rq,
            ledger: self.engine.ledger().clone(),
            irqs_waiting: self.engine.waiting(),
            hits: self.observer.hits(),
            checks,
            measured,
            psi: state.iter().map(|(_, psi)| *psi).collect(),
            has_steal_clock: self.has_steal_clock,
            costs,
            conformance: conformance.unwrap_or_default(),
            series: self.series,
            stopped,
        };
        (outcome, self.trace)
    }

    /// Completes the last call and reads every group.
    fn read_end<V: GuestView>(
        &mut self,
        view: &V,
        now: u64,
        rq: &mut RqView,
        state: &mut Vec<(CfsRqView, PsiView)>,
    ) -> Result<(), V::Error> {
        let (checks, replay) = (&mut self.checks, &mut self.replay);
        *rq = self.observer.finish(view, now, &mut self.trace, |step| {
            checks.step(step);
            if let Some(replay) = replay {
                replay.step(step);
            }
        })?;
        for group in 0..self.groups {
            state.push((view.cfs_rq(group)?, view.psi_group(group)?));
        }
        Ok(())
    }
}

/// An error and its sources, in one line.
pub fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(s) = source {
        text = format!("{text}: {s}");
        source = s.source();
    }
    text
}

#[cfg(test)]
mod tests;
