//! `rqscope compare`.

use std::fs;

use serde_json::Value;

use crate::host::virtual_machines;
use crate::program::{Done, Running, Scratch, command, number, rqscope, text};

/// Two policies that differ in the zero-delta rule.
const RULES: [&str; 2] = ["model:psi-zero-delta=account", "model:psi-zero-delta=skip"];

/// Compares two subjects with more arguments.
fn compare(subjects: [&str; 2], args: &[&str]) -> Done {
    rqscope(["compare"].into_iter().chain(subjects).chain(args.iter().copied()))
}

/// The JSON of a comparison that ends with `code`.
#[track_caller]
fn json(subjects: [&str; 2], args: &[&str], code: i32) -> Value {
    compare(subjects, &[args, &["--format", "json"]].concat()).ends_with(code).json()
}

/// The relation of a value or series of the first cell.
#[track_caller]
fn relation<'a>(json: &'a Value, key: &str) -> &'a str {
    let cell = &json["cells"][0];
    let found = cell["values"].get(key).or_else(|| cell["series"].get(key));
    text(found.unwrap_or_else(|| panic!("{key} in {cell:#}")), "/relation")
}

#[test]
fn the_bundled_guest_and_the_model_are_equal_in_every_value_and_every_sample() {
    let Some(()) = virtual_machines() else { return };
    let args = ["--set", "duration=40ms", "--expect-equal", "*"];
    let result = json(["model", "firmware"], &args, 0);
    let cell = &result["cells"][0];
    assert_eq!(number(cell, "/different"), 0, "{cell:#}");
    assert!(number(cell, "/equal") > 200);
    assert_eq!((&cell["same_schedule"], &cell["parting"]), (&Value::Bool(true), &Value::Null));
    assert_eq!(relation(&result, "trace_sha256"), "equal");
    assert_eq!(cell["series"]["series.psi_irq_full./web"]["samples"], 100);
    let page = compare(["model", "firmware"], &args[..2]).ends_with(0).stdout;
    assert!(page.contains("traces: the same, to the byte"), "{page}");
}

#[test]
fn the_zero_delta_rule_costs_writes_and_changes_no_group_s_time() {
    let args = ["--scenario", "psi-zero-delta", "--expect-equal", "series.psi_irq_full.*"];
    let result = json(RULES, &args, 0);
    let names = result["subjects"].as_array().unwrap().iter().map(|s| text(s, "/name"));
    assert_eq!(names.collect::<Vec<_>>(), ["account", "skip"]);
    let cell = &result["cells"][0];
    assert_eq!(cell["claims"][0]["holds"], true);
    assert_eq!(relation(&result, "psi_account_irqtime.seqcount_writes"), "different");
    assert_eq!(relation(&result, "psi_account_irqtime.delta_zero"), "equal");
    let seen = &cell["values"]["psi_account_irqtime.seqcount_writes"]["values"];
    let zero = &cell["values"]["psi_account_irqtime.delta_zero"]["values"];
    assert_eq!(number(seen, "/0") - number(seen, "/1"), number(zero, "/0"));
}

#[test]
fn a_claim_that_fails_is_exit_code_1_and_a_check_that_fails_is_not() {
    let claim = ["--expect-equal", "psi_account_irqtime.seqcount_writes"];
    let done = compare(RULES, &claim).ends_with(1);
    assert!(done.stdout.contains("FAIL  psi_account_irqtime.seqcount_writes"), "{}", done.stdout);
    assert_eq!(done.stderr, "");
    let args = ["--scenario", "steal-backward", "--expect-equal", "rq.*"];
    let done = compare(["model", "model"], &args).ends_with(0);
    for part in ["model#2", "FAIL 2", "fails clock_task_not_ahead", "pass  rq.*"] {
        assert!(done.stdout.contains(part), "{part:?} in {}", done.stdout);
    }
}

#[test]
fn the_page_of_two_subjects_is_one_screen() {
    let clocks =
        ["sched_clock_cpu", "rq_clock_task"].map(|c| format!("model:rate-limit-clock={c}"));
    let [a, b] = [clocks[0].as_str(), clocks[1].as_str()];
    for (subjects, scenario) in [([a, b], "default"), (RULES, "psi-zero-delta")] {
        let args = ["--scenario", scenario, "--expect-equal", "series.*", "--expect-equal=rq.*"];
        let page = compare(subjects, &args).stdout;
        assert!(page.lines().count() <= 40, "{page}");
        for line in page.lines() {
            assert!(line.chars().count() <= 100 && !line.ends_with(' '), "{line:?}");
        }
    }
}

#[test]
fn what_cannot_be_compared_is_refused_in_one_line() {
    for (args, why) in [
        (&["model"][..], "one subject has nothing to be compared with"),
        (&["model", ""], "names nothing"),
        (&["model", "modle"], "did you mean `model`?"),
        (&["model", "no/such/vmlinux"], "no/such/vmlinux"),
        (&["model", "model:psi-zero-delta=maybe"], "takes no \"maybe\""),
        (&["a=model", "a=firmware"], "two subjects are called a"),
        (&["model", "model", "--scenario", "defualt"], "did you mean `default`?"),
        (&["model", "model", "--set", "durations=1s"], "durations"),
        (&["model", "model", "--seed", "0..10000"], "10001 pairs of scenario and seed; at most"),
        (&["model", "model", "--expect-equal", " "], "names no key"),
        (&["model", "model", "--expect-equal", "acounted.irq_ns"], "near are accounted.irq_ns"),
        (&["model", "model", "--expect-equal", "series.psi.*"], "no result has this key"),
    ] {
        let args = ["compare"].iter().chain(args);
        rqscope(args).ends_with(2).says(why);
    }
    for args in [&["compare"][..], &["compare", "model", "model", "--samples", "1001"]] {
        rqscope(args).ends_with(2);
    }
}

#[test]
fn every_scenario_runs_under_every_seed_and_each_pair_is_kept() {
    let scratch = Scratch::new();
    let out = scratch.arg("out");
    let args = ["--scenario", "default", "--scenario", "idle", "--seed", "1..3", "--seed", "9"];
    let short = ["--set", "duration=20ms", "--expect-equal", "psi_groups.*", "--out", &out];
    let done = compare(RULES, &[&args[..], &short].concat()).ends_with(0);
    for part in ["8 pairs of scenario and seed", "different  schedule", "1 hold"] {
        assert!(done.stdout.contains(part), "{part:?} in {}", done.stdout);
    }
    let read = |name: &str| -> Value {
        let text =
            fs::read(scratch.path("out").join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        serde_json::from_slice(&text).unwrap()
    };
    let summary = read("summary.json");
    assert_eq!((number(&summary, "/planned"), number(&summary, "/done")), (8, 8));
    assert_eq!(summary["claims"][0]["holds"], true);
    assert_eq!(fs::read_dir(scratch.path("out")).unwrap().count(), 9);
    for cell in summary["cells"].as_array().unwrap() {
        let name = format!("{}-{}.json", text(cell, "/scenario"), number(cell, "/seed"));
        let mut kept = read(&name);
        assert!(kept["values"]["accounted.irq_ns"]["relation"] == "equal", "{kept:#}");
        for values in ["values", "series"] {
            kept.as_object_mut().unwrap().remove(values);
        }
        assert_eq!(kept, *cell);
        // Each run can be repeated by itself.
        let subject = &cell["subjects"][0];
        let words = text(subject, "/repeat").split(' ').skip(1).map(|word| word.trim_matches('\''));
        let again = rqscope(words.chain(["--format", "json"])).ends_with(0).json();
        assert_eq!(again["trace_sha256"], subject["trace_sha256"]);
    }
}

#[test]
fn ctrl_c_leaves_what_is_done() {
    let scratch = Scratch::new();
    let args = ["compare", "model", "model", "--scenario=idle", "--scenario=default"];
    let args = args.into_iter().chain(["--seed=1..4000", "--set=duration=400ms", "--out"]);
    let mut run = Running::start(command(args).arg(scratch.path("out")));
    let first = scratch.path("out/default-1.json");
    run.wait_until("a pair is kept", || first.exists());
    run.signal("INT");
    let done = run.wait().ends_with(130);
    assert!(done.stdout.contains("interrupted: "), "{}", done.stdout);
    let summary = fs::read(scratch.path("out/summary.json")).unwrap();
    let summary: Value = serde_json::from_slice(&summary).unwrap();
    assert_eq!(summary["interrupted"], true);
    let done = number(&summary, "/done");
    assert!(done > 0 && done < number(&summary, "/planned"), "{done}");
    let cells = summary["cells"].as_array().unwrap();
    assert_eq!(cells.len() as i64, done);
}
