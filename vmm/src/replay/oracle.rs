//! A kernel of guest-model that is fed with what a guest's rules had to go by.

use std::fmt::Write;

use guest_model::hardware::{Hardware, Probe};
use guest_model::kernel::Kernel;
use guest_model::pelt::SchedAvg;
use guest_model::policy::Policy;
use guest_model::psi::PSI_IRQ_FULL;
use guest_model::wire::{FIRST_PID, IDLE_PID, KSOFTIRQD_PID};

use super::{Conformance, Difference, Guest, Rule};
use crate::model::{avg_view, zeroed};
use crate::observe::{Mark, Step};
use crate::view::{AvgView, Call, CfsRqView, PsiView, RqView, TaskRef};

/// The task that a call is about, and the one switched to.
const CURR: u16 = FIRST_PID;
const PREV: u16 = FIRST_PID + 1;

/// The clocks that the rules read, as the host has them.
struct Clocks {
    at_ns: u64,
    steal_ns: u64,
}

impl Hardware for Clocks {
    fn sched_clock_cpu(&mut self) -> u64 {
        self.at_ns
    }

    fn steal_clock(&mut self) -> u64 {
        self.steal_ns
    }

    fn probe(&mut self, _: &mut Kernel, _: Probe) {}

    fn set_timer(&mut self, _: u64) {}

    fn irq_status(&mut self, _: &mut Kernel, _: u16) -> u32 {
        0
    }
}

impl From<Mark> for Clocks {
    fn from(mark: Mark) -> Self {
        Self { at_ns: mark.at_ns, steal_ns: mark.steal_ns }
    }
}

/// One replay.
#[derive(Debug)]
pub(super) struct Oracle {
    pub(super) kernel: Box<Kernel>,
    found: Conformance,
    /// Calls of these rules can be seen. What they write is the guest's word otherwise.
    sees_psi: bool,
    sees_irq_load: bool,
    /// The argument of `update_irq_load_avg()` inside the `update_rq_clock()` that is not done yet.
    running: Option<u64>,
}

/// A value that both have.
type Value = (&'static str, u64, u64);

impl Oracle {
    pub(super) fn new(
        policy: Policy,
        guest: &Guest,
        rq: &RqView,
        groups: &[(CfsRqView, PsiView)],
    ) -> Self {
        let mut kernel = zeroed::<Kernel>();
        kernel.policy = policy;
        kernel.nr_groups = groups.len() as u16;
        kernel.cpu_active = true;
        kernel.paravirt_steal_rq_enabled = guest.has_steal_clock;
        kernel.publishes_runnable = groups.iter().any(|(cfs, _)| cfs.runnable.is_some());
        for (index, parent) in (0..).zip(&guest.parents) {
            // A parent comes before its child, so every walk up ends.
            let parent = if *parent < index { *parent } else { 0 };
            kernel.task_groups[usize::from(index)].parent_index = parent;
        }
        let mut oracle = Self {
            kernel,
            found: Conformance::new(),
            sees_psi: guest.sees(Rule::PsiAccountIrqtime),
            sees_irq_load: guest.sees(Rule::UpdateIrqLoadAvg),
            running: None,
        };
        oracle.take_rq(rq);
        for (cfs, psi) in groups {
            oracle.take_cfs_rq(cfs);
            oracle.take_psi(psi);
        }
        oracle
    }

    pub(super) fn into_conformance(mut self, guest: &Guest) -> Conformance {
        for (rule, why) in &guest.unseen {
            self.found.rules[*rule as usize].unavailable = Some(why.clone());
        }
        self.found
    }

    pub(super) fn irq_load_avg_was_called(&mut self, running: u64) {
        self.running = Some(running);
    }

    /// Makes the call of `step` again, and compares.
    #[inline]
    pub(super) fn step(&mut self, step: &Step<'_>, guest: &Guest) {
        let hw = &mut Clocks::from(step.mark);
        let k = &mut *self.kernel;
        k.curr = match step.before.curr_pid {
            pid if pid == u32::from(IDLE_PID) => IDLE_PID,
            pid if pid == u32::from(KSOFTIRQD_PID) => KSOFTIRQD_PID,
            _ => CURR,
        };
        let seen = self.running.take();
        let rule = match step.call {
            Call::UpdateRqClock => {
                k.rq.clock_update_flags = step.before.clock_update_flags;
                let rq = &k.rq;
                let before = (rq.clock, rq.clock_task);
                k.update_rq_clock(hw);
                let task = k.rq.clock_task.wrapping_sub(before.1);
                let nontask = k.rq.clock.wrapping_sub(before.0).wrapping_sub(task);
                let running = [("running", nontask, seen.unwrap_or(0))];
                let called = seen.is_some() || nontask != 0;
                self.compare(Rule::UpdateRqClock, step, &[], &[]);
                if called && self.sees_irq_load {
                    self.compare(Rule::UpdateIrqLoadAvg, step, &running, &[]);
                }
                return;
            }
            Call::IrqtimeAccountIrq { offset } => {
                let Some(preempt_count) =
                    step.before.preempt_count.filter(|_| guest.sees(Rule::IrqtimeAccountIrq))
                else {
                    return self.take_rq(step.after);
                };
                k.preempt_count = guest.contexts(preempt_count);
                k.irqtime_account_irq(hw, guest.contexts(offset));
                Rule::IrqtimeAccountIrq
            }
            Call::PsiAccountIrqtime { curr, prev } => {
                if !guest.sees(Rule::PsiAccountIrqtime) {
                    return;
                }
                return self.psi_account_irqtime(step, hw, curr, prev);
            }
            Call::UpdateIrqLoadAvg { running } => {
                k.update_irq_load_avg(running);
                Rule::UpdateIrqLoadAvg
            }
            Call::UpdateTgLoadAvg { group } | Call::ClearTgLoadAvg { group } => {
                let Some((before, after)) = &step.cfs else { return };
                if !guest.sees(Rule::UpdateTgLoadAvg) {
                    return self.take_cfs_rq(after);
                }
                let q = &mut k.cfs_rqs[usize::from(group)];
                q.avg.load_avg = before.load_avg;
                if let Some(runnable) = before.runnable {
                    q.avg.runnable_avg = runnable.runnable_avg;
                }
                match step.call {
                    Call::UpdateTgLoadAvg { .. } => k.update_tg_load_avg(hw, group.into()),
                    _ => k.clear_tg_load_avg(hw, group.into()),
                }
                let (published, count) = self.published(after);
                self.compare(Rule::UpdateTgLoadAvg, step, &published[..count], &[]);
                return self.take_cfs_rq(after);
            }
            Call::PsiTaskSwitch { .. } | Call::PsiTaskChange { .. } => return,
        };
        self.compare(rule, step, &[], &[]);
    }

    fn psi_account_irqtime(
        &mut self,
        step: &Step<'_>,
        hw: &mut Clocks,
        curr: TaskRef,
        prev: Option<TaskRef>,
    ) {
        let k = &mut *self.kernel;
        k.psi_seq = step.before.psi_seq;
        k.tasks[usize::from(CURR)].group = curr.group;
        let charged = if curr.pid == 0 { IDLE_PID } else { CURR };
        let next = prev.map(|prev| {
            k.tasks[usize::from(PREV)].group = prev.group;
            PREV
        });
        k.psi_account_irqtime(hw, charged, next);
        let seq = [("psi_seq", u64::from(k.psi_seq), u64::from(step.after.psi_seq))];
        self.compare(Rule::PsiAccountIrqtime, step, &seq, step.psi);
        for psi in step.psi {
            self.take_psi(psi);
        }
    }

    /// Compares the run queue, `values` and the groups of `psi` after `step`.
    #[inline]
    fn compare(&mut self, rule: Rule, step: &Step<'_>, values: &[Value], psi: &[PsiView]) {
        self.take_unseen(step.after);
        let differs = |(_, model, guest): &Value| model != guest;
        let (own, seen) = (rq_values(&self.kernel), seen_values(step.after));
        let range = compared(rule);
        let tally = &mut self.found.rules[rule as usize];
        tally.transitions += 1;
        let same = own[range.clone()] == seen[range]
            && !values.iter().any(differs)
            && psi.iter().all(|psi| self.irq_full_ns(psi.group) == psi.irq_full_ns);
        if !same {
            self.differs(rule, step, values, psi);
        }
    }

    #[cold]
    fn differs(&mut self, rule: Rule, step: &Step<'_>, values: &[Value], psi: &[PsiView]) {
        self.found.rules[rule as usize].differences += 1;
        if self.found.first.is_none() {
            let (own, seen) = (rq_values(&self.kernel), seen_values(step.after));
            let rq = compared(rule).map(|i| (NAMES[i].to_owned(), own[i], seen[i]));
            let more =
                values.iter().map(|(name, model, guest)| ((*name).to_owned(), *model, *guest));
            let groups = psi.iter().map(|psi| {
                let name = format!("times[PSI_IRQ_FULL] of group {}", psi.group);
                (name, self.irq_full_ns(psi.group).into(), psi.irq_full_ns.into())
            });
            let all = rq.chain(more).chain(groups);
            let values = all.filter(|(_, model, guest)| model != guest).collect();
            let inputs = inputs(step);
            self.found.first = Some(Difference { at_ns: step.mark.at_ns, rule, values, inputs });
        }
        self.take_rq(step.after);
    }

    /// What calls that cannot be seen have written is the guest's word.
    #[inline]
    fn take_unseen(&mut self, rq: &RqView) {
        if !self.sees_psi {
            self.kernel.rq.psi_irq_time = rq.psi_irq_time_ns;
        }
        if !self.sees_irq_load {
            self.kernel.rq.avg_irq = sched_avg(&rq.avg_irq);
        }
    }

    /// Compares what no call has moved since it was last looked at.
    pub(super) fn compare_end(
        &mut self,
        at_ns: u64,
        rq: &RqView,
        groups: &[(CfsRqView, PsiView)],
        guest: &Guest,
    ) {
        let mark = Mark { at_ns, ..Mark::default() };
        let call = Call::UpdateRqClock;
        let step = Step { call, mark, before: rq, after: rq, cfs: None, psi: &[], leaves: &[] };
        self.take_unseen(rq);
        if rq_values(&self.kernel) != seen_values(rq) {
            self.differs(Rule::UpdateRqClock, &step, &[], &[]);
        }
        for (cfs, psi) in groups {
            let (published, count) = self.published(cfs);
            let values = &published[..count];
            let moved = values.iter().any(|(_, model, guest)| model != guest);
            if moved && guest.sees(Rule::UpdateTgLoadAvg) {
                self.differs(Rule::UpdateTgLoadAvg, &step, values, &[]);
            }
            let psi = std::slice::from_ref(psi);
            let moved = self.irq_full_ns(psi[0].group) != psi[0].irq_full_ns;
            if moved && guest.sees(Rule::PsiAccountIrqtime) {
                self.differs(Rule::PsiAccountIrqtime, &step, &[], psi);
            }
        }
    }

    fn irq_full_ns(&self, group: u16) -> u32 {
        self.kernel.psi_groups[usize::from(group)].times[PSI_IRQ_FULL]
    }

    /// What a group has published, and how many of them are meant.
    fn published(&self, seen: &CfsRqView) -> ([Value; 5], usize) {
        let q = &self.kernel.cfs_rqs[usize::from(seen.group)];
        let tg = &self.kernel.task_groups[usize::from(seen.group)];
        let runnable = seen.runnable.unwrap_or_default();
        let values = [
            ("tg_load_avg_contrib", q.tg_load_avg_contrib, seen.tg_load_avg_contrib),
            ("last_update_tg_load_avg", q.last_update_tg_load_avg, seen.last_update_tg_load_avg_ns),
            ("tg->load_avg", tg.load_avg, seen.tg_load_avg),
            (
                "tg_runnable_avg_contrib",
                q.tg_runnable_avg_contrib,
                runnable.tg_runnable_avg_contrib,
            ),
            ("tg->runnable_avg", tg.runnable_avg, runnable.tg_runnable_avg),
        ];
        (values, if seen.runnable.is_some() { 5 } else { 3 })
    }

    fn take_rq(&mut self, rq: &RqView) {
        let k = &mut *self.kernel;
        k.rq.clock = rq.clock_ns;
        k.rq.clock_task = rq.clock_task_ns;
        k.rq.clock_pelt = rq.clock_pelt_ns;
        k.rq.lost_idle_time = rq.lost_idle_time_ns;
        k.rq.prev_irq_time = rq.prev_irq_time_ns;
        k.rq.prev_steal_time_rq = rq.prev_steal_time_rq_ns;
        k.rq.psi_irq_time = rq.psi_irq_time_ns;
        k.rq.avg_irq = sched_avg(&rq.avg_irq);
        k.cpu_irqtime.total = rq.irqtime_total_ns;
        k.cpu_irqtime.irq_start_time = rq.irq_start_time_ns;
    }

    fn take_cfs_rq(&mut self, seen: &CfsRqView) {
        let q = &mut self.kernel.cfs_rqs[usize::from(seen.group)];
        let tg = &mut self.kernel.task_groups[usize::from(seen.group)];
        q.tg_load_avg_contrib = seen.tg_load_avg_contrib;
        q.last_update_tg_load_avg = seen.last_update_tg_load_avg_ns;
        tg.load_avg = seen.tg_load_avg;
        if let Some(runnable) = seen.runnable {
            q.tg_runnable_avg_contrib = runnable.tg_runnable_avg_contrib;
            tg.runnable_avg = runnable.tg_runnable_avg;
        }
    }

    fn take_psi(&mut self, psi: &PsiView) {
        let group = usize::from(psi.group);
        self.kernel.psi_groups[group].times[PSI_IRQ_FULL] = psi.irq_full_ns;
    }
}

/// `avg` as guest-model has it.
pub(super) fn sched_avg(avg: &AvgView) -> SchedAvg {
    SchedAvg {
        last_update_time: avg.last_update_time_ns,
        load_sum: avg.load_sum,
        runnable_sum: avg.runnable_sum,
        util_sum: avg.util_sum,
        period_contrib: avg.period_contrib,
        load_avg: avg.load_avg,
        runnable_avg: avg.runnable_avg,
        util_avg: avg.util_avg,
    }
}

/// Names of [`rq_values`].
const NAMES: [&str; 17] = [
    "clock",
    "clock_task",
    "clock_pelt",
    "lost_idle_time",
    "prev_irq_time",
    "prev_steal_time_rq",
    "psi_irq_time",
    "cpu_irqtime.total",
    "cpu_irqtime.irq_start_time",
    "avg_irq.last_update_time",
    "avg_irq.load_sum",
    "avg_irq.runnable_sum",
    "avg_irq.util_sum",
    "avg_irq.period_contrib",
    "avg_irq.load_avg",
    "avg_irq.runnable_avg",
    "avg_irq.util_avg",
];

/// Index of the first of `avg_irq`.
const AVG_IRQ: usize = 9;

/// What a rule answers for: `update_rq_clock()` for all but `avg_irq`, which it leaves to
/// `update_irq_load_avg()`. The others must leave everything but their own as it is.
#[inline]
fn compared(rule: Rule) -> std::ops::Range<usize> {
    match rule {
        Rule::UpdateRqClock => 0..AVG_IRQ,
        Rule::UpdateIrqLoadAvg => AVG_IRQ..NAMES.len(),
        _ => 0..NAMES.len(),
    }
}

/// What the run queue holds.
#[inline]
fn rq_values(k: &Kernel) -> [u64; NAMES.len()] {
    let rq = &k.rq;
    let irq = &k.cpu_irqtime;
    values(
        [
            rq.clock,
            rq.clock_task,
            rq.clock_pelt,
            rq.lost_idle_time,
            rq.prev_irq_time,
            rq.prev_steal_time_rq,
            rq.psi_irq_time,
            irq.total,
            irq.irq_start_time,
        ],
        &avg_view(&rq.avg_irq),
    )
}

#[inline]
fn seen_values(rq: &RqView) -> [u64; NAMES.len()] {
    values(
        [
            rq.clock_ns,
            rq.clock_task_ns,
            rq.clock_pelt_ns,
            rq.lost_idle_time_ns,
            rq.prev_irq_time_ns,
            rq.prev_steal_time_rq_ns,
            rq.psi_irq_time_ns,
            rq.irqtime_total_ns,
            rq.irq_start_time_ns,
        ],
        &rq.avg_irq,
    )
}

#[inline]
fn values(clocks: [u64; 9], avg: &AvgView) -> [u64; NAMES.len()] {
    let [a, b, c, d, e, f, g, h, i] = clocks;
    let avg = avg_values(avg);
    let [j, k, l, m, n, o, p, q] = avg;
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q]
}

/// What a `sched_avg` holds, in the order of its members.
#[inline]
pub(super) fn avg_values(avg: &AvgView) -> [u64; 8] {
    [
        avg.last_update_time_ns,
        avg.load_sum,
        avg.runnable_sum,
        avg.util_sum.into(),
        avg.period_contrib.into(),
        avg.load_avg,
        avg.runnable_avg,
        avg.util_avg,
    ]
}

/// What the rule of `step` had to go by.
fn inputs(step: &Step<'_>) -> String {
    let (b, m) = (step.before, step.mark);
    let mut text = format!(
        "{:?} at {} ns; steal counter {} ns; curr pid {}; before: clock {} clock_task {} clock_pelt {} \
         prev_irq_time {} prev_steal_time_rq {} psi_irq_time {} cpu_irqtime.total {} irq_start_time {}",
        step.call,
        m.at_ns,
        m.steal_ns as i64,
        b.curr_pid,
        b.clock_ns as i64,
        b.clock_task_ns as i64,
        b.clock_pelt_ns as i64,
        b.prev_irq_time_ns,
        b.prev_steal_time_rq_ns as i64,
        b.psi_irq_time_ns,
        b.irqtime_total_ns,
        b.irq_start_time_ns as i64,
    );
    if let Some(count) = b.preempt_count {
        let _ = write!(text, " preempt_count {count:#x}");
    }
    if b.clock_update_flags != 0 {
        let _ = write!(text, " clock_update_flags {}", b.clock_update_flags);
    }
    if let Some((cfs, _)) = &step.cfs {
        let _ = write!(
            text,
            " load_avg {} tg_load_avg_contrib {} last_update_tg_load_avg {} tg->load_avg {}",
            cfs.load_avg,
            cfs.tg_load_avg_contrib,
            cfs.last_update_tg_load_avg_ns as i64,
            cfs.tg_load_avg
        );
    }
    text
}
