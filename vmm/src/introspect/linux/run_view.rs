//! A run on a kernel that has been up for a while: its counters, counted from the run's start.
//!
//! The checks compare a guest with what the host did since the run began, from time 0 on. A kernel that
//! has booted has clocks and counters that are not 0, so the values at the start are taken once, and
//! subtracted from everything that is read later. Differences are the kernel's own, modulo the width
//! of the counter.

use std::fmt;

use crate::view::{AvgView, CfsRqView, CostsView, GuestView, PsiView, RqView};

/// The clock that `last_update_tg_load_avg` is a stamp of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StampClock {
    /// `sched_clock_cpu()` or `rq->clock`: both count wall time.
    Clock,
    /// `rq->clock_task`.
    ClockTask,
}

impl StampClock {
    /// The clock that a stamp was taken from, by the run queue at that instant; `None` if the stamp
    /// is of another instant, or both clocks show the same.
    pub fn of(stamp_ns: u64, rq: &RqView) -> Option<Self> {
        match (stamp_ns == rq.clock_ns, stamp_ns == rq.clock_task_ns) {
            (true, false) => Some(Self::Clock),
            (false, true) => Some(Self::ClockTask),
            _ => None,
        }
    }
}

/// A guest whose accounting is not where a run can start from.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum StartError<E: fmt::Debug> {
    /// It cannot be read.
    #[error("cannot read the guest's run queue")]
    View(#[source] E),
    /// Some of it is not settled.
    #[error(
        "the guest's accounting is not settled at the start of the run: {what} is {got} ns, expected \
         {expected} ns"
    )]
    NotSettled {
        /// The counter.
        what: &'static str,
        /// What it must be.
        expected: u64,
        /// What it is.
        got: u64,
    },
}

/// What the guest's counters were when the run began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Baseline {
    /// `sched_clock()`.
    clock_ns: u64,
    /// What `rq->clock_task` would have been, had the run queue been updated.
    clock_task_ns: u64,
    lost_idle_time_ns: u64,
    /// `cpu_irqtime.total`, `prev_irq_time` and `psi_irq_time`.
    irq_ns: u64,
    /// The steal counter.
    steal_ns: u64,
    nr_switches: u64,
    psi_seq: u32,
    /// `times[PSI_IRQ_FULL]` of each group.
    irq_full_ns: Vec<u32>,
    stamp_clock: StampClock,
}

/// Is all IRQ time and steal accounted, so that a run can start here?
///
/// `steal_ns` is the steal counter as the host has it, `None` if the guest accounts no steal; `psi`
/// says whether the guest has PSI. The counters settle at a tick of any task but swapper, once
/// interrupts take no time and nothing is stolen.
pub fn settled(rq: &RqView, steal_ns: Option<u64>, psi: bool) -> bool {
    unsettled(rq, steal_ns, psi).is_none()
}

/// The first counter that is not where it must be, with what it must be and what it is.
fn unsettled(rq: &RqView, steal_ns: Option<u64>, psi: bool) -> Option<(&'static str, u64, u64)> {
    let total = rq.irqtime_total_ns;
    let psi_irq_time = if psi { rq.psi_irq_time_ns } else { total };
    let prev_steal = rq.prev_steal_time_rq_ns;
    [
        ("rq.prev_irq_time", total, rq.prev_irq_time_ns),
        ("rq.psi_irq_time", total, psi_irq_time),
        ("rq.prev_steal_time_rq", steal_ns.unwrap_or(prev_steal), prev_steal),
    ]
    .into_iter()
    .find(|(_, expected, got)| expected != got)
}

/// What the host knows when a run begins.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// What the guest's `sched_clock()` shows, ns: the pvclock page's time and
    /// [`super::Linux::sched_clock_offset_ns`].
    pub sched_clock_ns: u64,
    /// The steal counter, ns; `None` if the guest accounts no steal.
    pub steal_ns: Option<u64>,
    /// The guest has PSI.
    pub psi: bool,
    /// The clock of `last_update_tg_load_avg`.
    pub stamp_clock: StampClock,
}

impl Baseline {
    /// Takes the counters of a guest with `groups` groups that is [`settled`].
    pub fn take<V: GuestView>(
        view: &V,
        groups: u16,
        start: Start,
    ) -> Result<Self, StartError<V::Error>> {
        let rq = view.rq().map_err(StartError::View)?;
        if let Some((what, expected, got)) = unsettled(&rq, start.steal_ns, start.psi) {
            return Err(StartError::NotSettled { what, expected, got });
        }
        let psi = |group| view.psi_group(group).map(|psi| psi.irq_full_ns);
        let irq_full_ns = (0..groups).map(psi).collect::<Result<_, _>>();
        // The clocks were last updated some time ago. The next update will add that time to both,
        // since there is neither IRQ time nor steal to take away.
        let since_update = start.sched_clock_ns.wrapping_sub(rq.clock_ns);
        Ok(Self {
            clock_ns: start.sched_clock_ns,
            clock_task_ns: rq.clock_task_ns.wrapping_add(since_update),
            lost_idle_time_ns: rq.lost_idle_time_ns,
            irq_ns: rq.irqtime_total_ns,
            steal_ns: rq.prev_steal_time_rq_ns,
            nr_switches: rq.nr_switches,
            psi_seq: rq.psi_seq,
            irq_full_ns: irq_full_ns.map_err(StartError::View)?,
            stamp_clock: start.stamp_clock,
        })
    }

    /// The run queue, counted from the start. A clock that has not been updated since then is before
    /// it, below 0 modulo 2^64.
    fn rq(&self, rq: RqView) -> RqView {
        RqView {
            nr_switches: rq.nr_switches.wrapping_sub(self.nr_switches),
            clock_ns: rq.clock_ns.wrapping_sub(self.clock_ns),
            clock_task_ns: rq.clock_task_ns.wrapping_sub(self.clock_task_ns),
            clock_pelt_ns: rq.clock_pelt_ns.wrapping_sub(self.clock_task_ns),
            lost_idle_time_ns: rq.lost_idle_time_ns.wrapping_sub(self.lost_idle_time_ns),
            prev_irq_time_ns: rq.prev_irq_time_ns.wrapping_sub(self.irq_ns),
            prev_steal_time_rq_ns: rq.prev_steal_time_rq_ns.wrapping_sub(self.steal_ns),
            psi_irq_time_ns: rq.psi_irq_time_ns.wrapping_sub(self.irq_ns),
            irqtime_total_ns: rq.irqtime_total_ns.wrapping_sub(self.irq_ns),
            irq_start_time_ns: rq.irq_start_time_ns.wrapping_sub(self.clock_ns),
            avg_irq: AvgView {
                last_update_time_ns: rq.avg_irq.last_update_time_ns.wrapping_sub(self.clock_ns),
                ..rq.avg_irq
            },
            psi_seq: rq.psi_seq.wrapping_sub(self.psi_seq),
            ..rq
        }
    }

    fn cfs_rq(&self, cfs_rq: CfsRqView) -> CfsRqView {
        let start_ns = match self.stamp_clock {
            StampClock::Clock => self.clock_ns,
            StampClock::ClockTask => self.clock_task_ns,
        };
        let stamp_ns = cfs_rq.last_update_tg_load_avg_ns;
        let last_update_tg_load_avg_ns = stamp_ns.wrapping_sub(start_ns);
        CfsRqView { last_update_tg_load_avg_ns, ..cfs_rq }
    }

    fn psi(&self, psi: PsiView) -> PsiView {
        let start = self.irq_full_ns.get(usize::from(psi.group)).copied().unwrap_or_default();
        PsiView { irq_full_ns: psi.irq_full_ns.wrapping_sub(start), ..psi }
    }
}

/// A guest as it is seen in a run: see [`Baseline`].
#[derive(Clone, Copy, Debug)]
pub struct RunView<'v, V> {
    /// The guest as it is.
    pub raw: &'v V,
    /// Its counters at the run's start.
    pub start: &'v Baseline,
}

impl<V: GuestView> GuestView for RunView<'_, V> {
    type Error = V::Error;

    fn rq(&self) -> Result<RqView, V::Error> {
        self.raw.rq().map(|rq| self.start.rq(rq))
    }

    fn curr_pid(&self) -> Result<u32, V::Error> {
        self.raw.curr_pid()
    }

    fn runs_ksoftirqd(&self) -> Result<bool, V::Error> {
        self.raw.runs_ksoftirqd()
    }

    fn irqtime_total_ns(&self) -> Result<u64, V::Error> {
        self.raw.irqtime_total_ns().map(|total| total.wrapping_sub(self.start.irq_ns))
    }

    fn cfs_rq(&self, group: u16) -> Result<CfsRqView, V::Error> {
        self.raw.cfs_rq(group).map(|cfs_rq| self.start.cfs_rq(cfs_rq))
    }

    fn psi_group(&self, group: u16) -> Result<PsiView, V::Error> {
        self.raw.psi_group(group).map(|psi| self.start.psi(psi))
    }

    fn leaf_cfs_rqs(&self, out: &mut Vec<CfsRqView>) -> Result<(), V::Error> {
        self.raw.leaf_cfs_rqs(out)?;
        for cfs_rq in out {
            *cfs_rq = self.start.cfs_rq(*cfs_rq);
        }
        Ok(())
    }

    fn costs(&self) -> Result<Option<CostsView>, V::Error> {
        self.raw.costs()
    }
}
