//! Typed reads of a document's values, each of whose errors names key and place.

use super::document::{Document, Node, Origin, Value};
use super::error::{Problem, ScenarioError};
use super::units::{
    self, KNOWN_DURATION_UNITS, MAX_NS, Rate, Share, UnitError, format_duration, shown,
};

/// Most characters of a name.
const MAX_NAME: usize = 64;

/// A table under its path.
#[derive(Clone)]
pub(super) struct Table<'d> {
    doc: &'d Document,
    path: String,
    origin: Origin,
    entries: &'d [(String, Node)],
}

impl<'d> Table<'d> {
    /// The whole document.
    pub fn root(doc: &'d Document) -> Self {
        let entries = match &doc.root().value {
            Value::Table(entries) => entries.as_slice(),
            _ => &[],
        };
        Self { doc, path: String::new(), origin: doc.root().origin, entries }
    }

    /// Refuses keys other than `known`.
    pub fn only(self, known: &[&str]) -> Result<Self, ScenarioError> {
        for (key, node) in self.entries {
            if !known.contains(&key.as_str()) {
                let hint = hint(key, known.iter().copied());
                let path = self.join(&shown(key));
                return Err(self.doc.error(node.origin, &path, Problem::UnknownKey { hint }));
            }
        }
        Ok(self)
    }

    fn join(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The value of `key`, if it is there.
    pub fn get(&self, key: &str) -> Option<Field<'d>> {
        let (_, node) = self.entries.iter().find(|(k, _)| k == key)?;
        Some(Field { doc: self.doc, path: self.join(key), node })
    }

    /// The value of `key`; `example` is a line that would supply it.
    pub fn need(&self, key: &str, example: &'static str) -> Result<Field<'d>, ScenarioError> {
        self.get(key).ok_or_else(|| self.error(key, Problem::Missing { example }))
    }

    /// An error at `key`, which need not be there; the table itself if `key` is empty.
    pub fn error(&self, key: &str, problem: Problem) -> ScenarioError {
        match self.entries.iter().find(|(k, _)| k == key) {
            Some((_, node)) => self.doc.error(node.origin, &self.join(key), problem),
            None if key.is_empty() => self.doc.error(self.origin, &self.path, problem),
            None => self.doc.error(self.origin, &self.join(key), problem),
        }
    }

    /// Refuses `key`, if it is there, because `why`.
    pub fn refuse(&self, key: &str, why: &str) -> Result<(), ScenarioError> {
        match self.get(key) {
            Some(field) => Err(field.error(Problem::Conflict { why: why.to_owned() })),
            None => Ok(()),
        }
    }

    /// The table `key`, empty if it is not there.
    pub fn table(&self, key: &str) -> Result<Table<'d>, ScenarioError> {
        match self.get(key) {
            Some(field) => field.table("a table"),
            None => Ok(Table { path: self.join(key), entries: &[], ..self.clone() }),
        }
    }

    /// The tables of the array `key`, at most `max` of them.
    pub fn tables(
        &self,
        key: &str,
        what: &'static str,
        max: usize,
    ) -> Result<Vec<Table<'d>>, ScenarioError> {
        let Some(field) = self.get(key) else {
            return Ok(Vec::new());
        };
        let Value::Array(items) = &field.node.value else {
            return Err(field.wrong_type("an array of tables, each headed by its name in [[ ]]"));
        };
        if items.len() > max {
            return Err(field.error(Problem::TooMany { what, got: items.len(), max }));
        }
        field.items(items).map(|item| item.table("a table")).collect()
    }
}

/// A value under its path.
pub(super) struct Field<'d> {
    doc: &'d Document,
    path: String,
    node: &'d Node,
}

impl<'d> Field<'d> {
    /// An error at this value.
    pub fn error(&self, problem: impl Into<Problem>) -> ScenarioError {
        self.doc.error(self.node.origin, &self.path, problem.into())
    }

    /// The value names no `what` of the array `table`.
    pub fn unknown_name(&self, what: &'static str, table: &str, hint: String) -> ScenarioError {
        let name = match &self.node.value {
            Value::String(name) => shown(name),
            other => other.describe(),
        };
        let hint = hint + &self.doc.replaced(&[table]);
        self.error(Problem::UnknownName { what, name, hint })
    }

    fn wrong_type(&self, expected: &'static str) -> ScenarioError {
        self.error(Problem::WrongType { expected, got: self.node.value.describe() })
    }

    /// The value, which reads `got`, is not what is `allowed`.
    pub fn out_of_range(&self, got: &str, allowed: &str) -> ScenarioError {
        self.error(Problem::OutOfRange { got: shown(got), allowed: allowed.to_owned() })
    }

    fn items(&self, items: &'d [Node]) -> impl Iterator<Item = Field<'d>> {
        items.iter().enumerate().map(|(i, node)| Field {
            doc: self.doc,
            path: format!("{}[{i}]", self.path),
            node,
        })
    }

    /// Where the value was written, for messages about another one.
    pub fn place(&self) -> String {
        self.doc.place(self.node.origin).to_string()
    }

    /// Is it a table?
    pub fn is_table(&self) -> bool {
        matches!(self.node.value, Value::Table(_))
    }

    /// A table.
    pub fn table(self, expected: &'static str) -> Result<Table<'d>, ScenarioError> {
        let Value::Table(entries) = &self.node.value else {
            return Err(self.wrong_type(expected));
        };
        Ok(Table { doc: self.doc, origin: self.node.origin, path: self.path, entries })
    }

    /// A string.
    pub fn text(&self) -> Result<&'d str, ScenarioError> {
        match &self.node.value {
            Value::String(s) => Ok(s),
            _ => Err(self.wrong_type("a string in quotes")),
        }
    }

    /// A string of at most `max` characters.
    pub fn free_text(&self, max: usize) -> Result<String, ScenarioError> {
        let text = self.text()?;
        let chars = text.chars().count();
        if chars > max {
            let got = format!("a text of {chars} characters");
            return Err(self.out_of_range(&got, &format!("at most {max} long")));
        }
        Ok(text.to_owned())
    }

    /// A name of letters, digits, `-` and `_`.
    pub fn name(&self) -> Result<&'d str, ScenarioError> {
        let name = self.text()?;
        let sound = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(sound) {
            return Err(self.error(Problem::BadName { name: shown(name), max: MAX_NAME }));
        }
        Ok(name)
    }

    /// The strings of an array.
    pub fn texts(&self) -> Result<Vec<(Field<'d>, &'d str)>, ScenarioError> {
        let Value::Array(items) = &self.node.value else {
            return Err(self.wrong_type("an array of names, such as [\"a\", \"b\"]"));
        };
        self.items(items).map(|item| item.text().map(|text| (item, text))).collect()
    }

    /// `true` or `false`.
    pub fn boolean(&self) -> Result<bool, ScenarioError> {
        match &self.node.value {
            Value::Boolean(b) => Ok(*b),
            _ => Err(self.wrong_type("true or false")),
        }
    }

    /// An integer between `min` and `max`, both allowed.
    pub fn integer(&self, min: i128, max: i128) -> Result<i128, ScenarioError> {
        match &self.node.value {
            Value::Integer(Some(n)) if (min..=max).contains(n) => Ok(*n),
            value @ Value::Integer(_) => {
                Err(self.out_of_range(&value.describe(), &format!("{min} to {max}")))
            }
            _ => Err(self.wrong_type("a whole number without quotes")),
        }
    }

    /// A duration between `min` and `max` ns, both allowed.
    pub fn signed_duration(&self, min: i64, max: i64) -> Result<i64, ScenarioError> {
        let ns = match &self.node.value {
            Value::String(text) => units::parse_duration(text).map_err(|e| self.error(e))?,
            Value::Integer(Some(0)) => 0,
            Value::Integer(Some(n)) => {
                return Err(self.no_unit(n.to_string(), KNOWN_DURATION_UNITS, "\"250us\""));
            }
            Value::Float(x) => {
                return Err(self.no_unit(x.clone(), KNOWN_DURATION_UNITS, "\"250us\""));
            }
            _ => return Err(self.wrong_type("a duration with its unit, such as \"250us\"")),
        };
        if !(min..=max).contains(&ns) {
            let [got, min, max] = [ns, min, max].map(format_duration);
            return Err(self.out_of_range(&got, &format!("{min} to {max}")));
        }
        Ok(ns)
    }

    /// A duration between `min` and `max` ns, both allowed; `max` is at most 2^62.
    pub fn duration(&self, min: u64, max: u64) -> Result<u64, ScenarioError> {
        let [min, max] = [min, max].map(|ns| ns.min(MAX_NS) as i64);
        self.signed_duration(min, max).map(|ns| ns as u64)
    }

    /// A rate above zero.
    pub fn rate(&self) -> Result<Rate, ScenarioError> {
        let text = match &self.node.value {
            Value::String(text) => text.as_str(),
            Value::Integer(Some(0)) => "0",
            Value::Integer(Some(n)) => {
                return Err(self.no_unit(n.to_string(), "Hz, kHz, MHz", "\"20kHz\""));
            }
            Value::Float(x) => return Err(self.no_unit(x.clone(), "Hz, kHz, MHz", "\"20kHz\"")),
            _ => return Err(self.wrong_type("a rate with its unit, such as \"20kHz\"")),
        };
        let rate = Rate::parse(text).map_err(|e| self.error(e))?;
        rate.ok_or_else(|| self.out_of_range(text, "above 0Hz and at most 1000MHz"))
    }

    fn no_unit(&self, got: String, known: &'static str, example: &'static str) -> ScenarioError {
        self.error(UnitError::NoUnit { got: shown(&got), example, known })
    }

    /// A share of a whole.
    pub fn share(&self) -> Result<Share, ScenarioError> {
        self.share_of("0 to 1")
    }

    /// A share below all; 0 for none.
    pub fn share_below_one(&self) -> Result<Share, ScenarioError> {
        const ALLOWED: &str = "0 (for none) or more and below 1";
        let share = self.share_of(ALLOWED)?;
        if share == Share::ONE {
            return Err(self.out_of_range(&share.to_string(), ALLOWED));
        }
        Ok(share)
    }

    fn share_of(&self, allowed: &str) -> Result<Share, ScenarioError> {
        let text = match &self.node.value {
            Value::Float(text) => text.clone(),
            Value::Integer(Some(n)) => n.to_string(),
            Value::Integer(None) => "2".to_owned(),
            _ => {
                return Err(self.wrong_type("a share between 0 and 1 without quotes, such as 0.25"));
            }
        };
        let share = match Share::parse(&text) {
            Err(UnitError::TooLarge { .. }) | Ok(None) => None,
            share => share.map_err(|e| self.error(e))?,
        };
        share.ok_or_else(|| self.out_of_range(&text, allowed))
    }

    /// One of a fixed list of strings.
    pub fn one_of<T: Copy>(&self, known: &[(&str, T)]) -> Result<T, ScenarioError> {
        let text = self.text()?;
        known.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
            let known: Vec<_> = known.iter().map(|(name, _)| *name).collect();
            self.error(Problem::UnknownValue { got: shown(text), known: known.join(", ") })
        })
    }
}

/// What to write instead of `got`: the nearest of `known`, or all of them.
pub fn hint<'a>(got: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    /// Most names listed.
    const LISTED: usize = 16;
    if got.len() <= MAX_NAME {
        let near = known
            .clone()
            .map(|name| (strsim::damerau_levenshtein(got, name), name))
            .min()
            .filter(|(distance, name)| *distance <= (name.len() / 3).max(1));
        if let Some((_, name)) = near {
            return format!("did you mean `{name}`?");
        }
    }
    let listed: Vec<_> = known.clone().take(LISTED).collect();
    match (listed.len(), known.count() - listed.len()) {
        (0, _) => "there is none".to_owned(),
        (_, 0) => format!("known are {}", listed.join(", ")),
        (_, more) => format!("known are {} and {more} more", listed.join(", ")),
    }
}
