//! Scenarios: what the guest runs, which interrupts and steal time it meets, and for how long.
//!
//! A scenario is a TOML text with overrides; `docs/scenario.md` lists the keys. Loading refuses
//! what is misspelt, ill-typed or impossible and names the key and its line. Everything held here
//! is an exact integer: times in ns, rates in nHz, shares in billionths.

mod builtin;
mod decode;
mod document;
mod error;
mod field;
mod limits;
mod linux;
mod sources;
mod units;
mod write;

pub use builtin::{BUILTIN, Builtin, builtin};
pub use error::{Place, Problem, ScenarioError};
pub(crate) use field::hint;
pub use linux::{Device, DeviceKind, LinuxPlan, LinuxPlanError, MAX_ENTROPY, Nearest, Note};
pub use units::{MAX_NS, Rate, Share, UnitError, format_duration, parse_duration};

use guest_model::policy::{Policy, PsiZeroDelta, RateLimitClock};
use guest_model::wire::{
    self, BootPage, FIRST_PID, GroupSpec, IrqSpec, MAX_IRQS, MAX_TASKS, TaskSpec,
};

use crate::model::zeroed;
use crate::schedule::{Stream, stream_seed};

/// Longest run and longest time in one piece: 24 h.
pub const MAX_DURATION_NS: u64 = 24 * 3_600 * 1_000_000_000;
/// Longest handler, and longest slice stolen inside one, ns.
pub const MAX_HANDLER_NS: u64 = u32::MAX as u64;
/// Most injected interrupt lines; the timer has one more.
pub const MAX_LINES: usize = MAX_IRQS - 1;
/// Most steal sources.
pub const MAX_STEALS: usize = 32;
/// Most tasks, copies counted.
pub const MAX_SCENARIO_TASKS: usize = MAX_TASKS - FIRST_PID as usize;
/// Most ticks, interrupts and steal slices that a run may be expected to have.
pub const MAX_EVENTS: u64 = 1_000_000_000;
/// Name of line 0, the timer's.
pub const TIMER: &str = "timer";

/// A scenario that has been checked: no index or time in it is out of range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Its name; the name of its file unless it says otherwise.
    pub name: String,
    /// The question it answers, in a line.
    pub summary: String,
    /// Guest time of the run.
    pub duration_ns: u64,
    /// Seed of every draw, the tasks' included.
    pub seed: u64,
    /// The timer.
    pub tick: Tick,
    /// Guest time from which the CPU is inactive and its contributions are cleared.
    pub offline_ns: Option<u64>,
    /// The guest has a paravirtual steal clock.
    pub steal_clock: bool,
    /// The kernel's variants.
    pub policy: Policies,
    /// Task groups; entry 0 is the root, and parents come before their children.
    pub groups: Vec<Group>,
    /// Tasks, as declared.
    pub tasks: Vec<Task>,
    /// Interrupt sources; entry i is line i + 1.
    pub irqs: Vec<Irq>,
    /// Steal sources.
    pub steals: Vec<Steal>,
    /// Which checks run.
    pub checks: Checks,
}

/// The timer's interrupt, line 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// Its rate; the guest's period is [`Rate::period_ns`].
    pub rate: Rate,
    /// Time spent in its handler, in hardirq context.
    pub cost_ns: u32,
}

/// The kernel's variants that are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies {
    /// The rate limit's clock of the main pass.
    pub rate_limit_clock: RateLimitClock,
    /// The zero-delta rule.
    pub psi: PsiZeroDelta,
    /// The rate limit's clocks that are compared, a pass each, without repetition.
    pub compare: Vec<RateLimitClock>,
}

/// A task group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Path without a leading `/`; the root's is empty.
    pub path: String,
    /// `cpu.weight` of cgroup v2, 1 to 10,000.
    pub weight: u32,
    /// Index of the parent; the root's is 0.
    pub parent: u16,
}

/// A range of times, drawn from uniformly, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The least.
    pub min_ns: u64,
    /// The most.
    pub max_ns: u64,
}

/// A task, or several copies of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its name.
    pub name: String,
    /// Index of its group, or of each copy's.
    pub groups: Vec<u16>,
    /// Load weight before scaling, 3 to 262,144; nice 0 is 1,024.
    pub weight: u32,
    /// CPU time of one activation, above zero.
    pub burn: Span,
    /// Sleep after each activation, above zero.
    pub sleep: Option<Span>,
    /// Guest time of the first activation.
    pub start_ns: u64,
    /// The task woken after each activation.
    pub wakes: Option<TaskRef>,
    /// It starts asleep and waits to be woken.
    pub blocked: bool,
    /// Each activation is a new task.
    pub fork: bool,
    /// How many there are; above one, copy i is called `name.i`.
    pub count: u16,
}

/// A task that something wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRef {
    /// Index into the tasks as declared.
    pub task: u16,
    /// The copy; `None` for the one with the waker's own number.
    pub copy: Option<u16>,
}

/// An interrupt source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Irq {
    /// The line's name.
    pub name: String,
    /// Long-run rate of its interrupts; `None` for a line that never interrupts.
    pub rate: Option<Rate>,
    /// Share of the CPU that its handlers take, if that is what its rate comes from.
    pub load: Option<Share>,
    /// How they follow each other.
    pub arrival: Arrival,
    /// Time that one takes, hardirq and softirq together.
    pub cost: Cost,
    /// Share of the cost that is softirq work, rounded down to ns.
    pub softirq: Share,
    /// When the source is active.
    pub window: Window,
    /// The task that the handler wakes.
    pub wakes: Option<TaskRef>,
    /// Its softirq also runs `update_blocked_averages()`.
    pub balance: bool,
}

/// How interrupts follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Evenly: the k-th, from 0, at `from + floor(k / rate)`.
    Periodic,
    /// Exponentially distributed gaps, the first one before the first interrupt.
    Poisson,
    /// Groups of `burst`, each `gap_ns` after the one before; group k at `from + floor(k * burst / rate)`.
    Burst {
        /// Interrupts in a group.
        burst: u32,
        /// Distance inside a group.
        gap_ns: u64,
    },
}

/// Distribution of a handler's cost, ns, each at most [`MAX_HANDLER_NS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Always the same.
    Fixed(u32),
    /// Uniform, both ends included.
    Uniform {
        /// The least.
        min: u32,
        /// The most.
        max: u32,
    },
    /// Exponential; a draw above `max` becomes `max`, which lowers the mean a little.
    Exponential {
        /// The mean before the cap.
        mean: u32,
        /// The cap.
        max: u32,
    },
}

/// When a source is active: guest time in `from..until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First instant.
    pub from_ns: u64,
    /// First instant after it; `None` for the end of the run.
    pub until_ns: Option<u64>,
}

/// A source of steal time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steal {
    /// When slices are due.
    pub pattern: StealPattern,
    /// Wall time that a slice takes from the guest.
    pub slice_ns: u64,
    /// What the guest's steal counter moves by with each slice.
    pub counter_ns: i64,
    /// What the CPU must be doing.
    pub when: When,
    /// When the source is active.
    pub window: Window,
}

/// When slices of steal are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StealPattern {
    /// A share of wall time: slice k, from 0, at `from + floor(k * slice / share)`.
    Fraction {
        /// The share, below 1; 0 for nothing at all.
        share: Share,
        /// Gaps between slices are drawn from an exponential distribution with the same mean.
        jitter: bool,
    },
    /// Slice k, from 0, at `from + k * period_ns`.
    Period {
        /// Begin to begin, longer than the slice.
        period_ns: u64,
        /// The share of it that the slice is, if that is what the slice comes from; 0 for nothing at all.
        share: Option<Share>,
    },
    /// One slice, at the window's begin.
    Once,
    /// Inside every n-th interrupt handler.
    InHandler {
        /// n; the first slice is in the n-th handler.
        every: u32,
        /// The line whose handlers count; `None` for all lines, the timer's included.
        line: Option<u16>,
    },
}

/// What the CPU must be doing for a slice to be stolen; one that falls due in another state is
/// left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum When {
    /// Anything.
    Any,
    /// Anything but idling.
    Busy,
    /// Idling.
    Idle,
    /// Handling an interrupt; the one of [`StealPattern::InHandler`].
    Irq,
}

/// Which checks run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Only these.
    pub only: Option<Vec<String>>,
    /// All but these.
    pub skip: Vec<String>,
    /// These too, of those that run only where they are asked for.
    pub also: Vec<String>,
}

impl Checks {
    /// Does the check `name` run?
    pub fn runs(&self, name: &str) -> bool {
        let listed = |names: &[String]| names.iter().any(|n| n == name);
        self.only.as_deref().is_none_or(listed) && !listed(&self.skip)
    }

    /// Is the check `name` asked for?
    pub fn asks_for(&self, name: &str) -> bool {
        let listed = |names: &[String]| names.iter().any(|n| n == name);
        self.only.as_deref().is_some_and(listed) || listed(&self.also)
    }
}

impl Cost {
    /// Twice its mean, ns; of an exponential one before the cap.
    fn twice_mean_ns(self) -> u128 {
        match self {
            Self::Fixed(ns) => 2 * u128::from(ns),
            Self::Uniform { min, max } => u128::from(min) + u128::from(max),
            Self::Exponential { mean, .. } => 2 * u128::from(mean),
        }
    }
}

impl Scenario {
    /// Reads a scenario from `text`, which came from `source_name`, and lays the overrides `sets`
    /// over it, in order. `known_checks` are the names that `[checks]` may use.
    ///
    /// An override is `path=value`, where a path is `seed`, `tick.rate`, `irq[0].rate`,
    /// `irq.0.rate` or `irq.nic.rate`, and the value is a TOML value or else a bare string.
    ///
    /// # Errors
    /// The first thing found wrong, with its key and its place: the line, or the override.
    pub fn load(
        text: &str,
        source_name: &str,
        sets: &[String],
        known_checks: &[&str],
    ) -> Result<Self, ScenarioError> {
        let doc = document::Document::parse(text, source_name, sets)?;
        let scenario = decode::scenario(&doc, source_name, known_checks)?;
        limits::check(&scenario, &doc)?;
        Ok(scenario)
    }

    /// The scenario as TOML, overrides applied. It loads to the same scenario again.
    pub fn to_toml(&self) -> String {
        write::scenario(self)
    }

    /// What the bundled guest is told. Task i becomes pid i + [`FIRST_PID`].
    pub fn boot_page(&self, policy: Policy) -> Box<BootPage> {
        let mut page: Box<BootPage> = zeroed();
        page.init(self.tick.rate.period_ns(), policy);
        page.offline_ns = self.offline_ns.unwrap_or(0);
        page.flags = if self.steal_clock { 0 } else { wire::NO_STEAL_CLOCK };
        page.nr_groups = self.groups.len() as u16;
        for (spec, group) in page.groups.iter_mut().zip(&self.groups).skip(1) {
            *spec = GroupSpec { shares: shares(group.weight), parent: group.parent, reserved: 0 };
        }

        let first = self.first_copies();
        let pid = |to: Option<TaskRef>, copy: u16| {
            to.map_or(wire::NONE, |to| {
                FIRST_PID + first[usize::from(to.task)] + to.copy.unwrap_or(copy)
            })
        };
        for (spec, (task, copy)) in page.tasks.iter_mut().zip(self.copies()) {
            let index = page.nr_tasks;
            page.nr_tasks += 1;
            *spec = TaskSpec {
                burn_min_ns: task.burn.min_ns,
                burn_max_ns: task.burn.max_ns,
                sleep_min_ns: task.sleep.map_or(0, |s| s.min_ns),
                sleep_max_ns: task.sleep.map_or(0, |s| s.max_ns),
                start_ns: task.start_ns,
                seed: stream_seed(self.seed, Stream::Task, index),
                weight: task.weight,
                group: task.copy_group(copy),
                wakes: pid(task.wakes, copy),
                flags: task_flags(task),
                reserved: [0; 3],
            };
        }

        page.nr_irqs = self.irqs.len() as u16 + 1;
        for (spec, irq) in page.irqs.iter_mut().skip(1).zip(&self.irqs) {
            let flags = if irq.balance { wire::IRQ_BALANCE } else { 0 };
            *spec = IrqSpec { wakes: pid(irq.wakes, 0), flags };
        }
        page
    }

    /// The groups' paths with a leading `/`, by group index; entry 0 is `/`.
    pub fn group_paths(&self) -> Vec<String> {
        self.groups.iter().map(|g| format!("/{}", g.path)).collect()
    }

    /// Index of the parent of group `index`; `None` for the root and for no group.
    pub fn group_parent(&self, index: usize) -> Option<usize> {
        self.groups.get(index).filter(|_| index > 0).map(|g| g.parent.into())
    }

    /// The tasks' names, copies counted; entry i is pid i + [`FIRST_PID`].
    pub fn task_names(&self) -> Vec<String> {
        self.copies().map(|(task, copy)| task.copy_name(copy)).collect()
    }

    /// Group index of the task `pid`; `None` if the scenario has no such task.
    pub fn task_group(&self, pid: u16) -> Option<usize> {
        let index = pid.checked_sub(FIRST_PID)?;
        self.copies().nth(index.into()).map(|(task, copy)| task.copy_group(copy).into())
    }

    /// The interrupt lines' names; entry 0 is the timer, [`TIMER`].
    pub fn irq_names(&self) -> Vec<String> {
        std::iter::once(TIMER)
            .chain(self.irqs.iter().map(|i| i.name.as_str()))
            .map(str::to_owned)
            .collect()
    }

    /// Every task with its copy number, in the order of the guest's table.
    fn copies(&self) -> impl Iterator<Item = (&Task, u16)> {
        self.tasks.iter().flat_map(|task| (0..task.count).map(move |copy| (task, copy)))
    }

    /// Index of each declared task's first copy among all copies.
    fn first_copies(&self) -> Vec<u16> {
        let mut next = 0;
        let first = self.tasks.iter().map(|task| {
            next += task.count;
            next - task.count
        });
        first.collect()
    }
}

impl Task {
    /// The name of one of its copies.
    fn copy_name(&self, copy: u16) -> String {
        match self.count {
            1 => self.name.clone(),
            _ => format!("{}.{copy}", self.name),
        }
    }

    /// The group index of one of its copies.
    fn copy_group(&self, copy: u16) -> u16 {
        match self.groups.as_slice() {
            [group] => *group,
            groups => groups[usize::from(copy)],
        }
    }
}

/// [`TaskSpec::flags`] of `task`.
fn task_flags(task: &Task) -> u16 {
    let flag = |on: bool, flag: u16| if on { flag } else { 0 };
    flag(task.fork, wire::TASK_FORK) | flag(task.blocked, wire::TASK_BLOCKED)
}

/// `tg->shares` before scaling for a cgroup v2 weight (`sched_weight_from_cgroup()` in
/// kernel/sched/sched.h and the clamp of `__sched_group_set_shares()` in kernel/sched/fair.c).
fn shares(weight: u32) -> u32 {
    ((weight * 1024 + 50) / 100).clamp(2, 1 << 18)
}

#[cfg(test)]
mod tests;
