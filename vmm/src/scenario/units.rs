//! Durations, rates and shares: written with units, held as exact integers.

use std::fmt;

/// Longest time and largest counter step anywhere in a scenario: 2^62 ns (146 years), so that
/// sums and differences of two cannot wrap.
pub const MAX_NS: u64 = 1 << 62;

/// Longest text that is read as a number.
const MAX_TEXT: usize = 64;
const DURATION_UNITS: &[(&str, u128)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", GIGA),
    ("m", 60 * GIGA),
    ("h", 3_600 * GIGA),
];
/// The same, for messages.
pub(super) const KNOWN_DURATION_UNITS: &str = "ns, us, ms, s, m, h";
const RATE_UNITS: &[(&str, u128)] = &[("Hz", 1), ("kHz", 1_000), ("MHz", 1_000_000)];
/// Ten to the ninth: ns in a second, nHz in a hertz, parts of a share.
const GIGA: u128 = 1_000_000_000;

/// Why a text is not a duration, a rate or a share.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// The text does not start with a decimal number, or something follows it.
    #[error("`{got}` is not a number; write for example {example}")]
    NotANumber {
        /// The text, shortened.
        got: String,
        /// A value that would do.
        example: &'static str,
    },
    /// A number other than 0 has no unit.
    #[error("`{got}` has no unit; write for example {example}, with one of {known}")]
    NoUnit {
        /// The text, shortened.
        got: String,
        /// A value that would do.
        example: &'static str,
        /// The units.
        known: &'static str,
    },
    /// The unit is not one of those known.
    #[error("`{unit}` is not a unit here; use one of {known}")]
    UnknownUnit {
        /// The unit given, shortened.
        unit: String,
        /// The units.
        known: &'static str,
    },
    /// The value is finer than can be held.
    #[error("`{got}` is finer than {finest}; round it")]
    TooFine {
        /// The text, shortened.
        got: String,
        /// The smallest step.
        finest: &'static str,
    },
    /// The value is beyond every limit.
    #[error("`{got}` is beyond {limit}")]
    TooLarge {
        /// The text, shortened.
        got: String,
        /// The limit.
        limit: &'static str,
    },
}

/// At most 48 characters of `text`, for messages.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(48) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// A kind of quantity: its units and what its errors say.
struct Quantity {
    units: &'static [(&'static str, u128)],
    known: &'static str,
    example: &'static str,
    finest: &'static str,
    limit: &'static str,
    max: u128,
}

const DURATION: Quantity = Quantity {
    units: DURATION_UNITS,
    known: KNOWN_DURATION_UNITS,
    example: "\"250us\"",
    finest: "1 ns",
    limit: "2^62 ns",
    max: MAX_NS as u128,
};
const RATE: Quantity = Quantity {
    units: RATE_UNITS,
    known: "Hz, kHz, MHz",
    example: "\"20kHz\"",
    finest: "1 nHz",
    limit: "1 GHz",
    max: GIGA * GIGA,
};
const SHARE: Quantity = Quantity {
    units: &[("", 1)],
    known: "",
    example: "0.25",
    finest: "9 decimals",
    limit: "1",
    max: GIGA,
};

impl Quantity {
    /// Reads `[+-]digits[.digits] unit` as sign and magnitude, in units of `1 / scale`.
    fn parse(&self, text: &str, scale: u128) -> Result<(bool, u128), UnitError> {
        let not_a_number = || UnitError::NotANumber { got: shown(text), example: self.example };
        let body = text.trim();
        if body.len() > MAX_TEXT {
            return Err(not_a_number());
        }
        let negative = body.starts_with('-');
        let body = body.strip_prefix(['+', '-']).unwrap_or(body);
        let end = body.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_');
        let (number, unit) = body.split_at(end.unwrap_or(body.len()));
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let grouped = |s: &str| !s.starts_with('_') && !s.ends_with('_') && !s.contains("__");
        let sound = !whole.is_empty()
            && grouped(whole)
            && grouped(fraction)
            && !fraction.contains('.')
            && number.ends_with(|c: char| c.is_ascii_digit());
        if !sound {
            return Err(not_a_number());
        }

        let unit = unit.trim_start();
        let unit = match self.units.iter().find(|(name, _)| *name == unit) {
            Some((_, factor)) => *factor,
            None if unit.is_empty() && number.bytes().all(|b| matches!(b, b'0' | b'.' | b'_')) => 1,
            None if unit.is_empty() => {
                let (example, known) = (self.example, self.known);
                return Err(UnitError::NoUnit { got: shown(text), example, known });
            }
            None if self.known.is_empty() => return Err(not_a_number()),
            None => {
                return Err(UnitError::UnknownUnit { unit: shown(unit), known: self.known });
            }
        };

        let too_large = || UnitError::TooLarge { got: shown(text), limit: self.limit };
        let too_fine = || UnitError::TooFine { got: shown(text), finest: self.finest };
        let fraction = fraction.trim_end_matches(['0', '_']);
        let mut value: u128 = 0;
        let mut decimals: u32 = 0;
        for (digits, after_point) in [(whole, false), (fraction, true)] {
            for d in digits.bytes().filter(|b| *b != b'_') {
                value = value
                    .checked_mul(10)
                    .and_then(|v| v.checked_add((d - b'0').into()))
                    .ok_or_else(|| if after_point { too_fine() } else { too_large() })?;
                decimals += u32::from(after_point);
            }
        }
        let divisor = 10_u128.checked_pow(decimals).ok_or_else(too_fine)?;
        let scaled = value.checked_mul(unit * scale).ok_or_else(too_large)?;
        if scaled / divisor > self.max {
            return Err(too_large());
        }
        if scaled % divisor != 0 {
            return Err(too_fine());
        }
        Ok((negative, scaled / divisor))
    }
}

/// Reads a duration such as `250us`, `1.5ms` or `-300ms` as ns, within 2^62 either way.
///
/// Units are `ns`, `us` (or `µs`), `ms`, `s`, `m` (minutes) and `h`; only `0` needs none. The value must be a whole
/// number of ns.
pub fn parse_duration(text: &str) -> Result<i64, UnitError> {
    let (negative, ns) = DURATION.parse(text, 1)?;
    let ns = ns as i64;
    Ok(if negative { -ns } else { ns })
}

/// A duration as [`parse_duration`] reads it, in the largest unit that needs at most 3 decimals.
pub fn format_duration(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    let ns = ns.unsigned_abs();
    let (unit, size) = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)]
        .into_iter()
        .find(|(_, size)| ns >= *size && ns.is_multiple_of(size / 1_000))
        .unwrap_or(("ns", 1));
    let decimals = decimals(ns % size, size);
    format!("{sign}{}{decimals}{unit}", ns / size)
}

/// `part / whole` as `.5`, or nothing for 0; `whole` is a power of ten.
fn decimals(part: u64, whole: u64) -> String {
    if part == 0 {
        return String::new();
    }
    let text = format!("{}", whole + part);
    format!(".{}", text[1..].trim_end_matches('0'))
}

/// A rate as an exact whole number of nHz, above zero and at most 1 GHz.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate {
    nano_hz: u64,
}

impl Rate {
    /// nHz in one event per ns.
    pub const GHZ: u64 = 1_000_000_000_000_000_000;

    /// A whole number of Hz, above zero.
    pub(super) const fn hz(hz: u32) -> Self {
        Self { nano_hz: hz as u64 * 1_000_000_000 }
    }

    /// Reads a rate such as `250Hz`, `1.5kHz` or `0.3MHz`; `None` if it is zero or negative.
    pub fn parse(text: &str) -> Result<Option<Self>, UnitError> {
        let (negative, nano_hz) = RATE.parse(text, GIGA)?;
        Ok((!negative && nano_hz > 0).then_some(Self { nano_hz: nano_hz as u64 }))
    }

    /// The rate at which events of `twice_mean_ns / 2` each take `load` of all time, rounded down to nHz;
    /// `None` if it is zero or beyond 1 GHz.
    pub(super) fn of_load(load: Share, twice_mean_ns: u128) -> Option<Self> {
        let nano_hz = (2 * u128::from(load.billionths) * GIGA).checked_div(twice_mean_ns)?;
        let nano_hz = u64::try_from(nano_hz).ok().filter(|n| (1..=Self::GHZ).contains(n))?;
        Some(Self { nano_hz })
    }

    /// Events in 10^9 s.
    pub fn nano_hz(self) -> u64 {
        self.nano_hz
    }

    /// Distance of two events, ns, rounded to the nearest as the kernel rounds `TICK_NSEC`
    /// (include/linux/jiffies.h).
    pub fn period_ns(self) -> u64 {
        (Self::GHZ + self.nano_hz / 2) / self.nano_hz
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, size) = [("MHz", 1_000_000_000_000_000), ("kHz", 1_000_000_000_000)]
            .into_iter()
            .find(|(_, size)| self.nano_hz >= *size && self.nano_hz.is_multiple_of(size / 1_000))
            .unwrap_or(("Hz", 1_000_000_000));
        write!(f, "{}{}{unit}", self.nano_hz / size, decimals(self.nano_hz % size, size))
    }
}

/// A share of a whole, 0 to 1, as an exact number of billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    billionths: u32,
}

impl Share {
    /// Nothing.
    pub const ZERO: Self = Self { billionths: 0 };
    /// All.
    pub const ONE: Self = Self { billionths: GIGA as u32 };

    /// Reads a decimal such as `0.25`, with at most 9 decimals; `None` if it is negative.
    pub fn parse(text: &str) -> Result<Option<Self>, UnitError> {
        let (negative, billionths) = SHARE.parse(text, GIGA)?;
        let share = Self { billionths: billionths as u32 };
        Ok((!negative || share == Self::ZERO).then_some(share))
    }

    /// The share in billionths, at most 10^9.
    pub fn billionths(self) -> u32 {
        self.billionths
    }

    /// This share of `ns`, rounded down.
    pub(super) fn of_ns(self, ns: u64) -> u64 {
        // At most `ns`.
        (u128::from(ns) * u128::from(self.billionths) / GIGA) as u64
    }

    /// This share of `ns`, rounded down.
    pub fn of(self, ns: u32) -> u32 {
        (u64::from(ns) * u64::from(self.billionths) / GIGA as u64) as u32
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.billionths / GIGA as u32, self.billionths % GIGA as u32);
        match decimals(part.into(), GIGA as u64).as_str() {
            "" => write!(f, "{whole}.0"),
            decimals => write!(f, "{whole}{decimals}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_unit_of_a_duration_is_read_exactly() {
        let cases = [
            ("0", 0),
            ("0.0", 0),
            ("-0", 0),
            ("0s", 0),
            ("40ns", 40),
            ("250us", 250_000),
            ("250 us", 250_000),
            ("250µs", 250_000),
            (" 1.5ms ", 1_500_000),
            ("+1s", 1_000_000_000),
            ("1.5m", 90_000_000_000),
            ("24h", 86_400_000_000_000),
            ("-300ms", -300_000_000),
            ("0.000000001s", 1),
            ("1.000000000000000000s", 1_000_000_000),
            ("1_000_000ns", 1_000_000),
            ("1099511627776ns", 1 << 40),
            ("4611686018427387904ns", 1 << 62),
            ("-4611686018427387904ns", -(1 << 62)),
        ];
        for (text, ns) in cases {
            assert_eq!(parse_duration(text), Ok(ns), "{text}");
        }
    }

    #[test]
    fn a_duration_that_is_not_one_says_why() {
        let message = |text: &str| parse_duration(text).unwrap_err().to_string();
        for text in
            ["", " ", "us", ".5s", "5.s", "1.2.3s", "--1s", "1e3s", "nan", "inf", "_1s", "1_s"]
        {
            let m = message(text);
            assert!(m.contains("not a number") || m.contains("not a unit"), "{text}: {m}");
        }
        assert_eq!(
            message("5"),
            "`5` has no unit; write for example \"250us\", with one of ns, us, ms, s, m, h"
        );
        assert_eq!(message("5kHz"), "`kHz` is not a unit here; use one of ns, us, ms, s, m, h");
        assert_eq!(message("1.5ns"), "`1.5ns` is finer than 1 ns; round it");
        assert_eq!(message("4611686018427387905ns"), "`4611686018427387905ns` is beyond 2^62 ns");
        assert!(message("99999999999999999999999999999999999999999999s").contains("beyond 2^62"));
        assert!(message(&"9".repeat(1 << 20)).len() < 200);
    }

    #[test]
    fn rates_are_exact_fractions() {
        let nano_hz = |text: &str| Rate::parse(text).unwrap().map(Rate::nano_hz);
        assert_eq!(nano_hz("20kHz"), Some(20_000_000_000_000));
        assert_eq!(nano_hz("1.5kHz"), Some(1_500_000_000_000));
        assert_eq!(nano_hz("0.000000001Hz"), Some(1));
        assert_eq!(nano_hz("1000MHz"), Some(Rate::GHZ));
        assert_eq!(nano_hz("0"), None);
        assert_eq!(nano_hz("0Hz"), None);
        assert_eq!(nano_hz("-1Hz"), None);
        assert!(Rate::parse("1000.1MHz").unwrap_err().to_string().contains("beyond 1 GHz"));
        assert!(Rate::parse("250").unwrap_err().to_string().contains("no unit"));
        assert!(Rate::parse("0.0000000001Hz").unwrap_err().to_string().contains("finer"));
        assert_eq!(Rate::parse("300Hz").unwrap().unwrap().period_ns(), 3_333_333);
    }

    #[test]
    fn shares_are_exact_decimals() {
        let share = |text: &str| Share::parse(text).unwrap().map(Share::billionths);
        assert_eq!(share("0.25"), Some(250_000_000));
        assert_eq!(share("1"), Some(1_000_000_000));
        assert_eq!(share("-0.1"), None);
        assert_eq!(share("-0.0"), Some(0));
        assert!(Share::parse("1.1").unwrap_err().to_string().contains("beyond 1"));
        for text in ["inf", "nan", "2.5e-1", "25%", ""] {
            assert!(Share::parse(text).unwrap_err().to_string().contains("not a number"), "{text}");
        }
        assert_eq!(Share::parse("0.5").unwrap().unwrap().of(u32::MAX), u32::MAX / 2);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in any::<String>(), number in "[-+]?[0-9_.]{0,70}[a-zµ]{0,3}") {
            for text in [&text, &number] {
                let _ = parse_duration(text);
                let _ = Rate::parse(text);
                let _ = Share::parse(text);
            }
        }

        #[test]
        fn a_printed_value_reads_back(ns in -(1_i64 << 62)..=1 << 62, nano_hz in 1..=Rate::GHZ, billionths in 0..=1_000_000_000_u32) {
            prop_assert_eq!(parse_duration(&format_duration(ns)), Ok(ns));
            let round = (ns / 1_000_000) * 1_000_000;
            prop_assert_eq!(parse_duration(&format_duration(round)), Ok(round));
            let rate = Rate { nano_hz };
            prop_assert_eq!(Rate::parse(&rate.to_string()), Ok(Some(rate)));
            let share = Share { billionths };
            prop_assert_eq!(Share::parse(&share.to_string()), Ok(Some(share)));
        }
    }
}
