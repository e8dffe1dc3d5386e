//! The ways to boot a kernel: what is read of the guest is the same.

use serde_json::Value;

use super::{NEWEST, boot_json_on, kernel};
use crate::program::{RQSCOPE, text};
use crate::repeatability::the_books_balance;

/// What was measured, apart from who was measured.
const MEASURED: [&str; 8] = [
    "verdict",
    "elapsed_ns",
    "rq",
    "wall_time",
    "injected",
    "accounted",
    "psi_account_irqtime",
    "psi_groups",
];

/// A run of which nothing depends on when in its period the guest's tick comes.
const ARGS: [&str; 2] = ["--set=duration=20ms", "--set=tick.cost=0"];

#[track_caller]
fn measured_alike(one: &Value, other: &Value) {
    for key in MEASURED {
        assert_eq!(one[key], other[key], "{key}");
    }
}

#[test]
fn a_bzimage_wherever_it_puts_itself_reads_as_its_vmlinux_does() {
    let Some(linux) = kernel(NEWEST) else { return };
    let on = |file: &str, more: &[&str]| {
        let json = boot_json_on(file, "default", &[&ARGS, more].concat());
        the_books_balance(&json);
        json
    };
    let [vmlinux, bzimage, map] = ["vmlinux", "bzImage", "System.map"].map(|name| linux.file(name));
    let plain = on(&vmlinux, &[]);
    measured_alike(&plain, &on(&bzimage, &["--symbols", &map, "--cmdline", "nokaslr"]));
    for symbols in [&map, &vmlinux] {
        measured_alike(&plain, &on(&bzimage, &["--symbols", symbols]));
    }
}

#[test]
fn the_command_of_the_report_repeats_the_run() {
    let Some(linux) = kernel(NEWEST) else { return };
    let first = linux.json("default", &["duration=20ms"], 0);
    let repeat = text(&first, "/repeat").strip_prefix("rqscope ").unwrap();
    let script = format!("exec \"$0\" {repeat} --format json");
    let mut again = std::process::Command::new("sh");
    again.args(["-c", &script, RQSCOPE]);
    again.env("RQSCOPE_CACHE", &*super::CACHE);
    let again: Value = serde_json::from_slice(&again.output().unwrap().stdout).unwrap();
    assert_eq!(again["trace_sha256"], first["trace_sha256"]);
}
