//! The wire format between the host (vmm) and PID 1 of a Linux guest (firmware): the protocol, its
//! ports and control words, and the plan.
//!
//! PID 1 sets the guest up and says [`control::READY_LINUX`] with the address of a buffer; whenever the
//! guest runs on from there, a [`Plan`] is in the buffer. PID 1 checks all of it with [`Plan::validate`],
//! builds the groups, creates the tasks and says [`control::STARTED`]; then it burns CPU time until the
//! port [`port::SETTLE`] answers 1. At that instant, the zero of all times in the plan, the tasks start.
//!
//! Everything is little-endian and versioned by [`VERSION`].

use core::fmt;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::{MAX_TIME_NS, NONE, TASK_BLOCKED, TASK_FORK};

/// Version of this module's layout; the plan carries it.
pub const VERSION: u32 = 1;
/// First eight bytes of a plan, `"RQSPLAN\0"` read as a little-endian integer.
pub const MAGIC: u64 = u64::from_le_bytes(*b"RQSPLAN\0");

/// Most groups of a plan, the root included.
pub const MAX_GROUPS: usize = 320;
/// Most tasks of a plan.
pub const MAX_PLAN_TASKS: usize = 318;
/// Entries of the task table.
const MAX_TASKS: usize = 320;

/// Network devices whose frames may wake tasks.
pub const MAX_NETS: usize = 4;
/// EtherType of the frames that network device 0 delivers; device k has this plus k. In the range that
/// names protocols, and used by none that Linux knows (include/uapi/linux/if_ether.h).
pub const ETHERTYPE: u16 = 0x9000;

/// I/O ports, beside [`super::port::BURN`] and [`super::port::CONTROL`]: PID 1 gives itself and all tasks
/// access to [`port::FIRST`] and the [`port::COUNT`] - 1 after it.
pub mod port {
    /// The first port that tasks may use.
    pub const FIRST: u16 = 0xe0;
    /// How many there are.
    pub const COUNT: u16 = 0x20;
    /// `in`: is the guest settled? 0: burn [`super::SETTLE_BURN_NS`] and ask again; 1: the run starts now.
    pub const SETTLE: u16 = 0xec;
}

/// What PID 1 burns between two questions, ns.
pub const SETTLE_BURN_NS: u32 = 5_000_000;

/// Words written to [`super::port::CONTROL`], with arguments in `rdi`, `rsi` and `rdx`.
pub mod control {
    /// Everything is set up that does not depend on the plan: `rdi` is the virtual address of a
    /// page-aligned buffer whose pages are all present and writable, `rsi` its size, `rdx` the
    /// time-stamp counter as read since [`HOLD`], where the guest's clock stops. With `rsi` 0 there is no
    /// buffer, and `rdx` means nothing.
    pub const READY_LINUX: u32 = 16;
    /// No interrupt is to come before [`READY_LINUX`], which follows at once.
    pub const HOLD: u32 = 20;
    /// The groups are built, every task exists and waits for the run to start.
    pub const STARTED: u32 = 17;
    /// The guest cannot go on: `rdi` is the address of a message, `rsi` its length (it is ASCII, and
    /// no longer than [`super::MAX_MESSAGE`]), `rdx` the kernel's error number or 0.
    pub const FAILED: u32 = 18;
    /// The calling process is task `rdi` of the plan, or one activation of it: said once by each
    /// process before it burns.
    pub const TASK: u32 = 19;
}

/// Longest message of [`control::FAILED`], bytes.
pub const MAX_MESSAGE: usize = 512;

/// A task group; index 0 is the root of the cgroup hierarchy and ignores its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Group {
    /// `cpu.weight` of cgroup v2: 1 to 10,000.
    pub weight: u16,
    /// Index of the parent, which comes earlier in the table.
    pub parent: u16,
    /// Last component of its path, and zeros up to the end: at least one. It has no `/`, space or
    /// control character, and is neither `.` nor `..`.
    pub name: [u8; 256],
}

/// A task: burns a drawn amount of CPU time, then wakes its partner, sleeps, or both. See
/// [`super::TaskSpec`], with which it shares the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Task {
    /// Least CPU time of one activation, ns, above zero.
    pub burn_min_ns: u64,
    /// Most CPU time of one activation, ns.
    pub burn_max_ns: u64,
    /// Least sleep after an activation, ns.
    pub sleep_min_ns: u64,
    /// Most sleep after an activation, ns; 0 means no timed sleep.
    pub sleep_max_ns: u64,
    /// First activation, ns after the start of the run.
    pub start_ns: u64,
    /// Seed of the task's draws ([`crate::draw::draw`]).
    pub seed: u64,
    /// `nice`, -20 to 19.
    pub nice: i16,
    /// Index of the group.
    pub group: u16,
    /// Index of the task woken at the end of each activation, or [`NONE`].
    pub wakes: u16,
    /// [`TASK_FORK`] and [`TASK_BLOCKED`].
    pub flags: u16,
    /// Zero.
    pub reserved: [u16; 4],
}

/// What the host tells PID 1 of a Linux guest.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Plan {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u32,
    /// `size_of::<Plan>()`.
    pub size: u32,
    /// Groups used in `groups`, the root included.
    pub nr_groups: u16,
    /// Tasks used in `tasks`, at most [`MAX_PLAN_TASKS`].
    pub nr_tasks: u16,
    /// Network devices that the run uses, woken tasks or not.
    pub nr_nets: u16,
    /// Zero.
    pub reserved: u16,
    /// For each network device the task that its frames wake, or [`NONE`].
    pub net_wakes: [u16; MAX_NETS],
    /// The task table.
    pub tasks: [Task; MAX_TASKS],
    /// The group table.
    pub groups: [Group; MAX_GROUPS],
}

const _: () = {
    assert!(size_of::<Group>() == 260);
    assert!(size_of::<Task>() == 64);
    assert!(size_of::<Plan>() == 32 + MAX_TASKS * 64 + MAX_GROUPS * 260);
};

/// Why a plan is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// `magic` is not [`MAGIC`]: nothing answers the doorbell, perhaps.
    Magic(u64),
    /// `version` or `size` is not this build's.
    Version {
        /// The version found.
        version: u32,
        /// The size found.
        size: u32,
    },
    /// `reserved` is not zero.
    Reserved,
    /// A table's length is out of range.
    Count,
    /// A group's parent does not come before it, or its weight or name is out of range.
    Group(u16),
    /// A task's group, nice value, times, flags or partner are out of range.
    Task(u16),
    /// A network device wakes a task that does not exist.
    Net(u16),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic(got) => write!(f, "it begins with {got:#x}, not {MAGIC:#x}"),
            Self::Version { version, size } => write!(
                f,
                "it has version {version} and {size} bytes, not version {VERSION} and {} bytes",
                size_of::<Plan>()
            ),
            Self::Reserved => write!(f, "a reserved field is not zero"),
            Self::Count => write!(f, "a table's length is out of range"),
            Self::Group(i) => write!(f, "group {i} has a field out of range"),
            Self::Task(i) => write!(f, "task {i} has a field out of range"),
            Self::Net(i) => write!(f, "network device {i} wakes no task of the plan"),
        }
    }
}

impl core::error::Error for PlanError {}

impl Group {
    /// A group called `name`; `None` if a group cannot be called so.
    pub fn new(name: &str, weight: u16, parent: u16) -> Option<Self> {
        let mut group = Self { weight, parent, name: [0; 256] };
        group.name.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        (group.name()? == name.as_bytes()).then_some(group)
    }

    /// The name; `None` if it is not one.
    pub fn name(&self) -> Option<&[u8]> {
        let end = self.name.iter().position(|b| *b == 0)?;
        let (name, rest) = self.name.split_at(end);
        let sound = !matches!(name, b"" | b"." | b"..")
            && name.iter().all(|b| b.is_ascii_graphic() && *b != b'/')
            && rest.iter().all(|b| *b == 0);
        sound.then_some(name)
    }
}

impl Task {
    /// Does it wait to be woken after an activation? A task without a timed sleep does, if it wakes
    /// another or starts asleep. `index` is its own.
    pub fn blocks(&self, index: u16) -> bool {
        self.sleep_max_ns == 0
            && ((self.wakes != NONE && self.wakes != index) || self.flags & TASK_BLOCKED != 0)
    }
}

impl Plan {
    /// A plan with the root group and no task.
    pub fn new() -> Self {
        let mut plan = Self::new_zeroed();
        plan.magic = MAGIC;
        plan.version = VERSION;
        plan.size = size_of::<Self>() as u32;
        plan.nr_groups = 1;
        plan.net_wakes = [NONE; MAX_NETS];
        plan
    }

    /// Checks every field that PID 1 will use; after it, no index of the plan is out of range.
    pub fn validate(&self) -> Result<(), PlanError> {
        let ensure = |ok: bool, e: PlanError| if ok { Ok(()) } else { Err(e) };
        ensure(self.magic == MAGIC, PlanError::Magic(self.magic))?;
        ensure(
            self.version == VERSION && self.size as usize == size_of::<Self>(),
            PlanError::Version { version: self.version, size: self.size },
        )?;
        ensure(self.reserved == 0, PlanError::Reserved)?;
        let (groups, tasks) = (usize::from(self.nr_groups), usize::from(self.nr_tasks));
        ensure((1..=MAX_GROUPS).contains(&groups), PlanError::Count)?;
        ensure(tasks <= MAX_PLAN_TASKS, PlanError::Count)?;
        ensure(usize::from(self.nr_nets) <= MAX_NETS, PlanError::Count)?;

        for (i, g) in (0..).zip(&self.groups[..groups]).skip(1) {
            let ok = g.parent < i && (1..=10_000).contains(&g.weight) && g.name().is_some();
            ensure(ok, PlanError::Group(i))?;
        }
        let wakeable = |task: u16| task == NONE || usize::from(task) < tasks;
        for (i, t) in (0..).zip(&self.tasks[..tasks]) {
            let ok = usize::from(t.group) < groups
                && (-20..=19).contains(&t.nice)
                && t.burn_min_ns > 0
                && t.burn_min_ns <= t.burn_max_ns
                && t.sleep_min_ns <= t.sleep_max_ns
                && t.burn_max_ns <= MAX_TIME_NS
                && t.sleep_max_ns <= MAX_TIME_NS
                && t.start_ns <= MAX_TIME_NS
                && wakeable(t.wakes)
                && t.flags & !(TASK_FORK | TASK_BLOCKED) == 0
                && t.reserved == [0; 4];
            ensure(ok, PlanError::Task(i))?;
        }
        for (k, task) in (0..).zip(self.net_wakes) {
            let ok = task == NONE || (k < self.nr_nets && wakeable(task));
            ensure(ok, PlanError::Net(k))?;
        }
        Ok(())
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
