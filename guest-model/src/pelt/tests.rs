use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::machine::booted;
use crate::wire::FIRST_PID;

/// y^n, by squaring in floating point.
fn y(n: u64) -> f64 {
    0.5f64.powf(n as f64 / 32.0)
}

/// The sum that a history of (units, runs) spans leaves at its end, period by period in floating
/// point: each unit of the period that lies p boundaries back counts y^p.
fn naive_sum(history: &[(u64, bool)]) -> f64 {
    let total: u64 = history.iter().map(|(units, _)| units).sum();
    let last = total / 1024;
    let (mut at, mut sum) = (0, 0.0);
    for (units, runs) in history {
        let end = at + units;
        while at < end {
            let until = end.min((at / 1024 + 1) * 1024);
            if *runs {
                sum += (until - at) as f64 * y(last - at / 1024);
            }
            at = until;
        }
    }
    sum
}

#[test]
fn yn_table_is_y_to_the_n_rounded_down() {
    // An exact bound: inv[n]^32 * 2^n <= (2^32)^32 would need big integers; floating point in
    // double precision is off by less than one unit here, which is what is asserted.
    for (n, inv) in RUNNABLE_AVG_YN_INV.iter().enumerate() {
        let exact = f64::from(u32::MAX) * y(n as u64);
        assert!((exact - f64::from(*inv)).abs() <= 1.5, "n {n}: {exact} {inv}");
    }
}

#[test]
fn decay_halves_every_32_periods_and_ends_at_2016() {
    for k in 0..63 {
        assert_eq!(decay_load(1 << 40, 32 * k), decay_load((1 << 40) >> k, 0));
    }
    assert_eq!(decay_load(u64::MAX, 32 * 62), 2);
    assert_eq!(decay_load(u64::MAX, 32 * 63 + 1), 0);
    assert_eq!(decay_load(u64::MAX, u64::MAX), 0);
}

#[test]
fn decay_in_32_bits_is_decay_in_64_for_every_number_of_periods() {
    for n in 0..2100 {
        for val in [0, 1, 1023, 1024, LOAD_AVG_MAX, 1 << 26, u32::MAX - 1, u32::MAX] {
            let wide = Decay::over(n).apply(val.into());
            assert_eq!(u64::from(Decay::over(n).apply_u32(val)), wide, "{val} * y^{n}");
        }
    }
}

#[test]
fn a_span_of_whole_periods_adds_1024_times_the_powers_of_y_between() {
    for n in 1..2100u64 {
        let naive = 1024.0 * (1..n).map(y).sum::<f64>();
        let got = f64::from(Decay::over(n).segments(0, 0) as i32);
        // LOAD_AVG_MAX is the sum of integers rounded down at each step, 47742 for 47788.2.
        assert!(got <= naive + 1.0 && naive - got <= 47.0, "{n} periods: {got}, {naive}");
    }
}

#[test]
fn a_cpu_that_always_runs_reaches_1024_and_never_passes_it() {
    let mut a = SchedAvg::default();
    for ms in 1..2000u64 {
        if a.update_load_sum(ms * 1_000_000, 1, 1, true) {
            a.update_load_avg(1);
        }
        assert!(a.util_avg <= 1024 && a.runnable_avg <= 1024, "{ms}: {a:?}");
    }
    assert!(a.util_avg >= 1023, "{a:?}");
}

#[test]
fn one_large_step_equals_many_small_ones_while_nothing_is_accumulated() {
    let start = SchedAvg { load_sum: 1 << 30, ..SchedAvg::default() };
    let mut big = start.clone();
    big.update_load_sum(32 * 1024 * 1024, 0, 0, false);
    // y^0 is 1 - 2^-32 in the table, which rounds down.
    assert_eq!(big.load_sum, (1 << 29) - 1);
}

#[test]
fn a_clock_that_went_back_only_moves_the_stamp() {
    let mut a = SchedAvg { last_update_time: 1 << 20, load_sum: 7, ..SchedAvg::default() };
    assert!(!a.update_load_sum(5, 1, 1, true));
    assert_eq!((a.last_update_time, a.load_sum), (5, 7));
}

#[test]
fn less_than_1024_ns_is_left_for_the_next_update() {
    let mut a = SchedAvg::default();
    assert!(!a.update_load_sum(1023, 1, 1, true));
    assert_eq!(a, SchedAvg::default());
    a.update_load_sum(2047, 1, 1, true);
    assert_eq!((a.last_update_time, a.util_sum, a.period_contrib), (1024, 1024, 1));
}

#[test]
fn nothing_runs_without_load() {
    let mut a = SchedAvg::default();
    a.update_load_sum(10 << 20, 0, 5, true);
    assert_eq!((a.load_sum, a.runnable_sum, a.util_sum), (0, 0, 0));
}

#[test]
fn irq_time_lies_just_before_the_update() {
    let (mut k, _) = booted(&[], &[]);
    k.rq.avg_irq = SchedAvg::default();
    k.rq.clock = 100 << 20;
    k.update_irq_load_avg(10 << 20);
    let mut naive = SchedAvg::default();
    naive.update_load_sum(90 << 20, 0, 0, false);
    naive.update_load_sum(100 << 20, 1, 1, true);
    naive.update_load_avg(1);
    assert_eq!(k.rq.avg_irq, naive);
}

#[test]
fn an_idle_cpu_pulls_clock_pelt_up_to_clock_task() {
    let (mut k, _) = booted(&[], &[]);
    k.rq.clock = 500;
    k.rq.clock_task = 400;
    k.rq.clock_pelt = 100;
    k.rq.lost_idle_time = 30;
    k.update_rq_clock_pelt(50);
    assert_eq!((k.rq.clock_pelt, k.rq.clock_idle, k.rq.clock_pelt_idle), (400, 500, 370));
}

#[test]
fn a_busy_cpu_advances_clock_pelt_by_task_time_and_extends_bit_53() {
    let (mut k, _) = booted(&[], &[0]);
    k.curr = FIRST_PID;
    let mut advance = |delta: i64| {
        k.rq.clock_pelt = 0;
        k.update_rq_clock_pelt(delta);
        k.rq.clock_pelt as i64
    };
    for delta in [0, 1, 1 << 40, (1 << 53) - 1, -1, -(1 << 53)] {
        assert_eq!(advance(delta), delta);
    }
    assert_eq!(advance(1 << 53), -(1 << 53));
    assert_eq!(advance(1 << 54), 0);
    assert_eq!(advance(i64::MIN), 0);
}

#[test]
fn only_a_saturated_run_queue_loses_idle_time() {
    let least = ((LOAD_AVG_MAX - 1024) << 10) - LOAD_AVG_MAX;
    for (util_sum, lost) in [(least - 1, 7), (least, 7 + 25)] {
        let (mut k, _) = booted(&[], &[]);
        k.rq.clock_task = 125;
        k.rq.clock_pelt = 100;
        k.rq.lost_idle_time = 7;
        k.cfs_rqs[0].avg.util_sum = util_sum;
        k.update_idle_rq_clock_pelt();
        assert_eq!((k.rq.clock_pelt, k.rq.lost_idle_time), (125, lost), "{util_sum}");
    }
}

fn history() -> impl Strategy<Value = Vec<(u64, bool)>> {
    let units = prop_oneof![1u64..1024, 1u64..20_000, 30_000u64..3_000_000];
    proptest::collection::vec((units, any::<bool>()), 1..60)
}

proptest! {
    #[test]
    fn the_sums_follow_a_sum_over_every_period_in_floating_point(history in history()) {
        let (mut a, mut now) = (SchedAvg::default(), 0);
        for (units, runs) in &history {
            now += units << 10;
            a.update_load_sum(now, u64::from(*runs), u64::from(*runs), *runs);
        }
        let naive = naive_sum(&history);
        // Each span rounds down by at most 3 and misses at most 47 units of its whole periods, and
        // what is older than 2,016 periods is dropped (less than one unit).
        let slack = 1.0 + history.len() as f64 * 50.0;
        let scaled = [a.runnable_sum as f64 / 1024.0, f64::from(a.util_sum) / 1024.0];
        for got in [a.load_sum as f64, scaled[0], scaled[1]] {
            prop_assert!(got <= naive + 1.0 && naive - got <= slack, "{got} for {naive}");
        }
    }

    #[test]
    fn averages_stay_in_range_and_decay_monotonically(history in history(), weight in 2u64..=1 << 18) {
        let (mut a, mut now) = (SchedAvg::default(), 0);
        for (units, runs) in history {
            let before = a.clone();
            now += units << 10;
            if a.update_load_sum(now, u64::from(runs), u64::from(runs), runs) {
                a.update_load_avg(weight);
                prop_assert!(a.util_avg <= 1024 && a.runnable_avg <= 1024, "{a:?}");
                prop_assert!(a.load_avg <= weight, "{a:?}");
            }
            if !runs {
                let fell = a.load_sum <= before.load_sum && a.util_sum <= before.util_sum;
                prop_assert!(fell && a.runnable_sum <= before.runnable_sum);
            }
            prop_assert!(a.period_contrib < 1024);
        }
    }

    #[test]
    fn no_state_and_no_input_panics(
        times in proptest::collection::vec(any::<u64>(), 1..20),
        sums in any::<(u64, u64, u32, u32)>(),
        load in any::<u64>(),
        runnable in any::<u64>(),
        running in any::<bool>(),
    ) {
        let mut a = SchedAvg {
            load_sum: sums.0,
            runnable_sum: sums.1,
            util_sum: sums.2,
            period_contrib: sums.3 % 1024,
            ..SchedAvg::default()
        };
        for now in times {
            a.update_load_sum(now, load, runnable, running);
            a.update_load_avg(load);
        }
    }
}
