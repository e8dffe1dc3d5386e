use std::vec::Vec;

use proptest::prelude::*;

use super::step;
use crate::machine::{Bench, Machine, Rng, booted, broken, page};
use crate::policy::{Fault, Policy, PsiZeroDelta, RateLimitClock};
use crate::wire::{
    BootPage, FIRST_PID, GroupSpec, IDLE_PID, IRQ_BALANCE, IrqSpec, KSOFTIRQD_PID, NONE,
    TASK_BLOCKED, TASK_FORK, TaskSpec,
};

fn task(rng: &mut Rng, groups: u16, tasks: u16) -> TaskSpec {
    let burn = 1 + rng.below(3_000_000);
    let sleep = if rng.below(4) == 0 { 0 } else { rng.below(3_000_000) };
    TaskSpec {
        burn_min_ns: 1 + rng.below(burn),
        burn_max_ns: burn,
        sleep_min_ns: rng.below(sleep + 1),
        sleep_max_ns: sleep,
        start_ns: rng.below(2) * rng.below(3_000_000),
        seed: rng.below(u64::MAX),
        weight: 3 + rng.magnitude([3, 11, 18]),
        group: rng.below(groups.into()) as u16,
        wakes: if rng.below(3) == 0 { FIRST_PID + rng.below(tasks.into()) as u16 } else { NONE },
        flags: [0, 0, TASK_FORK, TASK_BLOCKED, TASK_FORK | TASK_BLOCKED][rng.below(5) as usize],
        reserved: [0; 3],
    }
}

/// A valid page, whatever the draws.
fn random_page(rng: &mut Rng) -> BootPage {
    let mut page = BootPage::new(
        1 + rng.below(4_000_000),
        Policy {
            rate_limit_clock: RateLimitClock::ALL[rng.below(3) as usize],
            psi_zero_delta: PsiZeroDelta::ALL[rng.below(2) as usize],
            fault: Fault::None,
        },
    );
    page.tick_period_ns = page.tick_period_ns.max(50_000);
    page.offline_ns = if rng.below(4) == 0 { 1 + rng.below(20_000_000) } else { 0 };
    page.nr_groups = 1 + rng.below(12) as u16;
    for g in 1..page.nr_groups {
        let shares = 2 + rng.magnitude([2, 11, 18]);
        let parent = rng.below(g.into()) as u16;
        page.groups[g as usize] = GroupSpec { shares: shares.min(1 << 18), parent, reserved: 0 };
    }
    page.nr_tasks = rng.below(16) as u16;
    for t in 0..page.nr_tasks {
        let mut spec = task(rng, page.nr_groups, page.nr_tasks);
        spec.weight = spec.weight.min(1 << 18);
        page.tasks[t as usize] = spec;
    }
    page.nr_irqs = 1 + rng.below(4) as u16;
    for i in 1..page.nr_irqs {
        let wakes = match page.nr_tasks {
            0 => NONE,
            n => [NONE, FIRST_PID + rng.below(n.into()) as u16][rng.below(2) as usize],
        };
        page.irqs[i as usize] = IrqSpec { wakes, flags: rng.below(2) as u16 * IRQ_BALANCE };
    }
    page
}

fn random_machine(rng: &mut Rng, irqs: u16) -> Machine {
    let mut hw = Machine::new();
    hw.handler_ns = rng.below(20_000);
    hw.softirq_ns = rng.below(200_000) as u32;
    hw.steal_max = rng.below(3) * rng.below(400_000);
    hw.rng = Rng(1 + rng.below(u64::MAX - 1));
    if irqs > 1 {
        let mut device: Vec<_> = (0..rng.below(400))
            .map(|_| (rng.below(30_000_000), 1 + rng.below(u64::from(irqs) - 1) as u16))
            .collect();
        device.sort_unstable_by(|a, b| b.cmp(a));
        hw.device = device;
    }
    hw
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn any_workload_keeps_the_run_queue_consistent_at_every_step(seed in 1u64..) {
        let mut rng = Rng(seed);
        let page = random_page(&mut rng);
        prop_assert!(page.validate().is_ok());
        let hw = random_machine(&mut rng, page.nr_irqs);
        let mut bench = Bench::boot(&page, hw);
        let mut steps = 0;
        while bench.hw.now < 30_000_000 && steps < 20_000 {
            step(&mut bench);
            steps += 1;
            let what = broken(&bench.kernel);
            prop_assert!(what.is_none(), "step {steps}: {what:?}");
        }
    }

    #[test]
    fn time_is_conserved_over_any_workload(seed in 1u64..) {
        let mut rng = Rng(seed);
        let page = random_page(&mut rng);
        let mut hw = random_machine(&mut rng, page.nr_irqs);
        // With less steal than burn, no steal is dropped for long, but some is: count it.
        hw.steal_max = 0;
        let mut bench = Bench::boot(&page, hw);
        while bench.hw.now < 10_000_000 {
            step(&mut bench);
            let rq = &bench.kernel.rq;
            prop_assert_eq!(rq.clock, rq.clock_task + rq.prev_irq_time);
            prop_assert!(rq.prev_irq_time <= bench.kernel.cpu_irqtime.total);
        }
    }
}

#[test]
fn a_kernel_without_tasks_idles_from_tick_to_tick() {
    let mut bench = Bench::boot(&BootPage::new(1_000_000, crate::machine::POLICY), Machine::new());
    for _ in 0..10 {
        step(&mut bench);
    }
    assert_eq!((bench.kernel.curr, bench.kernel.jiffies), (IDLE_PID, 10));
    assert_eq!(bench.hw.now, 10_000_000);
}

#[test]
fn a_timer_that_comes_late_counts_every_tick_that_it_missed() {
    let (mut k, mut hw) = booted(&[], &[]);
    hw.now = 5_700_000;
    k.timer_interrupt(&mut hw);
    assert_eq!((k.jiffies, k.next_tick_ns, hw.timer), (5, 6_000_000, 6_000_000));
}

#[test]
fn a_clock_at_the_end_of_64_bits_panics_nowhere() {
    let mut bench = Bench::boot(&page(&[0, 1], &[2, 2, 1]), Machine::new());
    for jump in [1 << 40, 1 << 53, 1 << 62, 1 << 63, u64::MAX - 1, u64::MAX] {
        bench.hw.now = jump;
        for _ in 0..50 {
            let k = &mut bench.kernel;
            k.timer_interrupt(&mut bench.hw);
            k.need_resched = true;
            k.schedule(&mut bench.hw);
            bench.hw.now = bench.hw.now.wrapping_add(1_000_003);
        }
    }
}

#[test]
fn a_ping_that_finds_its_partner_running_is_not_lost() {
    let (mut k, mut hw) = booted(&[], &[0]);
    k.schedule(&mut hw);
    assert_eq!(k.curr, FIRST_PID);
    k.try_to_wake_up(&mut hw, FIRST_PID);
    assert!(k.tasks[FIRST_PID as usize].wake_pending);
}

#[test]
fn an_equal_wake_up_time_keeps_the_order_of_insertion() {
    let (mut k, _) = booted(&[], &[0, 0, 0, 0]);
    for (pid, at) in [(4, 7), (2, 5), (5, 5), (3, 7)] {
        k.timer_insert(pid, at);
    }
    let mut order = Vec::new();
    let mut next = k.timer_first;
    while next != NONE {
        order.push(next);
        next = k.tasks[next as usize].timer_next;
    }
    assert_eq!(order, [2, 5, 4, 3]);
    k.timer_remove(5);
    k.timer_remove(2);
    k.timer_remove(3);
    assert_eq!((k.timer_first, k.tasks[4].timer_next), (4, NONE));
}

#[test]
fn swapper_and_ksoftirqd_are_in_the_root_group_and_asleep() {
    let (k, _) = booted(&[0], &[1]);
    for pid in [IDLE_PID, KSOFTIRQD_PID] {
        assert_eq!(k.tasks[pid as usize].group, 0);
        assert!(!k.is_queued(pid));
    }
}
