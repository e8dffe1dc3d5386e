//! The run queue's clocks: `update_rq_clock()` and `update_rq_clock_task()` (kernel/sched/core.c).

use zerocopy::FromZeros;

use crate::hardware::{Hardware, Probe};
use crate::kernel::Kernel;
use crate::list::ListHead;
use crate::pelt::SchedAvg;
use crate::policy::Fault;

/// `rq->clock_update_flags`: the clock is taken as it is until the switch is done.
pub const RQCF_ACT_SKIP: u32 = 2;

/// `struct rq` (kernel/sched/sched.h), the members that the accounting rules read and write.
#[derive(Clone, Debug, Default, FromZeros)]
#[repr(C)]
pub struct Rq {
    /// Tasks queued, the running one included.
    pub nr_running: u32,
    /// The CPU.
    pub cpu: u32,
    /// Context switches.
    pub nr_switches: u64,
    /// The running task's `task_struct`, a guest virtual address.
    pub curr: u64,
    /// swapper's `task_struct`, a guest virtual address.
    pub idle: u64,
    /// `RQCF_*`: what the scheduler wants of the next update. The bundled kernel sets none.
    pub clock_update_flags: u32,
    /// Wall time at the last update, ns.
    pub clock: u64,
    /// `clock` without IRQ and steal time, ns.
    pub clock_task: u64,
    /// `clock_task` scaled by capacity, synchronised when idle, ns.
    pub clock_pelt: u64,
    /// Idle time that a saturated run queue never had, ns.
    pub lost_idle_time: u64,
    /// `clock` when the CPU last went idle, ns.
    pub clock_idle: u64,
    /// `clock_pelt` less lost idle time when the CPU last went idle, ns.
    pub clock_pelt_idle: u64,
    /// How much of `cpu_irqtime.total` has been taken from `clock_task`, ns.
    pub prev_irq_time: u64,
    /// The steal counter at the last update, ns.
    pub prev_steal_time_rq: u64,
    /// How much of `cpu_irqtime.total` has been charged to PSI, ns.
    pub psi_irq_time: u64,
    /// Utilisation by IRQ and steal time.
    pub avg_irq: SchedAvg,
    /// The leaf cfs_rqs, children before parents.
    pub leaf_cfs_rq_list: ListHead,
    /// Where a branch that no listed parent holds yet goes on, a guest virtual address.
    pub tmp_alone_branch: u64,
}

impl Kernel {
    /// Brings `rq->clock` to `sched_clock_cpu()`, and with it the clocks derived from it.
    ///
    /// A clock that went backwards is ignored, as in the kernel, and so is an update in `__schedule()`
    /// when the wake-up that asked for it has just made one ([`RQCF_ACT_SKIP`]); the bundled kernel
    /// makes every update that it is asked for.
    pub fn update_rq_clock<H: Hardware>(&mut self, hw: &mut H) {
        hw.probe(self, Probe::UpdateRqClock);
        if self.rq.clock_update_flags & RQCF_ACT_SKIP != 0 {
            return;
        }
        self.costs.clock_reads_update_rq_clock += 1;
        let delta = hw.sched_clock_cpu().wrapping_sub(self.rq.clock) as i64;
        if delta < 0 {
            return;
        }
        self.rq.clock = self.rq.clock.wrapping_add(delta as u64);
        let steal = if self.paravirt_steal_rq_enabled {
            hw.steal_clock()
        } else {
            self.rq.prev_steal_time_rq
        };
        self.update_rq_clock_task(delta, steal);
    }

    /// Splits `delta` ns of wall time into IRQ, steal and task time.
    ///
    /// IRQ time that does not fit is carried over: `prev_irq_time` advances only by what fitted.
    /// Steal that does not fit is dropped: `prev_steal_time_rq` takes the value read. All is signed,
    /// so a steal counter that steps back lets `clock_task` run ahead of `clock`.
    pub fn update_rq_clock_task(&mut self, mut delta: i64, steal_clock: u64) {
        let irq_total = self.cpu_irqtime.irq_time_read();
        let wall_delta = delta;
        let rq = &mut self.rq;
        let fault = self.policy.fault;

        let mut irq_delta = irq_total.wrapping_sub(rq.prev_irq_time) as i64;
        if irq_delta > delta {
            irq_delta = delta;
            if fault == Fault::IrqDropped {
                rq.prev_irq_time = irq_total.wrapping_sub(irq_delta as u64);
            }
        }
        if fault != Fault::IrqTwice {
            rq.prev_irq_time = rq.prev_irq_time.wrapping_add(irq_delta as u64);
        }
        delta = delta.wrapping_sub(irq_delta);

        let mut steal = steal_clock.wrapping_sub(rq.prev_steal_time_rq) as i64;
        let raw_steal = steal;
        if steal > delta {
            steal = delta;
        }
        rq.prev_steal_time_rq = if fault == Fault::StealCarried && raw_steal > steal {
            rq.prev_steal_time_rq.wrapping_add(steal as u64)
        } else {
            steal_clock
        };
        delta = delta.wrapping_sub(steal);
        match fault {
            Fault::StealTwice => delta = delta.wrapping_sub(steal.min(delta)),
            Fault::StealIgnored => delta = delta.wrapping_add(steal),
            Fault::ClockTaskAhead => {
                delta = wall_delta.wrapping_add(irq_delta).wrapping_add(steal);
            }
            Fault::ClockTaskBack if self.costs.clock_reads_update_rq_clock.is_multiple_of(64) => {
                delta = -1000;
            }
            Fault::ClockTaskUnpaused if irq_delta == wall_delta => delta = wall_delta,
            _ => {}
        }

        rq.clock_task = rq.clock_task.wrapping_add(delta as u64);

        let mut nontask = irq_delta.wrapping_add(steal);
        if fault == Fault::IrqLoadAvgWrapped {
            nontask = nontask.wrapping_neg();
        }
        if nontask != 0 {
            self.update_irq_load_avg(nontask as u64);
        }
        let wall = fault == Fault::PeltOnWallClock;
        self.update_rq_clock_pelt(if wall { wall_delta } else { delta });
    }
}

#[cfg(test)]
mod tests;
