//! The same scenario and seed: the same run, on any guest; and the JSON that says so.

use serde_json::Value;

use crate::host::virtual_machines;
use crate::program::{SHORT, number, rqscope, run_json, text};

/// Keys of the result that scripts may rely on.
const KEYS: [&str; 40] = [
    "/verdict",
    "/seed",
    "/time",
    "/guest/kind",
    "/host/kvm",
    "/elapsed_ns",
    "/rq/0/cpu",
    "/rq/0/clock_ns",
    "/rq/0/clock_task_ns",
    "/rq/0/clock_pelt_ns",
    "/rq/0/prev_irq_time_ns",
    "/rq/0/prev_steal_time_rq_ns",
    "/rq/0/psi_irq_time_ns",
    "/injected/irq_count",
    "/injected/irq_ns",
    "/injected/steal_ns",
    "/accounted/irq_ns",
    "/accounted/irq_pending_ns",
    "/accounted/steal_ns",
    "/accounted/steal_dropped_ns",
    "/psi_account_irqtime/total",
    "/psi_account_irqtime/ret_curr_swapper",
    "/psi_account_irqtime/ret_samegrp",
    "/psi_account_irqtime/reached_delta",
    "/psi_account_irqtime/delta_positive",
    "/psi_account_irqtime/delta_zero",
    "/psi_account_irqtime/delta_negative",
    "/update_tg_load_avg/clock",
    "/update_tg_load_avg/calls",
    "/update_tg_load_avg/rate_limited",
    "/update_tg_load_avg/published",
    "/update_tg_load_avg/clock_reads",
    "/update_tg_load_avg/staleness_max_ns",
    "/checks/0/name",
    "/checks/0/status",
    "/checks/0/evaluated",
    "/trace_sha256",
    "/trace_records",
    "/rate_limit_clocks/2/clock",
    "/rqscope_json",
];

/// All that passed is accounted for, as taken, carried, dropped or waiting.
#[track_caller]
pub fn the_books_balance(json: &Value) {
    let n = |pointer: &str| number(json, pointer);
    assert_eq!(n("/accounted/irq_ns") + n("/accounted/irq_pending_ns"), n("/injected/irq_ns"));
    assert_eq!(
        n("/accounted/steal_ns")
            + n("/accounted/steal_dropped_ns")
            + n("/accounted/steal_pending_ns"),
        n("/injected/steal_ns")
    );
    let parts = ["task", "hardirq", "softirq", "ksoftirqd", "steal", "idle"];
    let wall: i64 = parts.iter().map(|part| n(&format!("/wall_time/{part}_ns"))).sum();
    assert_eq!(wall, n("/elapsed_ns"));
    // d(clock) = d(clock_task) + irq + steal.
    assert_eq!(
        n("/rq/0/clock_ns"),
        n("/rq/0/clock_task_ns") + n("/accounted/irq_ns") + n("/accounted/steal_ns")
    );
}

/// The result of the default scenario, all clocks, 20 ms.
fn default_on(guest: &str) -> Value {
    run_json("default", guest, &["duration=20ms"], 0)
}

#[test]
fn the_default_scenario_leaves_the_same_trace_on_the_model_and_in_a_virtual_machine() {
    let Some(()) = virtual_machines() else { return };
    let (model, firmware) = (default_on("model"), default_on("firmware"));
    assert_eq!(model["trace_sha256"], firmware["trace_sha256"]);
    assert_eq!(text(&firmware, "/guest/kind"), "firmware");
    // All else that was measured is equal too.
    for key in ["rq", "injected", "accounted", "psi_account_irqtime", "rate_limit_clocks"] {
        assert_eq!(model[key], firmware[key], "{key}");
    }
}

#[test]
fn ten_runs_in_a_virtual_machine_have_one_hash_and_another_seed_another() {
    let Some(()) = virtual_machines() else { return };
    let hash = |seed: &str| {
        let sets = [SHORT[0], SHORT[1], seed];
        run_json("default", "firmware", &sets, 0)["trace_sha256"].clone()
    };
    let first = hash("seed=1");
    assert_eq!(first.as_str().map(str::len), Some(64));
    for _ in 1..10 {
        assert_eq!(hash("seed=1"), first);
    }
    assert_ne!(hash("seed=2"), first);
}

#[test]
fn two_runs_give_the_same_bytes_of_json_and_of_the_page() {
    for format in ["json", "page"] {
        let run = || {
            let args = ["run", "--guest=model", "--set=duration=50ms", "--format", format];
            rqscope(args).ends_with(0).stdout
        };
        assert_eq!(run(), run(), "{format}");
    }
}

#[test]
fn the_json_has_every_key_that_is_promised_and_its_books_balance() {
    let json = default_on("model");
    for key in KEYS {
        assert!(json.pointer(key).is_some_and(|v| !v.is_null()), "{key}");
    }
    assert_eq!(json["verdict"], "pass");
    assert_eq!(json["time"], "virtual");
    assert_eq!(json["stopped"], Value::Null);
    assert_eq!(json["elapsed_ns"], 20_000_000);
    the_books_balance(&json);
    for check in json["checks"].as_array().unwrap() {
        assert_ne!(check["status"], "fail", "{check}");
    }
    let clocks = json["rate_limit_clocks"].as_array().unwrap();
    let clocks: Vec<_> = clocks.iter().map(|c| text(c, "/clock")).collect();
    assert_eq!(clocks, ["rq_clock", "sched_clock_cpu", "rq_clock_task"]);
}

#[test]
fn the_command_of_the_report_repeats_the_run() {
    let sets = ["duration=30ms", "irq[0].rate=5kHz", "policy.compare=[]"];
    let first = run_json("default", "model", &sets, 0);
    let repeat = text(&first, "/repeat").strip_prefix("rqscope ").unwrap();
    // The words are quoted for a shell.
    let script = format!("exec \"$0\" {repeat} --format json");
    let again = std::process::Command::new("sh")
        .args(["-c", &script, crate::program::RQSCOPE])
        .output()
        .unwrap();
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(again["trace_sha256"], first["trace_sha256"]);
}

#[test]
fn the_default_scenario_is_a_storm_with_steal_over_nested_groups() {
    let json = run_json("default", "model", &[], 0);
    let n = |pointer: &str| number(&json, pointer);
    assert!(n("/injected/irq_count") >= 2000);
    // 25% but for the last quantum.
    let off = 4 * n("/injected/steal_wall_ns") - n("/elapsed_ns");
    assert!(off.abs() <= 4_000_000, "{off}");
    let groups = json["psi_groups"].as_array().unwrap();
    let paths: Vec<_> = groups.iter().map(|g| text(g, "/path")).collect();
    let holds = |path: &str| paths.iter().any(|p| p.starts_with(&format!("{path}/")));
    let leaves = paths.iter().filter(|path| **path != "/" && !holds(path)).count();
    assert!(leaves >= 8 && holds("/web"), "{paths:?}");
    the_books_balance(&json);
}
