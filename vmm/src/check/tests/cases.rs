//! For each check, a history in which it holds and one that fails it alone.

use super::history::{A, B, History, OFFLINE_NS, SWAPPER};
use crate::check::CheckId;
use crate::observe::Mark;
use crate::view::{Call, CostsView};

pub(super) type Deed = fn(&mut History);

/// A history in which the check holds, one that fails it, and what is found then.
pub(super) fn case(id: CheckId) -> (Deed, Deed, u64, u64, &'static str) {
    use CheckId::*;
    match id {
        ClockMatchesHost => (
            |h| h.runs_to(1_000),
            |h| {
                h.mark.at_ns = 1_000;
                h.call(Call::UpdateRqClock, |h| h.clocks(999, 999));
            },
            1,
            1_000,
            "rq->clock is 999 ns, the host's clock 1000 ns",
        ),
        Conservation => (
            |h| h.runs_to(1_000),
            |h| {
                h.mark.at_ns = 1_000;
                h.call(Call::UpdateRqClock, |h| h.clocks(1_000, 990));
            },
            1,
            1_000,
            "clock advanced 1000 ns, but clock_task 990 + irq 0 + steal 0 is 990 ns",
        ),
        ClockTaskMonotonic => (
            |h| h.runs_to(1_000),
            |h| {
                h.runs_to(1_000);
                h.mark.at_ns = 2_000;
                h.call(Call::UpdateRqClock, |h| h.clocks(1_000, -10));
            },
            1,
            2_000,
            "clock_task went back by 10 ns to 990 ns",
        ),
        ClockTaskNotAhead => (
            |h| h.runs_to(1_000),
            |h| {
                h.mark = Mark { at_ns: 1_000, steal_ns: -50_i64 as u64, ..Mark::default() };
                h.call(Call::UpdateRqClock, |h| {
                    h.clocks(1_000, 1_050);
                    h.rq.prev_steal_time_rq_ns = -50_i64 as u64;
                });
            },
            1,
            1_000,
            "since the last update the steal counter fell by 50 ns net and clock_task is ahead of clock by 50 ns",
        ),
        AvgIrq => (
            |h| {
                h.runs_to(1_000);
                h.checks.irq_load_avg(1_500, 500);
            },
            |h| {
                h.runs_to(1_000);
                h.checks.irq_load_avg(1_500, 501);
            },
            1,
            1_500,
            "update_irq_load_avg() is told of 501 ns, but 500 ns passed since the last update",
        ),
        ClockPelt => (
            |h| h.runs_to(1_000),
            |h| {
                h.mark.at_ns = 1_000;
                h.call(Call::UpdateRqClock, |h| {
                    h.clocks(1_000, 1_000);
                    h.rq.clock_pelt_ns = 1_010;
                });
            },
            1,
            1_000,
            "clock_pelt advanced 1010 ns to 1010 ns and clock_task 1000 ns to 1000 ns",
        ),
        // Once at the accounting, once at the end.
        IrqAccounted => (
            |h| {
                h.irq(30);
                h.checks.outside_irq(30, 30, 30);
            },
            |h| {
                h.mark = Mark { at_ns: 30, irq_ns: 30, ..Mark::default() };
                h.call(Call::IrqtimeAccountIrq { offset: 0 }, |h| h.rq.irqtime_total_ns = 29);
            },
            2,
            30,
            "cpu_irqtime.total is 29 ns, the ledger has 30 ns of IRQ time",
        ),
        IrqCarried => (
            |h| {
                h.irq(30);
                h.call(Call::UpdateRqClock, |h| {
                    h.clocks(30, 0);
                    h.rq.prev_irq_time_ns = 30;
                });
            },
            |h| {
                h.irq(30);
                h.runs_to(1_000);
            },
            1,
            1_000,
            "30 ns of IRQ time unread and 1000 ns of clock: 30 ns fit, but prev_irq_time moved 0 ns",
        ),
        StealAccounted => (
            |h| {
                h.mark = Mark { at_ns: 1_000, steal_ns: 40, ..Mark::default() };
                h.call(Call::UpdateRqClock, |h| {
                    h.clocks(1_000, 960);
                    h.rq.prev_steal_time_rq_ns = 40;
                });
            },
            |h| {
                h.mark.steal_ns = 40;
                h.runs_to(1_000);
            },
            1,
            1_000,
            "prev_steal_time_rq is 0 ns, the steal counter 40 ns",
        ),
        StealInIrqOnce => (
            |h| {
                h.irq_with_steal(100, 60);
                h.mark.steal_ns += 40;
                h.updates(140, 0, 100, 100);
            },
            |h| {
                h.irq_with_steal(100, 60);
                h.updates(1_000, 840, 100, 60);
            },
            1,
            1_000,
            "the steal counter moved by 60 ns, 60 ns of it inside interrupts, but 60 ns were taken as \
             steal",
        ),
        StealNotDropped => (
            |h| {
                h.mark.steal_ns = 400;
                h.updates(1_000, 600, 0, 400);
            },
            |h| {
                h.mark.steal_ns = 1_001;
                h.updates(1_000, 0, 0, 1_001);
            },
            1,
            1_000,
            "the steal counter moved by 1001 ns, 0 ns of it inside interrupts, but only 1000 ns were \
             taken as steal",
        ),
        IrqTakenAtOnce => (
            |h| {
                h.irq(30);
                h.updates(1_000, 970, 30, 0);
            },
            |h| {
                h.irq(30);
                h.mark.irq_ns += 70;
                h.updates(1_000, 970, 30, 0);
            },
            1,
            1_000,
            "of 100 ns of IRQ time 70 ns are not taken from clock_task",
        ),
        IdleKeepsItsTime => (
            |h| {
                h.rq.curr_pid = SWAPPER.pid;
                h.irq(30);
                h.mark.idle_ns = 970;
                h.updates(1_000, 970, 30, 0);
            },
            |h| {
                h.irq(30);
                h.updates(20, 0, 20, 0);
                h.rq.curr_pid = SWAPPER.pid;
                h.mark.idle_ns = 980;
                h.updates(980, 970, 10, 0);
            },
            1,
            1_000,
            "the CPU was halted for 980 ns, clock_task gained 970 ns",
        ),
        TgRateLimit => (
            |h| publish_640_at_1_ms(h),
            |h| {
                publish_640_at_1_ms(h);
                h.runs_to(1_999_999);
                h.load(1, 700);
                h.publishes(1, 1_999_999);
            },
            1,
            1_999_999,
            "group 1 published 999999 ns after its last publish and stamped 1999999; rq_clock is \
             1999999",
        ),
        TgTolerance => (
            |h| publish_640_at_1_ms(h),
            |h| {
                publish_640_at_1_ms(h);
                h.runs_to(2_000_000);
                h.load(1, 650);
                h.publishes(1, 2_000_000);
            },
            1,
            2_000_000,
            "group 1 published 650 for a load of 650, 640 being published; 1/64 of that is 10",
        ),
        TgPublished => (
            |h| {
                publish_640_at_1_ms(h);
                h.runs_to(2_000_000);
                h.load(1, 650);
                h.keeps(1);
            },
            |h| {
                publish_640_at_1_ms(h);
                h.runs_to(2_000_000);
                h.load(1, 651);
                h.keeps(1);
            },
            1,
            2_000_000,
            "group 1 kept 640 published for a load of 651, 1000000 ns after its last publish",
        ),
        // Once at the call, once at the end.
        TgSum => (
            |h| publish_640_at_1_ms(h),
            |h| {
                publish_640_at_1_ms(h);
                h.runs_to(1_000_500);
                h.groups[1].0.tg_load_avg = -1_i64 as u64;
                h.keeps(1);
            },
            2,
            1_000_500,
            "group 1: tg->load_avg is -1, the contributions add up to 640",
        ),
        TgOffline => (
            |h| {
                h.tick(OFFLINE_NS, A, |_| {});
                h.clears(1);
                h.clears(2);
                h.call(Call::IrqtimeAccountIrq { offset: 0 }, |_| {});
            },
            |h| {
                h.tick(OFFLINE_NS, A, |_| {});
                h.clears(1);
                h.call(Call::IrqtimeAccountIrq { offset: 0 }, |_| {});
            },
            1,
            OFFLINE_NS,
            "going offline cleared 1 contributions of 2",
        ),
        RqClockFresh => (
            |h| {
                h.runs_to(1_000);
                h.keeps(1);
            },
            |h| {
                h.runs_to(900);
                h.mark.at_ns = 1_000;
                h.keeps(1);
            },
            1,
            1_000,
            "group 1: rq->clock is 900 ns, the host's clock 1000 ns",
        ),
        Costs => (
            |h| h.costs = Some(CostsView::default()),
            |h| {
                h.mark.at_ns = 9;
                let psi_account_irqtime_seqcount_writes = 1;
                h.costs =
                    Some(CostsView { psi_account_irqtime_seqcount_writes, ..CostsView::default() });
            },
            1,
            9,
            "psi_account_irqtime(): the guest counts 1 seqcount writes, 0 were seen",
        ),
        LeafList => (
            |h| h.tick(1_000_000, A, |_| {}),
            |h| {
                h.leaves = vec![1, 2, 0];
                h.tick(1_000_000, A, |_| {});
            },
            1,
            1_000_000,
            "group 2 is not before its parent",
        ),
        PsiCalled => (
            |h| h.switch(A, B, |_| {}),
            |h| {
                h.mark.at_ns = 9;
                h.call(Call::PsiTaskSwitch { prev: A, next: B, sleep: true }, |_| {});
            },
            1,
            9,
            "the switch from pid 10 to pid 11 left it out",
        ),
        PsiZero => (
            |h| h.switch(A, B, |_| {}),
            |h| {
                h.mark.at_ns = 9;
                h.switch(A, B, |h| h.charge(&[1, 0], 0));
            },
            1,
            9,
            "a zero delta of pid 10 was written under skip_zero_delta",
        ),
        PsiWrites => (
            |h| {
                h.irq(100);
                h.switch(A, B, |h| h.charge(&[1, 0], 100));
            },
            |h| {
                h.irq(100);
                h.switch(A, B, |h| {
                    h.charge(&[1, 0], 100);
                    h.rq.psi_seq -= 2;
                });
            },
            1,
            100,
            "100 ns of IRQ time are due to pid 10, but psi_seq stood still",
        ),
        // Once at the call, once at the end.
        PsiIrqLedger => (
            |h| {
                h.irq(100);
                h.switch(B, A, |h| h.charge(&[2, 1, 0], 100));
            },
            |h| {
                h.irq(100);
                h.switch(B, A, |h| {
                    h.charge(&[2, 1], 100);
                    h.groups[0].1.irq_full_ns = 99;
                });
            },
            2,
            100,
            "group 0: times[PSI_IRQ_FULL] is 99 ns, the ledger charges 100 ns",
        ),
        PsiDeltaNotNegative => (
            |h| h.switch(A, B, |_| {}),
            |h| {
                h.irq(100);
                h.rq.psi_irq_time_ns = 101;
                h.switch(A, B, |h| h.charge(&[1, 0], 100));
            },
            1,
            100,
            "cpu_irqtime.total 100 ns is behind psi_irq_time 101 ns",
        ),
        SoftirqDone => (
            |h| {
                h.checks.softirq_wanted(1_000, 10, 10);
                h.checks.halted(1_010, 0);
            },
            |h| h.checks.softirq_wanted(1_000, 11, 10),
            1,
            1_000,
            "11 ns of softirq work are to be done, 10 ns are left of what was raised",
        ),
        InterruptsHandled => (
            |h| {
                let l = &mut h.ledger.lines[3];
                (l.raised, l.handled, l.coalesced, h.in_flight[3]) = (6, 3, 2, 1);
            },
            |h| {
                h.mark.at_ns = 9;
                let l = &mut h.ledger.lines[3];
                (l.raised, l.handled, l.coalesced, h.in_flight[3]) = (7, 3, 2, 1);
            },
            1,
            9,
            "line 3: 7 raised, but 3 handled, 2 merged and 1 in flight",
        ),
        LedgerElapsed => (
            |h| h.mark.at_ns = 1_000,
            |h| {
                h.mark.at_ns = 1_000;
                h.ledger.task_ns = 999;
            },
            1,
            1_000,
            "the ledger adds up to 999 ns, guest time is 1000 ns",
        ),
    }
}

fn publish_640_at_1_ms(h: &mut History) {
    h.runs_to(1_000_000);
    h.load(1, 640);
    h.publishes(1, 1_000_000);
}
