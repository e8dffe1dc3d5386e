//! Runs from one snapshot.

use serde_json::Value;

use super::{NEWEST, kernel};

#[test]
fn twenty_runs_from_one_snapshot_have_one_hash_and_another_seed_another() {
    let Some(linux) = kernel(NEWEST) else { return };
    let hash = |seed: &str| -> Value {
        linux.json("default", &["duration=20ms", seed], 0)["trace_sha256"].clone()
    };
    let first = hash("seed=1");
    assert_eq!(first.as_str().map(str::len), Some(64));
    for _ in 1..20 {
        assert_eq!(hash("seed=1"), first);
    }
    assert_ne!(hash("seed=2"), first);
}
