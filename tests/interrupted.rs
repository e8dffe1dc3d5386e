//! Ctrl-C in the middle of a run.

use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::host::virtual_machines;
use crate::program::{Running, Scratch, command, command_after, number};
use crate::repeatability::the_books_balance;

/// Starts a run of an hour of guest time on `guest`, interrupts it with `signal` once there is some
/// trace, and looks at what it leaves.
fn interrupt(guest: &str, signal: &str) {
    let scratch = Scratch::new();
    let out = scratch.arg("out");
    let args = ["run", "idle", "--guest", guest, "--set=duration=3600s", "--set=tick.rate=1kHz"];
    let mut run = Running::start(&mut command(args.into_iter().chain(["--out", &out])));
    let trace = scratch.path("out/trace.jsonl");
    run.wait_until("the trace has something", || {
        fs::metadata(&trace).is_ok_and(|file| file.len() > 0)
    });
    run.signal(signal);
    let done = run.wait().ends_with(130);
    assert_eq!(done.stderr, "");
    for part in ["rqscope idle", "INCOMPLETE", "Run queue clocks", "repeat"] {
        assert!(done.stdout.contains(part), "{part:?} in {}", done.stdout);
    }

    let read = |name| fs::read_to_string(scratch.path("out").join(name)).unwrap();
    assert_eq!(read("report.txt"), done.stdout);
    let result: Value = serde_json::from_str(&read("result.json")).unwrap();
    assert_eq!(result["verdict"], "incomplete");
    assert_eq!(result["stopped_by"], "user");
    the_books_balance(&result);
    let elapsed = number(&result, "/elapsed_ns");
    assert!(elapsed > 0 && elapsed < 3_600_000_000_000, "{elapsed}");
    let mut records = 0;
    for line in read("trace.jsonl").lines() {
        serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        records += 1;
    }
    assert_eq!(records, number(&result, "/trace_records"));
}

#[test]
fn ctrl_c_in_a_run_on_the_model_keeps_report_result_and_trace() {
    interrupt("model", "INT");
}

#[test]
fn sigterm_does_as_ctrl_c_does() {
    interrupt("model", "TERM");
}

#[test]
fn ctrl_c_in_a_run_in_a_virtual_machine_keeps_report_result_and_trace() {
    let Some(()) = virtual_machines() else { return };
    interrupt("firmware", "INT");
}

#[test]
fn ctrl_c_ends_a_program_whose_reader_takes_nothing() {
    let scratch = Scratch::new();
    let out = scratch.arg("out");
    let (mut blocked, _reader) = UnixStream::pair().unwrap();
    blocked.set_nonblocking(true).unwrap();
    while blocked.write(&[b'x'; 1024]).is_ok() {}
    blocked.set_nonblocking(false).unwrap();
    let mut run = command(["run", "idle", "--guest=model", "--set=duration=10ms", "--out", &out]);
    let mut run = Running::start_into(&mut run, OwnedFd::from(blocked));
    // Printing comes after that.
    run.wait_until("the result is kept", || {
        let result = fs::read(scratch.path("out/result.json")).unwrap_or_default();
        serde_json::from_slice(&result).is_ok_and(|r: Value| r["trace_sha256"] != "")
    });
    run.signal("INT");
    run.wait().ends_with(130);
}

#[test]
fn ctrl_c_in_the_mutants_ends_them_after_those_that_ran() {
    let Some(()) = virtual_machines() else { return };
    let scratch = Scratch::new();
    let script = format!("exec \"$0\" \"$@\" >'{}'", scratch.arg("seen"));
    let shell = ["sh", "-c", &script].map(str::to_owned);
    let mut hunt = Running::start(&mut command_after(&shell, ["mutants", "--guest=firmware"]));
    let seen = || fs::read_to_string(scratch.path("seen")).unwrap_or_default();
    hunt.wait_until("a mutant is killed", || seen().contains("killed by"));
    hunt.signal("INT");
    hunt.wait().ends_with(130);
    assert!(!seen().contains(" survive"), "{}", seen());
}
