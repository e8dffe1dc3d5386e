//! Ctrl-C while a kernel boots and while it runs.

use std::fs;

use serde_json::Value;

use super::{NEWEST, kernel};
use crate::program::{Running, Scratch, command_after, number};
use crate::repeatability::the_books_balance;

#[test]
fn ctrl_c_in_a_run_keeps_report_result_and_trace() {
    let Some(linux) = kernel(NEWEST) else { return };
    let scratch = Scratch::new();
    let out = scratch.arg("out");
    let mut run =
        Running::start(&mut linux.command("idle", &["--set=duration=3600s", "--out", &out]));
    let trace = scratch.path("out/trace.jsonl");
    run.wait_until("the trace has something", || fs::metadata(&trace).is_ok_and(|f| f.len() > 0));
    run.signal("INT");
    let done = run.wait().ends_with(130);
    let read = |name| fs::read_to_string(scratch.path("out").join(name)).unwrap();
    assert_eq!(read("report.txt"), done.stdout);
    let result: Value = serde_json::from_str(&read("result.json")).unwrap();
    assert_eq!(result["verdict"], "incomplete");
    assert_eq!(result["stopped_by"], "user");
    the_books_balance(&result);
    let trace = read("trace.jsonl");
    for line in trace.lines() {
        serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    }
    assert_eq!(trace.lines().count() as i64, number(&result, "/trace_records"));
}

#[test]
fn ctrl_c_while_the_guest_boots_ends_it_and_says_that_nothing_ran() {
    let Some(linux) = kernel(NEWEST) else { return };
    let scratch = Scratch::new();
    let (out, vmlinux) = (scratch.arg("out"), linux.file("vmlinux"));
    let script = format!("exec \"$0\" \"$@\" 2>'{}'", scratch.arg("console"));
    let shell = ["sh", "-c", &script].map(str::to_owned);
    let args = ["run", "idle", "--no-snapshot", "--console", "--kernel", &vmlinux, "--out", &out];
    let mut run = Running::start(&mut command_after(&shell, args));
    let console = || fs::read_to_string(scratch.path("console")).unwrap_or_default();
    run.wait_until("the kernel says who it is", || console().contains("Linux version"));
    run.signal("INT");
    let done = run.wait().ends_with(130);
    assert!(done.stdout.contains("INCOMPLETE"), "{}", done.stdout);
    let result = fs::read_to_string(scratch.path("out/result.json")).unwrap();
    let result: Value = serde_json::from_str(&result).unwrap();
    assert_eq!(result["verdict"], "incomplete");
    assert!(result["accounted"].is_null(), "{result:#}");
}
