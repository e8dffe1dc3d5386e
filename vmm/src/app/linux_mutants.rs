//! `rqscope mutants --kernel`: faults in the replay and in what introspection takes for the kernel's layout.

use std::io::Write;
use std::sync::Arc;

use super::linux::{Guest, open};
use super::{Failure, Stdout};
use crate::check::NAMES;
use crate::cli::{LinuxArgs, MutantsArgs};
use crate::mutants::{LAYOUT_DURATION, LINUX_SCENARIO, LinuxMutant, LinuxPlanted, linux_mutants};
use crate::replay::{Planted, Rule};
use crate::scenario::{Scenario, builtin, hint};
use crate::session::{Asked, Control, PassOutcome};
use crate::supervise::supervise;
use crate::trace::Trace;

/// Runs the mutants of the kernel that `args` names; exit code 1 if one survives.
pub(super) fn command(args: &MutantsArgs) -> Result<u8, Failure> {
    let Some(kernel) = &args.boot.kernel else {
        return Err(Failure::Input("name a kernel with --kernel".into()));
    };
    let all = linux_mutants();
    for name in &args.names {
        if !all.iter().any(|m| m.name == *name) {
            let hint = hint(name, all.iter().map(|m| m.name.as_str()));
            return Err(Failure::Input(format!(
                "no mutant of a Linux guest is called {name:?}; {hint}"
            )));
        }
    }
    let chosen = |m: &LinuxMutant| args.names.is_empty() || args.names.contains(&m.name);
    let chosen: Vec<LinuxMutant> = all.into_iter().filter(chosen).collect();
    let (kvm, _) = open()?;
    let run = LinuxArgs { boot: args.boot.clone(), probes: Vec::new(), no_snapshot: false };
    let guest = Guest::load(kvm, kernel, &run, &scenario(&[])?)?;
    let control = Arc::new(Control::default());
    let for_guest = control.clone();
    supervise(&control, super::mutants::WATCHDOG, None, move || hunt(guest, &chosen, &for_guest))
        .map_err(|e| Failure::host(&e))?
}

fn scenario(sets: &[String]) -> Result<Scenario, Failure> {
    let missing = || Failure::Input("the mutants' scenario is missing".into());
    let b = builtin(LINUX_SCENARIO).ok_or_else(missing)?;
    Scenario::load(b.text, b.name, sets, NAMES).map_err(|e| Failure::input(&e))
}

fn hunt(mut guest: Guest, chosen: &[LinuxMutant], control: &Arc<Control>) -> Result<u8, Failure> {
    let mut out = Stdout::lock();
    // All that is planted in the replay goes into one run: each fault has a replay of its own.
    let replayed = chosen.iter().filter_map(|m| match m.planted {
        LinuxPlanted::Replay(planted) => Some((m, planted)),
        LinuxPlanted::Layout(_) => None,
    });
    let (mutants, faults): (Vec<&LinuxMutant>, Vec<Planted>) = replayed.unzip();
    let (mut judged, mut survivors, mut idle) = (0, 0, 0);
    let healthy = pass(&guest, &[], &faults, control)?;
    if let Some(why) = wrong(&healthy) {
        writeln!(out, "without a fault: {why}")?;
        return Ok(1);
    }
    let mut tell = |m: &LinuxMutant, verdict: Verdict| -> std::io::Result<()> {
        judged += 1;
        let width = 30;
        writeln!(out, "{:width$}  {}", m.name, m.what)?;
        match verdict {
            Verdict::Killed(by) => writeln!(out, "{:width$}    killed by {by}", "")?,
            Verdict::Survives => {
                survivors += 1;
                writeln!(out, "{:width$}    SURVIVES", "")?;
            }
            Verdict::NotExercised => {
                idle += 1;
                writeln!(
                    out,
                    "{:width$}    not exercised: this kernel makes no such call here",
                    ""
                )?;
            }
        }
        out.flush()
    };
    for (m, found) in mutants.into_iter().zip(&healthy.conformance[1..]) {
        if !found.exercised {
            tell(m, Verdict::NotExercised)?;
            continue;
        }
        let differ = found.differences();
        let killed = (differ != 0).then(|| {
            let rules = Rule::ALL.iter().zip(&found.rules);
            let names: Vec<&str> =
                rules.filter(|(_, t)| t.differences != 0).map(|(rule, _)| rule.name()).collect();
            format!("conformance: {differ} transitions of {}", names.join(", "))
        });
        tell(m, Verdict::of(killed))?;
    }
    for m in chosen {
        let LinuxPlanted::Layout(shift) = m.planted else { continue };
        guest.shift(Some(shift));
        let sets = [format!("duration={LAYOUT_DURATION}")];
        let killed = match pass(&guest, &sets, &[], control) {
            Ok(outcome) => wrong(&outcome),
            Err(Failure::Input(why)) => Some(format!("a refusal: {why}")),
            Err(other) => return Err(other),
        };
        tell(m, Verdict::of(killed))?;
    }
    let killed = judged - survivors - idle;
    write!(out, "\n{judged} mutants, {killed} killed, {survivors} survive")?;
    let idle = if idle == 0 { String::new() } else { format!(", {idle} not exercised") };
    writeln!(out, "{idle}")?;
    Ok(u8::from(survivors != 0))
}

/// What became of a mutant.
enum Verdict {
    Killed(String),
    Survives,
    NotExercised,
}

impl Verdict {
    fn of(killed: Option<String>) -> Self {
        killed.map_or(Self::Survives, Self::Killed)
    }
}

/// What is wrong with a run, if anything.
fn wrong(outcome: &PassOutcome) -> Option<String> {
    if let Some((_, why)) = &outcome.stopped {
        return Some(format!("the end of the run: {why}"));
    }
    let failed = crate::mutants::killers(outcome);
    if !failed.is_empty() {
        return Some(super::mutants::names(&failed));
    }
    let first = outcome.conformance.first().filter(|found| found.differences() != 0)?;
    let rule = first.first.as_ref().map_or("", |first| first.rule.name());
    Some(format!("conformance: {} transitions, first in {rule}()", first.differences()))
}

fn pass(
    guest: &Guest,
    sets: &[String],
    faults: &[Planted],
    control: &Arc<Control>,
) -> Result<PassOutcome, Failure> {
    let mut scenario = scenario(sets)?;
    let mut prepared = guest.prepare(&mut scenario, control)?;
    prepared.plant(faults);
    let (outcome, ..) = guest.run(prepared, &scenario, Trace::hashed(), None, control);
    match &outcome.stopped {
        Some((Asked::ByUser, _)) => Err(Failure::Interrupted),
        _ => Ok(outcome),
    }
}
