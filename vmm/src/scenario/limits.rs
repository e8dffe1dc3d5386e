//! What only the whole scenario shows: a CPU that is never free, a run that never ends, a counter
//! that wraps, a task that never runs.

use super::document::Document;
use super::error::{Problem, ScenarioError};
use super::units::{MAX_NS, Rate, Share};
use super::{Arrival, MAX_EVENTS, Scenario, Steal, StealPattern, When, Window};

/// A load of one CPU, in the unit of [`Scenario`]'s loads.
const FULL: u128 = Rate::GHZ as u128;

/// Checks the whole.
pub(super) fn check(scenario: &Scenario, doc: &Document) -> Result<(), ScenarioError> {
    load(scenario, doc)?;
    events(scenario, doc)?;
    never_woken(scenario, doc)
}

/// Refuses sources that take the whole CPU from some instant to the end of the run.
fn load(scenario: &Scenario, doc: &Document) -> Result<(), ScenarioError> {
    let for_ever = |w: Window| w.until_ns.is_none_or(|until| until >= scenario.duration_ns);
    let rate = |r: Rate| u128::from(r.nano_hz());

    let stolen = stolen(scenario, for_ever);
    let mut sources = Vec::new();
    let mut line_rates = vec![rate(scenario.tick.rate)];
    let tick_ns = u128::from(scenario.tick.cost_ns);
    sources.push(("tick.cost".to_owned(), rate(scenario.tick.rate) * tick_ns));
    let mut not_merged = stolen.not_merged(rate(scenario.tick.rate)) * tick_ns;
    for (i, irq) in scenario.irqs.iter().enumerate() {
        let nano_hz = irq.rate.filter(|_| for_ever(irq.window)).map_or(0, rate);
        line_rates.push(nano_hz);
        let load = |nano_hz: u128| (nano_hz * irq.cost.twice_mean_ns()).div_ceil(2);
        sources.push((format!("irq[{i}].{}", irq.load.map_or("cost", |_| "load")), load(nano_hz)));
        not_merged += match irq.arrival {
            // They may be in step with the slices.
            Arrival::Burst { .. } => load(nano_hz),
            Arrival::Periodic | Arrival::Poisson => load(stolen.not_merged(nano_hz)),
        };
    }
    let handlers: u128 = sources.iter().map(|(_, load)| load).sum();

    let mut slices = 0;
    for (i, steal) in scenario.steals.iter().enumerate() {
        if !for_ever(steal.window) || steal.when == When::Idle {
            continue;
        }
        let slice = u128::from(steal.slice_ns);
        let (key, load) = match steal.pattern {
            StealPattern::Fraction { share, .. }
            | StealPattern::Period { share: Some(share), .. } => ("fraction", part(share)),
            StealPattern::Period { period_ns, share: None } => {
                ("slice", slice * FULL / u128::from(period_ns))
            }
            StealPattern::Once => continue,
            StealPattern::InHandler { every, line } => {
                let rate: u128 = match line {
                    Some(line) => line_rates[usize::from(line)],
                    None => line_rates.iter().sum(),
                };
                ("slice", rate * slice / u128::from(every))
            }
        };
        slices += load;
        sources.push((format!("steal[{i}].{key}"), load));
    }

    let Some((key, most)) = sources.iter().max_by_key(|(_, load)| *load) else {
        return Ok(());
    };
    let (what, sum, fix) = if *most >= FULL {
        let what =
            if key.starts_with("steal") { "this source's slices" } else { "this line's handlers" };
        (what, *most, "lower the rate or this value")
    } else if handlers >= FULL {
        ("all lines' handlers together", handlers, "lower this or another line's rate or cost")
    } else if not_merged + slices >= FULL {
        let sum = not_merged + slices;
        ("all handlers and slices together", sum, "lower this value or another source's")
    } else {
        return Ok(());
    };
    let percent = sum * 100 / FULL;
    Err(doc.error_at(key, Problem::Overload { what, percent, fix }))
}

/// A share in the unit of loads.
fn part(share: Share) -> u128 {
    u128::from(share.billionths()) * 1_000_000_000
}

/// What timed slices take from the guest in the long run.
struct Stolen {
    /// Of all time, in the unit of loads.
    load: u128,
    /// Slices, in nHz.
    nano_hz: u128,
}

fn stolen(scenario: &Scenario, for_ever: impl Fn(Window) -> bool) -> Stolen {
    let timed = |steal: &Steal| for_ever(steal.window) && steal.when != When::Idle;
    let mut stolen = Stolen { load: 0, nano_hz: 0 };
    for steal in scenario.steals.iter().filter(|steal| timed(steal)) {
        let slice = u128::from(steal.slice_ns);
        let (load, nano_hz) = match steal.pattern {
            StealPattern::Fraction { share, .. } => {
                (part(share), part(share).checked_div(slice).unwrap_or(0))
            }
            StealPattern::Period { period_ns, .. } => {
                (slice * FULL / u128::from(period_ns), FULL / u128::from(period_ns))
            }
            StealPattern::Once | StealPattern::InHandler { .. } => continue,
        };
        stolen.load += load;
        stolen.nano_hz += nano_hz;
    }
    stolen
}

impl Stolen {
    /// Of interrupts that arrive at `nano_hz` those that are handled: of what arrives inside a slice all
    /// merge into one.
    fn not_merged(&self, nano_hz: u128) -> u128 {
        let outside = nano_hz * FULL.saturating_sub(self.load) / FULL;
        nano_hz.min(outside + self.nano_hz)
    }
}

/// Refuses runs of more events than a run can handle, and counters that could wrap.
fn events(scenario: &Scenario, doc: &Document) -> Result<(), ScenarioError> {
    let length = |w: Window| {
        let until = w.until_ns.unwrap_or(u64::MAX).min(scenario.duration_ns);
        u128::from(until.saturating_sub(w.from_ns))
    };
    // Interrupts expected of each line; the rounding up covers the first at the window's begin.
    let expected = |rate: Rate, ns: u128| (u128::from(rate.nano_hz()) * ns).div_ceil(FULL);

    let whole = Window { from_ns: 0, until_ns: None };
    let mut lines = vec![expected(scenario.tick.rate, length(whole))];
    let mut most = ("duration".to_owned(), lines[0]);
    let mut total = lines[0];
    let mut add = |key: String, events: u128| {
        total += events;
        if events > most.1 {
            most = (key, events);
        }
    };
    for (i, irq) in scenario.irqs.iter().enumerate() {
        let burst = if let Arrival::Burst { burst, .. } = irq.arrival { burst } else { 0 };
        let events =
            irq.rate.map_or(0, |rate| expected(rate, length(irq.window)) + u128::from(burst));
        add(format!("irq[{i}].{}", irq.load.map_or("rate", |_| "load")), events);
        lines.push(events);
    }

    let mut counter = 0;
    let mut farthest = (0, 0);
    for (i, steal) in scenario.steals.iter().enumerate() {
        let window = length(steal.window);
        let slices = match steal.pattern {
            StealPattern::Fraction { share, jitter } => {
                let parts = u128::from(share.billionths());
                let slices = (window * parts).div_ceil(u128::from(steal.slice_ns) * 1_000_000_000);
                let slices = if jitter { 2 * slices + 64 } else { slices };
                add(format!("steal[{i}].fraction"), slices);
                slices
            }
            StealPattern::Period { period_ns, .. } => {
                let slices = window.div_ceil(period_ns.into());
                add(format!("steal[{i}].period"), slices);
                slices
            }
            StealPattern::Once => 1,
            // Twice and more, because arrivals may be random.
            StealPattern::InHandler { every, line } => {
                let handlers: u128 = match line {
                    Some(line) => lines[usize::from(line)],
                    None => lines.iter().sum(),
                };
                (2 * handlers + 64).div_ceil(every.into())
            }
        };
        let moved = slices * u128::from(steal.counter_ns.unsigned_abs());
        counter += moved;
        if moved > farthest.1 {
            farthest = (i, moved);
        }
    }

    if total > MAX_EVENTS.into() {
        let problem = Problem::TooManyEvents { events: total, max: MAX_EVENTS.into() };
        return Err(doc.error_at(&most.0, problem));
    }
    if counter > MAX_NS.into() {
        let key = format!("steal[{}].counter", farthest.0);
        return Err(doc.error_at(&key, Problem::CounterTooFar { total: counter }));
    }
    Ok(())
}

/// Refuses tasks that start blocked and that nothing reaches.
fn never_woken(scenario: &Scenario, doc: &Document) -> Result<(), ScenarioError> {
    let first = scenario.first_copies();
    let copies: Vec<_> = scenario.copies().collect();
    let target = |to: super::TaskRef, copy: u16| {
        usize::from(first[usize::from(to.task)] + to.copy.unwrap_or(copy))
    };

    // What begins at or after the end never runs, unless something wakes it before.
    let end = scenario.duration_ns;
    let mut runs: Vec<bool> =
        copies.iter().map(|(task, _)| !task.blocked && task.start_ns < end).collect();
    for irq in scenario.irqs.iter().filter(|irq| irq.window.from_ns < end) {
        if let Some(to) = irq.wakes {
            runs[target(to, 0)] = true;
        }
    }
    let mut reached: Vec<usize> = (0..copies.len()).filter(|i| runs[*i]).collect();
    while let Some(i) = reached.pop() {
        let (task, copy) = copies[i];
        if let Some(to) = task.wakes {
            let woken = target(to, copy);
            if !std::mem::replace(&mut runs[woken], true) {
                reached.push(woken);
            }
        }
    }

    let never = |(runs, (task, _)): (&bool, &(&super::Task, u16))| task.blocked && !runs;
    let Some(i) = runs.iter().zip(&copies).position(never) else {
        return Ok(());
    };
    let (task, copy) = copies[i];
    let declared = first.partition_point(|f| usize::from(*f) <= i) - 1;
    let name = task.copy_name(copy);
    Err(doc.error_at(
        &format!("task[{declared}].blocked"),
        Problem::NeverWoken { name, replaced: doc.replaced(&["task", "irq"]) },
    ))
}
