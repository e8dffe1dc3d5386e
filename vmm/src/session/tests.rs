use std::collections::VecDeque;

use super::*;
use crate::check::{CheckId, Status};
use crate::clock::HostFault;
use crate::observe::tests::{Guest, KSOFTIRQD, PARENTS, Torn};
use crate::schedule::{Event, Injection};
use guest_model::policy::{Fault, PsiZeroDelta, RateLimitClock};

#[derive(Debug)]
struct List(VecDeque<Event>);

impl Injections for List {
    fn peek(&self) -> Option<u64> {
        self.0.front().map(|e| e.at_ns)
    }
    fn next(&mut self) -> Option<Event> {
        self.0.pop_front()
    }
    fn steal_in_irq(&mut self, _: u16, _: u64) -> Option<(u64, i64)> {
        None
    }
}

/// A pass of 10 us in which line 3 interrupts at 1 us, for 100 ns and 50 ns of softirq work.
fn session() -> Session<List> {
    let setup = Setup {
        policy: Policy {
            rate_limit_clock: RateLimitClock::RqClock,
            psi_zero_delta: PsiZeroDelta::Skip,
            fault: Fault::None,
        },
        parents: PARENTS.into(),
        tick_period_ns: Some(1_000_000),
        offline_ns: None,
        off: vec![],
    };
    let injection = Injection::Irq { line: 3, cost_ns: 100, softirq_ns: 50 };
    let list = List([Event { at_ns: 1_000, injection }].into());
    let engine = Engine::new(list, 10_000, 5, HostFault::None);
    Session::new(setup, 1, engine, Trace::hashed(), Arc::default())
}

fn status(outcome: &PassOutcome, id: CheckId) -> Status {
    outcome.checks[id as usize].status
}

fn first(outcome: &PassOutcome, id: CheckId) -> Option<(u64, &str)> {
    outcome.checks[id as usize].first.as_ref().map(|f| (f.at_ns, f.detail.as_str()))
}

/// The whole pass as an honest guest makes it.
fn honest(s: &mut Session<List>, guest: &mut Guest) {
    assert_eq!(s.burn(guest, 5_000).unwrap(), 1_000);
    assert_eq!(s.deliver(), Some(3));
    assert_eq!(s.irq_status::<Torn>(3).unwrap(), 50);
    assert_eq!(s.softirq(guest, 50).unwrap(), 50);
    s.probe(guest, Call::IrqtimeAccountIrq { offset: 0 }).unwrap();
    guest.rq.irqtime_total_ns = 150;
    s.idle(guest).unwrap();
    assert!(s.finished());
}

#[test]
fn an_honest_pass_holds_to_its_end() {
    let (mut s, mut guest) = (session(), Guest::new());
    honest(&mut s, &mut guest);
    guest.rq.clock_ns = 77;
    let (outcome, _) = s.finish(&guest, None);
    assert!(outcome.checks.iter().all(|c| c.status != Status::Fail), "{:?}", outcome.checks);
    assert_eq!((outcome.elapsed_ns, outcome.rq.clock_ns, outcome.hits), (10_000, 77, 1));
    assert_eq!((outcome.psi.len(), outcome.stopped.clone()), (4, None));
    let l = &outcome.ledger;
    assert_eq!((l.task_ns, l.hardirq_ns, l.softirq_ns, l.idle_ns), (1_000, 100, 50, 8_850));
    assert_eq!((l.softirq_raised_ns, l.softirq_left_ns()), (50, 0));
    let line = l.lines[3];
    assert_eq!((line.raised, line.handled, line.coalesced), (1, 1, 0));
    assert_eq!((line.hardirq_ns, line.softirq_raised_ns), (100, 50));
}

#[test]
fn a_pass_that_was_stopped_is_not_judged_at_its_end_but_what_was_found_stands() {
    let (mut s, mut guest) = (session(), Guest::new());
    guest.rq.irqtime_total_ns = 9;
    s.burn(&guest, 100).unwrap();
    s.probe(&guest, Call::UpdateRqClock).unwrap();
    guest.rq.clock_ns = 50;
    guest.psi[1].irq_full_ns = 5;
    guest.cfs[1].load_avg = 5;
    let why = Some((Asked::ByUser, "interrupted".to_string()));
    let (outcome, _) = s.finish(&guest, why.clone());
    // The call that was open is not completed: the run queue is the one at its entry.
    assert_eq!((outcome.rq.clock_ns, outcome.hits, outcome.psi.len()), (0, 1, 0));
    assert_eq!(outcome.stopped, why);
    for id in [CheckId::ClockMatchesHost, CheckId::PsiIrqLedger, CheckId::TgPublished] {
        assert_eq!(status(&outcome, id), Status::NotExercised, "{id:?}");
    }
    let found = "no interrupt is handled, cpu_irqtime.total is 9 ns, the ledger has 0 ns";
    assert_eq!(first(&outcome, CheckId::IrqAccounted), Some((0, found)));
}

#[test]
fn a_pass_that_ends_completes_the_call_that_was_open() {
    let (mut s, mut guest) = (session(), Guest::new());
    s.burn(&guest, 100).unwrap();
    s.probe(&guest, Call::UpdateRqClock).unwrap();
    guest.rq.clock_ns = 50;
    let (outcome, _) = s.finish(&guest, None);
    let found = "rq->clock is 50 ns, the host's clock 100 ns";
    assert_eq!(first(&outcome, CheckId::ClockMatchesHost), Some((100, found)));
}

#[test]
fn a_guest_that_cannot_be_read_at_the_end_is_an_error_and_not_judged() {
    let (mut s, mut guest) = (session(), Guest::new());
    honest(&mut s, &mut guest);
    guest.torn_group = Some(2);
    guest.psi[0].irq_full_ns = 5;
    let (outcome, _) = s.finish(&guest, None);
    let why = "cannot read the guest's run queue: torn read".to_string();
    assert_eq!(outcome.stopped, Some((Asked::ByError, why)));
    assert_eq!(status(&outcome, CheckId::PsiIrqLedger), Status::NotExercised);
}

#[test]
fn costs_that_cannot_be_read_are_an_error_and_not_a_guest_without_counters() {
    let (mut s, mut guest) = (session(), Guest::new());
    honest(&mut s, &mut guest);
    guest.torn_costs = true;
    let (outcome, _) = s.finish(&guest, None);
    assert_eq!(outcome.stopped.map(|(who, _)| who), Some(Asked::ByError));
    assert_eq!(outcome.costs, None);
}

#[test]
fn an_earlier_reason_to_stop_is_kept() {
    let (s, mut guest) = (session(), Guest::new());
    guest.torn_costs = true;
    let why = Some((Asked::ByUser, "interrupted".to_string()));
    assert_eq!(s.finish(&guest, why.clone()).0.stopped, why);
}

#[test]
fn a_guest_that_lets_no_time_pass_is_stuck_after_so_many_exits() {
    let (mut s, guest) = (session(), Guest::new());
    for _ in 0..STUCK_EXITS {
        s.tick::<Torn>().unwrap();
    }
    s.burn(&guest, 1).unwrap();
    for _ in 0..STUCK_EXITS {
        s.tick::<Torn>().unwrap();
    }
    s.probe(&guest, Call::UpdateRqClock).unwrap();
    let stuck = s.tick::<Torn>().unwrap_err();
    assert_eq!(
        stuck.to_string(),
        "guest is stuck: 200001 exits at guest time 1 ns without any time passing \
         (last call: UpdateRqClock)"
    );
    let mut s = session();
    let stuck = (0..=STUCK_EXITS).find_map(|_| s.tick::<Torn>().err()).unwrap();
    assert!(stuck.to_string().ends_with("(last call: none)"), "{stuck}");
}

#[test]
fn a_session_that_is_asked_to_stop_ends_at_its_next_exit() {
    let mut s = session();
    s.tick::<Torn>().unwrap();
    let control = s.control();
    assert!(!control.stopped());
    control.stop();
    assert!(matches!(s.tick::<Torn>(), Err(Stop::Interrupted)));
    assert!(control.stop_flag().load(Relaxed));
}

#[test]
fn other_threads_see_how_far_a_session_is() {
    let (mut s, guest) = (session(), Guest::new());
    s.probe(&guest, Call::UpdateRqClock).unwrap();
    s.burn(&guest, 70).unwrap();
    s.tick::<Torn>().unwrap();
    s.tick::<Torn>().unwrap();
    let control = s.control();
    let seen = [&control.now_ns, &control.hits, &control.exits].map(|n| n.load(Relaxed));
    assert_eq!(seen, [70, 1, 2]);
}

#[test]
fn softirq_work_of_ksoftirqd_is_task_time_and_told_by_the_running_task() {
    for (pid, parts) in [(0, (50, 0)), (KSOFTIRQD, (0, 50))] {
        let (mut s, mut guest) = (session(), Guest::new());
        s.burn(&guest, 5_000).unwrap();
        s.deliver();
        s.irq_status::<Torn>(3).unwrap();
        guest.rq.curr_pid = pid;
        s.softirq(&guest, 50).unwrap();
        let (outcome, _) = s.finish(&guest, None);
        assert_eq!((outcome.ledger.softirq_ns, outcome.ledger.ksoftirqd_ns), parts);
    }
}

#[test]
fn softirq_work_beyond_what_was_raised_and_work_left_at_a_halt_fail() {
    let (mut s, mut guest) = (session(), Guest::new());
    s.burn(&guest, 5_000).unwrap();
    s.deliver();
    s.irq_status::<Torn>(3).unwrap();
    s.softirq(&guest, 51).unwrap();
    let (outcome, _) = s.finish(&guest, None);
    let found = "51 ns of softirq work are to be done, 50 ns are left of what was raised";
    assert_eq!(first(&outcome, CheckId::SoftirqDone), Some((1_100, found)));

    let mut s = session();
    s.burn(&guest, 5_000).unwrap();
    s.deliver();
    s.irq_status::<Torn>(3).unwrap();
    guest.rq.irqtime_total_ns = 100;
    s.softirq(&guest, 20).unwrap();
    s.idle(&guest).unwrap();
    let (outcome, _) = s.finish(&guest, None);
    let found = "the CPU halts with 30 ns of softirq work not done";
    assert_eq!(first(&outcome, CheckId::SoftirqDone), Some((1_120, found)));
}

#[test]
fn an_interrupt_whose_status_was_never_read_is_in_flight_at_the_end() {
    let (mut s, guest) = (session(), Guest::new());
    s.burn(&guest, 5_000).unwrap();
    s.deliver();
    let (outcome, _) = s.finish(&guest, None);
    assert_eq!(status(&outcome, CheckId::InterruptsHandled), Status::Pass);
    assert_eq!((outcome.irqs_waiting, outcome.ledger.lines[3].handled), (0, 0));
}

#[test]
fn the_status_of_a_line_that_is_not_in_service_ends_the_session() {
    let stop = session().irq_status::<Torn>(9).unwrap_err();
    assert_eq!(
        stop.to_string(),
        "guest read the status of interrupt line 9, which has no interrupt in service"
    );
}

#[test]
fn a_guest_without_a_steal_clock_is_told_as_such() {
    let mut s = session();
    s.lacks_steal_clock();
    let (outcome, _) = s.finish(&Guest::new(), None);
    assert!(!outcome.has_steal_clock);
    assert_eq!(status(&outcome, CheckId::StealAccounted), Status::NotBuiltIn);
}
