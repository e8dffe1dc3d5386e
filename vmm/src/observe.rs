//! Turns probe hits into [`Step`]s: one probed call with the guest's state before and after it.
//!
//! Probes fire at function entry only, as in an unmodified kernel. What a call did is read at the
//! next hit: guest time and probed state cannot change in between except through that call, because
//! everything that writes them is probed.

use crate::trace::{Kind, Record, Trace};
use crate::view::{Call, CfsRqView, GuestView, PsiView, RqView};

/// The host's clocks and ledger at the entry of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Guest time, ns.
    pub at_ns: u64,
    /// The steal counter, ns.
    pub steal_ns: u64,
    /// IRQ time that passed so far, ns.
    pub irq_ns: u64,
    /// The part of it that was stolen, ns.
    pub steal_in_irq_ns: u64,
    /// Time that the CPU was halted so far, ns.
    pub idle_ns: u64,
}

/// One probed call from its entry to the next probe.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The call.
    pub call: Call,
    /// The host's record at its entry.
    pub mark: Mark,
    /// The run queue at its entry.
    pub before: &'a RqView,
    /// The run queue after it.
    pub after: &'a RqView,
    /// The cfs_rq before and after, for `update_tg_load_avg()` and `clear_tg_load_avg()`.
    pub cfs: Option<(CfsRqView, CfsRqView)>,
    /// After `psi_account_irqtime()`: the charged task's group and its ancestors.
    pub psi: &'a [PsiView],
    /// At the entry of `psi_account_irqtime()` from the tick: the leaf cfs_rqs, in the list's order.
    pub leaves: &'a [CfsRqView],
}

#[derive(Clone, Copy, Debug)]
struct Open {
    call: Call,
    mark: Mark,
    rq: RqView,
    cfs: Option<CfsRqView>,
}

/// Completes calls and writes the trace.
#[derive(Debug)]
pub struct Observer {
    open: Option<Open>,
    /// Each group's parent, the root's own index for the root.
    parents: Vec<u16>,
    chain: Vec<PsiView>,
    leaves: Vec<CfsRqView>,
    hits: u64,
}

impl Observer {
    /// An observer of a guest whose group `i` has the parent `parents[i]`.
    pub fn new(parents: Vec<u16>) -> Self {
        let groups = parents.len();
        Self {
            open: None,
            parents,
            chain: Vec::with_capacity(groups),
            leaves: Vec::with_capacity(groups),
            hits: 0,
        }
    }

    /// Probe hits so far.
    #[inline]
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// The call whose probe was hit last, and the run queue at its entry.
    pub fn last(&self) -> Option<(Call, RqView)> {
        self.open.as_ref().map(|open| (open.call, open.rq))
    }

    /// A probe was hit: completes the call before it, hands it to `on_step`, and opens this one.
    #[inline]
    pub fn hit<V: GuestView>(
        &mut self,
        view: &V,
        call: Call,
        mark: Mark,
        trace: &mut Trace,
        on_step: impl FnMut(&Step<'_>),
    ) -> Result<(), V::Error> {
        let rq = view.rq()?;
        if call.is_nested() {
            trace.push(record(mark.at_ns, call, &rq, None));
            self.hits += 1;
            return Ok(());
        }
        self.close(view, &rq, on_step)?;
        let cfs = match call {
            Call::UpdateTgLoadAvg { group } | Call::ClearTgLoadAvg { group } => {
                Some(view.cfs_rq(group)?)
            }
            Call::PsiAccountIrqtime { prev: None, .. } => {
                view.leaf_cfs_rqs(&mut self.leaves)?;
                None
            }
            _ => None,
        };
        trace.push(record(mark.at_ns, call, &rq, cfs));
        self.open = Some(Open { call, mark, rq, cfs });
        self.hits += 1;
        Ok(())
    }

    /// The run is over: completes the last call and returns the run queue as it is.
    pub fn finish<V: GuestView>(
        &mut self,
        view: &V,
        at_ns: u64,
        trace: &mut Trace,
        on_step: impl FnMut(&Step<'_>),
    ) -> Result<RqView, V::Error> {
        let rq = view.rq()?;
        self.close(view, &rq, on_step)?;
        trace.push(Record::call(at_ns, Kind::End, &[], rq_values(&rq)));
        Ok(rq)
    }

    #[inline]
    fn close<V: GuestView>(
        &mut self,
        view: &V,
        after: &RqView,
        mut on_step: impl FnMut(&Step<'_>),
    ) -> Result<(), V::Error> {
        let Some(open) = &self.open else { return Ok(()) };
        let cfs = match open.cfs {
            None => None,
            Some(before) => Some((before, view.cfs_rq(before.group)?)),
        };
        self.chain.clear();
        if let Call::PsiAccountIrqtime { curr, .. } = open.call {
            let mut group = curr.group;
            // A parent comes before its child, so this ends at the root.
            loop {
                self.chain.push(view.psi_group(group)?);
                let parent = self.parents.get(group as usize).copied().unwrap_or(0);
                if parent >= group {
                    break;
                }
                group = parent;
            }
        }
        on_step(&Step {
            call: open.call,
            mark: open.mark,
            before: &open.rq,
            after,
            cfs,
            psi: &self.chain,
            leaves: match open.call {
                Call::PsiAccountIrqtime { prev: None, .. } => &self.leaves,
                _ => &[],
            },
        });
        Ok(())
    }
}

/// What every call's record says of the run queue.
pub fn rq_values(rq: &RqView) -> [u64; 9] {
    [
        rq.clock_ns,
        rq.clock_task_ns,
        rq.clock_pelt_ns,
        rq.prev_irq_time_ns,
        rq.prev_steal_time_rq_ns,
        rq.psi_irq_time_ns,
        rq.irqtime_total_ns,
        rq.psi_seq.into(),
        rq.curr_pid.into(),
    ]
}

fn record(at_ns: u64, call: Call, rq: &RqView, cfs: Option<CfsRqView>) -> Record {
    let rq = rq_values(rq);
    let cfs = cfs.unwrap_or_default();
    let cfs_values = |group: u16| {
        [
            group.into(),
            cfs.load_avg,
            cfs.tg_load_avg_contrib,
            cfs.tg_load_avg,
            cfs.last_update_tg_load_avg_ns,
        ]
    };
    match call {
        Call::UpdateRqClock => Record::call(at_ns, Kind::UpdateRqClock, &[], rq),
        Call::IrqtimeAccountIrq { offset } => {
            Record::call(at_ns, Kind::IrqtimeAccountIrq, &[offset.into()], rq)
        }
        Call::PsiAccountIrqtime { curr, prev } => {
            let next = prev.map_or([u64::MAX; 2], |p| [p.pid.into(), p.group.into()]);
            let own = [curr.pid.into(), curr.group.into(), next[0], next[1]];
            Record::call(at_ns, Kind::PsiAccountIrqtime, &own, rq)
        }
        Call::PsiTaskSwitch { prev, next, sleep } => {
            let own = [prev.pid.into(), next.pid.into(), sleep.into()];
            Record::call(at_ns, Kind::PsiTaskSwitch, &own, rq)
        }
        Call::PsiTaskChange { task, clear, set } => {
            let own = [task.pid.into(), clear.into(), set.into()];
            Record::call(at_ns, Kind::PsiTaskChange, &own, rq)
        }
        Call::UpdateIrqLoadAvg { running } => {
            Record::call(at_ns, Kind::UpdateIrqLoadAvg, &[running], rq)
        }
        Call::UpdateTgLoadAvg { group } => {
            Record::call(at_ns, Kind::UpdateTgLoadAvg, &cfs_values(group), rq)
        }
        Call::ClearTgLoadAvg { group } => {
            Record::call(at_ns, Kind::ClearTgLoadAvg, &cfs_values(group), rq)
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
