//! The run queue's clocks against the host's clock and ledger.

use super::CheckId::*;
use super::{Board, Final};
use crate::observe::{Mark, Step};
use crate::view::{Call, RQCF_ACT_SKIP, RqView};
use guest_model::wire::MAX_TASKS;

/// What the run queue took from its clock, summed over all updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accounted {
    /// Steal time taken from `clock_task`, ns; negative if the counter stepped back.
    pub steal_ns: i64,
    /// Steal time read that did not fit and was dropped, ns.
    pub steal_dropped_ns: i64,
    /// Updates of the clock.
    pub updates: u64,
    /// Updates after which IRQ time was left for the next.
    pub irq_carried_count: u64,
    /// Updates that dropped steal time.
    pub steal_dropped_count: u64,
    /// Updates that the scheduler skipped (`RQCF_ACT_SKIP`).
    pub updates_skipped: u64,
    /// The most that `clock` was behind the host's at such an update, ns.
    pub skipped_behind_max_ns: u64,
    /// The largest lead of `clock_task` over `clock`, ns.
    pub clock_task_ahead_max_ns: u64,
    /// The longest time for which `clock_task` stood still while `clock` advanced, ns.
    pub clock_task_stopped_max_ns: u64,
    /// What `clock_task` gained up to updates that found the idle task current, ns; from guest time 0 on.
    pub clock_task_idle_ns: i64,
    /// What it gained up to all others, ns.
    pub clock_task_busy_ns: i64,
    /// Steal inside interrupts taken from `clock_task` as steal, beside being taken as IRQ time, ns.
    pub steal_in_irq_taken_ns: u64,
    /// IRQ time that the first update after it left in `clock_task`, for a later one to take back, ns.
    pub irq_late_ns: u64,
    /// The most that an update left, ns.
    pub irq_late_max_ns: u64,
    /// Calls of `update_irq_load_avg()` told of less than nothing, which wraps; only where they are seen.
    pub irq_load_avg_wrapped_count: u64,
    /// The largest `rq->avg_irq.util_avg`, 0 to 1,024.
    pub avg_irq_util_max: u64,
}

/// `PELT_MIN_DIVIDER` (kernel/sched/pelt.h): the least that a sum is divided by, in 1,024 ns.
const PELT_MIN_DIVIDER: i128 = 46_718;
/// What an update that takes no time may still add to `rq->avg_irq.util_avg`: less than one period,
/// 1,024 in `PELT_MIN_DIVIDER`, may be summed and not averaged yet. Two are for rounding.
const UNAVERAGED_UTIL: i128 = 1_024 * 1_024 / PELT_MIN_DIVIDER + 2;

#[derive(Debug, Default)]
pub(super) struct ClockChecks {
    pub(super) accounted: Accounted,
    /// The ledger's IRQ time when the guest last accounted it, ns.
    irq_accounted_ns: u64,
    /// `clock` since when `clock_task` has stood still, ns.
    stopped_since_ns: u64,
    /// The host's record at the last update.
    last: Mark,
    /// `clock` after the last update, ns.
    clock_ns: Option<u64>,
    /// What `clock_task` gained up to updates that found a task current, by pid, ns.
    pub(super) gained_ns: Vec<i64>,
}

impl ClockChecks {
    #[inline]
    pub(super) fn step(&mut self, s: &Step<'_>, board: &mut Board) {
        if let Call::IrqtimeAccountIrq { .. } = s.call {
            self.irq_accounted_ns = s.mark.irq_ns;
        }
        let (total, ledger) = (s.after.irqtime_total_ns, self.irq_accounted_ns);
        board.expect(IrqAccounted, total == ledger, s.mark.at_ns, || {
            format!("cpu_irqtime.total is {total} ns, the ledger has {ledger} ns of IRQ time")
        });
        if s.call == Call::UpdateRqClock {
            self.update(s, board);
        }
    }

    /// One `update_rq_clock()`. In 128 bits, so that no counter of a hostile guest can wrap here.
    #[inline]
    fn update(&mut self, s: &Step<'_>, board: &mut Board) {
        let (at, b, a) = (s.mark.at_ns, s.before, s.after);
        if b.clock_update_flags & RQCF_ACT_SKIP != 0 {
            return self.skipped(s, board);
        }
        let d_clock = diff(a.clock_ns, b.clock_ns);
        let d_task = diff(a.clock_task_ns, b.clock_task_ns);
        let irq = diff(a.prev_irq_time_ns, b.prev_irq_time_ns);
        let steal = diff(a.prev_steal_time_rq_ns, b.prev_steal_time_rq_ns);
        let steal_taken = steal.min(d_clock - irq);

        board.expect(ClockMatchesHost, a.clock_ns == at, at, || {
            format!("rq->clock is {} ns, the host's clock {at} ns", a.clock_ns)
        });
        board.expect(Conservation, d_clock == d_task + irq + steal_taken, at, || {
            format!(
                "clock advanced {d_clock} ns, but clock_task {d_task} + irq {irq} + steal \
                 {steal_taken} is {} ns",
                d_task + irq + steal_taken
            )
        });
        board.expect(ClockTaskMonotonic, d_task >= 0, at, || {
            format!("clock_task went back by {} ns to {} ns", -d_task, a.clock_task_ns)
        });
        let ahead = diff(a.clock_task_ns, a.clock_ns);
        board.expect(ClockTaskNotAhead, ahead <= 0, at, || {
            let why = if steal < 0 {
                format!("since the last update the steal counter fell by {} ns net and ", -steal)
            } else {
                String::new()
            };
            format!("{why}clock_task is ahead of clock by {ahead} ns")
        });
        self.as_it_ought_to_be(s, d_clock, d_task, board);
        let taken = d_clock - d_task;
        let rise = i128::from(a.avg_irq.util_avg) - i128::from(b.avg_irq.util_avg);
        let most = UNAVERAGED_UTIL + taken.max(0) / PELT_MIN_DIVIDER;
        board.expect(AvgIrq, rise <= most, at, || {
            format!(
                "avg_irq.util_avg rose by {rise} to {}, but {taken} ns of IRQ and steal time add at \
                 most {most}",
                a.avg_irq.util_avg
            )
        });
        let d_pelt = diff(a.clock_pelt_ns, b.clock_pelt_ns);
        let idle = b.curr_pid == 0;
        let pelt_ok = if idle { a.clock_pelt_ns == a.clock_task_ns } else { d_pelt == d_task };
        board.expect(ClockPelt, pelt_ok, at, || {
            format!(
                "clock_pelt advanced {d_pelt} ns to {} ns and clock_task {d_task} ns to {} ns{}",
                a.clock_pelt_ns,
                a.clock_task_ns,
                if idle { " while idle" } else { "" }
            )
        });
        let unread = diff(b.irqtime_total_ns, b.prev_irq_time_ns);
        let fits = unread.min(d_clock);
        board.expect(IrqCarried, irq == fits, at, || {
            format!(
                "{unread} ns of IRQ time unread and {d_clock} ns of clock: {fits} ns fit, but \
                 prev_irq_time moved {irq} ns"
            )
        });
        board.expect(StealAccounted, a.prev_steal_time_rq_ns == s.mark.steal_ns, at, || {
            format!(
                "prev_steal_time_rq is {} ns, the steal counter {} ns",
                a.prev_steal_time_rq_ns as i64, s.mark.steal_ns as i64
            )
        });

        let acc = &mut self.accounted;
        acc.updates += 1;
        acc.steal_ns = acc.steal_ns.wrapping_add(steal_taken as i64);
        let dropped = steal - steal_taken;
        acc.steal_dropped_ns = acc.steal_dropped_ns.wrapping_add(dropped as i64);
        acc.steal_dropped_count += u64::from(dropped > 0);
        acc.irq_carried_count += u64::from(unread > fits);
        acc.clock_task_ahead_max_ns = acc.clock_task_ahead_max_ns.max(ahead.max(0) as u64);
        acc.avg_irq_util_max = acc.avg_irq_util_max.max(a.avg_irq.util_avg);
        if d_task != 0 {
            self.stopped_since_ns = a.clock_ns;
        } else {
            let stopped = a.clock_ns.saturating_sub(self.stopped_since_ns);
            acc.clock_task_stopped_max_ns = acc.clock_task_stopped_max_ns.max(stopped);
        }
    }

    /// What an update took from `clock_task`, against what passed. Linux is not always right here, and
    /// these checks run only where they are asked for; the figures are kept in every run.
    #[inline]
    fn as_it_ought_to_be(&mut self, s: &Step<'_>, d_clock: i128, d_task: i128, board: &mut Board) {
        let (b, a, mark) = (s.before, s.after, &s.mark);
        let (at, last) = (mark.at_ns, self.last);
        // As steal was taken what is missing from clock_task and is not IRQ time.
        let taken = d_clock - d_task - diff(a.prev_irq_time_ns, b.prev_irq_time_ns);
        let counted = diff(mark.steal_ns, last.steal_ns);
        let in_irq = diff(mark.steal_in_irq_ns, last.steal_in_irq_ns);
        let due = counted - in_irq;
        let twice = (taken - due.max(0)).clamp(0, in_irq.max(0));
        board.expect(StealInIrqOnce, taken <= due.max(0), at, || {
            format!(
                "the steal counter moved by {counted} ns, {in_irq} ns of it inside interrupts, but \
                 {taken} ns were taken as steal"
            )
        });
        board.expect(StealNotDropped, taken >= due, at, || {
            format!(
                "the steal counter moved by {counted} ns, {in_irq} ns of it inside interrupts, but \
                 only {taken} ns were taken as steal"
            )
        });
        let left = diff(mark.irq_ns, a.prev_irq_time_ns);
        board.expect(IrqTakenAtOnce, left == 0, at, || {
            format!("of {} ns of IRQ time {left} ns are not taken from clock_task", mark.irq_ns)
        });
        let idle = b.curr_pid == 0;
        let halted = diff(mark.idle_ns, last.idle_ns);
        if idle {
            board.expect(IdleKeepsItsTime, d_task == halted, at, || {
                format!("the CPU was halted for {halted} ns, clock_task gained {d_task} ns")
            });
        }

        // Before guest time 0 a Linux guest's clocks are below 0.
        let run = |clock_task_ns: u64| (clock_task_ns as i64).max(0);
        let gained = run(a.clock_task_ns).wrapping_sub(run(b.clock_task_ns));
        let acc = &mut self.accounted;
        let sum = if idle { &mut acc.clock_task_idle_ns } else { &mut acc.clock_task_busy_ns };
        *sum = sum.wrapping_add(gained);
        let pid = b.curr_pid as usize;
        if pid < MAX_TASKS {
            if pid >= self.gained_ns.len() {
                self.gained_ns.resize(pid + 1, 0);
            }
            self.gained_ns[pid] = self.gained_ns[pid].wrapping_add(gained);
        }
        acc.steal_in_irq_taken_ns = acc.steal_in_irq_taken_ns.saturating_add(twice as u64);
        // What is oldest is taken first, so what passed last is left.
        let late = left.min(diff(mark.irq_ns, last.irq_ns)).max(0);
        acc.irq_late_ns = acc.irq_late_ns.saturating_add(late as u64);
        acc.irq_late_max_ns = acc.irq_late_max_ns.max(left.max(0) as u64);
        (self.last, self.clock_ns) = (*mark, Some(a.clock_ns));
    }

    /// `update_irq_load_avg()` is entered, inside an update or to decay only.
    #[inline]
    pub(super) fn irq_load_avg(&mut self, at_ns: u64, running_ns: u64, board: &mut Board) {
        let signed = running_ns as i64;
        self.accounted.irq_load_avg_wrapped_count += u64::from(signed < 0);
        let Some(clock_ns) = self.clock_ns else { return };
        let passed = diff(at_ns, clock_ns);
        board.expect(AvgIrq, i128::from(running_ns) <= passed.max(0), at_ns, || {
            let wrapped = if signed < 0 { format!(", {signed} ns wrapped") } else { String::new() };
            format!(
                "update_irq_load_avg() is told of {running_ns} ns{wrapped}, but {passed} ns passed \
                 since the last update"
            )
        });
    }

    /// One that returns at once: nothing may have moved.
    #[cold]
    fn skipped(&mut self, s: &Step<'_>, board: &mut Board) {
        let (at, b, a) = (s.mark.at_ns, s.before, s.after);
        let acc = &mut self.accounted;
        acc.updates_skipped += 1;
        let behind = at.saturating_sub(b.clock_ns);
        acc.skipped_behind_max_ns = acc.skipped_behind_max_ns.max(behind);
        let clocks = |rq: &RqView| {
            let taken = (rq.prev_irq_time_ns, rq.prev_steal_time_rq_ns);
            (rq.clock_ns, rq.clock_task_ns, rq.clock_pelt_ns, taken)
        };
        board.expect(ClockMatchesHost, clocks(a) == clocks(b), at, || {
            format!(
                "an update that was to be skipped moved clock {} ns",
                diff(a.clock_ns, b.clock_ns)
            )
        });
    }

    pub(super) fn finish(&mut self, end: &Final<'_>, board: &mut Board) {
        if end.groups.is_none() {
            return;
        }
        let (total, ledger) = (end.rq.irqtime_total_ns, self.irq_accounted_ns);
        board.expect(IrqAccounted, total == ledger, end.at_ns, || {
            format!("cpu_irqtime.total is {total} ns, the ledger has {ledger} ns of IRQ time")
        });
    }
}

/// `a - b` of two 64-bit counters that wrap, as the signed 64-bit step between them.
#[inline]
fn diff(a: u64, b: u64) -> i128 {
    i128::from(a.wrapping_sub(b) as i64)
}

#[cfg(test)]
mod tests;
