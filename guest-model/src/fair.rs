//! The fair class: entities, cfs_rqs and task groups (kernel/sched/fair.c).
//!
//! Load tracking and the publication of `tg->load_avg` follow the kernel's arithmetic. Picking is
//! simpler than EEVDF: at each level the queued entity with the least vruntime runs.

use crate::hardware::{Hardware, Probe};
use crate::kernel::{Kernel, TaskState};
use crate::list::ListHead;
use crate::pelt::{PELT_MIN_DIVIDER, SchedAvg};
use crate::policy::{Fault, RateLimitClock};
use crate::wire::{IDLE_PID, MAX_GROUPS, NONE};

/// `NICE_0_LOAD` before scaling.
const NICE_0_LOAD: u64 = 1024;
/// `MIN_SHARES`.
const MIN_SHARES: u64 = 2;
/// Distance at which a publish is allowed again (`NSEC_PER_MSEC`), ns.
pub const TG_LOAD_AVG_PERIOD_NS: u64 = 1_000_000;
/// Base slice of a task, ns: past it, the tick lets another entity run.
const SLICE_NS: u64 = 2_800_000;

/// `scale_load()`.
pub const fn scale_load(weight: u64) -> u64 {
    weight << 10
}

/// `scale_load_down()`: at least 2 for a weight that is not 0.
pub const fn scale_load_down(weight: u64) -> u64 {
    if weight == 0 {
        0
    } else if weight >> 10 < 2 {
        2
    } else {
        weight >> 10
    }
}

/// `struct task_group`.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct TaskGroup {
    /// Sum of the published contributions (`atomic_long_t`).
    pub load_avg: u64,
    /// `cpu.weight` as shares, scaled.
    pub shares: u64,
    /// The parent's `task_group`, a guest virtual address; 0 for the root.
    pub parent: u64,
    /// The group's `cfs_rq` on CPU 0, a guest virtual address.
    pub cfs_rq: u64,
    /// The parent's index.
    pub parent_index: u16,
}

/// `struct cfs_rq`.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct CfsRq {
    /// Sum of the queued entities' weights, scaled.
    pub load_weight: u64,
    /// Entities queued here.
    pub nr_queued: u32,
    /// Runnable tasks here and below.
    pub h_nr_runnable: u32,
    /// The least vruntime of the past, ns.
    pub min_vruntime: u64,
    /// Load tracking.
    pub avg: SchedAvg,
    /// Part of `avg.load_avg` last published to `tg->load_avg`.
    pub tg_load_avg_contrib: u64,
    /// The rate-limit clock at the last publish, ns.
    pub last_update_tg_load_avg: u64,
    /// Runnable time that attached or detached below and must move up.
    pub prop_runnable_sum: i64,
    /// The group, a guest virtual address.
    pub tg: u64,
    /// Place in `rq->leaf_cfs_rq_list`.
    pub leaf_cfs_rq_list: ListHead,
    /// `prop_runnable_sum` is to be moved up.
    pub propagate: u32,
    /// On `rq->leaf_cfs_rq_list`.
    pub on_list: u32,
    /// The entity running here, or [`NONE`].
    pub curr: u16,
    /// First of the entities queued here, or [`NONE`].
    pub first: u16,
}

/// `struct sched_entity`: a task's, or a group's on its parent's cfs_rq.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct SchedEntity {
    /// Weight, scaled.
    pub load_weight: u64,
    /// Weighted execution time, ns.
    pub vruntime: u64,
    /// `clock_task` when execution time was last added, ns.
    pub exec_start: u64,
    /// Execution time in `clock_task`, ns.
    pub sum_exec_runtime: u64,
    /// `sum_exec_runtime` when last picked, ns.
    pub prev_sum_exec_runtime: u64,
    /// Load tracking.
    pub avg: SchedAvg,
    /// A group's runnable tasks as last seen by its entity.
    pub runnable_weight: u32,
    /// Queued.
    pub on_rq: bool,
    /// Part of its cfs_rq's averages.
    pub attached: bool,
    /// Index of the cfs_rq that it is queued on; [`NONE`] for the root group's.
    pub cfs_rq: u16,
    /// Index of the cfs_rq that it stands for, or [`NONE`] for a task.
    pub my_q: u16,
    /// Next entity queued on the same cfs_rq, or [`NONE`].
    pub next: u16,
    /// Previous entity queued on the same cfs_rq, or [`NONE`].
    pub prev: u16,
}

/// Update `tg->load_avg` if the averages changed.
const UPDATE_TG: u32 = 1;
/// Attach the entity if it is not attached.
const DO_ATTACH: u32 = 4;
/// Detach the entity.
const DO_DETACH: u32 = 8;

/// Index of a task's entity in [`Kernel::ses`]; a group's has the group's index.
#[inline]
pub fn task_se(pid: u16) -> usize {
    MAX_GROUPS + pid as usize
}

/// `add_positive()`: adds a signed amount and stops at 0.
fn add_positive(value: u64, delta: i64) -> u64 {
    let sum = value.wrapping_add(delta as u64);
    if delta < 0 && sum > value { 0 } else { sum }
}

impl SchedAvg {
    /// `__update_sa(sa, load, ...)`.
    fn update_sa_load(&mut self, delta_avg: i64, delta_sum: i64) {
        self.load_avg = add_positive(self.load_avg, delta_avg);
        self.load_sum = add_positive(self.load_sum, delta_sum);
        self.load_sum = self.load_sum.max(self.load_avg.wrapping_mul(PELT_MIN_DIVIDER.into()));
    }

    /// `__update_sa(sa, runnable, ...)`.
    fn update_sa_runnable(&mut self, delta_avg: i64, delta_sum: i64) {
        self.runnable_avg = add_positive(self.runnable_avg, delta_avg);
        self.runnable_sum = add_positive(self.runnable_sum, delta_sum);
        let least = self.runnable_avg.wrapping_mul(PELT_MIN_DIVIDER.into());
        self.runnable_sum = self.runnable_sum.max(least);
    }

    /// `__update_sa(sa, util, ...)`.
    fn update_sa_util(&mut self, delta_avg: i64, delta_sum: i64) {
        self.util_avg = add_positive(self.util_avg, delta_avg);
        let sum = add_positive(self.util_sum.into(), delta_sum) as u32;
        self.util_sum = sum.max((self.util_avg as u32).wrapping_mul(PELT_MIN_DIVIDER));
    }
}

impl SchedEntity {
    /// `se_weight()`.
    fn weight(&self) -> u64 {
        scale_load_down(self.load_weight)
    }
}

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
    ///
    /// As in 6.12 and 7.2, load only; 7.3 publishes `runnable_avg` beside it.
    pub fn update_tg_load_avg<H: Hardware>(&mut self, hw: &mut H, cfs: usize) {
        if cfs == 0 {
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
            _ => TG_LOAD_AVG_PERIOD_NS,
        };
        let q = &mut self.cfs_rqs[cfs];
        if now.wrapping_sub(q.last_update_tg_load_avg) < period {
            self.costs.update_tg_load_avg_rate_limited += 1;
            return;
        }
        let delta = q.avg.load_avg.wrapping_sub(q.tg_load_avg_contrib) as i64;
        let beyond = delta.unsigned_abs() > q.tg_load_avg_contrib / 64;
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
        q.last_update_tg_load_avg = now;
        self.costs.tg_load_avg_atomic_adds += 1;
    }

    /// The CPU goes offline: `clear_tg_offline_cfs_rqs()`.
    pub fn set_rq_offline<H: Hardware>(&mut self, hw: &mut H) {
        self.update_rq_clock(hw);
        self.cpu_active = false;
        for cfs in 1..self.nr_groups as usize {
            self.clear_tg_load_avg(hw, cfs);
        }
    }

    /// `add_tg_cfs_propagate()`.
    fn add_tg_cfs_propagate(&mut self, cfs: usize, runnable_sum: i64) {
        let q = &mut self.cfs_rqs[cfs];
        q.propagate = 1;
        q.prop_runnable_sum = q.prop_runnable_sum.wrapping_add(runnable_sum);
    }

    /// `attach_entity_load_avg()`.
    fn attach_entity_load_avg(&mut self, cfs: usize, se: usize) {
        let q = &mut self.cfs_rqs[cfs];
        let e = &mut self.ses[se];
        let divider = u64::from(q.avg.divider());
        e.attached = true;
        e.avg.last_update_time = q.avg.last_update_time;
        e.avg.period_contrib = q.avg.period_contrib;
        e.avg.util_sum = e.avg.util_avg.wrapping_mul(divider) as u32;
        e.avg.runnable_sum = e.avg.runnable_avg.wrapping_mul(divider);
        let weight = e.weight();
        e.avg.load_sum = e.avg.load_avg.wrapping_mul(divider);
        e.avg.load_sum = if weight < e.avg.load_sum { e.avg.load_sum / weight } else { 1 };

        let load_sum = weight.wrapping_mul(e.avg.load_sum) as i64;
        q.avg.update_sa_load(e.avg.load_avg as i64, load_sum);
        q.avg.util_avg = q.avg.util_avg.wrapping_add(e.avg.util_avg);
        q.avg.util_sum = q.avg.util_sum.wrapping_add(e.avg.util_sum);
        q.avg.runnable_avg = q.avg.runnable_avg.wrapping_add(e.avg.runnable_avg);
        q.avg.runnable_sum = q.avg.runnable_sum.wrapping_add(e.avg.runnable_sum);
        let sum = e.avg.load_sum as i64;
        self.add_tg_cfs_propagate(cfs, sum);
    }

    /// `detach_entity_load_avg()`.
    fn detach_entity_load_avg(&mut self, cfs: usize, se: usize) {
        let q = &mut self.cfs_rqs[cfs];
        let e = &mut self.ses[se];
        e.attached = false;
        let load_sum = e.weight().wrapping_mul(e.avg.load_sum) as i64;
        q.avg.update_sa_load(-(e.avg.load_avg as i64), -load_sum);
        q.avg.update_sa_util(-(e.avg.util_avg as i64), -i64::from(e.avg.util_sum));
        q.avg.update_sa_runnable(-(e.avg.runnable_avg as i64), -(e.avg.runnable_sum as i64));
        let sum = e.avg.load_sum as i64;
        self.add_tg_cfs_propagate(cfs, -sum);
    }

    /// `propagate_entity_load_avg()`: what attached or detached in a group moves to the group's
    /// entity and its cfs_rq.
    fn propagate_entity_load_avg(&mut self, cfs: usize, se: usize) -> bool {
        let my_q = self.ses[se].my_q;
        if my_q == NONE || self.cfs_rqs[my_q as usize].propagate == 0 {
            return false;
        }
        let gq = &mut self.cfs_rqs[my_q as usize];
        gq.propagate = 0;
        let gavg = gq.avg.clone();
        let gweight = scale_load_down(gq.load_weight);
        let prop = core::mem::take(&mut gq.prop_runnable_sum);
        self.add_tg_cfs_propagate(cfs, prop);

        let q = &mut self.cfs_rqs[cfs];
        let e = &mut self.ses[se];
        let divider = u64::from(q.avg.divider());

        let delta_util = gavg.util_avg.wrapping_sub(e.avg.util_avg) as i64;
        if delta_util != 0 {
            let new_sum = gavg.util_avg.wrapping_mul(divider) as u32;
            let delta_sum = i64::from(new_sum) - i64::from(e.avg.util_sum);
            e.avg.util_avg = gavg.util_avg;
            e.avg.util_sum = new_sum;
            q.avg.update_sa_util(delta_util, delta_sum);
        }
        let delta_runnable = gavg.runnable_avg.wrapping_sub(e.avg.runnable_avg) as i64;
        if delta_runnable != 0 {
            let new_sum = gavg.runnable_avg.wrapping_mul(divider);
            let delta_sum = new_sum.wrapping_sub(e.avg.runnable_sum) as i64;
            e.avg.runnable_avg = gavg.runnable_avg;
            e.avg.runnable_sum = new_sum;
            q.avg.update_sa_runnable(delta_runnable, delta_sum);
        }
        if prop != 0 {
            let runnable_sum = if prop >= 0 {
                prop.wrapping_add(e.avg.load_sum as i64).min(divider as i64)
            } else {
                let estimate = gavg.load_sum.checked_div(gweight).unwrap_or(0);
                e.avg.load_sum.min(estimate) as i64
            };
            let running_sum = i64::from(e.avg.util_sum >> 10);
            let runnable_sum = runnable_sum.max(running_sum) as u64;
            let weight = e.weight();
            let load_sum = weight.wrapping_mul(runnable_sum);
            let load_avg = load_sum / divider;
            let delta_avg = load_avg.wrapping_sub(e.avg.load_avg) as i64;
            if delta_avg != 0 {
                let old_sum = weight.wrapping_mul(e.avg.load_sum);
                e.avg.load_sum = runnable_sum;
                e.avg.load_avg = load_avg;
                q.avg.update_sa_load(delta_avg, load_sum.wrapping_sub(old_sum) as i64);
            }
        }
        true
    }

    /// `__update_load_avg_se()`.
    fn update_load_avg_se(&mut self, now: u64, cfs: usize, se: usize) {
        let running = self.cfs_rqs[cfs].curr as usize == se;
        let my_q = self.ses[se].my_q;
        let e = &mut self.ses[se];
        let runnable = match my_q {
            NONE => u64::from(e.on_rq),
            _ => u64::from(e.runnable_weight),
        };
        if e.avg.update_load_sum(now, u64::from(e.on_rq), runnable, running) {
            let weight = e.weight();
            e.avg.update_load_avg(weight);
        }
    }

    /// `se_update_runnable()`.
    fn se_update_runnable(&mut self, se: usize) {
        let my_q = self.ses[se].my_q;
        if my_q != NONE {
            self.ses[se].runnable_weight = self.cfs_rqs[my_q as usize].h_nr_runnable;
        }
    }

    /// `update_load_avg()`: brings an entity and its cfs_rq up to now.
    fn update_load_avg<H: Hardware>(&mut self, hw: &mut H, cfs: usize, se: usize, flags: u32) {
        let now = self.rq_clock_pelt();
        if self.ses[se].attached {
            self.update_load_avg_se(now, cfs, se);
        }
        let mut decayed = self.update_load_avg_cfs_rq(now, cfs);
        decayed |= self.propagate_entity_load_avg(cfs, se);

        if !self.ses[se].attached && flags & DO_ATTACH != 0 {
            self.attach_entity_load_avg(cfs, se);
            self.update_tg_load_avg(hw, cfs);
        } else if flags & DO_DETACH != 0 {
            self.detach_entity_load_avg(cfs, se);
            self.update_tg_load_avg(hw, cfs);
        } else if decayed && flags & UPDATE_TG != 0 {
            self.update_tg_load_avg(hw, cfs);
        }
    }

    /// `update_blocked_averages()`: decays every leaf cfs_rq, children first. `rq->clock` is current.
    pub fn update_blocked_averages<H: Hardware>(&mut self, hw: &mut H) {
        self.update_irq_load_avg(0);
        let now = self.rq_clock_pelt();
        let mut next = self.leaf_first();
        while let Some(cfs) = next {
            next = self.leaf_next(cfs);
            if self.update_load_avg_cfs_rq(now, cfs) {
                self.update_tg_load_avg(hw, cfs);
            }
            let e = &self.ses[cfs];
            let parent = e.cfs_rq;
            let nothing =
                e.avg.load_avg == 0 && e.avg.util_avg == 0 && self.cfs_rqs[cfs].propagate == 0;
            if parent != NONE && !nothing {
                self.update_load_avg(hw, parent as usize, cfs, UPDATE_TG);
            }
            let q = &self.cfs_rqs[cfs];
            if q.load_weight == 0
                && q.avg.is_decayed()
                && q.tg_load_avg_contrib == 0
                && !self.has_child_on_list(cfs)
            {
                self.list_del_leaf_cfs_rq(cfs);
            }
        }
    }

    /// `child_cfs_rq_on_list()`: a child, if listed, is right before its parent.
    fn has_child_on_list(&self, cfs: usize) -> bool {
        self.leaf_prev(cfs).is_some_and(|p| self.ses[p].cfs_rq as usize == cfs)
    }

    /// `update_curr()`: adds the `clock_task` time since the last call to the running entity.
    fn update_curr(&mut self, cfs: usize) {
        let curr = self.cfs_rqs[cfs].curr;
        if curr == NONE {
            return;
        }
        let now = self.rq.clock_task;
        let e = &mut self.ses[curr as usize];
        let delta = now.wrapping_sub(e.exec_start) as i64;
        if delta <= 0 {
            return;
        }
        e.exec_start = now;
        e.sum_exec_runtime = e.sum_exec_runtime.wrapping_add(delta as u64);
        let weighted = (delta as u64).wrapping_mul(NICE_0_LOAD) / e.weight().max(1);
        e.vruntime = e.vruntime.wrapping_add(weighted);
        let vruntime = e.vruntime;
        let q = &mut self.cfs_rqs[cfs];
        if (vruntime.wrapping_sub(q.min_vruntime) as i64) > 0 && q.nr_queued <= 1 {
            q.min_vruntime = vruntime;
        }
    }

    /// `update_cfs_group()`: a group entity's weight is its share of the group's load.
    fn update_cfs_group(&mut self, se: usize) {
        let my_q = self.ses[se].my_q;
        if my_q == NONE {
            return;
        }
        let q = &self.cfs_rqs[my_q as usize];
        if q.load_weight == 0 {
            return;
        }
        let tg = &self.task_groups[my_q as usize];
        let load = scale_load_down(q.load_weight).max(q.avg.load_avg);
        let tg_weight = tg.load_avg.wrapping_sub(q.tg_load_avg_contrib).wrapping_add(load);
        let product = tg.shares.wrapping_mul(load);
        let shares = product.checked_div(tg_weight).unwrap_or(product);
        let shares = shares.clamp(MIN_SHARES, tg.shares.max(MIN_SHARES));
        self.reweight_entity(se, shares);
    }

    /// `reweight_entity()`.
    fn reweight_entity(&mut self, se: usize, weight: u64) {
        let e = &mut self.ses[se];
        if e.load_weight == weight {
            return;
        }
        let q = &mut self.cfs_rqs[e.cfs_rq as usize];
        if e.on_rq {
            q.load_weight = q.load_weight.wrapping_sub(e.load_weight).wrapping_add(weight);
        }
        let old_sum = e.weight().wrapping_mul(e.avg.load_sum) as i64;
        q.avg.update_sa_load(-(e.avg.load_avg as i64), -old_sum);
        e.load_weight = weight;
        let w = e.weight();
        e.avg.load_avg = w.wrapping_mul(e.avg.load_sum) / u64::from(e.avg.divider());
        q.avg.update_sa_load(e.avg.load_avg as i64, w.wrapping_mul(e.avg.load_sum) as i64);
    }

    /// `enqueue_task_fair()`.
    pub fn enqueue_task_fair<H: Hardware>(&mut self, hw: &mut H, pid: u16) {
        let mut se = task_se(pid);
        loop {
            let cfs = self.ses[se].cfs_rq;
            if cfs == NONE {
                break;
            }
            let cfs = cfs as usize;
            self.update_curr(cfs);
            if self.ses[se].on_rq {
                self.update_load_avg(hw, cfs, se, UPDATE_TG);
                self.se_update_runnable(se);
                self.update_cfs_group(se);
            } else {
                self.update_load_avg(hw, cfs, se, UPDATE_TG | DO_ATTACH);
                self.se_update_runnable(se);
                self.update_cfs_group(se);
                self.queue(cfs, se);
            }
            self.cfs_rqs[cfs].h_nr_runnable += 1;
            se = cfs;
        }
        self.rq.nr_running += 1;
    }

    /// `dequeue_task_fair()`; with `exits` the task leaves the load averages too.
    pub fn dequeue_task_fair<H: Hardware>(&mut self, hw: &mut H, pid: u16, exits: bool) {
        let mut se = task_se(pid);
        let mut leaves = true;
        loop {
            let cfs = self.ses[se].cfs_rq;
            if cfs == NONE {
                break;
            }
            let cfs = cfs as usize;
            self.update_curr(cfs);
            let detach = exits && self.ses[se].my_q == NONE;
            let flags = if detach { UPDATE_TG | DO_DETACH } else { UPDATE_TG };
            self.update_load_avg(hw, cfs, se, flags);
            self.se_update_runnable(se);
            if leaves {
                self.unqueue(cfs, se);
            }
            self.update_cfs_group(se);
            self.cfs_rqs[cfs].h_nr_runnable -= 1;
            leaves = leaves && self.cfs_rqs[cfs].nr_queued == 0;
            se = cfs;
        }
        self.rq.nr_running -= 1;
    }

    /// The queueing half of `enqueue_entity()`.
    fn queue(&mut self, cfs: usize, se: usize) {
        let first = self.cfs_rqs[cfs].first;
        if first != NONE {
            self.ses[first as usize].prev = se as u16;
        }
        let q = &mut self.cfs_rqs[cfs];
        let e = &mut self.ses[se];
        e.on_rq = true;
        e.next = first;
        e.prev = NONE;
        if (e.vruntime.wrapping_sub(q.min_vruntime) as i64) < 0 {
            e.vruntime = q.min_vruntime;
        }
        q.first = se as u16;
        q.load_weight = q.load_weight.wrapping_add(e.load_weight);
        q.nr_queued += 1;
        if q.nr_queued == 1 {
            self.list_add_leaf_cfs_rq(cfs);
        }
    }

    /// The queueing half of `dequeue_entity()`.
    fn unqueue(&mut self, cfs: usize, se: usize) {
        let (next, prev) = (self.ses[se].next, self.ses[se].prev);
        match prev {
            NONE => self.cfs_rqs[cfs].first = next,
            p => self.ses[p as usize].next = next,
        }
        if next != NONE {
            self.ses[next as usize].prev = prev;
        }
        let q = &mut self.cfs_rqs[cfs];
        let e = &mut self.ses[se];
        e.on_rq = false;
        q.load_weight = q.load_weight.wrapping_sub(e.load_weight);
        q.nr_queued -= 1;
    }

    /// The queued entity of `cfs` with the least vruntime.
    fn pick_entity(&mut self, cfs: usize) -> u16 {
        let mut best = self.cfs_rqs[cfs].first;
        let mut next = best;
        while next != NONE {
            let e = &self.ses[next as usize];
            if (e.vruntime.wrapping_sub(self.ses[best as usize].vruntime) as i64) < 0 {
                best = next;
            }
            next = e.next;
        }
        if best != NONE {
            let vruntime = self.ses[best as usize].vruntime;
            let q = &mut self.cfs_rqs[cfs];
            if (vruntime.wrapping_sub(q.min_vruntime) as i64) > 0 {
                q.min_vruntime = vruntime;
            }
        }
        best
    }

    /// `pick_next_task_fair()`, without changing what runs: the task to run, or swapper.
    pub fn pick_task_fair(&mut self) -> u16 {
        let mut cfs = 0;
        loop {
            let se = self.pick_entity(cfs);
            if se == NONE {
                return IDLE_PID;
            }
            match self.ses[se as usize].my_q {
                NONE => return se - MAX_GROUPS as u16,
                q => cfs = q as usize,
            }
        }
    }

    /// `put_prev_task_fair()`.
    pub fn put_prev_task_fair<H: Hardware>(&mut self, hw: &mut H, pid: u16) {
        let mut se = task_se(pid);
        while self.ses[se].cfs_rq != NONE {
            let cfs = self.ses[se].cfs_rq as usize;
            if self.ses[se].on_rq {
                self.update_curr(cfs);
                self.update_load_avg(hw, cfs, se, 0);
            }
            self.cfs_rqs[cfs].curr = NONE;
            se = cfs;
        }
    }

    /// `set_next_task_fair()`.
    pub fn set_next_task_fair<H: Hardware>(&mut self, hw: &mut H, pid: u16) {
        let mut se = task_se(pid);
        while self.ses[se].cfs_rq != NONE {
            let cfs = self.ses[se].cfs_rq as usize;
            self.update_load_avg(hw, cfs, se, UPDATE_TG);
            let e = &mut self.ses[se];
            e.exec_start = self.rq.clock_task;
            e.prev_sum_exec_runtime = e.sum_exec_runtime;
            self.cfs_rqs[cfs].curr = se as u16;
            se = cfs;
        }
    }

    /// `task_tick_fair()`: updates the running hierarchy and ends a slice that is used up.
    pub fn task_tick_fair<H: Hardware>(&mut self, hw: &mut H, pid: u16) {
        let mut se = task_se(pid);
        while self.ses[se].cfs_rq != NONE {
            let cfs = self.ses[se].cfs_rq as usize;
            self.update_curr(cfs);
            self.update_load_avg(hw, cfs, se, UPDATE_TG);
            self.update_cfs_group(se);
            let e = &self.ses[se];
            let ran = e.sum_exec_runtime.wrapping_sub(e.prev_sum_exec_runtime);
            if self.cfs_rqs[cfs].nr_queued > 1 && ran >= SLICE_NS {
                self.need_resched = true;
            }
            se = cfs;
        }
    }

    /// `wakeup_preempt_fair()`: the woken task preempts if, where their branches meet, its vruntime
    /// is behind by more than the slice's half.
    pub fn wakeup_preempt(&mut self, pid: u16) {
        if self.curr == IDLE_PID {
            self.need_resched = true;
            return;
        }
        let mut se = task_se(pid);
        while self.ses[se].cfs_rq != NONE {
            let cfs = self.ses[se].cfs_rq as usize;
            let curr = self.cfs_rqs[cfs].curr;
            if curr != NONE {
                let ahead =
                    self.ses[curr as usize].vruntime.wrapping_sub(self.ses[se].vruntime) as i64;
                if ahead > (SLICE_NS / 2) as i64 {
                    self.need_resched = true;
                }
                return;
            }
            se = cfs;
        }
    }

    /// `init_entity_runnable_average()` and `post_init_entity_util_avg()`: a new task starts with
    /// its full weight as load and a share of the free utilisation.
    pub fn init_entity_averages(&mut self, pid: u16) {
        let se = task_se(pid);
        let q = &self.cfs_rqs[self.ses[se].cfs_rq as usize].avg;
        let (util, load) = (q.util_avg, q.load_avg);
        let e = &mut self.ses[se];
        let weight = e.weight();
        e.avg = SchedAvg { load_avg: weight, ..SchedAvg::default() };
        let cap = (1024 - util.min(1024)) / 2;
        if cap > 0 {
            let share = if util != 0 { util.wrapping_mul(weight) / (load + 1) } else { cap };
            e.avg.util_avg = share.min(cap);
        }
        e.avg.runnable_avg = e.avg.util_avg;
        e.attached = false;
    }

    /// The task is on the run queue.
    pub(crate) fn is_queued(&self, pid: u16) -> bool {
        self.tasks[pid as usize].state == TaskState::Running
    }
}
