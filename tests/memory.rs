//! Memory does not grow with the length of a run.

use std::fs;

use crate::program::{Running, command};

/// What two runs may differ by, KiB: the allocator's whim, not a byte an event.
const SLACK_KIB: u64 = 4096;

/// Most memory that a run of `duration` had, as last seen before its end, KiB, and its records.
fn peak_kib(duration: &str) -> (u64, u64) {
    let args = ["run", "idle", "--guest=model", "--format=json", "--set=policy.compare=[]"];
    let duration = format!("--set=duration={duration}");
    let mut run = Running::start(&mut command(args.into_iter().chain([&*duration])));
    let status = format!("/proc/{}/status", run.pid());
    let mut peak = 0;
    while !run.ended() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
        peak = peak.max(kib.unwrap_or(0));
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let json = run.wait().ends_with(0).json();
    (peak, json["trace_records"].as_u64().unwrap())
}

#[test]
fn a_run_a_hundred_times_as_long_needs_no_more_memory() {
    // An unoptimised program is a tenth as fast.
    let long = if cfg!(debug_assertions) { "1000s" } else { "10000s" };
    let (short_kib, short_records) = peak_kib("10s");
    let (long_kib, long_records) = peak_kib(long);
    assert!(long_records >= 100 * short_records - 1000, "{short_records} {long_records}");
    assert!(long_records >= 900_000);
    assert!(short_kib > 0 && long_kib > 0);
    assert!(long_kib <= short_kib + SLACK_KIB, "{short_kib} KiB, then {long_kib} KiB");
}
