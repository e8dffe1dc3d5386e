//! Addresses and offsets of everything that is read, resolved once.

use thiserror::Error;

use super::groups::GroupError;
use super::layout::{Field, LayoutError, LayoutSource, Resolver};
use super::linux::btf::BtfError;
use super::read::ReadError;
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
    /// The kernel's types cannot be read.
    #[error(transparent)]
    Types(#[from] BtfError),
    /// The kernel file is not the one that runs.
    #[error("the types in {file} are not those in guest memory: it is the file of another kernel")]
    Foreign {
        /// The file.
        file: String,
    },
    /// A structure that leads to others does not read as it should.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The kernel lacks what nothing can be judged without.
    #[error("the guest's kernel {lacks}: {missing}")]
    Lacks {
        /// How it lacks it: `is built without CONFIG_...`.
        lacks: &'static str,
        /// What shows it.
        missing: String,
    },
    /// A group that is to be looked at does not exist.
    #[error("the guest has no task group {path}: {known}")]
    NoGroup {
        /// Its path.
        path: String,
        /// Those that there are.
        known: String,
    },
}

/// What a kernel lacks that others have, each with how it comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lacks {
    /// PSI of IRQ time: `psi_irq_time`, `psi_seq` and every [`crate::view::PsiView`] are 0 and mean
    /// nothing.
    pub psi: Option<&'static str>,
    /// Steal accounting: `prev_steal_time_rq` is 0 and means nothing.
    pub steal: Option<&'static str>,
}

/// Members of `struct rq`.
pub(super) struct RqFields {
    pub cpu: Field<u32>,
    pub nr_running: Field<u32>,
    pub nr_switches: Field<u64>,
    pub curr: Field<u64>,
    pub idle: Field<u64>,
    /// `clock_update_flags`, where the kernel may skip updates.
    pub clock_update_flags: Option<Field<u32>>,
    pub clock: Field<u64>,
    pub clock_task: Field<u64>,
    pub clock_pelt: Field<u64>,
    pub lost_idle_time: Field<u64>,
    pub prev_irq_time: Field<u64>,
    pub prev_steal_time_rq: Option<Field<u64>>,
    pub avg_irq: AvgFields,
    pub leaf_cfs_rq_list: u64,
    /// The root group's cfs_rq, where the run queue contains it.
    pub cfs: Option<u64>,
}

/// Members of a `struct sched_avg` inside another structure.
pub(super) struct AvgFields {
    pub last_update_time: Field<u64>,
    pub load_sum: Field<u64>,
    pub runnable_sum: Field<u64>,
    pub util_sum: Field<u32>,
    pub period_contrib: Field<u32>,
    pub load_avg: Field<u64>,
    pub runnable_avg: Field<u64>,
    pub util_avg: Field<u64>,
}

/// The members of the `sched_avg` that `$structure` has under the name `$avg`.
macro_rules! avg_fields {
    ($resolver:expr, $structure:literal, $avg:literal) => {
        (|r: &mut Resolver<'_>| {
            Ok::<_, LayoutError>(AvgFields {
                last_update_time: r.field($structure, concat!($avg, ".last_update_time"))?,
                load_sum: r.field($structure, concat!($avg, ".load_sum"))?,
                runnable_sum: r.field($structure, concat!($avg, ".runnable_sum"))?,
                util_sum: r.field($structure, concat!($avg, ".util_sum"))?,
                period_contrib: r.field($structure, concat!($avg, ".period_contrib"))?,
                load_avg: r.field($structure, concat!($avg, ".load_avg"))?,
                runnable_avg: r.field($structure, concat!($avg, ".runnable_avg"))?,
                util_avg: r.field($structure, concat!($avg, ".util_avg"))?,
            })
        })($resolver)
    };
}

/// Members of `struct task_struct`.
pub(super) struct TaskFields {
    pub pid: Field<u32>,
    pub sched_task_group: Field<u64>,
    pub comm: Option<Field<[u8; 16]>>,
}

/// Members of `struct cfs_rq`.
pub(super) struct CfsRqFields {
    pub load_avg: Field<u64>,
    pub tg_load_avg_contrib: Field<u64>,
    pub last_update_tg_load_avg: Field<u64>,
    pub runnable: Option<RunnableFields>,
    pub tg: Field<u64>,
    pub rq: Option<Field<u64>>,
    pub leaf_cfs_rq_list: u64,
}

/// Members of `struct cfs_rq` and `struct task_group` that 7.3 publishes beside the load.
pub(super) struct RunnableFields {
    pub runnable_avg: Field<u64>,
    pub tg_runnable_avg_contrib: Field<u64>,
    pub tg_runnable_avg: Field<u64>,
}

/// What the load of a cfs_rq depends on.
pub(super) struct LoadPlaces {
    pub avg: AvgFields,
    pub load_weight: Field<u64>,
    /// Runnable tasks; until 6.13 those queued, less [`LoadPlaces::h_nr_delayed`].
    pub h_nr_runnable: Field<u32>,
    pub h_nr_delayed: Option<Field<u32>>,
    pub curr: Field<u64>,
    pub propagate: Field<u64>,
    pub prop_runnable_sum: Field<u64>,
    pub removed_nr: Field<u32>,
    pub removed_load_avg: Field<u64>,
    pub removed_util_avg: Field<u64>,
    pub removed_runnable_avg: Field<u64>,
    /// Members of `struct sched_entity`.
    pub se_avg: AvgFields,
    pub se_load_weight: Field<u64>,
    pub my_q: Field<u64>,
}

impl LoadPlaces {
    fn resolve(r: &mut Resolver<'_>) -> Result<Self, LayoutError> {
        let h_nr_delayed = match r.optional::<u32>("cfs_rq", "h_nr_runnable")? {
            Some(_) => None,
            None => r.optional("cfs_rq", "h_nr_delayed")?,
        };
        Ok(Self {
            avg: avg_fields!(r, "cfs_rq", "avg")?,
            load_weight: r.field("cfs_rq", "load.weight")?,
            h_nr_runnable: r.any_of("cfs_rq", &["h_nr_runnable", "h_nr_queued", "h_nr_running"])?,
            h_nr_delayed,
            // 7.3 keeps all tasks on the root's, and each group's own running entity under this name.
            curr: r.any_of("cfs_rq", &["h_curr", "curr"])?,
            propagate: r.field("cfs_rq", "propagate")?,
            prop_runnable_sum: r.field("cfs_rq", "prop_runnable_sum")?,
            removed_nr: r.field("cfs_rq", "removed.nr")?,
            removed_load_avg: r.field("cfs_rq", "removed.load_avg")?,
            removed_util_avg: r.field("cfs_rq", "removed.util_avg")?,
            removed_runnable_avg: r.field("cfs_rq", "removed.runnable_avg")?,
            se_avg: avg_fields!(r, "sched_entity", "avg")?,
            se_load_weight: r.field("sched_entity", "load.weight")?,
            my_q: r.field("sched_entity", "my_q")?,
        })
    }
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

/// PSI's IRQ time: members of `struct psi_group_cpu`, and what is beside it.
pub(super) struct PsiPlaces {
    /// `rq.psi_irq_time`.
    pub irq_time: Field<u64>,
    /// The seqcount around every write.
    pub seq: Field<u32>,
    /// Where it is; `None` where each group has its own, and the root's stands for all.
    pub seq_address: Option<u64>,
    pub irq_full: Field<u32>,
    pub nr_running: Option<Field<u32>>,
    pub state_mask: Field<u32>,
    pub state_start: Field<u64>,
}

impl PsiPlaces {
    /// PSI's places, or how the kernel lacks it.
    pub fn resolve(
        symbols: &dyn SymbolSource,
        layout: &dyn LayoutSource,
        r: &mut Resolver<'_>,
    ) -> Result<Result<Self, &'static str>, SetupError> {
        if !layout.has_struct("psi_group_cpu") {
            return Ok(Err("is built without CONFIG_PSI"));
        }
        let Some(irq_time) = r.optional("rq", "psi_irq_time")? else {
            return Ok(Err("is older than Linux 6.10, which has rq.psi_irq_time"));
        };
        // One per CPU since 6.18 and in later 6.12; before, a member of each group.
        let (seq, seq_address) = match symbols.address("psi_seq") {
            Ok(address) => (r.field("seqcount", "sequence")?, Some(address)),
            Err(SymbolError::Missing { .. }) => (r.field("psi_group_cpu", "seq.sequence")?, None),
            Err(e) => return Err(e.into()),
        };
        // Kernels keep only the enumerations that one of their variables has as its type.
        let nr_running = match r.element("psi_group_cpu", "tasks", ("psi_task_count", "NR_RUNNING"))
        {
            Ok(field) => Some(field),
            Err(LayoutError::NoEnumerator { .. }) => None,
            Err(e) => return Err(e.into()),
        };
        Ok(Ok(Self {
            irq_time,
            seq,
            seq_address,
            irq_full: r.element("psi_group_cpu", "times", ("psi_states", "PSI_IRQ_FULL"))?,
            nr_running,
            state_mask: r.field("psi_group_cpu", "state_mask")?,
            state_start: r.field("psi_group_cpu", "state_start")?,
        }))
    }
}

/// What a CPU's time was spent on, as `/proc/stat` has it: elements of `kernel_cpustat.cpustat`.
pub(super) struct CpustatPlaces {
    pub address: u64,
    pub user: Field<u64>,
    pub system: Field<u64>,
    pub softirq: Field<u64>,
    pub irq: Field<u64>,
    pub idle: Field<u64>,
    pub steal: Field<u64>,
}

impl CpustatPlaces {
    fn resolve(address: u64, r: &mut Resolver<'_>) -> Result<Self, LayoutError> {
        let mut element = |name| r.element("kernel_cpustat", "cpustat", ("cpu_usage_stat", name));
        Ok(Self {
            address,
            user: element("CPUTIME_USER")?,
            system: element("CPUTIME_SYSTEM")?,
            softirq: element("CPUTIME_SOFTIRQ")?,
            irq: element("CPUTIME_IRQ")?,
            idle: element("CPUTIME_IDLE")?,
            steal: element("CPUTIME_STEAL")?,
        })
    }
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
    /// Address of the preempt count, where it is known.
    pub preempt_count: Option<u64>,
    /// Address of the pointer `ksoftirqd`, where the kernel has one.
    pub ksoftirqd: Option<u64>,
    /// Address of swapper's `task_struct`, where that is a variable.
    pub init_task: Option<u64>,
    /// Address of the number of tasks, where the kernel counts them.
    pub nr_threads: Option<u64>,
    pub rq: RqFields,
    pub task: TaskFields,
    pub cfs_rq: CfsRqFields,
    /// What load depends on, or which member is not there.
    pub load: Result<LoadPlaces, LayoutError>,
    pub task_group: TaskGroupFields,
    pub list: ListFields,
    pub irqtime: IrqtimeFields,
    pub psi: Option<PsiPlaces>,
    pub cpustat: Option<CpustatPlaces>,
    pub costs: Option<CostFields>,
    pub lacks: Lacks,
}

/// How a kernel lacks task groups.
pub(super) const NO_GROUPS: &str = "is built without CONFIG_FAIR_GROUP_SCHED";

/// Says for a name that is missing how a kernel comes to lack it.
pub(super) fn needs<T, E: Into<SetupError>>(
    lacks: &'static str,
    found: Result<T, E>,
) -> Result<T, SetupError> {
    found.map_err(|e| match e.into() {
        e @ (SetupError::Symbol(SymbolError::Missing { .. })
        | SetupError::Layout(LayoutError::NoStruct { .. } | LayoutError::NoMember { .. })) => {
            SetupError::Lacks { lacks, missing: e.to_string() }
        }
        e => e,
    })
}

/// A variable that not every kernel has.
fn optional(symbols: &dyn SymbolSource, name: &'static str) -> Result<Option<u64>, SymbolError> {
    match symbols.address(name) {
        Ok(address) => Ok(Some(address)),
        Err(SymbolError::Missing { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

impl Places {
    pub fn resolve(
        symbols: &dyn SymbolSource,
        layout: &dyn LayoutSource,
    ) -> Result<Self, SetupError> {
        let r = &mut Resolver::new(layout);
        let groups = NO_GROUPS;
        let irqtime = "is built without CONFIG_IRQ_TIME_ACCOUNTING";
        // Until 6.16 a kernel for one CPU kept no load averages.
        let smp = "is built without CONFIG_SMP";
        let task_group = TaskGroupFields {
            parent: needs(groups, r.field("task_group", "parent"))?,
            load_avg: needs(smp, r.field("task_group", "load_avg"))?,
        };
        let cfs_rq = CfsRqFields {
            tg: needs(groups, r.field("cfs_rq", "tg"))?,
            load_avg: needs(smp, r.field("cfs_rq", "avg.load_avg"))?,
            tg_load_avg_contrib: r.field("cfs_rq", "tg_load_avg_contrib")?,
            last_update_tg_load_avg: needs(
                "is older than Linux 6.7",
                r.field("cfs_rq", "last_update_tg_load_avg"),
            )?,
            runnable: match r.optional("cfs_rq", "tg_runnable_avg_contrib")? {
                None => None,
                Some(tg_runnable_avg_contrib) => Some(RunnableFields {
                    runnable_avg: r.field("cfs_rq", "avg.runnable_avg")?,
                    tg_runnable_avg_contrib,
                    tg_runnable_avg: r.field("task_group", "runnable_avg")?,
                }),
            },
            rq: r.optional("cfs_rq", "rq")?,
            leaf_cfs_rq_list: r.list_head("cfs_rq", "leaf_cfs_rq_list")?,
        };
        let cpu_irqtime = needs(irqtime, symbols.address("cpu_irqtime"))?;
        let prev_steal_time_rq = r.optional("rq", "prev_steal_time_rq")?;
        let rq = RqFields {
            cpu: r.field("rq", "cpu")?,
            // Its like in cfs_rq was renamed in 6.14.
            nr_running: r.any_of("rq", &["nr_running", "nr_queued"])?,
            nr_switches: r.field("rq", "nr_switches")?,
            curr: r.field("rq", "curr")?,
            idle: r.field("rq", "idle")?,
            clock_update_flags: r.optional("rq", "clock_update_flags")?,
            clock: r.field("rq", "clock")?,
            clock_task: r.field("rq", "clock_task")?,
            clock_pelt: r.field("rq", "clock_pelt")?,
            lost_idle_time: r.field("rq", "lost_idle_time")?,
            prev_irq_time: needs(irqtime, r.field("rq", "prev_irq_time"))?,
            avg_irq: needs(smp, avg_fields!(r, "rq", "avg_irq"))?,
            leaf_cfs_rq_list: r.list_head("rq", "leaf_cfs_rq_list")?,
            cfs: r.start("rq", "cfs")?,
            prev_steal_time_rq,
        };
        let (psi, no_psi) = match PsiPlaces::resolve(symbols, layout, r)? {
            Ok(psi) => (Some(psi), None),
            Err(lacks) => (None, Some(lacks)),
        };
        let no_steal = "is built without CONFIG_PARAVIRT_TIME_ACCOUNTING";
        let lacks =
            Lacks { psi: no_psi, steal: rq.prev_steal_time_rq.is_none().then_some(no_steal) };
        Ok(Self {
            runqueues: symbols.address("runqueues")?,
            cpu_irqtime,
            preempt_count: match optional(symbols, "__preempt_count")? {
                Some(address) => Some(address),
                // One of the members of a hot structure from 6.2 to 6.14.
                None => match optional(symbols, "pcpu_hot")? {
                    Some(hot) => r
                        .optional::<u32>("pcpu_hot", "preempt_count")?
                        .map(|field| hot.wrapping_add(field.offset)),
                    None => None,
                },
            },
            ksoftirqd: optional(symbols, "ksoftirqd")?,
            init_task: optional(symbols, "init_task")?,
            nr_threads: optional(symbols, "nr_threads")?,
            rq,
            task: TaskFields {
                pid: r.field("task_struct", "pid")?,
                sched_task_group: r.field("task_struct", "sched_task_group")?,
                comm: r.optional("task_struct", "comm")?,
            },
            cfs_rq,
            load: match LoadPlaces::resolve(r) {
                Err(
                    e @ (LayoutError::NoStruct { .. }
                    | LayoutError::NoMember { .. }
                    | LayoutError::NoMemberOf { .. }),
                ) => Err(e),
                other => Ok(other?),
            },
            task_group,
            list: ListFields {
                next: r.field("list_head", "next")?,
                prev: r.field("list_head", "prev")?,
            },
            irqtime: IrqtimeFields {
                total: r.field("irqtime", "total")?,
                irq_start_time: r.field("irqtime", "irq_start_time")?,
            },
            psi,
            cpustat: match optional(symbols, "kernel_cpustat")? {
                Some(address) => Some(CpustatPlaces::resolve(address, r)?),
                None => None,
            },
            costs: match layout.has_struct(COSTS) {
                true => Some(CostFields::resolve(symbols.address(COSTS)?, r)?),
                false => None,
            },
            lacks,
        })
    }
}
