//! A layout in which one member lies elsewhere (bcc#4602): noticed, or named here as one that cannot
//! be at once.

use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::introspect::layout::{LayoutError, LayoutSource, Member};
use crate::introspect::linux::groups::{Groups, discover};
use crate::introspect::linux::{Linux, SetupError};
use crate::introspect::{Introspector, Snapshot};

type Name = (&'static str, &'static str);

/// A layout that remembers what it was asked for, and moves one member.
struct Shifted<'l> {
    layout: &'l dyn LayoutSource,
    moved: Option<Name>,
    by: i64,
    asked: RefCell<BTreeSet<Name>>,
}

impl LayoutSource for Shifted<'_> {
    fn has_struct(&self, structure: &'static str) -> bool {
        self.layout.has_struct(structure)
    }

    fn size(&self, structure: &'static str) -> Result<u64, LayoutError> {
        self.layout.size(structure)
    }

    fn member(&self, structure: &'static str, path: &'static str) -> Result<Member, LayoutError> {
        let member = self.layout.member(structure, path)?;
        self.asked.borrow_mut().insert((structure, path));
        let by = if self.moved == Some((structure, path)) { self.by } else { 0 };
        Ok(Member { offset: member.offset.wrapping_add_signed(by), ..member })
    }

    fn enumerator(
        &self,
        enumeration: &'static str,
        name: &'static str,
    ) -> Result<u64, LayoutError> {
        self.layout.enumerator(enumeration, name)
    }
}

/// What a run does before it begins, with this layout.
fn ready(linux: &Linux, layout: &dyn LayoutSource, now_ns: u64) -> Result<(), SetupError> {
    let is_array = linux.layout.pointers("task_group", "cfs_rq")? == 2;
    let found = discover(&mut linux.reader(), &linux.symbols, layout, is_array)?;
    let groups = Groups::new(&found, &["/a", "/a/b", "/c"])?;
    let mem = linux.mem.clone();
    let introspector = Introspector::new(mem, linux.space, &linux.symbols, layout, groups.table)?;
    introspector.sanity_at_rest(now_ns)?;
    introspector.snapshot(&mut Snapshot::default())?;
    Ok(())
}

/// The members of which a shift by 8 bytes, one way or the other, goes unnoticed.
pub fn missed(linux: &Linux, now_ns: u64) -> Vec<(Name, i64)> {
    let shifted =
        |moved, by| Shifted { layout: &linux.layout, moved, by, asked: RefCell::default() };
    let right = shifted(None, 0);
    ready(linux, &right, now_ns).unwrap();
    let asked = right.asked.into_inner();
    let tries = asked.iter().flat_map(|name| [(*name, 8), (*name, -8)]);
    tries.filter(|(name, by)| ready(linux, &shifted(Some(*name), *by), now_ns).is_ok()).collect()
}

/// Shifts of one member that its value cannot tell at once. All read a neighbour of the same kind and
/// size; a layout that is another kernel's never comes this far, since the types are those that the
/// running kernel carries.
pub const KNOWN: &[(Name, i64)] = &[
    // What lies before the averages, and util_est: a wrong one differs from guest-model.
    (("cfs_rq", "avg.last_update_time"), -8),
    (("cfs_rq", "avg.util_avg"), 8),
    // propagate, 0 or 1. A wrong one fails tg_load_avg_sum.
    (("cfs_rq", "tg_load_avg_contrib"), 8),
    // One kind of time is taken for the next. Shown, and judged by nothing.
    (("kernel_cpustat", "cpustat"), -8),
    // As of the cfs_rq.
    (("rq", "avg_irq.last_update_time"), -8),
    (("rq", "avg_irq.util_avg"), 8),
    // push_cpu: 0, as flags may be. A wrong one fails clock_matches_host at the first update that is
    // skipped.
    (("rq", "clock_update_flags"), 8),
    // push_cpu: 0, as it must be with one CPU.
    (("rq", "cpu"), -8),
    // calc_load_update, and prev_steal_time, which lags: steal_accounted fails at the first steal.
    (("rq", "prev_steal_time_rq"), 8),
    (("rq", "prev_steal_time_rq"), -8),
    // prev_steal_time: a run does not begin until this equals cpu_irqtime.total.
    (("rq", "psi_irq_time"), 8),
    // runnable_avg and shares: a wrong one fails tg_load_avg_sum.
    (("task_group", "load_avg"), 8),
    (("task_group", "load_avg"), -8),
];
