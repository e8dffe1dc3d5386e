//! Cases that people met in real systems, with exact numbers, each on a workload small enough to work
//! them out by hand.

use serde_json::Value;

use crate::host::virtual_machines;
use crate::program::{Scratch, failed_checks, number, run_json, text};
use crate::repeatability::the_books_balance;

/// One task that never sleeps, under a tick that costs nothing: all that is taken from it is steal.
const HOG: &str = "\
[tick]
rate = \"1kHz\"
cost = \"0\"
[policy]
compare = []
[[task]]
name = \"hog\"
burn = \"10ms\"
";

/// Runs a scenario text; its books balance whatever happens.
fn run_on(guest: &str, scenario: &str, sets: &[&str], code: i32) -> Value {
    let scratch = Scratch::new();
    let file = scratch.file("case.toml", scenario);
    let json = run_json(&file, guest, sets, code);
    the_books_balance(&json);
    json
}

fn run(scenario: &str, sets: &[&str], code: i32) -> Value {
    run_on("model", scenario, sets, code)
}

/// The numbers at these places.
fn numbers<const N: usize>(json: &Value, pointers: [&str; N]) -> [i64; N] {
    pointers.map(|pointer| number(json, pointer))
}

const CLOCKS: [&str; 3] = ["/rq/0/clock_ns", "/rq/0/clock_task_ns", "/rq/0/prev_steal_time_rq_ns"];

#[test]
fn a_steal_counter_that_falls_every_second_never_wraps_and_the_verdict_names_it() {
    // node_exporter#742: 2 s stolen of 4 s; the counter falls by 300 ms four times, by 1 s once.
    let json = run_json("steal-backward", "model", &[], 1);
    assert_eq!(failed_checks(&json), ["clock_task_not_ahead", "avg_irq_within_time_taken"]);
    let injected = ["steal_ns", "steal_wall_ns", "steal_backward_count", "steal_backward_ns"];
    let injected = injected.map(|key| number(&json["injected"], &format!("/{key}")));
    assert_eq!(injected, [-200_000_000, 2_000_000_000, 5, 2_200_000_000]);
    let [clock, clock_task, prev_steal] = numbers(&json, CLOCKS);
    assert_eq!(prev_steal, -200_000_000);
    assert_eq!(clock_task - clock, 200_000_000 - number(&json, "/accounted/irq_ns"));
    let note = text(&json, "/notes/0");
    assert!(note.contains("steal counter fell 5 times") && note.contains("ahead"), "{note}");
    let detail =
        &json["checks"].as_array().unwrap().iter().find(|c| c["status"] == "fail").unwrap();
    assert!(
        text(detail, "/detail").contains("since the last update the steal counter fell by "),
        "{detail}"
    );
}

#[test]
fn one_step_back_of_a_second_puts_clock_task_a_second_ahead() {
    // telegraf#2871.
    let step = format!("{HOG}[[steal]]\nat = \"500ms\"\ncounter = \"-1s\"\n");
    for guest in ["model", "firmware"] {
        if guest == "firmware" && virtual_machines().is_none() {
            return;
        }
        let json = run_on(guest, &step, &["duration=600ms", "tick.rate=100Hz"], 1);
        assert_eq!(failed_checks(&json), ["clock_task_not_ahead", "avg_irq_within_time_taken"]);
        let [clock, clock_task, prev_steal] = numbers(&json, CLOCKS);
        assert_eq!((clock_task - clock, prev_steal), (1_000_000_000, -1_000_000_000), "{guest}");
        assert_eq!(number(&json, "/accounted/clock_task_ahead_max_ns"), 1_000_000_000);
        assert_eq!(number(&json, "/accounted/steal_dropped_ns"), 0);
    }
}

#[test]
fn a_steal_counter_that_jumps_stops_clock_task_for_one_update_and_the_rest_is_dropped() {
    // psutil#1210: a jump by 2^40 ns between two ticks 1 ms apart.
    let jump = format!("{HOG}[[steal]]\nat = \"10500us\"\ncounter = \"{}ns\"\n", 1u64 << 40);
    let json = run(&jump, &["duration=20ms"], 0);
    let [clock, clock_task, prev_steal] = numbers(&json, CLOCKS);
    assert_eq!(prev_steal, 1 << 40);
    assert_eq!(clock - clock_task, 1_000_000, "clock_task stands still for one tick");
    let accounted = ["steal_ns", "steal_dropped_ns", "steal_dropped_count"];
    let accounted = accounted.map(|key| number(&json["accounted"], &format!("/{key}")));
    assert_eq!(accounted, [1_000_000, (1 << 40) - 1_000_000, 1]);
    assert_eq!(number(&json, "/accounted/clock_task_stopped_max_ns"), 1_000_000);
    assert!(text(&json, "/notes/0").starts_with("Forward steal"));
}

#[test]
fn steal_of_a_microsecond_more_than_wall_time_is_dropped_to_the_nanosecond() {
    // collectd#3766.
    let over = "[[steal]]\nperiod = \"1ms\"\nslice = \"500us\"\ncounter = \"1001us\"\n";
    let json = run(&format!("{HOG}{over}"), &["duration=100ms"], 0);
    let [clock, clock_task, prev_steal] = numbers(&json, CLOCKS);
    assert_eq!((clock_task, prev_steal), (0, 100 * 1_001_000), "nothing is left for the task");
    assert_eq!(number(&json, "/accounted/steal_ns"), clock);
    assert_eq!(number(&json, "/accounted/steal_dropped_ns"), 100 * 1_001_000 - clock);
    assert_eq!(number(&json, "/wall_time/task_ns"), 50_000_000, "though it had half of the CPU");
}

#[test]
fn a_busy_task_under_half_steal_gains_exactly_half_of_wall_time() {
    // gopsutil#1978.
    let json = run_json("busy-half-steal", "model", &[], 0);
    assert_eq!(numbers(&json, CLOCKS), [990_000_000, 495_000_000, 495_000_000]);
    assert_eq!(number(&json, "/wall_time/task_ns"), 500_000_000);
    assert_eq!(number(&json, "/accounted/steal_dropped_ns"), 0);
    if virtual_machines().is_some() {
        let json = run_json("busy-half-steal", "firmware", &["duration=200ms"], 0);
        assert_eq!(numbers(&json, CLOCKS), [190_000_000, 95_000_000, 95_000_000]);
    }
}

#[test]
fn steal_that_the_guest_has_not_read_yet_is_pending_and_no_error() {
    // scx#3388: the last tick was at 990 ms; 5 ms were stolen since.
    let json = run_json("busy-half-steal", "model", &[], 0);
    assert_eq!(json["verdict"], "pass");
    assert_eq!(number(&json, "/accounted/steal_pending_ns"), 5_000_000);
    let lag = number(&json, "/injected/steal_ns") - number(&json, "/rq/0/prev_steal_time_rq_ns");
    assert_eq!(lag, 5_000_000);
}

#[test]
fn thirty_percent_of_interrupts_are_no_sleep() {
    // LKML, December 2024. 3 kHz of 100 us.
    let load = "[[irq]]\nname = \"nic\"\nrate = \"3kHz\"\ncost = \"100us\"\n";
    let json = run(&format!("{HOG}{load}"), &["duration=1s", "tick.rate=100Hz"], 0);
    let wall = ["task_ns", "hardirq_ns", "softirq_ns", "steal_ns", "idle_ns"];
    let wall = wall.map(|key| number(&json["wall_time"], &format!("/{key}")));
    let [task, hardirq, rest @ ..] = wall;
    assert_eq!(rest, [0, 0, 0]);
    assert_eq!(task + hardirq, 1_000_000_000);
    let handled = number(&json, "/injected/lines/1/handled");
    assert_eq!(hardirq, handled * 100_000);
    assert!((2990..=3000).contains(&handled), "{handled}");
    let [clock, clock_task, _] = numbers(&json, CLOCKS);
    assert_eq!(clock - clock_task, number(&json, "/rq/0/prev_irq_time_ns"));
    assert_eq!(number(&json, "/accounted/steal_dropped_ns"), 0);
}

#[test]
fn interrupts_steal_and_sleep_add_up_to_wall_time() {
    // The same load on a CPU that sleeps half of its time and loses a tenth.
    let mixed = HOG.replace("burn = \"10ms\"", "burn = \"1ms\"\nsleep = \"1ms\"");
    let mixed = format!(
        "{mixed}[[irq]]\nname = \"nic\"\nrate = \"3kHz\"\ncost = \"100us\"\nsoftirq = 0.5\n\
         [[steal]]\nfraction = 0.1\nquantum = \"1ms\"\n"
    );
    let json = run(&mixed, &["duration=1s"], 0);
    let n = |key: &str| number(&json, key);
    assert_eq!(n("/wall_time/steal_ns"), 100_000_000);
    for key in ["task", "hardirq", "softirq", "idle"] {
        assert!(n(&format!("/wall_time/{key}_ns")) > 50_000_000, "{key}");
    }
    assert_eq!(
        n("/injected/irq_ns"),
        n("/wall_time/hardirq_ns") + n("/wall_time/softirq_ns") + n("/injected/steal_in_irq_ns")
    );
}

#[test]
fn a_ticks_own_interrupt_time_makes_the_next_delta_positive() {
    // The argument made against the zero-delta skip, as far as it goes: with ticks that cost time every
    // delta at a tick is positive, and what is left to skip are the switches between ticks.
    let switches = "\
[tick]
rate = \"250Hz\"
cost = \"0\"
[policy]
compare = []
[[group]]
path = \"a\"
[[group]]
path = \"b\"
[[task]]
name = \"left\"
group = \"a\"
burn = \"1ms\"
wakes = \"right\"
[[task]]
name = \"right\"
group = \"b\"
burn = \"1ms\"
wakes = \"left\"
blocked = true
";
    let table = |cost: &str| {
        let json = run(switches, &["duration=1s", cost], 0);
        let keys = ["reached_delta", "delta_positive", "delta_zero", "delta_negative"];
        keys.map(|key| number(&json["psi_account_irqtime"], &format!("/{key}")))
    };
    let [reached, positive, zero, negative] = table("tick.cost=0");
    assert_eq!((positive, zero, negative), (0, reached, 0));
    let [reached, positive, zero, negative] = table("tick.cost=2us");
    assert_eq!((positive + zero, negative), (reached, 0));
    assert!(positive > 0 && zero > 0, "{positive} {zero}");
}
