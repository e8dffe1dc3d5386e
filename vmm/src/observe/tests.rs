use super::*;
use crate::view::{CostsView, TaskRef};

/// A guest made by hand: four groups, each in the one before it but the last, which is in the root.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub(crate) rq: RqView,
    pub(crate) cfs: [CfsRqView; 4],
    pub(crate) psi: [PsiView; 4],
    pub(crate) leaves: Vec<u16>,
    pub(crate) costs: Option<CostsView>,
    /// The group whose cfs_rq and PSI state cannot be read.
    pub(crate) torn_group: Option<u16>,
    pub(crate) torn_costs: bool,
}

/// The pid of the guest's ksoftirqd.
pub(crate) const KSOFTIRQD: u32 = 1;

/// The parents of [`Guest`]'s groups.
pub(crate) const PARENTS: [u16; 4] = [0, 0, 1, 0];

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("torn read")]
pub(crate) struct Torn;

impl Guest {
    pub(crate) fn new() -> Self {
        let group = |i: usize| i as u16;
        Self {
            rq: RqView::default(),
            cfs: std::array::from_fn(|i| CfsRqView { group: group(i), ..CfsRqView::default() }),
            psi: std::array::from_fn(|i| PsiView { group: group(i), irq_full_ns: 0 }),
            leaves: vec![2, 1, 3, 0],
            costs: None,
            torn_group: None,
            torn_costs: false,
        }
    }

    fn sound(&self, group: u16) -> Result<usize, Torn> {
        if self.torn_group == Some(group) { Err(Torn) } else { Ok(group.into()) }
    }
}

impl GuestView for Guest {
    type Error = Torn;

    fn rq(&self) -> Result<RqView, Torn> {
        Ok(self.rq)
    }
    fn curr_pid(&self) -> Result<u32, Torn> {
        Ok(self.rq.curr_pid)
    }
    fn runs_ksoftirqd(&self) -> Result<bool, Torn> {
        Ok(self.rq.curr_pid == KSOFTIRQD)
    }
    fn irqtime_total_ns(&self) -> Result<u64, Torn> {
        Ok(self.rq.irqtime_total_ns)
    }
    fn cfs_rq(&self, group: u16) -> Result<CfsRqView, Torn> {
        Ok(self.cfs[self.sound(group)?])
    }
    fn psi_group(&self, group: u16) -> Result<PsiView, Torn> {
        Ok(self.psi[self.sound(group)?])
    }
    fn leaf_cfs_rqs(&self, out: &mut Vec<CfsRqView>) -> Result<(), Torn> {
        out.clear();
        for &group in &self.leaves {
            out.push(self.cfs_rq(group)?);
        }
        Ok(())
    }
    fn costs(&self) -> Result<Option<CostsView>, Torn> {
        if self.torn_costs { Err(Torn) } else { Ok(self.costs) }
    }
}

/// What a step told, with the run queue's clock before and after.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    call: Call,
    at_ns: u64,
    clock_ns: (u64, u64),
    cfs: Option<(CfsRqView, CfsRqView)>,
    psi: Vec<u16>,
    leaves: Vec<u16>,
}

/// An observer, its guest and the steps that it made.
struct Watch {
    observer: Observer,
    guest: Guest,
    trace: Trace,
    steps: Vec<Seen>,
}

impl Watch {
    fn new() -> Self {
        Self {
            observer: Observer::new(PARENTS.into()),
            guest: Guest::new(),
            trace: Trace::hashed(),
            steps: Vec::new(),
        }
    }

    fn hit(&mut self, at_ns: u64, call: Call) -> Result<(), Torn> {
        let mark = Mark { at_ns, ..Mark::default() };
        let steps = &mut self.steps;
        self.observer.hit(&self.guest, call, mark, &mut self.trace, |s| steps.push(seen(s)))
    }

    fn finish(&mut self, at_ns: u64) -> Result<RqView, Torn> {
        let steps = &mut self.steps;
        self.observer.finish(&self.guest, at_ns, &mut self.trace, |s| steps.push(seen(s)))
    }
}

fn seen(s: &Step<'_>) -> Seen {
    Seen {
        call: s.call,
        at_ns: s.mark.at_ns,
        clock_ns: (s.before.clock_ns, s.after.clock_ns),
        cfs: s.cfs,
        psi: s.psi.iter().map(|p| p.group).collect(),
        leaves: s.leaves.iter().map(|c| c.group).collect(),
    }
}

const UPDATE: Call = Call::UpdateRqClock;

fn tick(group: u16) -> Call {
    Call::PsiAccountIrqtime { curr: TaskRef { pid: 7, group }, prev: None }
}

fn switch(group: u16) -> Call {
    let next = TaskRef { pid: 8, group: 3 };
    Call::PsiAccountIrqtime { curr: TaskRef { pid: 7, group }, prev: Some(next) }
}

#[test]
fn a_call_is_completed_by_the_next_hit_with_the_state_found_there() {
    let mut w = Watch::new();
    w.guest.rq.clock_ns = 10;
    w.hit(100, UPDATE).unwrap();
    assert_eq!(w.steps, []);
    w.guest.rq.clock_ns = 20;
    w.hit(200, Call::IrqtimeAccountIrq { offset: 3 }).unwrap();
    let plain = |call, at_ns, clock_ns| Seen {
        call,
        at_ns,
        clock_ns,
        cfs: None,
        psi: vec![],
        leaves: vec![],
    };
    assert_eq!(w.steps, [plain(UPDATE, 100, (10, 20))]);
    w.guest.rq.clock_ns = 30;
    assert_eq!(w.finish(300).unwrap().clock_ns, 30);
    assert_eq!(w.steps[1..], [plain(Call::IrqtimeAccountIrq { offset: 3 }, 200, (20, 30))]);
    assert_eq!(w.observer.hits(), 2);
}

#[test]
fn the_mark_is_the_hosts_at_the_entry() {
    let mut w = Watch::new();
    let mark = Mark { at_ns: 1, steal_ns: 2, irq_ns: 3, steal_in_irq_ns: 4, idle_ns: 5 };
    w.observer.hit(&w.guest, UPDATE, mark, &mut w.trace, |_| panic!("nothing is open")).unwrap();
    let mut found = None;
    w.observer.finish(&w.guest, 9, &mut w.trace, |s| found = Some(s.mark)).unwrap();
    assert_eq!(found, Some(mark));
}

#[test]
fn a_run_without_a_hit_has_no_step_and_ends_with_the_run_queue_as_it_is() {
    let mut w = Watch::new();
    w.guest.rq.clock_ns = 5;
    assert_eq!(w.finish(9).unwrap().clock_ns, 5);
    assert_eq!((w.steps.len(), w.observer.hits(), w.observer.last()), (0, 0, None));
    let (_, records, written) = w.trace.finish();
    assert_eq!(records, 1);
    written.unwrap();
}

#[test]
fn last_is_the_call_entered_last_and_the_run_queue_then() {
    let mut w = Watch::new();
    w.guest.rq.clock_ns = 5;
    w.hit(1, UPDATE).unwrap();
    w.guest.rq.clock_ns = 6;
    w.hit(2, tick(1)).unwrap();
    w.guest.rq.clock_ns = 7;
    let (call, rq) = w.observer.last().unwrap();
    assert_eq!((call, rq.clock_ns), (tick(1), 6));
}

#[test]
fn a_cfs_rq_is_seen_before_and_after_its_own_call_only() {
    let mut w = Watch::new();
    for (call, load_avg) in [
        (Call::UpdateTgLoadAvg { group: 2 }, 10),
        (UPDATE, 20),
        (Call::ClearTgLoadAvg { group: 2 }, 30),
        (Call::UpdateTgLoadAvg { group: 1 }, 40),
    ] {
        w.guest.cfs[2].load_avg = load_avg;
        w.guest.cfs[1].load_avg = load_avg + 1;
        w.hit(1, call).unwrap();
    }
    w.guest.cfs[1].load_avg = 51;
    w.finish(2).unwrap();
    let loads: Vec<_> = w
        .steps
        .iter()
        .map(|s| s.cfs.map(|(b, a)| (b.group, b.load_avg, a.group, a.load_avg)))
        .collect();
    assert_eq!(loads, [Some((2, 10, 2, 20)), None, Some((2, 30, 2, 40)), Some((1, 41, 1, 51))]);
}

#[test]
fn the_psi_chain_is_the_group_and_its_ancestors_up_to_the_root() {
    let mut w = Watch::new();
    for call in [switch(2), switch(3), switch(0), tick(1), UPDATE] {
        w.hit(1, call).unwrap();
    }
    w.finish(2).unwrap();
    let chains: Vec<_> = w.steps.iter().map(|s| s.psi.clone()).collect();
    assert_eq!(chains, [vec![2, 1, 0], vec![3, 0], vec![0], vec![1, 0], vec![]]);
}

#[test]
fn the_psi_chain_is_read_after_the_call() {
    let mut w = Watch::new();
    w.hit(1, switch(1)).unwrap();
    w.guest.psi[1].irq_full_ns = 9;
    let mut found = Vec::new();
    w.observer.finish(&w.guest, 2, &mut w.trace, |s| found = s.psi.to_vec()).unwrap();
    assert_eq!(found, [PsiView { group: 1, irq_full_ns: 9 }, PsiView { group: 0, irq_full_ns: 0 }]);
}

#[test]
fn the_leaf_list_is_read_at_the_entry_of_the_ticks_call_and_shown_with_no_other() {
    let mut w = Watch::new();
    w.hit(1, tick(1)).unwrap();
    w.guest.leaves = vec![3, 0];
    w.hit(2, switch(1)).unwrap();
    w.hit(3, UPDATE).unwrap();
    w.hit(4, tick(1)).unwrap();
    w.hit(5, tick(1)).unwrap();
    w.guest.leaves = vec![];
    w.finish(6).unwrap();
    let lists: Vec<_> = w.steps.iter().map(|s| s.leaves.clone()).collect();
    assert_eq!(lists, [vec![2, 1, 3, 0], vec![], vec![], vec![3, 0], vec![3, 0]]);
}

#[test]
fn a_group_that_cannot_be_read_ends_the_hit_with_its_error() {
    let mut w = Watch::new();
    w.guest.torn_group = Some(1);
    assert_eq!(w.hit(1, Call::UpdateTgLoadAvg { group: 1 }), Err(Torn));
    assert_eq!((w.observer.hits(), w.observer.last()), (0, None));
    assert_eq!(w.hit(1, tick(3)), Err(Torn));
    w.guest.leaves = vec![3, 0];
    w.hit(1, tick(2)).unwrap();
    assert_eq!(w.finish(2), Err(Torn));
    assert_eq!(w.steps, []);
}

#[test]
fn every_hit_leaves_one_record_and_the_end_one_more() {
    let mut w = Watch::new();
    let (a, b) = (TaskRef { pid: 1, group: 1 }, TaskRef { pid: 2, group: 2 });
    for call in [
        UPDATE,
        Call::IrqtimeAccountIrq { offset: 1 },
        tick(1),
        switch(1),
        Call::PsiTaskSwitch { prev: a, next: b, sleep: true },
        Call::PsiTaskChange { task: a, clear: 1, set: 2 },
        Call::UpdateTgLoadAvg { group: 1 },
        Call::ClearTgLoadAvg { group: 1 },
        Call::UpdateIrqLoadAvg { running: 4 },
    ] {
        w.hit(1, call).unwrap();
    }
    w.finish(2).unwrap();
    let (_, records, _) = w.trace.finish();
    // update_irq_load_avg() is called inside of another call, and ends none.
    assert_eq!((records, w.steps.len(), w.observer.hits()), (10, 8, 9));
}
