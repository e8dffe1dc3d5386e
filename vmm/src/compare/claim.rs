//! Claims: `--expect-equal KEY`.

use super::{Comparison, Relation};

/// Near keys listed with an unknown one.
const NEAR: usize = 4;

/// A claim of the user's: every subject has the same value under every key that it matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// A key, in which `*` stands for any text.
    pub key: String,
}

/// A claim about one comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The claim's key.
    pub key: String,
    /// Keys that it matches and whose values are equal.
    pub equal: usize,
    /// Keys that it matches and whose values are not, in the comparison's order.
    pub different: Vec<String>,
    /// Keys that it matches and that no subject has a value for.
    pub unavailable: usize,
}

impl Judged {
    /// Something was compared, and all of it is equal.
    pub fn holds(&self) -> bool {
        self.equal > 0 && self.different.is_empty()
    }

    /// Keys that it matches.
    pub fn matched(&self) -> usize {
        self.equal + self.different.len() + self.unavailable
    }
}

impl Claim {
    /// Looks at every key of `comparison`.
    pub fn judge(&self, comparison: &Comparison) -> Judged {
        let key = self.key.clone();
        let mut judged = Judged { key, equal: 0, different: Vec::new(), unavailable: 0 };
        for (key, relation) in comparison.keys().filter(|(key, _)| matches(&self.key, key)) {
            match relation {
                Relation::Equal => judged.equal += 1,
                Relation::Different => judged.different.push(key.to_owned()),
                Relation::Unavailable => judged.unavailable += 1,
            }
        }
        judged
    }

    /// What to write instead, if this matches none of `keys`.
    pub fn near<'a>(&self, keys: impl Iterator<Item = &'a str>) -> String {
        let wanted = self.key.trim_end_matches('*');
        let part = wanted.rsplit('.').next().unwrap_or(wanted);
        // A key with the wanted's last word in it is nearer than one that is spelt alike.
        let distance = |key: &str| {
            let lacks = part.is_empty() || !key.contains(part);
            (lacks, strsim::damerau_levenshtein(wanted, key))
        };
        let mut near: Vec<_> = keys.map(|key| (distance(key), key)).collect();
        near.sort();
        let near: Vec<_> = near.iter().take(NEAR).map(|(_, key)| *key).collect();
        if near.is_empty() {
            "there is none".into()
        } else {
            format!("near are {}", near.join(", "))
        }
    }
}

/// Does `key` match `pattern`, in which `*` stands for any text?
pub fn matches(pattern: &str, key: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == key };
    let Some(mut left) = key.strip_prefix(head) else { return false };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            // The last part is the end; what is before it may be anything.
            return left.ends_with(part);
        }
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::tests::comparison;

    fn judge(key: &str) -> Judged {
        Claim { key: key.into() }.judge(&comparison())
    }

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, key, found) in [
            ("a.b", "a.b", true),
            ("a.b", "a.bc", false),
            ("a.*", "a.", true),
            ("a.*", "a.b.c", true),
            ("a.*", "b.a.c", false),
            ("a.*.c", "a.b.c", true),
            ("a.*.c", "a.c", false),
            ("*", "", true),
            ("*b*", "abc", true),
            ("*b*b", "ab", false),
            ("a**c", "ac", true),
        ] {
            assert_eq!(matches(pattern, key), found, "{pattern} {key}");
        }
    }

    #[test]
    fn a_claim_holds_where_all_that_it_matches_is_equal() {
        assert!(judge("a.same").holds());
        assert!(judge("series.same").holds());
        let both = judge("a.*");
        assert!(!both.holds());
        assert_eq!((both.equal, both.matched()), (1, 4));
        assert_eq!(both.different, ["a.other", "a.lacks"]);
        assert_eq!(judge("series.*").different, ["series.other", "series.lacks"]);
    }

    #[test]
    fn a_claim_about_what_nobody_has_does_not_hold_but_it_spoils_no_other() {
        assert!(!judge("a.nobody").holds());
        assert_eq!(judge("a.nobody").unavailable, 1);
        let with = judge("a.[same,nobody]");
        assert_eq!(with.matched(), 0, "only a star is special");
        assert!(judge("*.same").holds() && judge("*s*a*me").holds());
        let with = judge("a.*o*y");
        assert_eq!((with.equal, with.unavailable, with.holds()), (0, 1, false));
    }

    #[test]
    fn a_key_that_is_not_there_is_answered_with_near_ones() {
        let keys = ["accounted.irq_ns", "accounted.steal_ns", "injected.irq_ns", "verdict", "x"];
        let near = |key: &str| Claim { key: key.into() }.near(keys.into_iter());
        assert_eq!(
            near("acounted.irq_ns"),
            "near are accounted.irq_ns, injected.irq_ns, accounted.steal_ns, verdict"
        );
        assert!(near("steal_ns").starts_with("near are accounted.steal_ns, "));
        assert_eq!(Claim { key: "a".into() }.near(std::iter::empty()), "there is none");
    }
}
