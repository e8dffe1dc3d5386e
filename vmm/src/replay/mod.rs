//! Conformance: every transition that was seen in a Linux guest, made again by guest-model.
//!
//! A [`Kernel`] of guest-model that nobody runs holds what the guest held when its run began. At each probed
//! call it gets what the guest's rule had to go by (the host's clock and steal counter, the context, the
//! tasks, the load) and makes the same call; then all that it holds is compared with what is read of the
//! guest. Nothing is handed over in between, so what a rule leaves behind must be right for the next
//! one too. After a difference the guest's values are taken over, so that one fault is not reported for ever.
//!
//! The bundled guest is not replayed: it runs guest-model itself.

mod oracle;

use guest_model::policy::{Fault, Policy};
use guest_model::softirq::HARDIRQ_OFFSET;

use self::oracle::Oracle;
use crate::observe::Step;
use crate::view::{Call, CfsRqView, GuestView, PsiView, RqView};

macro_rules! rules {
    ($($(#[doc = $doc:literal])+ $id:ident $name:literal,)+) => {
        /// A rule whose transitions are compared.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Rule { $($(#[doc = $doc])+ $id,)+ }

        impl Rule {
            /// All, in the order of the report.
            pub const ALL: &'static [Self] = &[$(Self::$id,)+];

            /// Its name in reports and JSON: the kernel's function.
            pub fn name(self) -> &'static str {
                match self { $(Self::$id => $name,)+ }
            }

            /// What is compared, in words.
            pub fn compares(self) -> &'static str {
                match self { $(Self::$id => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

rules! {
    /// clock, clock_task, clock_pelt, prev_irq_time, prev_steal_time_rq
    UpdateRqClock "update_rq_clock",
    /// cpu_irqtime.total, irq_start_time
    IrqtimeAccountIrq "irqtime_account_irq",
    /// psi_irq_time, psi_seq, times[PSI_IRQ_FULL] of each group
    PsiAccountIrqtime "psi_account_irqtime",
    /// avg_irq: sums, averages, period
    UpdateIrqLoadAvg "update_irq_load_avg",
    /// tg->load_avg, tg_load_avg_contrib, last_update_tg_load_avg
    UpdateTgLoadAvg "update_tg_load_avg",
    /// cfs_rq->avg: sums, averages, period
    UpdateLoadAvg "update_load_avg",
}

/// What became of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Calls that were made again.
    pub transitions: u64,
    /// Those after which something differed.
    pub differences: u64,
    /// Why none could be made again.
    pub unavailable: Option<String>,
}

/// The first transition that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Guest time, ns.
    pub at_ns: u64,
    /// The rule that was followed.
    pub rule: Rule,
    /// Each value that differs: its name, what guest-model has and what the guest has.
    pub values: Vec<(String, u64, u64)>,
    /// What the rule had to go by.
    pub inputs: String,
}

/// How a guest compares with guest-model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conformance {
    /// By rule, in the order of [`Rule::ALL`].
    pub rules: [Tally; Rule::ALL.len()],
    /// The first difference.
    pub first: Option<Difference>,
}

impl Conformance {
    fn new() -> Self {
        Self { rules: std::array::from_fn(|_| Tally::default()), first: None }
    }

    /// Calls that were made again.
    pub fn transitions(&self) -> u64 {
        self.rules.iter().map(|t| t.transitions).sum()
    }

    /// Those after which something differed.
    pub fn differences(&self) -> u64 {
        self.rules.iter().map(|t| t.differences).sum()
    }
}

/// The softirq levels of a preempt count: bits 8 to 15 (include/linux/preempt.h, 6.12 to 7.3).
const SOFTIRQ_MASK: u32 = 0xff00;

/// What the guest is, as far as its rules depend on it.
#[derive(Clone, Debug)]
pub struct Guest {
    /// The variant that it follows.
    pub policy: Policy,
    /// Each group's parent; the root is its own.
    pub parents: Vec<u16>,
    /// It has a steal clock.
    pub has_steal_clock: bool,
    /// One level of hardirq in its preempt count; 0 if not known.
    pub hardirq_offset: u32,
    /// Rules whose calls cannot be seen, and why.
    pub unseen: Vec<(Rule, String)>,
}

impl Guest {
    /// Its preempt count, or a part of it, as guest-model counts. Levels of preemption are left out, and so are
    /// NMIs, which nobody sends.
    fn contexts(&self, preempt_count: u32) -> u32 {
        let hardirqs = preempt_count.checked_div(self.hardirq_offset).unwrap_or(0) & 0xf;
        hardirqs * HARDIRQ_OFFSET | preempt_count & SOFTIRQ_MASK
    }

    fn sees(&self, rule: Rule) -> bool {
        self.unseen.iter().all(|(unseen, _)| *unseen != rule)
    }
}

/// Makes the calls of a run again.
#[derive(Debug)]
pub struct Replay {
    guest: Guest,
    oracles: Vec<Oracle>,
}

impl Replay {
    /// A replay by the rules as they are, and one more with each of `faults` planted in them. It starts from
    /// what `view` shows.
    pub fn begin<V: GuestView>(guest: Guest, faults: &[Fault], view: &V) -> Result<Self, V::Error> {
        let rq = view.rq()?;
        let mut groups = Vec::with_capacity(guest.parents.len());
        for group in 0..guest.parents.len() as u16 {
            groups.push((view.cfs_rq(group)?, view.psi_group(group)?));
        }
        let planted = |fault| Policy { fault, ..guest.policy };
        let policies = std::iter::once(Fault::None).chain(faults.iter().copied()).map(planted);
        let oracles = policies.map(|p| Oracle::new(p, &guest, &rq, &groups)).collect();
        Ok(Self { guest, oracles })
    }

    /// `update_irq_load_avg()` was entered inside `update_rq_clock()`.
    #[inline]
    pub fn nested(&mut self, call: Call) {
        if let Call::UpdateIrqLoadAvg { running } = call {
            for oracle in &mut self.oracles {
                oracle.irq_load_avg_was_called(running);
            }
        }
    }

    /// A call is done.
    #[inline]
    pub fn step(&mut self, step: &Step<'_>) {
        for oracle in &mut self.oracles {
            oracle.step(step, &self.guest);
        }
    }

    /// The run is over: `groups` is what each holds, `None` if the guest broke off in between.
    pub fn finish(
        self,
        at_ns: u64,
        rq: &RqView,
        groups: Option<&[(CfsRqView, PsiView)]>,
    ) -> Vec<Conformance> {
        let guest = &self.guest;
        let end = |mut oracle: Oracle| {
            if let Some(groups) = groups {
                oracle.compare_end(at_ns, rq, groups, guest);
            }
            oracle.into_conformance(guest)
        };
        self.oracles.into_iter().map(end).collect()
    }
}
