//! The built-in scenarios on real kernels: the verdict that each promises.

use rqscope::scenario::BUILTIN;

use super::{NEWEST, checks_are, kernel, kernels};
use crate::program::{failed_checks, number, text};
use crate::repeatability::the_books_balance;
use crate::scenarios::promised;

/// What shortens a built-in scenario and leaves it its point.
fn shortened(name: &str) -> &'static [&'static str] {
    match name {
        "default" => &["duration=40ms"],
        "irq-storm" => &["duration=15ms"],
        "steal-storm" => &["duration=40ms"],
        "rate-limit" => &["duration=20ms"],
        "load-grid" => &["duration=20ms"],
        "psi-zero-delta" => &["duration=20ms"],
        "steal-backward" => &["duration=150ms", "steal[2].at=100ms"],
        "steal-jump" => &["duration=60ms", "steal[0].at=31ms"],
        "steal-over" | "steal-in-irq" | "steal-after-irq" | "steal-idle" => &["duration=30ms"],
        "softirq-update" | "irq-across-idle" | "clock-task-exact" => &["duration=30ms"],
        "busy-half-steal" => &["duration=60ms"],
        "ksoftirqd" => &["duration=50ms", "irq.nic.from=10ms", "irq.nic.until=35ms"],
        "fork-storm" => &["duration=20ms"],
        // The only CPU cannot go offline.
        "mutants" => &["duration=30ms", "cpu.offline_at=30ms"],
        "conformance" => &["duration=140ms"],
        "idle" => &["duration=200ms"],
        other => panic!("{other} needs a length"),
    }
}

#[test]
fn every_built_in_scenario_runs_to_its_end_with_its_verdict() {
    let Some(linux) = kernel(NEWEST) else { return };
    for b in BUILTIN {
        let (code, verdict, failed) = promised(b.name);
        let json = linux.json(b.name, shortened(b.name), code);
        assert_eq!(failed_checks(&json), failed, "{}", b.name);
        assert_eq!(text(&json, "/verdict"), verdict, "{}", b.name);
        assert_eq!(json["stopped"], serde_json::Value::Null, "{}", b.name);
        the_books_balance(&json);
    }
}

#[test]
fn the_same_checks_hold_on_every_kernel() {
    for linux in kernels() {
        for name in ["default", "psi-zero-delta"] {
            let json = linux.json(name, shortened(name), 0);
            assert_eq!(text(&json, "/guest/kind"), "linux");
            the_books_balance(&json);
            let held = [
                "clock_matches_host",
                "conservation",
                "clock_task_monotonic",
                "clock_task_not_ahead",
                "clock_pelt_follows_clock_task",
                "irq_accounted",
                "irq_carried_over",
                "tg_load_avg_sum",
                "psi_zero_delta",
                "psi_writes",
                "psi_irq_ledger",
                "psi_delta_not_negative",
                "softirq_work_done",
                "interrupts_handled",
                "ledger_adds_up",
            ];
            checks_are(&json, "pass", &held);
            checks_are(
                &json,
                "not-built-in",
                &["costs_match_calls", "tg_load_avg_offline_cleared"],
            );
        }
    }
}

#[test]
fn a_load_that_makes_ksoftirqd_run_is_charged_to_it_and_not_to_irq_time() {
    let Some(linux) = kernel(NEWEST) else { return };
    let json = linux.json("ksoftirqd", shortened("ksoftirqd"), 0);
    assert!(number(&json, "/wall_time/ksoftirqd_ns") > 1_000_000, "{json:#}");
    assert!(number(&json, "/wall_time/softirq_ns") > 0, "{json:#}");
    the_books_balance(&json);
}

#[test]
fn a_cpu_that_is_to_go_offline_is_refused_before_anything_boots() {
    let Some(linux) = kernel(NEWEST) else { return };
    let done = linux.run("mutants", &[]).ends_with(2).in_one_line();
    done.says("cpu.offline_at: a Linux guest has one CPU");
}
