use std::boxed::Box;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::kernel::step;
use crate::machine::{Bench, Machine, booted, page};
use crate::wire::{FIRST_PID, TASK_FORK};

const DIVIDER: u64 = PELT_MIN_DIVIDER as u64;

/// What holds of every cfs_rq's averages: no sum wrapped, and none is below what its average needs.
fn broken_averages(k: &Kernel) -> Option<(u16, SchedAvg)> {
    (0..k.nr_groups).find_map(|g| {
        let a = &k.cfs_rqs[g as usize].avg;
        // 4,158 tasks of weight 2^18 come to less than 2^31; a sum is 47742 times that at most.
        let bounded = a.load_sum < 1 << 47 && a.runnable_sum < 1 << 47 && a.load_avg < 1 << 31;
        let enough = a.load_sum >= a.load_avg * DIVIDER
            && a.runnable_sum >= a.runnable_avg * DIVIDER
            && u64::from(a.util_sum) >= a.util_avg * DIVIDER;
        (!bounded || !enough || a.period_contrib >= 1024).then(|| (g, a.clone()))
    })
}

/// A kernel at 1 s, so that nothing is at its first instant.
fn at_one_second(parents: &[u16], tasks: &[u16]) -> (Box<Kernel>, Machine) {
    let mut p = page(parents, tasks);
    for t in &mut p.tasks {
        t.flags |= crate::wire::TASK_BLOCKED;
    }
    let mut hw = Machine::new();
    hw.now = 1_000_000_000;
    let bench = Bench::boot(&p, hw);
    (bench.kernel, bench.hw)
}

#[test]
fn add_positive_stops_at_zero_and_wraps_like_the_kernel() {
    for (value, delta, sum) in [
        (5, 3, 8),
        (5, -5, 0),
        (5, -6, 0),
        (0, -1, 0),
        (u64::MAX, 1, 0),
        (u64::MAX, -1, u64::MAX - 1),
        (1, i64::MIN, 0),
    ] {
        assert_eq!(add_positive(value, delta), sum, "{value} {delta}");
    }
    for (value, delta, sum) in [
        (5, -6, 0),
        (5, 1 << 32, 5),
        // -2^31 - 1 is 2^31 - 1 in 32 bits.
        (5, -(1 << 31) - 1, 5 + 0x7fff_ffff),
        (u32::MAX, 1, 0),
    ] {
        assert_eq!(add_positive_u32(value, delta), sum, "{value} {delta}");
    }
}

#[test]
fn each_new_task_gets_half_of_the_utilisation_that_is_left() {
    let (mut k, mut hw) = at_one_second(&[], &[0; 5]);
    let util: Vec<u64> = (FIRST_PID..FIRST_PID + 5)
        .map(|pid| {
            k.try_to_wake_up(&mut hw, pid);
            k.ses[task_se(pid)].avg.util_avg
        })
        .collect();
    assert_eq!(util, [512, 256, 128, 64, 32]);
    assert_eq!(k.cfs_rqs[0].avg.util_avg, 512 + 256 + 128 + 64 + 32);
    assert_eq!(k.cfs_rqs[0].avg.load_avg, 5 * 1024);
}

#[test]
fn a_light_new_task_gets_its_share_of_what_the_others_use() {
    let (mut k, _) = at_one_second(&[], &[0]);
    k.cfs_rqs[0].avg.util_avg = 400;
    k.cfs_rqs[0].avg.load_avg = 4095;
    k.init_entity_averages(FIRST_PID);
    assert_eq!(k.ses[task_se(FIRST_PID)].avg.util_avg, 400 * 1024 / 4096);
    k.cfs_rqs[0].avg.util_avg = 1025;
    k.init_entity_averages(FIRST_PID);
    assert_eq!(k.ses[task_se(FIRST_PID)].avg.util_avg, 0);
}

#[test]
fn what_attaches_to_an_empty_cfs_rq_leaves_nothing_when_it_detaches() {
    for weight in [3, 15, 1024, 88761, 1 << 18] {
        let (mut k, _) = at_one_second(&[], &[0]);
        let se = task_se(FIRST_PID);
        k.ses[se].load_weight = crate::fair::scale_load(weight);
        k.init_entity_averages(FIRST_PID);
        let (q, e) = (&mut k.cfs_rqs[0], &mut k.ses[se]);
        q.attach_entity_load_avg(e, AddLoad::Clamped);
        assert!(e.attached);
        assert_eq!((q.avg.load_avg, q.avg.util_avg, q.avg.runnable_avg), (weight, 512, 512));
        assert_eq!(q.prop_runnable_sum, e.avg.load_sum as i64);
        q.detach_entity_load_avg(e);
        assert!(!e.attached && q.avg.is_decayed());
        assert_eq!((q.avg.load_avg, q.avg.util_avg, q.avg.runnable_avg), (0, 0, 0));
        assert_eq!((q.propagate, q.prop_runnable_sum), (1, 0));
    }
}

#[test]
fn an_entity_aligns_its_window_with_the_cfs_rq_that_it_joins() {
    let (mut k, _) = at_one_second(&[], &[0]);
    k.cfs_rqs[0].avg.last_update_time = 77 << 10;
    k.cfs_rqs[0].avg.period_contrib = 333;
    k.init_entity_averages(FIRST_PID);
    let (q, e) = (&mut k.cfs_rqs[0], &mut k.ses[task_se(FIRST_PID)]);
    q.attach_entity_load_avg(e, AddLoad::Clamped);
    assert_eq!((e.avg.last_update_time, e.avg.period_contrib), (77 << 10, 333));
    assert_eq!(e.avg.load_sum, (DIVIDER + 333) * 1024 / 1024);
    assert_eq!(u64::from(e.avg.util_sum), (DIVIDER + 333) * 512);
}

#[test]
fn what_attaches_in_a_group_reaches_the_root_in_the_same_enqueue() {
    let (mut k, mut hw) = at_one_second(&[0, 1], &[2]);
    k.try_to_wake_up(&mut hw, FIRST_PID);
    for g in 0..3 {
        let a = &k.cfs_rqs[g].avg;
        assert_eq!((a.util_avg, a.runnable_avg, a.load_avg), (512, 512, 1024), "group {g}");
        assert_eq!((k.cfs_rqs[g].propagate, k.cfs_rqs[g].on_list), (u32::from(g == 0), 1));
    }
    for g in [1, 2] {
        assert_eq!(k.ses[g].avg.util_avg, 512, "entity of group {g}");
        assert_eq!(k.task_groups[g].load_avg, 1024);
    }
}

#[test]
fn a_group_weighs_its_shares_when_it_has_only_this_cpu() {
    let (mut k, mut hw) = at_one_second(&[0], &[1, 1, 1]);
    k.task_groups[1].shares = crate::fair::scale_load(300);
    for pid in FIRST_PID..FIRST_PID + 3 {
        k.try_to_wake_up(&mut hw, pid);
        assert_eq!(k.ses[1].load_weight, crate::fair::scale_load(300));
        assert_eq!(k.cfs_rqs[0].load_weight, crate::fair::scale_load(300));
    }
    // Another CPU holds three times as much.
    k.task_groups[1].load_avg = k.cfs_rqs[1].tg_load_avg_contrib + 3 * 3 * 1024;
    k.update_cfs_group(1);
    assert_eq!(k.ses[1].load_weight, crate::fair::scale_load(75));
    assert_eq!(k.cfs_rqs[0].load_weight, crate::fair::scale_load(75));
    k.task_groups[1].shares = 0;
    k.update_cfs_group(1);
    assert_eq!(k.ses[1].load_weight, 2);
}

#[test]
fn an_empty_group_keeps_its_weight() {
    let (mut k, _) = at_one_second(&[0], &[]);
    let before = k.ses[1].load_weight;
    k.task_groups[1].load_avg = 1 << 20;
    k.update_cfs_group(1);
    assert_eq!(k.ses[1].load_weight, before);
}

#[test]
fn a_reweighted_entity_carries_its_history_at_the_new_weight() {
    let (mut k, mut hw) = at_one_second(&[0], &[1, 0]);
    k.try_to_wake_up(&mut hw, FIRST_PID);
    k.try_to_wake_up(&mut hw, FIRST_PID + 1);
    let rest = k.ses[task_se(FIRST_PID + 1)].avg.load_avg;
    for weight in [2, 100, 5000] {
        k.reweight_entity(1, crate::fair::scale_load(weight));
        let e = &k.ses[1];
        assert_eq!(e.avg.load_avg, weight * e.avg.load_sum / u64::from(e.avg.divider()));
        assert_eq!(k.cfs_rqs[0].avg.load_avg, rest + e.avg.load_avg);
        assert_eq!(broken_averages(&k), None);
    }
}

#[test]
fn blocked_load_decays_away_and_the_leaves_leave_the_list() {
    let (mut k, mut hw) = at_one_second(&[0, 1, 1], &[2, 3]);
    for pid in [FIRST_PID, FIRST_PID + 1] {
        k.try_to_wake_up(&mut hw, pid);
        k.schedule(&mut hw);
        hw.now += 20_000_000;
        k.block_current(pid);
        k.schedule(&mut hw);
    }
    let mut loads = Vec::new();
    for _ in 0..3000 {
        hw.now += 1_000_000;
        k.update_rq_clock(&mut hw);
        k.update_blocked_averages(&mut hw);
        assert_eq!(crate::machine::broken(&k), None);
        loads.push(k.cfs_rqs[0].avg.load_avg);
    }
    assert!(loads.is_sorted_by(|a, b| a >= b), "{loads:?}");
    assert_eq!(loads.last(), Some(&0));
    assert_eq!(k.leaf_first(), None);
    assert!((1..4).all(|g| k.task_groups[g].load_avg == 0));
}

#[test]
fn a_group_that_always_runs_has_the_averages_of_its_cfs_rq() {
    let mut p = page(&[0, 1], &[2]);
    p.tasks[0].sleep_min_ns = 0;
    p.tasks[0].sleep_max_ns = 0;
    let mut bench = Bench::boot(&p, Machine::new());
    while bench.hw.now < 1_000_000_000 {
        step(&mut bench);
    }
    let k = &bench.kernel;
    for g in [1, 2] {
        let (e, q) = (&k.ses[g].avg, &k.cfs_rqs[g].avg);
        assert!(e.util_avg.abs_diff(q.util_avg) <= 1, "{e:?} {q:?}");
        assert!(e.runnable_avg.abs_diff(q.runnable_avg) <= 1);
        assert!(e.util_avg >= 1022);
    }
}

/// A workload of blocking and of forking tasks in three levels.
fn churn(seed: u64, forks: bool, steal: u64) -> Bench {
    let mut p = page(&[0, 1, 1, 0], &[2, 2, 3, 4, 1, 0]);
    for (i, t) in p.tasks.iter_mut().take(6).enumerate() {
        t.seed = seed.wrapping_add(i as u64);
        t.weight = [1024, 15, 88761, 1024, 3, 335][i];
        t.flags = if forks { TASK_FORK } else { 0 };
    }
    let mut hw = Machine::new();
    hw.rng.0 = seed;
    hw.steal_max = steal;
    Bench::boot(&p, hw)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn no_sum_wraps_or_falls_below_its_average(
        seed in 1u64..,
        forks in any::<bool>(),
        steal in prop_oneof![Just(0), Just(500_000)],
    ) {
        let mut bench = churn(seed, forks, steal);
        while bench.hw.now < 100_000_000 {
            step(&mut bench);
            prop_assert_eq!(broken_averages(&bench.kernel), None);
        }
    }

    #[test]
    fn no_cfs_rq_is_used_for_more_than_the_cpu_once_new_tasks_have_settled(seed in 1u64..) {
        // New tasks take half of what their own group has left, so together they start above 1,024.
        let mut bench = churn(seed, false, 0);
        while bench.hw.now < 600_000_000 {
            step(&mut bench);
        }
        for q in &bench.kernel.cfs_rqs[..5] {
            prop_assert!(q.avg.util_avg <= 1024 + 8, "{:?}", q.avg);
        }
    }

    #[test]
    fn a_cfs_rq_has_the_sum_of_what_its_entities_have(seed in 1u64..) {
        let mut bench = churn(seed, false, 0);
        while bench.hw.now < 100_000_000 {
            step(&mut bench);
        }
        let k = &mut bench.kernel;
        // Everything to the same instant, leaves first.
        bench.hw.now += 3_000_000;
        k.update_rq_clock(&mut bench.hw);
        k.update_blocked_averages(&mut bench.hw);
        let now = k.rq_clock_pelt();
        let members: Vec<usize> = (1..5).chain((2..8).map(task_se)).collect();
        for se in &members {
            let running = k.cfs_rqs[k.ses[*se].cfs_rq as usize].curr as usize == *se;
            if k.ses[*se].attached {
                k.ses[*se].update_load_avg_se(now, running);
            }
        }
        for g in 0..5u16 {
            let util: u64 = members
                .iter()
                .filter(|se| k.ses[**se].cfs_rq == g && k.ses[**se].attached)
                .map(|se| k.ses[*se].avg.util_avg)
                .sum();
            let got = k.cfs_rqs[g as usize].avg.util_avg;
            prop_assert!(got.abs_diff(util) <= 8, "group {}: {} of {}", g, got, util);
        }
    }

    #[test]
    fn no_average_and_no_sum_panics(
        sums in proptest::collection::vec(any::<(u64, u64, u32, u64, u64, u64)>(), 4),
        prop in any::<i64>(),
        weight in any::<u64>(),
        flags in 0u32..16,
    ) {
        let (mut k, mut hw) = booted(&[0], &[1]);
        let avg = |i: usize| SchedAvg {
            load_sum: sums[i].0,
            runnable_sum: sums[i].1,
            util_sum: sums[i].2,
            load_avg: sums[i].3,
            runnable_avg: sums[i].4,
            util_avg: sums[i].5,
            ..SchedAvg::default()
        };
        k.cfs_rqs[0].avg = avg(0);
        k.cfs_rqs[1].avg = avg(1);
        k.ses[1].avg = avg(2);
        k.ses[task_se(FIRST_PID)].avg = avg(3);
        k.cfs_rqs[1].propagate = 1;
        k.cfs_rqs[1].prop_runnable_sum = prop;
        k.ses[task_se(FIRST_PID)].load_weight = weight;
        k.cfs_rqs[1].load_weight = weight;
        k.update_load_avg(&mut hw, 1, task_se(FIRST_PID), flags);
        k.update_load_avg(&mut hw, 0, 1, flags);
        k.update_cfs_group(1);
        k.update_blocked_averages(&mut hw);
        k.init_entity_averages(FIRST_PID);
    }
}
