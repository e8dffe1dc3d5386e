//! Two or more runs of the same scenario and seed, side by side.
//!
//! Everything that a run's JSON result has is compared under one stable key, exactly; so are samples
//! of the run queue and of each group through the run. Nothing here knows which keys there are.

pub mod claim;
mod columns;
mod leaves;
pub mod subject;

use std::collections::{HashMap, HashSet};

use serde_json::Value;

pub use claim::{Claim, Judged};
pub use columns::Column;
pub use leaves::Leaf;

use crate::run::RunOutcome;

/// How the subjects' values under one key relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// All subjects have it, and it is the same.
    Equal,
    /// Two subjects have other values, or one has a value that another lacks.
    Different,
    /// No subject has a value.
    Unavailable,
}

impl Relation {
    /// The relation of `values`, in which `None` is unavailable: never equal to a value, and never 0.
    fn of<T: PartialEq>(values: &[Option<T>]) -> Self {
        match values {
            [] => Self::Unavailable,
            _ if values.iter().all(Option::is_none) => Self::Unavailable,
            [first, rest @ ..] if rest.iter().all(|value| value == first) => Self::Equal,
            _ => Self::Different,
        }
    }

    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Different => "different",
            Self::Unavailable => "unavailable",
        }
    }
}

/// A key and each subject's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The key.
    pub key: String,
    /// A value for each subject; `None` where it has none.
    pub values: Vec<Option<Leaf>>,
    /// How they relate.
    pub relation: Relation,
}

/// A key and how each subject's samples under it relate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track {
    /// The key.
    pub key: String,
    /// Equal if all samples are.
    pub relation: Relation,
    /// Samples of the longest series.
    pub samples: usize,
    /// Samples that are not equal.
    pub differ: usize,
    /// The first of them.
    pub first: Option<Parting>,
}

/// A sample that is not the same in all subjects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parting {
    /// Its place, from 0.
    pub index: usize,
    /// The guest time that it was due at, ns.
    pub at_ns: u64,
    /// A value for each subject; `None` where it has none.
    pub values: Vec<Option<i128>>,
}

/// Runs of one scenario and seed, compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// All values, in the order of the result.
    pub rows: Vec<Row>,
    /// All series.
    pub tracks: Vec<Track>,
    /// Guest time between two samples, ns; `None` if no subject took any.
    pub period_ns: Option<u64>,
}

impl Comparison {
    /// Compares runs, each with its JSON result.
    pub fn new(runs: &[(&RunOutcome, &Value)]) -> Self {
        let values = by_key(runs.iter().map(|(_, json)| leaves::leaves(json)).collect());
        let rows = values.into_iter().map(|(key, values)| {
            let values: Vec<_> = values.into_iter().map(Option::flatten).collect();
            Row { key, relation: Relation::of(&values), values }
        });
        let passes = runs.iter().filter_map(|(run, _)| run.passes.first());
        let period_ns = passes.filter_map(|p| Some(p.series.as_ref()?.period_ns())).max();
        let columns = by_key(runs.iter().map(|(run, _)| columns::columns(run)).collect());
        let tracks = columns.into_iter().map(|(key, columns)| {
            let columns: Vec<_> = columns.into_iter().map(Option::flatten).collect();
            track(key, &columns, period_ns.unwrap_or(0))
        });
        Self { rows: rows.collect(), tracks: tracks.collect(), period_ns }
    }

    /// Every key and how its values relate.
    pub fn keys(&self) -> impl Iterator<Item = (&str, Relation)> {
        let rows = self.rows.iter().map(|row| (row.key.as_str(), row.relation));
        rows.chain(self.tracks.iter().map(|track| (track.key.as_str(), track.relation)))
    }

    /// How many keys relate so.
    pub fn count(&self, relation: Relation) -> usize {
        self.keys().filter(|(_, r)| *r == relation).count()
    }

    /// The host injected the same in every run: interrupts, costs and steal of every line.
    pub fn same_schedule(&self) -> bool {
        let mut injected = self.rows.iter().filter(|row| is_schedule(&row.key));
        injected.all(|row| row.relation != Relation::Different)
    }

    /// Where the runs part: the earliest sample that differs, with its key.
    pub fn parting(&self) -> Option<(&str, &Parting)> {
        let partings = self.tracks.iter().filter_map(|t| Some((t.key.as_str(), t.first.as_ref()?)));
        partings.min_by_key(|(_, parting)| parting.index)
    }
}

/// A run of a subject as a comparison tells of it: from its JSON result alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// `firmware`, `model` or `linux`.
    pub guest: String,
    /// A kernel's line about itself, if it came so far.
    pub banner: Option<String>,
    /// The zero-delta rule that it followed, if that is known.
    pub psi: Option<String>,
    /// The rate limit's clock that it followed, if that is known.
    pub clock: Option<String>,
    /// `pass`, `fail` or `incomplete`.
    pub verdict: String,
    /// Checks that failed.
    pub failed: Vec<String>,
    /// Why it ended early.
    pub stopped: Option<String>,
    /// Hash of its trace, in hexadecimal.
    pub trace_sha256: String,
    /// Records of its trace.
    pub trace_records: u64,
    /// The command that repeats it.
    pub repeat: String,
}

impl Summary {
    /// Of a run's JSON result.
    pub fn new(json: &Value) -> Self {
        let text = |pointer: &str| json.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let checks = json["checks"].as_array().into_iter().flatten();
        let failed = checks.filter(|check| check["status"] == "fail");
        Self {
            guest: text("/guest/kind").unwrap_or_default(),
            banner: text("/linux/banner").filter(|banner| !banner.is_empty()),
            psi: text("/psi_account_irqtime/policy"),
            clock: text("/update_tg_load_avg/clock"),
            verdict: text("/verdict").unwrap_or_default(),
            failed: failed.filter_map(|c| c["name"].as_str().map(str::to_owned)).collect(),
            stopped: text("/stopped"),
            trace_sha256: text("/trace_sha256").unwrap_or_default(),
            trace_records: json["trace_records"].as_u64().unwrap_or(0),
            repeat: text("/repeat").unwrap_or_default(),
        }
    }

    /// A kernel's version: the third word of its banner.
    pub fn version(&self) -> Option<String> {
        self.banner.as_ref()?.split_whitespace().nth(2).map(str::to_owned)
    }
}

/// One scenario and seed: every subject's run, and how they compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The built-in scenario's name, or the file it came from.
    pub source: String,
    /// The seed that was used.
    pub seed: u64,
    /// Guest time of the run, ns.
    pub duration_ns: u64,
    /// The runs, one for each subject.
    pub runs: Vec<Summary>,
    /// What is equal and what is not.
    pub comparison: Comparison,
    /// Each claim, in the order given.
    pub judged: Vec<Judged>,
}

impl Cell {
    /// Every claim that is about something in this cell holds.
    pub fn holds(&self) -> bool {
        self.judged.iter().all(|judged| judged.matched() == 0 || judged.holds())
    }
}

/// Everything that a comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Study {
    /// The subjects' names.
    pub names: Vec<String>,
    /// The subjects as given.
    pub subjects: Vec<String>,
    /// The overrides.
    pub sets: Vec<String>,
    /// The claims, as given.
    pub claims: Vec<Claim>,
    /// What is done, in the order in which it ran.
    pub cells: Vec<Cell>,
    /// How many cells were asked for.
    pub planned: usize,
    /// The user broke it off.
    pub interrupted: bool,
}

impl Study {
    /// Claims that fail in any cell.
    pub fn failed(&self) -> impl Iterator<Item = &Claim> {
        let fails = |i: usize| {
            let judged = self.cells.iter().filter_map(move |cell| cell.judged.get(i));
            judged.into_iter().any(|j| j.matched() > 0 && !j.holds())
        };
        self.claims.iter().enumerate().filter(move |(i, _)| fails(*i)).map(|(_, claim)| claim)
    }

    /// A claim that matches no key of any cell.
    pub fn unknown(&self) -> Option<&Claim> {
        let known = |i: usize| {
            self.cells.iter().any(|cell| cell.judged.get(i).is_some_and(|j| j.matched() > 0))
        };
        self.claims.iter().enumerate().find(|(i, _)| !known(*i)).map(|(_, claim)| claim)
    }
}

/// Is `key` part of what the host did, as against how the guest is built?
pub fn is_schedule(key: &str) -> bool {
    key.starts_with("injected.") && !key.ends_with(".irq")
}

/// Lists of every subject under their keys: in the order of the first, then what only others have,
/// each behind the key that it follows there.
fn by_key<T>(subjects: Vec<Vec<(String, T)>>) -> Vec<(String, Vec<Option<T>>)> {
    let mut order: Vec<String> = Vec::new();
    let mut known: HashSet<String> = HashSet::new();
    for list in &subjects {
        let mut place = 0;
        let places: HashMap<String, usize> =
            order.iter().enumerate().map(|(i, key)| (key.clone(), i)).collect();
        let mut new: Vec<(usize, String)> = Vec::new();
        for (key, _) in list {
            match places.get(key) {
                Some(at) => place = at + 1,
                None if known.insert(key.clone()) => new.push((place, key.clone())),
                None => {}
            }
        }
        // Stable: those for one place keep their order.
        new.sort_by_key(|(place, _)| *place);
        let mut new = new.into_iter().peekable();
        let mut merged = Vec::with_capacity(order.len());
        for (i, key) in order.into_iter().enumerate() {
            while let Some((_, key)) = new.next_if(|(place, _)| *place <= i) {
                merged.push(key);
            }
            merged.push(key);
        }
        merged.extend(new.map(|(_, key)| key));
        order = merged;
    }
    let mut maps: Vec<HashMap<String, T>> =
        subjects.into_iter().map(|list| list.into_iter().collect()).collect();
    let row = |key: String| {
        let values = maps.iter_mut().map(|map| map.remove(&key)).collect();
        (key, values)
    };
    order.into_iter().map(row).collect()
}

fn track(key: String, columns: &[Column], period_ns: u64) -> Track {
    let samples = columns.iter().flatten().map(Vec::len).max().unwrap_or(0);
    let mut differ = 0;
    let mut first = None;
    for index in 0..samples {
        let at = |column: &Column| column.as_ref()?.get(index).copied();
        let values: Vec<Option<i128>> = columns.iter().map(at).collect();
        if Relation::of(&values) == Relation::Different {
            differ += 1;
            let at_ns = period_ns.saturating_mul(index as u64 + 1);
            first.get_or_insert(Parting { index, at_ns, values });
        }
    }
    let relation = match (samples, differ) {
        (0, _) => Relation::Unavailable,
        (_, 0) => Relation::Equal,
        _ => Relation::Different,
    };
    Track { key, relation, samples, differ, first }
}

#[cfg(test)]
mod tests;
