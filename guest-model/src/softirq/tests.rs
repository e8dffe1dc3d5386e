use std::boxed::Box;
use std::vec::Vec;

use super::*;
use crate::hardware::Probe;
use crate::machine::{Bench, Machine, page};
use crate::wire::{BootPage, FIRST_PID, IRQ_BALANCE, IrqSpec, NONE};

/// A page with one device line and one task in the root group.
fn device_page(tick_ns: u64, flags: u16) -> Box<BootPage> {
    let mut p = page(&[], &[0]);
    p.tick_period_ns = tick_ns;
    p.nr_irqs = 2;
    p.irqs[1] = IrqSpec { wakes: NONE, flags };
    p
}

/// Softirq work in progress at every interrupt: each raises more than passes until the next.
fn flooded(tick_ns: u64, every_ns: u64) -> Bench {
    let mut hw = Machine::new();
    hw.softirq_ns = 10;
    hw.device = (1..2000).rev().map(|i| (i * every_ns, 1)).collect();
    let mut bench = Bench::boot(&device_page(tick_ns, 0), hw);
    bench.kernel.schedule(&mut bench.hw);
    bench
}

fn rounds(bench: &Bench) -> usize {
    let entries = |p: &&(u64, Probe)| p.1 == Probe::IrqtimeAccountIrq { offset: HARDIRQ_OFFSET };
    bench.hw.probes.iter().filter(entries).count()
}

#[test]
fn ksoftirqd_takes_over_after_ten_rounds() {
    let mut bench = flooded(1_000_000, 10);
    bench.hw.now = 10;
    bench.hw.device.pop();
    do_irq(&mut bench, 1);
    // The first interrupt began it; each round of 10 ns met the next one.
    assert_eq!(rounds(&bench), 1 + 10);
    let k = &bench.kernel;
    assert_eq!(k.tasks[KSOFTIRQD_PID as usize].state, TaskState::Running);
    assert!(k.softirq_pending());
    assert_eq!((k.preempt_count, k.cpu_irqtime.cpustat_softirq), (0, 100));
}

#[test]
fn ksoftirqd_works_off_what_is_left_as_task_time_and_sleeps() {
    let mut bench = flooded(1_000_000, 10);
    bench.hw.device.truncate(1990);
    bench.hw.device.drain(..1970);
    bench.hw.now = bench.hw.device.last().unwrap().0;
    bench.hw.device.pop();
    do_irq(&mut bench, 1);
    let softirq_ns = bench.kernel.cpu_irqtime.cpustat_softirq;
    bench.kernel.need_resched = true;
    let ran = |b: &Bench| b.kernel.ses[crate::fair::task_se(KSOFTIRQD_PID)].sum_exec_runtime;
    for _ in 0..200 {
        step(&mut bench);
    }
    assert!(!bench.kernel.softirq_pending());
    assert_eq!(bench.kernel.tasks[KSOFTIRQD_PID as usize].state, TaskState::Interruptible);
    assert!(ran(&bench) > 0);
    // Only what ran outside of ksoftirqd was added.
    assert_eq!(bench.kernel.cpu_irqtime.cpustat_softirq, softirq_ns);
}

#[test]
fn a_task_that_must_run_ends_the_rounds() {
    let mut bench = flooded(1_000_000, 10);
    bench.kernel.need_resched = true;
    bench.hw.now = 10;
    bench.hw.device.pop();
    do_irq(&mut bench, 1);
    assert_eq!(rounds(&bench), 1 + 1);
}

#[test]
fn two_milliseconds_are_counted_in_ticks_rounded_up() {
    for (tick_ns, ticks) in [
        (10_000_000, 1),
        (4_000_000, 1),
        (2_000_001, 1),
        (2_000_000, 1),
        (1_999_999, 2),
        (1_000_000, 2),
        (300_000, 7),
        (u32::MAX.into(), 1),
        (1, 2_000_000),
    ] {
        let bench = Bench::boot(&device_page(tick_ns, 0), Machine::new());
        assert_eq!(bench.kernel.max_softirq_ticks(), ticks, "{tick_ns}");
    }
}

#[test]
fn ticks_in_a_round_end_the_rounds_even_where_jiffies_wrap() {
    let mut bench = flooded(1_000_000, 1_100_000);
    bench.kernel.jiffies = u64::MAX - 1;
    bench.hw.softirq_ns = 1_100_000;
    bench.hw.now = 1_100_000;
    bench.hw.device.pop();
    do_irq(&mut bench, 1);
    let k = &bench.kernel;
    assert_eq!(k.tasks[KSOFTIRQD_PID as usize].state, TaskState::Running);
    assert!(k.jiffies.wrapping_sub(u64::MAX - 1) >= 2);
    assert!(rounds(&bench) < 10);
}

#[test]
fn a_balance_raised_during_the_work_waits_for_the_next_round() {
    let mut hw = Machine::new();
    hw.softirq_ns = 500;
    // The second interrupt comes in the middle of the first one's work.
    hw.device = [(1_200, 1)].to_vec();
    let mut bench = Bench::boot(&device_page(1_000_000, IRQ_BALANCE), hw);
    bench.kernel.schedule(&mut bench.hw);
    bench.hw.probes.clear();
    bench.hw.now = 1_000;
    do_irq(&mut bench, 1);
    let updates: Vec<u64> =
        bench.hw.probes.iter().filter(|p| p.1 == Probe::UpdateRqClock).map(|p| p.0).collect();
    assert_eq!(updates, [1_500, 2_000]);
}

#[test]
fn an_interrupt_that_meets_softirq_work_leaves_its_own_to_it() {
    let mut hw = Machine::new();
    hw.softirq_ns = 500;
    hw.device = [(1_200, 1)].to_vec();
    let mut bench = Bench::boot(&device_page(1_000_000, 0), hw);
    bench.kernel.schedule(&mut bench.hw);
    let before = bench.kernel.cpu_irqtime.clone();
    bench.hw.now = 1_000;
    do_irq(&mut bench, 1);
    let t = &bench.kernel.cpu_irqtime;
    assert_eq!(t.cpustat_softirq - before.cpustat_softirq, 1_000);
    assert_eq!(t.total - before.total, 1_000);
    assert_eq!(bench.kernel.curr, FIRST_PID);
}
