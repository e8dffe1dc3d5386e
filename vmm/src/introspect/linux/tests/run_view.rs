//! A run's view: everything counted from its start.

use crate::introspect::Introspector;
use crate::introspect::linux::run_view::{Baseline, RunView, StampClock, Start, settled};
use crate::introspect::linux::tests::fake::{Fake, IRQ_NS, NOW_NS, STEAL_NS};
use crate::introspect::linux::tests::shapes::Build;
use crate::view::{GuestView, RqView};

const START: Start = Start {
    sched_clock_ns: NOW_NS,
    steal_ns: Some(STEAL_NS),
    psi: true,
    stamp_clock: StampClock::Clock,
};

fn introspector(fake: &Fake) -> Introspector {
    let linux = fake.find();
    let groups = linux.groups(&["/a", "/a/b", "/c"]).unwrap();
    linux.introspector(groups.table).unwrap()
}

fn rq(fake: &Fake) -> u64 {
    fake.groups[0].cfs_rq - fake.offset("rq", "cfs")
}

#[test]
fn at_the_start_all_is_zero_but_the_clocks_which_are_as_old_as_the_last_update() {
    let fake = Fake::new(Build::New, 0);
    let raw = introspector(&fake);
    let start = Baseline::take(&raw, 4, START).unwrap();
    let view = RunView { raw: &raw, start: &start };
    let rq = view.rq().unwrap();
    assert_eq!([rq.clock_ns, rq.clock_task_ns].map(|ns| ns as i64), [-2_000_000; 2]);
    assert_eq!(rq.clock_pelt_ns as i64, -3_000_000, "it lags clock_task by what it did before");
    assert_eq!([rq.prev_irq_time_ns, rq.psi_irq_time_ns, rq.irqtime_total_ns], [0; 3]);
    assert_eq!([rq.prev_steal_time_rq_ns, rq.nr_switches, rq.lost_idle_time_ns], [0; 3]);
    assert_eq!((rq.psi_seq, rq.nr_running, rq.curr_pid, rq.avg_irq.util_avg), (0, 2, 42, 12));
    assert_eq!(view.irqtime_total_ns(), Ok(0));
    for group in 0..4 {
        assert_eq!(view.psi_group(group).unwrap().irq_full_ns, 0);
        let cfs = view.cfs_rq(group).unwrap();
        let (stamp, raw) = (cfs.last_update_tg_load_avg_ns, raw.cfs_rq(group).unwrap());
        assert_eq!(stamp, raw.last_update_tg_load_avg_ns.wrapping_sub(NOW_NS));
        assert_eq!((cfs.load_avg, cfs.tg_load_avg), (raw.load_avg, raw.tg_load_avg));
    }
    let mut leaves = Vec::new();
    view.leaf_cfs_rqs(&mut leaves).unwrap();
    let stamps: Vec<_> = leaves.iter().map(|c| c.last_update_tg_load_avg_ns as i64).collect();
    assert_eq!(stamps, [-3_000_002, -3_000_001, -3_000_003, -(NOW_NS as i64)]);
    assert_eq!(
        (view.runs_ksoftirqd(), view.curr_pid(), view.costs()),
        (Ok(false), Ok(42), Ok(None))
    );
}

#[test]
fn an_update_moves_both_clocks_by_the_time_since_the_start() {
    let fake = Fake::new(Build::New, 0);
    let raw = introspector(&fake);
    let start = Baseline::take(&raw, 4, START).unwrap();
    // 5 ms later, of which 1 ms was IRQ time and 0.5 ms steal.
    let (clock, irq, steal) = (NOW_NS + 5_000_000, IRQ_NS + 1_000_000, STEAL_NS + 500_000);
    let set = |member, value| fake.set("rq", member, rq(&fake), value);
    set("clock", clock);
    set("clock_task", clock - irq - steal);
    set("clock_pelt", clock - irq - steal);
    set("prev_irq_time", irq);
    set("psi_irq_time", irq);
    set("prev_steal_time_rq", steal);
    set("nr_switches", 1000);
    let view = RunView { raw: &raw, start: &start };
    let rq = view.rq().unwrap();
    assert_eq!(
        (rq.clock_ns, rq.clock_task_ns, rq.clock_pelt_ns),
        (5_000_000, 3_500_000, 3_500_000)
    );
    assert_eq!((rq.prev_irq_time_ns, rq.psi_irq_time_ns), (1_000_000, 1_000_000));
    assert_eq!((rq.prev_steal_time_rq_ns, rq.nr_switches), (500_000, 5));
}

#[test]
fn a_stamp_of_clock_task_is_counted_from_clock_tasks_start() {
    let fake = Fake::new(Build::New, 0);
    let raw = introspector(&fake);
    let clock_task = StampClock::ClockTask;
    let start = Baseline::take(&raw, 4, Start { stamp_clock: clock_task, ..START }).unwrap();
    let stamp = raw.rq().unwrap().clock_task_ns + 2_000_000 + 1_500_000;
    fake.set("cfs_rq", "last_update_tg_load_avg", fake.groups[1].cfs_rq, stamp);
    let view = RunView { raw: &raw, start: &start };
    assert_eq!(view.cfs_rq(1).unwrap().last_update_tg_load_avg_ns, 1_500_000);
}

#[test]
fn counters_of_psi_wrap_as_the_kernels_do() {
    let fake = Fake::new(Build::New, 0);
    let raw = introspector(&fake);
    let times = fake.groups[1].psi_group_cpu + fake.offset("psi_group_cpu", "times") + 6 * 4;
    fake.poke(times, &(u32::MAX - 10).to_le_bytes());
    let start = Baseline::take(&raw, 4, START).unwrap();
    fake.poke(times, &90u32.to_le_bytes());
    let view = RunView { raw: &raw, start: &start };
    assert_eq!(view.psi_group(1).unwrap().irq_full_ns, 101);
}

#[test]
fn a_run_does_not_start_before_irq_time_and_steal_are_accounted() {
    for (member, value, why) in [
        ("prev_irq_time", IRQ_NS - 1, "rq.prev_irq_time is 80000122 ns, expected 80000123 ns"),
        ("psi_irq_time", IRQ_NS - 9, "rq.psi_irq_time is 80000114 ns, expected 80000123 ns"),
        ("prev_steal_time_rq", 0, "rq.prev_steal_time_rq is 0 ns, expected 7000001 ns"),
    ] {
        let fake = Fake::new(Build::New, 0);
        fake.set("rq", member, rq(&fake), value);
        let raw = introspector(&fake);
        assert!(!settled(&raw.rq().unwrap(), Some(STEAL_NS), true));
        let error = Baseline::take(&raw, 4, START).unwrap_err().to_string();
        let expected =
            format!("the guest's accounting is not settled at the start of the run: {why}");
        assert_eq!(error, expected);
    }
    let rq = RqView { irqtime_total_ns: 5, prev_irq_time_ns: 5, ..RqView::default() };
    assert!(settled(&rq, None, false), "what a kernel lacks need not settle");
    assert!(!settled(&rq, None, true) && !settled(&rq, Some(1), false));
    assert!(settled(&rq, Some(0), false));
}

#[test]
fn the_clock_of_a_stamp_is_told_at_the_instant_of_the_stamp() {
    let rq = RqView { clock_ns: 10, clock_task_ns: 7, ..RqView::default() };
    assert_eq!(StampClock::of(10, &rq), Some(StampClock::Clock));
    assert_eq!(StampClock::of(7, &rq), Some(StampClock::ClockTask));
    assert_eq!(StampClock::of(8, &rq), None);
    let same = RqView { clock_ns: 7, ..rq };
    assert_eq!(StampClock::of(7, &same), None);
}
