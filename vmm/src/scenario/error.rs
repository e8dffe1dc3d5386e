//! What can be wrong with a scenario, and where.

use std::fmt;

use super::units::UnitError;

/// A scenario that cannot run: the place, the key and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ScenarioError {
    /// Where the offending text stands.
    pub place: Place,
    /// Path of the key, such as `irq[0].rate`; empty for the whole file.
    pub key: String,
    /// What is wrong, and the fix; part of this error's message, so not its source.
    pub problem: Box<Problem>,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key.as_str() {
            "" => write!(f, "{}: {}", self.place, self.problem),
            key => write!(f, "{}: {key}: {}", self.place, self.problem),
        }
    }
}

/// Where a value of a scenario was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A line of the file.
    Line {
        /// The file's name.
        source: String,
        /// Counted from 1.
        line: u32,
    },
    /// An override of the command line.
    Set {
        /// The argument of `--set`.
        argument: String,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { source, line } => write!(f, "{source}:{line}"),
            Self::Set { argument } => write!(f, "--set {}", super::units::shown(argument)),
        }
    }
}

/// What is wrong with a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The file is too long to be a scenario.
    #[error("{bytes} bytes are too many for a scenario; at most {max}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The text is not TOML.
    #[error("not TOML: {message}")]
    Syntax {
        /// What the TOML parser found.
        message: String,
    },
    /// An override is not `key=value`.
    #[error("an override is written key=value, for example irq[0].rate=20kHz; {why}")]
    SetSyntax {
        /// What is wrong with this one.
        why: String,
    },
    /// An override descends into a value that holds no keys.
    #[error("{got} here, which has no `{part}` in it; set the whole value")]
    NoInside {
        /// What is there.
        got: &'static str,
        /// The part of the path that does not fit.
        part: String,
    },
    /// An override names an entry that an array does not have.
    #[error("no entry `{part}`; {hint}")]
    NoEntry {
        /// The number or name given.
        part: String,
        /// What there is.
        hint: String,
    },
    /// The key is not known here.
    #[error("unknown key; {hint}")]
    UnknownKey {
        /// The nearest key, or all of them.
        hint: String,
    },
    /// A name refers to nothing.
    #[error("no {what} is named `{name}`; {hint}")]
    UnknownName {
        /// Kind of thing.
        what: &'static str,
        /// The name given.
        name: String,
        /// The nearest name, or all of them.
        hint: String,
    },
    /// A value is none of a fixed list.
    #[error("`{got}` is not one of {known}")]
    UnknownValue {
        /// The value given.
        got: String,
        /// The list.
        known: String,
    },
    /// A key that is needed is not there.
    #[error("missing; add for example {example}")]
    Missing {
        /// A line that would do.
        example: &'static str,
    },
    /// The value has another type.
    #[error("expected {expected}, got {got}")]
    WrongType {
        /// What would do.
        expected: &'static str,
        /// What is there.
        got: String,
    },
    /// A duration, rate or share cannot be read.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// The value is outside its limits.
    #[error("{got} is out of range; it must be {allowed}")]
    OutOfRange {
        /// The value given.
        got: String,
        /// The limits.
        allowed: String,
    },
    /// A range's ends are the wrong way round.
    #[error("min {min} is above max {max}; swap them")]
    MinAboveMax {
        /// The lower end given.
        min: String,
        /// The upper end given.
        max: String,
    },
    /// A window ends before it begins.
    #[error("until {until} is not after from {from}")]
    EmptyWindow {
        /// Its begin.
        from: String,
        /// Its end.
        until: String,
    },
    /// A name has characters that names do not have.
    #[error("`{name}` is not a name; use 1 to {max} letters, digits, `-` and `_`")]
    BadName {
        /// The name given.
        name: String,
        /// Most characters.
        max: usize,
    },
    /// A path is not one of a cgroup below the root.
    #[error("`{path}` is not a group's path: {why}; write for example \"web/api\"")]
    BadPath {
        /// The path given.
        path: String,
        /// The rule it breaks.
        why: &'static str,
    },
    /// Two things have one name.
    #[error("`{name}` is already taken by {first}; choose another")]
    Duplicate {
        /// The name.
        name: String,
        /// The place of the first.
        first: String,
    },
    /// Two keys exclude each other, or one makes no sense without another.
    #[error("{why}")]
    Conflict {
        /// Which, and what to do.
        why: String,
    },
    /// A waking task names several copies of another.
    #[error("`{name}` stands for {copies} tasks; write one of {name}.0 to {name}.{last}")]
    Copies {
        /// The task's name.
        name: String,
        /// Its copies.
        copies: u16,
        /// The last copy's number.
        last: u16,
    },
    /// A task wakes itself.
    #[error("`{name}` would wake itself; give it a sleep instead")]
    WakesItself {
        /// The task's name.
        name: String,
    },
    /// A blocked task that nothing wakes.
    #[error(
        "`{name}` starts blocked and nothing that runs ever wakes it; \
         name it in the `wakes` of an [[irq]] or of a [[task]] that runs before the end{replaced}"
    )]
    NeverWoken {
        /// The task's name.
        name: String,
        /// Which override replaced the tables that could; empty if none did.
        replaced: String,
    },
    /// A burst is not over when the next one begins.
    #[error(
        "a burst of {burst} lasts {lasts}, longer than the {period} to the next one; \
         lower the rate, the gap or the burst"
    )]
    BurstTooLong {
        /// Interrupts in it.
        burst: u32,
        /// First to last interrupt.
        lasts: String,
        /// Begin to begin.
        period: String,
    },
    /// The guest would never get to run.
    #[error("{what} take {percent}% of the CPU for ever; less than 100% must be taken: {fix}")]
    Overload {
        /// Whose handlers and steal.
        what: &'static str,
        /// Their share, rounded down.
        percent: u128,
        /// What to lower.
        fix: &'static str,
    },
    /// More entries than the guest's tables hold.
    #[error("{got} {what} are too many; at most {max}")]
    TooMany {
        /// Kind of entry.
        what: &'static str,
        /// How many.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// The run would never end.
    #[error(
        "about {events} ticks, interrupts and slices in one run are too many; at most {max}: lower the rate or the duration"
    )]
    TooManyEvents {
        /// How many are expected.
        events: u128,
        /// The limit.
        max: u128,
    },
    /// The steal counter would wrap.
    #[error("the steal counter could move by {total} ns in one run; at most 2^62 ns either way")]
    CounterTooFar {
        /// How far, ns.
        total: u128,
    },
}
