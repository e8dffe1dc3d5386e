use std::boxed::Box;
use std::vec::Vec;

use super::*;
use crate::hardware::Probe;
use crate::machine::{Bench, Machine, broken, page};
use crate::wire::{FIRST_PID, TASK_BLOCKED, TASK_FORK};

const A: u16 = FIRST_PID;
const B: u16 = FIRST_PID + 1;
const C: u16 = FIRST_PID + 2;

/// A kernel at 1 s with a sleeping task in each of the given groups.
fn asleep(parents: &[u16], tasks: &[u16], flags: u16) -> (Box<Kernel>, Machine) {
    let mut p = page(parents, tasks);
    for t in &mut p.tasks {
        t.flags = TASK_BLOCKED | flags;
    }
    let mut hw = Machine::new();
    hw.now = 1_000_000_000;
    let bench = Bench::boot(&p, hw);
    (bench.kernel, bench.hw)
}

/// The groups of the calls of `update_tg_load_avg()` since the last look.
fn published(hw: &mut Machine) -> Vec<u16> {
    let groups = |p: (u64, Probe)| match p.1 {
        Probe::UpdateTgLoadAvg { group } => Some(group),
        _ => None,
    };
    hw.probes.drain(..).filter_map(groups).collect()
}

#[test]
fn weights_scale_up_exactly_and_down_to_two_at_least() {
    for (scaled, down) in [(0, 0), (1, 2), (2047, 2), (3072, 3), (1024 << 10, 1024)] {
        assert_eq!(scale_load_down(scaled), down, "{scaled}");
    }
    assert_eq!(scale_load_down(scale_load(88761)), 88761);
}

#[test]
fn a_switch_touches_entities_up_to_the_cfs_rq_that_both_share() {
    // A and B in group 2, C in 3; 2 and 3 below 1.
    let (mut k, mut hw) = asleep(&[0, 1, 1], &[2, 2, 3], 0);
    for pid in [A, B, C] {
        k.try_to_wake_up(&mut hw, pid);
    }
    k.schedule(&mut hw);
    let first = k.curr;
    assert_eq!(first, C, "the newest of equals");
    hw.now += 10_000_000;
    k.update_rq_clock(&mut hw);
    published(&mut hw);
    // A switch from C to A meets in group 1: the root's cfs_rq keeps its stamp.
    let root = k.cfs_rqs[0].avg.last_update_time;
    k.put_prev_task_fair(&mut hw, C, A);
    k.set_next_task_fair(&mut hw, A);
    assert_eq!(k.cfs_rqs[0].avg.last_update_time, root);
    assert_eq!((k.cfs_rqs[0].curr, k.cfs_rqs[1].curr), (1, 2));
    assert_eq!((k.cfs_rqs[2].curr, k.cfs_rqs[3].curr), (task_se(A) as u16, NONE));
    assert_eq!(k.ses[1].exec_start, 1_000_000_000, "group 1 runs on");
    // What put updated is not published, what set updated is: group 2.
    assert_eq!(published(&mut hw), [2]);

    // A to B meets in group 2.
    let parent = k.cfs_rqs[1].avg.last_update_time;
    hw.now += 10_000_000;
    k.update_rq_clock(&mut hw);
    k.put_prev_task_fair(&mut hw, A, B);
    k.set_next_task_fair(&mut hw, B);
    assert_eq!(k.cfs_rqs[1].avg.last_update_time, parent);
    assert_eq!(k.cfs_rqs[2].curr, task_se(B) as u16);

    // To swapper, everything stops.
    k.put_prev_task_fair(&mut hw, B, IDLE_PID);
    assert!((0..4).all(|g| k.cfs_rqs[g].curr == NONE));
}

#[test]
fn a_pick_charges_what_runs_first() {
    let (mut k, mut hw) = asleep(&[], &[0, 0], 0);
    k.try_to_wake_up(&mut hw, A);
    k.schedule(&mut hw);
    k.try_to_wake_up(&mut hw, B);
    hw.now += 1_000;
    k.update_rq_clock(&mut hw);
    assert_eq!(k.pick_task_fair(), B);
    assert_eq!(k.ses[task_se(A)].sum_exec_runtime, 1_000);
}

#[test]
fn tasks_of_one_weight_share_the_cpu_evenly_and_groups_by_their_shares() {
    let mut p = page(&[0, 0], &[1, 1, 2]);
    p.groups[2].shares = 2048;
    for t in &mut p.tasks {
        t.sleep_min_ns = 0;
        t.sleep_max_ns = 0;
    }
    let mut bench = Bench::boot(&p, Machine::new());
    while bench.hw.now < 3_000_000_000 {
        crate::kernel::step(&mut bench);
    }
    let ran = [A, B, C].map(|pid| bench.kernel.ses[task_se(pid)].sum_exec_runtime / 10_000_000);
    for (ran, fair) in ran.into_iter().zip([50, 50, 200]) {
        assert!(ran.abs_diff(fair) <= 2, "{ran} of {fair} (10 ms)");
    }
}

#[test]
fn clock_task_alone_is_charged() {
    let (mut k, mut hw) = asleep(&[0], &[1], 0);
    k.try_to_wake_up(&mut hw, A);
    k.schedule(&mut hw);
    hw.now += 10_000;
    hw.steal += 4_000;
    k.cpu_irqtime.total += 3_000;
    k.update_rq_clock(&mut hw);
    k.task_tick_fair(&mut hw, A);
    for se in [task_se(A), 1] {
        assert_eq!(k.ses[se].sum_exec_runtime, 3_000);
    }
}

#[test]
fn a_fork_that_exits_takes_its_load_along() {
    let (mut k, mut hw) = asleep(&[0], &[1], TASK_FORK);
    k.try_to_wake_up(&mut hw, A);
    k.schedule(&mut hw);
    k.block_current(A);
    k.schedule(&mut hw);
    assert_eq!(k.curr, IDLE_PID);
    assert_eq!(broken(&k), None);
    assert!(!k.ses[task_se(A)].attached);
    let a = &k.cfs_rqs[1].avg;
    assert_eq!((a.load_avg, a.util_avg, a.runnable_avg), (0, 0, 0));
    // Published when it attached; the way down waits for its millisecond.
    assert_eq!(k.task_groups[1].load_avg, 1024);
}

#[test]
fn a_task_that_sleeps_leaves_its_load_behind() {
    let (mut k, mut hw) = asleep(&[0], &[1], 0);
    k.try_to_wake_up(&mut hw, A);
    k.schedule(&mut hw);
    k.block_current(A);
    k.schedule(&mut hw);
    assert!(k.ses[task_se(A)].attached);
    assert_eq!(k.cfs_rqs[1].avg.load_avg, 1024);
    assert_eq!((k.cfs_rqs[1].load_weight, k.rq.nr_running), (0, 0));
}

#[test]
fn a_woken_task_preempts_only_if_it_is_far_behind() {
    for (lead, preempts) in [(SLICE_NS / 2, false), (SLICE_NS / 2 + 1, true)] {
        let (mut k, mut hw) = asleep(&[], &[0, 0], 0);
        k.try_to_wake_up(&mut hw, A);
        k.schedule(&mut hw);
        k.ses[task_se(A)].vruntime = lead;
        k.try_to_wake_up(&mut hw, B);
        assert_eq!(k.need_resched, preempts, "{lead}");
    }
}
