//! The end of the page: the checks, the verdict, and the command that repeats the run.

use std::io::{self, Write};

use super::figure::{both, count, grouped};
use super::findings::{self, Merged};
use super::page::{INDENT, Page};
use super::table::{Tone, WIDTH};
use super::text::{clipped, escaped};
use super::words;
use crate::check::Status;
use crate::run::Verdict;

impl<W: Write> Page<'_, W> {
    pub(super) fn checks(&mut self) -> io::Result<()> {
        let passes = count(self.outcome.passes.len() as u64, "pass", "passes");
        self.heading("Checks", &format!("times judged, over {passes}"), Tone::Faint)?;
        let checks = findings::shown(self.outcome);
        // Failures tell their story in lines of their own, so the columns are laid out by hand.
        let longest = |of: fn(&Merged<'_>) -> usize| checks.iter().map(of).max().unwrap_or(0);
        let name_width = longest(|c| c.id.name().len());
        let number_width = longest(|c| grouped(c.evaluated).len());
        for c in &checks {
            let (symbol, word, tone) = match c.status {
                Status::Pass => ("✓", "pass", Tone::Good),
                Status::Fail => ("✗", "FAIL", Tone::Bad),
                Status::NotBuiltIn => ("○", "not built in", Tone::Faint),
                Status::NotExercised => ("○", "not exercised", Tone::Faint),
                Status::Off => ("○", "off", Tone::Faint),
            };
            self.out.write_all(b"  ")?;
            self.paint(&format!("{symbol} {word}"), tone)?;
            let rest = format!(
                "{:pad$}  {:name_width$}  {:>number_width$}",
                "",
                c.id.name(),
                if c.evaluated == 0 { String::new() } else { grouped(c.evaluated) },
                pad = 13 - word.len()
            );
            self.out.write_all(rest.trim_end().as_bytes())?;
            self.check_remark(c)?;
        }
        self.reasons()
    }

    /// Ends a check's line and tells what is not plain about it.
    fn check_remark(&mut self, c: &Merged<'_>) -> io::Result<()> {
        const DETAIL: usize = 19;
        let ran = self.outcome.passes.len();
        if c.status == Status::Fail {
            let remark = format!(
                "  {} in {} of {ran} passes",
                count(c.failures, "failure", "failures"),
                c.failed_passes
            );
            self.paint(&remark, Tone::Bad)?;
        } else if c.status != Status::Pass && c.passed_passes > 0 {
            let remark = format!("  passed in only {} of {ran} passes", c.passed_passes);
            self.paint(&remark, Tone::Faint)?;
        }
        writeln!(self.out)?;
        let Some((clock, failure)) = c.first else { return Ok(()) };
        let pass = match self.outcome.linux {
            Some(_) => String::new(),
            None => format!(" in the {} pass", clock.name()),
        };
        let (at, detail) = (both(failure.at_ns), escaped(&failure.detail));
        let story = format!("first at {at}{pass}: {detail}");
        self.text(&story, DETAIL, DETAIL, Tone::Plain)
    }

    pub(super) fn verdict(&mut self) -> io::Result<()> {
        let o = self.outcome;
        let checks = findings::shown(o);
        let with = |status| checks.iter().filter(|c| c.status == status).count();
        let (pass, fail) = (with(Status::Pass), with(Status::Fail));
        let rest = checks.len() - pass - fail;
        let passes = count(o.passes.len() as u64, "pass", "passes");
        let (word, tone, text) = match o.verdict() {
            Verdict::Pass => {
                ("PASS", Tone::Good, format!("{pass} checks hold in {passes}, {rest} not judged"))
            }
            Verdict::Fail => {
                let checks = if fail == 1 { "check fails" } else { "checks fail" };
                let differs = o.passes.first().and_then(|p| p.conformance.first());
                let differs = match differs.map_or(0, |c| c.differences()) {
                    0 => String::new(),
                    n => format!("; {n} transitions differ from guest-model"),
                };
                let text =
                    format!("{fail} {checks}, {pass} hold, {rest} not judged in {passes}{differs}");
                ("FAIL", Tone::Bad, text)
            }
            Verdict::Incomplete => {
                let text = format!("the run ended early; {pass} checks held until then");
                ("INCOMPLETE", Tone::Warn, text)
            }
        };
        writeln!(self.out)?;
        self.paint(word, tone)?;
        writeln!(self.out, "  {text}")?;
        for note in findings::notes(o) {
            self.text(&note, INDENT, INDENT, Tone::Warn)?;
        }
        writeln!(self.out)?;
        let records = count(o.trace_records, "record", "records");
        self.paint("trace   ", Tone::Faint)?;
        writeln!(self.out, "{} sha256, {records}", clipped(&o.trace_sha256, 64))?;
        self.paint("repeat  ", Tone::Faint)?;
        writeln!(self.out, "{}", command(&words(o), WIDTH - 8).join(" \\\n          "))
    }
}

/// The words of a command in lines that leave room for a continuation mark. No word is broken: it
/// must be good to copy.
fn command(words: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() + 5 <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.clone()),
        }
    }
    lines
}
