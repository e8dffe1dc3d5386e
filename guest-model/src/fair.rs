//! The fair class: entities, cfs_rqs and task groups (kernel/sched/fair.c).
//!
//! The order in which enqueue, dequeue, pick, switch and tick update the averages is the kernel's.
//! What runs is decided more simply than by EEVDF: at each level the queued entity with the least
//! vruntime. A task that sleeps is dequeued at once (no `DELAY_DEQUEUE`), there is no bandwidth
//! limit, and groups are picked level by level, as Linux does up to 7.2.

use zerocopy::FromZeros;

use crate::hardware::Hardware;
use crate::kernel::{Kernel, TaskState};
use crate::list::ListHead;
use crate::load_avg::{DO_ATTACH, DO_DETACH, UPDATE_TG};
use crate::pelt::SchedAvg;
use crate::wire::{IDLE_PID, MAX_GROUPS, NONE};

/// `NICE_0_LOAD` before scaling.
const NICE_0_LOAD: u64 = 1024;
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
#[derive(Clone, Debug, FromZeros)]
#[repr(C)]
pub struct TaskGroup {
    /// Sum of the published contributions (`atomic_long_t`).
    pub load_avg: u64,
    /// Sum of the published runnable contributions, where they are published.
    pub runnable_avg: u64,
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
#[derive(Clone, Debug, FromZeros)]
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
    /// Part of `avg.runnable_avg` last published, where it is.
    pub tg_runnable_avg_contrib: u64,
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
#[derive(Clone, Debug, FromZeros)]
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

/// Index of a task's entity in [`Kernel::ses`]; a group's has the group's index.
#[inline]
pub fn task_se(pid: u16) -> usize {
    MAX_GROUPS + pid as usize
}

impl Kernel {
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
            let queued = self.ses[se].on_rq;
            let flags = if queued { UPDATE_TG } else { UPDATE_TG | DO_ATTACH };
            self.update_load_avg(hw, cfs, se, flags);
            self.se_update_runnable(se);
            self.update_cfs_group(se);
            if !queued {
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

    /// `pick_task_fair()`: the task to run, or swapper. What runs stays as it is, but is charged for
    /// the time it ran.
    pub fn pick_task_fair(&mut self) -> u16 {
        let mut cfs = 0;
        loop {
            let curr = self.cfs_rqs[cfs].curr;
            if curr != NONE && self.ses[curr as usize].on_rq {
                self.update_curr(cfs);
            }
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

    /// `put_prev_task_fair()`: `prev` stops running, up to the cfs_rq that it shares with `next`.
    ///
    /// Above that one nothing changes hands, and the kernel (`pick_next_task_fair()` to 7.2,
    /// `put_prev_task_fair()` in 7.3) updates nothing.
    pub fn put_prev_task_fair<H: Hardware>(&mut self, hw: &mut H, prev: u16, next: u16) {
        let shared = if next == IDLE_PID { 0 } else { self.running_cfs_rq(task_se(next)) };
        let mut se = task_se(prev);
        loop {
            let cfs = self.ses[se].cfs_rq as usize;
            if self.ses[se].on_rq {
                self.update_curr(cfs);
                self.update_load_avg(hw, cfs, se, 0);
            }
            self.cfs_rqs[cfs].curr = NONE;
            if cfs == shared || cfs == 0 {
                return;
            }
            se = cfs;
        }
    }

    /// The nearest cfs_rq above `se` that something runs on, or the root.
    fn running_cfs_rq(&self, se: usize) -> usize {
        let mut cfs = self.ses[se].cfs_rq as usize;
        while cfs != 0 && self.cfs_rqs[cfs].curr == NONE {
            cfs = self.ses[cfs].cfs_rq as usize;
        }
        cfs
    }

    /// `set_next_task_fair()`: `next` runs, on each cfs_rq above it that nothing runs on.
    pub fn set_next_task_fair<H: Hardware>(&mut self, hw: &mut H, next: u16) {
        let mut se = task_se(next);
        while self.ses[se].cfs_rq != NONE {
            let cfs = self.ses[se].cfs_rq as usize;
            if self.cfs_rqs[cfs].curr != NONE {
                return;
            }
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

    /// The task is on the run queue.
    pub(crate) fn is_queued(&self, pid: u16) -> bool {
        self.tasks[pid as usize].state == TaskState::Running
    }
}

#[cfg(test)]
mod tests;
