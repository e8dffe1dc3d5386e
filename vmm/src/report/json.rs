//! The result as one JSON object; docs/json.md gives each key's meaning and unit.

use guest_model::wire::{FIRST_PID, IDLE_PID, KSOFTIRQD_PID};
use serde_json::{Value, json as value};

use super::conformance;
use super::findings::{self, Books, Merged};
use super::repeat;
use crate::check::{CheckId, Staleness, TgRow};
use crate::ledger::Ledger;
use crate::run::{LinuxOutcome, RunOutcome};
use crate::session::{Asked, PassOutcome};

/// `rqscope_json`, the version of the keys. Keys may be added within a version; none is removed or
/// changes its meaning, type or unit.
pub const VERSION: u32 = 1;

/// The result of a run. What is not available is `null`.
pub fn json(outcome: &RunOutcome) -> Value {
    let main = outcome.passes.first();
    let books = main.and_then(findings::books);
    let stopped = outcome.passes.iter().find_map(|pass| pass.stopped.as_ref());
    let paths = findings::group_paths(outcome);
    let has_psi = findings::lack(outcome, CheckId::PsiIrqLedger).is_none();
    let psi_groups = main.map(|pass| {
        let groups = paths.iter().zip(&pass.measured.psi_irq_ns).enumerate();
        let group = |(i, (path, ns)): (usize, (&String, &u64))| {
            let times = pass.psi.get(i).map(|psi| psi.irq_full_ns).filter(|_| has_psi);
            let charged = has_psi.then_some(ns);
            value!({ "path": path, "irq_full_ns": charged, "times_irq_full_ns": times })
        };
        groups.map(group).collect::<Vec<_>>()
    });
    let clocks: Vec<Value> =
        outcome.passes.iter().map(|pass| rate_limit_clock(outcome, pass, &paths)).collect();
    value!({
        "rqscope_json": VERSION,
        "verdict": outcome.verdict().name(),
        "seed": outcome.scenario.seed,
        "time": "virtual",
        "guest": {
            "kind": outcome.guest.name(),
            "planted_fault": findings::planted(outcome).map(|f| format!("{f:?}")),
        },
        "host": { "kvm": outcome.host_kvm },
        "linux": outcome.linux.as_ref().map(|l| linux(l, main)),
        "elapsed_ns": main.map(|pass| pass.elapsed_ns),
        "rq": main.map_or_else(Vec::new, |pass| {
            let rq = findings::rq(pass).map(|view| rq(view, pass.has_steal_clock, has_psi));
            rq.into_iter().collect()
        }),
        "wall_time": main.map(|pass| wall_time(&pass.ledger)),
        "injected": main.map(|pass| injected(outcome, pass)),
        "accounted": main.zip(books).map(|(pass, books)| accounted(pass, &books)),
        "clock_reads": main.map(|pass| clock_reads(outcome, pass)),
        "psi_account_irqtime": main.map(|pass| psi_account_irqtime(outcome, pass)),
        "update_tg_load_avg": clocks.first(),
        "rate_limit_clocks": clocks,
        "psi_groups": psi_groups.unwrap_or_default(),
        "tasks": tasks(outcome),
        "checks": findings::checks(outcome).iter().map(check).collect::<Vec<_>>(),
        "notes": findings::notes(outcome),
        "trace_sha256": outcome.trace_sha256,
        "trace_records": outcome.trace_records,
        "stopped": stopped.map(|(_, why)| why),
        "stopped_by": match stopped {
            Some((Asked::ByUser, _)) => Some("user"),
            Some((Asked::ByError, _)) => Some("error"),
            // A Linux guest whose boot the user did not wait for.
            None if outcome.passes.is_empty() => Some("user"),
            None => None,
        },
        "repeat": repeat(outcome),
        "scenario": outcome.scenario.to_toml(),
    })
}

/// Every task that a pid in the trace may mean: the guest's own two, then the scenario's if it runs
/// them.
fn tasks(outcome: &RunOutcome) -> Vec<Value> {
    let scenario = &outcome.scenario;
    let paths = scenario.group_paths();
    let own = [(IDLE_PID, "swapper"), (KSOFTIRQD_PID, "ksoftirqd")];
    let gained = outcome.passes.first().map(|pass| &pass.measured.clock_task_ns);
    let gained = |pid: u16| gained.map(|ns| ns.get(usize::from(pid)).copied().unwrap_or(0));
    let own = own.map(|(pid, name)| {
        value!({ "pid": pid, "name": name, "group": "/", "clock_task_ns": gained(pid) })
    });
    let names = (FIRST_PID..).zip(scenario.task_names());
    let scenarios = names.map(|(pid, name)| {
        let group = scenario.task_group(pid).and_then(|group| paths.get(group));
        value!({ "pid": pid, "name": name, "group": group, "clock_task_ns": gained(pid) })
    });
    let runs = !outcome.linux.as_ref().is_some_and(|linux| linux.has_own_workload);
    own.into_iter().chain(scenarios.filter(|_| runs)).collect()
}

/// What only a Linux guest has.
fn linux(linux: &LinuxOutcome, main: Option<&PassOutcome>) -> Value {
    let acc = main.map(|pass| &pass.measured.accounted);
    let lacks = linux.lacks.iter();
    let lacks = lacks.map(|(id, why)| value!({ "check": id.name(), "reason": why }));
    let readers = linux.clock_readers.iter();
    let readers = readers.map(|(name, calls)| value!({ "function": name, "calls": calls }));
    let probes = linux.probes.iter().map(
        |(probe, hits)| value!({ "function": probe.symbol, "args": probe.args, "calls": hits }),
    );
    value!({
        "banner": linux.banner,
        "has_own_workload": linux.has_own_workload,
        "notes": linux.notes,
        "lacks": lacks.collect::<Vec<_>>(),
        "updates_skipped": acc.map(|acc| acc.updates_skipped),
        "skipped_behind_max_ns": acc.map(|acc| acc.skipped_behind_max_ns),
        "irq_load_avg_wrapped_count": acc.map(|acc| acc.irq_load_avg_wrapped_count),
        "clock_readers": readers.collect::<Vec<_>>(),
        "conformance": main.and_then(|pass| pass.conformance.first()).map(conformance::json),
        "probes": probes.collect::<Vec<_>>(),
    })
}

/// `n` as a JSON number, or `null` should it need more than 64 bits.
pub(super) fn number(n: i128) -> Value {
    let fits = |n| i64::try_from(n).map(Value::from).or_else(|_| u64::try_from(n).map(Value::from));
    fits(n).unwrap_or(Value::Null)
}

fn rq(rq: &crate::view::RqView, has_steal_clock: bool, has_psi: bool) -> Value {
    let steal = has_steal_clock.then_some(rq.prev_steal_time_rq_ns as i64);
    value!({
        "cpu": rq.cpu,
        "clock_ns": rq.clock_ns,
        "clock_task_ns": rq.clock_task_ns,
        "clock_pelt_ns": rq.clock_pelt_ns,
        "prev_irq_time_ns": rq.prev_irq_time_ns,
        "prev_steal_time_rq_ns": steal,
        "psi_irq_time_ns": has_psi.then_some(rq.psi_irq_time_ns),
    })
}

fn wall_time(l: &Ledger) -> Value {
    value!({
        "task_ns": l.task_ns,
        "hardirq_ns": l.hardirq_ns,
        "softirq_ns": l.softirq_ns,
        "ksoftirqd_ns": l.ksoftirqd_ns,
        "steal_ns": l.steal_wall_ns,
        "idle_ns": l.idle_ns,
    })
}

fn injected(outcome: &RunOutcome, pass: &PassOutcome) -> Value {
    let l = &pass.ledger;
    let names = outcome.scenario.irq_names();
    let irqs = outcome.linux.as_ref().map(|linux| &linux.irqs);
    let lines = names.iter().zip(&l.lines).enumerate().map(|(i, (name, line))| {
        value!({
            "name": name,
            "irq": irqs.and_then(|irqs| irqs.get(i)),
            "raised": line.raised,
            "handled": line.handled,
            "merged": line.coalesced,
            "hardirq_ns": line.hardirq_ns,
            "softirq_raised_ns": line.softirq_raised_ns,
            "disabled_at_ns": line.disabled_at_ns,
        })
    });
    value!({
        "irq_count": l.irq_count(),
        "irq_waiting": pass.irqs_waiting,
        "irq_ns": l.irq_ns(),
        "hardirq_ns": l.hardirq_ns,
        "softirq_ns": l.softirq_ns,
        "ksoftirqd_ns": l.ksoftirqd_ns,
        "steal_ns": l.steal_counter_ns,
        "steal_wall_ns": l.steal_wall_ns,
        "steal_in_irq_ns": l.steal_in_irq_ns,
        "steal_in_idle_ns": l.steal_in_idle_ns,
        "steal_count": l.steal_count,
        "steal_skipped": l.steal_skipped,
        "steal_backward_count": l.steal_backward_count,
        "steal_backward_ns": l.steal_backward_ns,
        "steal_backward_first_at_ns": l.steal_backward_first_at_ns,
        "lines": lines.collect::<Vec<_>>(),
    })
}

fn accounted(pass: &PassOutcome, books: &Books) -> Value {
    let acc = &pass.measured.accounted;
    let steal = |n| if pass.has_steal_clock { number(n) } else { Value::Null };
    value!({
        "irq_ns": number(books.irq),
        "irq_pending_ns": number(books.irq_pending),
        "steal_ns": steal(books.steal),
        "steal_dropped_ns": steal(books.steal_dropped),
        "steal_pending_ns": steal(books.steal_pending),
        "updates": acc.updates,
        "irq_carried_count": acc.irq_carried_count,
        "steal_dropped_count": acc.steal_dropped_count,
        "clock_task_off_by_ns": number(books.off_by),
        "clock_task_ahead_max_ns": acc.clock_task_ahead_max_ns,
        "clock_task_stopped_max_ns": acc.clock_task_stopped_max_ns,
        "clock_task_idle_ns": acc.clock_task_idle_ns,
        "clock_task_busy_ns": acc.clock_task_busy_ns,
        "steal_in_irq_taken_ns": steal(acc.steal_in_irq_taken_ns.into()),
        "irq_late_ns": acc.irq_late_ns,
        "irq_late_max_ns": acc.irq_late_max_ns,
        "avg_irq_util_max": acc.avg_irq_util_max,
    })
}

fn psi_account_irqtime(outcome: &RunOutcome, pass: &PassOutcome) -> Value {
    let seen = findings::lack(outcome, CheckId::PsiIrqLedger).is_none();
    let t = &pass.measured.psi_table;
    let mut object = value!({
        "policy": findings::zero_delta_rule(outcome, pass),
        "total": t.total,
        "ret_curr_swapper": t.ret_curr_swapper,
        "ret_samegrp": t.ret_samegrp,
        "reached_delta": t.reached_delta,
        "delta_positive": t.delta_positive,
        "delta_zero": t.delta_zero,
        "delta_negative": t.delta_negative,
        "delta_zero_ppm": ppm(t.delta_zero, t.reached_delta),
        "seqcount_writes": t.writes,
        "clock_reads": findings::psi_clock_reads(outcome, pass),
        "levels": t.levels,
    });
    if !seen {
        forget(&mut object, &[]);
    }
    object
}

/// `part` of `whole` in ppm, rounded down; 0 of nothing is unavailable.
fn ppm(part: u64, whole: u64) -> Option<u64> {
    let share = (u128::from(part) * 1_000_000).checked_div(whole.into())?;
    u64::try_from(share).ok()
}

/// Clock reads of the guest's rules, where they are known.
fn clock_reads(outcome: &RunOutcome, pass: &PassOutcome) -> Value {
    let costs = pass.costs.as_ref();
    let seen = |function: &str| findings::seen_reads(outcome, function);
    value!({
        "total": findings::all_clock_reads(outcome, pass),
        "update_rq_clock":
            costs.map(|c| c.clock_reads_update_rq_clock).or_else(|| seen("update_rq_clock")),
        "irqtime_account_irq":
            costs.map(|c| c.clock_reads_irqtime_account_irq).or_else(|| seen("irqtime_account_irq")),
        "update_tg_load_avg": findings::tg_clock_reads(outcome, pass),
        "psi_account_irqtime": findings::psi_clock_reads(outcome, pass),
        "psi_other": costs.map(|c| c.clock_reads_psi_other),
    })
}

/// Numbers that were counted of something that was not seen become unavailable, but for those in `kept`.
fn forget(object: &mut Value, kept: &[&str]) {
    let entries = object.as_object_mut().into_iter().flatten();
    for (_, value) in entries.filter(|(key, _)| !kept.contains(&key.as_str())) {
        *value = Value::Null;
    }
}

fn rate_limit_clock(outcome: &RunOutcome, pass: &PassOutcome, paths: &[String]) -> Value {
    let seen = findings::lack(outcome, CheckId::TgPublished).is_none();
    let TgRow { calls, rate_limited, below_tolerance, published, offline, staleness: st } =
        &pass.measured.tg;
    let costs = pass.costs.as_ref();
    // The root publishes nothing.
    let groups = paths.iter().zip(&pass.measured.tg_groups).skip(1).map(|(path, st)| {
        let mut group = stale(value!({ "path": path }), st, pass.elapsed_ns, 1);
        if !seen {
            forget(&mut group, &["path"]);
        }
        group
    });
    let groups: Vec<Value> = groups.collect();
    let observed = outcome.linux.as_ref().is_none_or(|linux| linux.rate_limit_seen);
    let head = value!({
        "clock": observed.then(|| pass.policy.rate_limit_clock.name()),
        "calls": calls,
        "rate_limited": rate_limited,
        "below_tolerance": below_tolerance,
        "published": published,
        "offline": offline,
        "clock_reads": findings::tg_clock_reads(outcome, pass),
        "clock_reads_saved": observed.then(|| findings::clock_reads_saved(pass)),
        "atomic_adds": costs.map(|c| c.tg_load_avg_atomic_adds),
        "published_clock_milli_hz": milli_hz(*published, pass.rq.clock_ns),
        "published_clock_task_milli_hz": milli_hz(*published, pass.rq.clock_task_ns),
    });
    let mut row = stale(head, st, pass.elapsed_ns, findings::groups(pass));
    if !seen {
        forget(&mut row, &["clock"]);
    }
    row["groups"] = groups.into();
    row
}

/// `count` in `ns` as a rate, rounded down to thousandths of a hertz; of no time it is unavailable.
fn milli_hz(count: u64, ns: u64) -> Option<u64> {
    let rate = (u128::from(count) * 1_000_000_000_000).checked_div(ns.into())?;
    u64::try_from(rate).ok()
}

/// `row` with the staleness of `groups` contributions over `elapsed_ns` behind its keys.
fn stale(mut row: Value, st: &Staleness, elapsed_ns: u64, groups: u64) -> Value {
    for (key, n) in [
        ("staleness_count", st.count),
        ("staleness_max_ns", st.max_ns),
        ("staleness_max_clock_task_ns", st.max_task_ns),
        ("staleness_mean_ns", st.mean_ns()),
        ("staleness_mean_clock_task_ns", st.mean_task_ns()),
        ("staleness_max_load", st.max_load),
        ("staleness_mean_load_milli", st.mean_load_milli(elapsed_ns, groups)),
        ("weight_error_max_ppm", st.max_weight_error_ppm),
        ("weight_error_mean_ppm", st.mean_weight_error_ppm(elapsed_ns, groups)),
    ] {
        row[key] = n.into();
    }
    row
}

fn check(check: &Merged<'_>) -> Value {
    value!({
        "name": check.id.name(),
        "status": check.status.name(),
        "evaluated": check.evaluated,
        "failures": check.failures,
        "detail": check.first.map(|(_, failure)| &failure.detail),
        "first_at_ns": check.first.map(|(_, failure)| failure.at_ns),
        "clock": check.first.map(|(clock, _)| clock.name()),
    })
}
