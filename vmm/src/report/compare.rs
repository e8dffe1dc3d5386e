//! A comparison as a page for a terminal: one screen for two subjects.

use std::io::{self, Write};

use super::figure::{count, grouped};
use super::table::Side::{Left, Right};
use super::table::{Cell as Text, Side, Table, Tone, WIDTH, cell, paint};
use super::text::{clipped, escaped, wrapped};
use crate::compare::claim::matches;
use crate::compare::subject::short_version;
use crate::compare::{Cell, Comparison, Judged, Leaf, Relation, Row, Study, Track, is_schedule};
use crate::scenario::format_duration;

/// What is told first, in this order, if there is room: the answers to what a scheduler's developer
/// asks. `*` stands for any text.
const LEADS: [&str; 19] = [
    "accounted.irq_ns",
    "accounted.steal_ns",
    "accounted.steal_dropped_ns",
    "rq.0.clock_task_ns",
    "psi_account_irqtime.total",
    "psi_account_irqtime.ret_curr_swapper",
    "psi_account_irqtime.ret_samegrp",
    "psi_account_irqtime.reached_delta",
    "psi_account_irqtime.delta_zero",
    "psi_account_irqtime.seqcount_writes",
    "psi_account_irqtime.clock_reads",
    "update_tg_load_avg.calls",
    "update_tg_load_avg.published",
    "update_tg_load_avg.rate_limited",
    "update_tg_load_avg.staleness_max_ns",
    "update_tg_load_avg.clock_reads",
    "psi_groups.*.times_irq_full_ns",
    "linux.clock_readers.*.calls",
    "trace_records",
];

/// Keys that are told at the top, and those that are no answers.
const ELSEWHERE: [&str; 5] = [
    "trace_sha256",
    "verdict",
    "psi_account_irqtime.policy",
    "update_tg_load_avg.clock",
    "checks.*",
];

/// Most rows of values that are equal, of those and the ones that differ, and of series that do.
const EQUAL: usize = 9;
const ROWS: usize = 18;
const SERIES: usize = 3;
/// Of these, most that one lead of several keys takes up.
const ALIKE: usize = 2;
/// Most characters of a value that is a word, of a subject's name, and of a key in a sentence.
const WORD: usize = 18;
const NAME: usize = 20;
const KEY: usize = 60;
/// Characters of a trace's hash.
const HASH: usize = 12;
/// Keys of a failed claim that are told.
const FAILED: usize = 3;
/// Cells listed.
const CELLS: usize = 400;

/// Writes the page of a comparison. `color` adds ANSI colours and changes nothing else.
///
/// # Errors
/// What writing to `out` fails with.
pub fn page(out: &mut impl Write, study: &Study, color: bool) -> io::Result<()> {
    let mut page = Page { out, study, color };
    let several = study.planned > 1;
    page.title()?;
    if several {
        page.cells()?;
    }
    if let Some(cell) = telling(study) {
        page.head(cell, several)?;
        let equal = page.equal(&cell.comparison)?;
        page.different(&cell.comparison, ROWS - equal)?;
        page.series(cell)?;
        page.claims(cell)?;
    }
    page.end()
}

/// The cell that there is most to say of: the first with a claim that fails, else the first in which
/// anything differs, else the first.
fn telling(study: &Study) -> Option<&Cell> {
    let differs = |cell: &&Cell| cell.comparison.count(Relation::Different) > 0;
    let cells = || study.cells.iter();
    cells().find(|c| !c.holds()).or_else(|| cells().find(differs)).or_else(|| cells().next())
}

struct Page<'a, W> {
    out: &'a mut W,
    study: &'a Study,
    color: bool,
}

impl<W: Write> Page<'_, W> {
    fn paint(&mut self, text: &str, tone: Tone) -> io::Result<()> {
        paint(self.out, text, tone, self.color)
    }

    fn heading(&mut self, heading: &str, remark: &str) -> io::Result<()> {
        self.paint(heading, Tone::Heading)?;
        self.paint(&format!("  {remark}"), Tone::Faint)?;
        writeln!(self.out)
    }

    fn text(&mut self, text: &str, tone: Tone) -> io::Result<()> {
        for (i, line) in wrapped(text, WIDTH - 4).iter().enumerate() {
            self.out.write_all(if i == 0 { b"  " } else { b"    " })?;
            self.paint(line, tone)?;
            writeln!(self.out)?;
        }
        Ok(())
    }

    fn title(&mut self) -> io::Result<()> {
        let mut remark = count(self.study.subjects.len() as u64, "subject", "subjects");
        if self.study.planned > 1 {
            let cells = grouped(self.study.planned as u64);
            remark += &format!(" · {cells} pairs of scenario and seed");
        }
        for set in &self.study.sets {
            remark += &format!(" · set {}", escaped(set));
        }
        self.paint("rqscope compare", Tone::Heading)?;
        for (i, line) in wrapped(&remark, WIDTH - 17).iter().enumerate() {
            write!(self.out, "{:1$}", "", if i == 0 { 2 } else { 17 })?;
            self.paint(line, Tone::Faint)?;
            writeln!(self.out)?;
        }
        Ok(())
    }

    /// A row for each scenario and seed.
    fn cells(&mut self) -> io::Result<()> {
        let sides = [Left, Right, Right, Right, Left, Left, Left];
        let heads = ["scenario", "seed", "equal", "different", "schedule", "checks", "claims"];
        let mut t = Table::headed(&sides, &heads);
        for c in self.study.cells.iter().take(CELLS) {
            let number = |relation| grouped(c.comparison.count(relation) as u64);
            let different = match c.comparison.count(Relation::Different) {
                0 => "0".into(),
                n => cell(grouped(n as u64), Tone::Warn),
            };
            t.row([
                clipped(&c.source, 28).into(),
                clipped(&c.seed.to_string(), 20).into(),
                number(Relation::Equal).into(),
                different,
                if c.comparison.same_schedule() { "same" } else { "differs" }.into(),
                checks(c),
                claims(c),
            ]);
        }
        t.write(self.out, self.color)?;
        match self.study.cells.len().saturating_sub(CELLS) {
            0 => Ok(()),
            more => self.text(&format!("… {more} more"), Tone::Faint),
        }
    }

    /// What one cell is, who ran and whether they saw the same.
    fn head(&mut self, c: &Cell, several: bool) -> io::Result<()> {
        if several {
            writeln!(self.out)?;
        }
        let duration = format_duration(c.duration_ns as i64);
        let remark = format!("seed {} · {duration} of virtual time", c.seed);
        self.heading(&clipped(&c.source, 40), &remark)?;
        let mut t = Table::new(&[Left; 6]);
        for (name, run) in self.study.names.iter().zip(&c.runs) {
            let guest = match run.version() {
                Some(version) => format!("Linux {}", short_version(&version)),
                None => run.guest.clone(),
            };
            let or = |rule: &Option<String>| rule.clone().unwrap_or("not observed".into());
            let (word, tone) = match run.verdict.as_str() {
                "pass" => ("PASS".to_owned(), Tone::Good),
                "fail" => (format!("FAIL {}", run.failed.len()), Tone::Bad),
                _ => ("INCOMPLETE".to_owned(), Tone::Warn),
            };
            t.row([
                cell(clipped(name, NAME), Tone::Heading),
                clipped(&guest, 18).into(),
                format!("psi {}", or(&run.psi)).into(),
                format!("limit on {}", or(&run.clock)).into(),
                cell(word, tone),
                cell(clipped(&run.trace_sha256, HASH + 1), Tone::Faint),
            ]);
        }
        t.write(self.out, self.color)?;
        for (name, run) in self.study.names.iter().zip(&c.runs) {
            if !run.failed.is_empty() {
                self.text(&format!("{name}: fails {}", run.failed.join(", ")), Tone::Bad)?;
            }
            if let Some(why) = &run.stopped {
                self.text(&format!("{name}: stopped: {}", escaped(why)), Tone::Bad)?;
            }
        }
        let (schedule, tone) = schedule(&c.comparison);
        self.text(&schedule, tone)?;
        let (traces, tone) = traces(c);
        self.text(&traces, tone)
    }

    /// The values that are equal; how many rows they take.
    fn equal(&mut self, c: &Comparison) -> io::Result<usize> {
        let equal = c.rows.iter().filter(|row| row.relation == Relation::Equal).count();
        self.heading("Equal", &count(equal as u64, "key", "keys"))?;
        let mut t = Table::new(&[Left, Right]);
        let (mut told, mut lines) = (0, 0);
        for lead in LEADS {
            let rows: Vec<&Row> = c.rows.iter().filter(|row| matches(lead, &row.key)).collect();
            let all = rows.iter().all(|row| row.relation == Relation::Equal);
            if rows.is_empty() || !all || lines == EQUAL {
                continue;
            }
            let value = match rows.as_slice() {
                [row] if row.key == lead => shown(row.values.first()),
                rows => format!("all {}", grouped(rows.len() as u64)),
            };
            t.row([lead.into(), value.into()]);
            told += rows.len();
            lines += 1;
        }
        t.write(self.out, self.color)?;
        let more = equal.saturating_sub(told);
        if more > 0 && told > 0 {
            let text = format!("{} equal", count(more as u64, "more key is", "more keys are"));
            self.text(&text, Tone::Faint)?;
        }
        let none: Vec<&str> = c
            .rows
            .iter()
            .filter(|row| row.relation == Relation::Unavailable)
            .map(|row| row.key.as_str())
            .filter(|key| LEADS.iter().any(|lead| matches(lead, key)))
            .collect();
        if !none.is_empty() {
            self.text(&format!("unavailable in all: {}", none.join(", ")), Tone::Faint)?;
        }
        Ok(lines)
    }

    fn different(&mut self, c: &Comparison, most: usize) -> io::Result<()> {
        let all: Vec<&Row> =
            c.rows.iter().filter(|row| row.relation == Relation::Different).collect();
        let lead = |row: &Row| LEADS.iter().position(|lead| matches(lead, &row.key));
        let elsewhere = |row: &Row| ELSEWHERE.iter().any(|key| matches(key, &row.key));
        let mut rows: Vec<&Row> = all.iter().copied().filter(|row| !elsewhere(row)).collect();
        rows.sort_by_key(|row| lead(row).unwrap_or(LEADS.len()));
        // Those that a lead has too many of come with the rest.
        let mut alike = [0; LEADS.len()];
        rows.sort_by_key(|row| {
            let Some(i) = lead(row) else { return 1 };
            alike[i] += 1;
            usize::from(alike[i] > ALIKE)
        });
        let n = all.len() as u64;
        self.heading("Different", &count(n, "key", "keys"))?;
        if rows.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = self.study.names.iter().map(|name| clipped(name, NAME)).collect();
        let two = names.len() == 2;
        let shown_rows = &rows[..rows.len().min(most)];
        let lines: Vec<Vec<String>> = shown_rows
            .iter()
            .map(|row| {
                let mut line: Vec<String> =
                    row.values.iter().map(|value| shown(Some(value))).collect();
                line.extend(two.then(|| difference(&row.values)));
                line
            })
            .collect();
        let mut heads: Vec<&str> = vec![""];
        heads.extend(names.iter().map(String::as_str));
        heads.extend(two.then_some("difference"));
        let width = |i: usize| {
            let cells = lines.iter().filter_map(|line| line.get(i));
            let widest = cells.map(|text| text.chars().count()).max().unwrap_or(0);
            widest.max(heads.get(i + 1).map_or(0, |head| head.chars().count()))
        };
        let taken: usize = (0..heads.len() - 1).map(|i| width(i) + 2).sum();
        let room = WIDTH.saturating_sub(taken + 2).max(24);
        let sides: Vec<Side> = heads.iter().enumerate().map(|(i, _)| side(i)).collect();
        let mut t = Table::headed(&sides, &heads);
        for (row, line) in shown_rows.iter().zip(lines) {
            let mut cells: Vec<Text> = vec![squeezed(&row.key, room).into()];
            cells.extend(line.into_iter().map(Text::from));
            t.cells(cells);
        }
        t.write(self.out, self.color)?;
        let more = all.len() - shown_rows.len();
        if more == 0 {
            return Ok(());
        }
        let checks = all.iter().filter(|row| row.key.starts_with("checks.")).count();
        let mut text = format!("{} different", count(more as u64, "more key is", "more keys are"));
        if checks > 0 {
            text += &format!(", {checks} of them counts of what checks judged");
        }
        self.text(&(text + " (--format json, --out)"), Tone::Faint)
    }

    fn series(&mut self, cell: &Cell) -> io::Result<()> {
        let c = &cell.comparison;
        let Some(period_ns) = c.period_ns else { return Ok(()) };
        let samples = c.tracks.iter().map(|t| t.samples).max().unwrap_or(0);
        let remark = format!("{samples} samples, {} apart", format_duration(period_ns as i64));
        self.heading("Series", &remark)?;
        let families = families(&c.tracks);
        let mut equal = Vec::new();
        for (family, tracks) in &families {
            let of = |relation| tracks.iter().filter(|t| t.relation == relation).count();
            let name = family.strip_prefix("series.").unwrap_or(family);
            match (of(Relation::Equal), tracks.as_slice()) {
                (0, _) => {}
                (_, [only]) if only.key == *family => equal.push(name.to_owned()),
                (n, all) if n == all.len() => equal.push(format!("{name} (all {n})")),
                (n, all) => equal.push(format!("{name} ({n} of {})", all.len())),
            }
        }
        if !equal.is_empty() {
            self.text(&format!("equal at every sample: {}", equal.join(", ")), Tone::Plain)?;
        }
        let mut different: Vec<&Track> = c.tracks.iter().filter(|t| t.first.is_some()).collect();
        different.sort_by_key(|t| t.first.as_ref().map(|first| first.index));
        for track in different.iter().take(SERIES) {
            let Some(first) = &track.first else { continue };
            let values: Vec<String> =
                first.values.iter().map(|v| v.map_or("unavailable".into(), grouped)).collect();
            let text = format!(
                "{}: {} of {} samples differ, first at {} ns: {}",
                squeezed(&escaped(&track.key), KEY),
                track.differ,
                track.samples,
                grouped(first.at_ns),
                values.join(" | "),
            );
            self.text(&text, Tone::Warn)?;
        }
        match different.len().saturating_sub(SERIES) {
            0 => Ok(()),
            more => {
                let text = format!(
                    "{} different",
                    count(more as u64, "more series is", "more series are")
                );
                self.text(&text, Tone::Faint)
            }
        }
    }

    fn claims(&mut self, c: &Cell) -> io::Result<()> {
        if c.judged.is_empty() {
            return Ok(());
        }
        self.heading("Claims", "--expect-equal")?;
        for judged in &c.judged {
            let (word, tone, rest) = verdict(judged);
            self.out.write_all(b"  ")?;
            self.paint(word, tone)?;
            let text = format!("{}: {rest}", escaped(&judged.key));
            for (i, line) in wrapped(&text, WIDTH - 8).iter().enumerate() {
                writeln!(self.out, "{:1$}{line}", "", if i == 0 { 2 } else { 8 })?;
            }
        }
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        let s = self.study;
        if s.interrupted {
            let text = format!(
                "interrupted: {} of {} pairs of scenario and seed are done",
                s.cells.len(),
                s.planned
            );
            self.text(&text, Tone::Warn)?;
        }
        let failed: Vec<String> = s.failed().map(|claim| escaped(&claim.key)).collect();
        if s.planned > 1 && !failed.is_empty() {
            self.text(&format!("claims that fail: {}", failed.join(", ")), Tone::Bad)?;
        }
        Ok(())
    }
}

fn side(column: usize) -> Side {
    if column == 0 { Left } else { Right }
}

/// A claim's verdict and why.
fn verdict(judged: &Judged) -> (&'static str, Tone, String) {
    let equal = count(judged.equal as u64, "key is equal", "keys are equal");
    match (judged.matched(), judged.different.as_slice()) {
        (0, _) => ("none", Tone::Faint, "no such key here".into()),
        (_, []) if judged.equal == 0 => {
            ("FAIL", Tone::Bad, "unavailable in all: there is nothing to compare".into())
        }
        (_, []) => ("pass", Tone::Good, equal),
        (matched, different) => {
            let mut some: Vec<String> =
                different.iter().take(FAILED).map(|key| escaped(key)).collect();
            if different.len() > FAILED {
                some.push(format!("{} more", different.len() - FAILED));
            }
            let text = format!("{} of {matched} differ: {}", different.len(), some.join(", "));
            ("FAIL", Tone::Bad, text)
        }
    }
}

/// A cell's checks in a word.
fn checks(c: &Cell) -> Text {
    let failed = c.runs.iter().filter(|run| run.verdict == "fail").count();
    let early = c.runs.iter().filter(|run| run.stopped.is_some()).count();
    match (failed, early) {
        (0, 0) => cell("hold", Tone::Good),
        (0, n) => cell(format!("{n} incomplete"), Tone::Warn),
        (n, _) => cell(format!("fail in {n}"), Tone::Bad),
    }
}

/// A cell's claims in a word.
fn claims(c: &Cell) -> Text {
    let failed = c.judged.iter().filter(|j| j.matched() > 0 && !j.holds()).count();
    match (c.judged.len(), failed) {
        (0, _) => cell("none", Tone::Faint),
        (n, 0) => cell(format!("{n} hold"), Tone::Good),
        (n, failed) => cell(format!("{failed} of {n} FAIL"), Tone::Bad),
    }
}

/// Did the guests meet the same interrupts and steal?
fn schedule(c: &Comparison) -> (String, Tone) {
    let rows: Vec<&Row> = c.rows.iter().filter(|row| is_schedule(&row.key)).collect();
    let differ: Vec<&&Row> =
        rows.iter().filter(|row| row.relation == Relation::Different).collect();
    let Some(first) = differ.first() else {
        let text = format!(
            "schedule: the same interrupts and steal in all, {} injected.* keys",
            rows.len()
        );
        return (text, Tone::Plain);
    };
    let values: Vec<String> = first.values.iter().map(|value| shown(Some(value))).collect();
    let text = format!(
        "schedule: {} of {} injected.* keys differ, first {}: {}",
        differ.len(),
        rows.len(),
        squeezed(&escaped(&first.key), KEY),
        values.join(" | ")
    );
    (text, Tone::Warn)
}

/// Did the guests do the same, and where do they part?
fn traces(c: &Cell) -> (String, Tone) {
    let mut hashes = c.runs.iter().map(|run| &run.trace_sha256);
    let first = hashes.next();
    if hashes.all(|hash| Some(hash) == first) {
        return ("traces: the same, to the byte".into(), Tone::Plain);
    }
    match c.comparison.parting() {
        None => ("traces: differ, and no sample does".into(), Tone::Plain),
        Some((key, parting)) => {
            let text = format!(
                "traces: differ; the first sample that does is {} at {} ns",
                squeezed(&escaped(key), KEY),
                grouped(parting.at_ns)
            );
            (text, Tone::Warn)
        }
    }
}

/// Tracks by what is sampled, in their order: of the CPU one each, of groups one for each group.
fn families(tracks: &[Track]) -> Vec<(&str, Vec<&Track>)> {
    let mut families: Vec<(&str, Vec<&Track>)> = Vec::new();
    for track in tracks {
        let end = track.key.match_indices('.').nth(1).map_or(track.key.len(), |(at, _)| at);
        let family = &track.key[..end];
        match families.iter_mut().find(|(known, _)| *known == family) {
            Some((_, members)) => members.push(track),
            None => families.push((family, vec![track])),
        }
    }
    families
}

/// A value; what a subject does not have is said to be unavailable.
fn shown(value: Option<&Option<Leaf>>) -> String {
    match value {
        Some(Some(Leaf::Number(n))) => grouped(*n),
        Some(Some(Leaf::Text(text))) => clipped(text, WORD),
        Some(None) | None => "unavailable".into(),
    }
}

/// The second of two numbers less the first.
fn difference(values: &[Option<Leaf>]) -> String {
    match values {
        [Some(Leaf::Number(a)), Some(Leaf::Number(b))] => match b.checked_sub(*a) {
            Some(more) if more > 0 => format!("+{}", grouped(more)),
            Some(less) => grouped(less),
            None => String::new(),
        },
        _ => String::new(),
    }
}

/// At most `max` characters of a key: what is left out is in its middle.
fn squeezed(key: &str, max: usize) -> String {
    let key = escaped(key);
    let length = key.chars().count();
    if length <= max {
        return key;
    }
    let tail = max / 2;
    let head = max.saturating_sub(tail + 1);
    let front: String = key.chars().take(head).collect();
    let back: String = key.chars().skip(length - tail).collect();
    format!("{front}…{back}")
}
