//! Conformance: every transition that was seen in a Linux guest, made again by guest-model.
//!
//! A [`Kernel`] of guest-model that nobody runs holds what the guest held when its run began. At each probed
//! call it gets what the guest's rule had to go by (the host's clock and steal counter, the context, the
//! tasks, the load) and makes the same call; then all that it holds is compared with what is read of the
//! guest. Nothing is handed over in between, so what a rule leaves behind must be right for the next
//! one too. How load moves is worked out call by call ([`pelt`]): there the averages of each cfs_rq are
//! compared, and what they are made from (weights, entities, what is to be moved up) is taken as it is found.
//! After a difference the guest's values are taken over, so that one fault is not reported for ever.
//!
//! The bundled guest is not replayed: it runs guest-model itself.

mod oracle;
mod pelt;

use guest_model::policy::{Fault, Policy};
use guest_model::softirq::HARDIRQ_OFFSET;

use self::oracle::Oracle;
pub use self::pelt::LoadFault;
use self::pelt::{Found, Loads};
use crate::observe::Step;
use crate::view::{Call, CfsRqView, GuestView, LoadCall, LoadView, PsiView, RqView};

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
    /// A fault that was planted had an occasion to show.
    pub exercised: bool,
}

impl Conformance {
    fn new() -> Self {
        Self { rules: std::array::from_fn(|_| Tally::default()), first: None, exercised: true }
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
        (hardirqs * HARDIRQ_OFFSET) | (preempt_count & SOFTIRQ_MASK)
    }

    fn sees(&self, rule: Rule) -> bool {
        self.unseen.iter().all(|(unseen, _)| *unseen != rule)
    }
}

/// A fault in the rules of a replay, to see that it is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// In guest-model's rules.
    Rule(Fault),
    /// In how load is moved.
    Load(LoadFault),
}

/// Makes the calls of a run again.
#[derive(Debug)]
pub struct Replay {
    guest: Guest,
    oracles: Vec<Oracle>,
    loads: Vec<Loads>,
    faults: Vec<Planted>,
    /// `update_load_avg()` was entered for this cfs_rq, with this entity.
    within: Option<(u16, u64)>,
}

impl Replay {
    /// A replay by the rules as they are, and one more with each of `faults` planted in them. It starts from
    /// what `view` shows.
    pub fn begin<V: GuestView>(
        guest: Guest,
        faults: &[Planted],
        view: &V,
    ) -> Result<Self, V::Error> {
        let rq = view.rq()?;
        let mut groups = Vec::with_capacity(guest.parents.len());
        for group in 0..guest.parents.len() as u16 {
            groups.push((view.cfs_rq(group)?, view.psi_group(group)?));
        }
        let mut oracles = vec![Oracle::new(guest.policy, &guest, &rq, &groups)];
        let mut loads = vec![Loads::new(groups.len(), None)];
        for planted in faults {
            match *planted {
                Planted::Rule(fault) => {
                    let policy = Policy { fault, ..guest.policy };
                    oracles.push(Oracle::new(policy, &guest, &rq, &groups));
                }
                Planted::Load(fault) => loads.push(Loads::new(groups.len(), Some(fault))),
            }
        }
        Ok(Self { guest, oracles, loads, faults: faults.to_vec(), within: None })
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

    /// A function that moves load was entered, at `at_ns`.
    #[inline]
    pub fn load<V: LoadView>(
        &mut self,
        view: &V,
        at_ns: u64,
        call: LoadCall,
    ) -> Result<(), V::Error> {
        if !self.guest.sees(Rule::UpdateLoadAvg) {
            return Ok(());
        }
        if let Some(found) = Found::read(view, call, &mut self.within)? {
            for loads in &mut self.loads {
                loads.call(at_ns, call, &found);
            }
        }
        Ok(())
    }

    /// The run is over: `groups` is what each holds, `None` if the guest broke off in between. How the guest
    /// compares with the rules, then with the rules as each planted fault has them.
    pub fn finish(
        self,
        at_ns: u64,
        rq: &RqView,
        groups: Option<&[(CfsRqView, PsiView)]>,
    ) -> Vec<Conformance> {
        let guest = &self.guest;
        let mut loads = self.loads.into_iter();
        let own_loads = loads.next();
        let mut rules = self.oracles.into_iter().map(|mut oracle| {
            if let Some(groups) = groups {
                oracle.compare_end(at_ns, rq, groups, guest);
            }
            oracle.into_conformance(guest)
        });
        let mut own = rules.next().unwrap_or_else(Conformance::new);
        if let Some(loads) = own_loads {
            loads.report(&mut own);
        }
        let mut found = vec![own];
        found.extend(self.faults.iter().filter_map(|planted| match planted {
            Planted::Rule(_) => rules.next(),
            Planted::Load(_) => loads.next().map(|loads| {
                let mut found = Conformance::new();
                loads.report(&mut found);
                found
            }),
        }));
        found
    }
}

#[cfg(test)]
mod tests;
