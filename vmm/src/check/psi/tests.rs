use super::PsiTable;
use crate::check::CheckId::{Costs, PsiCalled, PsiIrqLedger, PsiWrites, PsiZero};
use crate::check::tests::history::{A, B, History, SWAPPER};
use crate::view::{Call, CostsView, TaskRef};
use guest_model::policy::{PsiZeroDelta, RateLimitClock};

/// Another task of group 1.
const A2: TaskRef = TaskRef { pid: 12, group: 1 };

#[test]
fn each_call_is_counted_in_its_class() {
    let mut h = History::new();
    // swapper gives way, or is found by the tick: never charged.
    h.switch(SWAPPER, A, |_| {});
    h.tick(1_000_000, SWAPPER, |_| {});
    // A neighbour in the same group: the next call charges.
    h.irq(100);
    h.switch(A, A2, |_| {});
    // Delta above zero, zero at a switch, zero at a tick.
    h.switch(A2, B, |h| h.charge(&[1, 0], 100));
    h.switch(B, SWAPPER, |_| {});
    h.tick(2_000_000, A, |_| {});
    let end = h.end();
    end.holds();
    let table = PsiTable {
        total: 6,
        ret_curr_swapper: 2,
        ret_samegrp: 1,
        reached_delta: 3,
        delta_positive: 1,
        delta_zero: 2,
        delta_negative: 0,
        writes: 1,
        levels: 2,
    };
    assert_eq!(end.measured.psi_table, table);
}

#[test]
fn swapper_in_the_group_of_the_next_task_counts_as_swapper() {
    let mut h = History::new();
    h.switch(SWAPPER, TaskRef { pid: 5, group: 0 }, |_| {});
    let table = h.end().measured.psi_table;
    assert_eq!((table.ret_curr_swapper, table.ret_samegrp), (1, 0));
}

#[test]
fn a_charge_goes_to_the_group_and_each_group_above_it() {
    let mut h = History::new();
    h.irq(100);
    h.switch(B, A, |h| h.charge(&[2, 1, 0], 100));
    h.irq(30);
    h.switch(A, SWAPPER, |h| h.charge(&[1, 0], 30));
    h.irq(5);
    h.tick(1_000_000, TaskRef { pid: 5, group: 0 }, |h| h.charge(&[0], 5));
    let end = h.end();
    end.holds();
    assert_eq!(end.measured.psi_irq_ns, [135, 130, 100]);
}

#[test]
fn time_that_waits_is_charged_in_one_to_the_first_task_that_is_due() {
    let mut h = History::new();
    h.irq(100);
    h.switch(SWAPPER, A, |_| {});
    h.irq(20);
    h.switch(A, A2, |_| {});
    h.irq(3);
    h.switch(A2, B, |h| h.charge(&[1, 0], 123));
    let end = h.end();
    end.holds();
    assert_eq!(end.measured.psi_irq_ns, [123, 123, 0]);
}

#[test]
fn a_charge_to_the_wrong_group_fails_at_each_group_of_the_chain() {
    let mut h = History::new();
    h.irq(100);
    h.switch(A, B, |h| h.charge(&[2, 0], 100));
    let end = h.end();
    // Group 1 at the call; groups 1 and 2 at the end.
    let detail = "group 1: times[PSI_IRQ_FULL] is 0 ns, the ledger charges 100 ns";
    end.only(&[(PsiIrqLedger, 3, 100, detail)]);
}

#[test]
fn times_are_compared_modulo_two_to_the_32() {
    let mut h = History::new();
    h.irq((1 << 32) + 7);
    h.switch(A, B, |h| h.charge(&[1, 0], 7));
    let end = h.end();
    end.holds();
    assert_eq!(end.measured.psi_irq_ns, [4_294_967_303, 4_294_967_303, 0]);
}

#[test]
fn a_zero_delta_is_written_under_one_policy_and_skipped_under_the_other() {
    for (policy, writes, did) in [
        (PsiZeroDelta::Account, true, None),
        (PsiZeroDelta::Skip, false, None),
        (
            PsiZeroDelta::Account,
            false,
            Some("a zero delta of pid 10 was skipped under account_zero_delta"),
        ),
        (
            PsiZeroDelta::Skip,
            true,
            Some("a zero delta of pid 10 was written under skip_zero_delta"),
        ),
    ] {
        let mut h = History::under(RateLimitClock::RqClock, policy);
        h.mark.at_ns = 7;
        h.switch(A, B, |h| {
            if writes {
                h.charge(&[1, 0], 0);
            }
        });
        let end = h.end();
        assert_eq!(end.result(PsiZero).evaluated, 1);
        let expected: Vec<_> = did.into_iter().map(|detail| (PsiZero, 1, 7, detail)).collect();
        end.only(&expected);
    }
}

#[test]
fn a_write_for_a_task_that_is_not_to_be_charged_fails() {
    let mut h = History::new();
    h.mark.at_ns = 7;
    h.switch(A, A2, |h| h.charge(&[1, 0], 0));
    let detail = "psi_seq moved for pid 10, which is not to be charged";
    h.end().only(&[(PsiWrites, 1, 7, detail)]);

    let mut h = History::new();
    h.tick(1_000_000, SWAPPER, |h| h.charge(&[0], 0));
    let detail = "psi_seq moved for pid 0, which is not to be charged";
    h.end().only(&[(PsiWrites, 1, 1_000_000, detail)]);
}

#[test]
fn a_missing_write_fails_and_the_times_lack_it() {
    let mut h = History::new();
    h.irq(100);
    h.switch(A, B, |_| {});
    let due = "100 ns of IRQ time are due to pid 10, but psi_seq stood still";
    let times = "group 1: times[PSI_IRQ_FULL] is 0 ns, the ledger charges 100 ns";
    // Groups 1 and 0, at the call and at the end.
    h.end().only(&[(PsiWrites, 1, 100, due), (PsiIrqLedger, 4, 100, times)]);
}

#[test]
fn a_delta_that_the_guest_sees_as_negative_is_counted_as_such() {
    let mut h = History::new();
    h.rq.psi_irq_time_ns = 1;
    h.switch(A, B, |_| {});
    let table = h.end().measured.psi_table;
    assert_eq!((table.delta_negative, table.delta_zero, table.reached_delta), (1, 0, 1));
}

#[test]
fn a_tick_that_is_not_due_fails() {
    let mut h = History::new();
    h.tick(1_000_000, A, |_| {});
    h.tick(1_999_999, A, |_| {});
    let detail = "called as from a tick, and none is due";
    h.end().only(&[(PsiCalled, 1, 1_999_999, detail)]);
}

#[test]
fn a_tick_that_leaves_the_call_out_fails_as_its_handler_is_left() {
    let mut h = History::new();
    h.mark.at_ns = 1_000_000;
    h.checks.timer_handled(1_000_000);
    // Softirqs are entered first: the handler is not left yet.
    h.call(Call::IrqtimeAccountIrq { offset: 256 }, |_| {});
    h.mark.at_ns = 1_000_050;
    h.call(Call::IrqtimeAccountIrq { offset: 0 }, |_| {});
    h.call(Call::IrqtimeAccountIrq { offset: 0 }, |_| {});
    h.end().only(&[(PsiCalled, 1, 1_000_050, "a tick left it out")]);
}

#[test]
fn a_timer_before_the_tick_is_due_asks_for_nothing() {
    let mut h = History::new();
    h.checks.timer_handled(999_999);
    h.call(Call::IrqtimeAccountIrq { offset: 0 }, |_| {});
    h.end().holds();
}

#[test]
fn a_switch_needs_the_call_for_the_same_two_tasks_right_before_it() {
    let switch = Call::PsiTaskSwitch { prev: A, next: B, sleep: false };
    let detail = "the switch from pid 10 to pid 11 left it out";
    for (curr, prev) in [(B, Some(A)), (A, Some(A2)), (A, None)] {
        let mut h = History::new();
        h.mark.at_ns = 1_000_000;
        h.checks.timer_handled(1_000_000);
        h.call(Call::PsiAccountIrqtime { curr, prev }, |_| {});
        h.call(switch, |_| {});
        let end = h.end();
        let first = end.result(PsiCalled).first.as_ref();
        assert_eq!(first.map(|f| f.detail.as_str()), Some(detail), "{curr:?} {prev:?}");
        assert_eq!(end.result(PsiCalled).failures, 1);
    }
}

#[test]
fn the_call_of_a_switch_that_does_not_follow_fails() {
    let mut h = History::new();
    h.mark.at_ns = 7;
    h.call(Call::PsiAccountIrqtime { curr: A, prev: Some(B) }, |_| {});
    h.runs_to(9);
    let detail = "called as for a switch from pid 10 to pid 11, and none follows";
    h.end().only(&[(PsiCalled, 1, 9, detail)]);
}

#[test]
fn the_guests_own_counters_must_be_those_that_were_seen() {
    let costs = CostsView {
        psi_account_irqtime_seqcount_writes: 2,
        clock_reads_psi_account_irqtime: 2,
        psi_account_irqtime_levels: 5,
        ..CostsView::default()
    };
    let history = |costs| {
        let mut h = History::new();
        h.irq(100);
        h.switch(B, A, |h| h.charge(&[2, 1, 0], 100));
        h.irq(1);
        h.switch(A, B, |h| h.charge(&[1, 0], 1));
        h.switch(B, A, |_| {});
        h.costs = Some(costs);
        h.end()
    };
    history(costs).holds();
    let end = history(CostsView { psi_account_irqtime_levels: 6, ..costs });
    end.only(&[(
        Costs,
        1,
        101,
        "psi_account_irqtime(): the guest counts 6 cgroup levels, 5 were seen",
    )]);
    let end = history(CostsView { clock_reads_psi_account_irqtime: 3, ..costs });
    end.only(&[(
        Costs,
        1,
        101,
        "psi_account_irqtime(): the guest counts 3 clock reads, 2 were seen",
    )]);
}
