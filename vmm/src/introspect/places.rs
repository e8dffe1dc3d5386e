//! Addresses and offsets of everything that is read, resolved once.

use thiserror::Error;

use super::groups::GroupError;
use super::layout::{Field, LayoutError, LayoutSource, Resolver};
use super::symbols::{SymbolError, SymbolSource};

/// Why a guest's kernel cannot be read at all.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SetupError {
    /// A variable's address is not known.
    #[error(transparent)]
    Symbol(#[from] SymbolError),
    /// A member's place is not known.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The groups cannot be told apart.
    #[error(transparent)]
    Groups(#[from] GroupError),
}

/// Members of `struct rq`.
pub(super) struct RqFields {
    pub cpu: Field<u32>,
    pub nr_running: Field<u32>,
    pub nr_switches: Field<u64>,
    pub curr: Field<u64>,
    pub idle: Field<u64>,
    pub clock: Field<u64>,
    pub clock_task: Field<u64>,
    pub clock_pelt: Field<u64>,
    pub lost_idle_time: Field<u64>,
    pub prev_irq_time: Field<u64>,
    pub prev_steal_time_rq: Field<u64>,
    pub psi_irq_time: Field<u64>,
    pub avg_irq_util_avg: Field<u64>,
    pub leaf_cfs_rq_list: u64,
}

/// Members of `struct task_struct`.
pub(super) struct TaskFields {
    pub pid: Field<u32>,
    pub sched_task_group: Field<u64>,
}

/// Members of `struct cfs_rq`.
pub(super) struct CfsRqFields {
    pub load_avg: Field<u64>,
    pub tg_load_avg_contrib: Field<u64>,
    pub last_update_tg_load_avg: Field<u64>,
    pub tg: Field<u64>,
    pub leaf_cfs_rq_list: u64,
}

/// Members of `struct task_group`.
pub(super) struct TaskGroupFields {
    pub load_avg: Field<u64>,
    pub parent: Field<u64>,
}

/// Members of `struct list_head`.
pub(super) struct ListFields {
    pub next: Field<u64>,
    pub prev: Field<u64>,
}

/// Members of `struct irqtime`.
pub(super) struct IrqtimeFields {
    pub total: Field<u64>,
    pub irq_start_time: Field<u64>,
}

/// Members of `struct psi_group_cpu`.
pub(super) struct PsiFields {
    pub irq_full: Field<u32>,
    pub nr_running: Field<u32>,
    pub state_mask: Field<u32>,
    pub state_start: Field<u64>,
}

/// The counters of a kernel that counts what its rules cost.
pub(super) struct CostFields {
    pub address: u64,
    pub clock_reads_update_rq_clock: Field<u64>,
    pub clock_reads_irqtime_account_irq: Field<u64>,
    pub clock_reads_update_tg_load_avg: Field<u64>,
    pub clock_reads_psi_account_irqtime: Field<u64>,
    pub clock_reads_psi_other: Field<u64>,
    pub psi_account_irqtime_seqcount_writes: Field<u64>,
    pub psi_account_irqtime_levels: Field<u64>,
    pub tg_load_avg_atomic_adds: Field<u64>,
    pub update_tg_load_avg_rate_limited: Field<u64>,
    pub update_tg_load_avg_below_tolerance: Field<u64>,
}

/// The structure that a layout knows if, and only if, the kernel counts costs.
pub(super) const COSTS: &str = "rqscope_costs";

impl CostFields {
    fn resolve(address: u64, r: &mut Resolver<'_>) -> Result<Self, LayoutError> {
        let mut count = |member| r.field(COSTS, member);
        Ok(Self {
            address,
            clock_reads_update_rq_clock: count("clock_reads_update_rq_clock")?,
            clock_reads_irqtime_account_irq: count("clock_reads_irqtime_account_irq")?,
            clock_reads_update_tg_load_avg: count("clock_reads_update_tg_load_avg")?,
            clock_reads_psi_account_irqtime: count("clock_reads_psi_account_irqtime")?,
            clock_reads_psi_other: count("clock_reads_psi_other")?,
            psi_account_irqtime_seqcount_writes: count("psi_account_irqtime_seqcount_writes")?,
            psi_account_irqtime_levels: count("psi_account_irqtime_levels")?,
            tg_load_avg_atomic_adds: count("tg_load_avg_atomic_adds")?,
            update_tg_load_avg_rate_limited: count("update_tg_load_avg_rate_limited")?,
            update_tg_load_avg_below_tolerance: count("update_tg_load_avg_below_tolerance")?,
        })
    }
}

/// Addresses and offsets of everything that is read.
pub(super) struct Places {
    /// Address of `runqueues`.
    pub runqueues: u64,
    /// Address of `cpu_irqtime`.
    pub cpu_irqtime: u64,
    pub psi_seq: Field<u32>,
    pub psi_seq_address: u64,
    pub rq: RqFields,
    pub task: TaskFields,
    pub cfs_rq: CfsRqFields,
    pub task_group: TaskGroupFields,
    pub list: ListFields,
    pub irqtime: IrqtimeFields,
    pub psi: PsiFields,
    pub costs: Option<CostFields>,
}

impl Places {
    pub fn resolve(
        symbols: &dyn SymbolSource,
        layout: &dyn LayoutSource,
    ) -> Result<Self, SetupError> {
        let r = &mut Resolver::new(layout);
        Ok(Self {
            runqueues: symbols.address("runqueues")?,
            cpu_irqtime: symbols.address("cpu_irqtime")?,
            psi_seq: r.field("seqcount", "sequence")?,
            psi_seq_address: symbols.address("psi_seq")?,
            rq: RqFields {
                cpu: r.field("rq", "cpu")?,
                nr_running: r.field("rq", "nr_running")?,
                nr_switches: r.field("rq", "nr_switches")?,
                curr: r.field("rq", "curr")?,
                idle: r.field("rq", "idle")?,
                clock: r.field("rq", "clock")?,
                clock_task: r.field("rq", "clock_task")?,
                clock_pelt: r.field("rq", "clock_pelt")?,
                lost_idle_time: r.field("rq", "lost_idle_time")?,
                prev_irq_time: r.field("rq", "prev_irq_time")?,
                prev_steal_time_rq: r.field("rq", "prev_steal_time_rq")?,
                psi_irq_time: r.field("rq", "psi_irq_time")?,
                avg_irq_util_avg: r.field("rq", "avg_irq.util_avg")?,
                leaf_cfs_rq_list: r.list_head("rq", "leaf_cfs_rq_list")?,
            },
            task: TaskFields {
                pid: r.field("task_struct", "pid")?,
                sched_task_group: r.field("task_struct", "sched_task_group")?,
            },
            cfs_rq: CfsRqFields {
                load_avg: r.field("cfs_rq", "avg.load_avg")?,
                tg_load_avg_contrib: r.field("cfs_rq", "tg_load_avg_contrib")?,
                last_update_tg_load_avg: r.field("cfs_rq", "last_update_tg_load_avg")?,
                tg: r.field("cfs_rq", "tg")?,
                leaf_cfs_rq_list: r.list_head("cfs_rq", "leaf_cfs_rq_list")?,
            },
            task_group: TaskGroupFields {
                load_avg: r.field("task_group", "load_avg")?,
                parent: r.field("task_group", "parent")?,
            },
            list: ListFields {
                next: r.field("list_head", "next")?,
                prev: r.field("list_head", "prev")?,
            },
            irqtime: IrqtimeFields {
                total: r.field("irqtime", "total")?,
                irq_start_time: r.field("irqtime", "irq_start_time")?,
            },
            psi: PsiFields {
                irq_full: r.element("psi_group_cpu", "times", ("psi_states", "PSI_IRQ_FULL"))?,
                nr_running: r.element(
                    "psi_group_cpu",
                    "tasks",
                    ("psi_task_count", "NR_RUNNING"),
                )?,
                state_mask: r.field("psi_group_cpu", "state_mask")?,
                state_start: r.field("psi_group_cpu", "state_start")?,
            },
            costs: match layout.has_struct(COSTS) {
                true => Some(CostFields::resolve(symbols.address(COSTS)?, r)?),
                false => None,
            },
        })
    }
}
