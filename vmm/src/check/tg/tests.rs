use super::{Staleness, TgRow, weight_error_ppm};
use crate::check::CheckId::*;
use crate::check::tests::history::{A, History, OFFLINE_NS};
use crate::view::{Call, CfsRqView, CostsView, RQCF_ACT_SKIP, RunnableView};
use guest_model::policy::{PsiZeroDelta, RateLimitClock};

fn under(clock: RateLimitClock) -> History {
    History::under(clock, PsiZeroDelta::Skip)
}

/// The clocks read: the host's, `rq->clock` and `rq->clock_task`.
fn clocks(h: &mut History, at: u64, clock: u64, clock_task: u64) {
    h.mark.at_ns = at;
    h.rq.clock_ns = clock;
    h.rq.clock_task_ns = clock_task;
}

/// The rate limit's clock reads `now`, the others something else.
fn limit_clock(h: &mut History, policy: RateLimitClock, now: u64) {
    match policy {
        RateLimitClock::SchedClockCpu => clocks(h, now, now - 300_000, now - 500_000),
        RateLimitClock::RqClock => clocks(h, now + 300_000, now, now - 500_000),
        RateLimitClock::RqClockTask => clocks(h, now + 300_000, now + 200_000, now),
    }
}

/// 640 is published at 1 ms of the rate limit's clock.
fn published(policy: RateLimitClock) -> History {
    let mut h = under(policy);
    limit_clock(&mut h, policy, 1_000_000);
    h.load(1, 640);
    h.publishes(1, 1_000_000);
    h
}

#[test]
fn under_each_clock_a_change_is_limited_within_tolerance_or_published_to_the_nanosecond() {
    for policy in RateLimitClock::ALL {
        let mut h = under(policy);
        // The first publish is allowed 1 ms after 0, and not 1 ns before.
        limit_clock(&mut h, policy, 999_999);
        h.load(1, 640);
        h.keeps(1);
        limit_clock(&mut h, policy, 1_000_000);
        h.publishes(1, 1_000_000);
        // 1 ns less than a millisecond later, 1 beyond 640/64.
        limit_clock(&mut h, policy, 1_999_999);
        h.load(1, 651);
        h.keeps(1);
        // Allowed, and exactly 640/64 off; then 1 more.
        limit_clock(&mut h, policy, 2_000_000);
        h.load(1, 650);
        h.keeps(1);
        h.load(1, 651);
        h.publishes(1, 2_000_000);
        // As much down: 651/64 is 10.
        limit_clock(&mut h, policy, 3_000_000);
        h.load(1, 641);
        h.keeps(1);
        h.load(1, 640);
        h.publishes(1, 3_000_000);
        let end = h.end();
        for id in [TgRateLimit, TgTolerance, TgPublished, TgSum] {
            assert_eq!(end.result(id).failures, 0, "{policy:?} {id:?}");
        }
        let row = end.measured.tg;
        assert_eq!((row.calls, row.published, row.offline), (7, 3, 0), "{policy:?}");
        assert_eq!((row.rate_limited, row.below_tolerance), (2, 2), "{policy:?}");
    }
}

#[test]
fn under_each_clock_a_publish_one_nanosecond_early_fails() {
    for policy in RateLimitClock::ALL {
        let mut h = published(policy);
        limit_clock(&mut h, policy, 1_999_999);
        h.load(1, 700);
        h.publishes(1, 1_999_999);
        let at_ns = h.mark.at_ns;
        let end = h.end();
        let result = end.result(TgRateLimit);
        let first = result.first.as_ref().unwrap();
        let detail = format!(
            "group 1 published 999999 ns after its last publish and stamped 1999999; {} is 1999999",
            policy.name()
        );
        assert_eq!((result.failures, first.at_ns, &first.detail), (1, at_ns, &detail));
    }
}

#[test]
fn under_each_clock_a_due_publish_left_out_fails() {
    for policy in RateLimitClock::ALL {
        let mut h = published(policy);
        limit_clock(&mut h, policy, 2_000_000);
        h.load(1, 651);
        h.keeps(1);
        let end = h.end();
        let result = end.result(TgPublished);
        assert_eq!(
            (result.failures, result.first.as_ref().unwrap().detail.as_str()),
            (1, "group 1 kept 640 published for a load of 651, 1000000 ns after its last publish")
        );
    }
}

#[test]
fn under_each_clock_the_stamp_of_another_clock_fails() {
    for policy in RateLimitClock::ALL {
        let mut h = published(policy);
        limit_clock(&mut h, policy, 2_500_000);
        h.load(1, 700);
        h.publishes(1, 2_500_001);
        let end = h.end();
        let detail = &end.result(TgRateLimit).first.as_ref().unwrap().detail;
        let expected = format!(
            "group 1 published 1500000 ns after its last publish and stamped 2500001; {} is 2500000",
            policy.name()
        );
        assert_eq!(detail, &expected);
    }
}

#[test]
fn a_publish_of_less_than_the_whole_change_fails() {
    let mut h = History::new();
    h.runs_to(1_000_000);
    h.load(1, 640);
    h.call(Call::UpdateTgLoadAvg { group: 1 }, |h| {
        let cfs = &mut h.groups[1].0;
        (cfs.tg_load_avg_contrib, cfs.tg_load_avg) = (600, 600);
        cfs.last_update_tg_load_avg_ns = 1_000_000;
    });
    let detail = "group 1 published 600 for a load of 640, 0 being published; 1/64 of that is 0";
    h.end().only(&[(TgTolerance, 1, 1_000_000, detail)]);
}

#[test]
fn a_stamp_without_a_change_is_a_publish_as_well() {
    let mut h = published(RateLimitClock::RqClock);
    h.runs_to(2_000_000);
    h.publishes(1, 2_000_000);
    let detail = "group 1 published 640 for a load of 640, 640 being published; 1/64 of that is 10";
    let end = h.end();
    assert_eq!(end.result(TgTolerance).first.as_ref().unwrap().detail, detail);
    assert_eq!(end.measured.tg.published, 2);
}

#[test]
fn groups_are_limited_apart() {
    let mut h = published(RateLimitClock::RqClock);
    clocks(&mut h, 1_300_000, 1_300_000, 1_300_000);
    h.load(2, 64);
    h.publishes(2, 1_300_000);
    clocks(&mut h, 2_000_000, 2_000_000, 2_000_000);
    h.load(1, 700);
    h.publishes(1, 2_000_000);
    h.load(2, 70);
    h.keeps(2);
    let end = h.end();
    assert_eq!(end.result(TgRateLimit).failures, 0);
    assert_eq!(end.measured.tg.rate_limited, 1);
}

/// Two groups in turn. `clock_task` falls behind `clock` by 500 us in all.
fn two_groups() -> History {
    let mut h = History::new();
    let at = |h: &mut History, clock, task| clocks(h, clock, clock, task);
    at(&mut h, 1_000_000, 1_000_000);
    h.load(1, 640);
    h.publishes(1, 1_000_000);
    h.load(2, 64);
    h.publishes(2, 1_000_000);
    at(&mut h, 1_200_000, 1_150_000);
    h.load(1, 740);
    h.keeps(1);
    at(&mut h, 1_500_000, 1_400_000);
    h.load(1, 800);
    h.keeps(1);
    h.load(2, 1_000);
    h.keeps(2);
    at(&mut h, 1_900_000, 1_600_000);
    h.load(2, 500);
    h.keeps(2);
    at(&mut h, 2_000_000, 1_700_000);
    h.publishes(1, 2_000_000);
    at(&mut h, 2_100_000, 1_800_000);
    h.load(1, 900);
    h.keeps(1);
    at(&mut h, 2_300_000, 1_850_000);
    // Within 1/64 again without a publish.
    h.load(1, 810);
    h.keeps(1);
    at(&mut h, 2_800_000, 2_300_000);
    h
}

#[test]
fn staleness_is_measured_by_group_on_both_clocks_and_summed() {
    let end = two_groups().end();
    end.holds();
    let [root, one, two] = end.measured.tg_groups[..] else { panic!("three groups") };
    assert_eq!(root, Staleness::default());
    // Stale from 1.2 ms to 2.0 ms (task 1.15 to 1.7) and from 2.1 ms to 2.3 ms (task 1.8 to 1.85).
    let expected = Staleness {
        max_ns: 800_000,
        max_task_ns: 550_000,
        sum_ns: 800_000 + 200_000,
        sum_task_ns: 550_000 + 50_000,
        count: 2,
        max_load: 160,
        load_ns: 100 * 300_000 + 160 * 500_000 + 100 * 200_000 + 10 * 500_000,
        // 100 of 740 + 640, 160 of 800 + 640, 100 of 900 + 800, 10 of 810 + 800.
        max_weight_error_ppm: 111_111,
        weight_error_ppm_ns: 72_463 * 300_000
            + 111_111 * 500_000
            + 58_823 * 200_000
            + 6_211 * 500_000,
    };
    assert_eq!(one, expected);
    assert_eq!((one.mean_ns(), one.mean_task_ns()), (500_000, 300_000));
    // Stale from 1.5 ms to the end (task 1.4 to 2.3).
    let expected = Staleness {
        max_ns: 1_300_000,
        max_task_ns: 900_000,
        sum_ns: 1_300_000,
        sum_task_ns: 900_000,
        count: 1,
        max_load: 936,
        load_ns: 936 * 400_000 + 436 * 900_000,
        // 936 of 1000 + 64, 436 of 500 + 64.
        max_weight_error_ppm: 879_699,
        weight_error_ppm_ns: 879_699 * 400_000 + 773_049 * 900_000,
    };
    assert_eq!(two, expected);
    let sum = end.measured.tg.staleness;
    let expected = Staleness {
        max_ns: 1_300_000,
        max_task_ns: 900_000,
        sum_ns: 2_300_000,
        sum_task_ns: 1_500_000,
        count: 3,
        max_load: 936,
        load_ns: 901_800_000,
        max_weight_error_ppm: 879_699,
        weight_error_ppm_ns: one.weight_error_ppm_ns + two.weight_error_ppm_ns,
    };
    assert_eq!(sum, expected);
    assert_eq!(sum.mean_weight_error_ppm(2_800_000, 2), 203_533);
    assert_eq!((sum.mean_ns(), sum.mean_task_ns()), (766_666, 500_000));
    assert_eq!(sum.mean_load_milli(2_800_000, 2), 161_035);
}

#[test]
fn a_weight_error_is_how_far_another_cpu_with_the_same_load_is_off() {
    // calc_group_shares() of a CPU that publishes all of its load, tg->shares being 1024 << 10.
    let shares =
        |load: u64, elsewhere: u64| ((1024 << 10) * load) as f64 / (load + elsewhere) as f64;
    for (load, contrib) in [(740, 640), (640, 740), (1000, 64), (64, 1000), (3, 2), (5, 0)] {
        let (right, seen) = (shares(load, load), shares(load, contrib));
        let error = ((seen - right).abs() / right * 1e6) as u64;
        assert!(weight_error_ppm(load, contrib).abs_diff(error) <= 1, "{load} {contrib}");
    }
    // By hand: 100 of 1380, of 1024 shares 552.6 instead of 512.
    assert_eq!(weight_error_ppm(740, 640), 72_463);
    assert_eq!((weight_error_ppm(0, 0), weight_error_ppm(7, 7)), (0, 0));
    assert_eq!((weight_error_ppm(0, 9), weight_error_ppm(9, 0)), (1_000_000, 1_000_000));
    assert_eq!(weight_error_ppm(u64::MAX, 0), 1_000_000);
}

#[test]
fn a_run_that_was_stopped_keeps_the_staleness_up_to_there() {
    let end = two_groups().stop();
    assert_eq!(end.measured.tg.staleness.load_ns, 901_800_000);
    assert_eq!(end.measured.tg.staleness.count, 3);
}

#[test]
fn an_age_counts_for_the_worst_before_the_stale_period_ends() {
    let mut h = published(RateLimitClock::RqClock);
    h.load(1, 700);
    for (clock, task) in [(1_100_000, 1_000_000), (1_200_000, 1_080_000)] {
        clocks(&mut h, clock, clock, task);
        h.keeps(1);
    }
    let Staleness { max_ns, max_task_ns, count, .. } = h.checks.tg.groups[1].staleness;
    assert_eq!((max_ns, max_task_ns, count), (100_000, 80_000, 0));
}

#[test]
fn nothing_measured_has_no_mean() {
    let none = Staleness::default();
    assert_eq!((none.mean_ns(), none.mean_task_ns(), none.mean_load_milli(0, 0)), (0, 0, 0));
}

#[test]
fn a_hostile_guests_load_and_clock_saturate_the_integral() {
    let mut h = History::new();
    for clock in [0, u64::MAX, 0, u64::MAX, 0] {
        clocks(&mut h, 0, clock, !clock);
        for group in [1, 2] {
            h.load(group, u64::MAX);
            h.keeps(group);
        }
    }
    let sum = h.stop().measured.tg.staleness;
    assert_eq!((sum.load_ns, sum.max_load), (u128::MAX, u64::MAX));
    assert_eq!(sum.mean_load_milli(1, 1), u64::MAX);
}

#[test]
fn a_group_with_load_that_was_never_asked_fails_at_the_end() {
    let mut h = History::new();
    h.runs_to(1_000);
    h.load(1, 5);
    h.keeps(1);
    h.load(2, 5);
    let detail = "group 2 has load 5 and was never asked to publish";
    h.end().only(&[(TgPublished, 1, 1_000, detail)]);
}

#[test]
fn the_roots_load_is_never_published() {
    let mut h = History::new();
    h.load(0, 5);
    h.groups[0].0.tg_load_avg = 9;
    h.end().holds();
}

/// The tick takes the CPU offline, with all contributions cleared.
fn offline() -> History {
    let mut h = published(RateLimitClock::SchedClockCpu);
    clocks(&mut h, OFFLINE_NS, OFFLINE_NS, OFFLINE_NS);
    h.tick(OFFLINE_NS, A, |_| {});
    h.load(1, 900);
    h.clears(1);
    h.clears(2);
    h.call(Call::IrqtimeAccountIrq { offset: 0 }, |_| {});
    h
}

#[test]
fn an_offline_cpu_publishes_nothing_however_large_the_change() {
    let mut h = offline();
    h.runs_to(OFFLINE_NS + 5_000_000);
    h.keeps(1);
    // One publish and two clears; the call while offline reads no clock.
    h.costs = Some(CostsView {
        clock_reads_update_tg_load_avg: 3,
        tg_load_avg_atomic_adds: 3,
        ..CostsView::default()
    });
    let end = h.end();
    assert_eq!(end.result(TgOffline).failures, 0);
    assert_eq!(end.result(TgPublished).failures, 0);
    assert_eq!(end.result(Costs).failures, 0);
    let TgRow { calls, published, offline, rate_limited, .. } = end.measured.tg;
    assert_eq!((calls, published, offline, rate_limited), (2, 1, 1, 0));
    // A cleared contribution is not stale.
    assert_eq!(end.measured.tg.staleness, Staleness::default());
}

#[test]
fn a_publish_while_offline_fails_then_and_at_the_end() {
    let mut h = offline();
    h.runs_to(OFFLINE_NS + 5_000_000);
    h.publishes(1, OFFLINE_NS + 5_000_000);
    let end = h.end();
    let result = end.result(TgOffline);
    let first = result.first.as_ref().unwrap();
    assert_eq!((result.failures, first.at_ns), (2, OFFLINE_NS + 5_000_000));
    assert_eq!(first.detail, "group 1 published 900 while offline");
}

#[test]
fn what_is_still_contributed_at_the_end_of_an_offline_run_fails() {
    let mut h = offline();
    h.groups[2].0.tg_load_avg = 7;
    h.groups[2].0.tg_load_avg_contrib = 7;
    let end = h.end();
    let first = end.result(TgOffline).first.as_ref().unwrap();
    assert_eq!(first.detail, "group 2 ends offline with tg->load_avg 7");
}

#[test]
fn a_contribution_that_a_clear_leaves_fails() {
    let mut h = published(RateLimitClock::RqClock);
    h.call(Call::ClearTgLoadAvg { group: 1 }, |h| h.groups[1].0.tg_load_avg_contrib = 0);
    let end = h.end();
    let first = end.result(TgOffline).first.as_ref().unwrap();
    let detail = "group 1 still contributes 0 of tg->load_avg 640 after clear_tg_load_avg()";
    assert_eq!(first.detail, detail);
    assert_eq!(end.result(TgSum).failures, 2);
}

#[test]
fn a_clear_ends_what_was_stale() {
    let mut h = published(RateLimitClock::RqClock);
    clocks(&mut h, 1_200_000, 1_200_000, 1_150_000);
    h.load(1, 740);
    h.keeps(1);
    clocks(&mut h, 1_500_000, 1_500_000, 1_400_000);
    h.clears(1);
    clocks(&mut h, 9_000_000, 9_000_000, 9_000_000);
    let expected = Staleness {
        max_ns: 300_000,
        max_task_ns: 250_000,
        sum_ns: 300_000,
        sum_task_ns: 250_000,
        count: 1,
        max_load: 100,
        load_ns: 100 * 300_000,
        max_weight_error_ppm: 72_463,
        weight_error_ppm_ns: 72_463 * 300_000,
    };
    assert_eq!(h.end().measured.tg_groups[1], expected);
}

#[test]
fn before_its_time_no_tick_takes_the_cpu_offline() {
    let mut h = History::new();
    h.tick(OFFLINE_NS - 1, A, |_| {});
    h.call(Call::IrqtimeAccountIrq { offset: 0 }, |_| {});
    assert_eq!(h.end().result(TgOffline).evaluated, 0);
}

#[test]
fn a_contribution_is_the_sum_of_one() {
    let mut h = published(RateLimitClock::RqClock);
    h.groups[1].0.tg_load_avg = 641;
    h.mark.at_ns = 2_000_000;
    let detail = "group 1: tg->load_avg is 641, the contributions add up to 640";
    let end = h.end();
    let first = end.result(TgSum).first.as_ref().unwrap();
    assert_eq!((first.at_ns, first.detail.as_str()), (2_000_000, detail));
}

#[test]
fn a_call_for_a_group_that_is_not_known_is_passed_over() {
    let mut h = History::new();
    let cfs = CfsRqView { group: 9, load_avg: 5, ..CfsRqView::default() };
    h.groups[1].0 = cfs;
    h.keeps(1);
    assert_eq!(h.stop().measured.tg, TgRow::default());
}

#[test]
fn the_leaf_list_has_each_group_once_and_children_first() {
    for (leaves, found) in [
        (vec![2, 1, 0], None),
        (vec![1, 0], None),
        (vec![0], None),
        (vec![], None),
        (vec![2, 1, 2, 0], Some("group 2 is on the leaf list twice")),
        (vec![2, 1, 0, 0], Some("group 0 is on the leaf list twice")),
        (vec![1, 2, 0], Some("group 2 is not before its parent")),
        (vec![2, 0, 1], Some("group 1 is not before its parent")),
        (vec![2, 0], Some("group 2 is not before its parent")),
        (vec![2, 1], Some("group 1 is not before its parent")),
    ] {
        let mut h = History::new();
        h.leaves = leaves.clone();
        h.tick(1_000_000, A, |_| {});
        let end = h.end();
        assert_eq!(end.result(LeafList).evaluated, 1);
        let first = end.result(LeafList).first.as_ref();
        let expected = found.map(|detail| (1_000_000, detail));
        assert_eq!(first.map(|f| (f.at_ns, f.detail.as_str())), expected, "{leaves:?}");
    }
}

#[test]
fn the_list_of_the_last_tick_is_forgotten() {
    let mut h = History::new();
    h.tick(1_000_000, A, |_| {});
    h.leaves = vec![1, 0];
    h.tick(2_000_000, A, |_| {});
    h.end().holds();
}

#[test]
fn the_guests_counters_are_compared_and_only_sched_clock_cpu_is_read() {
    for policy in RateLimitClock::ALL {
        let reads = if policy == RateLimitClock::SchedClockCpu { 3 } else { 0 };
        let costs = CostsView {
            clock_reads_update_tg_load_avg: reads,
            update_tg_load_avg_rate_limited: 1,
            update_tg_load_avg_below_tolerance: 1,
            tg_load_avg_atomic_adds: 1,
            ..CostsView::default()
        };
        let history = |costs| {
            let mut h = published(policy);
            limit_clock(&mut h, policy, 1_500_000);
            h.keeps(1);
            limit_clock(&mut h, policy, 2_000_000);
            h.keeps(1);
            h.costs = Some(costs);
            let result = h.end().result(Costs).clone();
            (result.failures, result.first.map(|f| f.detail))
        };
        assert_eq!(history(costs), (0, None));
        for (costs, counts) in [
            (
                CostsView { clock_reads_update_tg_load_avg: reads + 1, ..costs },
                format!("{} clock reads, {reads} were", reads + 1),
            ),
            (
                CostsView { update_tg_load_avg_rate_limited: 0, ..costs },
                "0 rate-limited calls, 1 were".into(),
            ),
            (
                CostsView { update_tg_load_avg_below_tolerance: 7, ..costs },
                "7 calls within 1/64, 1 were".into(),
            ),
            (CostsView { tg_load_avg_atomic_adds: 2, ..costs }, "2 atomic adds, 1 were".into()),
        ] {
            let detail = format!("update_tg_load_avg(): the guest counts {counts} seen");
            assert_eq!(history(costs), (1, Some(detail)));
        }
    }
}

#[test]
fn the_clears_of_going_offline_read_the_clock_and_add_too() {
    let mut h = published(RateLimitClock::SchedClockCpu);
    h.clears(1);
    h.clears(2);
    h.costs = Some(CostsView {
        clock_reads_update_tg_load_avg: 3,
        tg_load_avg_atomic_adds: 3,
        ..CostsView::default()
    });
    assert_eq!(h.end().result(Costs).failures, 0);
}

/// As [`published`], with all clocks at the same time.
fn published_at_one_time() -> History {
    let mut h = History::new();
    clocks(&mut h, 1_000_000, 1_000_000, 1_000_000);
    h.load(1, 640);
    h.publishes(1, 1_000_000);
    h
}

/// What 7.3 publishes beside the load.
fn runnable(h: &mut History, group: usize, runnable_avg: u64, contrib: u64) {
    let view =
        RunnableView { runnable_avg, tg_runnable_avg_contrib: contrib, tg_runnable_avg: contrib };
    h.groups[group].0.runnable = Some(view);
}

#[test]
fn a_change_of_the_runnable_average_alone_is_published_as_well_with_all_of_it() {
    let published = || {
        let mut h = published_at_one_time();
        clocks(&mut h, 2_000_000, 2_000_000, 2_000_000);
        runnable(&mut h, 1, 130, 128);
        h
    };
    let call = Call::UpdateTgLoadAvg { group: 1 };
    // 128/64 is 2, and the change is 2.
    let mut h = published();
    h.keeps(1);
    runnable(&mut h, 1, 131, 128);
    h.call(call, |h| {
        runnable(h, 1, 131, 131);
        h.groups[1].0.last_update_tg_load_avg_ns = 2_000_000;
    });
    h.end().holds();

    // Allowed and due, and not done.
    let mut h = published();
    runnable(&mut h, 1, 131, 128);
    h.keeps(1);
    assert_eq!(h.end().failed(), [TgPublished]);

    // Stamped, and the runnable average forgotten.
    let mut h = published();
    runnable(&mut h, 1, 131, 128);
    h.call(call, |h| h.groups[1].0.last_update_tg_load_avg_ns = 2_000_000);
    assert_eq!(h.end().failed(), [TgTolerance]);

    // The sum moves by another amount.
    let mut h = published();
    h.call(call, |h| {
        if let Some(r) = &mut h.groups[1].0.runnable {
            r.tg_runnable_avg += 1;
        }
    });
    assert_eq!(h.end().failed(), [TgSum]);
}

#[test]
fn the_root_publishes_nothing_and_is_not_judged() {
    let mut h = published_at_one_time();
    h.load(0, 5_000);
    h.call(Call::UpdateTgLoadAvg { group: 0 }, |_| {});
    let end = h.end();
    end.holds();
    assert_eq!(end.measured.tg.calls, 1);
}

#[test]
fn a_clock_is_as_fresh_as_a_switch_that_skips_its_update_left_it_and_no_longer() {
    let mut h = History::new();
    h.runs_to(1_000);
    h.rq.clock_update_flags = RQCF_ACT_SKIP;
    h.mark.at_ns = 1_500;
    h.call(Call::UpdateRqClock, |_| {});
    // The switch goes on with other flags.
    h.rq.clock_update_flags = 4;
    h.keeps(1);
    let skipped_later = |later_ns: u64| {
        let mut h = History::new();
        h.runs_to(1_000);
        h.rq.clock_update_flags = RQCF_ACT_SKIP;
        h.mark.at_ns = 1_500;
        h.call(Call::UpdateRqClock, |_| {});
        h.mark.at_ns += later_ns;
        h.keeps(1);
        h.end().failed()
    };
    h.end().holds();
    assert_eq!(skipped_later(0), []);
    assert_eq!(skipped_later(1), [RqClockFresh]);
}
