mod cases;
pub(super) mod history;

use super::*;
use crate::view::Call;
use cases::case;
use guest_model::policy::{PsiZeroDelta, RateLimitClock};
use history::History;

#[test]
fn every_check_has_a_history_in_which_it_is_judged_and_all_checks_hold() {
    for &id in CheckId::ALL {
        let mut h = History::judging(id);
        case(id).0(&mut h);
        let end = h.end();
        end.holds();
        assert_eq!(end.result(id).status, Status::Pass, "{id:?}");
        assert_eq!((end.result(id).failures, &end.result(id).first), (0, &None));
        assert_ne!(end.result(id).evaluated, 0, "{id:?}");
    }
}

#[test]
fn every_check_has_a_history_that_fails_it_and_no_other() {
    for &id in CheckId::ALL {
        let (_, breaks, failures, at_ns, detail) = case(id);
        let mut h = History::judging(id);
        breaks(&mut h);
        let end = h.end();
        let found = (id, failures, at_ns, detail);
        if id == CheckId::ClockTaskMonotonic {
            // IRQ and steal never take more than the clock's advance, so no split explains this.
            let split = "clock advanced 1000 ns, but clock_task -10 + irq 0 + steal 0 is -10 ns";
            end.only(&[(CheckId::Conservation, 1, 2_000, split), found]);
        } else {
            end.only(&[found]);
        }
    }
}

#[test]
fn a_check_that_is_off_stays_off_whatever_happens() {
    for &id in CheckId::ALL {
        let mut h = History::without(RateLimitClock::RqClock, PsiZeroDelta::Skip, &[id]);
        case(id).1(&mut h);
        h.checks.lacks(&[CheckId::StealAccounted]);
        let end = h.end();
        let off = CheckResult { id, status: Status::Off, evaluated: 0, failures: 0, first: None };
        assert_eq!(end.result(id), &off);
    }
}

#[test]
fn without_a_steal_clock_the_check_of_steal_is_not_built_in_and_what_it_found_is_void() {
    let id = CheckId::StealAccounted;
    let mut h = History::new();
    h.mark.steal_ns = 40;
    h.runs_to(1_000);
    h.checks.lacks(&[CheckId::StealAccounted]);
    h.runs_to(2_000);
    let end = h.end();
    end.holds();
    let none =
        CheckResult { id, status: Status::NotBuiltIn, evaluated: 0, failures: 0, first: None };
    assert_eq!(end.result(id), &none);
}

#[test]
fn what_never_happened_is_not_exercised() {
    let end = History::new().end();
    let exercised: Vec<_> =
        CheckId::ALL.iter().filter(|&&id| end.result(id).status == Status::Pass).collect();
    use CheckId::*;
    assert_eq!(exercised, [&IrqAccounted, &TgPublished, &TgSum, &PsiIrqLedger, &LedgerElapsed]);
}

#[test]
fn failures_are_counted_and_the_first_one_is_kept() {
    let mut h = History::new();
    h.runs_to(1_000);
    for at_ns in [2_000, 3_000] {
        h.mark.at_ns = at_ns;
        h.call(Call::UpdateRqClock, |h| h.clocks(900, 900));
    }
    h.runs_to(4_000);
    let end = h.end();
    let first = "rq->clock is 1900 ns, the host's clock 2000 ns";
    end.only(&[(CheckId::ClockMatchesHost, 2, 2_000, first)]);
    assert_eq!(end.result(CheckId::ClockMatchesHost).evaluated, 4);
}

#[test]
fn the_detail_is_asked_for_at_the_first_failure_only() {
    let mut board = Board::new(&[]);
    let mut asked = 0;
    for (ok, at_ns) in [(true, 1), (false, 2), (false, 3), (true, 4)] {
        board.expect(CheckId::Costs, ok, at_ns, || {
            asked += 1;
            "numbers".into()
        });
    }
    let row = &board.rows[CheckId::Costs as usize];
    assert_eq!((asked, row.evaluated, row.failures, row.status), (1, 4, 2, Status::Fail));
    assert_eq!(row.first, Some(Failure { at_ns: 2, detail: "numbers".into() }));
}

#[test]
fn no_interrupt_handled_means_all_irq_time_accounted() {
    let mut h = History::new();
    h.checks.outside_irq(70, 30, 20);
    let detail = "no interrupt is handled, cpu_irqtime.total is 20 ns, the ledger has 30 ns";
    h.end().only(&[(CheckId::IrqAccounted, 1, 70, detail)]);
}

#[test]
fn a_cpu_that_halts_has_no_softirq_work_left() {
    let mut h = History::new();
    h.checks.halted(70, 1);
    let detail = "the CPU halts with 1 ns of softirq work not done";
    h.end().only(&[(CheckId::SoftirqDone, 1, 70, detail)]);
}

#[test]
fn a_run_that_was_stopped_is_judged_by_the_ledger_alone_at_its_end() {
    let mut h = History::new();
    h.mark.at_ns = 1_000;
    h.rq.irqtime_total_ns = 7;
    h.load(1, 5);
    h.groups[1].0.tg_load_avg = 3;
    h.groups[2].1.irq_full_ns = 9;
    h.costs = Some(CostsView { tg_load_avg_atomic_adds: 4, ..CostsView::default() });
    h.ledger.task_ns = 998;
    let detail = "the ledger adds up to 998 ns, guest time is 1000 ns";
    h.stop().only(&[(CheckId::LedgerElapsed, 1, 1_000, detail)]);
}

#[test]
fn a_tick_is_due_once_per_period_however_late_it_comes() {
    let mut ticks = Ticks { period_ns: Some(100), next_ns: 100 };
    for (at_ns, due) in [
        (0, false),
        (99, false),
        (100, true),
        (100, false),
        (199, false),
        (205, true),
        (299, false),
        (300, true),
        // Three periods late: one tick, and the next on the old grid.
        (655, true),
        (699, false),
        (700, true),
    ] {
        assert_eq!(ticks.take_due(at_ns), due, "at {at_ns} ns");
    }
    assert_eq!(ticks.next_ns, 800);
}

#[test]
fn ticks_at_the_end_of_time_do_not_wrap() {
    for period_ns in [1, 3, u64::MAX / 2, u64::MAX] {
        let mut ticks = Ticks { period_ns: Some(period_ns), next_ns: period_ns };
        assert!(ticks.take_due(u64::MAX));
        assert_eq!(ticks.next_ns, u64::MAX);
    }
    let mut ticks = Ticks { period_ns: Some(1_000), next_ns: 1_000 };
    assert!(ticks.take_due(1 << 62));
    assert_eq!(ticks.next_ns, 4_611_686_018_427_388_000);
    assert!(!ticks.take_due(4_611_686_018_427_387_999));
}
