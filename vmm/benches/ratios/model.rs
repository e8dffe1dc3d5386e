//! The guest model's rules, and a whole `--guest model` run.

use std::hint::black_box;
use std::sync::Arc;

use guest_model::hardware::{Hardware, Probe};
use guest_model::kernel::Kernel;
use rqscope::check::NAMES;
use rqscope::model::zeroed;
use rqscope::run::{Planted, pass_on_model};
use rqscope::scenario::{Scenario, builtin};
use rqscope::session::PassOutcome;
use rqscope::trace::{Kind, Record, Trace};

use crate::paired::{clock_cycles, pair, print};

/// A clock and a steal counter that are set, and nothing else.
struct Inputs {
    now_ns: u64,
    steal_ns: u64,
}

impl Hardware for Inputs {
    fn sched_clock_cpu(&mut self) -> u64 {
        self.now_ns
    }
    fn steal_clock(&mut self) -> u64 {
        self.steal_ns
    }
    fn probe(&mut self, _: &mut Kernel, _: Probe) {}
    fn set_timer(&mut self, _: u64) {}
    fn irq_status(&mut self, _: &mut Kernel, _: u16) -> u32 {
        0
    }
}

/// What happens between two updates: wall, IRQ and steal time, ns. Interrupts at two updates of
/// three, steal at one of eight, some of both more than fits.
fn steps() -> Vec<[u64; 3]> {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut draw = |below: u64| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x % below
    };
    (0..4096)
        .map(|_| {
            let irq = if draw(3) == 0 { 0 } else { draw(20_000) };
            let steal = if draw(8) == 0 { draw(100_000) } else { 0 };
            [draw(100_000), irq, steal]
        })
        .collect()
}

/// Clock updates of one batch of the bare rules.
const UPDATES: usize = 1 << 20;

/// Updates of a kernel's run-queue clock from the inputs of `steps`.
fn bare_rules(kernel: &mut Kernel, hw: &mut Inputs, steps: &[[u64; 3]]) {
    for [wall, irq, steal] in steps.iter().cycle().take(UPDATES) {
        hw.now_ns += wall;
        kernel.cpu_irqtime.total += irq;
        hw.steal_ns += steal;
        kernel.update_rq_clock(hw);
    }
    black_box(&kernel.rq);
}

/// One pass of the default scenario; the second result is the trace's number of records.
fn whole_run(scenario: &Scenario) -> (PassOutcome, u64) {
    let clock = scenario.policy.rate_limit_clock;
    let none = Planted::default();
    let (outcome, trace) =
        pass_on_model(scenario, clock, none, Trace::hashed(), Arc::default()).unwrap();
    assert!(outcome.stopped.is_none(), "{:?}", outcome.stopped);
    (outcome, trace.finish().1)
}

/// As many records as `records`, hashed as a run's are.
fn hash_alone(records: u64) {
    let mut trace = Trace::hashed();
    for i in 0..records {
        trace.push(Record::host(i, Kind::Irq, [i, 1, 2]));
    }
    black_box(trace.finish().0);
}

fn default_scenario(duration: &str) -> Scenario {
    let sets = [format!("duration={duration}")];
    Scenario::load(builtin("default").unwrap().text, "default", &sets, NAMES).unwrap()
}

/// Prints the figures.
pub fn run(rounds: usize) {
    let steps = steps();
    let (mut kernel, mut hw) = (zeroed::<Kernel>(), Inputs { now_ns: 0, steal_ns: 0 });
    // A running task: what an idle CPU does is less.
    kernel.curr = 2;
    let mut rules = || bare_rules(&mut kernel, &mut hw, &steps);

    println!("model: the rules of one update_rq_clock(), with IRQ and steal inputs");
    let cycles = pair(rounds, &mut rules, || clock_cycles(UPDATES as u32));
    print("one update / one clock cycle", cycles.ratio);
    let rate = cycles.a_ns.per_second(UPDATES as f64);
    print("M updates/s in this run (goal: 20 or more)", rate);

    let scenario = default_scenario("600ms");
    let (outcome, records) = whole_run(&scenario);
    let updates = outcome.measured.accounted.updates;
    println!(
        "model: a whole run (engine, rules, checks, hash), {records} events, {updates} updates"
    );
    let whole = pair(rounds, || drop(whole_run(&scenario)), || hash_alone(records));
    print("whole run / hashing its trace alone", whole.ratio);
    print("M events/s in this run", whole.a_ns.per_second(records as f64));
    print("M updates/s in this run", whole.a_ns.per_second(updates as f64));
    let whole = pair(rounds, || drop(whole_run(&scenario)), &mut rules);
    let share = UPDATES as f64 / records as f64;
    print("one event of it / one update by the rules alone", whole.ratio.times(share));
}

/// One pass of which no trace is kept, as a grid runs it; the result is its number of probe hits.
fn traceless_run(scenario: &Scenario) -> u64 {
    let clock = scenario.policy.rate_limit_clock;
    let (outcome, _) =
        pass_on_model(scenario, clock, Planted::default(), Trace::none(), Arc::default()).unwrap();
    assert!(outcome.stopped.is_none(), "{:?}", outcome.stopped);
    outcome.hits
}

/// Prints what an event costs in runs of 10^4 events and each power of ten up to 10^`decades`, against one
/// of the shortest run.
pub fn events(rounds: usize, decades: u32) {
    println!(
        "events: one event of a `--guest model` run of so many, against one of the shortest run"
    );
    let ns_per_event = 100_000_000 / traceless_run(&default_scenario("100ms"));
    let run = |decade: u32| {
        let duration = 10u64.pow(decade).saturating_mul(ns_per_event);
        default_scenario(&format!("{duration}ns"))
    };
    let short = run(4);
    let short_hits = traceless_run(&short);
    for decade in 4..=decades {
        let long = run(decade);
        let hits = traceless_run(&long);
        // As many events on both sides.
        let repeat = hits.div_ceil(short_hits);
        let again = || (0..repeat).for_each(|_| _ = black_box(traceless_run(&short)));
        let cost = pair(rounds.min(11), || _ = black_box(traceless_run(&long)), again);
        let share = (repeat * short_hits) as f64 / hits as f64;
        print(&format!("{hits} events"), cost.ratio.times(share));
    }
}

/// A scenario with `count` leaf cfs_rqs that have load throughout, and 50 walks over all of them.
fn with_leaves(count: usize) -> Scenario {
    let text = format!(
        "duration = \"50ms\"\npolicy.compare = []\n[[group]]\npath = \"g\"\ncount = {count}\n\
         [[task]]\nname = \"t\"\ngroup = \"g\"\nburn = \"1h\"\ncount = {count}\n\
         [[irq]]\nname = \"nic\"\nrate = \"1kHz\"\ncost = \"1us\"\nbalance = true\n"
    );
    Scenario::load(&text, "leaves", &[], NAMES).unwrap()
}

/// Prints what one leaf cfs_rq costs in a run that walks over so many, against one of 64.
pub fn leaves(rounds: usize) {
    println!(
        "leaves: one leaf cfs_rq of a `--guest model` run that walks so many, against one of 64"
    );
    let few = with_leaves(64);
    for count in [64, 256, 1024, 4096] {
        let (many, times) = (with_leaves(count), count / 64);
        let hits = traceless_run(&many);
        let again = || (0..times).for_each(|_| _ = black_box(traceless_run(&few)));
        let cost = pair(rounds.min(11), || _ = black_box(traceless_run(&many)), again);
        print(&format!("{count} leaves, {hits} events"), cost.ratio);
    }
}

/// Prints the peak of this process's memory after runs of 10^4 events and each power of ten up to
/// 10^`decades`.
pub fn memory(decades: u32) {
    println!("memory: peak resident set after a `--guest model` run of so many events");
    let (_, records) = whole_run(&default_scenario("100ms"));
    let ns_per_event = 100_000_000 / records;
    for decade in 4..=decades {
        let duration = 10u64.pow(decade).saturating_mul(ns_per_event);
        let (_, records) = whole_run(&default_scenario(&format!("{duration}ns")));
        println!("  {records:11} events: {}", peak_rss());
    }
}

/// `VmHWM` of proc(5), as it is written there.
fn peak_rss() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.map_or("unknown: no /proc/self/status".into(), |kb| kb.trim().into())
}
