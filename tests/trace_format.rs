//! docs/trace.md against the trace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::{Map, Value};

use crate::program::{Scratch, rqscope};

type Keys = BTreeMap<String, BTreeSet<String>>;

/// The keys that each `ev` has in docs/trace.md.
fn documented() -> Keys {
    let text = include_str!("../docs/trace.md");
    let (head, events) = text.split_once("## What the host did").unwrap();
    let names = |line: &str| {
        line.strip_prefix("| `").and_then(|row| row.split_once('`')).map(|(key, _)| key.to_owned())
    };
    let all: BTreeSet<String> = head.lines().filter_map(names).collect();
    let mut keys = Keys::new();
    let mut open: Vec<String> = Vec::new();
    for line in events.lines() {
        if line.starts_with("Each call, and `end`") {
            keys.entry("end".to_owned()).or_insert_with(|| all.clone());
            open = keys
                .keys()
                .filter(|ev| !["pass", "irq", "steal"].contains(&ev.as_str()))
                .cloned()
                .collect();
        } else if line.starts_with('`') {
            let after = |part: &str| part.split_once("`: ").map(|(ev, _)| ev.to_owned());
            open = line
                .split(", and `")
                .filter_map(|part| after(part.trim_start_matches('`')))
                .collect();
            open.iter().for_each(|ev| drop(keys.insert(ev.clone(), all.clone())));
        } else if let Some(key) = names(line) {
            for ev in &open {
                keys.get_mut(ev).unwrap().insert(key.clone());
            }
        }
    }
    keys
}

#[test]
fn the_documented_keys_are_those_of_the_trace() {
    let scratch = Scratch::new();
    let out = scratch.arg("out");
    let args = ["run", "default", "--guest=model", "--set=duration=30ms"];
    let args = args.into_iter().chain(["--set=cpu.offline_at=25ms", "--out", &out]);
    rqscope(args).ends_with(0);

    let mut written = Keys::new();
    let trace = fs::read_to_string(scratch.path("out/trace.jsonl")).unwrap();
    for line in trace.lines() {
        let record: Map<String, Value> = serde_json::from_str(line).unwrap();
        let keys: BTreeSet<String> = record.keys().cloned().collect();
        let ev = record["ev"].as_str().unwrap().to_owned();
        assert_eq!(written.entry(ev).or_insert_with(|| keys.clone()), &keys, "{line}");
    }
    assert_eq!(written.len(), 11);
    let (common, linux): (Keys, Keys) =
        documented().into_iter().partition(|(ev, _)| written.contains_key(ev));
    assert_eq!(written, common);
    // Records that only a Linux guest leaves.
    assert!(linux.keys().eq(["probe", "update_irq_load_avg"]), "{linux:?}");
    let mean = trace.len() / trace.lines().count();
    assert!((200..280).contains(&mean), "{mean} bytes a record");
}
