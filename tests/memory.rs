//! Memory does not grow with the length of a run.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::program::{Running, Scratch, command};

/// What two runs may differ by, KiB: the kernel's bookkeeping and the allocator's whim.
const SLACK_KIB: u64 = 512;

/// Most memory that a run of the default scenario had, KiB, and its records.
///
/// Not what wait4(2) says of a child: that counts the memory that this process had when it started
/// the child. The run is looked at when it is over and waits for a reader of its result.
fn peak_kib(duration: &str, more: &[&str]) -> (u64, u64) {
    let (mut result, mut reader) = UnixStream::pair().unwrap();
    result.set_nonblocking(true).unwrap();
    // Spaces before a JSON object mean nothing.
    while result.write(&[b' '; 1024]).is_ok() {}
    result.set_nonblocking(false).unwrap();
    let duration = format!("--set=duration={duration}");
    let args = ["run", "default", "--guest=model", "--format=json", &duration];
    let mut command = command(args.iter().chain(more));
    let mut run = Running::start_into(&mut command, OwnedFd::from(result));
    // The command keeps an end of its own.
    drop(command);

    let process = format!("/proc/{}", run.pid());
    run.wait_until("the run is over and signals have a thread of their own", || {
        let threads = fs::read_dir(format!("{process}/task")).into_iter().flatten().flatten();
        let mut names = threads.map(|t| fs::read_to_string(t.path().join("comm")));
        names.any(|name| name.is_ok_and(|name| name == "signals\n"))
    });
    let status = fs::read_to_string(format!("{process}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap();

    let mut json = String::new();
    reader.read_to_string(&mut json).unwrap();
    run.wait().ends_with(0);
    let json: Value = serde_json::from_str(&json).unwrap();
    (kib, json["trace_records"].as_u64().unwrap())
}

/// A byte more for each record of the longer run would be seen.
fn needs_no_more((short_kib, short): (u64, u64), (long_kib, long): (u64, u64)) {
    assert!((long - short) / 1024 > SLACK_KIB, "{short} records, then {long}");
    assert!(long_kib <= short_kib + SLACK_KIB, "{short_kib} KiB, then {long_kib} KiB");
}

#[test]
fn a_run_many_times_as_long_needs_no_more_memory() {
    needs_no_more(peak_kib("500ms", &[]), peak_kib("20s", &[]));
}

#[test]
fn a_trace_many_times_as_long_needs_no_more_memory_to_be_written() {
    let scratch = Scratch::new();
    let (short, long) = (scratch.arg("short"), scratch.arg("long"));
    needs_no_more(peak_kib("500ms", &["--out", &short]), peak_kib("10s", &["--out", &long]));
}
