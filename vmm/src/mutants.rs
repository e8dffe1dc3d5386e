//! Planted faults, one at a time: does a check catch each, and does each check catch one?

use guest_model::policy::Fault;

use crate::check::{CheckId, Status};
use crate::clock::HostFault;
use crate::introspect::linux::layout::Shift;
use crate::replay::LoadFault;
use crate::run::Planted;
use crate::session::PassOutcome;

/// The scenarios that mutants run, built-in ones: one with everything in it, and one in which those checks
/// hold that no Linux keeps under any load.
pub const SCENARIOS: [&str; 2] = ["mutants", "clock-task-exact"];

/// A wrong guest or a wrong host.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub what: &'static str,
    /// The fault.
    pub planted: Planted,
}

const fn guest(fault: Fault, name: &'static str, what: &'static str) -> Mutant {
    Mutant { name, what, planted: Planted { guest: Some(fault), host: HostFault::None } }
}

const fn host(host: HostFault, name: &'static str, what: &'static str) -> Mutant {
    Mutant { name, what, planted: Planted { guest: None, host } }
}

/// All mutants.
pub const MUTANTS: &[Mutant] = &[
    guest(Fault::StealTwice, "steal_twice", "steal time is taken from clock_task twice"),
    guest(Fault::StealIgnored, "steal_ignored", "steal time is read but not taken from clock_task"),
    guest(
        Fault::StealCarried,
        "steal_carried",
        "steal time that does not fit is carried over, not dropped",
    ),
    guest(
        Fault::IrqDropped,
        "irq_dropped",
        "IRQ time that does not fit is dropped, not carried over",
    ),
    guest(Fault::IrqTwice, "irq_twice", "the same IRQ time is taken at every update"),
    guest(
        Fault::HardirqNotAccounted,
        "hardirq_not_accounted",
        "hardirq time is left out of cpu_irqtime",
    ),
    guest(
        Fault::KsoftirqdAccounted,
        "ksoftirqd_accounted",
        "ksoftirqd's time is counted as IRQ time",
    ),
    guest(
        Fault::ClockTaskUnpaused,
        "clock_task_unpaused",
        "clock_task runs on while IRQ time fills the clock",
    ),
    guest(Fault::ClockTaskBack, "clock_task_back", "clock_task goes back by 1 us now and then"),
    guest(Fault::ClockTaskAhead, "clock_task_ahead", "IRQ and steal time are added to clock_task"),
    guest(Fault::PeltOnWallClock, "pelt_on_wall_clock", "clock_pelt advances with clock"),
    guest(
        Fault::RateLimitWrongClock,
        "rate_limit_wrong_clock",
        "update_tg_load_avg() limits on another clock than the policy's",
    ),
    guest(Fault::RateLimitHalf, "rate_limit_half", "update_tg_load_avg() publishes after 0.5 ms"),
    guest(
        Fault::PublishWithoutTolerance,
        "publish_without_tolerance",
        "update_tg_load_avg() publishes however small the change",
    ),
    guest(Fault::PublishMissed, "publish_missed", "update_tg_load_avg() never publishes"),
    guest(Fault::PublishLost, "publish_lost", "a publish does not reach tg->load_avg"),
    guest(
        Fault::OfflineNotCleared,
        "offline_not_cleared",
        "a CPU that goes offline keeps contributing",
    ),
    guest(Fault::PsiWrongGroup, "psi_wrong_group", "PSI charges the group switched to"),
    guest(Fault::PsiNoAncestors, "psi_no_ancestors", "PSI does not charge a group's ancestors"),
    guest(
        Fault::PsiZeroDeltaInverted,
        "psi_zero_delta_inverted",
        "PSI treats a zero delta against the policy",
    ),
    guest(Fault::PsiDeltaLost, "psi_delta_lost", "PSI moves on without charging the delta"),
    guest(Fault::PsiTimeAhead, "psi_time_ahead", "PSI moves on by 1 us too much"),
    guest(Fault::IrqNeverAccounted, "irq_never_accounted", "irqtime_account_irq() is never called"),
    guest(
        Fault::PsiTickSkipped,
        "psi_tick_skipped",
        "the tick does not call psi_account_irqtime()",
    ),
    guest(
        Fault::PsiSwitchSkipped,
        "psi_switch_skipped",
        "a context switch does not call psi_account_irqtime()",
    ),
    guest(Fault::OfflineIgnored, "offline_ignored", "a CPU that is to go offline stays"),
    guest(Fault::PublishNever, "publish_never", "update_tg_load_avg() is never called"),
    guest(
        Fault::ScheduleStaleClock,
        "schedule_stale_clock",
        "a context switch works with the clock of the last update",
    ),
    guest(Fault::SoftirqDropped, "softirq_dropped", "softirq work is forgotten"),
    guest(Fault::SoftirqTwice, "softirq_twice", "softirq work is done twice"),
    guest(
        Fault::RateLimitEdge,
        "rate_limit_edge",
        "update_tg_load_avg() turns away a call exactly 1 ms after a publish",
    ),
    guest(
        Fault::ClockReadNotCounted,
        "clock_read_not_counted",
        "the clock reads of psi_account_irqtime() are not counted",
    ),
    guest(Fault::LeafListOrder, "leaf_list_order", "a cfs_rq is listed behind its parent"),
    guest(
        Fault::IrqLoadAvgWrapped,
        "irq_load_avg_wrapped",
        "update_irq_load_avg() is told of IRQ and steal time below 0",
    ),
    host(
        HostFault::TornClockPage,
        "clock_page_torn",
        "every 16th clock page keeps half of the old time",
    ),
    host(HostFault::StealPageLags, "steal_page_lags", "the steal page is off by the last quantum"),
    host(
        HostFault::StealNotCounted,
        "steal_not_counted",
        "steal moves the clock but not the counter",
    ),
    host(
        HostFault::HandlerCostTwice,
        "handler_cost_twice",
        "a handler's cost passes twice, is recorded once",
    ),
    host(
        HostFault::InterruptLost,
        "interrupt_lost",
        "every 64th interrupt is raised and never delivered",
    ),
];

/// The scenario that the mutants of a Linux guest run, a built-in one.
pub const LINUX_SCENARIO: &str = "conformance";
/// How long it is for a mutant of the layout.
pub const LAYOUT_DURATION: &str = "20ms";

/// A fault on the path from a Linux guest to what is said of it.
#[derive(Clone, Copy, Debug)]
pub enum LinuxPlanted {
    /// In the rules of the replay.
    Replay(crate::replay::Planted),
    /// In the kernel's layout.
    Layout(Shift),
}

/// A wrong replay or a wrong reading of a Linux guest.
#[derive(Clone, Debug)]
pub struct LinuxMutant {
    /// Its name.
    pub name: String,
    /// What it does.
    pub what: String,
    /// The fault.
    pub planted: LinuxPlanted,
}

/// Faults of guest-model's rules that a replay makes calls of; the others are in what calls them.
const REPLAYED: [Fault; 24] = [
    Fault::StealTwice,
    Fault::StealIgnored,
    Fault::StealCarried,
    Fault::IrqDropped,
    Fault::IrqTwice,
    Fault::HardirqNotAccounted,
    Fault::KsoftirqdAccounted,
    Fault::ClockTaskUnpaused,
    Fault::ClockTaskBack,
    Fault::ClockTaskAhead,
    Fault::PeltOnWallClock,
    Fault::RateLimitWrongClock,
    Fault::RateLimitHalf,
    Fault::RateLimitEdge,
    Fault::PublishWithoutTolerance,
    Fault::PublishMissed,
    Fault::PublishLost,
    Fault::PublishNever,
    Fault::PsiWrongGroup,
    Fault::PsiNoAncestors,
    Fault::PsiZeroDeltaInverted,
    Fault::PsiDeltaLost,
    Fault::PsiTimeAhead,
    Fault::IrqNeverAccounted,
];

/// Faults of how load is moved.
const LOADS: [(LoadFault, &str, &str); 5] = [
    (
        LoadFault::RemovedIgnored,
        "removed_ignored",
        "what a task takes with it that leaves the CPU asleep stays in the load",
    ),
    (
        LoadFault::NotPropagated,
        "not_propagated",
        "what attached or detached in a group does not reach its entity",
    ),
    (LoadFault::AttachedTwice, "attached_twice", "an entity that attaches adds its load twice"),
    (LoadFault::ReweightIgnored, "reweight_ignored", "an entity's new weight changes no load"),
    (LoadFault::DecayedAhead, "decayed_ahead", "load decays 1,024 ns ahead"),
];

/// Members that are taken to be elsewhere: each the width of its own type too late and too early.
const MEMBERS: [(&str, &str, i64); 24] = [
    ("rq", "nr_running", 4),
    ("rq", "nr_switches", 8),
    ("rq", "curr", 8),
    ("rq", "clock", 8),
    ("rq", "clock_task", 8),
    ("rq", "clock_pelt", 8),
    ("rq", "prev_irq_time", 8),
    ("rq", "prev_steal_time_rq", 8),
    ("rq", "psi_irq_time", 8),
    ("rq", "avg_irq.last_update_time", 8),
    ("rq", "avg_irq.util_sum", 4),
    ("rq", "avg_irq.util_avg", 8),
    ("irqtime", "total", 8),
    ("irqtime", "irq_start_time", 8),
    ("cfs_rq", "avg.load_sum", 8),
    ("cfs_rq", "avg.load_avg", 8),
    ("cfs_rq", "load.weight", 8),
    ("cfs_rq", "tg_load_avg_contrib", 8),
    ("cfs_rq", "last_update_tg_load_avg", 8),
    ("task_group", "load_avg", 8),
    ("psi_group_cpu", "times", 4),
    ("task_struct", "pid", 8),
    ("task_struct", "sched_task_group", 8),
    ("sched_entity", "load.weight", 8),
];

/// All mutants of a Linux guest.
pub fn linux_mutants() -> Vec<LinuxMutant> {
    let rules = MUTANTS.iter().filter_map(|m| {
        let fault = m.planted.guest.filter(|fault| REPLAYED.contains(fault))?;
        let planted = LinuxPlanted::Replay(crate::replay::Planted::Rule(fault));
        Some(LinuxMutant { name: m.name.into(), what: m.what.into(), planted })
    });
    let loads = LOADS.iter().map(|(fault, name, what)| {
        let planted = LinuxPlanted::Replay(crate::replay::Planted::Load(*fault));
        LinuxMutant { name: (*name).into(), what: (*what).into(), planted }
    });
    let layout = MEMBERS.iter().flat_map(|&(structure, member, width)| {
        [width, -width].map(|by| LinuxMutant {
            name: format!("{structure}.{member}{by:+}"),
            what: format!("{structure}.{member} is read {by:+} bytes off"),
            planted: LinuxPlanted::Layout(Shift { structure, member, by }),
        })
    });
    rules.chain(loads).chain(layout).collect()
}

/// The checks that failed in a pass.
pub fn killers(outcome: &PassOutcome) -> Vec<CheckId> {
    let failed = |c: &&crate::check::CheckResult| c.status == Status::Fail;
    outcome.checks.iter().filter(failed).map(|c| c.id).collect()
}

/// The checks that failed in any of some passes, each once.
pub fn killers_in(outcomes: &[PassOutcome]) -> Vec<CheckId> {
    let failed: Vec<CheckId> = outcomes.iter().flat_map(killers).collect();
    CheckId::ALL.iter().copied().filter(|id| failed.contains(id)).collect()
}

/// The checks that no mutant of `killed_by` makes fail.
pub fn idle_checks(killed_by: &[Vec<CheckId>]) -> Vec<CheckId> {
    let catches = |id: &CheckId| killed_by.iter().any(|killers| killers.contains(id));
    CheckId::ALL.iter().copied().filter(|id| !catches(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run;
    use crate::scenario::{Scenario, builtin};
    use crate::trace::Trace;
    use guest_model::policy::RateLimitClock;

    fn passes(planted: Planted, clock: RateLimitClock, sets: &[String]) -> [PassOutcome; 2] {
        SCENARIOS.map(|name| {
            let b = builtin(name).unwrap();
            let scenario = Scenario::load(b.text, b.name, sets, crate::check::NAMES).unwrap();
            let control = Default::default();
            run::pass_on_model(&scenario, clock, planted, Trace::hashed(), control).unwrap().0
        })
    }

    #[test]
    fn every_guest_fault_is_a_mutant() {
        for fault in Fault::ALL {
            assert!(MUTANTS.iter().any(|m| m.planted.guest == Some(fault)), "{fault:?}");
        }
    }

    #[test]
    fn without_a_fault_every_check_is_exercised_and_holds_under_every_policy() {
        for clock in RateLimitClock::ALL {
            for psi in ["account_zero_delta", "skip_zero_delta"] {
                let both = passes(Planted::default(), clock, &[format!("policy.psi={psi}")]);
                assert_eq!(both.each_ref().map(killers), [vec![], vec![]], "{clock:?} {psi}");
                for &id in CheckId::ALL {
                    let held = |o: &PassOutcome| o.checks[id as usize].status == Status::Pass;
                    assert!(both.iter().any(held), "{clock:?} {psi} {id:?}");
                }
            }
        }
    }

    #[test]
    fn every_mutant_is_killed_under_every_policy_and_every_check_kills_one() {
        for clock in RateLimitClock::ALL {
            for psi in ["account_zero_delta", "skip_zero_delta"] {
                let mut killed_by = Vec::new();
                for m in MUTANTS {
                    let both = passes(m.planted, clock, &[format!("policy.psi={psi}")]);
                    let killers = killers_in(&both);
                    assert!(!killers.is_empty(), "{clock:?} {psi}: {} survives", m.name);
                    killed_by.push(killers);
                }
                assert_eq!(idle_checks(&killed_by), [], "{clock:?} {psi}");
            }
        }
    }
}
