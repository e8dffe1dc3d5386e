//! `--out DIR`.

use std::fs;

use serde_json::Value;

use crate::host::behind;
use crate::program::{Running, Scratch, command_after, number, rqscope, text};

#[test]
fn the_output_directory_holds_scenario_trace_result_and_report() {
    let scratch = Scratch::new();
    let out = scratch.arg("new/out");
    let args = ["run", "mutants", "--guest=model", "--set=duration=30ms", "--seed=9"];
    let args = args.into_iter().chain(["--set=cpu.offline_at=25ms", "--out", &out]);
    let page = rqscope(args).ends_with(0).stdout;
    let read = |name| fs::read_to_string(scratch.path("new/out").join(name)).unwrap();
    let mut names: Vec<_> = fs::read_dir(scratch.path("new/out"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["report.txt", "result.json", "scenario.toml", "trace.jsonl"]);

    assert_eq!(read("report.txt"), page);
    let result: Value = serde_json::from_str(&read("result.json")).unwrap();
    assert_eq!(result["verdict"], "pass");
    assert_eq!(result["scenario"], read("scenario.toml"));

    // The scenario as run loads again and reproduces the run, without overrides.
    let kept = scratch.arg("new/out/scenario.toml");
    let again = rqscope(["run", &kept, "--guest=model", "--format=json"]).ends_with(0).json();
    assert_eq!(again["trace_sha256"], result["trace_sha256"]);
    assert_eq!(again["seed"], 9);

    // The trace: JSON Lines, in the order of time, as many as the result says.
    let trace = read("trace.jsonl");
    let mut last_ns = 0;
    let mut irqs = 0;
    for line in trace.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        let at_ns = record["at_ns"].as_u64().unwrap();
        assert!(at_ns >= last_ns, "{line}");
        last_ns = at_ns;
        irqs += i64::from(text(&record, "/ev") == "irq");
    }
    assert_eq!(trace.lines().count() as i64, number(&result, "/trace_records"));
    assert!(irqs >= number(&result, "/injected/irq_count"));
}

#[test]
fn a_result_does_not_depend_on_where_it_is_kept() {
    let scratch = Scratch::new();
    let out = scratch.arg("out");
    let plain = ["run", "idle", "--guest=model", "--set=duration=50ms", "--format=json"];
    let kept = rqscope(plain.into_iter().chain(["--out", &out])).ends_with(0);
    assert_eq!(kept.stdout, rqscope(plain).stdout);
    let file = fs::read_to_string(scratch.path("out/result.json")).unwrap();
    assert_eq!(kept.json(), serde_json::from_str::<Value>(&file).unwrap());
}

#[test]
fn an_output_directory_that_cannot_be_used_is_refused_before_the_run() {
    let scratch = Scratch::new();
    let full = scratch.file("file", "precious");
    let run = |out: &str| {
        rqscope(["run", "idle", "--guest=model", "--out", out]).ends_with(2).in_one_line()
    };
    run(&scratch.arg("")).says("not empty; name a new directory or empty this one");
    run(&full).says(&format!("--out {full}: is not a directory"));
    run(&scratch.arg("file/below")).says("--out: make directory").says("Not a directory");
    run("/proc/rqscope").says("--out: make directory /proc/rqscope");
    assert_eq!(fs::read_to_string(full).unwrap(), "precious");
}

#[test]
fn a_full_disk_ends_the_run_but_the_report_is_printed() {
    let scratch = Scratch::new();
    let disk = scratch.arg("");
    let Some(small) = behind(&format!("mount -t tmpfs -o size=256k none '{disk}'")) else { return };
    let args = ["run", "default", "--guest=model", "--set=duration=3600s", "--out"];
    let mut command = command_after(&small, args);
    let done = Running::start(command.arg(scratch.path("out"))).wait().ends_with(3).in_one_line();
    let done = done.says("--out: write").says("No space left on device");
    for part in ["INCOMPLETE", "the trace cannot be written"] {
        assert!(done.stdout.contains(part), "{part:?} in {}", done.stdout);
    }
}
