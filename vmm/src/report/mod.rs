//! What a run found: a page for a terminal and an object for programs.
//!
//! Both are pure functions of the outcome: the same outcome gives the same bytes. Neither holds
//! wall-clock times, dates or addresses; what is not known is said to be unavailable (`null`),
//! never 0.

mod compare;
mod compare_json;
mod conformance;
mod figure;
mod findings;
mod json;
mod linux;
mod page;
mod table;
mod text;
mod verdict;

pub use compare::page as compare_page;
pub use compare_json::{VERSION as COMPARE_VERSION, cell as cell_json, study as compare_json};
pub use json::{VERSION, json};
pub use page::page;

use crate::run::RunOutcome;

/// The command that repeats the run, in one line, quoted for a POSIX shell.
pub fn repeat(outcome: &RunOutcome) -> String {
    words(outcome).join(" ")
}

/// The same command in pieces that belong together: the program with its arguments, then what chooses a
/// Linux guest, then each override but the seed's.
fn words(outcome: &RunOutcome) -> Vec<String> {
    let source = match outcome.source.as_str() {
        // Not to be taken for an option.
        s if s.starts_with('-') && s != "-" => format!("./{s}"),
        s => s.to_owned(),
    };
    let run = format!("rqscope run {}", text::quoted(&source));
    let seed = format!("--seed {}", outcome.scenario.seed);
    let sets = sets(outcome).map(|set| format!("--set {}", text::quoted(set)));
    match &outcome.linux {
        None => {
            let run = format!("{run} --guest {} {seed}", outcome.guest.name());
            std::iter::once(run).chain(sets).collect()
        }
        Some(linux) => {
            let args = linux.args.iter().map(|words| argument(words));
            std::iter::once(run).chain(args).chain([seed]).chain(sets).collect()
        }
    }
}

/// An option with its value.
fn argument(words: &[String]) -> String {
    match words {
        // A value that could be taken for an option is tied to its own.
        [name, value] if value.starts_with('-') => text::quoted(&format!("{name}={value}")),
        words => words.iter().map(|w| text::quoted(w)).collect::<Vec<_>>().join(" "),
    }
}

/// The overrides but the seed's: the seed that was used is told apart, whoever gave it.
fn sets(outcome: &RunOutcome) -> impl Iterator<Item = &String> {
    let other = |set: &&String| set.split_once('=').is_none_or(|(key, _)| key.trim() != "seed");
    outcome.sets.iter().filter(other)
}

#[cfg(test)]
mod tests;
