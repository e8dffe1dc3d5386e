//! What a run found: a page for a terminal and an object for programs.
//!
//! Both are pure functions of the outcome: the same outcome gives the same bytes. Neither holds
//! wall-clock times, dates or addresses; what is not known is said to be unavailable (`null`),
//! never 0.

mod figure;
mod findings;
mod json;
mod page;
mod table;
mod text;
mod verdict;

pub use json::{VERSION, json};
pub use page::page;

use crate::run::RunOutcome;

/// The command that repeats the run, in one line, quoted for a POSIX shell.
pub fn repeat(outcome: &RunOutcome) -> String {
    words(outcome).join(" ")
}

/// The same command in pieces that belong together: the program with its arguments, then each
/// override but the seed's.
fn words(outcome: &RunOutcome) -> Vec<String> {
    let source = match outcome.source.as_str() {
        // Not to be taken for an option.
        s if s.starts_with('-') && s != "-" => format!("./{s}"),
        s => s.to_owned(),
    };
    let run = format!(
        "rqscope run {} --guest {} --seed {}",
        text::quoted(&source),
        outcome.guest.name(),
        outcome.scenario.seed
    );
    let sets = sets(outcome).map(|set| format!("--set {}", text::quoted(set)));
    std::iter::once(run).chain(sets).collect()
}

/// The overrides but the seed's: the seed that was used is told apart, whoever gave it.
fn sets(outcome: &RunOutcome) -> impl Iterator<Item = &String> {
    let other = |set: &&String| set.split_once('=').is_none_or(|(key, _)| key.trim() != "seed");
    outcome.sets.iter().filter(other)
}

#[cfg(test)]
mod tests;
