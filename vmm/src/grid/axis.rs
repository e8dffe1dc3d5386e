//! One axis of a grid, as it is written.

use std::str::FromStr;

use thiserror::Error;

use super::MAX_CELLS;

/// Most digits of a number in a range, so that no step of it overflows.
const MAX_DIGITS: usize = 15;
/// Decimals that a step may need beyond those written.
const MORE_DECIMALS: u32 = 3;

/// Why a text is no axis.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AxisError {
    /// No `=`, or nothing before it.
    #[error(
        "`{got}` names no key; write for example irq.nic.load=0,0.5 or irq.nic.load=0..0.95/20"
    )]
    NoKey {
        /// The text, shortened.
        got: String,
    },
    /// No value, or an empty one among several.
    #[error("`{key}` has an empty value; write for example {key}=1,2,3")]
    Empty {
        /// The key.
        key: String,
    },
    /// A value is there twice.
    #[error("`{key}` has the value `{value}` twice")]
    Twice {
        /// The key.
        key: String,
        /// The value.
        value: String,
    },
    /// A range that is not one.
    #[error("`{got}` is not a range: {why}; write for example 0..0.95/20 or 1kHz..20kHz/20")]
    Range {
        /// The text, shortened.
        got: String,
        /// What is wrong.
        why: &'static str,
    },
    /// More values than a grid has cells.
    #[error("`{key}` has {values} values; at most {max}", max = MAX_CELLS)]
    TooMany {
        /// The key.
        key: String,
        /// How many.
        values: usize,
    },
}

/// A key and the values that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    key: String,
    values: Vec<String>,
}

impl Axis {
    /// The key, as `--set` takes it.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Its values, as `--set` takes them; at least one, none of them twice.
    pub fn values(&self) -> &[String] {
        &self.values
    }
}

impl FromStr for Axis {
    type Err = AxisError;

    /// Reads `KEY=V1,V2,...` or `KEY=A..B/N`: N values, A and B the first and the last, evenly apart.
    fn from_str(text: &str) -> Result<Self, AxisError> {
        let no_key = || AxisError::NoKey { got: shown(text) };
        let (key, values) = text.split_once('=').ok_or_else(no_key)?;
        let (key, values) = (key.trim().to_owned(), values.trim());
        if key.is_empty() {
            return Err(no_key());
        }
        let values = match range(values)? {
            Some(values) => values,
            None => split(values),
        };
        if values.len() > MAX_CELLS {
            return Err(AxisError::TooMany { key, values: values.len() });
        }
        if values.iter().any(String::is_empty) {
            return Err(AxisError::Empty { key });
        }
        let mut sorted: Vec<&String> = values.iter().collect();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(AxisError::Twice { key, value: shown(pair[0]) });
        }
        Ok(Self { key, values })
    }
}

/// The values between commas, but not between those inside quotes or brackets.
fn split(text: &str) -> Vec<String> {
    let (mut values, mut from, mut depth, mut quote) = (Vec::new(), 0, 0_usize, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => {
                values.push(text[from..at].trim().to_owned());
                from = at + 1;
            }
            _ => {}
        }
    }
    values.push(text[from..].trim().to_owned());
    values
}

/// The values of `A..B/N`; `None` for a text that is no range.
fn range(text: &str) -> Result<Option<Vec<String>>, AxisError> {
    let fail = |why| AxisError::Range { got: shown(text), why };
    let Some((first, rest)) = text.split_once("..").filter(|_| !text.contains(['"', '\'', ',']))
    else {
        return Ok(None);
    };
    let (last, count) = rest.split_once('/').ok_or_else(|| fail("`/` and a count are missing"))?;
    let count: usize = count.trim().parse().map_err(|_| fail("the count is not a number"))?;
    if !(2..=MAX_CELLS).contains(&count) {
        return Err(fail("the count must be 2 to 100000"));
    }
    let not_numbers = || fail("its ends are not numbers");
    let first = Number::parse(first).ok_or_else(not_numbers)?;
    let last = Number::parse(last).ok_or_else(not_numbers)?;
    let unit = match (first.unit, last.unit) {
        (a, b) if a == b => a,
        // 0 needs no unit.
        ("", unit) if first.digits == 0 => unit,
        (unit, "") if last.digits == 0 => unit,
        _ => return Err(fail("its ends have different units")),
    };
    let decimals = first.decimals.max(last.decimals);
    let (a, b) = (first.scaled(decimals), last.scaled(decimals));
    let steps = count as i128 - 1;
    let value = |i: i128| match (b - a) * i % steps {
        0 => decimal(a + (b - a) * i / steps, decimals, unit),
        _ => {
            let fine = 10_i128.pow(MORE_DECIMALS);
            let step = ((b - a) * i * fine).div_euclid(steps);
            decimal(a * fine + step, decimals + MORE_DECIMALS, unit)
        }
    };
    Ok(Some((0..count as i128).map(value).collect()))
}

/// A decimal number and its unit.
#[derive(Clone, Copy)]
struct Number<'t> {
    digits: i128,
    decimals: u32,
    unit: &'t str,
}

impl<'t> Number<'t> {
    fn parse(text: &'t str) -> Option<Self> {
        let text = text.trim();
        let (sign, body) = match text.strip_prefix('-') {
            Some(body) => (-1, body),
            None => (1, text),
        };
        let end = body.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(body.len());
        let (number, unit) = body.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = format!("{whole}{fraction}");
        let sound = !whole.is_empty()
            && !number.ends_with('.')
            && digits.len() <= MAX_DIGITS
            && unit.chars().all(char::is_alphabetic);
        let digits = digits.parse::<i128>().ok().filter(|_| sound)?;
        Some(Self { digits: sign * digits, decimals: fraction.len() as u32, unit })
    }

    /// In units of `10^-decimals`, which are at least as many as it has.
    fn scaled(self, decimals: u32) -> i128 {
        self.digits * 10_i128.pow(decimals - self.decimals)
    }
}

/// `scaled * 10^-decimals` with its unit, without needless zeros.
fn decimal(scaled: i128, decimals: u32, unit: &str) -> String {
    let sign = if scaled < 0 { "-" } else { "" };
    let size = 10_u128.pow(decimals);
    let (whole, part) = (scaled.unsigned_abs() / size, scaled.unsigned_abs() % size);
    if part == 0 {
        return format!("{sign}{whole}{unit}");
    }
    let part = format!("{part:0width$}", width = decimals as usize);
    format!("{sign}{whole}.{}{unit}", part.trim_end_matches('0'))
}

/// At most 48 characters of `text`, for messages.
fn shown(text: &str) -> String {
    match text.char_indices().nth(48) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
