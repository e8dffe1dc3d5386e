//! A scenario as TOML, every value spelt out.

use std::fmt::{self, Write};

use super::units::format_duration;
use super::{Arrival, Cost, Scenario, Share, Span, Steal, StealPattern, TaskRef, When, Window};

/// The whole of it.
pub(super) fn scenario(s: &Scenario) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_scenario(&mut out, s);
    out
}

fn write_scenario(out: &mut String, s: &Scenario) -> fmt::Result {
    writeln!(out, "name = {}", quoted(&s.name))?;
    writeln!(out, "summary = {}", quoted(&s.summary))?;
    writeln!(out, "duration = {}", ns(s.duration_ns))?;
    writeln!(out, "seed = {}", s.seed)?;

    writeln!(out, "\n[tick]\nrate = \"{}\"\ncost = {}", s.tick.rate, ns(s.tick.cost_ns.into()))?;
    if s.offline_ns.is_some() || !s.steal_clock {
        writeln!(out, "\n[cpu]")?;
    }
    if !s.steal_clock {
        writeln!(out, "steal_clock = false")?;
    }
    if let Some(offline) = s.offline_ns {
        writeln!(out, "offline_at = {}", ns(offline))?;
    }
    let compare: Vec<_> = s.policy.compare.iter().map(|c| c.name()).collect();
    writeln!(out, "\n[policy]\nrate_limit_clock = {:?}", s.policy.rate_limit_clock.name())?;
    writeln!(out, "psi = {:?}\ncompare = {compare:?}", s.policy.psi.name())?;
    if let Some(only) = &s.checks.only {
        writeln!(out, "\n[checks]\nonly = {only:?}")?;
    } else if !(s.checks.skip.is_empty() && s.checks.also.is_empty()) {
        writeln!(out, "\n[checks]")?;
        for (key, names) in [("skip", &s.checks.skip), ("also", &s.checks.also)] {
            if !names.is_empty() {
                writeln!(out, "{key} = {names:?}")?;
            }
        }
    }

    for group in s.groups.iter().skip(1) {
        writeln!(out, "\n[[group]]\npath = {}\nweight = {}", quoted(&group.path), group.weight)?;
    }
    for task in &s.tasks {
        writeln!(out, "\n[[task]]\nname = {}", quoted(&task.name))?;
        let group = s.groups[usize::from(task.copy_group(0))].path.as_str();
        match task.groups.as_slice() {
            [0] => {}
            [_] => writeln!(out, "group = {}", quoted(group))?,
            _ => writeln!(out, "group = {}", quoted(group.strip_suffix(".0").unwrap_or(group)))?,
        }
        writeln!(out, "weight = {}\nburn = {}", task.weight, span(task.burn))?;
        if let Some(sleep) = task.sleep {
            writeln!(out, "sleep = {}", span(sleep))?;
        }
        writeln!(out, "start = {}", ns(task.start_ns))?;
        write_wakes(out, s, task.wakes)?;
        writeln!(out, "blocked = {}\nfork = {}\ncount = {}", task.blocked, task.fork, task.count)?;
    }
    for irq in &s.irqs {
        writeln!(out, "\n[[irq]]\nname = {}", quoted(&irq.name))?;
        match (irq.load, irq.rate) {
            (None, Some(rate)) => writeln!(out, "rate = \"{rate}\"")?,
            (load, _) => writeln!(out, "load = {}", load.unwrap_or(Share::ZERO))?,
        }
        match irq.arrival {
            Arrival::Periodic => writeln!(out, "arrival = \"periodic\"")?,
            Arrival::Poisson => writeln!(out, "arrival = \"poisson\"")?,
            Arrival::Burst { burst, gap_ns } => {
                writeln!(out, "arrival = \"burst\"\nburst = {burst}\ngap = {}", ns(gap_ns))?;
            }
        }
        writeln!(out, "cost = {}\nsoftirq = {}", cost(irq.cost), irq.softirq)?;
        write_window(out, irq.window)?;
        write_wakes(out, s, irq.wakes)?;
        writeln!(out, "balance = {}", irq.balance)?;
    }
    s.steals.iter().try_for_each(|steal| write_steal(out, s, steal))
}

fn write_steal(out: &mut String, s: &Scenario, steal: &Steal) -> fmt::Result {
    let slice = ns(steal.slice_ns);
    writeln!(out, "\n[[steal]]")?;
    match steal.pattern {
        StealPattern::Fraction { share, jitter } => {
            writeln!(out, "fraction = {share}\nquantum = {slice}\njitter = {jitter}")?;
        }
        StealPattern::Period { period_ns, share: Some(share) } => {
            writeln!(out, "fraction = {share}\nperiod = {}", ns(period_ns))?;
        }
        StealPattern::Period { period_ns, share: None } => {
            writeln!(out, "period = {}\nslice = {slice}", ns(period_ns))?;
        }
        StealPattern::Once => writeln!(out, "at = {}\nslice = {slice}", ns(steal.window.from_ns))?,
        StealPattern::InHandler { every, line } => {
            writeln!(out, "every = {every}\nslice = {slice}")?;
            if let Some(name) = line.and_then(|line| s.irq_names().get(usize::from(line)).cloned())
            {
                writeln!(out, "line = {}", quoted(&name))?;
            }
        }
    }
    writeln!(out, "counter = \"{}\"", format_duration(steal.counter_ns))?;
    let when = match steal.when {
        When::Any => "any",
        When::Busy => "busy",
        When::Idle => "idle",
        When::Irq => "irq",
    };
    writeln!(out, "when = \"{when}\"")?;
    if steal.pattern == StealPattern::Once { Ok(()) } else { write_window(out, steal.window) }
}

fn write_window(out: &mut String, window: Window) -> fmt::Result {
    writeln!(out, "from = {}", ns(window.from_ns))?;
    window.until_ns.map_or(Ok(()), |until| writeln!(out, "until = {}", ns(until)))
}

fn write_wakes(out: &mut String, s: &Scenario, wakes: Option<TaskRef>) -> fmt::Result {
    let Some(TaskRef { task, copy }) = wakes else {
        return Ok(());
    };
    let task = &s.tasks[usize::from(task)];
    let name = copy.map_or(task.name.clone(), |copy| task.copy_name(copy));
    writeln!(out, "wakes = {}", quoted(&name))
}

/// A time in quotes.
fn ns(ns: u64) -> String {
    format!("\"{}\"", format_duration(ns as i64))
}

fn span(span: Span) -> String {
    match span {
        Span { min_ns, max_ns } if min_ns == max_ns => ns(min_ns),
        Span { min_ns, max_ns } => format!("{{ min = {}, max = {} }}", ns(min_ns), ns(max_ns)),
    }
}

fn cost(cost: Cost) -> String {
    let range = |key, low: u32, max: u32| {
        format!("{{ {key} = {}, max = {} }}", ns(low.into()), ns(max.into()))
    };
    match cost {
        Cost::Fixed(fixed) => ns(fixed.into()),
        Cost::Uniform { min, max } => range("min", min, max),
        Cost::Exponential { mean, max } => range("mean", mean, max),
    }
}

/// A TOML basic string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
