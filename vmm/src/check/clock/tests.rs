use crate::check::CheckId;
use crate::check::tests::history::{History, SWAPPER};
use crate::observe::Mark;
use crate::view::{Call, RQCF_ACT_SKIP};

/// The host steals `ns`; the counter may step back.
fn steal(h: &mut History, ns: i64) {
    h.mark.steal_ns = h.mark.steal_ns.wrapping_add_signed(ns);
}

#[test]
fn irq_and_steal_that_fit_leave_the_rest_to_the_task() {
    let mut h = History::new();
    h.irq(300);
    steal(&mut h, 200);
    h.updates(1_000, 500, 300, 200);
    let end = h.end();
    end.holds();
    let acc = end.measured.accounted;
    assert_eq!((acc.updates, acc.steal_ns, acc.steal_dropped_ns), (1, 200, 0));
    assert_eq!((acc.irq_carried_count, acc.steal_dropped_count), (0, 0));
    assert_eq!(acc.clock_task_stopped_max_ns, 0);
}

#[test]
fn irq_time_that_does_not_fit_waits_for_the_next_update() {
    let mut h = History::new();
    h.runs_to(1_000);
    h.irq(300);
    h.updates(100, 0, 100, 0);
    h.updates(1_000, 800, 200, 0);
    let end = h.end();
    end.holds();
    assert_eq!(end.measured.accounted.irq_carried_count, 1);
}

#[test]
fn irq_time_beyond_the_clocks_advance_is_not_to_be_taken_at_once() {
    let mut h = History::new();
    h.irq(300);
    h.updates(100, 0, 300, 0);
    let carried = "300 ns of IRQ time unread and 100 ns of clock: 100 ns fit, but prev_irq_time \
                   moved 300 ns";
    h.end().only(&[(CheckId::IrqCarried, 1, 100, carried)]);
}

#[test]
fn steal_that_does_not_fit_is_dropped_and_counted() {
    let mut h = History::new();
    h.irq(100);
    steal(&mut h, 500);
    h.updates(300, 0, 100, 500);
    // What was dropped does not come back.
    h.updates(1_000, 1_000, 0, 0);
    let end = h.end();
    end.holds();
    let acc = end.measured.accounted;
    assert_eq!((acc.steal_ns, acc.steal_dropped_ns, acc.steal_dropped_count), (200, 300, 1));
}

#[test]
fn dropped_steal_that_comes_back_breaks_conservation() {
    let mut h = History::new();
    steal(&mut h, 500);
    h.updates(300, 0, 0, 500);
    h.updates(1_000, 800, 0, 0);
    let detail = "clock advanced 1000 ns, but clock_task 800 + irq 0 + steal 0 is 800 ns";
    h.end().only(&[(CheckId::Conservation, 1, 1_300, detail)]);
}

#[test]
fn steal_taken_twice_breaks_conservation() {
    let mut h = History::new();
    steal(&mut h, 100);
    h.updates(1_000, 800, 0, 100);
    let detail = "clock advanced 1000 ns, but clock_task 800 + irq 0 + steal 100 is 900 ns";
    h.end().only(&[(CheckId::Conservation, 1, 1_000, detail)]);
}

#[test]
fn a_steal_counter_that_steps_back_lets_clock_task_run_ahead() {
    let mut h = History::new();
    steal(&mut h, -50);
    h.updates(1_000, 1_050, 0, -50);
    steal(&mut h, 20);
    h.updates(1_000, 980, 0, 20);
    let end = h.end();
    let detail = "since the last update the steal counter fell by 50 ns net and clock_task is ahead of clock by 50 ns";
    end.only(&[(CheckId::ClockTaskNotAhead, 2, 1_000, detail)]);
    let acc = end.measured.accounted;
    assert_eq!((acc.clock_task_ahead_max_ns, acc.steal_ns, acc.steal_dropped_ns), (50, -30, 0));
}

#[test]
fn clock_task_ahead_without_a_step_back_is_told_without_one() {
    let mut h = History::new();
    h.updates(1_000, 1_003, 0, 0);
    let split = "clock advanced 1000 ns, but clock_task 1003 + irq 0 + steal 0 is 1003 ns";
    let ahead = "clock_task is ahead of clock by 3 ns";
    h.end().only(&[
        (CheckId::Conservation, 1, 1_000, split),
        (CheckId::ClockTaskNotAhead, 1, 1_000, ahead),
    ]);
}

#[test]
fn a_standstill_lasts_from_the_update_that_moved_clock_task_to_the_last_that_did_not() {
    let mut h = History::new();
    h.updates(100, 100, 0, 0);
    // 500 ns over two updates, then 200 ns in one.
    for (clock, task) in [(200, 0), (300, 0), (100, 10), (200, 0), (50, 50)] {
        steal(&mut h, clock - task);
        h.updates(clock, task, 0, clock - task);
    }
    let end = h.end();
    end.holds();
    assert_eq!(end.measured.accounted.clock_task_stopped_max_ns, 500);
    assert_eq!(end.measured.accounted.updates, 6);
}

#[test]
fn an_idle_cpus_clock_pelt_is_clock_task_and_a_busy_ones_may_lag() {
    let mut h = History::new();
    h.runs_to(1_000);
    h.rq.clock_pelt_ns = 700;
    h.runs_to(2_000);
    h.rq.curr_pid = SWAPPER.pid;
    h.runs_to(3_000);
    let detail =
        "clock_pelt advanced 1000 ns to 2700 ns and clock_task 1000 ns to 3000 ns while idle";
    h.end().only(&[(CheckId::ClockPelt, 1, 3_000, detail)]);
}

#[test]
fn irq_time_of_a_handler_that_still_runs_is_not_due_yet() {
    let mut h = History::new();
    h.irq(30);
    h.mark.irq_ns += 70;
    h.updates(1_000, 970, 30, 0);
    h.end().holds();
}

#[test]
fn irq_time_from_nowhere_fails_at_whatever_call_shows_it() {
    let mut h = History::new();
    h.irq(30);
    h.mark.at_ns = 50;
    h.call(Call::PsiTaskChange { task: SWAPPER, clear: 0, set: 1 }, |h| {
        h.rq.irqtime_total_ns = 31;
    });
    let detail = "cpu_irqtime.total is 31 ns, the ledger has 30 ns of IRQ time";
    h.end().only(&[(CheckId::IrqAccounted, 2, 50, detail)]);
}

#[test]
fn counters_may_wrap_between_two_updates() {
    let mut h = History::new();
    let old = u64::MAX - 99;
    h.mark = Mark { steal_ns: old, irq_ns: old, ..Mark::default() };
    h.rq.irqtime_total_ns = old;
    h.rq.prev_irq_time_ns = old;
    h.rq.prev_steal_time_rq_ns = old;
    h.call(Call::IrqtimeAccountIrq { offset: 0 }, |_| {});
    h.mark.irq_ns = 200;
    h.call(Call::IrqtimeAccountIrq { offset: 0 }, |h| h.rq.irqtime_total_ns = 200);
    h.mark.steal_ns = 100;
    h.updates(1_000, 500, 300, 200);
    let end = h.end();
    end.holds();
    assert_eq!(end.measured.accounted.steal_ns, 200);
}

#[test]
fn no_pair_of_counters_makes_the_check_itself_fail() {
    let extremes = [0, 1, i64::MAX as u64, i64::MIN as u64, u64::MAX];
    for a in extremes {
        for b in extremes {
            let mut h = History::new();
            for (x, y) in [(a, b), (b, a), (a, a), (a, b)] {
                h.call(Call::UpdateRqClock, |h| {
                    h.rq.clock_ns = x;
                    h.rq.clock_task_ns = y;
                    h.rq.clock_pelt_ns = x;
                    h.rq.prev_irq_time_ns = y;
                    h.rq.prev_steal_time_rq_ns = x;
                });
                h.rq.irqtime_total_ns = y;
                h.rq.prev_irq_time_ns = x;
            }
            assert_eq!(h.end().measured.accounted.updates, 4);
        }
    }
}

#[test]
fn an_update_that_the_scheduler_skips_must_leave_the_clocks_alone_and_is_counted() {
    let mut h = History::new();
    h.runs_to(1_000);
    h.rq.clock_update_flags = RQCF_ACT_SKIP;
    h.mark.at_ns = 1_400;
    h.call(Call::UpdateRqClock, |_| {});
    h.mark.at_ns = 1_700;
    h.call(Call::UpdateRqClock, |_| {});
    h.rq.clock_update_flags = 0;
    h.runs_to(2_000);
    let end = h.end();
    end.holds();
    let acc = end.measured.accounted;
    assert_eq!((acc.updates, acc.updates_skipped, acc.skipped_behind_max_ns), (2, 2, 700));

    let mut h = History::new();
    h.rq.clock_update_flags = RQCF_ACT_SKIP;
    h.mark.at_ns = 100;
    h.call(Call::UpdateRqClock, |h| h.clocks(100, 100));
    h.rq.clock_update_flags = 0;
    h.runs_to(100);
    let moved = "an update that was to be skipped moved clock 100 ns";
    h.end().only(&[(CheckId::ClockMatchesHost, 1, 100, moved)]);
}

#[test]
fn steal_inside_an_interrupt_counts_twice_as_far_as_an_update_has_task_time_to_take_it_from() {
    // 100 ns of IRQ time, 60 of them stolen: both are taken; then 40 of 60 ns fit; then none.
    for (clock, twice, dropped) in [(1_000, 60, 0), (140, 40, 20), (100, 0, 60)] {
        let mut h = History::judging(CheckId::StealInIrqOnce);
        h.irq_with_steal(100, 60);
        h.updates(clock, clock - 100 - twice, 100, 60);
        let end = h.end();
        let fails = u64::from(twice > 0);
        assert_eq!(end.result(CheckId::StealInIrqOnce).failures, fails, "{clock}");
        let acc = end.measured.accounted;
        let found = (acc.steal_in_irq_taken_ns as i64, acc.steal_dropped_ns);
        assert_eq!(found, (twice, dropped), "{clock}");
    }
}

#[test]
fn irq_time_that_the_next_update_leaves_is_late_once_however_long_it_waits() {
    let mut h = History::judging(CheckId::IrqTakenAtOnce);
    h.runs_to(1_000);
    // 50 ns into a handler.
    h.mark.irq_ns = 50;
    h.runs_to(1_050);
    h.irq(30);
    h.updates(30, 0, 30, 0);
    h.updates(20, 0, 20, 0);
    h.updates(50, 20, 30, 0);
    let end = h.end();
    assert_eq!(end.result(CheckId::IrqTakenAtOnce).failures, 3);
    let acc = end.measured.accounted;
    // The first 50 ns, and the 30 ns in place of which they were taken.
    assert_eq!((acc.irq_late_ns, acc.irq_late_max_ns), (80, 50));
}

#[test]
fn what_clock_task_gains_goes_to_the_task_that_an_update_finds_and_nothing_before_time_0_counts() {
    let mut h = History::new();
    h.rq.clock_ns = -300_i64 as u64;
    h.rq.clock_task_ns = -300_i64 as u64;
    h.updates(400, 400, 0, 0);
    h.rq.curr_pid = SWAPPER.pid;
    h.updates(50, 50, 0, 0);
    h.rq.curr_pid = u32::MAX;
    h.updates(7, 7, 0, 0);
    let measured = h.end().measured;
    let acc = measured.accounted;
    assert_eq!((acc.clock_task_busy_ns, acc.clock_task_idle_ns), (107, 50));
    assert_eq!((measured.clock_task_ns[0], measured.clock_task_ns[10]), (50, 100));
    assert_eq!(measured.clock_task_ns.len(), 11);
}

#[test]
fn a_negative_time_told_to_update_irq_load_avg_is_counted_and_shown_with_its_sign() {
    let mut h = History::new();
    h.checks.irq_load_avg(10, 10_000);
    h.runs_to(1_000);
    h.checks.irq_load_avg(1_100, -300_i64 as u64);
    h.mark.steal_ns = -300_i64 as u64;
    h.updates(100, 400, 0, -300);
    let end = h.end();
    let wrapped = "update_irq_load_avg() is told of 18446744073709551316 ns, -300 ns wrapped, but 100 \
                   ns passed since the last update";
    let ahead = "since the last update the steal counter fell by 300 ns net and clock_task is ahead of \
                 clock by 300 ns";
    let failed =
        [(CheckId::ClockTaskNotAhead, 1, 1_100, ahead), (CheckId::AvgIrq, 1, 1_100, wrapped)];
    end.only(&failed);
    assert_eq!(end.measured.accounted.irq_load_avg_wrapped_count, 1);
}

#[test]
fn avg_irq_rises_by_a_period_not_averaged_yet_and_by_the_time_taken_and_no_more() {
    for (irq, rise, fails) in [(0, 24, 0), (0, 25, 1), (4_671_800, 124, 0), (4_671_800, 125, 1)] {
        let mut h = History::new();
        h.irq(irq);
        h.rq.avg_irq.util_avg = 100;
        h.mark.at_ns = 9_000_000;
        h.call(Call::UpdateRqClock, |h| {
            h.clocks(9_000_000, 9_000_000 - irq as i64);
            h.rq.prev_irq_time_ns = irq;
            h.rq.avg_irq.util_avg += rise;
        });
        let end = h.end();
        assert_eq!(end.result(CheckId::AvgIrq).failures, fails, "{irq} {rise}");
        assert_eq!(end.measured.accounted.avg_irq_util_max, 100 + rise);
    }
}
