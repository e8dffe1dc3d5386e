//! A scenario as a Linux guest runs it: the plan for PID 1, a device for each interrupt line, and what
//! the kernel decides by itself.

use std::fmt;

use guest_model::wire::NONE;
use guest_model::wire::linux::{
    Group, MAX_GROUPS, MAX_NETS, MAX_PLAN_TASKS, Plan, PlanError, Task,
};
use thiserror::Error;

use super::decode::NICE_WEIGHTS;
use super::units::format_duration;
use super::{Irq, Scenario, TaskRef, task_flags};
use crate::schedule::{Stream, stream_seed};

/// Entropy devices of a Linux guest, for lines that do their work in the handler.
pub const MAX_ENTROPY: usize = 5;

/// What a Linux guest is told and given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinuxPlan {
    /// For PID 1. Task i is the scenario's task i, copies counted; group i its group i.
    pub plan: Box<Plan>,
    /// The device of each interrupt line; entry i is line i + 1.
    pub devices: Vec<Device>,
    /// What the scenario says and a Linux guest does not do.
    pub notes: Vec<Note>,
}

/// The device that raises an interrupt line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// What it is.
    pub kind: DeviceKind,
    /// Which one of its kind, from 0.
    pub index: u8,
}

/// Kinds of devices, each with as many as every Linux guest has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// A network device: its interrupts raise softirq work and may wake a task.
    Net,
    /// An entropy device: all its work is in the handler.
    Entropy,
}

impl DeviceKind {
    /// How many a guest has.
    pub const fn count(self) -> usize {
        match self {
            Self::Net => MAX_NETS,
            Self::Entropy => MAX_ENTROPY,
        }
    }

    /// The kind that `irq` needs.
    fn of(irq: &Irq) -> Self {
        let softirq = irq.softirq.billionths() != 0;
        if softirq || irq.wakes.is_some() { Self::Net } else { Self::Entropy }
    }
}

/// A key that does not apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The key, such as `tick.rate`.
    pub key: String,
    /// What holds instead.
    pub instead: &'static str,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.instead)
    }
}

/// Why a scenario cannot run on a Linux guest.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LinuxPlanError {
    /// The only CPU of a Linux guest cannot go offline.
    #[error(
        "cpu.offline_at: a Linux guest has one CPU, which cannot go offline at {}; leave the key out \
         or run the bundled guest",
        format_duration(*at_ns as i64)
    )]
    Offline {
        /// When it should, ns.
        at_ns: u64,
    },
    /// More groups or tasks than PID 1 takes.
    #[error("{got} {what} are too many for a Linux guest; at most {max}")]
    TooMany {
        /// Kind of thing.
        what: &'static str,
        /// How many, the root or copies included.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// A load weight that no nice value has.
    #[error(
        "task `{task}`: weight {weight} is that of no nice value, which Linux needs; {nearest}"
    )]
    Weight {
        /// The task's name, without a copy's number.
        task: String,
        /// Its weight.
        weight: u32,
        /// The nice values to take instead.
        nearest: Nearest,
    },
    /// More interrupt lines of one kind than devices.
    #[error("{got} interrupt lines {}, and a Linux guest has {} devices for them", of(*kind), kind.count())]
    Lines {
        /// The kind of device that they need.
        kind: DeviceKind,
        /// How many lines.
        got: usize,
    },
    /// A path whose last part cannot be a directory's name.
    #[error("group `{path}`: its last part cannot be the name of a cgroup")]
    GroupName {
        /// The path.
        path: String,
    },
    /// A scenario that did not come from [`Scenario::load`].
    #[error("the scenario gives no valid plan")]
    Plan(#[from] PlanError),
}

/// How the lines that need `kind` differ from the others.
fn of(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Net => "have `softirq` or `wakes`",
        DeviceKind::Entropy => "have neither `softirq` nor `wakes`",
    }
}

/// The nice values around a load weight, each with its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nearest {
    /// The heaviest of those below.
    pub below: Option<(i16, u32)>,
    /// The lightest of those above.
    pub above: Option<(i16, u32)>,
}

impl fmt::Display for Nearest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nearest: ")?;
        let mut separator = "";
        for (nice, weight) in self.below.into_iter().chain(self.above) {
            write!(f, "{separator}nice = {nice}, which is {weight}")?;
            separator = ", or ";
        }
        Ok(())
    }
}

/// The nice value whose load weight is `weight`; the nearest ones if there is none.
fn nice(weight: u32) -> Result<i16, Nearest> {
    let levels = || (-20..).zip(NICE_WEIGHTS);
    match levels().find(|(_, w)| *w == weight) {
        Some((nice, _)) => Ok(nice),
        None => Err(Nearest {
            below: levels().find(|(_, w)| *w < weight),
            above: levels().take_while(|(_, w)| *w > weight).last(),
        }),
    }
}

impl Scenario {
    /// What a Linux guest is told and given to run the scenario.
    ///
    /// # Errors
    /// What a Linux guest cannot do: see [`LinuxPlanError`].
    pub fn linux_plan(&self) -> Result<LinuxPlan, LinuxPlanError> {
        if let Some(at_ns) = self.offline_ns.filter(|at| *at < self.duration_ns) {
            return Err(LinuxPlanError::Offline { at_ns });
        }
        let tasks = self.tasks.iter().map(|task| usize::from(task.count)).sum();
        for (what, got, max) in
            [("groups", self.groups.len(), MAX_GROUPS), ("tasks", tasks, MAX_PLAN_TASKS)]
        {
            if got > max {
                return Err(LinuxPlanError::TooMany { what, got, max });
            }
        }
        let devices = self.devices()?;
        let mut plan = Box::new(Plan::new());
        plan.nr_groups = self.groups.len() as u16;
        for (spec, group) in plan.groups.iter_mut().zip(&self.groups).skip(1) {
            let name = group.path.rsplit('/').next().unwrap_or_default();
            *spec = Group::new(name, group.weight as u16, group.parent)
                .ok_or_else(|| LinuxPlanError::GroupName { path: group.path.clone() })?;
        }

        let first = self.first_copies();
        let index = |to: Option<TaskRef>, copy: u16| {
            to.map_or(NONE, |to| first[usize::from(to.task)] + to.copy.unwrap_or(copy))
        };
        for (spec, (task, copy)) in plan.tasks.iter_mut().zip(self.copies()) {
            let own_index = plan.nr_tasks;
            plan.nr_tasks += 1;
            let nice = nice(task.weight).map_err(|nearest| LinuxPlanError::Weight {
                task: task.name.clone(),
                weight: task.weight,
                nearest,
            })?;
            *spec = Task {
                burn_min_ns: task.burn.min_ns,
                burn_max_ns: task.burn.max_ns,
                sleep_min_ns: task.sleep.map_or(0, |s| s.min_ns),
                sleep_max_ns: task.sleep.map_or(0, |s| s.max_ns),
                start_ns: task.start_ns,
                seed: stream_seed(self.seed, Stream::Task, own_index),
                nice,
                group: task.copy_group(copy),
                wakes: index(task.wakes, copy),
                flags: task_flags(task),
                reserved: [0; 4],
            };
        }

        let nets = devices.iter().zip(&self.irqs).filter(|(d, _)| d.kind == DeviceKind::Net);
        for (device, irq) in nets {
            plan.nr_nets += 1;
            plan.net_wakes[usize::from(device.index)] = index(irq.wakes, 0);
        }
        plan.validate()?;
        Ok(LinuxPlan { plan, devices, notes: self.linux_notes() })
    }

    /// A device for each line: the next one of the kind that it needs.
    fn devices(&self) -> Result<Vec<Device>, LinuxPlanError> {
        for kind in [DeviceKind::Net, DeviceKind::Entropy] {
            let got = self.irqs.iter().filter(|irq| DeviceKind::of(irq) == kind).count();
            if got > kind.count() {
                return Err(LinuxPlanError::Lines { kind, got });
            }
        }
        let (mut nets, mut entropy) = (0.., 0..);
        let devices = self.irqs.iter().filter_map(|irq| {
            let kind = DeviceKind::of(irq);
            let next = if kind == DeviceKind::Net { &mut nets } else { &mut entropy };
            Some(Device { kind, index: next.next()? })
        });
        Ok(devices.collect())
    }

    fn linux_notes(&self) -> Vec<Note> {
        let note = |key: &str, instead| Note { key: key.to_owned(), instead };
        let mut notes = vec![
            note("tick.rate", "the kernel's CONFIG_HZ decides"),
            note("policy", "the kernel has one variant, its own"),
        ];
        for irq in self.irqs.iter().filter(|irq| irq.balance) {
            let key = format!("irq.{}.balance", irq.name);
            notes.push(note(&key, "the kernel decides when it balances"));
        }
        notes
    }
}

#[cfg(test)]
mod tests;
