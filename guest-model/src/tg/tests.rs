use proptest::prelude::*;

use crate::machine::booted;
use crate::policy::RateLimitClock::{self, *};

/// `sched_clock_cpu()`, `rq->clock` and `rq->clock_task`, each apart from the others.
fn set_clocks(k: &mut crate::kernel::Kernel, hw: &mut crate::machine::Machine, at: [u64; 3]) {
    (hw.now, k.rq.clock, k.rq.clock_task) = (at[0], at[1], at[2]);
}

#[test]
fn each_policy_limits_on_its_own_clock_call_by_call() {
    // Clocks in us (sched_clock_cpu, rq->clock, rq->clock_task), load_avg, and which of the three
    // policies publish.
    let rows = [
        ([1000, 1000, 1000], 100, [true, true, true]),
        ([1999, 1999, 1999], 200, [false, false, false]),
        ([2000, 1999, 1500], 200, [true, false, false]),
        ([2100, 2000, 1600], 200, [false, true, false]),
        ([3000, 3000, 2000], 400, [true, true, true]),
        // 1/64 of 400 is 6.
        ([5000, 5000, 5000], 406, [false, false, false]),
        ([5000, 5000, 5000], 394, [false, false, false]),
        ([5000, 5000, 5000], 407, [true, true, true]),
        ([5000, 5000, 5000], 0, [false, false, false]),
        ([6000, 5999, 5999], 0, [true, false, false]),
        ([7000, 6000, 6000], 0, [false, true, true]),
    ];
    for (policy, clock) in RateLimitClock::ALL.into_iter().enumerate() {
        let (mut k, mut hw) = booted(&[0], &[]);
        k.policy.rate_limit_clock = clock;
        for (i, (us, load_avg, publishes)) in rows.iter().enumerate() {
            set_clocks(&mut k, &mut hw, us.map(|t| t * 1000));
            let before = k.cfs_rqs[1].clone();
            k.cfs_rqs[1].avg.load_avg = *load_avg;
            k.update_tg_load_avg(&mut hw, 1);
            let q = &k.cfs_rqs[1];
            let expected = if publishes[policy] {
                (*load_avg, us[policy] * 1000)
            } else {
                (before.tg_load_avg_contrib, before.last_update_tg_load_avg)
            };
            let got = (q.tg_load_avg_contrib, q.last_update_tg_load_avg);
            assert_eq!(got, expected, "{} row {i}", clock.name());
            assert_eq!(k.task_groups[1].load_avg, q.tg_load_avg_contrib);
        }
        let calls = rows.len() as u64;
        let reads = if clock == SchedClockCpu { calls } else { 0 };
        let c = &k.costs;
        assert_eq!((c.update_tg_load_avg_calls, c.clock_reads_update_tg_load_avg), (calls, reads));
        let outcomes = c.update_tg_load_avg_rate_limited
            + c.update_tg_load_avg_below_tolerance
            + c.tg_load_avg_atomic_adds;
        assert_eq!(outcomes, calls);
    }
}

#[test]
fn the_root_group_and_an_inactive_cpu_publish_nothing_and_read_no_clock() {
    let (mut k, mut hw) = booted(&[0], &[]);
    k.policy.rate_limit_clock = SchedClockCpu;
    hw.now = 1 << 40;
    for q in &mut k.cfs_rqs {
        q.avg.load_avg = 1000;
    }
    let before = k.costs.clone();
    k.update_tg_load_avg(&mut hw, 0);
    k.clear_tg_load_avg(&mut hw, 0);
    assert_eq!(k.costs, before);
    k.cpu_active = false;
    k.update_tg_load_avg(&mut hw, 1);
    assert_eq!(k.costs.clock_reads_update_tg_load_avg, 0);
    assert_eq!((k.task_groups[0].load_avg, k.task_groups[1].load_avg), (0, 0));
}

#[test]
fn going_offline_takes_every_contribution_out_and_stamps_the_limit() {
    for clock in RateLimitClock::ALL {
        let (mut k, mut hw) = booted(&[0, 1, 0], &[]);
        k.policy.rate_limit_clock = clock;
        for g in 1..4 {
            k.cfs_rqs[g].tg_load_avg_contrib = 10 * g as u64;
            // Another CPU's contribution stays.
            k.task_groups[g].load_avg = 10 * g as u64 + 5;
        }
        (hw.now, hw.steal) = (9_000_000, 2_000_000);
        k.set_rq_offline(&mut hw);
        for g in 1..4 {
            let q = &k.cfs_rqs[g];
            assert_eq!((k.task_groups[g].load_avg, q.tg_load_avg_contrib), (5, 0));
            let now = if clock == RqClockTask { 7_000_000 } else { 9_000_000 };
            assert_eq!(q.last_update_tg_load_avg, now);
        }
        assert!(!k.cpu_active);
    }
}

proptest! {
    #[test]
    fn what_is_published_is_the_sum_of_what_was_moved(
        calls in proptest::collection::vec((any::<u64>(), any::<u64>()), 1..40),
        clock in 0usize..3,
    ) {
        let (mut k, mut hw) = booted(&[0], &[]);
        k.policy.rate_limit_clock = RateLimitClock::ALL[clock];
        for (now, load_avg) in calls {
            set_clocks(&mut k, &mut hw, [now; 3]);
            k.cfs_rqs[1].avg.load_avg = load_avg;
            let old = k.cfs_rqs[1].clone();
            k.update_tg_load_avg(&mut hw, 1);
            let q = &k.cfs_rqs[1];
            prop_assert_eq!(k.task_groups[1].load_avg, q.tg_load_avg_contrib);
            let moved = load_avg.wrapping_sub(old.tg_load_avg_contrib) as i64;
            let due = now.wrapping_sub(old.last_update_tg_load_avg) >= 1_000_000
                && i128::from(moved).unsigned_abs() > u128::from(old.tg_load_avg_contrib / 64);
            prop_assert_eq!(q.last_update_tg_load_avg, if due { now } else { old.last_update_tg_load_avg });
        }
    }
}
