//! Samples of a pass at fixed distances of guest time, so that two passes can be laid side by side.
//!
//! A sample is taken at the first exit at or after each multiple of the period: guest time stands
//! still between exits, so nothing happens there that it could miss. What a guest does between two
//! samples is in the trace, not here.

use crate::view::{CfsRqView, GuestView};

/// Most samples of a pass.
pub const MAX_SAMPLES: u32 = 1000;

/// What is sampled of the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuSample {
    /// Guest time of the exit, ns.
    pub at_ns: u64,
    /// `rq->clock`, ns.
    pub clock_ns: u64,
    /// `rq->clock_task`, ns.
    pub clock_task_ns: u64,
    /// `cpu_irqtime.total`, ns.
    pub irqtime_total_ns: u64,
    /// `rq->prev_steal_time_rq`, ns.
    pub prev_steal_time_rq_ns: u64,
}

/// What is sampled of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupSample {
    /// `times[PSI_IRQ_FULL]`, ns modulo 2^32.
    pub psi_irq_full_ns: u32,
    /// `tg->load_avg`.
    pub tg_load_avg: u64,
    /// `cfs_rq->tg_load_avg_contrib`.
    pub tg_load_avg_contrib: u64,
}

/// The samples of a pass, sample k of guest time `(k + 1) * period_ns`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    period_ns: u64,
    /// When the next sample is due; `u64::MAX` when all are taken.
    due_ns: u64,
    most: usize,
    groups: u16,
    cpu: Vec<CpuSample>,
    /// `groups` samples for each one of the CPU.
    group: Vec<GroupSample>,
}

impl Series {
    /// At most `count` samples (and at most [`MAX_SAMPLES`]) of a pass of `duration_ns` over `groups`
    /// groups; the last is at its end. All memory that they take is taken here.
    pub fn new(duration_ns: u64, count: u32, groups: u16) -> Self {
        let count = count.clamp(1, MAX_SAMPLES);
        let period_ns = (duration_ns / u64::from(count)).max(1);
        let most = count as usize;
        Self {
            period_ns,
            due_ns: period_ns,
            most,
            groups,
            cpu: Vec::with_capacity(most),
            group: Vec::with_capacity(most * usize::from(groups)),
        }
    }

    /// Is a sample due at `now_ns`?
    #[inline]
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns
    }

    /// Takes every sample that is due at `now_ns`: more than one, all alike, where no exit was in
    /// between.
    ///
    /// # Errors
    /// What reading the guest fails with; then nothing is taken.
    #[cold]
    pub fn take<V: GuestView>(&mut self, view: &V, now_ns: u64) -> Result<(), V::Error> {
        let rq = view.rq()?;
        let begin = self.group.len();
        for group in 0..self.groups {
            match group_sample(view, group) {
                Ok(sample) => self.group.push(sample),
                Err(e) => {
                    self.group.truncate(begin);
                    return Err(e);
                }
            }
        }
        let end = self.group.len();
        let sample = CpuSample {
            at_ns: now_ns,
            clock_ns: rq.clock_ns,
            clock_task_ns: rq.clock_task_ns,
            irqtime_total_ns: rq.irqtime_total_ns,
            prev_steal_time_rq_ns: rq.prev_steal_time_rq_ns,
        };
        loop {
            self.cpu.push(sample);
            let full = self.cpu.len() >= self.most;
            self.due_ns = if full { u64::MAX } else { self.due_ns.saturating_add(self.period_ns) };
            if !self.is_due(now_ns) {
                return Ok(());
            }
            self.group.extend_from_within(begin..end);
        }
    }

    /// Guest time between two samples, ns.
    pub fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// Samples of the CPU, in the order of time.
    pub fn cpu(&self) -> &[CpuSample] {
        &self.cpu
    }

    /// Samples of one group, in the order of time.
    pub fn group(&self, group: u16) -> impl Iterator<Item = &GroupSample> {
        let groups = usize::from(self.groups);
        let known = group < self.groups;
        self.group.iter().skip(group.into()).step_by(groups.max(1)).filter(move |_| known)
    }
}

fn group_sample<V: GuestView>(view: &V, group: u16) -> Result<GroupSample, V::Error> {
    let CfsRqView { tg_load_avg, tg_load_avg_contrib, .. } = view.cfs_rq(group)?;
    let psi_irq_full_ns = view.psi_group(group)?.irq_full_ns;
    Ok(GroupSample { psi_irq_full_ns, tg_load_avg, tg_load_avg_contrib })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::tests::Guest;

    #[test]
    fn a_sample_is_taken_once_at_or_after_each_multiple_of_the_period() {
        let mut guest = Guest::new();
        let mut series = Series::new(100, 10, 2);
        assert!(!series.is_due(9));
        for (now, clock) in [(10, 1), (25, 2), (30, 3), (100, 4)] {
            assert!(series.is_due(now), "{now}");
            guest.rq.clock_ns = clock;
            series.take(&guest, now).unwrap();
        }
        let seen: Vec<_> = series.cpu().iter().map(|s| (s.at_ns, s.clock_ns)).collect();
        let end = [(100, 4); 7];
        assert_eq!(seen, [&[(10, 1), (25, 2), (30, 3)][..], &end].concat());
        assert!(!series.is_due(u64::MAX - 1));
        assert_eq!(series.group(1).count(), 10);
        assert_eq!(series.group(2).count(), 0);
    }

    #[test]
    fn a_pause_of_several_periods_gives_as_many_samples_alike() {
        let mut guest = Guest::new();
        let mut series = Series::new(1000, 10, 3);
        guest.psi[2].irq_full_ns = 7;
        series.take(&guest, 350).unwrap();
        assert_eq!(series.cpu().iter().map(|s| s.at_ns).collect::<Vec<_>>(), [350; 3]);
        assert_eq!(series.group(2).map(|s| s.psi_irq_full_ns).collect::<Vec<_>>(), [7; 3]);
        assert_eq!(series.group(1).map(|s| s.psi_irq_full_ns).collect::<Vec<_>>(), [0; 3]);
        assert!(!series.is_due(399) && series.is_due(400));
    }

    #[test]
    fn a_guest_that_cannot_be_read_leaves_no_half_of_a_sample() {
        let mut guest = Guest::new();
        guest.torn_group = Some(1);
        let mut series = Series::new(1000, 10, 3);
        assert!(series.take(&guest, 100).is_err());
        guest.torn_group = None;
        series.take(&guest, 100).unwrap();
        assert_eq!((series.cpu().len(), series.group(0).count()), (1, 1));
    }

    #[test]
    fn samples_take_no_memory_once_they_have_begun() {
        let guest = Guest::new();
        let mut series = Series::new(u64::MAX, u32::MAX, 4);
        let (cpu, group) = (series.cpu.capacity(), series.group.capacity());
        assert_eq!((cpu, group), (1000, 4000));
        series.take(&guest, u64::MAX - 1).unwrap();
        assert_eq!((series.cpu.len(), series.group.len()), (1000, 4000));
        assert_eq!((series.cpu.capacity(), series.group.capacity()), (cpu, group));
    }
}
