//! The built-in scenarios: the verdict that each promises, on both guests.

use rqscope::scenario::BUILTIN;

use crate::host::virtual_machines;
use crate::program::{Scratch, failed_checks, number, rqscope, run_json, text};
use crate::repeatability::the_books_balance;

/// The exit code of a built-in scenario, its verdict, and the checks that fail in it as Linux fails them.
pub fn promised(name: &str) -> (i32, &'static str, &'static [&'static str]) {
    let failed: &[&str] = match name {
        "steal-backward" => &["clock_task_not_ahead", "avg_irq_within_time_taken"],
        "steal-in-irq" => &["steal_in_irq_once"],
        "steal-over" | "steal-jump" | "steal-after-irq" => &["steal_not_dropped"],
        "softirq-update" => &["irq_taken_at_once"],
        "irq-across-idle" => &["idle_keeps_its_time"],
        _ => return (0, "pass", &[]),
    };
    (1, "fail", failed)
}

#[test]
fn every_built_in_scenario_has_its_verdict_and_balanced_books() {
    for b in BUILTIN {
        let (code, verdict, failed) = promised(b.name);
        let json = run_json(b.name, "model", &[], code);
        assert_eq!(text(&json, "/verdict"), verdict, "{}", b.name);
        assert_eq!(failed_checks(&json), failed, "{}", b.name);
        the_books_balance(&json);
    }
}

#[test]
fn shortened_scenarios_run_in_a_virtual_machine_as_on_the_model() {
    let Some(()) = virtual_machines() else { return };
    for (name, duration) in [
        ("irq-storm", "10ms"),
        ("steal-storm", "30ms"),
        ("steal-over", "30ms"),
        ("steal-in-irq", "20ms"),
        ("steal-after-irq", "30ms"),
        ("steal-idle", "30ms"),
        ("softirq-update", "30ms"),
        ("irq-across-idle", "30ms"),
        ("clock-task-exact", "30ms"),
        ("psi-zero-delta", "10ms"),
        ("fork-storm", "10ms"),
        ("busy-half-steal", "200ms"),
        ("steal-backward", "2600ms"),
        ("mutants", "15ms"),
    ] {
        let code = promised(name).0;
        // A CPU that goes offline must do so within the run.
        let duration = format!("duration={duration}");
        let mut sets = vec![duration.as_str(), "policy.compare=[]"];
        if name == "mutants" {
            sets.push("cpu.offline_at=14ms");
        }
        let firmware = run_json(name, "firmware", &sets, code);
        let model = run_json(name, "model", &sets, code);
        assert_eq!(firmware["trace_sha256"], model["trace_sha256"], "{name}");
        assert_eq!(firmware["checks"], model["checks"], "{name}");
    }
}

#[test]
fn the_list_names_every_scenario_and_prints_each_as_a_file_that_runs_alike() {
    let list = rqscope(["scenarios"]).ends_with(0).stdout;
    assert_eq!(list.lines().count(), BUILTIN.len());
    for b in BUILTIN {
        assert!(list.lines().any(|l| l.starts_with(b.name) && l.ends_with(b.summary)), "{list}");
        assert_eq!(rqscope(["scenarios", b.name]).ends_with(0).stdout, b.text);
    }
    let scratch = crate::program::Scratch::new();
    let file = scratch.file("mine.toml", rqscope(["scenarios", "fork-storm"]).stdout);
    assert_eq!(
        run_json(&file, "model", &[], 0)["trace_sha256"],
        run_json("fork-storm", "model", &[], 0)["trace_sha256"]
    );
}

#[test]
fn the_list_of_checks_has_the_names_that_the_result_has() {
    let list = rqscope(["checks"]).ends_with(0).stdout;
    let json = run_json("idle", "model", &["duration=10ms"], 0);
    let names: Vec<_> =
        json["checks"].as_array().unwrap().iter().map(|c| text(c, "/name")).collect();
    let listed: Vec<_> = list.lines().filter_map(|l| l.split_whitespace().next()).collect();
    assert_eq!(listed, names);
}

#[test]
fn a_guest_with_4_096_leaf_groups_leaves_the_model_s_trace_and_the_model_walks_them_all() {
    let scratch = Scratch::new();
    let group = "[[group]]\npath = 'g'\ncount = 4096\n";
    let one = "[[task]]\nname = 't'\ngroup = 'g.4095'\nburn = '300us'\nsleep = '1ms'\n";
    let file = scratch.file("one.toml", format!("{group}{one}"));
    let sets = ["duration=6ms", "tick.rate=1kHz", "policy.compare=[]"];
    let model = run_json(&file, "model", &sets, 0);
    assert_eq!(model["update_tg_load_avg"]["groups"].as_array().unwrap().len(), 4096);
    if virtual_machines().is_some() {
        let firmware = run_json(&file, "firmware", &sets, 0);
        assert_eq!(firmware["trace_sha256"], model["trace_sha256"]);
    }

    let each = "[[task]]\nname = 't'\ngroup = 'g'\nburn = '1s'\ncount = 4096\n";
    let irq = "[[irq]]\nname = 'nic'\nrate = '1kHz'\ncost = '1us'\nbalance = true\n";
    let file = scratch.file("each.toml", format!("{group}{each}{irq}"));
    let json = run_json(&file, "model", &["duration=4ms", "policy.compare=[]"], 0);
    // Each group's task is enqueued, and then there is a call at each millisecond but 0.
    assert!(number(&json, "/update_tg_load_avg/calls") >= 3 * 4096);
    assert_eq!(number(&json, "/update_tg_load_avg/published") % 4096, 0);
}
