use std::convert::Infallible;

use guest_model::policy::{PsiZeroDelta, RateLimitClock};

use super::*;
use crate::observe::Mark;
use crate::view::{
    AvgView, CfsLoadView, CostsView, EntityView, RemovedView, RqView, RunnableView, TaskRef,
};

/// A guest with two groups below the root that holds what the test says.
#[derive(Clone, Default)]
struct Fake {
    rq: RqView,
    cfs: [CfsRqView; 3],
    psi: [PsiView; 3],
    load: [CfsLoadView; 3],
    se: EntityView,
}

impl GuestView for Fake {
    type Error = Infallible;

    fn rq(&self) -> Result<RqView, Infallible> {
        Ok(self.rq)
    }
    fn curr_pid(&self) -> Result<u32, Infallible> {
        Ok(self.rq.curr_pid)
    }
    fn runs_ksoftirqd(&self) -> Result<bool, Infallible> {
        Ok(self.rq.curr_pid == 1)
    }
    fn irqtime_total_ns(&self) -> Result<u64, Infallible> {
        Ok(self.rq.irqtime_total_ns)
    }
    fn cfs_rq(&self, group: u16) -> Result<CfsRqView, Infallible> {
        Ok(CfsRqView { group, ..self.cfs[usize::from(group)] })
    }
    fn psi_group(&self, group: u16) -> Result<PsiView, Infallible> {
        Ok(PsiView { group, ..self.psi[usize::from(group)] })
    }
    fn leaf_cfs_rqs(&self, _: &mut Vec<CfsRqView>) -> Result<(), Infallible> {
        Ok(())
    }
    fn costs(&self) -> Result<Option<CostsView>, Infallible> {
        Ok(None)
    }
}

impl LoadView for Fake {
    type Error = Infallible;

    fn cfs_state(&self, group: u16) -> Result<CfsLoadView, Infallible> {
        Ok(self.load[usize::from(group)])
    }
    fn se_state(&self, _: u64) -> Result<EntityView, Infallible> {
        Ok(self.se)
    }
}

const TASK: u32 = 7;

fn guest() -> Guest {
    let policy = Policy {
        rate_limit_clock: RateLimitClock::RqClock,
        psi_zero_delta: PsiZeroDelta::Skip,
        fault: Fault::None,
    };
    Guest {
        policy,
        parents: vec![0, 0, 1],
        has_steal_clock: true,
        hardirq_offset: 1 << 24,
        unseen: Vec::new(),
    }
}

fn busy() -> Fake {
    let rq = RqView { curr_pid: TASK, preempt_count: Some(0), ..RqView::default() };
    Fake { rq, ..Fake::default() }
}

/// One call after another, each with what the guest made of it.
struct Run {
    guest: Fake,
    replay: Replay,
}

impl Run {
    fn new(guest: Fake) -> Self {
        Self::with(guest, self::guest(), &[])
    }

    fn with(guest: Fake, like: Guest, faults: &[Planted]) -> Self {
        let Ok(replay) = Replay::begin(like, faults, &guest);
        Self { guest, replay }
    }

    fn call(&mut self, call: Call, at_ns: u64, steal_ns: u64, then: impl FnOnce(&mut Fake)) {
        let before = self.guest.clone();
        then(&mut self.guest);
        let mark = Mark { at_ns, steal_ns, ..Mark::default() };
        let cfs = match call {
            Call::UpdateTgLoadAvg { group } => {
                let (Ok(before), Ok(after)) = (before.cfs_rq(group), self.guest.cfs_rq(group));
                Some((before, after))
            }
            _ => None,
        };
        let chain: Vec<PsiView> = match call {
            Call::PsiAccountIrqtime { curr: TaskRef { group: 2, .. }, .. } => [2, 1, 0]
                .map(|group| PsiView { group, ..self.guest.psi[usize::from(group)] })
                .into(),
            _ => Vec::new(),
        };
        self.replay.step(&Step {
            call,
            mark,
            before: &before.rq,
            after: &self.guest.rq,
            cfs,
            psi: &chain,
            leaves: &[],
        });
    }

    fn load(&mut self, call: LoadCall) {
        let Ok(()) = self.replay.load(&self.guest, 0, call);
    }

    fn ends(self) -> Vec<Conformance> {
        self.replay.finish(0, &self.guest.rq, None)
    }

    fn end(self) -> Conformance {
        self.ends().remove(0)
    }
}

/// 1,000 ns of wall time, 300 of them stolen.
fn stolen(guest: &mut Fake) {
    guest.rq.clock_ns = 1000;
    guest.rq.clock_task_ns = 700;
    guest.rq.clock_pelt_ns = 700;
    guest.rq.prev_steal_time_rq_ns = 300;
    guest.rq.avg_irq.last_update_time_ns = 0;
}

#[test]
fn a_guest_that_follows_the_rules_differs_nowhere() {
    let mut run = Run::new(busy());
    run.replay.nested(Call::UpdateIrqLoadAvg { running: 300 });
    run.call(Call::UpdateRqClock, 1000, 300, stolen);
    let found = run.end();
    assert_eq!((found.transitions(), found.differences()), (2, 0), "{:?}", found.first);
}

#[test]
fn a_difference_names_the_value_both_sides_and_what_the_rule_had_to_go_by() {
    let mut run = Run::new(busy());
    run.replay.nested(Call::UpdateIrqLoadAvg { running: 300 });
    run.call(Call::UpdateRqClock, 1000, 300, |guest| {
        stolen(guest);
        guest.rq.clock_task_ns = 701;
    });
    let found = run.end();
    let first = found.first.unwrap();
    assert_eq!((first.at_ns, first.rule), (1000, Rule::UpdateRqClock));
    assert_eq!(first.values, [("clock_task".to_owned(), 700, 701)]);
    assert!(first.inputs.contains("steal counter 300 ns"), "{}", first.inputs);
}

#[test]
fn what_update_irq_load_avg_is_given_is_compared_and_so_is_that_it_is_called() {
    for running in [None, Some(299)] {
        let mut run = Run::new(busy());
        if let Some(running) = running {
            run.replay.nested(Call::UpdateIrqLoadAvg { running });
        }
        run.call(Call::UpdateRqClock, 1000, 300, stolen);
        let first = run.end().first.unwrap();
        assert_eq!(first.rule, Rule::UpdateIrqLoadAvg);
        assert_eq!(first.values, [("running".to_owned(), 300, running.unwrap_or(0))]);
    }
}

#[test]
fn after_a_difference_the_guest_is_followed_from_where_it_is() {
    let mut run = Run::new(busy());
    run.call(Call::UpdateRqClock, 1000, 0, |guest| {
        guest.rq.clock_ns = 1000;
        guest.rq.clock_task_ns = 900;
        guest.rq.clock_pelt_ns = 900;
    });
    run.call(Call::UpdateRqClock, 2000, 0, |guest| {
        guest.rq.clock_ns = 2000;
        guest.rq.clock_task_ns = 1900;
        guest.rq.clock_pelt_ns = 1900;
    });
    let found = run.end();
    assert_eq!(found.rules[Rule::UpdateRqClock as usize].differences, 1);
}

#[test]
fn a_value_that_no_call_moves_is_a_difference_of_the_next_call() {
    let mut run = Run::new(busy());
    run.guest.rq.prev_irq_time_ns = 5;
    run.call(Call::IrqtimeAccountIrq { offset: 1 << 24 }, 0, 0, |_| {});
    let first = run.end().first.unwrap();
    assert_eq!(first.values, [("prev_irq_time".to_owned(), 0, 5)]);
}

#[test]
fn hardirqs_are_counted_from_the_bit_at_which_the_kernel_counts_them() {
    for (offset, total) in [(1 << 24, 400), (1 << 16, 0)] {
        let like = Guest { hardirq_offset: offset, ..guest() };
        let mut run = Run::with(busy(), like, &[]);
        // Left: an interrupt in its handler, bit 24 set.
        run.guest.rq.preempt_count = Some(1 << 24);
        run.call(Call::IrqtimeAccountIrq { offset: 0 }, 400, 0, |guest| {
            guest.rq.irqtime_total_ns = total;
            guest.rq.irq_start_time_ns = 400;
        });
        let found = run.end();
        assert_eq!(found.differences(), 0, "{offset:#x}: {:?}", found.first);
    }
}

#[test]
fn psi_is_compared_in_every_group_up_to_the_root() {
    let task = TaskRef { pid: TASK, group: 2 };
    let charge = |guest: &mut Fake| {
        guest.rq.psi_irq_time_ns = 50;
        guest.rq.psi_seq = 2;
        guest.psi.iter_mut().for_each(|psi| psi.irq_full_ns = 50);
    };
    for wrong in [false, true] {
        let mut guest = busy();
        guest.rq.irqtime_total_ns = 50;
        let mut run = Run::new(guest);
        run.call(Call::PsiAccountIrqtime { curr: task, prev: None }, 0, 0, |guest| {
            charge(guest);
            guest.psi[0].irq_full_ns -= u32::from(wrong);
        });
        let first = run.end().first.map(|first| first.values);
        let expected = vec![("times[PSI_IRQ_FULL] of group 0".to_owned(), 50, 49)];
        assert_eq!(first, wrong.then_some(expected));
    }
}

#[test]
fn a_group_that_publishes_its_runnable_average_too_is_followed_in_both() {
    let mut guest = busy();
    let runnable = RunnableView { runnable_avg: 640, ..RunnableView::default() };
    for cfs in &mut guest.cfs {
        // A millisecond ago.
        cfs.last_update_tg_load_avg_ns = 1_000_000u64.wrapping_neg();
        cfs.runnable = Some(runnable);
    }
    for tg_runnable_avg in [640, 0] {
        let mut run = Run::new(guest.clone());
        run.call(Call::UpdateTgLoadAvg { group: 1 }, 0, 0, |guest| {
            guest.cfs[1].last_update_tg_load_avg_ns = 0;
            let mut runnable = RunnableView { tg_runnable_avg_contrib: 640, ..runnable };
            runnable.tg_runnable_avg = tg_runnable_avg;
            guest.cfs[1].runnable = Some(runnable);
        });
        let found = run.end();
        assert_eq!(found.differences(), u64::from(tg_runnable_avg != 640));
    }
}

#[test]
fn each_planted_fault_has_a_replay_of_its_own() {
    let faults = [Planted::Rule(Fault::StealIgnored), Planted::Rule(Fault::IrqDropped)];
    let mut run = Run::with(busy(), guest(), &faults);
    run.replay.nested(Call::UpdateIrqLoadAvg { running: 300 });
    run.call(Call::UpdateRqClock, 1000, 300, stolen);
    let differences: Vec<bool> = run.ends().iter().map(|c| c.differences() != 0).collect();
    assert_eq!(differences, [false, true, false]);
}

#[test]
fn rules_that_cannot_be_seen_are_not_compared_and_that_is_said() {
    let why = "the kernel is built without CONFIG_PSI";
    let like = Guest { unseen: vec![(Rule::PsiAccountIrqtime, why.into())], ..guest() };
    let mut run = Run::with(busy(), like, &[]);
    let task = TaskRef { pid: TASK, group: 2 };
    run.call(Call::PsiAccountIrqtime { curr: task, prev: None }, 0, 0, |guest| {
        guest.rq.psi_irq_time_ns = 9;
    });
    run.call(Call::UpdateRqClock, 0, 0, |_| {});
    let found = run.end();
    assert_eq!(found.differences(), 0, "{:?}", found.first);
    assert_eq!(found.rules[Rule::PsiAccountIrqtime as usize].unavailable.as_deref(), Some(why));
}

#[test]
fn what_rules_that_cannot_be_seen_write_is_no_difference_of_other_rules() {
    let rules = [
        Rule::IrqtimeAccountIrq,
        Rule::PsiAccountIrqtime,
        Rule::UpdateIrqLoadAvg,
        Rule::UpdateTgLoadAvg,
    ];
    let like = Guest { unseen: rules.map(|rule| (rule, "why".into())).into(), ..guest() };
    let mut guest = busy();
    guest.rq.preempt_count = None;
    let mut run = Run::with(guest, like, &[]);
    run.call(Call::IrqtimeAccountIrq { offset: 0 }, 400, 0, |guest| {
        guest.rq.irqtime_total_ns = 400;
        guest.rq.irq_start_time_ns = 400;
    });
    run.call(Call::UpdateTgLoadAvg { group: 1 }, 400, 0, |guest| {
        guest.cfs[1].last_update_tg_load_avg_ns = 400;
        guest.cfs[1].tg_load_avg = 5;
    });
    run.call(Call::UpdateRqClock, 0, 0, |_| {});
    run.guest.rq.psi_irq_time_ns = 9;
    run.guest.rq.avg_irq.util_avg = 9;
    let groups: Vec<_> =
        (0..3).map(|i| (run.guest.cfs_rq(i).unwrap(), run.guest.psi_group(i).unwrap())).collect();
    let found = run.replay.finish(0, &run.guest.rq, Some(&groups)).remove(0);
    assert_eq!((found.transitions(), found.differences()), (1, 0), "{:?}", found.first);
}

#[test]
fn averages_that_no_kernel_holds_are_made_again_without_a_division_by_zero() {
    // PELT_MIN_DIVIDER + period_contrib is 2^32.
    let period_contrib = 46_718_u32.wrapping_neg();
    let avg = AvgView { load_sum: 5, load_avg: 5, period_contrib, ..AvgView::default() };
    let mut guest = busy();
    for load in &mut guest.load {
        *load =
            CfsLoadView { avg, load_weight: 1 << 20, propagate: 1, prop_runnable_sum: 7, ..*load };
    }
    guest.se = EntityView { avg, load_weight: 1 << 20, my_q: Some(2) };
    let mut run = Run::new(guest);
    let (group, se) = (1, 0x1000);
    run.load(LoadCall::UpdateLoadAvg { group, se });
    run.load(UPDATE);
    run.load(LoadCall::Attach { group, se });
    run.load(LoadCall::Detach { group, se });
    run.load(LoadCall::Reweight { group, se, weight: 3 << 20 });
    assert_ne!(run.end().differences(), 0);
}

/// A cfs_rq with a load of 1,024 that has decayed until `now_ns`.
fn loaded() -> CfsLoadView {
    let avg = AvgView {
        load_sum: 47_742 * 1024,
        load_avg: 1024,
        runnable_sum: 47_742 << 10,
        runnable_avg: 1024,
        util_sum: 47_742 << 10,
        util_avg: 1024,
        ..AvgView::default()
    };
    CfsLoadView { avg, load_weight: 1024 << 10, h_nr_runnable: 1, ..CfsLoadView::default() }
}

const UPDATE: LoadCall = LoadCall::UpdateCfsRqLoadAvg { group: 1, now_ns: 0 };

#[test]
fn load_that_moves_between_two_calls_by_nothing_that_was_seen_is_a_difference() {
    for moved in [0, 1] {
        let mut guest = busy();
        guest.load[1] = loaded();
        let mut run = Run::new(guest);
        run.load(UPDATE);
        run.guest.load[1].avg.load_avg += moved;
        run.load(UPDATE);
        let found = run.end();
        let tally = &found.rules[Rule::UpdateLoadAvg as usize];
        assert_eq!((tally.transitions, tally.differences), (1, moved));
        if let Some(first) = found.first {
            assert_eq!(first.values, [("avg.load_avg".to_owned(), 1024, 1025)]);
            assert!(first.inputs.contains("update_cfs_rq_load_avg() of group 1"));
        }
    }
}

#[test]
fn what_left_the_cpu_asleep_is_taken_out_or_the_fault_shows() {
    let mut guest = busy();
    guest.load[1] = loaded();
    guest.load[1].removed = RemovedView { nr: 1, load_avg: 24, util_avg: 0, runnable_avg: 0 };
    let faults =
        [Planted::Load(LoadFault::RemovedIgnored), Planted::Load(LoadFault::NotPropagated)];
    let mut run = Run::with(guest, self::guest(), &faults);
    run.load(UPDATE);
    let avg = &mut run.guest.load[1].avg;
    avg.load_avg -= 24;
    avg.load_sum -= 24 * 46_718;
    run.load(UPDATE);
    let found = run.ends();
    let differences: Vec<u64> = found.iter().map(Conformance::differences).collect();
    assert_eq!(differences, [0, 1, 0], "{:?}", found[0].first);
    let exercised: Vec<bool> = found.iter().map(|found| found.exercised).collect();
    assert_eq!(exercised, [true, true, false], "nothing was to be moved up");
}

#[test]
fn how_a_kernel_adds_load_is_learnt_once_and_then_held_against_it() {
    // An entity whose sum is less than its average allows: 7.2 raises the sum, 6.12 does not.
    let mut guest = busy();
    guest.load[1] = CfsLoadView { load_weight: 1024 << 10, ..CfsLoadView::default() };
    let avg = AvgView { load_avg: 3, ..AvgView::default() };
    guest.se = EntityView { avg, load_weight: 1024 << 10, my_q: None };
    let attach = LoadCall::Attach { group: 1, se: 0x1000 };
    let sum = 1024 * (3 * 46_718 / 1024);
    let (plain, clamped) = (sum, 3 * 46_718);
    assert_ne!(plain, clamped);
    for (first, second, differences) in
        [(plain, plain, 0), (clamped, clamped, 0), (plain, clamped, 1), (clamped, plain, 1)]
    {
        let mut run = Run::new(guest.clone());
        for load_sum in [first, second] {
            run.guest.load[1].avg = AvgView::default();
            run.load(attach);
            run.guest.load[1].avg.load_avg = 3;
            run.guest.load[1].avg.load_sum = load_sum;
            run.load(UPDATE);
            run.guest.load[1].avg = AvgView::default();
            run.replay.loads.iter_mut().for_each(pelt::Loads::forget);
        }
        let found = run.end();
        assert_eq!(found.differences(), differences, "{first} {second}: {:?}", found.first);
    }
}
