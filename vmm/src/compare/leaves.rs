//! A JSON result as a flat list: one value under one stable key.

use serde_json::Value;

/// A value of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// An exact integer; its unit is the last word of the key.
    Number(i128),
    /// A word: a status, a rule, a hash.
    Text(String),
}

/// Keys of a result that say which run it was, or say it in words: no two runs need share them.
const IDENTITY: [&str; 14] = [
    "rqscope_json",
    "seed",
    "time",
    "guest",
    "host",
    // The only pass of a subject is in `update_tg_load_avg`.
    "rate_limit_clocks",
    "tasks",
    "notes",
    "stopped",
    "stopped_by",
    "repeat",
    "scenario",
    "banner",
    "lacks",
];

/// Keys of an entry of a list that are no values: words, and repetitions.
const WORDS: [&str; 4] = ["detail", "clock", "args", "has_own_workload"];

/// Keys that name an entry of a list, the first that it has.
const NAMES: [&str; 4] = ["path", "name", "function", "cpu"];

/// Every value of the JSON result of a run, in the result's order, under keys such as
/// `accounted.irq_ns`, `rq.0.clock_task_ns`, `injected.lines.rx.handled` or
/// `psi_groups./web/api.irq_full_ns`: an entry of a list goes by its name. `None` is unavailable.
pub fn leaves(result: &Value) -> Vec<(String, Option<Leaf>)> {
    let mut out = Vec::new();
    let entries = result.as_object().into_iter().flatten();
    for (key, value) in entries.filter(|(key, _)| !IDENTITY.contains(&key.as_str())) {
        // A whole object that is not there has no keys.
        if !value.is_null() {
            walk(key, value, &mut out);
        }
    }
    out
}

fn walk(at: &str, value: &Value, out: &mut Vec<(String, Option<Leaf>)>) {
    let leaf = match value {
        Value::Object(map) => {
            let known = |key: &str| {
                // The rate limit's clock is a value, the pass that a check failed in is none.
                let word = WORDS.contains(&key) && at != "update_tg_load_avg";
                !word && !IDENTITY.contains(&key)
            };
            for (key, value) in map.iter().filter(|(key, _)| known(key)) {
                walk(&format!("{at}.{key}"), value, out);
            }
            return;
        }
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                entry(at, i, item, out);
            }
            return;
        }
        Value::Null => None,
        Value::Bool(b) => Some(Leaf::Text(b.to_string())),
        Value::String(text) => Some(Leaf::Text(text.clone())),
        Value::Number(n) => n
            .as_i64()
            .map(i128::from)
            .or_else(|| n.as_u64().map(i128::from))
            .map(Leaf::Number)
            .or_else(|| Some(Leaf::Text(n.to_string()))),
    };
    out.push((at.to_owned(), leaf));
}

/// An entry of a list, by its name if it has one, else by its place.
fn entry(at: &str, place: usize, item: &Value, out: &mut Vec<(String, Option<Leaf>)>) {
    let named = NAMES.iter().find_map(|key| Some((*key, item.get(key)?)));
    let Some((name_key, name)) = named else {
        return walk(&format!("{at}.{place}"), item, out);
    };
    let name = name.as_str().map_or_else(|| name.to_string(), str::to_owned);
    let mut rest = item.clone();
    if let Some(map) = rest.as_object_mut() {
        map.shift_remove(name_key);
    }
    walk(&format!("{at}.{name}"), &rest, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn number(n: i128) -> Option<Leaf> {
        Some(Leaf::Number(n))
    }

    #[test]
    fn numbers_keep_their_place_as_keys_and_entries_go_by_their_names() {
        let result = json!({
            "rqscope_json": 1,
            "seed": 7,
            "verdict": "pass",
            "elapsed_ns": u64::MAX,
            "rq": [{ "cpu": 0, "clock_ns": 5, "prev_steal_time_rq_ns": -3 }],
            "injected": { "irq_ns": 0, "lines": [{ "name": "rx", "raised": 2, "irq": null }] },
            "psi_groups": [{ "path": "/a.b", "irq_full_ns": 4 }],
            "accounted": null,
            "checks": [{ "name": "conservation", "status": "pass", "failures": 0, "detail": null }],
            "update_tg_load_avg": { "clock": "rq_clock", "groups": [] },
            "odd": [1, { "x": true }],
        });
        let expected = [
            ("verdict", Some(Leaf::Text("pass".into()))),
            ("elapsed_ns", number(u64::MAX.into())),
            ("rq.0.clock_ns", number(5)),
            ("rq.0.prev_steal_time_rq_ns", number(-3)),
            ("injected.irq_ns", number(0)),
            ("injected.lines.rx.raised", number(2)),
            ("injected.lines.rx.irq", None),
            ("psi_groups./a.b.irq_full_ns", number(4)),
            ("checks.conservation.status", Some(Leaf::Text("pass".into()))),
            ("checks.conservation.failures", number(0)),
            ("update_tg_load_avg.clock", Some(Leaf::Text("rq_clock".into()))),
            ("odd.0", number(1)),
            ("odd.1.x", Some(Leaf::Text("true".into()))),
        ];
        let expected = expected.map(|(key, leaf)| (key.to_owned(), leaf));
        assert_eq!(leaves(&result), expected);
    }

    #[test]
    fn what_is_unavailable_is_no_number() {
        let found = leaves(&json!({ "psi_account_irqtime": { "clock_reads": null } }));
        assert_eq!(found, [("psi_account_irqtime.clock_reads".to_owned(), None)]);
        assert_ne!(found[0].1, number(0));
        assert_eq!(leaves(&json!(null)), []);
    }
}
