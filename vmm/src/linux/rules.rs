//! Which of its variants a kernel follows, seen in what it does before its run.
//!
//! The rate limit's clock is the one whose values the stamps of publishes are; the zero-delta rule is
//! what the ticks of a task do while interrupts cost nothing.

use std::collections::BTreeSet;

use guest_model::policy::{Fault, Policy, PsiZeroDelta, RateLimitClock};

use super::probes::Probes;
use super::view::View;
use crate::introspect::linux::run_view::StampClock;
use crate::introspect::linux::symbols::LinuxSymbols;
use crate::introspect::{Function, ReadError};
use crate::view::{Call, GuestView, RqView};

/// Functions that `update_tg_load_avg()` may have been inlined into (kernel/sched/fair.c, 6.12 to 7.3):
/// a read of the scheduler clock from one of them is the rate limit's.
const LIMITERS: [&str; 8] = [
    "update_tg_load_avg",
    "update_load_avg",
    "attach_entity_cfs_rq",
    "detach_entity_cfs_rq",
    "propagate_entity_cfs_rq",
    "__update_blocked_fair",
    "sched_balance_update_blocked_averages",
    "update_blocked_averages",
];

/// Values of each clock that are remembered: a guest before its run has a few thousand.
const VALUES: usize = 1 << 16;

/// `offset` of `irqtime_account_irq()`, if it is a level of hardirq: which bit that is has moved from 16 to 24
/// in 7.3 (include/linux/preempt.h), and a level of softirq is below.
fn hardirq_offset(offset: u32) -> Option<u32> {
    (offset.is_power_of_two() && offset >= 1 << 16).then_some(offset)
}

/// What was seen so far.
#[derive(Debug, Default)]
pub struct Rules {
    clocks_ns: BTreeSet<u64>,
    clock_tasks_ns: BTreeSet<u64>,
    /// `psi_seq` at the entry of a call that reaches a delta of zero.
    zero_delta_seq: Option<u32>,
    zero_delta_writes: Option<bool>,
    hardirq_offset: Option<u32>,
}

impl Rules {
    /// A probe was hit: the run queue is as the calls before it have left it.
    pub fn look(&mut self, view: &View) -> Result<RqView, ReadError> {
        let rq = view.rq()?;
        for (values, value) in
            [(&mut self.clocks_ns, rq.clock_ns), (&mut self.clock_tasks_ns, rq.clock_task_ns)]
        {
            // The newest are those that stamps are of.
            values.insert(value);
            if values.len() > VALUES {
                values.pop_first();
            }
        }
        if let Some(seq) = self.zero_delta_seq.take() {
            self.zero_delta_writes = Some(rq.psi_seq != seq);
        }
        Ok(rq)
    }

    /// A function was called, of a guest all of whose groups are known.
    pub fn called(
        &mut self,
        view: &View,
        function: Function,
        args: [u64; 3],
    ) -> Result<(), ReadError> {
        let rq = self.look(view)?;
        if function == Function::PsiAccountIrqtime
            && let Call::PsiAccountIrqtime { curr, prev } = view.call(function, args)?
            && curr.pid != 0
            && prev.is_none_or(|prev| prev.group != curr.group)
            && rq.irqtime_total_ns == rq.psi_irq_time_ns
        {
            self.zero_delta_seq = Some(rq.psi_seq);
        }
        if function == Function::IrqtimeAccountIrq {
            self.hardirq_offset = self.hardirq_offset.max(hardirq_offset(args[1] as u32));
        }
        Ok(())
    }

    /// One level of hardirq in the preempt count, as `irq_enter()` adds it; `None` if no interrupt came.
    pub fn hardirq_offset(&self) -> Option<u32> {
        self.hardirq_offset
    }

    /// A zero delta was seen, and what the kernel does about it.
    pub fn knows_zero_delta(&self) -> bool {
        self.zero_delta_writes.is_some()
    }

    /// Which clock the groups' publishes were stamped with; `None` if none tells.
    pub fn stamp_clock(&self, view: &View, groups: u16) -> Result<Option<StampClock>, ReadError> {
        let (mut clock, mut task) = (0, 0);
        for group in 0..groups {
            let stamp_ns = view.cfs_rq(group)?.last_update_tg_load_avg_ns;
            if stamp_ns != 0 {
                clock += u32::from(self.clocks_ns.contains(&stamp_ns));
                task += u32::from(self.clock_tasks_ns.contains(&stamp_ns));
            }
        }
        Ok(match (clock, task) {
            (0, 0) => None,
            (clock, task) if task > clock => Some(StampClock::ClockTask),
            _ => Some(StampClock::Clock),
        })
    }

    /// The rules that the kernel follows, as far as could be seen.
    pub fn policy(&self, stamps: StampClock, probes: &Probes, symbols: &LinuxSymbols) -> Policy {
        let limiter = |at: u64| symbols.caller(at).is_some_and(|name| LIMITERS.contains(&name));
        let rate_limit_clock = match stamps {
            StampClock::ClockTask => RateLimitClock::RqClockTask,
            StampClock::Clock if probes.clock_readers().iter().any(|(at, _)| limiter(*at)) => {
                RateLimitClock::SchedClockCpu
            }
            StampClock::Clock => RateLimitClock::RqClock,
        };
        let psi_zero_delta = match self.zero_delta_writes {
            Some(true) => PsiZeroDelta::Account,
            _ => PsiZeroDelta::Skip,
        };
        Policy { rate_limit_clock, psi_zero_delta, fault: Fault::None }
    }
}
