//! The load of each cfs_rq, made again: decay, removal, propagation, attaching, detaching, weights.
//!
//! The functions that move `cfs_rq->avg` are probed at their entry. What such a call makes of the averages
//! is worked out there, from what it finds, and compared when the next call comes to the same cfs_rq: nothing
//! else may move them.

use guest_model::fair::{CfsRq, SchedEntity};
use guest_model::list::ListHead;
use guest_model::load_avg::{AddLoad, Removed};
use guest_model::wire::NONE;

use super::oracle::{avg_values, sched_avg};
use super::{Conformance, Difference, Rule};
use crate::model::avg_view;
use crate::view::{AvgView, CfsLoadView, EntityView, LoadCall, LoadView};

/// A fault planted in how load is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadFault {
    /// What left the CPU asleep is not taken out.
    RemovedIgnored,
    /// What attached or detached in a group does not move up.
    NotPropagated,
    /// An entity that attaches adds its load with its old weight.
    AttachedTwice,
    /// A new weight changes no average.
    ReweightIgnored,
    /// Load decays as if 1 us more had passed.
    DecayedAhead,
}

impl LoadFault {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::RemovedIgnored,
        Self::NotPropagated,
        Self::AttachedTwice,
        Self::ReweightIgnored,
        Self::DecayedAhead,
    ];
}

/// What a call finds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// Its cfs_rq.
    cfs: CfsLoadView,
    /// Its entity, if it moves load for one.
    se: Option<EntityView>,
    /// The cfs_rq of the group that the entity stands for.
    below: Option<CfsLoadView>,
}

impl Found {
    /// Reads what `call` finds. `within` is the `update_load_avg()` that was entered and that this call may be
    /// inside of; `None` is returned where nothing moves yet.
    pub(super) fn read<V: LoadView>(
        view: &V,
        call: LoadCall,
        within: &mut Option<(u16, u64)>,
    ) -> Result<Option<Self>, V::Error> {
        let se = match call {
            LoadCall::UpdateLoadAvg { group, se } => {
                *within = Some((group, se));
                return Ok(None);
            }
            LoadCall::UpdateCfsRqLoadAvg { group, .. } => {
                within.take().filter(|(outer, _)| *outer == group).map(|(_, se)| se)
            }
            LoadCall::Attach { se, .. }
            | LoadCall::Detach { se, .. }
            | LoadCall::Reweight { se, .. } => Some(se),
        };
        let cfs = view.cfs_state(call.group())?;
        let se = match se {
            Some(se) => Some(view.se_state(se)?),
            None => None,
        };
        let below = match se.and_then(|se| se.my_q) {
            Some(group) => Some(view.cfs_state(group)?),
            None => None,
        };
        Ok(Some(Self { cfs, se, below }))
    }
}

/// What a call makes of a cfs_rq, if it adds load in one way or the other.
#[derive(Clone, Copy, Debug)]
struct Moved {
    call: LoadCall,
    at_ns: u64,
    before: CfsLoadView,
    se: Option<EntityView>,
    clamped: AvgView,
    plain: AvgView,
}

/// The load of all groups.
#[derive(Debug)]
pub(super) struct Loads {
    fault: Option<LoadFault>,
    /// Calls that the fault changes.
    planted: u64,
    /// How each group's was last moved.
    groups: Vec<Option<Moved>>,
    /// How the kernel adds an entity's load, once that was seen.
    add: Option<AddLoad>,
    pub(super) transitions: u64,
    pub(super) differences: u64,
    pub(super) first: Option<Difference>,
}

impl Loads {
    pub(super) fn new(groups: usize, fault: Option<LoadFault>) -> Self {
        Self {
            fault,
            planted: 0,
            groups: vec![None; groups],
            add: None,
            transitions: 0,
            differences: 0,
            first: None,
        }
    }

    /// A call that finds this of the guest.
    pub(super) fn call(&mut self, at_ns: u64, call: LoadCall, found: &Found) {
        let (group, cfs) = (call.group(), &found.cfs);
        self.compare(group, &cfs.avg);
        self.planted += u64::from(self.is_planted_in(call, found));
        let moved = |add| {
            let mut q = model_cfs_rq(cfs);
            let mut below = found.below.as_ref().map(model_cfs_rq);
            let mut e = found.se.as_ref().map(model_entity);
            self.make(call, add, cfs, &mut q, e.as_mut(), below.as_mut());
            avg_view(&q.avg)
        };
        let (clamped, plain) = (moved(AddLoad::Clamped), moved(AddLoad::Plain));
        let (before, se) = (*cfs, found.se);
        if let Some(known) = self.groups.get_mut(usize::from(group)) {
            *known = Some(Moved { call, at_ns, before, se, clamped, plain });
        }
    }

    fn is_planted_in(&self, call: LoadCall, found: &Found) -> bool {
        let update = matches!(call, LoadCall::UpdateCfsRqLoadAvg { .. });
        match self.fault {
            None => false,
            Some(LoadFault::RemovedIgnored) => update && found.cfs.removed.nr != 0,
            Some(LoadFault::NotPropagated) => {
                update && found.below.is_some_and(|below| below.propagate != 0)
            }
            Some(LoadFault::AttachedTwice) => matches!(call, LoadCall::Attach { .. }),
            Some(LoadFault::ReweightIgnored) => match call {
                LoadCall::Reweight { weight, .. } => {
                    found.se.is_some_and(|se| se.load_weight != weight)
                }
                _ => false,
            },
            Some(LoadFault::DecayedAhead) => update,
        }
    }

    /// What guest-model makes of the cfs_rq `q`.
    fn make(
        &self,
        call: LoadCall,
        add: AddLoad,
        before: &CfsLoadView,
        q: &mut CfsRq,
        e: Option<&mut SchedEntity>,
        below: Option<&mut CfsRq>,
    ) {
        let planted = |fault| self.fault == Some(fault);
        match (call, e) {
            (LoadCall::UpdateCfsRqLoadAvg { now_ns, .. }, e) => {
                if !planted(LoadFault::RemovedIgnored) {
                    let removed = before.removed;
                    q.take_removed(Removed {
                        nr: removed.nr,
                        load_avg: removed.load_avg,
                        util_avg: removed.util_avg,
                        runnable_avg: removed.runnable_avg,
                    });
                }
                let ahead = if planted(LoadFault::DecayedAhead) { 1024 } else { 0 };
                q.update_load_avg_cfs_rq(now_ns.wrapping_add(ahead));
                if let (Some(e), Some(below)) = (e, below)
                    && !planted(LoadFault::NotPropagated)
                {
                    q.propagate_entity_load_avg(e, below);
                }
            }
            (LoadCall::Attach { .. }, Some(e)) => {
                q.attach_entity_load_avg(e, add);
                if planted(LoadFault::AttachedTwice) {
                    q.attach_entity_load_avg(e, add);
                }
            }
            (LoadCall::Detach { .. }, Some(e)) => q.detach_entity_load_avg(e),
            // 7.3 leaves at once if nothing changes.
            (LoadCall::Reweight { weight, .. }, Some(e))
                if e.load_weight != weight && !planted(LoadFault::ReweightIgnored) =>
            {
                q.reweight_load_avg(e, weight, add);
            }
            _ => {}
        }
    }

    /// The last call that moved the load of `group` has come to `seen`.
    fn compare(&mut self, group: u16, seen: &AvgView) {
        let Some(Some(moved)) = self.groups.get(usize::from(group)).copied() else { return };
        self.transitions += 1;
        if moved.clamped != moved.plain && self.add.is_none() {
            // The first time that it matters tells.
            self.add = [(AddLoad::Plain, moved.plain), (AddLoad::Clamped, moved.clamped)]
                .into_iter()
                .find_map(|(add, avg)| (avg == *seen).then_some(add));
        }
        let expected = match self.add {
            Some(AddLoad::Plain) => moved.plain,
            _ => moved.clamped,
        };
        if expected == *seen {
            return;
        }
        self.differences += 1;
        if self.first.is_none() {
            self.first = Some(difference(&moved, &expected, seen));
        }
    }

    /// Nothing that moved so far is compared with what comes.
    #[cfg(test)]
    pub(super) fn forget(&mut self) {
        self.groups.fill(None);
    }

    /// Adds what was found.
    pub(super) fn report(&self, found: &mut Conformance) {
        let tally = &mut found.rules[Rule::UpdateLoadAvg as usize];
        tally.transitions += self.transitions;
        tally.differences += self.differences;
        found.exercised = self.fault.is_none() || self.planted != 0;
        if let Some(first) = &self.first
            && found.first.as_ref().is_none_or(|other| other.at_ns > first.at_ns)
        {
            found.first = Some(first.clone());
        }
    }
}

fn difference(moved: &Moved, expected: &AvgView, seen: &AvgView) -> Difference {
    const NAMES: [&str; 8] = [
        "avg.last_update_time",
        "avg.load_sum",
        "avg.runnable_sum",
        "avg.util_sum",
        "avg.period_contrib",
        "avg.load_avg",
        "avg.runnable_avg",
        "avg.util_avg",
    ];
    let (model, guest) = (avg_values(expected), avg_values(seen));
    let values = (0..NAMES.len()).map(|i| (NAMES[i].to_owned(), model[i], guest[i]));
    let b = &moved.before;
    let mut inputs = format!("{}() of group {}", moved.call.name(), moved.call.group());
    match moved.call {
        LoadCall::UpdateCfsRqLoadAvg { now_ns, .. } => inputs += &format!(", now {now_ns} ns"),
        LoadCall::Reweight { weight, .. } => inputs += &format!(", weight {weight}"),
        _ => {}
    }
    inputs += &format!(
        "; before: load.weight {} h_nr_runnable {} running {} propagate {} prop_runnable_sum {} \
         removed {:?} avg {:?}",
        b.load_weight,
        b.h_nr_runnable,
        b.running,
        b.propagate,
        b.prop_runnable_sum,
        b.removed,
        avg_values(&b.avg)
    );
    if let Some(se) = &moved.se {
        let my_q = se.my_q.map_or("a task".to_owned(), |group| format!("group {group}"));
        let avg = avg_values(&se.avg);
        inputs += &format!("; the entity of {my_q}: load.weight {} avg {avg:?}", se.load_weight);
    }
    Difference {
        at_ns: moved.at_ns,
        rule: Rule::UpdateLoadAvg,
        values: values.filter(|(_, model, guest)| model != guest).collect(),
        inputs,
    }
}

/// A cfs_rq as guest-model has it, what its load does not depend on left out.
fn model_cfs_rq(cfs: &CfsLoadView) -> CfsRq {
    let list = ListHead { next: 0, prev: 0 };
    CfsRq {
        load_weight: cfs.load_weight,
        nr_queued: 0,
        h_nr_runnable: cfs.h_nr_runnable,
        min_vruntime: 0,
        avg: sched_avg(&cfs.avg),
        tg_load_avg_contrib: 0,
        tg_runnable_avg_contrib: 0,
        last_update_tg_load_avg: 0,
        prop_runnable_sum: cfs.prop_runnable_sum,
        tg: 0,
        leaf_cfs_rq_list: list,
        propagate: u32::from(cfs.propagate != 0),
        on_list: 0,
        curr: if cfs.running { 0 } else { NONE },
        first: NONE,
    }
}

/// An entity as guest-model has it.
fn model_entity(se: &EntityView) -> SchedEntity {
    SchedEntity {
        load_weight: se.load_weight,
        vruntime: 0,
        exec_start: 0,
        sum_exec_runtime: 0,
        prev_sum_exec_runtime: 0,
        avg: sched_avg(&se.avg),
        runnable_weight: 0,
        on_rq: false,
        attached: true,
        cfs_rq: NONE,
        my_q: se.my_q.unwrap_or(NONE),
        next: NONE,
        prev: NONE,
    }
}
