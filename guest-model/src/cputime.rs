//! IRQ time: `irqtime_account_irq()` (kernel/sched/cputime.c).

use zerocopy::FromZeros;

use crate::hardware::{Hardware, Probe};
use crate::kernel::Kernel;
use crate::policy::Fault;
use crate::softirq::{HARDIRQ_MASK, SOFTIRQ_OFFSET};
use crate::wire::KSOFTIRQD_PID;

/// `struct irqtime`, with the two `cpustat` members that it feeds.
#[derive(Clone, Debug, Default, FromZeros)]
#[repr(C)]
pub struct Irqtime {
    /// Hardirq and softirq time accounted so far, ns.
    pub total: u64,
    /// `sched_clock_cpu()` at the last transition between contexts, ns.
    pub irq_start_time: u64,
    /// `kcpustat.cpustat[CPUTIME_IRQ]`, ns.
    pub cpustat_irq: u64,
    /// `kcpustat.cpustat[CPUTIME_SOFTIRQ]`, ns.
    pub cpustat_softirq: u64,
}

impl Irqtime {
    /// `irq_time_read()`: IRQ time accounted so far, ns.
    #[inline]
    pub fn irq_time_read(&self) -> u64 {
        self.total
    }
}

impl Kernel {
    /// Accounts the time since the last transition to the context that is being left.
    ///
    /// Called after `preempt_count` was raised on entry (`offset` is what was added) and before it
    /// is lowered on exit (`offset` 0). Softirq time of ksoftirqd stays its own, as task time.
    pub fn irqtime_account_irq<H: Hardware>(&mut self, hw: &mut H, offset: u32) {
        if self.planted(Fault::IrqNeverAccounted) {
            return;
        }
        hw.probe(self, Probe::IrqtimeAccountIrq { offset });
        self.costs.clock_reads_irqtime_account_irq += 1;
        let now = hw.sched_clock_cpu();
        let irqtime = &mut self.cpu_irqtime;
        let delta = now.wrapping_sub(irqtime.irq_start_time);
        irqtime.irq_start_time = now;

        let context = self.preempt_count.wrapping_sub(offset);
        if context & HARDIRQ_MASK != 0 {
            irqtime.cpustat_irq = irqtime.cpustat_irq.wrapping_add(delta);
            if self.policy.fault != Fault::HardirqNotAccounted {
                irqtime.total = irqtime.total.wrapping_add(delta);
            }
        } else if context & SOFTIRQ_OFFSET != 0
            && (self.curr != KSOFTIRQD_PID || self.policy.fault == Fault::KsoftirqdAccounted)
        {
            irqtime.cpustat_softirq = irqtime.cpustat_softirq.wrapping_add(delta);
            irqtime.total = irqtime.total.wrapping_add(delta);
        }
    }
}

#[cfg(test)]
mod tests;
