//! What a group's cfs_rq publishes to its task group: `update_tg_load_avg()` and
//! `clear_tg_load_avg()` (kernel/sched/fair.c).
//!
//! Linux up to 7.2 publishes `load_avg` only; 7.3 publishes `runnable_avg` beside it
//! (`tg->runnable_avg`, `tg_runnable_avg_contrib`), and a change of either beyond 1/64 publishes both.

use crate::hardware::{Hardware, Probe};
use crate::kernel::Kernel;
use crate::policy::{Fault, RateLimitClock};

/// Distance at which a publish is allowed again (`NSEC_PER_MSEC`), ns.
pub const TG_LOAD_AVG_PERIOD_NS: u64 = 1_000_000;

impl Kernel {
    /// The rate limit's own clock, by policy (and by planted fault). Reads the hardware clock only
    /// for `sched_clock_cpu`.
    fn rate_limit_now<H: Hardware>(&mut self, hw: &mut H) -> u64 {
        use RateLimitClock::*;
        let clock = match (self.policy.rate_limit_clock, self.planted(Fault::RateLimitWrongClock)) {
            (clock, false) => clock,
            (RqClockTask, true) => RqClock,
            (_, true) => RqClockTask,
        };
        match clock {
            SchedClockCpu => {
                self.costs.clock_reads_update_tg_load_avg += 1;
                hw.sched_clock_cpu()
            }
            RqClock => self.rq.clock,
            RqClockTask => self.rq.clock_task,
        }
    }

    /// Publishes the group's load to `tg->load_avg`, at most once per millisecond of the policy's
    /// clock, and only if it moved by more than 1/64 of what is published.
    pub fn update_tg_load_avg<H: Hardware>(&mut self, hw: &mut H, cfs: usize) {
        if cfs == 0 || self.planted(Fault::PublishNever) {
            return;
        }
        hw.probe(self, Probe::UpdateTgLoadAvg { group: cfs as u16 });
        self.costs.update_tg_load_avg_calls += 1;
        if !self.cpu_active {
            return;
        }
        let now = self.rate_limit_now(hw);
        let fault = self.policy.fault;
        let period = match fault {
            Fault::RateLimitHalf => TG_LOAD_AVG_PERIOD_NS / 2,
            Fault::RateLimitEdge => TG_LOAD_AVG_PERIOD_NS + 1,
            _ => TG_LOAD_AVG_PERIOD_NS,
        };
        let q = &mut self.cfs_rqs[cfs];
        if now.wrapping_sub(q.last_update_tg_load_avg) < period {
            self.costs.update_tg_load_avg_rate_limited += 1;
            return;
        }
        let delta = q.avg.load_avg.wrapping_sub(q.tg_load_avg_contrib) as i64;
        let runnable = q.avg.runnable_avg.wrapping_sub(q.tg_runnable_avg_contrib) as i64;
        let beyond = delta.unsigned_abs() > q.tg_load_avg_contrib / 64
            || self.publishes_runnable && runnable.unsigned_abs() > q.tg_runnable_avg_contrib / 64;
        if !beyond && fault != Fault::PublishWithoutTolerance || fault == Fault::PublishMissed {
            self.costs.update_tg_load_avg_below_tolerance += 1;
            return;
        }
        q.tg_load_avg_contrib = q.avg.load_avg;
        q.last_update_tg_load_avg = now;
        self.costs.tg_load_avg_atomic_adds += 1;
        if fault != Fault::PublishLost {
            let tg = &mut self.task_groups[cfs];
            tg.load_avg = tg.load_avg.wrapping_add(delta as u64);
            if self.publishes_runnable {
                tg.runnable_avg = tg.runnable_avg.wrapping_add(runnable as u64);
            }
        }
        if self.publishes_runnable {
            q.tg_runnable_avg_contrib = q.avg.runnable_avg;
        }
    }

    /// Takes the group's contribution out of `tg->load_avg`, as when its CPU goes offline.
    pub fn clear_tg_load_avg<H: Hardware>(&mut self, hw: &mut H, cfs: usize) {
        if cfs == 0 {
            return;
        }
        hw.probe(self, Probe::ClearTgLoadAvg { group: cfs as u16 });
        let now = self.rate_limit_now(hw);
        if self.planted(Fault::OfflineNotCleared) {
            return;
        }
        let q = &mut self.cfs_rqs[cfs];
        let tg = &mut self.task_groups[cfs];
        tg.load_avg = tg.load_avg.wrapping_sub(q.tg_load_avg_contrib);
        q.tg_load_avg_contrib = 0;
        if self.publishes_runnable {
            tg.runnable_avg = tg.runnable_avg.wrapping_sub(q.tg_runnable_avg_contrib);
            q.tg_runnable_avg_contrib = 0;
        }
        q.last_update_tg_load_avg = now;
        self.costs.tg_load_avg_atomic_adds += 1;
    }

    /// The CPU goes offline: `clear_tg_offline_cfs_rqs()`. Its tasks stay, as no other CPU could take
    /// them.
    pub fn set_rq_offline<H: Hardware>(&mut self, hw: &mut H) {
        if self.planted(Fault::OfflineIgnored) {
            return;
        }
        self.update_rq_clock(hw);
        self.cpu_active = false;
        for cfs in 1..self.nr_groups as usize {
            self.clear_tg_load_avg(hw, cfs);
        }
    }
}

#[cfg(test)]
mod tests;
