//! Interrupt contexts: `irq_enter()`, `irq_exit()`, softirqs and ksoftirqd (kernel/softirq.c).

use crate::hardware::{Cpu, Hardware};
use crate::kernel::{Kernel, TaskState};
use crate::policy::Fault;
use crate::wire::{IDLE_PID, KSOFTIRQD_PID};

/// One softirq level of `preempt_count`.
pub const SOFTIRQ_OFFSET: u32 = 1 << 8;
/// One hardirq level of `preempt_count`.
pub const HARDIRQ_OFFSET: u32 = 1 << 16;
/// The hardirq levels of `preempt_count`.
pub const HARDIRQ_MASK: u32 = 0xf << 16;
/// Rounds of pending softirqs before ksoftirqd takes over (`MAX_SOFTIRQ_RESTART`).
const MAX_SOFTIRQ_RESTART: u32 = 10;
/// Time after which ksoftirqd takes over (`MAX_SOFTIRQ_TIME`), ns.
const MAX_SOFTIRQ_TIME_NS: u64 = 2_000_000;

impl Kernel {
    /// `irq_enter()`: hardirq context begins.
    pub fn irq_enter<H: Hardware>(&mut self, hw: &mut H) {
        self.preempt_count = self.preempt_count.wrapping_add(HARDIRQ_OFFSET);
        self.irqtime_account_irq(hw, HARDIRQ_OFFSET);
    }

    /// The accounting half of `irq_exit()`; true if softirqs are to run now.
    pub fn irq_exit<H: Hardware>(&mut self, hw: &mut H) -> bool {
        self.irqtime_account_irq(hw, 0);
        self.preempt_count = self.preempt_count.wrapping_sub(HARDIRQ_OFFSET);
        self.preempt_count == 0 && self.softirq_pending()
    }

    /// `local_softirq_pending()`.
    #[inline]
    pub fn softirq_pending(&self) -> bool {
        self.softirq_backlog_ns != 0 || self.balance_pending
    }

    /// `wakeup_softirqd()`.
    fn wakeup_softirqd<H: Hardware>(&mut self, hw: &mut H) {
        if self.tasks[KSOFTIRQD_PID as usize].state != TaskState::Running {
            self.try_to_wake_up(hw, KSOFTIRQD_PID);
        }
    }

    /// `MAX_SOFTIRQ_TIME`: two milliseconds in ticks, rounded up as `msecs_to_jiffies()` does.
    fn max_softirq_ticks(&self) -> u64 {
        MAX_SOFTIRQ_TIME_NS.div_ceil(self.tick_period_ns.max(1))
    }

    /// The `SCHED_SOFTIRQ` action: decays what is blocked, as load balancing does.
    fn sched_balance_softirq<H: Hardware>(&mut self, hw: &mut H) {
        self.update_rq_clock(hw);
        self.update_blocked_averages(hw);
    }
}

/// `handle_softirqs()`: runs what is pending, with interrupts on while the work is done. What is
/// raised meanwhile waits for the next round; what stays pending after the last round, after two
/// milliseconds of ticks, or once a task must run, is left to ksoftirqd.
pub fn handle_softirqs<C: Cpu>(cpu: &mut C) {
    let (k, hw) = cpu.parts();
    k.preempt_count = k.preempt_count.wrapping_add(SOFTIRQ_OFFSET);
    k.irqtime_account_irq(hw, SOFTIRQ_OFFSET);
    let begin = k.jiffies;
    let mut restarts = MAX_SOFTIRQ_RESTART;
    loop {
        let k = cpu.parts().0;
        let mut work = core::mem::take(&mut k.softirq_backlog_ns);
        let balance = core::mem::take(&mut k.balance_pending);
        match k.policy.fault {
            Fault::SoftirqDropped => work = 0,
            Fault::SoftirqTwice => work *= 2,
            _ => {}
        }
        while work != 0 {
            let want = u32::try_from(work).unwrap_or(u32::MAX);
            work -= u64::from(cpu.softirq(want).min(want));
        }
        let (k, hw) = cpu.parts();
        if balance {
            k.sched_balance_softirq(hw);
        }
        if !k.softirq_pending() {
            break;
        }
        restarts -= 1;
        let ticks = k.jiffies.wrapping_sub(begin);
        if ticks >= k.max_softirq_ticks() || k.need_resched || restarts == 0 {
            k.wakeup_softirqd(hw);
            break;
        }
    }
    let (k, hw) = cpu.parts();
    k.irqtime_account_irq(hw, 0);
    k.preempt_count = k.preempt_count.wrapping_sub(SOFTIRQ_OFFSET);
}

/// One interrupt, from entry to the return to what it interrupted. Interrupts are off on entry.
///
/// Line 0 is the timer; another line wakes its task and raises its softirq work.
pub fn do_irq<C: Cpu>(cpu: &mut C, line: u16) {
    let (k, hw) = cpu.parts();
    k.irq_enter(hw);
    let softirq_ns = hw.irq_status(k, line);
    if line == 0 {
        k.timer_interrupt(hw);
    } else {
        k.device_interrupt(hw, line, softirq_ns);
    }
    if k.irq_exit(hw) {
        handle_softirqs(cpu);
    }
}

/// One round of the CPU: schedule if needed, then let the current task do its next piece.
///
/// The firmware calls it for ever, the in-process model until guest time is up.
pub fn step<C: Cpu>(cpu: &mut C) {
    let (k, hw) = cpu.parts();
    if k.need_resched {
        k.schedule(hw);
    }
    match k.curr {
        IDLE_PID => cpu.halt(),
        KSOFTIRQD_PID => {
            if k.softirq_pending() {
                handle_softirqs(cpu);
            } else {
                k.block_current(KSOFTIRQD_PID);
            }
        }
        pid => {
            let want = k.tasks[pid as usize].burn_left_ns;
            let want = u32::try_from(want).unwrap_or(u32::MAX);
            let consumed = cpu.burn(want).min(want);
            let (k, hw) = cpu.parts();
            k.task_consumed(hw, pid, consumed);
        }
    }
}

#[cfg(test)]
mod tests;
