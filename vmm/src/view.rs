//! What is seen of a guest: typed values, free of addresses.
//!
//! Introspection of a virtual machine and the in-process model both produce these; the observer,
//! the trace, the checks and the report read nothing else of a guest.

/// A guest task: `pid` and the index of its group in the scenario's group table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskRef {
    /// `task_struct.pid`; 0 is swapper.
    pub pid: u32,
    /// Index of `task_struct.sched_task_group`; 0 is the root.
    pub group: u16,
}

/// A probed function was entered, with these arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `update_rq_clock(rq)`.
    UpdateRqClock,
    /// `irqtime_account_irq(curr, offset)`.
    IrqtimeAccountIrq {
        /// `preempt_count` offset of the context entered; 0 on exit.
        offset: u32,
    },
    /// `psi_account_irqtime(rq, curr, prev)`.
    PsiAccountIrqtime {
        /// The task charged.
        curr: TaskRef,
        /// The task switched to; `None` from the tick.
        prev: Option<TaskRef>,
    },
    /// `psi_task_switch(prev, next, sleep)`.
    PsiTaskSwitch {
        /// The task switched from.
        prev: TaskRef,
        /// The task switched to.
        next: TaskRef,
        /// `prev` goes to sleep.
        sleep: bool,
    },
    /// `psi_task_change(task, clear, set)`.
    PsiTaskChange {
        /// The task whose state changes.
        task: TaskRef,
        /// `TSK_*` flags cleared.
        clear: u32,
        /// `TSK_*` flags set.
        set: u32,
    },
    /// `update_irq_load_avg(rq, running)`.
    UpdateIrqLoadAvg {
        /// IRQ and steal time of this update of the clock, ns.
        running: u64,
    },
    /// `update_tg_load_avg(cfs_rq)`.
    UpdateTgLoadAvg {
        /// The cfs_rq's group.
        group: u16,
    },
    /// `clear_tg_load_avg(cfs_rq)`.
    ClearTgLoadAvg {
        /// The cfs_rq's group.
        group: u16,
    },
}

impl Call {
    /// Is it made inside `update_rq_clock()`, which is not done yet? Outside, `update_irq_load_avg()` has
    /// nothing to add and only decays (`update_other_load_avgs()`, kernel/sched/syscalls.c, 6.12 to 7.3).
    #[inline]
    pub fn is_nested(self) -> bool {
        matches!(self, Self::UpdateIrqLoadAvg { running } if running != 0)
    }
}

/// `RQCF_ACT_SKIP` of `rq->clock_update_flags`: the scheduler takes `rq->clock` as it is, because a
/// wake-up updated it and asked for this very switch (kernel/sched/sched.h, 6.12 to 7.3). Until the switch
/// is done `update_rq_clock()` returns at once.
pub const RQCF_ACT_SKIP: u32 = 2;

/// `struct rq` of one CPU and the per-CPU times that its clocks are made from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RqView {
    /// `rq->cpu`.
    pub cpu: u32,
    /// `rq->nr_running`.
    pub nr_running: u32,
    /// `rq->nr_switches`.
    pub nr_switches: u64,
    /// `rq->curr->pid`.
    pub curr_pid: u32,
    /// `rq->clock_update_flags`; 0 in a kernel that never skips an update.
    pub clock_update_flags: u32,
    /// `rq->clock`, ns.
    pub clock_ns: u64,
    /// `rq->clock_task`, ns.
    pub clock_task_ns: u64,
    /// `rq->clock_pelt`, ns.
    pub clock_pelt_ns: u64,
    /// `rq->lost_idle_time`, ns.
    pub lost_idle_time_ns: u64,
    /// `rq->prev_irq_time`, ns.
    pub prev_irq_time_ns: u64,
    /// `rq->prev_steal_time_rq`, ns.
    pub prev_steal_time_rq_ns: u64,
    /// `rq->psi_irq_time`, ns.
    pub psi_irq_time_ns: u64,
    /// `rq->avg_irq`: how much of the CPU interrupts and steal take.
    pub avg_irq: AvgView,
    /// `cpu_irqtime.total`, ns.
    pub irqtime_total_ns: u64,
    /// `cpu_irqtime.irq_start_time`, ns of `sched_clock_cpu()`.
    pub irq_start_time_ns: u64,
    /// The preempt count of the CPU; `None` where it is not known.
    pub preempt_count: Option<u32>,
    /// `psi_seq`, odd while PSI is being written.
    pub psi_seq: u32,
}

/// `struct sched_avg`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AvgView {
    /// Clock value up to which time has been accumulated, ns.
    pub last_update_time_ns: u64,
    /// Decayed sum of load.
    pub load_sum: u64,
    /// Decayed sum of runnable time.
    pub runnable_sum: u64,
    /// Decayed sum of running time.
    pub util_sum: u32,
    /// Part of the current period already accumulated, in 1,024 ns units.
    pub period_contrib: u32,
    /// Load average.
    pub load_avg: u64,
    /// Runnable average.
    pub runnable_avg: u64,
    /// Utilisation, 0 to 1,024.
    pub util_avg: u64,
}

/// One cfs_rq and what its group sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CfsRqView {
    /// Index of the group.
    pub group: u16,
    /// `cfs_rq->avg.load_avg`.
    pub load_avg: u64,
    /// `cfs_rq->tg_load_avg_contrib`.
    pub tg_load_avg_contrib: u64,
    /// `cfs_rq->last_update_tg_load_avg`, ns of the rate-limit clock.
    pub last_update_tg_load_avg_ns: u64,
    /// `cfs_rq->tg->load_avg`.
    pub tg_load_avg: u64,
    /// What else is published with the load; `None` in a kernel that publishes the load alone (until 7.2).
    pub runnable: Option<RunnableView>,
}

/// The runnable average of a cfs_rq, which 7.3 publishes together with its load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunnableView {
    /// `cfs_rq->avg.runnable_avg`.
    pub runnable_avg: u64,
    /// `cfs_rq->tg_runnable_avg_contrib`.
    pub tg_runnable_avg_contrib: u64,
    /// `cfs_rq->tg->runnable_avg`.
    pub tg_runnable_avg: u64,
}

/// `struct psi_group_cpu` of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PsiView {
    /// Index of the group.
    pub group: u16,
    /// `times[PSI_IRQ_FULL]`, ns modulo 2^32 as the kernel keeps it.
    pub irq_full_ns: u32,
}

/// What the guest's rules cost, counted by the guest itself; Linux keeps no such counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostsView {
    /// Clock reads of `update_rq_clock()`.
    pub clock_reads_update_rq_clock: u64,
    /// Clock reads of `irqtime_account_irq()`.
    pub clock_reads_irqtime_account_irq: u64,
    /// Clock reads of `update_tg_load_avg()` and `clear_tg_load_avg()`.
    pub clock_reads_update_tg_load_avg: u64,
    /// Clock reads of `psi_account_irqtime()`.
    pub clock_reads_psi_account_irqtime: u64,
    /// Clock reads of the other PSI functions.
    pub clock_reads_psi_other: u64,
    /// Seqcount write sections of `psi_account_irqtime()`.
    pub psi_account_irqtime_seqcount_writes: u64,
    /// cgroup levels walked by `psi_account_irqtime()`.
    pub psi_account_irqtime_levels: u64,
    /// Atomic adds to `tg->load_avg`.
    pub tg_load_avg_atomic_adds: u64,
    /// Calls of `update_tg_load_avg()` that the rate limit turned away.
    pub update_tg_load_avg_rate_limited: u64,
    /// Calls that passed the limit with too small a change.
    pub update_tg_load_avg_below_tolerance: u64,
}

/// What the CPU's time was spent on, as the guest's kernel has summed it up (`kernel_cpustat`).
/// Sums of ticks, except for `irq` and `softirq`, which are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpustatView {
    /// `cpustat[CPUTIME_USER]`, ns.
    pub user_ns: u64,
    /// `cpustat[CPUTIME_SYSTEM]`, ns.
    pub system_ns: u64,
    /// `cpustat[CPUTIME_SOFTIRQ]`, ns.
    pub softirq_ns: u64,
    /// `cpustat[CPUTIME_IRQ]`, ns.
    pub irq_ns: u64,
    /// `cpustat[CPUTIME_IDLE]`, ns.
    pub idle_ns: u64,
    /// `cpustat[CPUTIME_STEAL]`, ns.
    pub steal_ns: u64,
}

/// A guest that can be read between any two of its instructions.
pub trait GuestView {
    /// Why a read can fail.
    type Error: std::error::Error + Send + Sync + 'static;

    /// The run queue of the only CPU.
    fn rq(&self) -> Result<RqView, Self::Error>;
    /// `rq->curr->pid`.
    fn curr_pid(&self) -> Result<u32, Self::Error>;
    /// Is ksoftirqd the current task?
    fn runs_ksoftirqd(&self) -> Result<bool, Self::Error>;
    /// `cpu_irqtime.total`, ns.
    fn irqtime_total_ns(&self) -> Result<u64, Self::Error>;
    /// The cfs_rq of a group.
    fn cfs_rq(&self, group: u16) -> Result<CfsRqView, Self::Error>;
    /// The PSI state of a group.
    fn psi_group(&self, group: u16) -> Result<PsiView, Self::Error>;
    /// The groups on `rq->leaf_cfs_rq_list`, in its order, into `out`.
    fn leaf_cfs_rqs(&self, out: &mut Vec<CfsRqView>) -> Result<(), Self::Error>;
    /// The cost counters, or `None` where the guest keeps none.
    fn costs(&self) -> Result<Option<CostsView>, Self::Error>;
}

/// `cfs_rq->removed`: what tasks that left the CPU asleep have taken with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovedView {
    /// Tasks.
    pub nr: u32,
    /// Their load.
    pub load_avg: u64,
    /// Their utilisation.
    pub util_avg: u64,
    /// Their runnable average.
    pub runnable_avg: u64,
}

/// A function that moves load was entered, with these arguments. An entity goes by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadCall {
    /// `update_load_avg(cfs_rq, se, flags)`: what it moves it moves through the others, but for what
    /// propagates from a group to its entity.
    UpdateLoadAvg {
        /// The cfs_rq's group.
        group: u16,
        /// The entity.
        se: u64,
    },
    /// `update_cfs_rq_load_avg(now, cfs_rq)`.
    UpdateCfsRqLoadAvg {
        /// The cfs_rq's group.
        group: u16,
        /// `cfs_rq_clock_pelt()`, ns.
        now_ns: u64,
    },
    /// `attach_entity_load_avg(cfs_rq, se)`.
    Attach {
        /// The cfs_rq's group.
        group: u16,
        /// The entity.
        se: u64,
    },
    /// `detach_entity_load_avg(cfs_rq, se)`.
    Detach {
        /// The cfs_rq's group.
        group: u16,
        /// The entity.
        se: u64,
    },
    /// `reweight_entity(cfs_rq, se, weight)`.
    Reweight {
        /// The cfs_rq's group.
        group: u16,
        /// The entity.
        se: u64,
        /// Its new weight, scaled.
        weight: u64,
    },
}

/// A cfs_rq, as far as its load depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CfsLoadView {
    /// Its averages.
    pub avg: AvgView,
    /// Sum of the queued entities' weights, scaled.
    pub load_weight: u64,
    /// Runnable tasks here and below.
    pub h_nr_runnable: u32,
    /// An entity of it runs.
    pub running: bool,
    /// `prop_runnable_sum` is to be moved up.
    pub propagate: u64,
    /// Runnable time that attached or detached.
    pub prop_runnable_sum: i64,
    /// What left it.
    pub removed: RemovedView,
}

/// An entity, as far as load depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntityView {
    /// Its averages.
    pub avg: AvgView,
    /// Its weight, scaled.
    pub load_weight: u64,
    /// The group that it stands for; `None` for a task.
    pub my_q: Option<u16>,
}

/// A guest whose load can be read.
pub trait LoadView {
    /// Why a read can fail.
    type Error;

    /// The cfs_rq of a group.
    fn cfs_state(&self, group: u16) -> Result<CfsLoadView, Self::Error>;
    /// The entity at an address.
    fn se_state(&self, se: u64) -> Result<EntityView, Self::Error>;
}

impl LoadCall {
    /// The group of its cfs_rq.
    pub fn group(self) -> u16 {
        match self {
            Self::UpdateLoadAvg { group, .. }
            | Self::UpdateCfsRqLoadAvg { group, .. }
            | Self::Attach { group, .. }
            | Self::Detach { group, .. }
            | Self::Reweight { group, .. } => group,
        }
    }

    /// The function.
    pub fn name(self) -> &'static str {
        match self {
            Self::UpdateLoadAvg { .. } => "update_load_avg",
            Self::UpdateCfsRqLoadAvg { .. } => "update_cfs_rq_load_avg",
            Self::Attach { .. } => "attach_entity_load_avg",
            Self::Detach { .. } => "detach_entity_load_avg",
            Self::Reweight { .. } => "reweight_entity",
        }
    }
}
