//! The kernel's CPU and hardware, by port I/O and the paravirtual pages.

use guest_model::hardware::{Cpu, Hardware, Probe};
use guest_model::kernel::Kernel;
use guest_model::wire::probe;

use crate::arch::{self, InterruptsOff};
use crate::clock::{Pvclock, Steal};

static PVCLOCK: Pvclock = Pvclock::new();
static STEAL: Steal = Steal::new();

/// Bit 0 of both registers: the page is in use (Documentation/virt/kvm/x86/msr.rst).
const ENABLED: u64 = 1;

/// Tells the host where the clock page is and, if there is to be a `steal_clock`, the steal page.
pub fn register_clocks(steal_clock: bool) {
    arch::wrmsr(arch::MSR_KVM_SYSTEM_TIME_NEW, arch::physical(&PVCLOCK) | ENABLED);
    if steal_clock {
        arch::wrmsr(arch::MSR_KVM_STEAL_TIME, arch::physical(&STEAL) | ENABLED);
    }
}

/// The guest's one CPU.
pub struct ThisCpu {
    off: InterruptsOff,
    doorbell: Doorbell,
}

impl ThisCpu {
    /// The CPU, by proof that its interrupts are off.
    #[inline(always)]
    pub fn new(off: InterruptsOff) -> Self {
        Self { off, doorbell: Doorbell }
    }
}

impl Cpu for ThisCpu {
    type Hw = Doorbell;

    #[inline(always)]
    fn parts(&mut self) -> (&mut Kernel, &mut Doorbell) {
        (arch::rqscope_kernel.get(&mut self.off), &mut self.doorbell)
    }

    #[inline(always)]
    fn burn(&mut self, want_ns: u32) -> u32 {
        arch::burn(&mut self.off, want_ns)
    }

    #[inline(always)]
    fn softirq(&mut self, want_ns: u32) -> u32 {
        arch::softirq(&mut self.off, want_ns)
    }

    #[inline(always)]
    fn halt(&mut self) {
        arch::halt(&mut self.off);
    }
}

/// The doorbell's ports and the paravirtual pages.
pub struct Doorbell;

impl Hardware for Doorbell {
    #[inline(always)]
    fn sched_clock_cpu(&mut self) -> u64 {
        PVCLOCK.read(arch::rdtsc)
    }

    #[inline(always)]
    fn steal_clock(&mut self) -> u64 {
        STEAL.read()
    }

    #[inline(always)]
    fn probe(&mut self, kernel: &mut Kernel, probe: Probe) {
        let rq = &raw const kernel.rq as u64;
        let task = |pid: u16| kernel.tasks.as_ptr().wrapping_add(pid.into()) as u64;
        let cfs_rq = |group: u16| kernel.cfs_rqs.as_ptr().wrapping_add(group.into()) as u64;
        match probe {
            Probe::UpdateRqClock => {
                arch::probe::<{ probe::UPDATE_RQ_CLOCK }, _>(kernel, [rq, 0, 0]);
            }
            Probe::IrqtimeAccountIrq { offset } => {
                let args = [kernel.rq.curr, offset.into(), 0];
                arch::probe::<{ probe::IRQTIME_ACCOUNT_IRQ }, _>(kernel, args);
            }
            Probe::PsiAccountIrqtime { curr, prev } => {
                let args = [rq, task(curr), prev.map_or(0, task)];
                arch::probe::<{ probe::PSI_ACCOUNT_IRQTIME }, _>(kernel, args);
            }
            Probe::PsiTaskSwitch { prev, next, sleep } => {
                let args = [task(prev), task(next), sleep.into()];
                arch::probe::<{ probe::PSI_TASK_SWITCH }, _>(kernel, args);
            }
            Probe::PsiTaskChange { task: pid, clear, set } => {
                let args = [task(pid), clear.into(), set.into()];
                arch::probe::<{ probe::PSI_TASK_CHANGE }, _>(kernel, args);
            }
            Probe::UpdateTgLoadAvg { group } => {
                let args = [cfs_rq(group), 0, 0];
                arch::probe::<{ probe::UPDATE_TG_LOAD_AVG }, _>(kernel, args);
            }
            Probe::ClearTgLoadAvg { group } => {
                let args = [cfs_rq(group), 0, 0];
                arch::probe::<{ probe::CLEAR_TG_LOAD_AVG }, _>(kernel, args);
            }
        }
    }

    #[inline(always)]
    fn set_timer(&mut self, deadline_ns: u64) {
        arch::set_timer(deadline_ns);
    }

    #[inline(always)]
    fn irq_status(&mut self, kernel: &mut Kernel, line: u16) -> u32 {
        arch::irq_status(kernel, line)
    }
}
