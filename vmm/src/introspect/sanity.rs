//! Does what is read look like a run queue?
//!
//! A layout that is wrong, or right for another kernel, still gives numbers. They contradict each
//! other, and that is what is looked for here: pointers that must agree, clocks that cannot be in the
//! future, parts that cannot exceed their sum.

use super::introspector::{Introspector, PID_MAX_LIMIT, at_least, at_most, exactly, points_to};
use super::read::{ReadError, Reader};

/// `SCHED_CAPACITY_SCALE`: full utilisation.
const FULL: u64 = 1024;
/// Above every sum of loads: 2^18 for the largest weight (kernel/sched/core.c
/// `sched_prio_to_weight`, 6.12 to 7.3) times `PID_MAX_LIMIT` tasks.
const MAX_LOAD: u64 = 1 << (18 + 22);

/// All bits of `state_mask`: the PSI states, 8 of them with IRQ time, and `PSI_ONCPU`
/// (include/linux/psi_types.h, 6.12 to 7.3).
const ALL_STATES: u32 = (1 << 9) - 1;

impl Introspector {
    /// Refuses a guest whose run queue contradicts itself; `now_ns` is guest time.
    ///
    /// For a guest that has built its tables and is in no accounting rule: when it says that it is
    /// ready, and at each entry of `update_rq_clock()`. What faulty accounting or backward steal do
    /// to the values later is for the checks to judge, not for this.
    pub fn sanity(&self, now_ns: u64) -> Result<(), ReadError> {
        let at = &mut self.reader();
        let p = &self.places;
        let rq = p.runqueues;

        let view = self.read_rq(at)?;
        exactly(rq, &p.rq.cpu, view.cpu, 0)?;
        at_most(rq, &p.rq.nr_running, view.nr_running, PID_MAX_LIMIT)?;
        let idle = at.get(rq, &p.rq.idle)?;
        let swapper = self.task(at, "rq.idle", idle)?;
        exactly(idle, &p.task.pid, swapper.pid, 0)?;
        let address = at.get(rq, &p.rq.curr)?;
        let curr = self.task(at, "rq.curr", address)?;
        if curr.pid == 0 {
            points_to(rq, &p.rq.curr, address, idle)?;
        }

        let started = at.get(p.cpu_irqtime, &p.irqtime.irq_start_time)?;
        at_most(p.cpu_irqtime, &p.irqtime.irq_start_time, started, now_ns)?;
        at_most(p.cpu_irqtime, &p.irqtime.total, view.irqtime_total_ns, started)?;
        at_most(rq, &p.rq.clock, view.clock_ns, now_ns)?;
        at_most(rq, &p.rq.clock_pelt, view.clock_pelt_ns, view.clock_task_ns)?;
        at_most(rq, &p.rq.prev_irq_time, view.prev_irq_time_ns, view.irqtime_total_ns)?;
        at_most(rq, &p.rq.psi_irq_time, view.psi_irq_time_ns, view.irqtime_total_ns)?;
        at_most(rq, &p.rq.avg_irq_util_avg, view.avg_irq_util, FULL)?;
        at_most(rq, &p.rq.nr_switches, view.nr_switches, now_ns)?;

        for group in 0..self.groups.len() as u16 {
            let addresses = self.group(group)?;
            let (tg, cfs_rq, groupc) =
                (addresses.task_group, addresses.cfs_rq, addresses.psi_group_cpu);
            let view = self.read_cfs_rq(at, group)?;
            at_most(cfs_rq, &p.cfs_rq.load_avg, view.load_avg, MAX_LOAD)?;
            let contrib = view.tg_load_avg_contrib;
            at_most(cfs_rq, &p.cfs_rq.tg_load_avg_contrib, contrib, MAX_LOAD)?;
            let last = view.last_update_tg_load_avg_ns;
            at_most(cfs_rq, &p.cfs_rq.last_update_tg_load_avg, last, now_ns)?;
            at_most(tg, &p.task_group.load_avg, view.tg_load_avg, MAX_LOAD)?;
            self.check_parent(at, group, tg)?;
            let since = at.get(groupc, &p.psi.state_start)?;
            at_most(groupc, &p.psi.state_start, since, now_ns)?;
            let mask = at.get(groupc, &p.psi.state_mask)?;
            at_most(groupc, &p.psi.state_mask, mask, ALL_STATES)?;
            let running = at.get(groupc, &p.psi.nr_running)?;
            at_most(groupc, &p.psi.nr_running, running, PID_MAX_LIMIT)?;
            // What runs is counted in the root group, so that group is not idle.
            if group == 0 && curr.pid != 0 {
                at_least(groupc, &p.psi.nr_running, running, 1)?;
                at_least(groupc, &p.psi.state_mask, mask, 1)?;
            }
        }
        self.walk_leaf_list(at, |_, _| Ok(()))
    }

    /// The root group has no parent, any other a known one.
    fn check_parent(&self, at: &mut Reader<'_>, group: u16, tg: u64) -> Result<(), ReadError> {
        let field = &self.places.task_group.parent;
        let parent = at.get(tg, field)?;
        if group == 0 {
            return points_to(tg, field, parent, 0);
        }
        self.task_group("task_group.parent", parent).map(drop)
    }
}
