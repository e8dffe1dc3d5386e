//! `psi_account_irqtime()` at a zero delta, before and since Linux 7.3.

use serde_json::Value;

use super::{checks_are, kernel};
use crate::program::{number, text};

const SETS: [&str; 1] = ["duration=60ms"];

const COUNTS: [&str; 7] = [
    "total",
    "ret_curr_swapper",
    "ret_samegrp",
    "reached_delta",
    "delta_positive",
    "delta_zero",
    "delta_negative",
];

fn counts(json: &Value) -> [i64; 7] {
    COUNTS.map(|key| number(&json["psi_account_irqtime"], &format!("/{key}")))
}

/// The groups' paths and IRQ time.
fn times(json: &Value) -> Vec<(String, i64)> {
    let groups = json["psi_groups"].as_array().expect("psi_groups is an array");
    let of = |group: &Value| (text(group, "/path").to_owned(), number(group, "/irq_full_ns"));
    groups.iter().map(of).collect()
}

#[test]
fn linux_7_2_writes_at_a_zero_delta_and_7_3_does_not_and_both_lose_nothing() {
    let (Some(old), Some(new)) = (kernel("7.2"), kernel("7.3")) else { return };
    let [old, new] = [old, new].map(|linux| linux.json("psi-zero-delta", &SETS, 0));
    assert_eq!(old["psi_account_irqtime"]["policy"], "account_zero_delta");
    assert_eq!(new["psi_account_irqtime"]["policy"], "skip_zero_delta");
    for json in [&old, &new] {
        let [total, swapper, samegrp, reached, positive, zero, negative] = counts(json);
        assert_eq!(total, swapper + samegrp + reached);
        assert_eq!(reached, positive + zero + negative);
        assert_eq!(negative, 0);
        assert!(samegrp > 0 && positive > 0 && zero > 0, "{:?}", counts(json));
        let checks =
            ["psi_account_irqtime_called", "psi_zero_delta", "psi_writes", "psi_irq_ledger"];
        checks_are(json, "pass", &checks);
        for group in json["psi_groups"].as_array().unwrap() {
            let ledger = number(group, "/irq_full_ns");
            assert_eq!(number(group, "/times_irq_full_ns"), ledger & 0xffff_ffff, "{group}");
        }
        let charged = times(json).iter().filter(|(path, ns)| path != "/" && *ns > 0).count();
        assert!(charged >= 2, "{:?}", times(json));
    }
}
