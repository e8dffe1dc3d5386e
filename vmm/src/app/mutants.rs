//! `rqscope mutants`.

use std::io::Write;
use std::sync::Arc;

use super::{Failure, Place, Stdout, linux_mutants, place, run};
use crate::check::{CheckId, NAMES};
use crate::cli::MutantsArgs;
use crate::kvm::Kvm;
use crate::machine::FIRMWARE;
use crate::mutants::{MUTANTS, Mutant, SCENARIO, idle_checks, killers};
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
    let b = builtin(SCENARIO).ok_or(Failure::Input("the mutants' scenario is missing".into()))?;
    let scenario = Scenario::load(b.text, b.name, &[], NAMES).map_err(|e| Failure::input(&e))?;
    let Place { kvm, .. } = place(args.guest)?;
    let control = Arc::new(Control::default());
    let for_guest = control.clone();
    let all = args.names.is_empty();
    supervise(&control, WATCHDOG, None, move || {
        hunt(kvm.as_ref(), &scenario, &chosen, all, &for_guest)
    })
    .map_err(|e| Failure::host(&e))?
}

fn hunt(
    kvm: Option<&Kvm>,
    scenario: &Scenario,
    chosen: &[&Mutant],
    all: bool,
    control: &Arc<Control>,
) -> Result<u8, Failure> {
    let mut out = Stdout::lock();
    let healthy = pass(kvm, scenario, Planted::default(), control)?;
    match &healthy.stopped {
        Some((Asked::ByUser, _)) => {
            writeln!(out, "interrupted: no mutant judged")?;
            return Err(Failure::Interrupted);
        }
        Some((_, why)) => return Err(Failure::Input(format!("the run without a fault: {why}"))),
        None => {}
    }
    let failed = killers(&healthy);
    if !failed.is_empty() {
        writeln!(out, "without a fault, these checks fail: {}", names(&failed))?;
        return Ok(1);
    }
    let width = MUTANTS.iter().map(|m| m.name.len()).max().unwrap_or(0);
    let mut killed_by = Vec::new();
    for m in chosen {
        let outcome = pass(kvm, scenario, m.planted, control)?;
        if let Some((Asked::ByUser, _)) = &outcome.stopped {
            writeln!(out, "\ninterrupted: {} of {} mutants judged", killed_by.len(), chosen.len())?;
            return Err(Failure::Interrupted);
        }
        let killers = killers(&outcome);
        writeln!(out, "{:width$}  {}", m.name, m.what)?;
        match (killers.is_empty(), &outcome.stopped) {
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

fn pass(
    kvm: Option<&Kvm>,
    scenario: &Scenario,
    planted: Planted,
    control: &Arc<Control>,
) -> Result<PassOutcome, Failure> {
    let clock = scenario.policy.rate_limit_clock;
    let machine = kvm.map(|kvm| (kvm, FIRMWARE));
    let done = run::pass(machine, scenario, clock, planted, Trace::hashed(), control.clone())?;
    Ok(done.0)
}

pub(super) fn names(ids: &[CheckId]) -> String {
    ids.iter().map(|id| id.name()).collect::<Vec<_>>().join(", ")
}
