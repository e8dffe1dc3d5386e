//! The fair class's load tracking: what entities add to their cfs_rqs' averages and to their
//! ancestors' (kernel/sched/fair.c).
//!
//! Whether an entity is attached is a flag here; the kernel takes `last_update_time == 0` for "not
//! attached". A group's entity is attached from the start with nothing to add, as one is whose group
//! was made long ago (`online_fair_sched_group()`). Nothing migrates, so there is no `removed` load:
//! a task that exits is detached at its last dequeue, as a migrating one is.

use crate::fair::{CfsRq, SchedEntity, scale_load_down, task_se};
use crate::hardware::Hardware;
use crate::kernel::Kernel;
use crate::pelt::{PELT_MIN_DIVIDER, SCHED_CAPACITY_SHIFT, SchedAvg};
use crate::wire::NONE;

/// `MIN_SHARES`.
const MIN_SHARES: u64 = 2;

/// Update `tg->load_avg` if the averages changed.
pub(crate) const UPDATE_TG: u32 = 1;
/// Attach the entity if it is not attached.
pub(crate) const DO_ATTACH: u32 = 4;
/// Detach the entity.
pub(crate) const DO_DETACH: u32 = 8;

/// `add_positive()` of an unsigned long: adds a signed amount and stops at 0.
fn add_positive(value: u64, delta: i64) -> u64 {
    let sum = value.wrapping_add(delta as u64);
    if delta < 0 && sum > value { 0 } else { sum }
}

/// `add_positive()` of a u32: the amount is cut to 32 bits first.
fn add_positive_u32(value: u32, delta: i64) -> u32 {
    let sum = value.wrapping_add(delta as u32);
    if (delta as i32) < 0 && sum > value { 0 } else { sum }
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
        let sum = add_positive_u32(self.util_sum, delta_sum);
        self.util_sum = sum.max((self.util_avg as u32).wrapping_mul(PELT_MIN_DIVIDER));
    }
}

/// How `enqueue_load_avg()` adds an entity's load to its cfs_rq's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddLoad {
    /// As the numbers are (to Linux 6.12 at least).
    Plain,
    /// And the sum is raised to the least that its average allows (`__update_sa()`, Linux 7.2).
    Clamped,
}

/// `cfs_rq->removed`: what tasks that left the CPU asleep have taken with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Tasks.
    pub nr: u32,
    /// Their load.
    pub load_avg: u64,
    /// Their utilisation.
    pub util_avg: u64,
    /// Their runnable average.
    pub runnable_avg: u64,
}

impl SchedEntity {
    /// `se_weight()`.
    pub(crate) fn weight(&self) -> u64 {
        scale_load_down(self.load_weight)
    }

    /// `__update_load_avg_se()`.
    #[inline]
    fn update_load_avg_se(&mut self, now: u64, running: bool) {
        let runnable = match self.my_q {
            NONE => u64::from(self.on_rq),
            _ => u64::from(self.runnable_weight),
        };
        if self.avg.update_load_sum(now, u64::from(self.on_rq), runnable, running) {
            let weight = self.weight();
            self.avg.update_load_avg(weight);
        }
    }
}

impl CfsRq {
    /// `__update_load_avg_cfs_rq()`: true if the averages changed.
    #[inline]
    pub fn update_load_avg_cfs_rq(&mut self, now: u64) -> bool {
        let load = scale_load_down(self.load_weight);
        let running = self.curr != NONE;
        let due = self.avg.update_load_sum(now, load, u64::from(self.h_nr_runnable), running);
        if due {
            self.avg.update_load_avg(1);
        }
        due
    }

    /// The first half of `update_cfs_rq_load_avg()`: takes out what `removed` has. The bundled kernel
    /// removes nothing: a task that exits is detached at its last dequeue.
    pub fn take_removed(&mut self, removed: Removed) {
        if removed.nr == 0 {
            return;
        }
        let divider = u64::from(self.avg.divider());
        let minus = |n: u64| (n as i64).wrapping_neg();
        let sum = |n: u64| minus(n.wrapping_mul(divider));
        self.avg.update_sa_load(minus(removed.load_avg), sum(removed.load_avg));
        self.avg.update_sa_util(minus(removed.util_avg), sum(removed.util_avg));
        self.avg.update_sa_runnable(minus(removed.runnable_avg), sum(removed.runnable_avg));
        self.add_tg_cfs_propagate(sum(removed.runnable_avg) >> SCHED_CAPACITY_SHIFT);
    }

    /// `enqueue_load_avg()`.
    fn enqueue_load_avg(&mut self, load_avg: u64, load_sum: u64, add: AddLoad) {
        match add {
            AddLoad::Clamped => self.avg.update_sa_load(load_avg as i64, load_sum as i64),
            AddLoad::Plain => {
                self.avg.load_avg = self.avg.load_avg.wrapping_add(load_avg);
                self.avg.load_sum = self.avg.load_sum.wrapping_add(load_sum);
            }
        }
    }

    /// `add_tg_cfs_propagate()`.
    fn add_tg_cfs_propagate(&mut self, runnable_sum: i64) {
        self.propagate = 1;
        self.prop_runnable_sum = self.prop_runnable_sum.wrapping_add(runnable_sum);
    }

    /// `attach_entity_load_avg()`.
    pub fn attach_entity_load_avg(&mut self, e: &mut SchedEntity, add: AddLoad) {
        let divider = u64::from(self.avg.divider());
        let weight = e.weight();
        e.attached = true;
        e.avg.last_update_time = self.avg.last_update_time;
        e.avg.period_contrib = self.avg.period_contrib;
        e.avg.util_sum = e.avg.util_avg.wrapping_mul(divider) as u32;
        e.avg.runnable_sum = e.avg.runnable_avg.wrapping_mul(divider);
        e.avg.load_sum = e.avg.load_avg.wrapping_mul(divider);
        e.avg.load_sum = match e.avg.load_sum.checked_div(weight) {
            Some(sum) if weight < e.avg.load_sum => sum,
            _ => 1,
        };

        self.enqueue_load_avg(e.avg.load_avg, weight.wrapping_mul(e.avg.load_sum), add);
        self.avg.util_avg = self.avg.util_avg.wrapping_add(e.avg.util_avg);
        self.avg.util_sum = self.avg.util_sum.wrapping_add(e.avg.util_sum);
        self.avg.runnable_avg = self.avg.runnable_avg.wrapping_add(e.avg.runnable_avg);
        self.avg.runnable_sum = self.avg.runnable_sum.wrapping_add(e.avg.runnable_sum);
        self.add_tg_cfs_propagate(e.avg.load_sum as i64);
    }

    /// `detach_entity_load_avg()`.
    pub fn detach_entity_load_avg(&mut self, e: &mut SchedEntity) {
        e.attached = false;
        let minus = |n: u64| (n as i64).wrapping_neg();
        self.avg
            .update_sa_load(minus(e.avg.load_avg), minus(e.weight().wrapping_mul(e.avg.load_sum)));
        self.avg.update_sa_util(minus(e.avg.util_avg), minus(e.avg.util_sum.into()));
        self.avg.update_sa_runnable(minus(e.avg.runnable_avg), minus(e.avg.runnable_sum));
        self.add_tg_cfs_propagate(minus(e.avg.load_sum));
    }

    /// What `reweight_entity()` does to the averages: `e` has another weight from here on, scaled.
    pub fn reweight_load_avg(&mut self, e: &mut SchedEntity, weight: u64, add: AddLoad) {
        let minus = |n: u64| (n as i64).wrapping_neg();
        let old_sum = e.weight().wrapping_mul(e.avg.load_sum);
        self.avg.update_sa_load(minus(e.avg.load_avg), minus(old_sum));
        e.load_weight = weight;
        let load_sum = e.weight().wrapping_mul(e.avg.load_sum);
        e.avg.load_avg = load_sum / u64::from(e.avg.divider());
        self.enqueue_load_avg(e.avg.load_avg, load_sum, add);
    }

    /// `propagate_entity_load_avg()`: what attached or detached under `gq` moves to its entity `e`, which
    /// is queued here. Returns whether anything did.
    pub fn propagate_entity_load_avg(&mut self, e: &mut SchedEntity, gq: &mut Self) -> bool {
        if gq.propagate == 0 {
            return false;
        }
        gq.propagate = 0;
        let prop = core::mem::take(&mut gq.prop_runnable_sum);
        let estimate = if prop < 0 {
            gq.avg.load_sum.checked_div(scale_load_down(gq.load_weight)).unwrap_or(0)
        } else {
            0
        };
        self.add_tg_cfs_propagate(prop);
        let divider = u64::from(self.avg.divider());
        self.update_tg_cfs_util(e, gq.avg.util_avg, divider);
        self.update_tg_cfs_runnable(e, gq.avg.runnable_avg, divider);
        if prop != 0 {
            self.update_tg_cfs_load(e, prop, estimate, divider);
        }
        true
    }

    /// `update_tg_cfs_util()`: the group's entity `e`, queued here, takes its cfs_rq's utilisation.
    fn update_tg_cfs_util(&mut self, e: &mut SchedEntity, util_avg: u64, divider: u64) {
        let delta = util_avg.wrapping_sub(e.avg.util_avg) as i64;
        if delta == 0 {
            return;
        }
        let new_sum = util_avg.wrapping_mul(divider) as u32;
        let delta_sum = i64::from(new_sum) - i64::from(e.avg.util_sum);
        e.avg.util_avg = util_avg;
        e.avg.util_sum = new_sum;
        self.avg.update_sa_util(delta, delta_sum);
    }

    /// `update_tg_cfs_runnable()`.
    fn update_tg_cfs_runnable(&mut self, e: &mut SchedEntity, runnable_avg: u64, divider: u64) {
        let delta = runnable_avg.wrapping_sub(e.avg.runnable_avg) as i64;
        if delta == 0 {
            return;
        }
        let new_sum = runnable_avg.wrapping_mul(divider);
        let delta_sum = new_sum.wrapping_sub(e.avg.runnable_sum) as i64;
        e.avg.runnable_avg = runnable_avg;
        e.avg.runnable_sum = new_sum;
        self.avg.update_sa_runnable(delta, delta_sum);
    }

    /// `update_tg_cfs_load()`: `prop` is what attached (or, below 0, detached) under `e`, and
    /// `estimate` the runnable sum of its cfs_rq if all tasks were equally runnable.
    fn update_tg_cfs_load(&mut self, e: &mut SchedEntity, prop: i64, estimate: u64, divider: u64) {
        let runnable_sum = if prop >= 0 {
            prop.wrapping_add(e.avg.load_sum as i64).min(divider as i64)
        } else {
            e.avg.load_sum.min(estimate) as i64
        };
        let running_sum = i64::from(e.avg.util_sum >> SCHED_CAPACITY_SHIFT);
        let runnable_sum = runnable_sum.max(running_sum) as u64;
        let weight = e.weight();
        let load_sum = weight.wrapping_mul(runnable_sum);
        let load_avg = load_sum / divider;
        let delta_avg = load_avg.wrapping_sub(e.avg.load_avg) as i64;
        if delta_avg == 0 {
            return;
        }
        let old_sum = weight.wrapping_mul(e.avg.load_sum);
        e.avg.load_sum = runnable_sum;
        e.avg.load_avg = load_avg;
        self.avg.update_sa_load(delta_avg, load_sum.wrapping_sub(old_sum) as i64);
    }
}

impl Kernel {
    /// `propagate_entity_load_avg()`: what attached or detached in a group moves to the group's
    /// entity and its cfs_rq.
    #[inline]
    fn propagate_entity_load_avg(&mut self, cfs: usize, se: usize) -> bool {
        let my_q = self.ses[se].my_q;
        if my_q == NONE || self.cfs_rqs[my_q as usize].propagate == 0 {
            return false;
        }
        self.propagate_from(my_q as usize, cfs, se)
    }

    fn propagate_from(&mut self, group: usize, cfs: usize, se: usize) -> bool {
        // A group is not its own parent.
        let Ok([gq, q]) = self.cfs_rqs.get_disjoint_mut([group, cfs]) else { return false };
        q.propagate_entity_load_avg(&mut self.ses[se], gq)
    }

    /// `se_update_runnable()`.
    pub(crate) fn se_update_runnable(&mut self, se: usize) {
        let my_q = self.ses[se].my_q;
        if my_q != NONE {
            self.ses[se].runnable_weight = self.cfs_rqs[my_q as usize].h_nr_runnable;
        }
    }

    /// `update_load_avg()`: brings an entity and its cfs_rq up to now.
    pub(crate) fn update_load_avg<H: Hardware>(
        &mut self,
        hw: &mut H,
        cfs: usize,
        se: usize,
        flags: u32,
    ) {
        let now = self.rq_clock_pelt();
        let q = &mut self.cfs_rqs[cfs];
        let e = &mut self.ses[se];
        if e.attached {
            e.update_load_avg_se(now, q.curr as usize == se);
        }
        let mut decayed = q.update_load_avg_cfs_rq(now);
        decayed |= self.propagate_entity_load_avg(cfs, se);

        let q = &mut self.cfs_rqs[cfs];
        let e = &mut self.ses[se];
        if !e.attached && flags & DO_ATTACH != 0 {
            q.attach_entity_load_avg(e, AddLoad::Clamped);
        } else if flags & DO_DETACH != 0 {
            q.detach_entity_load_avg(e);
        } else if !decayed || flags & UPDATE_TG == 0 {
            return;
        }
        self.update_tg_load_avg(hw, cfs);
    }

    /// `update_blocked_averages()`: decays every leaf cfs_rq, children first. `rq->clock` is current.
    pub fn update_blocked_averages<H: Hardware>(&mut self, hw: &mut H) {
        self.update_irq_load_avg(0);
        let now = self.rq_clock_pelt();
        let mut next = self.leaf_first();
        while let Some(cfs) = next {
            next = self.leaf_next(cfs);
            if self.cfs_rqs[cfs].update_load_avg_cfs_rq(now) {
                self.update_tg_load_avg(hw, cfs);
            }
            let e = &self.ses[cfs];
            let parent = e.cfs_rq;
            // skip_blocked_update()
            let nothing =
                e.avg.load_avg == 0 && e.avg.util_avg == 0 && self.cfs_rqs[cfs].propagate == 0;
            if parent != NONE && !nothing {
                self.update_load_avg(hw, parent as usize, cfs, UPDATE_TG);
            }
            if self.cfs_rq_is_decayed(cfs) {
                self.list_del_leaf_cfs_rq(cfs);
            }
        }
    }

    /// `cfs_rq_is_decayed()`.
    #[inline]
    fn cfs_rq_is_decayed(&self, cfs: usize) -> bool {
        let q = &self.cfs_rqs[cfs];
        q.load_weight == 0
            && q.avg.is_decayed()
            && q.tg_load_avg_contrib == 0
            && !self.child_cfs_rq_on_list(cfs)
    }

    /// `child_cfs_rq_on_list()`: is the cfs_rq listed right before `cfs` a child of it?
    fn child_cfs_rq_on_list(&self, cfs: usize) -> bool {
        self.leaf_prev(cfs).is_some_and(|p| self.ses[p].cfs_rq as usize == cfs)
    }

    /// `update_cfs_group()`: a group entity's weight is its share of the group's load
    /// (`calc_group_shares()`; on one CPU, 7.3's default `calc_concur_shares()` comes to the same).
    pub(crate) fn update_cfs_group(&mut self, se: usize) {
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
        if self.ses[se].load_weight != shares {
            self.reweight_entity(se, shares);
        }
    }

    /// `reweight_entity()`.
    fn reweight_entity(&mut self, se: usize, weight: u64) {
        let e = &mut self.ses[se];
        let q = &mut self.cfs_rqs[e.cfs_rq as usize];
        if e.on_rq {
            q.load_weight = q.load_weight.wrapping_sub(e.load_weight).wrapping_add(weight);
        }
        q.reweight_load_avg(e, weight, AddLoad::Clamped);
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
        let share =
            if util == 0 { cap } else { util.wrapping_mul(weight) / load.saturating_add(1) };
        e.avg.util_avg = share.min(cap);
        e.avg.runnable_avg = e.avg.util_avg;
        e.attached = false;
    }
}

#[cfg(test)]
mod tests;
