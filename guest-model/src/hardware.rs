//! What the kernel needs from the machine it runs on.
//!
//! The firmware implements these traits with port I/O and page reads, the in-process model with
//! direct calls into the host's engine. Guest time moves only inside the methods that say so.

use crate::kernel::Kernel;
use crate::policy::Fault;

/// The instrumented functions, hit at their entry, with the arguments that the kernel passes.
///
/// Tasks and groups are named by their index in the guest's tables; a task's index is its pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// `update_rq_clock(rq)`.
    UpdateRqClock,
    /// `irqtime_account_irq(curr, offset)`.
    IrqtimeAccountIrq {
        /// `preempt_count` offset of the context being entered, or 0 on exit.
        offset: u32,
    },
    /// `psi_account_irqtime(rq, curr, prev)`.
    PsiAccountIrqtime {
        /// The task that is charged.
        curr: u16,
        /// The task switched to, or `None` from the tick.
        prev: Option<u16>,
    },
    /// `psi_task_switch(prev, next, sleep)`.
    PsiTaskSwitch {
        /// The task switched from.
        prev: u16,
        /// The task switched to.
        next: u16,
        /// `prev` goes to sleep.
        sleep: bool,
    },
    /// `psi_task_change(task, clear, set)`.
    PsiTaskChange {
        /// The task whose state changes.
        task: u16,
        /// `TSK_*` flags cleared.
        clear: u32,
        /// `TSK_*` flags set.
        set: u32,
    },
    /// `update_tg_load_avg(cfs_rq)`, for groups other than the root.
    UpdateTgLoadAvg {
        /// The group.
        group: u16,
    },
    /// `clear_tg_load_avg(cfs_rq)`, for groups other than the root.
    ClearTgLoadAvg {
        /// The group.
        group: u16,
    },
}

/// The clocks, the timer, the interrupt status registers and the probes.
pub trait Hardware {
    /// `sched_clock_cpu()`, ns: the pvclock page of the published protocol.
    fn sched_clock_cpu(&mut self) -> u64;

    /// `paravirt_steal_clock()`, ns: the steal page of the published protocol.
    fn steal_clock(&mut self) -> u64;

    /// A probed function was entered. Costs no guest time.
    fn probe(&mut self, kernel: &mut Kernel, probe: Probe);

    /// Arms the one-shot timer for guest time `deadline_ns`.
    fn set_timer(&mut self, deadline_ns: u64);

    /// Reads the status register of `line` in hardirq context: the handler's cost passes, and the
    /// softirq work that the interrupt raised is returned, ns.
    fn irq_status(&mut self, kernel: &mut Kernel, line: u16) -> u32;
}

/// A CPU that runs a [`Kernel`]: the operations during which interrupts may arrive.
///
/// An implementation delivers interrupts by calling [`crate::kernel::do_irq`].
pub trait Cpu {
    /// The machine.
    type Hw: Hardware;

    /// The kernel and its machine, with interrupts off.
    fn parts(&mut self) -> (&mut Kernel, &mut Self::Hw);

    /// With interrupts on, lets the current task burn up to `want_ns`; returns the ns consumed.
    fn burn(&mut self, want_ns: u32) -> u32;

    /// With interrupts on, does up to `want_ns` of softirq work; returns the ns consumed.
    fn softirq(&mut self, want_ns: u32) -> u32;

    /// With interrupts on, halts until an interrupt has been handled.
    fn halt(&mut self);
}

impl Kernel {
    /// Is `fault` planted in this run?
    #[inline]
    pub(crate) fn planted(&self, fault: Fault) -> bool {
        self.policy.fault == fault
    }
}
