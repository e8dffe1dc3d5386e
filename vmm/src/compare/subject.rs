//! What is compared: kernels, and policies of the bundled guest.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use guest_model::policy::{PsiZeroDelta, RateLimitClock};
use thiserror::Error;

use crate::cli::Guest;
use crate::scenario::hint;

/// Most characters of a subject's name.
const MAX_NAME: usize = 32;

/// A subject as the user gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The user's name for it.
    pub name: Option<String>,
    /// What runs.
    pub what: What,
}

/// What runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A Linux kernel's file.
    Kernel(PathBuf),
    /// The bundled guest, with what it says of its policy; the scenario's own holds for the rest.
    Bundled {
        /// In a virtual machine or in this process.
        guest: Guest,
        /// The rate limit's clock.
        clock: Option<RateLimitClock>,
        /// The zero-delta rule.
        psi: Option<PsiZeroDelta>,
    },
}

/// Words that are no subject.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SubjectError {
    /// Nothing is named.
    #[error("subject {given:?}: names nothing; expected a kernel's file, `model` or `firmware`")]
    Empty {
        /// The words.
        given: String,
    },
    /// The name is none.
    #[error(
        "subject {given:?}: {name:?} is no name; expected 1 to {MAX_NAME} letters, digits, `.`, `_` or `-`"
    )]
    Name {
        /// The words.
        given: String,
        /// The part before `=`.
        name: String,
    },
    /// Neither guest nor file.
    #[error("subject {given:?}: no guest and no file is called {what:?}; {hint}")]
    Unknown {
        /// The words.
        given: String,
        /// The part that should name it.
        what: String,
        /// What to write instead.
        hint: String,
    },
    /// A kernel's file that cannot be opened.
    #[error("subject {given:?}: {why}")]
    File {
        /// The words.
        given: String,
        /// The system's reason.
        why: String,
    },
    /// A part of the policy is no KEY=VALUE.
    #[error("subject {given:?}: expected KEY=VALUE after `:` and `,`, got {got:?}")]
    Form {
        /// The words.
        given: String,
        /// The part.
        got: String,
    },
    /// A key that no policy has.
    #[error("subject {given:?}: no policy has the key {key:?}; {hint}")]
    Key {
        /// The words.
        given: String,
        /// The key.
        key: String,
        /// What to write instead.
        hint: String,
    },
    /// A key twice.
    #[error("subject {given:?}: {key} is given twice")]
    Twice {
        /// The words.
        given: String,
        /// The key.
        key: &'static str,
    },
    /// A value that the key does not take.
    #[error("subject {given:?}: {key} takes no {value:?}; {hint}")]
    Value {
        /// The words.
        given: String,
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// What to write instead.
        hint: String,
    },
}

/// The bundled guest's two names.
const GUESTS: [(&str, Guest); 2] = [("firmware", Guest::Firmware), ("model", Guest::Model)];

/// The keys of a policy.
const CLOCK: &str = "rate-limit-clock";
const PSI: &str = "psi-zero-delta";

/// What [`PsiZeroDelta::name`] says behind the verb.
const ZERO_DELTA: &str = "_zero_delta";

impl Subject {
    /// Reads `[NAME=]SUBJECT`. A word that has a `/` or names a file is a kernel.
    ///
    /// # Errors
    /// What is wrong with it, and what was expected.
    pub fn parse(text: &str) -> Result<Self, SubjectError> {
        let given = || text.to_owned();
        let (name, what) = match text.split_once('=') {
            // A policy or a path may have a `=` of its own.
            Some((name, what)) if !name.contains(['/', ':']) => (Some(name), what),
            _ => (None, text),
        };
        let in_name = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        if let Some(name) = name
            && (name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(in_name))
        {
            return Err(SubjectError::Name { given: given(), name: name.to_owned() });
        }
        if what.is_empty() {
            return Err(SubjectError::Empty { given: given() });
        }
        let (word, policy) = match what.split_once(':') {
            Some((word, policy)) => (word, Some(policy)),
            None => (what, None),
        };
        let guest = GUESTS.iter().find(|(name, _)| *name == word).map(|(_, guest)| *guest);
        let what = match guest {
            Some(guest) => bundled(guest, policy, text)?,
            None => kernel(what, text)?,
        };
        Ok(Self { name: name.map(str::to_owned), what })
    }
}

/// The kernel in the file `path`, which must be there.
fn kernel(path: &str, text: &str) -> Result<What, SubjectError> {
    let given = text.to_owned();
    match std::fs::metadata(path) {
        Ok(file) if file.is_dir() => {
            let why = "is a directory; name the vmlinux in it".to_owned();
            Err(SubjectError::File { given, why })
        }
        Ok(_) => Ok(What::Kernel(path.into())),
        Err(e) if path.contains('/') => Err(SubjectError::File { given, why: e.to_string() }),
        Err(_) => {
            let word = path.split(':').next().unwrap_or(path);
            let hint = hint(word, GUESTS.iter().map(|(name, _)| *name));
            Err(SubjectError::Unknown { given, what: path.to_owned(), hint })
        }
    }
}

fn bundled(guest: Guest, policy: Option<&str>, text: &str) -> Result<What, SubjectError> {
    let given = || text.to_owned();
    let (mut clock, mut psi) = (None, None);
    for part in policy.iter().flat_map(|policy| policy.split(',')) {
        let Some((key, value)) = part.split_once('=') else {
            return Err(SubjectError::Form { given: given(), got: part.to_owned() });
        };
        let twice = match key {
            CLOCK => clock
                .replace(one_of(value, &RateLimitClock::ALL, RateLimitClock::name, CLOCK, text)?)
                .is_some(),
            PSI => {
                // `skip` is as good as skip_zero_delta.
                let full = PsiZeroDelta::ALL.iter().map(|rule| rule.name());
                let mut full = full.filter(|name| name.strip_suffix(ZERO_DELTA) == Some(value));
                let value = full.next().unwrap_or(value);
                psi.replace(one_of(value, &PsiZeroDelta::ALL, PsiZeroDelta::name, PSI, text)?)
                    .is_some()
            }
            other => {
                let (key, hint) = (other.to_owned(), hint(other, [CLOCK, PSI].into_iter()));
                return Err(SubjectError::Key { given: given(), key, hint });
            }
        };
        if twice {
            let key = if key == CLOCK { CLOCK } else { PSI };
            return Err(SubjectError::Twice { given: given(), key });
        }
    }
    Ok(What::Bundled { guest, clock, psi })
}

/// The one of `all` that is called `value`.
fn one_of<T: Copy>(
    value: &str,
    all: &[T],
    name: fn(T) -> &'static str,
    key: &'static str,
    text: &str,
) -> Result<T, SubjectError> {
    let found = all.iter().find(|item| name(**item) == value).copied();
    found.ok_or_else(|| SubjectError::Value {
        given: text.to_owned(),
        key,
        value: value.to_owned(),
        hint: hint(value, all.iter().map(|item| name(*item))),
    })
}

/// What a subject is known by once it has run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// A kernel.
    Kernel {
        /// Its version, if it came so far as to say it.
        version: Option<String>,
        /// Its file.
        path: PathBuf,
    },
    /// The bundled guest.
    Bundled {
        /// In a virtual machine or in this process.
        guest: Guest,
        /// The rate limit's clock that it ran with.
        clock: RateLimitClock,
        /// The zero-delta rule that it ran with.
        psi: PsiZeroDelta,
    },
}

/// Short names, all different: the user's own; of a kernel its version, with what is not the same in
/// its path where that is not enough; of the bundled guest what is not the same in its policy.
pub fn names(subjects: &[Subject], identities: &[Identity]) -> Vec<String> {
    let kernels: Vec<_> = identities.iter().filter_map(Identity::kernel).collect();
    let mut names: Vec<String> = identities
        .iter()
        .zip(subjects)
        .map(|(identity, subject)| match (&subject.name, identity) {
            (Some(name), _) => name.clone(),
            (None, Identity::Kernel { version, path }) => kernel_name(version, path, &kernels),
            (None, Identity::Bundled { guest, clock, psi }) => {
                policy_name(*guest, *clock, *psi, identities)
            }
        })
        .collect();
    // The same subject twice.
    let mut count: HashMap<String, usize> = HashMap::new();
    let taken: Vec<String> = names.clone();
    for name in &mut names {
        let n = count.entry(name.clone()).or_default();
        *n += 1;
        if *n > 1 {
            let free = (*n..).map(|n| format!("{name}#{n}")).find(|new| !taken.contains(new));
            *name = free.unwrap_or_default();
        }
    }
    names
}

impl Identity {
    fn kernel(&self) -> Option<(&Option<String>, &Path)> {
        match self {
            Self::Kernel { version, path } => Some((version, path)),
            Self::Bundled { .. } => None,
        }
    }
}

fn words(path: &Path) -> Vec<String> {
    let normal = |c: Component<'_>| c.as_os_str().to_string_lossy().into_owned();
    path.components().map(normal).collect()
}

/// A kernel's version without what its builder added: `7.3.4` of `7.3.4-local`, `7.4.0-rc1` of
/// `7.4.0-rc1-local`.
pub fn short_version(version: &str) -> &str {
    let mut parts = version.split('-');
    let number = parts.next().unwrap_or(version);
    match parts.next().filter(|part| part.starts_with("rc")) {
        Some(rc) => &version[..number.len() + 1 + rc.len()],
        None => number,
    }
}

fn kernel_name(
    version: &Option<String>,
    path: &Path,
    kernels: &[(&Option<String>, &Path)],
) -> String {
    let mine = words(path);
    let Some(version) = version else { return mine.last().cloned().unwrap_or_default() };
    let others = kernels.iter().filter(|(_, other)| *other != path);
    let others: Vec<_> = others.filter_map(|(v, path)| Some((v.as_ref()?, words(path)))).collect();
    let short = short_version(version);
    if !others.iter().any(|(other, _)| short_version(other) == short) {
        return short.to_owned();
    }
    let alike: Vec<_> = others.iter().filter(|(other, _)| *other == version).collect();
    let differs =
        |(i, word): &(usize, &String)| alike.iter().any(|(_, o)| o.get(*i) != Some(*word));
    match mine.iter().enumerate().find(differs) {
        Some((i, word)) => {
            // A part that they all begin with, up to a mark, tells nothing.
            let begins = |part: &str| {
                alike.iter().all(|(_, o)| o.get(i).is_some_and(|word| word.starts_with(part)))
            };
            let ends = word.match_indices(['-', '_', '.']).map(|(at, _)| at + 1);
            let shared = ends.take_while(|end| begins(&word[..*end])).last().unwrap_or(0);
            format!("{short}:{}", &word[shared..])
        }
        None => version.clone(),
    }
}

fn policy_name(guest: Guest, clock: RateLimitClock, psi: PsiZeroDelta, all: &[Identity]) -> String {
    let mut others = [false; 3];
    for identity in all {
        if let Identity::Bundled { guest: g, clock: c, psi: p } = identity {
            others[0] |= *g != guest;
            others[1] |= *c != clock;
            others[2] |= *p != psi;
        }
    }
    let named = GUESTS.iter().find(|(_, g)| *g == guest).map_or("", |(name, _)| *name);
    let parts = [named, clock.name(), psi.name().trim_end_matches(ZERO_DELTA)];
    if others[1..] == [false, false] {
        return named.to_owned();
    }
    let parts: Vec<_> = parts.into_iter().zip(others).filter(|(_, o)| *o).map(|(p, _)| p).collect();
    parts.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Subject {
        Subject::parse(text).unwrap_or_else(|e| panic!("{e}"))
    }

    fn refused(text: &str) -> String {
        Subject::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn guests_policies_files_and_names_are_read() {
        let (guest, clock, psi) = (Guest::Model, None, None);
        let model = What::Bundled { guest, clock, psi };
        assert_eq!(parse("model"), Subject { name: None, what: model.clone() });
        assert_eq!(parse("a.b-1=model"), Subject { name: Some("a.b-1".into()), what: model });
        let (guest, clock) = (Guest::Firmware, Some(RateLimitClock::RqClockTask));
        let psi = Some(PsiZeroDelta::Skip);
        let what = What::Bundled { guest, clock, psi };
        for psi in ["skip", "skip_zero_delta"] {
            let text = format!("firmware:rate-limit-clock=rq_clock_task,psi-zero-delta={psi}");
            assert_eq!(parse(&text).what, what);
            assert_eq!(
                parse(&format!("x={text}")),
                Subject { name: Some("x".into()), what: what.clone() }
            );
        }
        assert_eq!(parse("./Cargo.toml").what, What::Kernel("./Cargo.toml".into()));
        assert_eq!(parse("k=Cargo.toml").what, What::Kernel("Cargo.toml".into()));
    }

    #[test]
    fn what_is_no_subject_is_refused_with_what_was_expected() {
        for (text, why) in [
            ("", "names nothing; expected a kernel's file, `model` or `firmware`"),
            ("a=", "names nothing"),
            ("=model", "\"\" is no name; expected 1 to 32 letters, digits, `.`, `_` or `-`"),
            ("a b=model", "\"a b\" is no name"),
            ("modle", "no guest and no file is called \"modle\"; did you mean `model`?"),
            ("modle:psi-zero-delta=skip", "did you mean `model`?"),
            ("none/vmlinux", "No such file"),
            ("./src", "is a directory; name the vmlinux in it"),
            ("model:", "expected KEY=VALUE after `:` and `,`, got \"\""),
            ("model:skip", "got \"skip\""),
            ("model:psi-zero-delta=skip,", "got \"\""),
            ("model:psi_zero_delta=skip", "no policy has the key \"psi_zero_delta\"; did you mean"),
            ("model:psi-zero-delta=skp", "psi-zero-delta takes no \"skp\"; known are account_zero"),
            ("model:rate-limit-clock=rq_clok", "takes no \"rq_clok\"; did you mean `rq_clock`?"),
            ("model:psi-zero-delta=skip,psi-zero-delta=account", "psi-zero-delta is given twice"),
        ] {
            let said = refused(text);
            assert!(said.starts_with(&format!("subject {text:?}: ")), "{said}");
            assert!(said.contains(why), "{said}");
        }
        assert!(refused(&format!("{}=model", "n".repeat(33))).contains("is no name"));
    }

    fn kernel(version: Option<&str>, path: &str) -> Identity {
        Identity::Kernel { version: version.map(str::to_owned), path: path.into() }
    }

    fn bundled(guest: Guest, clock: RateLimitClock, psi: PsiZeroDelta) -> Identity {
        Identity::Bundled { guest, clock, psi }
    }

    fn named(identities: &[Identity], given: &[Option<&str>]) -> Vec<String> {
        let what = parse("model").what;
        let given = given.iter().copied().chain(std::iter::repeat(None)).take(identities.len());
        let subject =
            |name: Option<&str>| Subject { name: name.map(str::to_owned), what: what.clone() };
        names(&given.map(subject).collect::<Vec<_>>(), identities)
    }

    #[test]
    fn kernels_go_by_their_versions_and_else_by_what_differs_in_their_paths() {
        let old = kernel(Some("7.2.13"), "/k/a/vmlinux");
        let new = kernel(Some("7.3.4"), "/k/b/vmlinux");
        let other = kernel(Some("7.3.4"), "/k/c/vmlinux");
        assert_eq!(named(&[old.clone(), new.clone()], &[]), ["7.2.13", "7.3.4"]);
        let three = [old, new.clone(), other];
        assert_eq!(named(&three, &[]), ["7.2.13", "7.3.4:b", "7.3.4:c"]);
        assert_eq!(named(&three, &[None, Some("mine")]), ["7.2.13", "mine", "7.3.4:c"]);
        let hashed =
            ["/k/7.3-12ab/vmlinux", "/k/7.3-12cd/vmlinux"].map(|p| kernel(Some("7.3.4"), p));
        assert_eq!(named(&hashed, &[]), ["7.3.4:12ab", "7.3.4:12cd"]);
        assert_eq!(named(&[new.clone(), new], &[]), ["7.3.4", "7.3.4#2"]);
        let local = |path| kernel(Some("7.4.0-rc1-mine"), path);
        let other = kernel(Some("7.4.0-rc1-other"), "/k/e/vmlinux");
        assert_eq!(named(&[local("/k/d/vmlinux")], &[]), ["7.4.0-rc1"]);
        let two = [local("/k/d/vmlinux"), other];
        assert_eq!(named(&two, &[]), ["7.4.0-rc1-mine", "7.4.0-rc1-other"]);
        assert_eq!(named(&[kernel(None, "/k/b/vmlinux")], &[]), ["vmlinux"]);
    }

    #[test]
    fn policies_go_by_what_differs_in_them() {
        use Guest::{Firmware, Model};
        use PsiZeroDelta::{Account, Skip};
        use RateLimitClock::{RqClock, RqClockTask};
        let plain = bundled(Model, RqClock, Skip);
        let machine = bundled(Firmware, RqClock, Skip);
        let account = bundled(Model, RqClock, Account);
        let task = bundled(Model, RqClockTask, Skip);
        assert_eq!(named(&[plain.clone(), machine], &[]), ["model", "firmware"]);
        assert_eq!(named(&[plain.clone(), account.clone()], &[]), ["skip", "account"]);
        assert_eq!(named(&[plain.clone(), task], &[]), ["rq_clock", "rq_clock_task"]);
        let machine = bundled(Firmware, RqClock, Account);
        assert_eq!(named(&[plain.clone(), machine], &[]), ["model:skip", "firmware:account"]);
        assert_eq!(named(&[plain.clone(), plain.clone()], &[]), ["model", "model#2"]);
        let kernel = kernel(Some("7.3.4"), "/k");
        assert_eq!(named(&[plain, kernel], &[]), ["model", "7.3.4"]);
    }
}
