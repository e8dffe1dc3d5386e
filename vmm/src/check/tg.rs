//! The publication of `tg->load_avg`: rate limit, tolerance, sum and staleness.

use super::CheckId::*;
use super::{Board, Final};
use crate::observe::Step;
use crate::view::{Call, CfsRqView, CostsView, RQCF_ACT_SKIP};
use guest_model::policy::RateLimitClock;

/// The kernel's NSEC_PER_MSEC, written here on its own.
const LIMIT_NS: u64 = 1_000_000;

/// How far published contributions were behind the load.
///
/// A contribution is stale from the first call that sees it more than 1/64 off without publishing
/// it, until the call that publishes it. Load staleness is the difference left behind by a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Staleness {
    /// Worst age of a stale contribution, ns of `clock`.
    pub max_ns: u64,
    /// Worst age of a stale contribution, ns of `clock_task`.
    pub max_task_ns: u64,
    /// Sum over stale periods of their length, ns of `clock`.
    pub sum_ns: u128,
    /// Sum over stale periods of their length, ns of `clock_task`.
    pub sum_task_ns: u128,
    /// Stale periods.
    pub count: u64,
    /// Worst difference left unpublished by a call, in load units.
    pub max_load: u64,
    /// Integral of the difference left unpublished, over all groups, in load units times ns of
    /// `clock`.
    pub load_ns: u128,
    /// Worst error of a group's weight elsewhere that a call left, ppm: see [`weight_error_ppm`].
    pub max_weight_error_ppm: u64,
    /// Integral of that error, over all groups, in ppm times ns of `clock`.
    pub weight_error_ppm_ns: u128,
}

/// How far off another CPU's `calc_group_shares()` is while `load` is here and `contrib` is published
/// of it, in ppm, rounded down.
///
/// On its own CPU a contribution does not matter: `calc_group_shares()` takes `tg->load_avg` less the own
/// contribution plus the own load (kernel/sched/fair.c, 6.12 and 7.2; 7.3 does so in `__calc_smp_shares()`, and
/// the number of CPUs or tasks that it multiplies the shares with is not looked at here). Another CPU sees `contrib` where it should
/// see `load`. If it has as much load itself and publishes all of it, it gives the group
/// `tg->shares * load / (contrib + load)` instead of `tg->shares * load / (load + load)`: it is off by
/// `|load - contrib| / (load + contrib)` of what is right. Without load here, that is what it comes to as the
/// loads go to 0: all of it.
pub fn weight_error_ppm(load: u64, contrib: u64) -> u64 {
    let sum = u128::from(load) + u128::from(contrib);
    let off = u128::from(load.abs_diff(contrib)) * 1_000_000;
    // At most 10^6.
    off.checked_div(sum).unwrap_or(0) as u64
}

impl Staleness {
    /// Adds another group's.
    fn add(&mut self, other: &Self) {
        self.max_ns = self.max_ns.max(other.max_ns);
        self.max_task_ns = self.max_task_ns.max(other.max_task_ns);
        self.sum_ns += other.sum_ns;
        self.sum_task_ns += other.sum_task_ns;
        self.count += other.count;
        self.max_load = self.max_load.max(other.max_load);
        self.load_ns = self.load_ns.saturating_add(other.load_ns);
        self.max_weight_error_ppm = self.max_weight_error_ppm.max(other.max_weight_error_ppm);
        self.weight_error_ppm_ns =
            self.weight_error_ppm_ns.saturating_add(other.weight_error_ppm_ns);
    }

    /// Mean length of a stale period, ns of `clock`, rounded down.
    pub fn mean_ns(&self) -> u64 {
        mean(self.sum_ns, self.count)
    }

    /// Mean length of a stale period, ns of `clock_task`, rounded down.
    pub fn mean_task_ns(&self) -> u64 {
        mean(self.sum_task_ns, self.count)
    }

    /// Mean difference left unpublished over `elapsed_ns` and `groups`, in thousandths of a load
    /// unit, rounded down.
    pub fn mean_load_milli(&self, elapsed_ns: u64, groups: u64) -> u64 {
        over_time(self.load_ns.saturating_mul(1000), elapsed_ns, groups)
    }

    /// Mean error of a group's weight over `elapsed_ns` and `groups`, ppm, rounded down.
    pub fn mean_weight_error_ppm(&self, elapsed_ns: u64, groups: u64) -> u64 {
        over_time(self.weight_error_ppm_ns, elapsed_ns, groups)
    }
}

fn over_time(integral: u128, elapsed_ns: u64, groups: u64) -> u64 {
    let time = u128::from(elapsed_ns) * u128::from(groups);
    u64::try_from(integral.checked_div(time).unwrap_or(0)).unwrap_or(u64::MAX)
}

fn mean(sum: u128, count: u64) -> u64 {
    sum.checked_div(count.into()).unwrap_or(0) as u64
}

/// What became of each call of `update_tg_load_avg()`, the root's left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TgRow {
    /// Calls.
    pub calls: u64,
    /// Calls less than a millisecond after the last publish.
    pub rate_limited: u64,
    /// Calls that the limit let pass with a change of at most 1/64.
    pub below_tolerance: u64,
    /// Publishes.
    pub published: u64,
    /// Calls on an offline CPU.
    pub offline: u64,
    /// How stale contributions became.
    pub staleness: Staleness,
}

/// What a call leaves unpublished: the difference in load units, and the error of the group's weight that
/// comes of it, ppm.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    load: u64,
    weight_error_ppm: u64,
}

/// One group's history.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Group {
    /// The rate-limit clock at the last publish, ns.
    published_ns: u64,
    /// `clock` and `clock_task` at the first call that left the contribution stale, ns.
    stale_since: Option<(u64, u64)>,
    /// `clock` at the last call, and what it left.
    left_at_ns: u64,
    left: Left,
    /// Calls.
    calls: u64,
    /// How stale the contribution became.
    pub(super) staleness: Staleness,
}

#[derive(Debug)]
pub(super) struct TgChecks {
    clock: RateLimitClock,
    parents: Vec<u16>,
    pub(super) groups: Vec<Group>,
    /// Place of each group on the leaf list at this tick.
    places: Vec<Option<usize>>,
    /// When the last update of the clock was, if it was one that the scheduler skips.
    skipped_at_ns: Option<u64>,
    offline_ns: Option<u64>,
    /// The tick that takes the CPU offline is being handled.
    going_offline: bool,
    offline: bool,
    cleared: u64,
    pub(super) row: TgRow,
}

impl TgChecks {
    pub(super) fn new(clock: RateLimitClock, parents: Vec<u16>, offline_ns: Option<u64>) -> Self {
        Self {
            clock,
            groups: vec![Group::default(); parents.len()],
            places: vec![None; parents.len()],
            parents,
            skipped_at_ns: None,
            offline_ns,
            going_offline: false,
            offline: false,
            cleared: 0,
            row: TgRow::default(),
        }
    }

    /// A group has this at guest time 0. A load that it has by then was asked for before.
    pub(super) fn begin(&mut self, cfs_rq: &CfsRqView) {
        if let Some(g) = self.groups.get_mut(cfs_rq.group as usize) {
            g.published_ns = cfs_rq.last_update_tg_load_avg_ns;
            g.calls = u64::from(cfs_rq.load_avg != 0);
        }
    }

    /// A tick is handled at `at_ns`.
    pub(super) fn tick_is_due(&mut self, at_ns: u64) {
        self.going_offline = !self.offline && self.offline_ns.is_some_and(|due| at_ns >= due);
    }

    #[inline]
    pub(super) fn step(&mut self, s: &Step<'_>, board: &mut Board) {
        match s.call {
            Call::PsiAccountIrqtime { prev: None, .. } => self.leaf_list(s, board),
            // The handler that took the CPU offline is left.
            Call::IrqtimeAccountIrq { offset: 0 } if self.going_offline => {
                self.going_offline = false;
                self.offline = true;
                let groups = self.groups.len() as u64 - 1;
                board.expect(TgOffline, self.cleared == groups, s.mark.at_ns, || {
                    format!("going offline cleared {} contributions of {groups}", self.cleared)
                });
            }
            _ => {}
        }
        if s.call == Call::UpdateRqClock {
            let skips = s.before.clock_update_flags & RQCF_ACT_SKIP != 0;
            self.skipped_at_ns = skips.then_some(s.mark.at_ns);
        }
        let Some((before, after)) = &s.cfs else { return };
        if before.group == 0 {
            // Linux calls for the root as well, and returns at once.
            return;
        }
        let now = match self.clock {
            RateLimitClock::SchedClockCpu => s.mark.at_ns,
            RateLimitClock::RqClock => s.before.clock_ns,
            RateLimitClock::RqClockTask => s.before.clock_task_ns,
        };
        let at = s.mark.at_ns;
        sum(after, at, board);
        match s.call {
            Call::UpdateTgLoadAvg { .. } => self.update(s, before, after, now, board),
            _ => self.clear(s, after, now, board),
        }
    }

    #[inline]
    fn update(
        &mut self,
        s: &Step<'_>,
        before: &CfsRqView,
        after: &CfsRqView,
        now: u64,
        board: &mut Board,
    ) {
        let at = s.mark.at_ns;
        let group = before.group;
        let Some(g) = self.groups.get_mut(group as usize) else { return };
        let row = &mut self.row;
        row.calls += 1;
        g.calls += 1;
        // A switch that skips the update takes the clock as the wake-up before it left it.
        let skips = self.skipped_at_ns == Some(at);
        board.expect(RqClockFresh, s.before.clock_ns == at || skips, at, || {
            format!(
                "group {group}: rq->clock is {} ns, the host's clock {at} ns",
                s.before.clock_ns
            )
        });

        let (load, contrib) = (before.load_avg, before.tg_load_avg_contrib);
        let change = load.abs_diff(contrib);
        let (runnable, after_runnable) =
            (before.runnable.unwrap_or_default(), after.runnable.unwrap_or_default());
        let runnable_contrib = runnable.tg_runnable_avg_contrib;
        let runnable_change = runnable.runnable_avg.abs_diff(runnable_contrib);
        let stale = change > contrib / 64;
        let beyond = stale || runnable_change > runnable_contrib / 64;
        let age = now.wrapping_sub(g.published_ns);
        let allowed = age >= LIMIT_NS;
        let published = after.tg_load_avg_contrib != contrib
            || after.last_update_tg_load_avg_ns != before.last_update_tg_load_avg_ns;

        if self.offline {
            row.offline += 1;
            board.expect(TgOffline, !published, at, || {
                format!("group {group} published {} while offline", after.tg_load_avg_contrib)
            });
            return;
        }
        if published {
            row.published += 1;
            let stamp = after.last_update_tg_load_avg_ns;
            board.expect(TgRateLimit, allowed && stamp == now, at, || {
                format!(
                    "group {group} published {age} ns after its last publish and stamped {stamp}; \
                     {} is {now}",
                    self.clock.name()
                )
            });
            let all = after.tg_load_avg_contrib == load
                && after_runnable.tg_runnable_avg_contrib == runnable.runnable_avg;
            board.expect(TgTolerance, beyond && all, at, || {
                format!(
                    "group {group} published {} for a load of {load}, {contrib} being published; \
                     1/64 of that is {}",
                    after.tg_load_avg_contrib,
                    contrib / 64
                )
            });
            g.published_ns = now;
        } else {
            board.expect(TgPublished, !(allowed && beyond), at, || {
                format!(
                    "group {group} kept {contrib} published for a load of {load}, {age} ns after \
                     its last publish"
                )
            });
            if allowed {
                row.below_tolerance += 1;
            } else {
                row.rate_limited += 1;
            }
        }

        let (clock, clock_task) = (s.before.clock_ns, s.before.clock_task_ns);
        let mut st = g.staleness;
        let leaves = match published {
            true => Left::default(),
            false => Left { load: change, weight_error_ppm: weight_error_ppm(load, contrib) },
        };
        g.leave(clock, leaves, &mut st);
        st.max_load = st.max_load.max(leaves.load);
        st.max_weight_error_ppm = st.max_weight_error_ppm.max(leaves.weight_error_ppm);
        if published || !stale {
            g.end_stale(clock, clock_task, &mut st);
        } else {
            g.stale_since.get_or_insert((clock, clock_task));
            g.age(clock, clock_task, &mut st);
        }
        g.staleness = st;
    }

    /// Each listed cfs_rq is there once, before its parent.
    fn leaf_list(&mut self, s: &Step<'_>, board: &mut Board) {
        self.places.fill(None);
        let mut twice = None;
        for (place, leaf) in s.leaves.iter().enumerate() {
            if let Some(known) = self.places.get_mut(leaf.group as usize)
                && known.replace(place).is_some()
            {
                twice = Some(leaf.group);
            }
        }
        let misplaced = s.leaves.iter().map(|leaf| leaf.group).find(|&group| {
            let place = |g: u16| self.places.get(g as usize).copied().flatten();
            let parent = self.parents.get(group as usize).copied().unwrap_or(0);
            group != 0 && place(parent).is_none_or(|p| Some(p) < place(group))
        });
        board.expect(LeafList, twice.is_none() && misplaced.is_none(), s.mark.at_ns, || {
            match (twice, misplaced) {
                (Some(group), _) => format!("group {group} is on the leaf list twice"),
                (_, group) => format!("group {} is not before its parent", group.unwrap_or(0)),
            }
        });
    }

    /// The guest's own counters of what was seen here.
    pub(super) fn compare_costs(&self, costs: &CostsView, at: u64, board: &mut Board) {
        let row = &self.row;
        let reads = match self.clock {
            RateLimitClock::SchedClockCpu => row.calls - row.offline + self.cleared,
            _ => 0,
        };
        for (what, guest, seen) in [
            ("clock reads", costs.clock_reads_update_tg_load_avg, reads),
            ("rate-limited calls", costs.update_tg_load_avg_rate_limited, row.rate_limited),
            ("calls within 1/64", costs.update_tg_load_avg_below_tolerance, row.below_tolerance),
            ("atomic adds", costs.tg_load_avg_atomic_adds, row.published + self.cleared),
        ] {
            board.expect(Costs, guest == seen, at, || {
                format!("update_tg_load_avg(): the guest counts {guest} {what}, {seen} were seen")
            });
        }
    }

    fn clear(&mut self, s: &Step<'_>, after: &CfsRqView, now: u64, board: &mut Board) {
        self.cleared += 1;
        let ok = after.tg_load_avg_contrib == 0 && after.tg_load_avg == 0;
        board.expect(TgOffline, ok, s.mark.at_ns, || {
            format!(
                "group {} still contributes {} of tg->load_avg {} after clear_tg_load_avg()",
                after.group, after.tg_load_avg_contrib, after.tg_load_avg as i64
            )
        });
        if let Some(g) = self.groups.get_mut(after.group as usize) {
            let clock = s.before.clock_ns;
            let mut st = g.staleness;
            g.leave(clock, Left::default(), &mut st);
            g.published_ns = now;
            g.end_stale(clock, s.before.clock_task_ns, &mut st);
            g.staleness = st;
        }
    }

    pub(super) fn finish(&mut self, end: &Final<'_>, board: &mut Board) {
        for (cfs, _) in end.groups.into_iter().flatten().filter(|(c, _)| c.group != 0) {
            sum(cfs, end.at_ns, board);
            if self.offline {
                board.expect(TgOffline, cfs.tg_load_avg == 0, end.at_ns, || {
                    format!(
                        "group {} ends offline with tg->load_avg {}",
                        cfs.group, cfs.tg_load_avg
                    )
                });
            }
            // A group's first load arrives with a call.
            let calls = self.groups.get(cfs.group as usize).map_or(0, |g| g.calls);
            board.expect(TgPublished, cfs.load_avg == 0 || calls != 0, end.at_ns, || {
                format!(
                    "group {} has load {} and was never asked to publish",
                    cfs.group, cfs.load_avg
                )
            });
        }
        let (clock, clock_task) = (end.rq.clock_ns, end.rq.clock_task_ns);
        for g in &mut self.groups {
            let mut st = g.staleness;
            g.leave(clock, Left::default(), &mut st);
            g.end_stale(clock, clock_task, &mut st);
            g.staleness = st;
            self.row.staleness.add(&st);
        }
    }
}

/// What a group sums is what its only cfs_rq contributes.
#[inline]
fn sum(cfs: &CfsRqView, at: u64, board: &mut Board) {
    let runnable = cfs.runnable.unwrap_or_default();
    let holds = cfs.tg_load_avg == cfs.tg_load_avg_contrib
        && runnable.tg_runnable_avg == runnable.tg_runnable_avg_contrib;
    board.expect(TgSum, holds, at, || {
        let mut text = format!(
            "group {}: tg->load_avg is {}, the contributions add up to {}",
            cfs.group, cfs.tg_load_avg as i64, cfs.tg_load_avg_contrib
        );
        if let Some(r) = &cfs.runnable {
            text.push_str(&format!(
                "; tg->runnable_avg is {}, the contributions add up to {}",
                r.tg_runnable_avg as i64, r.tg_runnable_avg_contrib
            ));
        }
        text
    });
}

impl Group {
    /// A call leaves this unpublished from `clock` on; what the call before it left counts up to
    /// here. A hostile guest's clock may jump back and forth, so the integrals saturate.
    #[inline]
    fn leave(&mut self, clock: u64, leaves: Left, st: &mut Staleness) {
        let left_at = std::mem::replace(&mut self.left_at_ns, clock);
        let left = std::mem::replace(&mut self.left, leaves);
        if left.load != 0 {
            let time = u128::from(clock.saturating_sub(left_at));
            st.load_ns = st.load_ns.saturating_add(u128::from(left.load) * time);
            let error = u128::from(left.weight_error_ppm) * time;
            st.weight_error_ppm_ns = st.weight_error_ppm_ns.saturating_add(error);
        }
    }

    /// The contribution is stale still: its age counts for the worst.
    #[inline]
    fn age(&self, clock: u64, clock_task: u64, st: &mut Staleness) -> Option<(u64, u64)> {
        let (since, since_task) = self.stale_since?;
        let age = clock.saturating_sub(since);
        let age_task = clock_task.saturating_sub(since_task);
        st.max_ns = st.max_ns.max(age);
        st.max_task_ns = st.max_task_ns.max(age_task);
        Some((age, age_task))
    }

    /// The contribution is up to date again, or the run is over.
    #[inline]
    fn end_stale(&mut self, clock: u64, clock_task: u64, st: &mut Staleness) {
        if let Some((age, age_task)) = self.age(clock, clock_task, st) {
            st.sum_ns += u128::from(age);
            st.sum_task_ns += u128::from(age_task);
            st.count += 1;
            self.stale_since = None;
        }
    }
}

#[cfg(test)]
mod tests;
