//! Pressure stall information: `psi_account_irqtime()` and the state clock (kernel/sched/psi.c).

use zerocopy::FromZeros;

use crate::hardware::{Hardware, Probe};
use crate::kernel::Kernel;
use crate::policy::{Fault, PsiZeroDelta};
use crate::wire::IDLE_PID;

/// Runnable tasks (`NR_RUNNING`, the only count that this guest's tasks use).
pub const NR_RUNNING: usize = 2;
/// `TSK_RUNNING`.
pub const TSK_RUNNING: u32 = 1 << NR_RUNNING;
/// `TSK_ONCPU`.
pub const TSK_ONCPU: u32 = 1 << 4;
/// `PSI_CPU_SOME`: somebody waits for the CPU.
pub const PSI_CPU_SOME: usize = 4;
/// `PSI_CPU_FULL`: everybody waits for the CPU.
pub const PSI_CPU_FULL: usize = 5;
/// `PSI_IRQ_FULL`: everybody waits for interrupts.
pub const PSI_IRQ_FULL: usize = 6;
/// `PSI_NONIDLE`: the group has tasks.
pub const PSI_NONIDLE: usize = 7;
/// States with a time of their own.
pub const NR_PSI_STATES: usize = 8;
/// The group runs on the CPU, kept as a bit of `state_mask`.
pub const PSI_ONCPU: u32 = 1 << NR_PSI_STATES;

/// `struct psi_group_cpu`.
#[derive(Clone, Debug, Default, FromZeros)]
#[repr(C)]
pub struct PsiGroupCpu {
    /// Tasks of the group by state.
    pub tasks: [u32; 4],
    /// States that hold now.
    pub state_mask: u32,
    /// Time in each state, ns modulo 2^32 as in the kernel.
    pub times: [u32; NR_PSI_STATES],
    /// `cpu_clock()` of the last change, ns.
    pub state_start: u64,
}

impl PsiGroupCpu {
    /// `record_times()`: the time since the last change goes to each state that held.
    fn record_times(&mut self, now: u64) {
        let delta = now.wrapping_sub(self.state_start) as u32;
        self.state_start = now;
        let mut add = |state: usize| self.times[state] = self.times[state].wrapping_add(delta);
        if self.state_mask & 1 << PSI_CPU_SOME != 0 {
            add(PSI_CPU_SOME);
            if self.state_mask & 1 << PSI_CPU_FULL != 0 {
                add(PSI_CPU_FULL);
            }
        }
        if self.state_mask & 1 << PSI_NONIDLE != 0 {
            add(PSI_NONIDLE);
        }
    }

    /// `test_states()`, for the counts that this guest uses.
    fn test_states(&self, oncpu: u32) -> u32 {
        let running = self.tasks[NR_RUNNING];
        let on = u32::from(oncpu != 0);
        let mut mask = oncpu;
        if running > on {
            mask |= 1 << PSI_CPU_SOME;
        }
        if running != 0 && on == 0 {
            mask |= 1 << PSI_CPU_FULL;
        }
        if running != 0 {
            mask |= 1 << PSI_NONIDLE;
        }
        mask
    }

    /// `psi_group_change()`.
    fn change(&mut self, clear: u32, set: u32, now: u64) {
        let oncpu = if clear & TSK_ONCPU != 0 {
            0
        } else if set & TSK_ONCPU != 0 {
            PSI_ONCPU
        } else {
            self.state_mask & PSI_ONCPU
        };
        if clear & TSK_RUNNING != 0 {
            self.tasks[NR_RUNNING] = self.tasks[NR_RUNNING].saturating_sub(1);
        }
        if set & TSK_RUNNING != 0 {
            self.tasks[NR_RUNNING] += 1;
        }
        let mask = self.test_states(oncpu);
        self.record_times(now);
        self.state_mask = mask;
    }
}

impl Kernel {
    /// `psi_write_begin()`: the seqcount goes odd.
    #[inline]
    fn psi_write_begin(&mut self) {
        self.psi_seq = self.psi_seq.wrapping_add(1);
    }

    /// `psi_write_end()`: the seqcount goes even.
    #[inline]
    fn psi_write_end(&mut self) {
        self.psi_seq = self.psi_seq.wrapping_add(1);
    }

    /// `group`, then its ancestors up to the root, then `None`.
    #[inline]
    pub(crate) fn parent_group(&self, group: u16) -> Option<u16> {
        if group == 0 { None } else { Some(self.task_groups[group as usize].parent_index) }
    }

    /// Charges the IRQ time since the last charge to the groups of `curr`.
    ///
    /// Called with the task switched from as `curr` and the one switched to as `prev`, and from the
    /// tick with no `prev`. Nothing is charged while idle, within one group, or (by policy) when no
    /// IRQ time has passed.
    pub fn psi_account_irqtime<H: Hardware>(&mut self, hw: &mut H, curr: u16, prev: Option<u16>) {
        hw.probe(self, Probe::PsiAccountIrqtime { curr, prev });
        self.costs.psi_account_irqtime_calls += 1;
        if curr == IDLE_PID {
            return;
        }
        let mut group = self.tasks[curr as usize].group;
        if prev.is_some_and(|p| self.tasks[p as usize].group == group) {
            return;
        }

        let irq = self.cpu_irqtime.irq_time_read();
        let delta = irq.wrapping_sub(self.rq.psi_irq_time) as i64;
        let skip_zero = (self.policy.psi_zero_delta == PsiZeroDelta::Skip)
            != self.planted(Fault::PsiZeroDeltaInverted);
        if delta < 0 || (delta == 0 && skip_zero) {
            return;
        }
        self.rq.psi_irq_time = irq;
        if self.planted(Fault::PsiTimeAhead) {
            self.rq.psi_irq_time += 1000;
        }
        if self.planted(Fault::PsiDeltaLost) && delta > 0 {
            return;
        }
        if self.planted(Fault::PsiWrongGroup)
            && let Some(prev) = prev
        {
            group = self.tasks[prev as usize].group;
        }

        self.psi_write_begin();
        let counted = !self.planted(Fault::ClockReadNotCounted);
        self.costs.clock_reads_psi_account_irqtime += u64::from(counted);
        self.costs.psi_account_irqtime_seqcount_writes += 1;
        let now = hw.sched_clock_cpu();
        let mut next = Some(group);
        while let Some(g) = next {
            self.costs.psi_account_irqtime_levels += 1;
            let groupc = &mut self.psi_groups[g as usize];
            groupc.record_times(now);
            groupc.times[PSI_IRQ_FULL] = groupc.times[PSI_IRQ_FULL].wrapping_add(delta as u32);
            next = if self.planted(Fault::PsiNoAncestors) { None } else { self.parent_group(g) };
        }
        self.psi_write_end();
    }

    /// `psi_task_change()`: a task starts or stops being runnable.
    pub fn psi_task_change<H: Hardware>(&mut self, hw: &mut H, task: u16, clear: u32, set: u32) {
        hw.probe(self, Probe::PsiTaskChange { task, clear, set });
        if task == IDLE_PID {
            return;
        }
        self.psi_write_begin();
        self.costs.psi_other_seqcount_writes += 1;
        self.costs.clock_reads_psi_other += 1;
        let now = hw.sched_clock_cpu();
        let mut next = Some(self.tasks[task as usize].group);
        while let Some(g) = next {
            self.psi_groups[g as usize].change(clear, set, now);
            next = self.parent_group(g);
        }
        self.psi_write_end();
    }

    /// `psi_task_switch()`: the CPU passes from `prev` to `next`; groups that both belong to keep
    /// their on-CPU state and are not walked for it.
    pub fn psi_task_switch<H: Hardware>(&mut self, hw: &mut H, prev: u16, next: u16, sleep: bool) {
        hw.probe(self, Probe::PsiTaskSwitch { prev, next, sleep });
        self.psi_write_begin();
        self.costs.psi_other_seqcount_writes += 1;
        self.costs.clock_reads_psi_other += 1;
        let now = hw.sched_clock_cpu();

        let mut common = None;
        if next != IDLE_PID {
            let mut walk = Some(self.tasks[next as usize].group);
            while let Some(g) = walk {
                if self.psi_groups[g as usize].state_mask & PSI_ONCPU != 0 {
                    common = Some(g);
                    break;
                }
                self.psi_groups[g as usize].change(0, TSK_ONCPU, now);
                walk = self.parent_group(g);
            }
        }
        if prev != IDLE_PID {
            let clear = if sleep { TSK_ONCPU | TSK_RUNNING } else { TSK_ONCPU };
            let mut walk = Some(self.tasks[prev as usize].group);
            while let Some(g) = walk
                && walk != common
            {
                self.psi_groups[g as usize].change(clear, 0, now);
                walk = self.parent_group(g);
            }
            if sleep {
                while let Some(g) = walk {
                    self.psi_groups[g as usize].change(TSK_RUNNING, 0, now);
                    walk = self.parent_group(g);
                }
            }
        }
        self.psi_write_end();
    }
}

#[cfg(test)]
mod tests;
