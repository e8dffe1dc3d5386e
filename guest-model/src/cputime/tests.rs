use crate::machine::booted;
use crate::softirq::{HARDIRQ_OFFSET, SOFTIRQ_OFFSET};
use crate::wire::{FIRST_PID, IDLE_PID, KSOFTIRQD_PID};

/// Where 100 ns go that end with `offset` added to `count`: (hardirq, softirq, total).
fn accounted(count: u32, offset: u32, curr: u16) -> (u64, u64, u64) {
    let (mut k, mut hw) = booted(&[], &[0]);
    k.curr = curr;
    k.preempt_count = count + offset;
    k.cpu_irqtime.irq_start_time = hw.now;
    hw.now += 100;
    k.irqtime_account_irq(&mut hw, offset);
    assert_eq!(k.cpu_irqtime.irq_start_time, hw.now);
    let t = &k.cpu_irqtime;
    (t.cpustat_irq, t.cpustat_softirq, t.total)
}

#[test]
fn time_goes_to_the_context_that_is_left() {
    const TASK: u32 = 0;
    const HARD: u32 = HARDIRQ_OFFSET;
    const SOFT: u32 = SOFTIRQ_OFFSET;
    let (none, hard, soft) = ((0, 0, 0), (100, 0, 100), (0, 100, 100));
    // The context left, what is entered (0 on exit), for a task, swapper and ksoftirqd.
    let rows = [
        (TASK, HARD, [none, none, none]),
        (TASK, SOFT, [none, none, none]),
        (HARD, 0, [hard, hard, hard]),
        (SOFT, 0, [soft, soft, none]),
        (SOFT, HARD, [soft, soft, none]),
        (SOFT | HARD, 0, [hard, hard, hard]),
        (HARD, SOFT, [hard, hard, hard]),
        (2 * HARD, 0, [hard, hard, hard]),
        // Two levels of disabled softirqs (SOFTIRQ_DISABLE_OFFSET) are task context.
        (2 * SOFT, 0, [none, none, none]),
    ];
    for (count, offset, expected) in rows {
        for (curr, expected) in [FIRST_PID, IDLE_PID, KSOFTIRQD_PID].into_iter().zip(expected) {
            assert_eq!(accounted(count, offset, curr), expected, "{count:#x} {offset:#x} {curr}");
        }
    }
}

#[test]
fn an_interrupt_is_accounted_from_its_entry_to_its_exit() {
    let (mut k, mut hw) = booted(&[], &[]);
    hw.now = 1000;
    k.irq_enter(&mut hw);
    hw.now = 1300;
    assert!(!k.irq_exit(&mut hw));
    assert_eq!((k.preempt_count, k.cpu_irqtime.total), (0, 300));
    assert_eq!(k.costs.clock_reads_irqtime_account_irq, 2);
}

#[test]
fn a_clock_that_steps_back_wraps_and_comes_back() {
    let (mut k, mut hw) = booted(&[], &[]);
    hw.now = 1000;
    k.irq_enter(&mut hw);
    hw.now = 400;
    k.irq_exit(&mut hw);
    assert_eq!(k.cpu_irqtime.total as i64, -600);
    k.irq_enter(&mut hw);
    hw.now = 1100;
    k.irq_exit(&mut hw);
    assert_eq!(k.cpu_irqtime.total, 100);
}
