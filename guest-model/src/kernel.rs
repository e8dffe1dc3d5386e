//! The bundled kernel: its state, its bring-up, tasks, the tick and `__schedule()`.

use zerocopy::FromZeros;

use crate::cputime::Irqtime;
use crate::draw::draw;
use crate::fair::{CfsRq, SchedEntity, TaskGroup, scale_load, task_se};
use crate::hardware::Hardware;
use crate::list::ListHead;
use crate::pelt::SchedAvg;
use crate::policy::{Fault, Policy, PsiZeroDelta, RateLimitClock};
use crate::psi::{PsiGroupCpu, TSK_RUNNING};
use crate::rq::Rq;
use crate::wire::{
    BootError, BootPage, FIRST_PID, IDLE_PID, IrqSpec, KSOFTIRQD_PID, MAX_GROUPS, MAX_IRQS,
    MAX_TASKS, NO_STEAL_CLOCK, NONE, TASK_BLOCKED, TASK_FORK, TaskSpec,
};

pub use crate::softirq::{do_irq, handle_softirqs, step};

/// What the rules cost, counted where the kernel pays.
#[derive(Clone, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(C)]
pub struct Costs {
    /// Clock reads of `update_rq_clock()`.
    pub clock_reads_update_rq_clock: u64,
    /// Clock reads of `irqtime_account_irq()`.
    pub clock_reads_irqtime_account_irq: u64,
    /// Clock reads of `update_tg_load_avg()` and `clear_tg_load_avg()`.
    pub clock_reads_update_tg_load_avg: u64,
    /// Clock reads of `psi_account_irqtime()`.
    pub clock_reads_psi_account_irqtime: u64,
    /// Clock reads of `psi_task_change()` and `psi_task_switch()`.
    pub clock_reads_psi_other: u64,
    /// Calls of `psi_account_irqtime()`.
    pub psi_account_irqtime_calls: u64,
    /// Seqcount write sections of `psi_account_irqtime()`.
    pub psi_account_irqtime_seqcount_writes: u64,
    /// cgroup levels walked by `psi_account_irqtime()`.
    pub psi_account_irqtime_levels: u64,
    /// Seqcount write sections of `psi_task_change()` and `psi_task_switch()`.
    pub psi_other_seqcount_writes: u64,
    /// Calls of `update_tg_load_avg()`, the root's left out.
    pub update_tg_load_avg_calls: u64,
    /// Calls that the rate limit turned away.
    pub update_tg_load_avg_rate_limited: u64,
    /// Calls that passed the limit with a change of at most 1/64.
    pub update_tg_load_avg_below_tolerance: u64,
    /// Atomic adds to `tg->load_avg`.
    pub tg_load_avg_atomic_adds: u64,
}

/// `task->__state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromZeros)]
#[repr(u8)]
pub enum TaskState {
    /// Runnable, on the run queue.
    Running = 0,
    /// Waiting for its timer or a wake-up.
    Interruptible = 1,
}

/// `struct task_struct`; its index in the table is its pid.
#[derive(Clone, Debug, FromZeros)]
#[repr(C)]
pub struct Task {
    /// `task_struct.pid`.
    pub pid: u32,
    /// The group's index.
    pub group: u16,
    /// Runnable or asleep.
    pub state: TaskState,
    /// A wake-up arrived while it was running, for a task that blocks on its partner.
    pub wake_pending: bool,
    /// Rest of this activation, ns.
    pub burn_left_ns: u64,
    /// When its timer wakes it, ns; meaningful while on the timer list.
    pub wake_ns: u64,
    /// Next on the timer list, or [`NONE`].
    pub timer_next: u16,
    /// On the timer list.
    pub timer_armed: bool,
    /// Its draws.
    pub rng: u64,
    /// `task_struct.sched_task_group`, a guest virtual address.
    pub sched_task_group: u64,
    /// What the boot page says of it.
    pub spec: TaskSpec,
}

/// All state of the bundled kernel. It must stay where it was when [`Kernel::boot`] ran, because
/// it holds guest addresses of its own parts for the host to follow.
#[derive(Clone, Debug, FromZeros)]
#[repr(C)]
pub struct Kernel {
    /// `runqueues`, of CPU 0.
    pub rq: Rq,
    /// `cpu_irqtime`, of CPU 0.
    pub cpu_irqtime: Irqtime,
    /// `psi_seq`, of CPU 0.
    pub psi_seq: u32,
    /// `__preempt_count`.
    pub preempt_count: u32,
    /// What the rules cost.
    pub costs: Costs,
    /// The variant under test.
    pub policy: Policy,
    /// The running task.
    pub curr: u16,
    /// Groups in use.
    pub nr_groups: u16,
    /// Tasks in use.
    pub nr_tasks: u16,
    /// Lines in use.
    pub nr_irqs: u16,
    /// `TIF_NEED_RESCHED`.
    pub need_resched: bool,
    /// `SCHED_SOFTIRQ` is pending.
    pub balance_pending: bool,
    /// `cpu_active()`.
    pub cpu_active: bool,
    /// Groups publish `runnable_avg` beside `load_avg`, as in 7.3. The bundled kernel does not.
    pub publishes_runnable: bool,
    /// The static key of the same name: there is a steal clock.
    pub paravirt_steal_rq_enabled: bool,
    /// First task on the timer list, or [`NONE`].
    pub timer_first: u16,
    /// Softirq work raised and not yet taken, ns.
    pub softirq_backlog_ns: u64,
    /// Ticks so far.
    pub jiffies: u64,
    /// Distance of two ticks, ns.
    pub tick_period_ns: u64,
    /// When the next tick is due, ns.
    pub next_tick_ns: u64,
    /// When the CPU goes offline, ns; 0 for never.
    pub offline_ns: u64,
    /// The task groups; 0 is the root.
    pub task_groups: [TaskGroup; MAX_GROUPS],
    /// Each group's cfs_rq.
    pub cfs_rqs: [CfsRq; MAX_GROUPS],
    /// Each group's PSI state.
    pub psi_groups: [PsiGroupCpu; MAX_GROUPS],
    /// The groups' entities, then the tasks'.
    pub ses: [SchedEntity; MAX_GROUPS + MAX_TASKS],
    /// The tasks.
    pub tasks: [Task; MAX_TASKS],
    /// The lines.
    pub irqs: [IrqSpec; MAX_IRQS],
}

impl Kernel {
    /// A kernel that has not booted, for a static: all of it is zero bytes. In memory it is made as
    /// [`FromZeros::new_box_zeroed`], since it is larger than many a stack.
    pub const fn new() -> Self {
        const AVG: SchedAvg = SchedAvg {
            last_update_time: 0,
            load_sum: 0,
            runnable_sum: 0,
            util_sum: 0,
            period_contrib: 0,
            load_avg: 0,
            runnable_avg: 0,
            util_avg: 0,
        };
        const LIST: ListHead = ListHead { next: 0, prev: 0 };
        const TG: TaskGroup = TaskGroup {
            load_avg: 0,
            runnable_avg: 0,
            shares: 0,
            parent: 0,
            cfs_rq: 0,
            parent_index: 0,
        };
        const CFS: CfsRq = CfsRq {
            load_weight: 0,
            nr_queued: 0,
            h_nr_runnable: 0,
            min_vruntime: 0,
            avg: AVG,
            tg_load_avg_contrib: 0,
            tg_runnable_avg_contrib: 0,
            last_update_tg_load_avg: 0,
            prop_runnable_sum: 0,
            tg: 0,
            leaf_cfs_rq_list: LIST,
            propagate: 0,
            on_list: 0,
            curr: 0,
            first: 0,
        };
        const PSI: PsiGroupCpu =
            PsiGroupCpu { tasks: [0; 4], state_mask: 0, times: [0; 8], state_start: 0 };
        const SE: SchedEntity = SchedEntity {
            load_weight: 0,
            vruntime: 0,
            exec_start: 0,
            sum_exec_runtime: 0,
            prev_sum_exec_runtime: 0,
            avg: AVG,
            runnable_weight: 0,
            on_rq: false,
            attached: false,
            cfs_rq: 0,
            my_q: 0,
            next: 0,
            prev: 0,
        };
        const SPEC: TaskSpec = TaskSpec {
            burn_min_ns: 0,
            burn_max_ns: 0,
            sleep_min_ns: 0,
            sleep_max_ns: 0,
            start_ns: 0,
            seed: 0,
            weight: 0,
            group: 0,
            wakes: 0,
            flags: 0,
            reserved: [0; 3],
        };
        const TASK: Task = Task {
            pid: 0,
            group: 0,
            state: TaskState::Running,
            wake_pending: false,
            burn_left_ns: 0,
            wake_ns: 0,
            timer_next: 0,
            timer_armed: false,
            rng: 0,
            sched_task_group: 0,
            spec: SPEC,
        };
        Self {
            rq: Rq {
                nr_running: 0,
                cpu: 0,
                nr_switches: 0,
                curr: 0,
                idle: 0,
                clock_update_flags: 0,
                clock: 0,
                clock_task: 0,
                clock_pelt: 0,
                lost_idle_time: 0,
                clock_idle: 0,
                clock_pelt_idle: 0,
                prev_irq_time: 0,
                prev_steal_time_rq: 0,
                psi_irq_time: 0,
                avg_irq: AVG,
                leaf_cfs_rq_list: LIST,
                tmp_alone_branch: 0,
            },
            cpu_irqtime: Irqtime {
                total: 0,
                irq_start_time: 0,
                cpustat_irq: 0,
                cpustat_softirq: 0,
            },
            psi_seq: 0,
            preempt_count: 0,
            costs: Costs {
                clock_reads_update_rq_clock: 0,
                clock_reads_irqtime_account_irq: 0,
                clock_reads_update_tg_load_avg: 0,
                clock_reads_psi_account_irqtime: 0,
                clock_reads_psi_other: 0,
                psi_account_irqtime_calls: 0,
                psi_account_irqtime_seqcount_writes: 0,
                psi_account_irqtime_levels: 0,
                psi_other_seqcount_writes: 0,
                update_tg_load_avg_calls: 0,
                update_tg_load_avg_rate_limited: 0,
                update_tg_load_avg_below_tolerance: 0,
                tg_load_avg_atomic_adds: 0,
            },
            policy: Policy {
                rate_limit_clock: RateLimitClock::SchedClockCpu,
                psi_zero_delta: PsiZeroDelta::Account,
                fault: Fault::None,
            },
            curr: 0,
            nr_groups: 0,
            nr_tasks: 0,
            nr_irqs: 0,
            need_resched: false,
            balance_pending: false,
            cpu_active: false,
            publishes_runnable: false,
            paravirt_steal_rq_enabled: false,
            timer_first: 0,
            softirq_backlog_ns: 0,
            jiffies: 0,
            tick_period_ns: 0,
            next_tick_ns: 0,
            offline_ns: 0,
            task_groups: [TG; MAX_GROUPS],
            cfs_rqs: [CFS; MAX_GROUPS],
            psi_groups: [PSI; MAX_GROUPS],
            ses: [SE; MAX_GROUPS + MAX_TASKS],
            tasks: [TASK; MAX_TASKS],
            irqs: [IrqSpec { wakes: 0, flags: 0 }; MAX_IRQS],
        }
    }

    /// Builds groups and tasks from the boot page, starts the tick and picks nothing yet: the first
    /// [`step`] schedules. The page is checked whole before any of it is used.
    pub fn boot<H: Hardware>(&mut self, hw: &mut H, page: &BootPage) -> Result<(), BootError> {
        self.policy = page.validate()?;
        self.nr_groups = page.nr_groups;
        self.nr_tasks = FIRST_PID + page.nr_tasks;
        self.nr_irqs = page.nr_irqs;
        self.tick_period_ns = page.tick_period_ns;
        self.offline_ns = page.offline_ns;
        self.cpu_active = true;
        self.paravirt_steal_rq_enabled = page.flags & NO_STEAL_CLOCK == 0;
        self.need_resched = true;
        self.timer_first = NONE;
        self.irqs = page.irqs;
        self.init_leaf_list();

        for g in 0..self.nr_groups as usize {
            let spec = &page.groups[g];
            self.task_groups[g].shares = scale_load(spec.shares.into());
            self.task_groups[g].parent_index = spec.parent;
            self.task_groups[g].parent =
                if g == 0 { 0 } else { addr(&self.task_groups[spec.parent as usize]) };
            self.task_groups[g].cfs_rq = addr(&self.cfs_rqs[g]);
            self.cfs_rqs[g].tg = addr(&self.task_groups[g]);
            self.cfs_rqs[g].curr = NONE;
            self.cfs_rqs[g].first = NONE;
            let e = &mut self.ses[g];
            e.my_q = g as u16;
            e.cfs_rq = if g == 0 { NONE } else { spec.parent };
            e.load_weight = scale_load(spec.shares.into());
            e.attached = true;
        }

        let kernel_task = TaskSpec { weight: 1024, wakes: NONE, ..page_task_zero() };
        self.init_task(IDLE_PID, &kernel_task);
        self.init_task(KSOFTIRQD_PID, &kernel_task);
        for i in 0..page.nr_tasks {
            self.init_task(FIRST_PID + i, &page.tasks[i as usize]);
        }
        self.rq.idle = addr(&self.tasks[IDLE_PID as usize]);
        self.set_curr(IDLE_PID);

        let now = hw.sched_clock_cpu();
        self.cpu_irqtime.irq_start_time = now;
        self.next_tick_ns = now.wrapping_add(self.tick_period_ns);
        for pid in FIRST_PID..self.nr_tasks {
            let spec = self.tasks[pid as usize].spec;
            if spec.flags & TASK_BLOCKED != 0 {
                continue;
            }
            if spec.start_ns <= now {
                self.try_to_wake_up(hw, pid);
            } else {
                self.timer_insert(pid, spec.start_ns);
            }
        }
        self.program_timer(hw);
        Ok(())
    }

    fn init_task(&mut self, pid: u16, spec: &TaskSpec) {
        let group = addr(&self.task_groups[spec.group as usize]);
        let t = &mut self.tasks[pid as usize];
        t.pid = pid.into();
        t.group = spec.group;
        t.spec = *spec;
        t.rng = spec.seed;
        t.sched_task_group = group;
        t.state = TaskState::Interruptible;
        t.timer_next = NONE;
        let e = &mut self.ses[task_se(pid)];
        e.my_q = NONE;
        e.cfs_rq = spec.group;
        e.next = NONE;
        e.prev = NONE;
        e.load_weight = scale_load(spec.weight.into());
    }

    fn set_curr(&mut self, pid: u16) {
        self.curr = pid;
        self.rq.curr = addr(&self.tasks[pid as usize]);
    }

    /// `try_to_wake_up()`: a task that sleeps becomes runnable and may preempt; one that runs
    /// remembers the wake-up, so that a partner's ping is not lost. The first wake-up of a task, and
    /// each one of a [`TASK_FORK`], is `wake_up_new_task()`.
    pub fn try_to_wake_up<H: Hardware>(&mut self, hw: &mut H, pid: u16) {
        if self.is_queued(pid) {
            self.tasks[pid as usize].wake_pending = true;
            return;
        }
        if self.tasks[pid as usize].timer_armed {
            self.timer_remove(pid);
        }
        let t = &mut self.tasks[pid as usize];
        t.state = TaskState::Running;
        t.wake_pending = false;
        t.burn_left_ns = draw(&mut t.rng, t.spec.burn_min_ns, t.spec.burn_max_ns);
        if !self.ses[task_se(pid)].attached {
            self.init_entity_averages(pid);
        }
        self.update_rq_clock(hw);
        self.enqueue_task_fair(hw, pid);
        self.psi_task_change(hw, pid, 0, TSK_RUNNING);
        self.wakeup_preempt(pid);
    }

    /// The running task `pid` goes to sleep at the next [`Kernel::schedule`].
    pub(crate) fn block_current(&mut self, pid: u16) {
        self.tasks[pid as usize].state = TaskState::Interruptible;
        self.need_resched = true;
    }

    /// The task has burnt `consumed` ns; at the end of an activation it wakes its partner and
    /// sleeps.
    pub fn task_consumed<H: Hardware>(&mut self, hw: &mut H, pid: u16, consumed: u32) {
        let t = &mut self.tasks[pid as usize];
        t.burn_left_ns = t.burn_left_ns.saturating_sub(consumed.into());
        if t.burn_left_ns != 0 {
            return;
        }
        let spec = t.spec;
        if spec.wakes != NONE {
            self.try_to_wake_up(hw, spec.wakes);
        }
        let t = &mut self.tasks[pid as usize];
        if spec.sleep_max_ns != 0 {
            let sleep = draw(&mut t.rng, spec.sleep_min_ns, spec.sleep_max_ns);
            if sleep != 0 {
                let wake = hw.sched_clock_cpu().saturating_add(sleep);
                self.timer_insert(pid, wake);
                self.program_timer(hw);
                self.block_current(pid);
                return;
            }
        } else if ((spec.wakes != NONE && spec.wakes != pid) || spec.flags & TASK_BLOCKED != 0)
            && !core::mem::take(&mut t.wake_pending)
        {
            self.block_current(pid);
            return;
        }
        let t = &mut self.tasks[pid as usize];
        t.burn_left_ns = draw(&mut t.rng, spec.burn_min_ns, spec.burn_max_ns);
    }

    /// `sched_tick()`: PSI first, then the clock, then the class; an idle CPU also balances.
    pub(crate) fn sched_tick<H: Hardware>(&mut self, hw: &mut H) {
        let curr = self.curr;
        if !self.planted(Fault::PsiTickSkipped) {
            self.psi_account_irqtime(hw, curr, None);
        }
        self.update_rq_clock(hw);
        if curr == IDLE_PID {
            self.balance_pending = true;
        } else {
            self.task_tick_fair(hw, curr);
        }
    }

    /// `__schedule()`. A CPU that goes idle decays what is blocked, as `sched_balance_newidle()` does
    /// where there are other CPUs to pull from.
    pub fn schedule<H: Hardware>(&mut self, hw: &mut H) {
        if !self.planted(Fault::ScheduleStaleClock) {
            self.update_rq_clock(hw);
        }
        let prev = self.curr;
        let sleep = prev != IDLE_PID && !self.is_queued(prev);
        if sleep {
            let exits = self.tasks[prev as usize].spec.flags & TASK_FORK != 0;
            self.dequeue_task_fair(hw, prev, exits);
        }
        let next = self.pick_task_fair();
        if next == IDLE_PID && prev != IDLE_PID {
            self.update_blocked_averages(hw);
        }
        self.need_resched = false;
        if next == prev {
            return;
        }
        if prev != IDLE_PID {
            self.put_prev_task_fair(hw, prev, next);
        }
        if next == IDLE_PID {
            self.update_idle_rq_clock_pelt();
        } else {
            self.set_next_task_fair(hw, next);
        }
        self.rq.nr_switches = self.rq.nr_switches.wrapping_add(1);
        self.set_curr(next);
        if !self.planted(Fault::PsiSwitchSkipped) {
            self.psi_account_irqtime(hw, prev, Some(next));
        }
        self.psi_task_switch(hw, prev, next, sleep);
    }
}

impl Default for Kernel {
    fn default() -> Self {
        Self::new()
    }
}

/// A task entry of zeros.
fn page_task_zero() -> TaskSpec {
    zerocopy::FromZeros::new_zeroed()
}

/// The guest virtual address of `part`.
#[inline]
pub(crate) fn addr<T>(part: &T) -> u64 {
    core::ptr::from_ref(part) as usize as u64
}

#[cfg(test)]
mod tests;
