//! How a Linux guest compares with guest-model, transition by transition.

use std::io::{self, Write};

use serde_json::{Value, json as value};

use super::figure::{both, count, grouped};
use super::page::{INDENT, Page};
use super::table::Side::{Left, Right};
use super::table::{Table, Tone};
use super::text::escaped;
use crate::replay::{Conformance, Difference, Rule};

/// Values of a difference that are shown.
const VALUES: usize = 6;

impl<W: Write> Page<'_, W> {
    /// Every rule, how often it was followed, and the first time that guest-model would not have.
    pub(super) fn conformance(&mut self, conformance: &Conformance) -> io::Result<()> {
        let (all, differ) = (conformance.transitions(), conformance.differences());
        let (remark, tone) = match differ {
            0 => {
                (format!("{} made again by guest-model: all equal", transitions(all)), Tone::Faint)
            }
            n => (format!("{n} of {} differ from guest-model", transitions(all)), Tone::Bad),
        };
        self.heading("Conformance", &remark, tone)?;
        let mut t = Table::new(&[Left, Right, Left]);
        for (rule, tally) in Rule::ALL.iter().zip(&conformance.rules) {
            let compared = match (&tally.unavailable, tally.differences) {
                (Some(why), _) => format!("not compared: {}", escaped(why)),
                (None, 0) => rule.compares().to_owned(),
                (None, n) => format!("{n} differ: {}", rule.compares()),
            };
            let transitions = match &tally.unavailable {
                Some(_) => String::new(),
                None => grouped(tally.transitions),
            };
            t.row([rule.name().into(), transitions.into(), compared.into()]);
        }
        self.table(&t)?;
        match &conformance.first {
            Some(first) => self.difference(first),
            None => Ok(()),
        }
    }

    fn difference(&mut self, first: &Difference) -> io::Result<()> {
        let head = format!("first at {} in {}():", both(first.at_ns), first.rule.name());
        self.text(&head, INDENT, INDENT, Tone::Bad)?;
        let mut t = Table::new(&[Left, Right, Right]);
        t.row(["".into(), "guest-model".into(), "the guest".into()]);
        for (name, model, guest) in first.values.iter().take(VALUES) {
            let [model, guest] = [model, guest].map(|n| (*n as i64).to_string());
            t.row([name.as_str().into(), model.into(), guest.into()]);
        }
        self.table(&t)?;
        if first.values.len() > VALUES {
            let more = format!(
                "and {} more",
                count((first.values.len() - VALUES) as u64, "value", "values")
            );
            self.text(&more, INDENT, INDENT, Tone::Faint)?;
        }
        self.text(&escaped(&first.inputs), INDENT, INDENT + 2, Tone::Plain)
    }
}

fn transitions(n: u64) -> String {
    count(n, "transition", "transitions")
}

/// As JSON.
pub(super) fn json(conformance: &Conformance) -> Value {
    let rules = Rule::ALL.iter().zip(&conformance.rules).map(|(rule, tally)| {
        let seen = tally.unavailable.is_none();
        value!({
            "rule": rule.name(),
            "transitions": seen.then_some(tally.transitions),
            "differences": seen.then_some(tally.differences),
            "unavailable": tally.unavailable,
        })
    });
    let first = conformance.first.as_ref().map(|first| {
        let values = first
            .values
            .iter()
            .map(|(name, model, guest)| value!({ "name": name, "model": model, "guest": guest }));
        value!({
            "at_ns": first.at_ns,
            "rule": first.rule.name(),
            "values": values.collect::<Vec<_>>(),
            "inputs": first.inputs,
        })
    });
    value!({
        "transitions": conformance.transitions(),
        "differences": conformance.differences(),
        "rules": rules.collect::<Vec<_>>(),
        "first_difference": first,
    })
}
