//! Does what is read look like a run queue?
//!
//! A layout that is wrong, or right for another kernel, still gives numbers. They contradict each
//! other, and that is what is looked for here: pointers that must agree, clocks that cannot be in the
//! future, parts that cannot exceed their sum.

use super::groups::GroupAddresses;
use super::introspector::{Introspector, PID_MAX_LIMIT, at_least, at_most, exactly, points_to};
use super::read::{ReadError, Reader};
use crate::view::{RqView, TaskRef};

/// `SCHED_CAPACITY_SCALE`: full utilisation.
const FULL: u64 = 1024;
/// Above every sum of loads: 2^18 for the largest weight (kernel/sched/core.c
/// `sched_prio_to_weight`, 6.12 to 7.3) times `PID_MAX_LIMIT` tasks.
const MAX_LOAD: u64 = 1 << (18 + 22);

/// The rate limit of `tg->load_avg`, and so the first instant at which it is published
/// (kernel/sched/fair.c `update_tg_load_avg`, 6.12 to 7.3).
const MIN_STAMP_NS: u64 = 1_000_000;
/// Longest time between two updates of a busy run queue, with room for steal: ticks come every 10 ms
/// at least.
const MAX_SINCE_UPDATE_NS: u64 = 1_000_000_000;

/// All bits of `state_mask`: the PSI states, 8 of them with IRQ time, and `PSI_ONCPU`
/// (include/linux/psi_types.h, 6.12 to 7.3).
const ALL_STATES: u32 = (1 << 9) - 1;

impl Introspector {
    /// Refuses a guest whose run queue contradicts itself; `now_ns` is the time that the guest's
    /// `sched_clock()` would give now.
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
        if let Some(init_task) = p.init_task {
            points_to(rq, &p.rq.idle, idle, init_task)?;
        }
        let swapper = self.task(at, "rq.idle", idle)?;
        exactly(idle, &p.task.pid, swapper.pid, 0)?;
        self.is_called(at, idle, b"swapper/0")?;
        let address = at.get(rq, &p.rq.curr)?;
        let curr = self.task(at, "rq.curr", address)?;
        if curr.pid == 0 {
            points_to(rq, &p.rq.curr, address, idle)?;
        }
        if let Some(pointer) = p.ksoftirqd {
            let ksoftirqd = at.pointer("ksoftirqd", "cpu0", pointer)?;
            self.pid(at, "ksoftirqd", ksoftirqd)?;
            self.is_called(at, ksoftirqd, b"ksoftirqd/0")?;
        }

        let started = at.get(p.cpu_irqtime, &p.irqtime.irq_start_time)?;
        at_most(p.cpu_irqtime, &p.irqtime.irq_start_time, started, now_ns)?;
        at_most(p.cpu_irqtime, &p.irqtime.total, view.irqtime_total_ns, started)?;
        at_most(rq, &p.rq.clock, view.clock_ns, now_ns)?;
        at_most(rq, &p.rq.clock_pelt, view.clock_pelt_ns, view.clock_task_ns)?;
        at_most(rq, &p.rq.prev_irq_time, view.prev_irq_time_ns, view.irqtime_total_ns)?;
        at_most(rq, &p.rq.avg_irq.util_avg, view.avg_irq.util_avg, FULL)?;
        at_most(rq, &p.rq.nr_switches, view.nr_switches, now_ns)?;
        if let Some(flags) = &p.rq.clock_update_flags {
            // RQCF_REQ_SKIP, RQCF_ACT_SKIP and RQCF_UPDATED (kernel/sched/sched.h, 6.12 to 7.3).
            at_most(rq, flags, view.clock_update_flags, 7)?;
        }
        self.cpustat_sanity(at, &view, now_ns)?;

        for group in 0..self.groups.len() as u16 {
            let GroupAddresses { task_group: tg, cfs_rq, .. } = self.group(group)?;
            if let Some(cfs) = p.rq.cfs
                && group == 0
            {
                root_is(cfs_rq, rq.wrapping_add(cfs))?;
            }
            let view = self.read_cfs_rq(at, group)?;
            at_most(cfs_rq, &p.cfs_rq.load_avg, view.load_avg, MAX_LOAD)?;
            let contrib = view.tg_load_avg_contrib;
            at_most(cfs_rq, &p.cfs_rq.tg_load_avg_contrib, contrib, MAX_LOAD)?;
            let last = view.last_update_tg_load_avg_ns;
            at_most(cfs_rq, &p.cfs_rq.last_update_tg_load_avg, last, now_ns)?;
            // Nothing is published in the first millisecond of the clock.
            if contrib != 0 {
                at_least(cfs_rq, &p.cfs_rq.last_update_tg_load_avg, last, MIN_STAMP_NS)?;
            }
            at_most(tg, &p.task_group.load_avg, view.tg_load_avg, MAX_LOAD)?;
            self.check_parent(at, group, tg)?;
            if let Some(field) = &p.cfs_rq.rq {
                points_to(cfs_rq, field, at.get(cfs_rq, field)?, rq)?;
            }
        }
        self.psi_sanity(at, &view, curr, now_ns)?;
        self.walk_leaf_list(at, |_, _| Ok(()))
    }

    /// As [`Introspector::sanity`], for a Linux guest that is at a task's own instruction some time
    /// after its boot: much more than not being in the future can be asked of its values then.
    pub fn sanity_at_rest(&self, now_ns: u64) -> Result<(), ReadError> {
        self.sanity(now_ns)?;
        let at = &mut self.reader();
        let f = &self.places.rq;
        let (base, rq) = (self.places.runqueues, self.read_rq(at)?);
        at_least(base, &f.nr_running, rq.nr_running, 1)?;
        if let Some(address) = self.places.nr_threads {
            let threads = at.pointer("nr_threads", "0", address)? as u32;
            at_most(base, &f.nr_running, rq.nr_running, threads)?;
        }
        at_least(base, &f.nr_switches, rq.nr_switches, 1)?;
        at_least(base, &f.clock, rq.clock_ns, now_ns.saturating_sub(MAX_SINCE_UPDATE_NS))?;
        at_most(base, &f.clock_task, rq.clock_task_ns, rq.clock_ns)?;
        at_most(base, &f.lost_idle_time, rq.lost_idle_time_ns, rq.clock_task_ns)?;
        // What clock_task is behind clock is IRQ time, but for steal. Whether it is so to the
        // nanosecond is for the checks; here, whether these are the clocks at all.
        let behind = rq.clock_ns - rq.clock_task_ns;
        let irq = behind.saturating_sub(rq.prev_steal_time_rq_ns);
        at_least(base, &f.prev_irq_time, rq.prev_irq_time_ns, irq / 2)?;
        at_most(base, &f.prev_irq_time, rq.prev_irq_time_ns, behind.saturating_mul(2))?;
        let Some(psi) = &self.places.psi else { return Ok(()) };
        for group in 0..self.groups.len() as u16 {
            let Some(groupc) = self.group(group)?.psi_group_cpu else { continue };
            let busy = at.get(groupc, &psi.state_mask)? != 0;
            at_least(groupc, &psi.state_start, at.get(groupc, &psi.state_start)?, busy.into())?;
        }
        Ok(())
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

    /// A task of the kernel's own has its name, where tasks have names.
    fn is_called(
        &self,
        at: &mut Reader<'_>,
        task: u64,
        expected: &'static [u8],
    ) -> Result<(), ReadError> {
        let Some(field) = &self.places.task.comm else { return Ok(()) };
        let got = at.get(task, field)?;
        match got.strip_prefix(expected) {
            Some([0, ..]) => Ok(()),
            _ => Err(ReadError::WrongName { address: task, got, expected }),
        }
    }

    /// What `/proc/stat` shows of interrupts is what the run queue knows of them.
    fn cpustat_sanity(
        &self,
        at: &mut Reader<'_>,
        rq: &RqView,
        now_ns: u64,
    ) -> Result<(), ReadError> {
        let (Some(f), Some(stat)) = (&self.places.cpustat, self.read_cpustat(at)?) else {
            return Ok(());
        };
        // Ticks are counted whole: they can be up to one tick, 10 ms at most, ahead.
        let now_ns = now_ns.saturating_add(10_000_000);
        for (field, value) in
            [(&f.user, stat.user_ns), (&f.system, stat.system_ns), (&f.idle, stat.idle_ns)]
        {
            at_most(f.address, field, value, now_ns)?;
        }
        // Ticks that came before IRQ time was accounted to the nanosecond are in these as well.
        let sum = stat.irq_ns.saturating_add(stat.softirq_ns);
        let (irqtime, total) = (self.places.cpu_irqtime, &self.places.irqtime.total);
        at_most(irqtime, total, rq.irqtime_total_ns, sum)
    }

    fn psi_sanity(
        &self,
        at: &mut Reader<'_>,
        rq: &RqView,
        curr: TaskRef,
        now_ns: u64,
    ) -> Result<(), ReadError> {
        let Some(psi) = &self.places.psi else { return Ok(()) };
        let (base, total) = (self.places.runqueues, rq.irqtime_total_ns);
        at_most(base, &psi.irq_time, rq.psi_irq_time_ns, total)?;
        for group in 0..self.groups.len() as u16 {
            // A group without a cgroup has no state of its own.
            let Some(groupc) = self.group(group)?.psi_group_cpu else { continue };
            let since = at.get(groupc, &psi.state_start)?;
            at_most(groupc, &psi.state_start, since, now_ns)?;
            let mask = at.get(groupc, &psi.state_mask)?;
            at_most(groupc, &psi.state_mask, mask, ALL_STATES)?;
            // What runs is counted in the root group, so that group is not idle.
            let busy = group == 0 && curr.pid != 0;
            if busy {
                at_least(groupc, &psi.state_mask, mask, 1)?;
            }
            if let Some(field) = &psi.nr_running {
                let running = at.get(groupc, field)?;
                at_most(groupc, field, running, PID_MAX_LIMIT)?;
                at_least(groupc, field, running, busy.into())?;
            }
        }
        Ok(())
    }
}

/// The run queue contains the root group's cfs_rq.
fn root_is(got: u64, expected: u64) -> Result<(), ReadError> {
    if got == expected {
        return Ok(());
    }
    let (structure, member, base) = ("task_group", "cfs_rq", 0);
    Err(ReadError::WrongPointer { structure, member, base, expected, got })
}
