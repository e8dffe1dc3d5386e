//! The types of a crafted kernel: structures with the members that are read and those that lie beside
//! them, in the order of 7.3 or of the first 6.12.

use super::blob::{self, Blob};

/// How a kernel is built.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Build {
    /// Per-CPU variables linked from 0, `cfs_rq **`, a sequence count in each PSI group.
    Old,
    /// Per-CPU variables linked in the image, a per-CPU `cfs_rq`, one `psi_seq`.
    New,
}

/// Kinds of members.
#[derive(Clone, Copy)]
enum Of {
    U32,
    U64,
    Pointer,
    /// Two pointers to what is no pointer.
    PointerToPointer,
    /// An array of these.
    U32s(u32),
    U64s(u32),
    Bytes(u32),
    Struct(&'static str),
    /// One pointer under two names, in an anonymous union.
    Either(&'static str, &'static str),
}
use Of::*;

type Spec = (&'static str, &'static [(&'static str, Of)]);

const AVG: Spec = (
    "sched_avg",
    &[
        ("last_update_time", U64),
        ("load_sum", U64),
        ("runnable_sum", U64),
        ("util_sum", U32),
        ("period_contrib", U32),
        ("load_avg", U64),
        ("runnable_avg", U64),
        ("util_avg", U64),
        ("util_est", U32),
    ],
);
const LIST: Spec = ("list_head", &[("next", Pointer), ("prev", Pointer)]);
const SEQ: Spec = ("seqcount", &[("sequence", U32)]);
const IRQTIME: Spec =
    ("irqtime", &[("total", U64), ("tick_delta", U64), ("irq_start_time", U64), ("sync", U64)]);
const TASK: Spec = (
    "task_struct",
    &[
        ("__state", U32),
        ("stack", Pointer),
        ("sched_task_group", Pointer),
        ("tgid", U32),
        ("pid", U32),
        ("real_parent", Pointer),
        ("comm", Bytes(16)),
        ("fs", Pointer),
    ],
);
const CFS_RQ: Spec = (
    "cfs_rq",
    &[
        ("load", U64),
        ("avg", Struct("sched_avg")),
        ("removed", U64s(2)),
        ("last_update_tg_load_avg", U64),
        ("tg_load_avg_contrib", U64),
        ("propagate", U64),
        ("h_load_next", Pointer),
        ("rq", Pointer),
        ("on_list", U32),
        ("leaf_cfs_rq_list", Struct("list_head")),
        ("tg", Pointer),
        ("idle", U32),
    ],
);
const RQ: Spec = (
    "rq",
    &[
        ("nr_running", U32),
        ("ttwu_pending", U32),
        ("cpu_capacity", U64),
        ("", Either("donor", "curr")),
        ("idle", Pointer),
        ("nr_switches", U64),
        ("__lock", U32),
        ("cfs", Struct("cfs_rq")),
        ("leaf_cfs_rq_list", Struct("list_head")),
        ("tmp_alone_branch", Pointer),
        ("prev_mm", Pointer),
        ("clock_task", U64),
        ("clock_pelt", U64),
        ("clock", U64),
        ("lost_idle_time", U64),
        ("clock_update_flags", U32),
        ("push_cpu", U64),
        ("cpu", U32),
        ("online", U32),
        ("cfs_tasks", Struct("list_head")),
        ("avg_irq", Struct("sched_avg")),
        ("max_idle_balance_cost", U64),
        ("prev_irq_time", U64),
        ("psi_irq_time", U64),
        ("prev_steal_time", U64),
        ("prev_steal_time_rq", U64),
        ("calc_load_update", U64),
    ],
);
const TASK_GROUP: Spec = (
    "task_group",
    &[
        ("css", Struct("cgroup_subsys_state")),
        ("idle", U32),
        ("cfs_rq", Pointer),
        ("shares", U64),
        ("load_avg", U64),
        ("runnable_avg", U64),
        ("rcu", U64s(2)),
        ("list", Struct("list_head")),
        ("parent", Pointer),
        ("siblings", Struct("list_head")),
    ],
);
const PSI_GROUP_CPU: Spec = (
    "psi_group_cpu",
    &[
        ("tasks", U32s(4)),
        ("state_mask", U32),
        ("times", U32s(8)),
        ("state_start", U64),
        ("times_prev", U32s(16)),
    ],
);
const PSI_GROUP: Spec =
    ("psi_group", &[("parent", Pointer), ("enabled", U64), ("pcpu", Pointer), ("avg_total", U64)]);
const CSS: Spec = ("cgroup_subsys_state", &[("cgroup", Pointer), ("ss", Pointer)]);
const CGROUP: Spec = (
    "cgroup",
    &[
        ("self", Struct("cgroup_subsys_state")),
        ("kn", Pointer),
        ("procs_file", U64),
        ("bpf", U64),
        ("psi", Pointer),
        ("nr", U64),
    ],
);
const KERNFS: Spec =
    ("kernfs_node", &[("count", U64), ("__parent", Pointer), ("name", Pointer), ("rb", U64s(3))]);
const CPUSTAT: Spec = ("kernel_cpustat", &[("idle_entrytime", U64), ("cpustat", U64s(10))]);

/// All structures of a build, without one that is to be left out.
fn specs(build: Build) -> Vec<(&'static str, Vec<(&'static str, Of)>)> {
    let all = [
        LIST,
        SEQ,
        AVG,
        IRQTIME,
        CSS,
        TASK,
        CFS_RQ,
        RQ,
        TASK_GROUP,
        PSI_GROUP_CPU,
        PSI_GROUP,
        CGROUP,
        KERNFS,
        CPUSTAT,
    ];
    let mut all: Vec<_> = all.into_iter().map(|(name, members)| (name, members.to_vec())).collect();
    if build == Build::Old {
        for (name, members) in &mut all {
            for member in &mut *members {
                if *name == "task_group" && member.0 == "cfs_rq" {
                    member.1 = PointerToPointer;
                }
            }
            if *name == "psi_group_cpu" {
                members.insert(0, ("seq", Struct("seqcount")));
            }
        }
    }
    all
}

/// The types of a build; `keep` says which structures and members it has.
pub fn types(build: Build, keep: impl Fn(&str, &str) -> bool) -> Vec<u8> {
    let mut b = Blob::new();
    let (u8_, u32_, u64_) = (b.int("char", 1), b.int("unsigned int", 4), b.int("u64", 8));
    let nothing = b.structure("opaque", 0, &[]);
    let pointer = b.to(blob::PTR, "", nothing);
    let pointers = b.to(blob::PTR, "", pointer);
    let mut known: Vec<(&str, u32, u32)> = Vec::new();
    for (name, spec) in specs(build) {
        if !keep(name, "") {
            continue;
        }
        let (mut size, mut members) = (0u32, Vec::new());
        for (member, of) in spec {
            if !keep(name, member) {
                continue;
            }
            let (id, align, len) = match of {
                U32 => (u32_, 4, 4),
                U64 => (u64_, 8, 8),
                Pointer => (pointer, 8, 8),
                PointerToPointer => (pointers, 8, 8),
                U32s(n) => (b.array(u32_, n), 4, n * 4),
                U64s(n) => (b.array(u64_, n), 8, n * 8),
                Bytes(n) => (b.array(u8_, n), 1, n),
                Either(one, other) => {
                    let members = [(one, pointer, 0), (other, pointer, 0)];
                    (b.composite(blob::UNION, false, "", 8, &members), 8, 8)
                }
                Struct(of) => {
                    let Some(&(_, id, size)) = known.iter().find(|(name, ..)| *name == of) else {
                        continue;
                    };
                    (id, if size % 8 == 0 { 8 } else { 4 }, size)
                }
            };
            size = size.next_multiple_of(align);
            members.push((member, id, size * 8));
            size += len;
        }
        if name != "seqcount" {
            size = size.next_multiple_of(8);
        }
        known.push((name, b.structure(name, size, &members), size));
    }
    if keep("psi_states", "") {
        b.enumeration("psi_states", &[("PSI_CPU_FULL", 5), ("PSI_IRQ_FULL", 6)]);
    }
    if keep("psi_task_count", "") {
        b.enumeration("psi_task_count", &[("NR_MEMSTALL", 1), ("NR_RUNNING", 2)]);
    }
    b.enumeration(
        "cpu_usage_stat",
        &[
            ("CPUTIME_USER", 0),
            ("CPUTIME_SYSTEM", 2),
            ("CPUTIME_SOFTIRQ", 3),
            ("CPUTIME_IRQ", 4),
            ("CPUTIME_IDLE", 5),
            ("CPUTIME_STEAL", 7),
        ],
    );
    b.build()
}
