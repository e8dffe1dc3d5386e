//! The run queue's clocks against the host's clock and ledger.

use super::CheckId::*;
use super::{Board, Final};
use crate::observe::Step;
use crate::view::{Call, RQCF_ACT_SKIP, RqView};

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
}

#[derive(Debug, Default)]
pub(super) struct ClockChecks {
    pub(super) accounted: Accounted,
    /// The ledger's IRQ time when the guest last accounted it, ns.
    irq_accounted_ns: u64,
    /// `clock` since when `clock_task` has stood still, ns.
    stopped_since_ns: u64,
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
        if d_task != 0 {
            self.stopped_since_ns = a.clock_ns;
        } else {
            let stopped = a.clock_ns.saturating_sub(self.stopped_since_ns);
            acc.clock_task_stopped_max_ns = acc.clock_task_stopped_max_ns.max(stopped);
        }
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
