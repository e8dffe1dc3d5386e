//! A scenario's text as a tree in which every value knows where it was written, and the overrides
//! that are laid over it.

use toml::de::{DeTable, DeValue};

use super::error::{Place, Problem, ScenarioError};
use super::units::shown;

/// Longest scenario file, bytes.
const MAX_TEXT: usize = 1 << 20;
/// Most parts in the path of an override.
const MAX_PARTS: usize = 8;

/// Where a value was written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin {
    /// A line of the file, counted from 1.
    Line(u32),
    /// An override, counted from 0.
    Set(usize),
}

/// A value and its place.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub origin: Origin,
    pub value: Value,
}

/// A TOML value. Floats keep their text, so that decimals stay exact.
#[derive(Clone, Debug)]
pub(super) enum Value {
    String(String),
    /// `None` if it does not fit.
    Integer(Option<i128>),
    Float(String),
    Boolean(bool),
    Datetime(String),
    Array(Vec<Node>),
    Table(Vec<(String, Node)>),
}

impl Value {
    /// What it is, for messages.
    pub fn describe(&self) -> String {
        match self {
            Self::String(s) => format!("the string \"{}\"", shown(s)),
            Self::Integer(Some(n)) => format!("the number {n}"),
            Self::Integer(None) => "a number too large to read".to_owned(),
            Self::Float(text) => format!("the number {}", shown(text)),
            Self::Boolean(b) => format!("{b}"),
            Self::Datetime(text) => format!("the date or time {}", shown(text)),
            Self::Array(_) => "an array".to_owned(),
            Self::Table(_) => "a table".to_owned(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::String(_) => "a string is",
            Self::Integer(_) | Self::Float(_) => "a number is",
            Self::Boolean(_) => "a boolean is",
            Self::Datetime(_) => "a date or time is",
            Self::Array(_) => "an array is",
            Self::Table(_) => "a table is",
        }
    }
}

/// The tree, with what is needed to name the place of each of its values.
#[derive(Debug)]
pub(super) struct Document {
    source: String,
    sets: Vec<String>,
    root: Node,
}

impl Document {
    /// Reads `text` and lays `sets` over it, in order.
    pub fn parse(text: &str, source: &str, sets: &[String]) -> Result<Self, ScenarioError> {
        let mut doc = Self {
            source: source.to_owned(),
            sets: sets.to_vec(),
            root: Node { origin: Origin::Line(1), value: Value::Table(Vec::new()) },
        };
        if text.len() > MAX_TEXT {
            let problem = Problem::TooLong { bytes: text.len(), max: MAX_TEXT };
            return Err(doc.error(Origin::Line(1), "", problem));
        }
        let lines = Lines::new(text);
        let table = DeTable::parse(text).map_err(|e| {
            let at = e.span().map_or(0, |span| span.start);
            let message = e.message().to_owned();
            doc.error(lines.origin(at), "", Problem::Syntax { message })
        })?;
        doc.root.value = Value::Table(entries(table.into_inner(), &|at| lines.origin(at)));
        for i in 0..sets.len() {
            doc.set(i)?;
        }
        Ok(doc)
    }

    /// The whole of it.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// The place of `origin`, for messages.
    pub fn place(&self, origin: Origin) -> Place {
        match origin {
            Origin::Line(line) => Place::Line { source: self.source.clone(), line },
            Origin::Set(i) => {
                Place::Set { argument: self.sets.get(i).cloned().unwrap_or_default() }
            }
        }
    }

    /// An error at `origin`.
    pub fn error(&self, origin: Origin, key: &str, problem: Problem) -> ScenarioError {
        ScenarioError { place: self.place(origin), key: key.to_owned(), problem: Box::new(problem) }
    }

    /// An error at the value of `key`, or at the innermost table that is there.
    pub fn error_at(&self, key: &str, problem: Problem) -> ScenarioError {
        let mut node = &self.root;
        for part in parts(key) {
            let inner = match &node.value {
                Value::Table(entries) => entries.iter().find(|(k, _)| k == part).map(|(_, n)| n),
                Value::Array(items) => part.parse::<usize>().ok().and_then(|i| items.get(i)),
                _ => None,
            };
            let Some(inner) = inner else { break };
            node = inner;
        }
        self.error(node.origin, key, problem)
    }

    /// That an override replaced one of the arrays `keys`, after a hint about what is in them.
    pub fn replaced(&self, keys: &[&str]) -> String {
        let Value::Table(entries) = &self.root.value else { return String::new() };
        let sets = entries.iter().filter(|(key, _)| keys.contains(&key.as_str()));
        let sets = sets.filter(|(_, node)| matches!(node.origin, Origin::Set(_)));
        sets.map(|(key, node)| format!("; {} replaced all of [[{key}]]", self.place(node.origin)))
            .collect()
    }

    /// Lays override `i` over the tree.
    fn set(&mut self, i: usize) -> Result<(), ScenarioError> {
        let origin = Origin::Set(i);
        let argument = self.sets[i].clone();
        let fail = |doc: &Self, why: &str| {
            Err(doc.error(origin, "", Problem::SetSyntax { why: why.to_owned() }))
        };
        let Some((key, text)) = argument.split_once('=') else {
            return fail(self, "there is no `=` in it");
        };
        let key = key.trim();
        let parts: Vec<&str> = parts(key).collect();
        if parts.iter().any(|p| p.is_empty() || p.contains(['[', ']'])) {
            return fail(self, "its key is not a path of names and numbers");
        }
        if parts.len() > MAX_PARTS {
            return fail(self, "its key has too many parts");
        }
        let node = Node { origin, value: override_value(text, origin) };
        if let Err(problem) = place(&mut self.root, &parts, node) {
            return Err(self.error(origin, &shown(key), problem));
        }
        Ok(())
    }
}

/// The parts of `irq[0].rate` or `irq.0.rate`.
fn parts(key: &str) -> impl Iterator<Item = &str> {
    key.split('.').flat_map(|part| match part.strip_suffix(']').and_then(|p| p.split_once('[')) {
        Some((name, index)) => [Some(name), Some(index)].into_iter().flatten(),
        None => [Some(part), None].into_iter().flatten(),
    })
}

/// The right side of an override: a TOML value, or else a bare string.
fn override_value(text: &str, origin: Origin) -> Value {
    let text = text.trim();
    if text.len() <= MAX_TEXT
        && let Ok(value) = DeValue::parse(text)
    {
        return convert(value.into_inner(), &|_| origin);
    }
    Value::String(text.to_owned())
}

/// Puts `node` where `parts` lead, making tables on the way where there is nothing.
fn place(mut at: &mut Node, parts: &[&str], node: Node) -> Result<(), Problem> {
    let origin = node.origin;
    for part in parts {
        at = match &mut at.value {
            Value::Table(entries) => {
                let found = entries.iter().position(|(k, _)| k == part);
                let index = found.unwrap_or_else(|| {
                    let value = Value::Table(Vec::new());
                    entries.push(((*part).to_owned(), Node { origin, value }));
                    entries.len() - 1
                });
                &mut entries[index].1
            }
            Value::Array(items) => {
                let Some(index) = entry(items, part) else {
                    return Err(Problem::NoEntry { part: shown(part), hint: there_are(items) });
                };
                &mut items[index]
            }
            other => {
                return Err(Problem::NoInside { got: other.kind(), part: shown(part) });
            }
        };
    }
    *at = node;
    Ok(())
}

/// The entry of an array that `part` means: its number, or the name or path in it.
fn entry(items: &[Node], part: &str) -> Option<usize> {
    if let Ok(index) = part.parse::<usize>() {
        return (index < items.len()).then_some(index);
    }
    items.iter().position(|item| labels(item).any(|label| label == part))
}

/// The name and the path in an entry of an array.
fn labels(item: &Node) -> impl Iterator<Item = &str> {
    let entries = match &item.value {
        Value::Table(entries) => entries.as_slice(),
        _ => &[],
    };
    entries.iter().filter_map(|(key, node)| match &node.value {
        Value::String(s) if key == "name" || key == "path" => Some(s.as_str()),
        _ => None,
    })
}

/// The entries of an array, for a hint.
fn there_are(items: &[Node]) -> String {
    const NAMED: usize = 8;
    let numbers = match items.len() {
        0 => return "the array is empty".to_owned(),
        1 => "there is only entry 0".to_owned(),
        len => format!("there are entries 0 to {}", len - 1),
    };
    let names: Vec<_> = items.iter().flat_map(labels).map(shown).take(NAMED + 1).collect();
    match names.len() {
        0 => numbers,
        n if n > NAMED => format!("{numbers}: {}, ...", names[..NAMED].join(", ")),
        _ => format!("{numbers}: {}", names.join(", ")),
    }
}

/// The parsed value as ours, with `origin` of each byte offset.
fn convert(value: DeValue<'_>, origin: &dyn Fn(usize) -> Origin) -> Value {
    match value {
        DeValue::String(s) => Value::String(s.into_owned()),
        DeValue::Integer(n) => Value::Integer(i128::from_str_radix(n.as_str(), n.radix()).ok()),
        DeValue::Float(x) => Value::Float(x.as_str().to_owned()),
        DeValue::Boolean(b) => Value::Boolean(b),
        DeValue::Datetime(d) => Value::Datetime(d.to_string()),
        DeValue::Array(items) => Value::Array(
            items
                .into_iter()
                .map(|item| Node {
                    origin: origin(item.span().start),
                    value: convert(item.into_inner(), origin),
                })
                .collect(),
        ),
        DeValue::Table(table) => Value::Table(entries(table, origin)),
    }
}

/// The entries of a table; each is placed at its key, whose line is the one a reader looks for.
fn entries(table: DeTable<'_>, origin: &dyn Fn(usize) -> Origin) -> Vec<(String, Node)> {
    table
        .into_iter()
        .map(|(key, value)| {
            let node = Node {
                origin: origin(key.span().start),
                value: convert(value.into_inner(), origin),
            };
            (key.into_inner().into_owned(), node)
        })
        .collect()
}

/// Byte offsets as line numbers.
struct Lines {
    starts: Vec<usize>,
}

impl Lines {
    fn new(text: &str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, b)| *b == b'\n');
        Self { starts: ends.map(|(i, _)| i + 1).collect() }
    }

    fn origin(&self, offset: usize) -> Origin {
        Origin::Line(self.starts.partition_point(|start| *start <= offset) as u32 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(doc: &Document, key: &str) -> Place {
        doc.error_at(key, Problem::WakesItself { name: String::new() }).place
    }

    #[test]
    fn every_value_knows_its_line() {
        let text = "name = 'x'\n\n[tick]\nrate = '1Hz'\n[[irq]]\nname = 'a'\n[[irq]]\nname = 'b'\ncost = { min = '1us',\n max = '2us' }\n[a.b]\nc=1";
        let doc = Document::parse(text, "f", &["tick.cost=1us".to_owned()]).unwrap();
        let at = |n| Place::Line { source: "f".to_owned(), line: n };
        for (key, n) in [
            ("name", 1),
            ("tick", 3),
            ("tick.rate", 4),
            ("tick.none", 3),
            ("irq[0]", 5),
            ("irq[0].name", 6),
            ("irq[1]", 7),
            ("irq[1].name", 8),
            ("irq[1].rate", 7),
            ("irq[1].cost.max", 10),
            ("a", 11),
            ("a.b.c", 12),
        ] {
            assert_eq!(line(&doc, key), at(n), "{key}");
        }
        assert_eq!(line(&doc, "tick.cost"), Place::Set { argument: "tick.cost=1us".to_owned() });
    }

    #[test]
    fn an_override_reaches_entries_by_number_and_by_name() {
        let text = "[[irq]]\nname = 'nic'\n[[group]]\npath = 'web/api'\n";
        for set in ["irq[0].rate=1kHz", "irq.0.rate = 1kHz", "irq.nic.rate=\"1kHz\""] {
            let doc = Document::parse(text, "f", &[set.to_owned()]).unwrap();
            let Value::Table(entries) = &doc.root.value else { panic!() };
            let irq = &entries.iter().find(|(k, _)| k == "irq").unwrap().1;
            let Value::Array(items) = &irq.value else { panic!() };
            let Value::Table(entries) = &items[0].value else { panic!() };
            let rate = &entries.iter().find(|(k, _)| k == "rate").unwrap().1;
            assert!(matches!(&rate.value, Value::String(s) if s == "1kHz"), "{set}");
        }
        Document::parse(text, "f", &["group.web/api.weight=5".to_owned()]).unwrap();
    }

    #[test]
    fn an_override_that_leads_nowhere_is_named() {
        let text = "seed = 1\n[[irq]]\nname = 'nic'\n";
        for (set, want) in [
            (
                "rate",
                "--set rate: an override is written key=value, for example irq[0].rate=20kHz; there is no `=` in it",
            ),
            (
                "=1",
                "--set =1: an override is written key=value, for example irq[0].rate=20kHz; its key is not a path of names and numbers",
            ),
            (
                "irq[=1",
                "--set irq[=1: an override is written key=value, for example irq[0].rate=20kHz; its key is not a path of names and numbers",
            ),
            (
                "a.b.c.d.e.f.g.h.i=1",
                "--set a.b.c.d.e.f.g.h.i=1: an override is written key=value, for example irq[0].rate=20kHz; its key has too many parts",
            ),
            (
                "seed.x=1",
                "--set seed.x=1: seed.x: a number is here, which has no `x` in it; set the whole value",
            ),
            (
                "irq[1].rate=1Hz",
                "--set irq[1].rate=1Hz: irq[1].rate: no entry `1`; there is only entry 0: nic",
            ),
            (
                "irq.disk.rate=1Hz",
                "--set irq.disk.rate=1Hz: irq.disk.rate: no entry `disk`; there is only entry 0: nic",
            ),
        ] {
            assert_eq!(
                Document::parse(text, "f", &[set.to_owned()]).unwrap_err().to_string(),
                want
            );
        }
    }
}
