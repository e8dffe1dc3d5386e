//! What follows from an outcome: checks merged over the passes, the split of the main pass's
//! clock, and what is to be said about it in plain words.

use guest_model::policy::{Fault, RateLimitClock};

use super::figure::{both, count, ns};
use super::text::escaped;
use crate::check::{CheckId, Failure, Status};
use crate::ledger::Line;
use crate::run::{RunOutcome, pass_clocks};
use crate::session::PassOutcome;
use crate::view::RqView;

/// The run queue at the end of a pass, unless the pass stopped before anything was seen of it.
pub(super) fn rq(pass: &PassOutcome) -> Option<&RqView> {
    let never_read = pass.stopped.is_some() && pass.rq == RqView::default();
    (!never_read).then_some(&pass.rq)
}

/// The fault planted in the guest, if one was.
pub(super) fn planted(outcome: &RunOutcome) -> Option<Fault> {
    outcome.passes.first().map(|p| p.policy.fault).filter(|f| *f != Fault::None)
}

/// The rate-limit clocks that the scenario asks for and that did not run.
pub(super) fn missing(outcome: &RunOutcome) -> Vec<RateLimitClock> {
    let ran = |c: &RateLimitClock| outcome.passes.iter().any(|p| p.policy.rate_limit_clock == *c);
    pass_clocks(&outcome.scenario).into_iter().filter(|c| !ran(c)).collect()
}

/// Groups of a pass whose contributions are watched: all but the root.
pub(super) fn groups(pass: &PassOutcome) -> u64 {
    pass.measured.tg_groups.len().saturating_sub(1) as u64
}

/// Paths of the guest's groups, in the order in which the trace counts them.
pub(super) fn group_paths(outcome: &RunOutcome) -> Vec<String> {
    match &outcome.linux {
        Some(linux) => linux.groups.clone(),
        None => outcome.scenario.group_paths(),
    }
}

/// Why what the check `id` is about is not there to be seen.
pub(super) fn lack(outcome: &RunOutcome, id: CheckId) -> Option<&str> {
    let lacks = outcome.linux.iter().flat_map(|linux| &linux.lacks);
    lacks.into_iter().find(|(lacking, _)| *lacking == id).map(|(_, why)| why.as_str())
}

/// What the guest does at a zero delta of PSI, if that is known.
pub(super) fn zero_delta_rule(outcome: &RunOutcome, pass: &PassOutcome) -> Option<&'static str> {
    let unknown = lack(outcome, CheckId::PsiZero).is_some();
    (!unknown).then_some(pass.policy.psi_zero_delta.name())
}

/// What a Linux guest lacks: each reason once, with the checks that it keeps from being judged.
pub(super) fn reasons(outcome: &RunOutcome) -> Vec<(&str, Vec<CheckId>)> {
    let mut reasons: Vec<(&str, Vec<CheckId>)> = Vec::new();
    for (id, why) in outcome.linux.iter().flat_map(|linux| &linux.lacks) {
        match reasons.iter_mut().find(|(known, _)| known == why) {
            Some((_, ids)) if ids.contains(id) => {}
            Some((_, ids)) => ids.push(*id),
            None => reasons.push((why, vec![*id])),
        }
    }
    reasons
}

/// Clock reads of `psi_account_irqtime()`, where they are known.
pub(super) fn psi_clock_reads(outcome: &RunOutcome, pass: &PassOutcome) -> Option<u64> {
    if let Some(costs) = &pass.costs {
        return Some(costs.clock_reads_psi_account_irqtime);
    }
    let reads = reads(outcome, CheckId::PsiIrqLedger, "psi_account_irqtime")?;
    // psi.c and clock.c are one translation unit (kernel/sched/build_utility.c): the compiler may have
    // inlined the read, and then none is seen.
    (reads > 0 || pass.measured.psi_table.reached_delta == 0).then_some(reads)
}

/// Clock reads of `update_tg_load_avg()`, where they are known.
pub(super) fn tg_clock_reads(outcome: &RunOutcome, pass: &PassOutcome) -> Option<u64> {
    if let Some(costs) = &pass.costs {
        return Some(costs.clock_reads_update_tg_load_avg);
    }
    let reads = reads(outcome, CheckId::TgPublished, "update_tg_load_avg")?;
    let must_read = pass.policy.rate_limit_clock == RateLimitClock::SchedClockCpu;
    (reads > 0 || !must_read || pass.measured.tg.calls == 0).then_some(reads)
}

/// Clock reads that a cached clock of the rate limit saved: as many as `sched_clock_cpu()` would have made.
pub(super) fn clock_reads_saved(pass: &PassOutcome) -> u64 {
    let tg = &pass.measured.tg;
    match pass.policy.rate_limit_clock {
        RateLimitClock::SchedClockCpu => 0,
        // An offline CPU returns before it reads.
        RateLimitClock::RqClock | RateLimitClock::RqClockTask => tg.calls - tg.offline,
    }
}

/// All clock reads of the guest's rules that are known of.
pub(super) fn all_clock_reads(outcome: &RunOutcome, pass: &PassOutcome) -> Option<u64> {
    if let Some(c) = &pass.costs {
        let rules = [
            c.clock_reads_update_rq_clock,
            c.clock_reads_irqtime_account_irq,
            c.clock_reads_update_tg_load_avg,
            c.clock_reads_psi_account_irqtime,
            c.clock_reads_psi_other,
        ];
        return Some(rules.into_iter().fold(0, u64::saturating_add));
    }
    let readers = &outcome.linux.as_ref()?.clock_readers;
    (!readers.is_empty()).then(|| readers.iter().map(|(_, reads)| reads).sum())
}

/// Clock reads of a Linux guest's `function`, if any were seen: it may have been inlined, or its reads.
pub(super) fn seen_reads(outcome: &RunOutcome, function: &str) -> Option<u64> {
    let readers = &outcome.linux.as_ref()?.clock_readers;
    readers.iter().find(|(name, _)| name == function).map(|(_, reads)| *reads)
}

/// Clock reads of a Linux guest's `function`, if it and the clock's function are seen.
fn reads(outcome: &RunOutcome, about: CheckId, function: &str) -> Option<u64> {
    let readers = &outcome.linux.as_ref()?.clock_readers;
    if readers.is_empty() || lack(outcome, about).is_some() {
        return None;
    }
    Some(readers.iter().filter(|(name, _)| name == function).map(|(_, reads)| reads).sum())
}

/// One check over all passes.
#[derive(Clone, Debug)]
pub(super) struct Merged<'a> {
    pub id: CheckId,
    /// Failed if it failed in any pass, and passed only if it passed in all.
    pub status: Status,
    pub evaluated: u64,
    pub failures: u64,
    /// The first pass that failed and what it failed at.
    pub first: Option<(RateLimitClock, &'a Failure)>,
    /// Passes that failed.
    pub failed_passes: usize,
    /// Passes that passed.
    pub passed_passes: usize,
}

/// All checks over all passes, in the checks' own order.
pub(super) fn checks(outcome: &RunOutcome) -> Vec<Merged<'_>> {
    CheckId::ALL.iter().map(|id| merge(*id, &outcome.passes)).collect()
}

/// The checks of the page: all but those that the scenario would have to ask for and does not.
pub(super) fn shown(outcome: &RunOutcome) -> Vec<Merged<'_>> {
    let mut checks = checks(outcome);
    checks.retain(|c| c.status != Status::Off || !c.id.is_asked_for());
    checks
}

fn merge(id: CheckId, passes: &[PassOutcome]) -> Merged<'_> {
    // From the strongest statement about a run to the weakest.
    const ORDER: [Status; 5] =
        [Status::Fail, Status::NotBuiltIn, Status::Off, Status::NotExercised, Status::Pass];
    let results = || {
        let of = move |p: &PassOutcome| p.policy.rate_limit_clock;
        passes.iter().flat_map(move |p| p.checks.iter().map(move |c| (of(p), c)))
    };
    let mine = || results().filter(|(_, c)| c.id == id);
    let with = |status| mine().filter(|(_, c)| c.status == status).count();
    Merged {
        id,
        status: ORDER.into_iter().find(|s| with(*s) > 0).unwrap_or(Status::NotExercised),
        evaluated: mine().map(|(_, c)| c.evaluated).sum(),
        failures: mine().map(|(_, c)| c.failures).sum(),
        first: mine().find_map(|(clock, c)| Some((clock, c.first.as_ref()?))),
        failed_passes: with(Status::Fail),
        passed_passes: with(Status::Pass),
    }
}

/// How a pass's injected time was accounted, in ns. Wide enough that no value which a guest may
/// show can wrap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Books {
    /// IRQ time taken from the clock.
    pub irq: i128,
    /// IRQ time that passed and was not taken from it yet.
    pub irq_pending: i128,
    /// Steal time taken from the clock.
    pub steal: i128,
    /// Steal time that did not fit into an update.
    pub steal_dropped: i128,
    /// What the steal counter moved by since the guest last read it.
    pub steal_pending: i128,
    /// `clock` less the three of `clock_task`, IRQ and steal taken: 0 if nothing was lost.
    pub unexplained: i128,
    /// `clock_task` less the time that tasks and idle really had.
    pub off_by: i128,
    /// Where `off_by` comes from; adds up to it.
    pub causes: [(&'static str, i128); 7],
}

/// The books of a pass, unless nothing was seen of its run queue.
pub(super) fn books(pass: &PassOutcome) -> Option<Books> {
    let rq = rq(pass)?;
    let (l, acc) = (&pass.ledger, &pass.measured.accounted);
    let wide = |n: u64| i128::from(n);
    let counter = i128::from(l.steal_counter_ns);
    let irq = wide(rq.prev_irq_time_ns);
    let irq_pending = wide(l.irq_ns()) - irq;
    let steal = i128::from(acc.steal_ns);
    let steal_dropped = i128::from(acc.steal_dropped_ns);
    // The counter is signed: it may have been set back below its start.
    let steal_pending = counter - i128::from(rq.prev_steal_time_rq_ns as i64);

    let (clock, clock_task) = (wide(rq.clock_ns), wide(rq.clock_task_ns));
    let unexplained = clock - clock_task - irq - steal;
    let off_by = clock_task - wide(l.task_ns) - wide(l.ksoftirqd_ns) - wide(l.idle_ns);
    let unread = if pass.has_steal_clock {
        "steal that is not read yet"
    } else {
        "steal that the guest cannot know of"
    };
    let causes = [
        ("clock behind guest time", clock - wide(pass.elapsed_ns)),
        ("IRQ time that is pending", irq_pending),
        (unread, steal_pending),
        ("steal that was dropped", steal_dropped),
        ("steal inside IRQ time, seen as both", -wide(l.steal_in_irq_ns)),
        ("steal counter moving unlike wall time", wide(l.steal_wall_ns) - counter),
        ("unexplained", 0),
    ];
    let explained: i128 = causes.iter().map(|(_, ns)| ns).sum();
    let mut causes = causes;
    causes[6].1 = off_by - explained;
    Some(Books {
        irq,
        irq_pending,
        steal,
        steal_dropped,
        steal_pending,
        unexplained,
        off_by,
        causes,
    })
}

/// What a reader must know beside the verdict, a sentence or two each: passes that ended early, lines
/// that the guest disabled, and steal that moved unlike time.
pub(super) fn notes(outcome: &RunOutcome) -> Vec<String> {
    let mut notes = Vec::new();
    for pass in &outcome.passes {
        if let Some((_, why)) = &pass.stopped {
            let what = match outcome.linux {
                Some(_) => "run".to_owned(),
                None => format!("{} pass", pass.policy.rate_limit_clock.name()),
            };
            notes.push(format!(
                "The {what} stopped at {} of {}: {}.",
                ns(pass.elapsed_ns),
                ns(outcome.scenario.duration_ns),
                escaped(why)
            ));
        }
    }
    let missing: Vec<&str> = missing(outcome).into_iter().map(RateLimitClock::name).collect();
    if !missing.is_empty() {
        let s = if missing.len() == 1 { "pass" } else { "passes" };
        notes.push(format!("The {} {s} did not run.", missing.join(" and ")));
    }
    if let Some(fault) = planted(outcome) {
        notes.push(format!("The guest's accounting ran with a planted fault: {fault:?}."));
    }
    if let Some(pass) = outcome.passes.first() {
        notes.extend(disabled(outcome, pass));
        notes.extend(backward(pass));
        notes.extend(forward(pass));
    }
    notes
}

/// Lines that the guest disabled.
fn disabled(outcome: &RunOutcome, pass: &PassOutcome) -> Vec<String> {
    let irqs = outcome.linux.as_ref().map_or(&[][..], |linux| &linux.irqs);
    let names = outcome.scenario.irq_names();
    let lines = names.iter().zip(&pass.ledger.lines).enumerate();
    let note = |(i, (name, line)): (usize, (&String, &Line))| {
        let at = both(line.disabled_at_ns?);
        let irq = irqs.get(i).map_or(String::new(), |irq| format!(" (IRQ {irq})"));
        // What was raised and is neither handled nor merged is in flight.
        let known = line.handled.saturating_add(line.coalesced);
        let waits = line.raised.saturating_sub(known);
        Some(format!(
            "Line {}{irq} was disabled by the guest at {at}: of {} in the run {} handled, {} merged \
             with one that waited, and {} at the end.",
            escaped(name),
            count(line.raised, "interrupt", "interrupts"),
            count(line.handled, "was", "were"),
            count(line.coalesced, "was", "were"),
            count(waits, "waits", "wait"),
        ))
    };
    lines.filter_map(note).collect()
}

/// The steal counter stepped back.
fn backward(pass: &PassOutcome) -> Option<String> {
    let l = &pass.ledger;
    if l.steal_backward_count == 0 {
        return None;
    }
    let mut text = format!(
        "Backward steal: the steal counter fell {}, by {} in all",
        count(l.steal_backward_count, "time", "times"),
        both(l.steal_backward_ns)
    );
    if let Some(at) = l.steal_backward_first_at_ns {
        text.push_str(&format!(", first at {}", both(at)));
    }
    let Some(rq) = rq(pass) else { return Some(text + ".") };
    let ahead = i128::from(rq.clock_task_ns) - i128::from(rq.clock_ns);
    let end = match ahead {
        1.. => format!("is {} ahead at the end", both(ahead)),
        0 => "equals it at the end".into(),
        _ => format!("is {} behind it at the end", both(-ahead)),
    };
    text.push_str(&match pass.measured.accounted.clock_task_ahead_max_ns {
        0 => format!(". clock_task never ran ahead of clock and {end}."),
        max => format!(". clock_task ran ahead of clock, by up to {}, and {end}.", both(max)),
    });
    Some(text)
}

/// The steal counter grew by more than was stolen.
fn forward(pass: &PassOutcome) -> Option<String> {
    let (l, acc) = (&pass.ledger, &pass.measured.accounted);
    let grown = i128::from(l.steal_counter_ns) + i128::from(l.steal_backward_ns);
    let beyond = grown - i128::from(l.steal_wall_ns);
    if beyond <= 0 {
        return None;
    }
    Some(format!(
        "Forward steal: the steal counter grew by {} more than the {} that were stolen. {} did \
         not fit into a clock update and was dropped; clock_task stood still for at most {}.",
        both(beyond),
        ns(l.steal_wall_ns),
        both(acc.steal_dropped_ns),
        both(acc.clock_task_stopped_max_ns)
    ))
}
