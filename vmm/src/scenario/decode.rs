//! From a document's tables to a scenario.

use std::collections::HashMap;

use guest_model::policy::{PsiZeroDelta, RateLimitClock};
use guest_model::wire::MAX_GROUPS;

use super::document::Document;
use super::error::{Problem, ScenarioError};
use super::field::{Field, Table, hint};
use super::sources::{irq, steal};
use super::units::{format_duration, shown};
use super::{
    Checks, Group, MAX_DURATION_NS, MAX_HANDLER_NS, MAX_LINES, MAX_SCENARIO_TASKS, MAX_STEALS,
    Policies, Rate, Scenario, Span, TIMER, Task, TaskRef, Tick,
};

/// Load weights of nice -20 to 19 (kernel/sched/core.c `sched_prio_to_weight`).
pub(super) const NICE_WEIGHTS: [u32; 40] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904,
    3906, 3121, 2501, 1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87,
    70, 56, 45, 36, 29, 23, 18, 15,
];
/// The tick's rate, nHz: 0.25 Hz to 100 kHz, periods that the guest takes.
const MIN_TICK_NANO_HZ: u64 = 250_000_000;
const MAX_TICK_NANO_HZ: u64 = 100_000_000_000_000;
/// Longest path of a group, bytes.
const MAX_PATH: usize = 255;
/// Most groups above and including a group, the root not counted.
const MAX_DEPTH: usize = 16;

/// What the readers of this module and of `sources` return.
pub(super) type Result<T> = std::result::Result<T, ScenarioError>;

/// Reads the whole document.
pub(super) fn scenario(doc: &Document, source: &str, known_checks: &[&str]) -> Result<Scenario> {
    let root = Table::root(doc).only(&[
        "name", "summary", "duration", "seed", "tick", "cpu", "policy", "group", "task", "irq",
        "steal", "checks",
    ])?;
    let cpu = root.table("cpu")?.only(&["offline_at", "steal_clock"])?;
    let tasks = root.tables("task", "tasks", MAX_SCENARIO_TASKS)?;
    let irqs = root.tables("irq", "interrupt sources", MAX_LINES)?;
    let groups = groups(&root)?;
    let names = Names { tasks: task_names(&root, &tasks)?, lines: line_names(&irqs)? };

    Ok(Scenario {
        name: match root.get("name") {
            Some(field) => field.free_text(200)?,
            None => source.chars().take(200).collect(),
        },
        summary: root.get("summary").map_or(Ok(String::new()), |f| f.free_text(1000))?,
        duration_ns: duration(&root, "duration", 1, 1_000_000_000)?,
        seed: root.get("seed").map_or(Ok(1), |f| f.integer(0, u64::MAX.into()))? as u64,
        tick: tick(&root.table("tick")?)?,
        offline_ns: cpu.get("offline_at").map(|f| f.duration(1, MAX_DURATION_NS)).transpose()?,
        steal_clock: cpu.get("steal_clock").map_or(Ok(true), |f| f.boolean())?,
        policy: policies(&root.table("policy")?)?,
        tasks: tasks
            .iter()
            .enumerate()
            .map(|(i, t)| task(t, i, &groups, &names))
            .collect::<Result<_>>()?,
        irqs: irqs.iter().enumerate().map(|(i, t)| irq(t, i, &names)).collect::<Result<_>>()?,
        steals: root
            .tables("steal", "steal sources", MAX_STEALS)?
            .iter()
            .map(|t| steal(t, &names))
            .collect::<Result<_>>()?,
        groups,
        checks: checks(&root.table("checks")?, known_checks)?,
    })
}

/// The duration `key` between `min` and 24 h, or `default`.
pub(super) fn duration(table: &Table<'_>, key: &str, min: u64, default: u64) -> Result<u64> {
    table.get(key).map_or(Ok(default), |f| f.duration(min, MAX_DURATION_NS))
}

/// The boolean `key`, or false.
pub(super) fn flag(table: &Table<'_>, key: &str) -> Result<bool> {
    table.get(key).map_or(Ok(false), |f| f.boolean())
}

fn tick(table: &Table<'_>) -> Result<Tick> {
    let table = table.clone().only(&["rate", "cost"])?;
    let rate = match table.get("rate") {
        Some(field) => {
            let rate = field.rate()?;
            if !(MIN_TICK_NANO_HZ..=MAX_TICK_NANO_HZ).contains(&rate.nano_hz()) {
                return Err(field.out_of_range(&rate.to_string(), "0.25Hz to 100kHz"));
            }
            rate
        }
        None => Rate::hz(250),
    };
    let cost_ns = table.get("cost").map_or(Ok(2_000), |f| f.duration(0, MAX_HANDLER_NS))?;
    Ok(Tick { rate, cost_ns: cost_ns as u32 })
}

fn policies(table: &Table<'_>) -> Result<Policies> {
    let table = table.clone().only(&["rate_limit_clock", "psi", "compare"])?;
    let clocks = RateLimitClock::ALL.map(|clock| (clock.name(), clock));
    let rules = PsiZeroDelta::ALL.map(|rule| (rule.name(), rule));
    let mut compare = Vec::new();
    match table.get("compare") {
        Some(field) => {
            for (item, name) in field.texts()? {
                let clock = item.one_of(&clocks)?;
                if compare.contains(&clock) {
                    return Err(repeated(&item, name));
                }
                compare.push(clock);
            }
        }
        None => compare.extend(RateLimitClock::ALL),
    }
    Ok(Policies {
        rate_limit_clock: table
            .get("rate_limit_clock")
            .map_or(Ok(RateLimitClock::RqClock), |f| f.one_of(&clocks))?,
        psi: table.get("psi").map_or(Ok(PsiZeroDelta::Skip), |f| f.one_of(&rules))?,
        compare,
    })
}

fn repeated(item: &Field<'_>, name: &str) -> ScenarioError {
    let first = "an earlier entry of this array".to_owned();
    item.error(Problem::Duplicate { name: shown(name), first })
}

/// The groups: the root, then each declared group after its parents.
fn groups(root: &Table<'_>) -> Result<Vec<Group>> {
    let mut declared: HashMap<String, (u32, String)> = HashMap::new();
    let mut order = Vec::new();
    let too_many = |got| {
        let what = "groups, the root and undeclared parents included,";
        root.error("group", Problem::TooMany { what, got, max: MAX_GROUPS })
    };
    for table in root.tables("group", "groups", MAX_GROUPS - 1)? {
        let table = table.only(&["path", "weight", "count"])?;
        let field = table.need("path", "path = \"web/api\"")?;
        let path = field.text()?;
        if let Some(why) = path_fault(path) {
            return Err(field.error(Problem::BadPath { path: shown(path), why }));
        }
        let weight = table.get("weight").map_or(Ok(100), |f| f.integer(1, 10_000))? as u32;
        let most = (MAX_GROUPS - 1) as i128;
        let count = table.get("count").map_or(Ok(1), |f| f.integer(1, most))?;
        for copy in 0..count {
            let path = if count == 1 { path.to_owned() } else { format!("{path}.{copy}") };
            if let Some((_, first)) = declared.insert(path.clone(), (weight, field.place())) {
                return Err(field.error(Problem::Duplicate { name: shown(&path), first }));
            }
            order.push(path);
        }
        if order.len() >= MAX_GROUPS {
            return Err(too_many(order.len() + 1));
        }
    }

    let mut groups = vec![Group { path: String::new(), weight: 100, parent: 0 }];
    let mut index: HashMap<&str, u16> = HashMap::new();
    for path in &order {
        let mut parent = 0;
        for end in path.match_indices('/').map(|(i, _)| i).chain([path.len()]) {
            let path = &path[..end];
            parent = *index.entry(path).or_insert_with(|| {
                let weight = declared.get(path).map_or(100, |(weight, _)| *weight);
                groups.push(Group { path: path.to_owned(), weight, parent });
                (groups.len() - 1) as u16
            });
        }
        if groups.len() > MAX_GROUPS {
            return Err(too_many(groups.len()));
        }
    }
    Ok(groups)
}

/// The groups of a task's copies: one for all, or `path.0`, `path.1` and so on, as many as copies.
fn copies_groups(field: &Field<'_>, count: u16, groups: &[Group]) -> Result<Vec<u16>> {
    let path = field.text()?;
    let index: HashMap<&str, u16> = groups.iter().map(|g| g.path.as_str()).zip(0..).collect();
    let find = |path: &str| index.get(path).copied();
    if let Some(group) = find(path).filter(|group| *group > 0) {
        return Ok(vec![group]);
    }
    let own = |copy: usize| find(&format!("{path}.{copy}"));
    let copies = (0..MAX_GROUPS).map_while(own).count();
    if count > 1
        && copies == usize::from(count)
        && let Some(groups) = (0..copies).map(own).collect()
    {
        return Ok(groups);
    }
    let hint = match copies {
        _ if groups.len() == 1 => {
            "there is none: declare it with [[group]] and its path, or leave this key out"
                .to_owned()
        }
        0 => hint(path, groups.iter().skip(1).map(|g| g.path.as_str())),
        n => format!(
            "it stands for {n} groups: give this task count = {n}, or name one of them, such as {}",
            shown(&format!("{path}.0"))
        ),
    };
    Err(field.unknown_name("group", "group", hint))
}

/// The rule that a group's path breaks.
fn path_fault(path: &str) -> Option<&'static str> {
    let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if path.is_empty() {
        Some("it is empty, and the root is always there")
    } else if path.starts_with('/') {
        Some("it starts with `/`, but paths are relative to the root")
    } else if path.len() > MAX_PATH {
        Some("it is longer than 255 bytes")
    } else if path.split('/').count() > MAX_DEPTH {
        Some("it is more than 16 groups deep")
    } else if path.split('/').any(str::is_empty) {
        Some("a part of it is empty")
    } else if path.split('/').any(|part| part == "." || part == "..") {
        Some("`.` and `..` are not groups")
    } else if !path.split('/').all(|part| part.chars().all(sound)) {
        Some("its parts may have letters, digits, `-`, `_` and `.`")
    } else {
        None
    }
}

/// What tasks and interrupt lines are called, so that each may name one declared later.
pub(super) struct Names<'d> {
    /// Name and copies.
    tasks: Vec<(&'d str, u16)>,
    /// Without the timer.
    pub lines: Vec<&'d str>,
}

fn unique<'d>(field: &Field<'d>, seen: &mut HashMap<&'d str, String>) -> Result<&'d str> {
    let name = field.name()?;
    match seen.insert(name, field.place()) {
        Some(first) => Err(field.error(Problem::Duplicate { name: shown(name), first })),
        None => Ok(name),
    }
}

fn task_names<'d>(root: &Table<'d>, tasks: &[Table<'d>]) -> Result<Vec<(&'d str, u16)>> {
    let mut seen = HashMap::new();
    let mut names = Vec::new();
    let mut total = 0;
    for table in tasks {
        let name = unique(&table.need("name", "name = \"worker\"")?, &mut seen)?;
        let most = MAX_SCENARIO_TASKS as i128;
        let count = table.get("count").map_or(Ok(1), |f| f.integer(1, most))? as u16;
        names.push((name, count));
        total += usize::from(count);
    }
    if total > MAX_SCENARIO_TASKS {
        let what = "tasks, copies included,";
        return Err(
            root.error("task", Problem::TooMany { what, got: total, max: MAX_SCENARIO_TASKS })
        );
    }
    Ok(names)
}

fn line_names<'d>(irqs: &[Table<'d>]) -> Result<Vec<&'d str>> {
    let mut seen = HashMap::from([(TIMER, "the timer, line 0".to_owned())]);
    irqs.iter().map(|table| unique(&table.need("name", "name = \"nic\"")?, &mut seen)).collect()
}

impl Names<'_> {
    /// The task that `field` names, for a waker with `copies` copies of its own.
    pub fn woken(&self, field: &Field<'_>, copies: u16) -> Result<TaskRef> {
        let text = field.text()?;
        let find = |name: &str| self.tasks.iter().position(|(n, _)| *n == name);
        let unknown = || {
            let hint = hint(text, self.tasks.iter().map(|(name, _)| *name));
            field.unknown_name("task", "task", hint)
        };
        if let Some((name, copy)) = text.split_once('.') {
            let task = find(name).ok_or_else(unknown)?;
            let copy = copy.parse().ok().filter(|c| *c < self.tasks[task].1).ok_or_else(unknown)?;
            return Ok(TaskRef { task: task as u16, copy: Some(copy) });
        }
        let task = find(text).ok_or_else(unknown)?;
        let copy = match self.tasks[task].1 {
            1 => Some(0),
            n if n == copies => None,
            n => {
                let name = text.to_owned();
                return Err(field.error(Problem::Copies { name, copies: n, last: n - 1 }));
            }
        };
        Ok(TaskRef { task: task as u16, copy })
    }
}

/// `"300us"`, or `{ min = "200us", max = "400us" }`, each at least 1 ns.
fn span(field: Field<'_>) -> Result<Span> {
    if !field.is_table() {
        let ns = field.duration(1, MAX_DURATION_NS)?;
        return Ok(Span { min_ns: ns, max_ns: ns });
    }
    let table = field.table("a table")?.only(&["min", "max"])?;
    let (min_ns, max_ns) = ends(&table, 1, MAX_DURATION_NS)?;
    Ok(Span { min_ns, max_ns })
}

/// `min` and `max` of a range.
pub(super) fn ends(table: &Table<'_>, least: u64, most: u64) -> Result<(u64, u64)> {
    let min = table.need("min", "min = \"1us\"")?.duration(least, most)?;
    let max = table.need("max", "max = \"9us\"")?.duration(least, most)?;
    if min > max {
        let [min, max] = [min, max].map(|ns| format_duration(ns as i64));
        return Err(table.error("max", Problem::MinAboveMax { min, max }));
    }
    Ok((min, max))
}

fn task(table: &Table<'_>, index: usize, groups: &[Group], names: &Names<'_>) -> Result<Task> {
    let table = table.clone().only(&[
        "name", "group", "nice", "weight", "burn", "sleep", "start", "wakes", "blocked", "fork",
        "count",
    ])?;
    let (name, count) = names.tasks[index];
    let groups = match table.get("group") {
        Some(field) => copies_groups(&field, count, groups)?,
        None => vec![0],
    };
    if table.get("nice").is_some() {
        table.refuse("weight", "given together with `nice`; keep one of them")?;
    }
    let weight = match (table.get("nice"), table.get("weight")) {
        (Some(nice), _) => NICE_WEIGHTS[(nice.integer(-20, 19)? + 20) as usize],
        (None, Some(weight)) => weight.integer(3, 1 << 18)? as u32,
        (None, None) => 1024,
    };
    let wakes = table.get("wakes").map(|f| names.woken(&f, count)).transpose()?;
    if wakes.is_some_and(|to| usize::from(to.task) == index) {
        return Err(table.error("wakes", Problem::WakesItself { name: name.to_owned() }));
    }
    let task = Task {
        name: name.to_owned(),
        groups,
        weight,
        burn: span(table.need("burn", "burn = \"300us\"")?)?,
        sleep: table.get("sleep").map(span).transpose()?,
        start_ns: duration(&table, "start", 0, 0)?,
        wakes,
        blocked: flag(&table, "blocked")?,
        fork: flag(&table, "fork")?,
        count,
    };
    if task.fork && task.sleep.is_none() && task.wakes.is_none() && !task.blocked {
        table.refuse("fork", "a task that never sleeps cannot fork anew; give it a `sleep`")?;
    }
    Ok(task)
}

fn checks(table: &Table<'_>, known: &[&str]) -> Result<Checks> {
    let table = table.clone().only(&["only", "skip", "also"])?;
    if table.get("only").is_some() {
        table.refuse("skip", "given together with `only`; keep one of them")?;
        table.refuse("also", "given together with `only`; name the check there")?;
    }
    let names = |field: Field<'_>| {
        let mut names: Vec<String> = Vec::new();
        for (item, name) in field.texts()? {
            if !known.contains(&name) {
                let hint = hint(name, known.iter().copied());
                let what = "check";
                return Err(item.error(Problem::UnknownName { what, name: shown(name), hint }));
            }
            if names.iter().any(|n| n == name) {
                return Err(repeated(&item, name));
            }
            names.push(name.to_owned());
        }
        Ok(names)
    };
    let only = table.get("only").map(&names).transpose()?;
    if only.as_ref().is_some_and(Vec::is_empty) {
        table.refuse("only", "names no check, so nothing would be judged; leave it out for all")?;
    }
    let skip = table.get("skip").map(&names).transpose()?.unwrap_or_default();
    let also = table.get("also").map(&names).transpose()?.unwrap_or_default();
    let checks = Checks { only, skip, also };
    if !known.is_empty() && !known.iter().any(|name| checks.runs(name)) {
        table.refuse("skip", "leaves out every check, so nothing would be judged")?;
    }
    Ok(checks)
}
