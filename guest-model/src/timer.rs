//! The timer list, and the handlers of the timer's and the devices' interrupts.

use crate::hardware::Hardware;
use crate::kernel::Kernel;
use crate::wire::{IRQ_BALANCE, MAX_IRQS, NONE};

impl Kernel {
    /// Inserts into the timer list, earliest first; the same instant in order of insertion.
    pub(crate) fn timer_insert(&mut self, pid: u16, wake_ns: u64) {
        let mut before = NONE;
        let mut next = self.timer_first;
        while next != NONE && self.tasks[next as usize].wake_ns <= wake_ns {
            before = next;
            next = self.tasks[next as usize].timer_next;
        }
        let t = &mut self.tasks[pid as usize];
        t.wake_ns = wake_ns;
        t.timer_armed = true;
        t.timer_next = next;
        match before {
            NONE => self.timer_first = pid,
            b => self.tasks[b as usize].timer_next = pid,
        }
    }

    pub(crate) fn timer_remove(&mut self, pid: u16) {
        let next = self.tasks[pid as usize].timer_next;
        if self.timer_first == pid {
            self.timer_first = next;
        } else {
            let mut before = self.timer_first;
            while before != NONE && self.tasks[before as usize].timer_next != pid {
                before = self.tasks[before as usize].timer_next;
            }
            if before != NONE {
                self.tasks[before as usize].timer_next = next;
            }
        }
        let t = &mut self.tasks[pid as usize];
        t.timer_armed = false;
        t.timer_next = NONE;
    }

    /// Arms the one-shot timer for the next tick or wake-up, whichever is first.
    pub(crate) fn program_timer<H: Hardware>(&mut self, hw: &mut H) {
        let mut deadline = self.next_tick_ns;
        if self.timer_first != NONE {
            deadline = deadline.min(self.tasks[self.timer_first as usize].wake_ns);
        }
        hw.set_timer(deadline);
    }

    /// The timer's handler: wakes what is due, then the tick if it is due.
    pub(crate) fn timer_interrupt<H: Hardware>(&mut self, hw: &mut H) {
        let now = hw.sched_clock_cpu();
        while self.timer_first != NONE && self.tasks[self.timer_first as usize].wake_ns <= now {
            let pid = self.timer_first;
            self.try_to_wake_up(hw, pid);
        }
        if now >= self.next_tick_ns {
            let ticks = ((now - self.next_tick_ns) / self.tick_period_ns).wrapping_add(1);
            self.jiffies = self.jiffies.wrapping_add(ticks);
            self.next_tick_ns =
                self.next_tick_ns.wrapping_add(ticks.wrapping_mul(self.tick_period_ns));
            self.sched_tick(hw);
            if self.offline_ns != 0 && now >= self.offline_ns && self.cpu_active {
                self.set_rq_offline(hw);
            }
        }
        self.program_timer(hw);
    }

    /// A device's handler: wakes its task and raises its softirqs.
    pub(crate) fn device_interrupt<H: Hardware>(&mut self, hw: &mut H, line: u16, softirq_ns: u32) {
        self.softirq_backlog_ns = self.softirq_backlog_ns.wrapping_add(softirq_ns.into());
        let spec = self.irqs[line as usize % MAX_IRQS];
        if spec.flags & IRQ_BALANCE != 0 {
            self.balance_pending = true;
        }
        if spec.wakes != NONE {
            self.try_to_wake_up(hw, spec.wakes);
        }
    }
}
