//! The result as a page for a terminal: at most [`WIDTH`] columns, every number exact.

use std::io::{self, Write};

use guest_model::policy::RateLimitClock;

use super::figure::{count, grouped, human, ns, share, thousandth};
use super::findings;
use super::linux::kernel_version;
use super::table::Side::{Left, Right};
use super::table::{Cell, Table, Tone, WIDTH, cell, paint};
use super::text::{clipped, escaped, wrapped};
use crate::check::{CheckId, Status};
use crate::ledger::Ledger;
use crate::run::{RunOutcome, pass_clocks};
use crate::scenario::format_duration;
use crate::session::PassOutcome;

/// Most characters of an interrupt line's name.
const LINE_NAME: usize = 28;
/// Most characters of a group's path.
const PATH: usize = 48;
/// Groups listed; one more is not worth a line that says so.
const GROUPS: usize = 12;
/// Indent of everything under a heading.
pub(super) const INDENT: usize = 2;

/// Writes the page of a run. `color` adds ANSI colours and changes nothing else.
///
/// # Errors
/// What writing to `out` fails with.
pub fn page(out: &mut impl Write, outcome: &RunOutcome, color: bool) -> io::Result<()> {
    let mut page = Page { out, outcome, color };
    page.title()?;
    if let Some(main) = outcome.passes.first() {
        page.injected(main)?;
        page.wall_time(&main.ledger)?;
        page.clocks(main)?;
        page.psi_calls(main)?;
        page.psi_groups(main)?;
        page.rate_limit()?;
        if let Some(linux) = &outcome.linux {
            page.clock_readers(linux)?;
            page.probes(linux)?;
        }
        if let Some(conformance) = main.conformance.first() {
            page.conformance(conformance)?;
        }
        page.checks()?;
    }
    page.verdict()
}

pub(super) struct Page<'a, W> {
    pub(super) out: &'a mut W,
    pub(super) outcome: &'a RunOutcome,
    color: bool,
}

impl<W: Write> Page<'_, W> {
    pub(super) fn paint(&mut self, text: &str, tone: Tone) -> io::Result<()> {
        paint(self.out, text, tone, self.color)
    }

    pub(super) fn heading(&mut self, heading: &str, remark: &str, tone: Tone) -> io::Result<()> {
        writeln!(self.out)?;
        self.paint(heading, Tone::Heading)?;
        if !remark.is_empty() {
            self.out.write_all(b"  ")?;
            self.paint(remark, tone)?;
        }
        writeln!(self.out)
    }

    pub(super) fn table(&mut self, table: &Table) -> io::Result<()> {
        table.write(self.out, self.color)
    }

    /// Text in as many lines as it takes, the first indented by `first` and the rest by `rest`.
    pub(super) fn text(
        &mut self,
        text: &str,
        first: usize,
        rest: usize,
        tone: Tone,
    ) -> io::Result<()> {
        let width = WIDTH - rest.max(first);
        for (i, line) in wrapped(text, width).iter().enumerate() {
            write!(self.out, "{:1$}", "", if i == 0 { first } else { rest })?;
            self.paint(line, tone)?;
            writeln!(self.out)?;
        }
        Ok(())
    }

    /// What ran, with everything that it takes to run it again.
    fn title(&mut self) -> io::Result<()> {
        let o = self.outcome;
        let s = &o.scenario;
        self.paint("rqscope ", Tone::Heading)?;
        let name = clipped(&s.name, WIDTH - 8);
        self.paint(&name, Tone::Heading)?;
        writeln!(self.out)?;
        self.text(&escaped(&s.summary), INDENT, INDENT, Tone::Plain)?;
        let others: Vec<&str> =
            pass_clocks(s).into_iter().skip(1).map(RateLimitClock::name).collect();
        let guest = match &o.linux {
            Some(linux) => kernel_version(&linux.banner),
            None => o.guest.name().to_owned(),
        };
        let mut facts = vec![
            format!("seed {}", s.seed),
            format!("guest {guest}"),
            format!("host kvm {}", o.host_kvm),
            format!("{} of virtual time", format_duration(s.duration_ns as i64)),
        ];
        if o.linux.is_some() {
            facts.extend(self.observed_rules());
        } else {
            facts.push(format!("tick {}", s.tick.rate));
            facts.push(format!("psi {}", s.policy.psi.name()));
            facts.push(format!("rate limit on {}", s.policy.rate_limit_clock.name()));
        }
        if !others.is_empty() && o.linux.is_none() {
            facts.push(format!("compared with {}", others.join(" and ")));
        }
        facts.extend(super::sets(o).map(|set| format!("set {}", escaped(set))));
        for line in flowed(&facts, WIDTH - INDENT) {
            self.text(&line, INDENT, INDENT, Tone::Faint)?;
        }
        self.inapplicable()
    }

    fn injected(&mut self, main: &PassOutcome) -> io::Result<()> {
        let l = &main.ledger;
        self.heading("Injected", "", Tone::Faint)?;
        let mut t = Table::headed(
            &[Left, Right, Right, Right, Right, Right],
            &["interrupts", "raised", "handled", "merged", "hardirq", "softirq raised"],
        );
        let names = self.outcome.scenario.irq_names();
        for (name, line) in names.iter().zip(&l.lines) {
            t.row([
                clipped(name, LINE_NAME).into(),
                grouped(line.raised).into(),
                grouped(line.handled).into(),
                grouped(line.coalesced).into(),
                ns(line.hardirq_ns).into(),
                ns(line.softirq_raised_ns).into(),
            ]);
        }
        let sum = |of: fn(&crate::ledger::Line) -> u64| -> i128 {
            l.lines.iter().map(|line| i128::from(of(line))).sum()
        };
        t.row([
            "all".into(),
            grouped(sum(|l| l.raised)).into(),
            grouped(sum(|l| l.handled)).into(),
            grouped(sum(|l| l.coalesced)).into(),
            ns(sum(|l| l.hardirq_ns)).into(),
            ns(sum(|l| l.softirq_raised_ns)).into(),
        ]);
        self.table(&t)?;
        if main.irqs_waiting > 0 {
            let waiting = count(main.irqs_waiting, "interrupt waits", "interrupts wait");
            self.text(&format!("{waiting} at the end"), INDENT, INDENT, Tone::Faint)?;
        }
        self.steal(l)
    }

    fn steal(&mut self, l: &Ledger) -> io::Result<()> {
        writeln!(self.out)?;
        if l.steal_count == 0 && l.steal_skipped == 0 {
            return self.text("no steal", INDENT, INDENT, Tone::Plain);
        }
        let mut t = Table::new(&[Left, Right, Right, Left]);
        let mut row = |name: &'static str, ns_: i128, remark: String| {
            let short = if ns_.unsigned_abs() < 1_000 { String::new() } else { human(ns_) };
            t.row([name.into(), ns(ns_).into(), short.into(), cell(remark, Tone::Faint)]);
        };
        let mut slices = format!("in {}", count(l.steal_count, "slice", "slices"));
        if l.steal_skipped > 0 {
            slices += &format!("; {} left out, the CPU being busy or idle", l.steal_skipped);
        }
        row("steal, wall time", l.steal_wall_ns.into(), slices);
        row("  inside IRQ time", l.steal_in_irq_ns.into(), String::new());
        row("  while idle", l.steal_in_idle_ns.into(), String::new());
        let moved = match i128::from(l.steal_counter_ns) - i128::from(l.steal_wall_ns) {
            0 => "as wall time".into(),
            more @ 1.. => format!("{} more than wall time", ns(more)),
            less => format!("{} less than wall time", ns(-less)),
        };
        row("steal counter", l.steal_counter_ns.into(), moved);
        if l.steal_backward_count > 0 {
            let mut steps = count(l.steal_backward_count, "step", "steps");
            if let Some(at) = l.steal_backward_first_at_ns {
                steps += &format!(", first at {}", ns(at));
            }
            row("  backwards", -i128::from(l.steal_backward_ns), steps);
        }
        self.table(&t)
    }

    fn wall_time(&mut self, l: &Ledger) -> io::Result<()> {
        self.heading("Where wall time went", "", Tone::Faint)?;
        let all = l.elapsed_ns();
        let mut t = Table::new(&[Left, Right, Right, Right]);
        for (name, part) in [
            ("task", l.task_ns),
            ("hardirq", l.hardirq_ns),
            ("softirq", l.softirq_ns),
            ("ksoftirqd", l.ksoftirqd_ns),
            ("steal", l.steal_wall_ns),
            ("idle", l.idle_ns),
            ("all", all),
        ] {
            t.row([name.into(), ns(part).into(), human(part).into(), share(part, all).into()]);
        }
        self.table(&t)
    }

    fn clocks(&mut self, main: &PassOutcome) -> io::Result<()> {
        let clock = main.policy.rate_limit_clock.name();
        let updates = count(main.measured.accounted.updates, "update", "updates");
        let remark = match self.outcome.linux {
            Some(_) => updates,
            None => format!("{clock} pass, {updates}"),
        };
        self.heading("Run queue clocks", &remark, Tone::Faint)?;
        let Some((rq, books)) = findings::rq(main).zip(findings::books(main)) else {
            let text = "unavailable: the pass stopped before anything was seen of the run queue";
            return self.text(text, INDENT, INDENT, Tone::Warn);
        };
        let acc = &main.measured.accounted;
        let no_psi = findings::lack(self.outcome, CheckId::PsiIrqLedger).is_some();
        let mut t = Table::new(&[Left, Right, Right, Left]);
        let mut row = |name: &str, ns_: i128, remark: String| {
            let lacks = match name {
                "psi_irq_time" if no_psi => Some("PSI is not built in"),
                name if name.contains("steal") && !main.has_steal_clock => {
                    Some("the guest has no steal clock")
                }
                _ => None,
            };
            if let Some(why) = lacks {
                t.row([name.into(), "unavailable".into(), "".into(), cell(why, Tone::Faint)]);
                return;
            }
            let short = if ns_.unsigned_abs() < 1_000 { String::new() } else { human(ns_) };
            t.row([name.into(), ns(ns_).into(), short.into(), cell(remark, Tone::Faint)]);
        };
        let after = i128::from(main.elapsed_ns) - i128::from(rq.clock_ns);
        let last = match after {
            0.. => format!("{} behind guest time", ns(after)),
            _ => format!("{} AHEAD of guest time", ns(-after)),
        };
        row("clock", rq.clock_ns.into(), last);
        let carried = acc.irq_carried_count;
        let carried = format!("some carried over {}", count(carried, "time", "times"));
        row("  - irq taken", -books.irq, carried);
        let dropped = match books.steal_dropped {
            0 => "none dropped".into(),
            n => {
                let updates = count(acc.steal_dropped_count, "update", "updates");
                format!("{} dropped in {updates}", ns(n))
            }
        };
        row("  - steal taken", -books.steal, dropped);
        if books.unexplained != 0 {
            row("  - unexplained", -books.unexplained, "conservation is broken".into());
        }
        row("  = clock_task", rq.clock_task_ns.into(), String::new());
        row("clock_pelt", rq.clock_pelt_ns.into(), String::new());
        let pending = |n: i128| match n {
            0 => "nothing pending".into(),
            n => format!("{} pending", ns(n)),
        };
        row("prev_irq_time", rq.prev_irq_time_ns.into(), pending(books.irq_pending));
        let counter = i128::from(rq.prev_steal_time_rq_ns as i64);
        row("prev_steal_time_rq", counter, pending(books.steal_pending));
        row("psi_irq_time", rq.psi_irq_time_ns.into(), String::new());
        let stopped = acc.clock_task_stopped_max_ns.into();
        row("clock_task stood still", stopped, "at most, while clock advanced".into());
        if acc.clock_task_ahead_max_ns > 0 {
            let ahead = acc.clock_task_ahead_max_ns.into();
            row("clock_task ran ahead", ahead, "of clock, at most".into());
        }
        self.table(&t)?;
        self.skipped(acc)?;
        self.off_by(&books)
    }

    /// `clock_task` against what tasks and idle really had, and where the difference comes from.
    fn off_by(&mut self, books: &findings::Books) -> io::Result<()> {
        writeln!(self.out)?;
        let mut t = Table::new(&[Left, Right, Right]);
        t.row([
            "clock_task less what tasks and idle really had".into(),
            ns(books.off_by).into(),
            human(books.off_by).into(),
        ]);
        for (cause, part) in books.causes.into_iter().filter(|(_, ns)| *ns != 0) {
            t.row([format!("  {cause}").into(), ns(part).into(), human(part).into()]);
        }
        self.table(&t)
    }

    fn psi_calls(&mut self, main: &PassOutcome) -> io::Result<()> {
        if let Some(why) = findings::lack(self.outcome, CheckId::PsiIrqLedger) {
            return self.unseen("psi_account_irqtime()", "not built in", why);
        }
        let rule = match findings::zero_delta_rule(self.outcome, main) {
            Some(rule) => self.observed(rule),
            None => "what it does at a zero delta was not observed".to_owned(),
        };
        self.heading("psi_account_irqtime()", &rule, Tone::Faint)?;
        let p = &main.measured.psi_table;
        let mut t = Table::new(&[Left, Right, Right, Left]);
        let mut row = |name: &'static str, n: u64, of: Option<u64>, remark: &'static str| {
            let share = of.map_or(String::new(), |of| share(n, of));
            t.row([name.into(), grouped(n).into(), share.into(), cell(remark, Tone::Faint)]);
        };
        row("calls", p.total, None, "");
        row("  curr is swapper", p.ret_curr_swapper, Some(p.total), "of all calls");
        row("  same PSI group", p.ret_samegrp, Some(p.total), "");
        row("  reached the delta", p.reached_delta, Some(p.total), "");
        row("    positive", p.delta_positive, Some(p.reached_delta), "of those that reach it");
        row("    zero", p.delta_zero, Some(p.reached_delta), "");
        row("    negative", p.delta_negative, Some(p.reached_delta), "");
        for (name, n) in [
            ("seqcount writes", Some(p.writes)),
            ("clock reads", findings::psi_clock_reads(self.outcome, main)),
            ("cgroup levels walked", Some(p.levels)),
        ] {
            match n {
                Some(n) => t.row([name.into(), grouped(n).into()]),
                None => t.row([name.into(), unavailable()]),
            }
        }
        self.table(&t)
    }

    fn psi_groups(&mut self, main: &PassOutcome) -> io::Result<()> {
        if findings::lack(self.outcome, CheckId::PsiIrqLedger).is_some() {
            // Said of its calls already.
            return Ok(());
        }
        let agrees = main.checks.iter().find(|c| c.id == CheckId::PsiIrqLedger);
        let (agrees, tone) = match agrees.map(|c| c.status) {
            Some(Status::Pass) => ("the guest's times[PSI_IRQ_FULL] agree", Tone::Faint),
            Some(Status::Fail) => ("the guest's times[PSI_IRQ_FULL] DIFFER", Tone::Bad),
            _ => ("the guest's were not compared", Tone::Faint),
        };
        self.heading("PSI IRQ time by group", &format!("by the ledger; {agrees}"), tone)?;
        let paths = findings::group_paths(self.outcome);
        let mut groups: Vec<(&String, u64)> =
            paths.iter().zip(main.measured.psi_irq_ns.iter().copied()).collect();
        let root = groups.first().map_or(0, |(_, ns)| *ns);
        if groups.len() > GROUPS + 1 {
            // Stable: groups with the same time stay in the scenario's order.
            groups.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        }
        let listed = if groups.len() > GROUPS + 1 { GROUPS } else { groups.len() };
        let mut t = Table::new(&[Left, Right, Right, Right]);
        for (path, part) in &groups[..listed] {
            t.row([
                clipped(path, PATH).into(),
                ns(*part).into(),
                human(*part).into(),
                share(*part, root).into(),
            ]);
        }
        self.table(&t)?;
        match groups.len() - listed {
            0 => Ok(()),
            more => self.text(&format!("… {more} more"), INDENT, INDENT, Tone::Faint),
        }
    }

    /// One row for each rate-limit clock in each of two tables: what it costs, and what it buys.
    fn rate_limit(&mut self) -> io::Result<()> {
        let o = self.outcome;
        if let Some(why) = findings::lack(o, CheckId::TgPublished) {
            return self.unseen("update_tg_load_avg()", "not seen", why);
        }
        let remark = match o.linux {
            Some(_) => "by the kernel's rate-limit clock, as observed",
            None => "by rate-limit clock; * is the scenario's own",
        };
        self.heading("update_tg_load_avg()", remark, Tone::Faint)?;
        let own = o.scenario.policy.rate_limit_clock;
        let mut calls = Table::headed(
            &[Left, Right, Right, Right, Right, Right, Right, Right],
            &["", "calls", "rate limited", "", "within 1/64", "published", "", "clock reads"],
        );
        let mut stale = Table::headed(
            &[Left, Right, Right, Right, Right, Right],
            &[
                "stale by",
                "worst, clock",
                "worst, clock_task",
                "mean, clock",
                "worst load",
                "mean load",
            ],
        );
        for clock in RateLimitClock::ALL {
            // A kernel has one clock: nothing to compare it with.
            let mark = if clock == own && o.linux.is_none() { "*" } else { " " };
            let tone = if clock == own { Tone::Heading } else { Tone::Plain };
            let name = cell(format!("{mark} {}", clock.name()), tone);
            let ran = o.passes.iter().find(|p| p.policy.rate_limit_clock == clock);
            let Some(pass) = ran else {
                if pass_clocks(&o.scenario).contains(&clock) {
                    calls.row([name.clone(), cell("did not run", Tone::Warn)]);
                }
                continue;
            };
            let r = &pass.measured.tg;
            calls.row([
                name.clone(),
                grouped(r.calls).into(),
                grouped(r.rate_limited).into(),
                share(r.rate_limited, r.calls).into(),
                grouped(r.below_tolerance).into(),
                grouped(r.published).into(),
                share(r.published, r.calls).into(),
                findings::tg_clock_reads(o, pass).map_or_else(unavailable, |n| grouped(n).into()),
            ]);
            let st = &r.staleness;
            let mean = st.mean_load_milli(pass.elapsed_ns, findings::groups(pass));
            stale.row([
                name,
                ns(st.max_ns).into(),
                ns(st.max_task_ns).into(),
                ns(st.mean_ns()).into(),
                grouped(st.max_load).into(),
                thousandth(mean.into()).into(),
            ]);
        }
        self.table(&calls)?;
        for pass in o.passes.iter().filter(|p| p.measured.tg.offline > 0) {
            let clock = pass.policy.rate_limit_clock.name();
            let offline = grouped(pass.measured.tg.offline);
            let text = format!("{clock}: {offline} of the calls with the CPU offline");
            self.text(&text, 4, 4, Tone::Faint)?;
        }
        writeln!(self.out)?;
        self.table(&stale)
    }
}

fn unavailable() -> Cell {
    cell("unavailable", Tone::Faint)
}

/// `facts` in lines of at most `width` characters, a dot between two.
fn flowed(facts: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for fact in facts {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 3 + fact.chars().count() <= width => {
                line.push_str(" · ");
                line.push_str(fact);
            }
            _ => lines.push(fact.clone()),
        }
    }
    lines
}
