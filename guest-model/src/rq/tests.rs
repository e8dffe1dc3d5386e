use std::boxed::Box;

use proptest::prelude::*;

use crate::kernel::Kernel;
use crate::machine::{Machine, booted};
use crate::wire::FIRST_PID;

/// The split of an update, in 128 bits: (irq, steal taken, left for tasks, steal dropped).
fn split(delta: i128, irq_pending: i128, steal_step: i128) -> (i128, i128, i128, i128) {
    let irq = irq_pending.min(delta);
    let steal = steal_step.min(delta - irq);
    (irq, steal, delta - irq - steal, steal_step - steal)
}

fn update(k: &mut Kernel, hw: &mut Machine, now: u64, irq_total: u64, steal: u64) {
    hw.now = now;
    hw.steal = steal;
    k.cpu_irqtime.total = irq_total;
    k.update_rq_clock(hw);
}

fn fresh() -> (Box<Kernel>, Machine) {
    booted(&[], &[])
}

#[test]
fn every_small_split_is_exact() {
    for delta in 0..6u64 {
        for irq in 0..8u64 {
            for steal in -3i64..8 {
                let (mut k, mut hw) = fresh();
                update(&mut k, &mut hw, delta, irq, steal as u64);
                let (irq_taken, steal_taken, task, _) =
                    split(delta.into(), irq.into(), steal.into());
                assert_eq!(k.rq.clock, delta);
                assert_eq!(i128::from(k.rq.prev_irq_time), irq_taken);
                assert_eq!(k.rq.prev_steal_time_rq, steal as u64);
                assert_eq!(
                    i128::from(k.rq.clock_task),
                    task,
                    "{delta} {irq} {steal} {steal_taken}"
                );
            }
        }
    }
}

#[test]
fn irq_time_that_does_not_fit_is_taken_by_the_next_update() {
    let (mut k, mut hw) = fresh();
    update(&mut k, &mut hw, 100, 250, 0);
    assert_eq!((k.rq.clock_task, k.rq.prev_irq_time), (0, 100));
    update(&mut k, &mut hw, 200, 250, 0);
    assert_eq!((k.rq.clock_task, k.rq.prev_irq_time), (0, 200));
    update(&mut k, &mut hw, 300, 250, 0);
    assert_eq!((k.rq.clock_task, k.rq.prev_irq_time), (50, 250));
}

#[test]
fn steal_that_does_not_fit_is_never_taken() {
    let (mut k, mut hw) = fresh();
    update(&mut k, &mut hw, 100, 0, 1 << 40);
    assert_eq!((k.rq.clock_task, k.rq.prev_steal_time_rq), (0, 1 << 40));
    update(&mut k, &mut hw, 300, 0, 1 << 40);
    assert_eq!(k.rq.clock_task, 200);
}

#[test]
fn steal_that_steps_back_lets_clock_task_run_ahead_of_clock() {
    let (mut k, mut hw) = fresh();
    update(&mut k, &mut hw, 1000, 0, 500);
    update(&mut k, &mut hw, 2000, 0, 0);
    assert_eq!((k.rq.clock, k.rq.clock_task), (2000, 500 + 1000 + 500));
    update(&mut k, &mut hw, 3000, 0, 1u64.wrapping_neg() - 999);
    assert_eq!((k.rq.clock, k.rq.clock_task), (3000, 2000 + 1000 + 1000));
}

#[test]
fn a_clock_that_went_back_changes_nothing_and_reads_no_steal() {
    let (mut k, mut hw) = fresh();
    update(&mut k, &mut hw, 1000, 300, 200);
    let before = k.rq.clone();
    update(&mut k, &mut hw, 999, 900, 800);
    assert_eq!((k.rq.clock, k.rq.clock_task), (before.clock, before.clock_task));
    assert_eq!(k.rq.prev_steal_time_rq, before.prev_steal_time_rq);
    assert_eq!(k.rq.prev_irq_time, before.prev_irq_time);
}

#[test]
fn interrupts_come_before_steal() {
    let (mut k, mut hw) = fresh();
    update(&mut k, &mut hw, 100, 80, 80);
    assert_eq!((k.rq.prev_irq_time, k.rq.clock_task), (80, 0));
    // 20 ns of steal fitted, 60 were dropped.
    update(&mut k, &mut hw, 200, 80, 80);
    assert_eq!(k.rq.clock_task, 100);
}

proptest! {
    #[test]
    fn what_clock_advances_by_is_task_irq_and_steal_time(
        updates in proptest::collection::vec(
            (0u64..1 << 41, 0u64..1 << 41, -(1i64 << 41)..1 << 41), 1..30),
        busy in any::<bool>(),
    ) {
        let (mut k, mut hw) = booted(&[], &[0]);
        k.curr = if busy { FIRST_PID } else { 0 };
        let (mut now, mut irq, mut steal) = (0, 0, 0u64);
        let (mut taken, mut dropped) = (0i128, 0i128);
        for (d, i, s) in updates {
            let before = k.rq.clone();
            (now, irq, steal) = (now + d, irq + i, steal.wrapping_add(s as u64));
            let pending = i128::from(irq - before.prev_irq_time);
            update(&mut k, &mut hw, now, irq, steal);
            let (irq_part, steal_part, task, drop) = split(d.into(), pending, s.into());
            taken += steal_part;
            dropped += drop;

            prop_assert_eq!(i128::from(k.rq.clock - before.clock), irq_part + steal_part + task);
            prop_assert_eq!(i128::from(k.rq.prev_irq_time - before.prev_irq_time), irq_part);
            prop_assert_eq!(i128::from(k.rq.clock_task.wrapping_sub(before.clock_task) as i64), task);
            // None of the IRQ time is lost: it is taken or pending.
            prop_assert_eq!(i128::from(irq - k.rq.prev_irq_time), pending - irq_part);
            prop_assert!(s < 0 || k.rq.clock_task >= before.clock_task);
            prop_assert_eq!(i128::from(steal as i64), taken + dropped);
            if !busy {
                prop_assert_eq!(k.rq.clock_pelt, k.rq.clock_task);
            }
        }
    }

    #[test]
    fn no_clock_no_total_and_no_steal_panics(
        updates in proptest::collection::vec(any::<(u64, u64, u64)>(), 1..30),
        busy in any::<bool>(),
        fault in 0u8..=22,
    ) {
        let (mut k, mut hw) = booted(&[], &[0]);
        k.curr = if busy { FIRST_PID } else { 0 };
        k.policy.fault = crate::policy::Fault::from_number(fault).unwrap();
        for (now, irq, steal) in updates {
            update(&mut k, &mut hw, now, irq, steal);
        }
    }
}
