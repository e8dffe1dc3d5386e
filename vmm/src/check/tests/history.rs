//! A guest and a host made by hand.

use crate::check::*;
use crate::ledger::MAX_LINES;
use crate::observe::Mark;
use crate::view::{Call, TaskRef};
use guest_model::policy::{Fault, PsiZeroDelta, RateLimitClock};

/// The root, a group in it and a group in that one.
pub(in crate::check) const PARENTS: [u16; 3] = [0, 0, 1];
/// swapper.
pub(in crate::check) const SWAPPER: TaskRef = TaskRef { pid: 0, group: 0 };
/// A task of group 1.
pub(in crate::check) const A: TaskRef = TaskRef { pid: 10, group: 1 };
/// A task of group 2.
pub(in crate::check) const B: TaskRef = TaskRef { pid: 11, group: 2 };
/// When the CPU is to go offline, ns.
pub(in crate::check) const OFFLINE_NS: u64 = 50_000_000;

/// A guest and a host made by hand. A call's effect is whatever a test writes there.
pub(in crate::check) struct History {
    pub(in crate::check) checks: Checks,
    pub(in crate::check) mark: Mark,
    pub(in crate::check) rq: RqView,
    pub(in crate::check) groups: [(CfsRqView, PsiView); PARENTS.len()],
    pub(in crate::check) leaves: Vec<u16>,
    /// Left empty, the task's time is all of the time.
    pub(in crate::check) ledger: Ledger,
    pub(in crate::check) in_flight: [u64; MAX_LINES],
    pub(in crate::check) costs: Option<CostsView>,
}

impl History {
    pub(in crate::check) fn new() -> Self {
        Self::under(RateLimitClock::RqClock, PsiZeroDelta::Skip)
    }

    pub(in crate::check) fn under(
        rate_limit_clock: RateLimitClock,
        psi_zero_delta: PsiZeroDelta,
    ) -> Self {
        let off: Vec<CheckId> =
            CheckId::ALL.iter().copied().filter(|id| id.is_asked_for()).collect();
        Self::without(rate_limit_clock, psi_zero_delta, &off)
    }

    /// One in which `asked` is judged too, should it be a check that is asked for.
    pub(in crate::check) fn judging(asked: CheckId) -> Self {
        let others = |id: &CheckId| id.is_asked_for() && *id != asked;
        let off: Vec<CheckId> = CheckId::ALL.iter().copied().filter(others).collect();
        Self::without(RateLimitClock::RqClock, PsiZeroDelta::Skip, &off)
    }

    pub(in crate::check) fn without(
        rate_limit_clock: RateLimitClock,
        psi_zero_delta: PsiZeroDelta,
        off: &[CheckId],
    ) -> Self {
        let policy = Policy { rate_limit_clock, psi_zero_delta, fault: Fault::None };
        let setup = Setup {
            policy,
            parents: PARENTS.into(),
            tick_period_ns: Some(1_000_000),
            offline_ns: Some(OFFLINE_NS),
            off: off.into(),
        };
        let empty = |group| {
            let cfs = CfsRqView { group, ..CfsRqView::default() };
            (cfs, PsiView { group, irq_full_ns: 0 })
        };
        Self {
            checks: Checks::new(setup),
            mark: Mark::default(),
            rq: RqView { curr_pid: A.pid, ..RqView::default() },
            groups: [empty(0), empty(1), empty(2)],
            leaves: vec![2, 1, 0],
            ledger: Ledger::default(),
            in_flight: [0; MAX_LINES],
            costs: None,
        }
    }

    /// `call` is entered and does `did`.
    pub(in crate::check) fn call(&mut self, call: Call, did: impl FnOnce(&mut Self)) {
        let (mark, before, groups) = (self.mark, self.rq, self.groups);
        let leaves: Vec<_> = self.leaves.iter().map(|&g| groups[g as usize].0).collect();
        did(self);
        let mut psi = Vec::new();
        if let Call::PsiAccountIrqtime { curr, .. } = call {
            psi.push(self.groups[curr.group as usize].1);
            while let Some(last) = psi.last().filter(|p| p.group != 0) {
                psi.push(self.groups[PARENTS[last.group as usize] as usize].1);
            }
        }
        let cfs = match call {
            Call::UpdateTgLoadAvg { group } | Call::ClearTgLoadAvg { group } => {
                Some((groups[group as usize].0, self.groups[group as usize].0))
            }
            _ => None,
        };
        let tick = matches!(call, Call::PsiAccountIrqtime { prev: None, .. });
        self.checks.step(&Step {
            call,
            mark,
            before: &before,
            after: &self.rq,
            cfs,
            psi: &psi,
            leaves: if tick { &leaves } else { &[] },
        });
    }

    /// `clock` moves by one amount, `clock_task` and `clock_pelt` by another, ns.
    pub(in crate::check) fn clocks(&mut self, clock: i64, task: i64) {
        self.rq.clock_ns = self.rq.clock_ns.wrapping_add_signed(clock);
        self.rq.clock_task_ns = self.rq.clock_task_ns.wrapping_add_signed(task);
        self.rq.clock_pelt_ns = self.rq.clock_pelt_ns.wrapping_add_signed(task);
    }

    /// The clock is updated at `at_ns`; all of the time was the task's.
    pub(in crate::check) fn runs_to(&mut self, at_ns: u64) {
        let passed = (at_ns - self.rq.clock_ns) as i64;
        self.mark.at_ns = at_ns;
        self.call(Call::UpdateRqClock, |h| h.clocks(passed, passed));
    }

    /// The clock is updated: `clock` and `clock_task` move, `prev_irq_time` and `prev_steal_time_rq` too.
    pub(in crate::check) fn updates(&mut self, clock: i64, task: i64, irq: i64, steal: i64) {
        self.mark.at_ns = self.rq.clock_ns.wrapping_add_signed(clock);
        self.call(Call::UpdateRqClock, |h| {
            h.clocks(clock, task);
            h.rq.prev_irq_time_ns = h.rq.prev_irq_time_ns.wrapping_add_signed(irq);
            h.rq.prev_steal_time_rq_ns = h.rq.prev_steal_time_rq_ns.wrapping_add_signed(steal);
        });
    }

    /// `ns` of IRQ time pass, `stolen` of them stolen, and are accounted as the handler is left.
    pub(in crate::check) fn irq_with_steal(&mut self, ns: u64, stolen: u64) {
        self.mark.steal_ns = self.mark.steal_ns.wrapping_add(stolen);
        self.mark.steal_in_irq_ns += stolen;
        self.irq(ns);
    }

    /// `ns` of IRQ time pass and are accounted as the handler is left.
    pub(in crate::check) fn irq(&mut self, ns: u64) {
        self.mark.at_ns += ns;
        self.mark.irq_ns += ns;
        self.call(Call::IrqtimeAccountIrq { offset: 0 }, |h| h.rq.irqtime_total_ns += ns);
    }

    /// A tick is handled at `at_ns` and calls `psi_account_irqtime()`, which does `did`.
    pub(in crate::check) fn tick(
        &mut self,
        at_ns: u64,
        curr: TaskRef,
        did: impl FnOnce(&mut Self),
    ) {
        self.mark.at_ns = at_ns;
        self.checks.timer_handled(at_ns);
        self.call(Call::PsiAccountIrqtime { curr, prev: None }, did);
    }

    /// `prev` gives way to `next`; `psi_account_irqtime()` does `did`.
    pub(in crate::check) fn switch(
        &mut self,
        prev: TaskRef,
        next: TaskRef,
        did: impl FnOnce(&mut Self),
    ) {
        self.call(Call::PsiAccountIrqtime { curr: prev, prev: Some(next) }, did);
        self.call(Call::PsiTaskSwitch { prev, next, sleep: false }, |_| {});
    }

    /// PSI is written: each of `groups` is charged `ns`.
    pub(in crate::check) fn charge(&mut self, groups: &[u16], ns: u32) {
        self.rq.psi_seq += 2;
        self.rq.psi_irq_time_ns = self.rq.irqtime_total_ns;
        for &group in groups {
            let times = &mut self.groups[group as usize].1.irq_full_ns;
            *times = times.wrapping_add(ns);
        }
    }

    /// The load of a group changes.
    pub(in crate::check) fn load(&mut self, group: u16, load_avg: u64) {
        self.groups[group as usize].0.load_avg = load_avg;
    }

    /// `update_tg_load_avg()` publishes the group's load and stamps `stamp_ns`.
    pub(in crate::check) fn publishes(&mut self, group: u16, stamp_ns: u64) {
        self.call(Call::UpdateTgLoadAvg { group }, |h| {
            let cfs = &mut h.groups[group as usize].0;
            cfs.tg_load_avg_contrib = cfs.load_avg;
            cfs.tg_load_avg = cfs.load_avg;
            cfs.last_update_tg_load_avg_ns = stamp_ns;
        });
    }

    /// `update_tg_load_avg()` publishes nothing.
    pub(in crate::check) fn keeps(&mut self, group: u16) {
        self.call(Call::UpdateTgLoadAvg { group }, |_| {});
    }

    /// `clear_tg_load_avg()` takes the group's contribution back.
    pub(in crate::check) fn clears(&mut self, group: u16) {
        self.call(Call::ClearTgLoadAvg { group }, |h| {
            let cfs = &mut h.groups[group as usize].0;
            cfs.tg_load_avg_contrib = 0;
            cfs.tg_load_avg = 0;
        });
    }

    /// The run ends here.
    pub(in crate::check) fn end(self) -> Ending {
        self.finish(true)
    }

    /// The run is stopped here: the guest is not to be judged.
    pub(in crate::check) fn stop(self) -> Ending {
        self.finish(false)
    }

    fn finish(mut self, judged: bool) -> Ending {
        if self.ledger.elapsed_ns() == 0 {
            self.ledger.task_ns = self.mark.at_ns;
        }
        let (checks, measured) = self.checks.finish(&Final {
            at_ns: self.mark.at_ns,
            rq: self.rq,
            groups: judged.then_some(&self.groups),
            costs: self.costs,
            ledger: &self.ledger,
            in_flight: self.in_flight,
        });
        Ending { checks, measured }
    }
}

/// What the checks found.
pub(in crate::check) struct Ending {
    checks: Vec<CheckResult>,
    pub(in crate::check) measured: Measured,
}

impl Ending {
    pub(in crate::check) fn result(&self, id: CheckId) -> &CheckResult {
        &self.checks[id as usize]
    }

    /// The checks that failed.
    pub(in crate::check) fn failed(&self) -> Vec<CheckId> {
        CheckId::ALL.iter().copied().filter(|id| self.result(*id).failures != 0).collect()
    }

    #[track_caller]
    pub(in crate::check) fn holds(&self) {
        self.only(&[]);
    }

    /// These checks failed, so many times, first then and there, and no others.
    #[track_caller]
    pub(in crate::check) fn only(&self, expected: &[(CheckId, u64, u64, &str)]) {
        let failed: Vec<_> = self.checks.iter().filter(|r| r.status == Status::Fail).collect();
        let found: Vec<_> = failed
            .iter()
            .map(|r| {
                let first = r.first.as_ref().unwrap();
                (r.id, r.failures, first.at_ns, first.detail.as_str())
            })
            .collect();
        assert_eq!(found, expected);
    }
}
