//! `rqscope mutants`.

use std::io::Write;
use std::sync::Arc;

use super::{Failure, Place, Stdout, linux_mutants, place, run};
use crate::check::{CheckId, NAMES};
use crate::cli::MutantsArgs;
use crate::kvm::Kvm;
use crate::machine::FIRMWARE;
use crate::mutants::{MUTANTS, Mutant, SCENARIOS, idle_checks, killers_in};
use crate::run::Planted;
use crate::scenario::{Scenario, builtin, hint};
use crate::session::{Asked, Control, PassOutcome};
use crate::supervise::supervise;
use crate::trace::Trace;

/// How long a guest may go without an exit.
pub(super) const WATCHDOG: std::time::Duration = std::time::Duration::from_secs(10);

/// Runs each mutant; exit code 1 if one survives, or if a check catches none.
pub fn command(args: &MutantsArgs) -> Result<u8, Failure> {
    if args.boot.kernel.is_some() {
        return linux_mutants::command(args);
    }
    for name in &args.names {
        if !MUTANTS.iter().any(|m| m.name == name) {
            let hint = hint(name, MUTANTS.iter().map(|m| m.name));
            return Err(Failure::Input(format!("no mutant is called {name:?}; {hint}")));
        }
    }
    let chosen = |m: &&Mutant| args.names.is_empty() || args.names.iter().any(|n| n == m.name);
    let chosen: Vec<&'static Mutant> = MUTANTS.iter().filter(chosen).collect();
    let mut scenarios = Vec::new();
    for name in SCENARIOS {
        let b = builtin(name).ok_or(Failure::Input("a mutants' scenario is missing".into()))?;
        let scenario = Scenario::load(b.text, b.name, &[], NAMES);
        scenarios.push(scenario.map_err(|e| Failure::input(&e))?);
    }
    let Place { kvm, .. } = place(args.guest)?;
    let control = Arc::new(Control::default());
    let for_guest = control.clone();
    let all = args.names.is_empty();
    supervise(&control, WATCHDOG, None, move || {
        hunt(kvm.as_ref(), &scenarios, &chosen, all, &for_guest)
    })
    .map_err(|e| Failure::host(&e))?
}

fn hunt(
    kvm: Option<&Kvm>,
    scenarios: &[Scenario],
    chosen: &[&Mutant],
    all: bool,
    control: &Arc<Control>,
) -> Result<u8, Failure> {
    let mut out = Stdout::lock();
    let healthy = passes(kvm, scenarios, Planted::default(), control)?;
    match stopped(&healthy) {
        Some((Asked::ByUser, _)) => {
            writeln!(out, "interrupted: no mutant judged")?;
            return Err(Failure::Interrupted);
        }
        Some((_, why)) => return Err(Failure::Input(format!("the run without a fault: {why}"))),
        None => {}
    }
    let failed = killers_in(&healthy);
    if !failed.is_empty() {
        writeln!(out, "without a fault, these checks fail: {}", names(&failed))?;
        return Ok(1);
    }
    let width = MUTANTS.iter().map(|m| m.name.len()).max().unwrap_or(0);
    let mut killed_by = Vec::new();
    for m in chosen {
        let outcomes = passes(kvm, scenarios, m.planted, control)?;
        let stopped = stopped(&outcomes);
        if let Some((Asked::ByUser, _)) = stopped {
            writeln!(out, "\ninterrupted: {} of {} mutants judged", killed_by.len(), chosen.len())?;
            return Err(Failure::Interrupted);
        }
        let killers = killers_in(&outcomes);
        writeln!(out, "{:width$}  {}", m.name, m.what)?;
        match (killers.is_empty(), stopped) {
            (false, _) => writeln!(out, "{:width$}    killed by {}", "", names(&killers))?,
            (true, Some((_, why))) => writeln!(out, "{:width$}    SURVIVES: {why}", "")?,
            (true, None) => writeln!(out, "{:width$}    SURVIVES", "")?,
        }
        out.flush()?;
        killed_by.push(killers);
    }
    let survivors = killed_by.iter().filter(|k| k.is_empty()).count();
    let idle = if all { idle_checks(&killed_by) } else { Vec::new() };
    writeln!(
        out,
        "\n{} mutants, {} killed, {survivors} survive",
        chosen.len(),
        chosen.len() - survivors
    )?;
    if !idle.is_empty() {
        writeln!(out, "checks that catch no mutant: {}", names(&idle))?;
    }
    Ok(u8::from(survivors != 0 || !idle.is_empty()))
}

/// A pass over each scenario, until one ends early.
fn passes(
    kvm: Option<&Kvm>,
    scenarios: &[Scenario],
    planted: Planted,
    control: &Arc<Control>,
) -> Result<Vec<PassOutcome>, Failure> {
    let mut outcomes = Vec::new();
    for scenario in scenarios {
        let clock = scenario.policy.rate_limit_clock;
        let machine = kvm.map(|kvm| (kvm, FIRMWARE));
        let trace = Trace::hashed();
        outcomes.push(run::pass(machine, scenario, clock, planted, trace, control.clone())?.0);
        if stopped(&outcomes).is_some() {
            break;
        }
    }
    Ok(outcomes)
}

/// Why the last pass ended early.
fn stopped(outcomes: &[PassOutcome]) -> Option<&(Asked, String)> {
    outcomes.last()?.stopped.as_ref()
}

pub(super) fn names(ids: &[CheckId]) -> String {
    ids.iter().map(|id| id.name()).collect::<Vec<_>>().join(", ")
}
