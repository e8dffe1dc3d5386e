//! `--probe`: functions of the user's choice.

use std::fs;

use serde_json::Value;

use super::{NEWEST, kernel};
use crate::program::Scratch;

#[test]
fn a_function_of_the_users_leaves_a_record_of_each_call() {
    let Some(linux) = kernel(NEWEST) else { return };
    let scratch = Scratch::new();
    let out = scratch.arg("out");
    let args = [
        "--set=duration=20ms",
        "--probe=enqueue_task_fair:rq,p,flags",
        "--probe=update_curr",
        "--out",
        &out,
    ];
    linux.run("default", &args).ends_with(0);
    let trace = fs::read_to_string(scratch.path("out/trace.jsonl")).unwrap();
    let records: Vec<Value> = trace.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let hits: Vec<&Value> = records.iter().filter(|r| r["ev"] == "probe").collect();
    for probe in [0, 1] {
        assert!(hits.iter().filter(|r| r["probe"] == probe).count() > 10, "probe {probe}");
    }
    // Pointers into the kernel's half of the address space, and the run queue at that instant.
    for hit in hits {
        assert!(hit["rdi"].as_u64().unwrap() >> 63 == 1, "{hit}");
        assert!(hit["clock_ns"].as_u64().is_some(), "{hit}");
    }
}

#[test]
fn a_probe_costs_the_guest_no_time() {
    let Some(linux) = kernel(NEWEST) else { return };
    let run = |args: &[&str]| {
        let args: Vec<&str> =
            ["--set=duration=20ms", "--format=json"].iter().chain(args).copied().collect();
        linux.run("default", &args).ends_with(0).json()
    };
    let (without, with) = (run(&[]), run(&["--probe", "update_curr"]));
    for key in ["rq", "wall_time", "injected", "accounted", "psi_groups"] {
        assert_eq!(without[key], with[key], "{key}");
    }
}

#[test]
fn functions_that_cannot_be_probed_are_refused_by_why() {
    let Some(linux) = kernel(NEWEST) else { return };
    for (probe, why) in [
        ("no_such_function", "no_such_function"),
        ("update_rq_clock", "it is probed in every run"),
        // Data is no function.
        ("runqueues", "runqueues"),
        // The first instruction is the function's own: the kernel traces no inline functions.
        ("enqueue_load_avg:cfs_rq", "is not a known no-op"),
    ] {
        let done = linux.run("idle", &["--set=duration=10ms", "--probe", probe]).ends_with(2);
        done.says(why).in_one_line();
    }
}
