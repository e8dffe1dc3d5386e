//! `rqscope compare` on real kernels.

use serde_json::Value;

use super::{CACHE, command_in, kernel};
use crate::program::{Done, Running, number, text};

/// Compares subjects under the default scenario, with more arguments.
fn compare(subjects: &[&str], args: &[&str]) -> Done {
    let args = ["compare"].iter().chain(subjects).chain(args);
    Running::start(&mut command_in(&CACHE, args)).wait()
}

#[test]
fn linux_7_2_and_7_3_are_told_apart_by_their_rules_and_charge_what_was_injected() {
    let (Some(old), Some(new)) = (kernel("7.2"), kernel("7.3")) else { return };
    let files = [old, new].map(|linux| {
        linux.snapshot();
        linux.file("vmlinux")
    });
    let subjects = [files[0].as_str(), files[1].as_str()];
    let done =
        compare(&subjects, &["--format", "json", "--expect-equal", "injected.lines.rx.raised"]);
    let result = done.ends_with(0).json();
    let cell = &result["cells"][0];
    for (subject, (version, rule)) in cell["subjects"]
        .as_array()
        .unwrap()
        .iter()
        .zip([("7.2", "account_zero_delta"), ("7.3", "skip_zero_delta")])
    {
        assert!(text(subject, "/name").starts_with(version), "{subject}");
        assert_eq!((&subject["psi"], &subject["verdict"]), (&rule.into(), &"pass".into()));
    }
    let value = |key: &str| &cell["values"][key]["values"];
    // What arrives is the scenario's; what a kernel does with its ticks is its own.
    for key in ["injected.lines.rx.raised", "injected.lines.tx.raised", "injected.steal_ns"] {
        assert_eq!(cell["values"][key]["relation"], "equal", "{key}");
    }
    for (i, zero) in [(0, 1), (1, 0)] {
        let of = |key: &str| number(value(&format!("psi_account_irqtime.{key}")), &format!("/{i}"));
        assert_eq!(of("seqcount_writes"), of("delta_positive") + zero * of("delta_zero"));
    }
    assert_eq!(value("update_tg_load_avg.atomic_adds"), &Value::Array(vec![Value::Null; 2]));
    assert_eq!(cell["series"]["series.psi_irq_full./web"]["samples"], 100);
}

#[test]
fn a_kernel_equals_itself_from_its_snapshot_and_lacks_what_the_model_counts() {
    let Some(linux) = kernel("7.3") else { return };
    linux.snapshot();
    let file = linux.file("vmlinux");
    let short = ["--set", "duration=40ms", "--format", "json", "--expect-equal"];
    let result = compare(&[&file, &file], &[&short[..], &["*"]].concat()).ends_with(0).json();
    assert_eq!(result["cells"][0]["different"], 0);
    let adds = "update_tg_load_avg.atomic_adds";
    let result = compare(&["model", &file], &[&short[..], &[adds]].concat()).ends_with(1).json();
    let value = &result["cells"][0]["values"][adds];
    assert!(number(value, "/values/0") > 0 && value["values"][1].is_null(), "{value}");
    assert_eq!(value["relation"], "different");
}
