//! What real kernels account against what was injected, and cases that people met in real systems.

use serde_json::Value;

use super::{NEWEST, checks_are, kernel, kernels};
use crate::program::{Scratch, number};
use crate::repeatability::the_books_balance;

/// A task that never sleeps.
const HOG: &str = "\
[tick]
cost = \"0\"
[[group]]
path = \"work\"
[[task]]
name = \"hog\"
group = \"work\"
burn = \"10ms\"
";

fn numbers<const N: usize>(json: &Value, pointers: [&str; N]) -> [i64; N] {
    pointers.map(|pointer| number(json, pointer))
}

const CLOCKS: [&str; 3] = ["/rq/0/clock_ns", "/rq/0/clock_task_ns", "/rq/0/prev_steal_time_rq_ns"];

#[test]
fn irq_and_steal_time_of_every_kernel_are_the_ledgers_to_the_nanosecond() {
    for linux in kernels() {
        let json = linux.json("default", &["duration=100ms"], 0);
        the_books_balance(&json);
        checks_are(&json, "pass", &["irq_accounted", "steal_accounted", "conservation"]);
        let accounted =
            ["irq_ns", "steal_ns"].map(|key| number(&json["accounted"], &format!("/{key}")));
        assert!(accounted.iter().all(|ns| *ns > 5_000_000), "{accounted:?}");
        let [irq, steal] = accounted;
        assert_eq!(irq, number(&json, "/rq/0/prev_irq_time_ns"), "{}", linux.version());
        let taken = steal + number(&json, "/accounted/steal_dropped_ns");
        assert_eq!(taken, number(&json, "/rq/0/prev_steal_time_rq_ns"), "{}", linux.version());
    }
}

#[test]
fn a_busy_task_under_half_steal_gains_exactly_half_of_wall_time() {
    // gopsutil#1978. The guest's ticks come at times of its own, so its last look at the clock does.
    for linux in kernels() {
        let json = linux.json("busy-half-steal", &["duration=200ms"], 0);
        the_books_balance(&json);
        assert_eq!(number(&json, "/wall_time/task_ns"), 100_000_000);
        assert_eq!(number(&json, "/injected/steal_ns"), 100_000_000);
        assert_eq!(number(&json, "/accounted/steal_dropped_ns"), 0);
        let [clock, clock_task, prev_steal] = numbers(&json, CLOCKS);
        assert_eq!(clock, clock_task + prev_steal);
        // Slices of 1 ms, one every 2 ms.
        let off = 2 * clock_task - clock;
        assert!(off.abs() <= 1_000_000, "{clock} {clock_task}");
        assert!(clock > 190_000_000, "{clock}");
    }
}

#[test]
fn interrupts_steal_and_sleep_add_up_to_wall_time() {
    // LKML, December 2024: IRQ time that was read as sleep.
    let Some(linux) = kernel(NEWEST) else { return };
    let mixed = HOG.replace("burn = \"10ms\"", "burn = \"1ms\"\nsleep = \"1ms\"");
    let mixed = format!(
        "{mixed}[[irq]]\nname = \"nic\"\nrate = \"3kHz\"\ncost = \"100us\"\nsoftirq = 0.5\n\
         [[steal]]\nfraction = 0.1\nquantum = \"1ms\"\n"
    );
    let scratch = Scratch::new();
    let json = linux.json(&scratch.file("mixed.toml", mixed), &["duration=100ms"], 0);
    the_books_balance(&json);
    assert_eq!(number(&json, "/wall_time/steal_ns"), 10_000_000);
    for key in ["task", "hardirq", "softirq", "idle"] {
        assert!(number(&json, &format!("/wall_time/{key}_ns")) > 5_000_000, "{key}");
    }
}

#[test]
fn steal_that_jumps_stops_clock_task_for_one_update_and_the_rest_is_dropped() {
    // psutil#1210.
    let Some(linux) = kernel(NEWEST) else { return };
    let scratch = Scratch::new();
    let jump = format!("{HOG}[[steal]]\nat = \"10500us\"\ncounter = \"{}ns\"\n", 1u64 << 40);
    let json = linux.json(&scratch.file("jump.toml", jump), &["duration=30ms"], 0);
    the_books_balance(&json);
    let [clock, clock_task, prev_steal] = numbers(&json, CLOCKS);
    let stopped = clock - clock_task;
    assert_eq!(prev_steal, 1 << 40);
    assert_eq!(number(&json, "/accounted/steal_dropped_count"), 1);
    assert_eq!(number(&json, "/accounted/steal_dropped_ns"), (1 << 40) - stopped);
    assert_eq!(number(&json, "/accounted/clock_task_stopped_max_ns"), stopped);
    // A tick at 250 Hz, which a timer counts that is a little slow.
    assert!(stopped > 0 && stopped <= 4_001_000, "{stopped}");
}

#[test]
fn one_step_back_of_a_second_puts_clock_task_a_second_ahead() {
    // telegraf#2871.
    let Some(linux) = kernel(NEWEST) else { return };
    let scratch = Scratch::new();
    let step = format!("{HOG}[[steal]]\nat = \"20ms\"\ncounter = \"-1s\"\n");
    let json = linux.json(&scratch.file("step.toml", step), &["duration=40ms"], 1);
    the_books_balance(&json);
    let failed = ["clock_task_not_ahead", "avg_irq_within_time_taken"];
    assert_eq!(crate::program::failed_checks(&json), failed);
    let [clock, clock_task, prev_steal] = numbers(&json, CLOCKS);
    assert_eq!((clock_task - clock, prev_steal), (1_000_000_000, -1_000_000_000));
}
