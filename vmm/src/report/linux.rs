//! What the page says of a Linux guest beside the rest: which kernel it is, what it was seen to do and
//! what it lacks.

use std::io::{self, Write};

use super::figure::{both, count, grouped, share};
use super::findings;
use super::page::{INDENT, Page};
use super::table::Side::{Left, Right};
use super::table::{Table, Tone};
use super::text::{clipped, escaped};
use crate::check::{Accounted, CheckId};
use crate::run::LinuxOutcome;

/// Clock readers listed; one more is not worth a line that says so.
const READERS: usize = 6;
/// Most characters of a kernel's version.
const VERSION: usize = 48;
/// Most characters of a function with its arguments.
const FUNCTION: usize = 76;

/// A kernel's line about itself, down to its version: `Linux 7.3.4`.
pub(super) fn kernel_version(banner: &str) -> String {
    let mut words = banner.split_whitespace();
    match (words.next(), words.next(), words.next()) {
        (Some("Linux"), Some("version"), Some(version)) => {
            format!("Linux {}", clipped(version, VERSION))
        }
        (None, ..) => "Linux, not booted".to_owned(),
        _ => format!("Linux, {}", clipped(banner.trim(), VERSION)),
    }
}

impl<W: Write> Page<'_, W> {
    /// A rule by its name, and that it is the guest's own if it is.
    pub(super) fn observed(&self, rule: &str) -> String {
        match self.outcome.linux {
            Some(_) => format!("{rule}, as observed"),
            None => rule.to_owned(),
        }
    }

    /// The rules that the kernel was seen to follow.
    pub(super) fn observed_rules(&self) -> [String; 2] {
        if self.outcome.linux.is_some() && self.outcome.passes.is_empty() {
            return ["psi not observed", "rate limit not observed"].map(str::to_owned);
        }
        let policy = &self.outcome.scenario.policy;
        let lacks = |id| findings::lack(self.outcome, id).is_some();
        let psi = match (lacks(CheckId::PsiIrqLedger), lacks(CheckId::PsiZero)) {
            (true, _) => "psi not built in".to_owned(),
            (_, true) => "psi at a zero delta not observed".to_owned(),
            _ => self.observed(&format!("psi {}", policy.psi.name())),
        };
        let seen = self.outcome.linux.as_ref().is_none_or(|linux| linux.rate_limit_seen);
        let limit = match seen {
            true => self.observed(&format!("rate limit on {}", policy.rate_limit_clock.name())),
            false => "rate limit's clock not observed".to_owned(),
        };
        [psi, limit]
    }

    /// What the scenario says and the guest does not do.
    pub(super) fn inapplicable(&mut self) -> io::Result<()> {
        let Some(linux) = &self.outcome.linux else { return Ok(()) };
        let mut notes: Vec<String> = linux.notes.iter().map(|note| escaped(note)).collect();
        if linux.has_own_workload {
            notes.push("group, task: the initrd has its own".into());
        }
        if notes.is_empty() {
            return Ok(());
        }
        let text = format!("does not apply: {}", notes.join("; "));
        self.text(&text, INDENT, INDENT + 2, Tone::Faint)
    }

    /// A section about something that cannot be seen in this guest.
    pub(super) fn unseen(&mut self, heading: &str, remark: &str, why: &str) -> io::Result<()> {
        self.heading(heading, remark, Tone::Faint)?;
        self.text(&escaped(why), INDENT, INDENT, Tone::Plain)
    }

    /// Updates of the clock that the scheduler left out, and what that means.
    pub(super) fn skipped(&mut self, acc: &Accounted) -> io::Result<()> {
        if acc.updates_skipped == 0 {
            return Ok(());
        }
        let behind = match acc.skipped_behind_max_ns {
            0 => "it was not behind guest time then".to_owned(),
            max => format!("it was up to {} behind guest time then", both(max)),
        };
        let text = format!(
            "{} skipped by the scheduler, which takes the clock as a wake-up has just updated it \
             (RQCF_ACT_SKIP); {behind}",
            count(acc.updates_skipped, "more update was", "more updates were"),
        );
        self.text(&text, INDENT, INDENT, Tone::Faint)
    }

    /// Who reads the scheduler clock.
    pub(super) fn clock_readers(&mut self, linux: &LinuxOutcome) -> io::Result<()> {
        let readers = &linux.clock_readers;
        let remark = match readers.is_empty() {
            true => "no call was seen",
            false => "calls by caller; one that the compiler has inlined is not seen",
        };
        self.heading("sched_clock_cpu()", remark, Tone::Faint)?;
        let all: u64 = readers.iter().map(|(_, n)| n).fold(0, |sum, n| sum.saturating_add(*n));
        let listed = if readers.len() > READERS + 1 { READERS } else { readers.len() };
        let mut t = Table::new(&[Left, Right, Right]);
        for (name, n) in &readers[..listed] {
            t.row([clipped(name, FUNCTION).into(), grouped(*n).into(), share(*n, all).into()]);
        }
        if listed < readers.len() {
            let rest = readers[listed..].iter().fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
            let name = format!("… {} more", readers.len() - listed);
            t.row([name.into(), grouped(rest).into(), share(rest, all).into()]);
        }
        if readers.len() > 1 {
            t.row(["all".into(), grouped(all).into(), share(all, all).into()]);
        }
        self.table(&t)
    }

    /// How often what the user wants probed was called.
    pub(super) fn probes(&mut self, linux: &LinuxOutcome) -> io::Result<()> {
        if linux.probes.is_empty() {
            return Ok(());
        }
        self.heading("Probes", "calls of the functions asked for", Tone::Faint)?;
        let mut t = Table::new(&[Left, Right]);
        for (probe, hits) in &linux.probes {
            let function = format!("{}({})", probe.symbol, probe.args.join(", "));
            t.row([clipped(&function, FUNCTION).into(), grouped(*hits).into()]);
        }
        self.table(&t)
    }

    /// Why checks are not built in.
    pub(super) fn reasons(&mut self) -> io::Result<()> {
        let reasons = findings::reasons(self.outcome);
        if !reasons.is_empty() {
            writeln!(self.out)?;
        }
        for (why, ids) in reasons {
            let names: Vec<&str> = ids.iter().map(|id| id.name()).collect();
            let is = if names.len() == 1 { "is" } else { "are" };
            let text = format!("{} {is} not built in: {}", names.join(", "), escaped(why));
            self.text(&text, INDENT, INDENT + 2, Tone::Faint)?;
        }
        Ok(())
    }
}
