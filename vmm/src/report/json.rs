//! The result as one JSON object; docs/json.md gives each key's meaning and unit.

use guest_model::wire::{FIRST_PID, IDLE_PID, KSOFTIRQD_PID};
use serde_json::{Value, json as value};

use super::findings::{self, Books, Merged};
use super::repeat;
use crate::check::{Staleness, TgRow};
use crate::ledger::Ledger;
use crate::run::RunOutcome;
use crate::scenario::Scenario;
use crate::session::{Asked, PassOutcome};

/// `rqscope_json`, the version of the keys. Keys may be added within a version; none is removed or
/// changes its meaning, type or unit.
pub const VERSION: u32 = 1;

/// The result of a run. What is not available is `null`.
pub fn json(outcome: &RunOutcome) -> Value {
    let main = outcome.passes.first();
    let books = main.and_then(findings::books);
    let stopped = outcome.passes.iter().find_map(|pass| pass.stopped.as_ref());
    let paths = outcome.scenario.group_paths();
    let psi_groups = main.map(|pass| {
        let groups = paths.iter().zip(&pass.measured.psi_irq_ns).enumerate();
        let group = |(i, (path, ns)): (usize, (&String, &u64))| {
            let times = pass.psi.get(i).map(|psi| psi.irq_full_ns);
            value!({ "path": path, "irq_full_ns": ns, "times_irq_full_ns": times })
        };
        groups.map(group).collect::<Vec<_>>()
    });
    let clocks: Vec<Value> =
        outcome.passes.iter().map(|pass| rate_limit_clock(pass, &outcome.scenario)).collect();
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
        "elapsed_ns": main.map(|pass| pass.elapsed_ns),
        "rq": main.map_or_else(Vec::new, |pass| {
            let rq = findings::rq(pass).map(|view| rq(view, pass.has_steal_clock));
            rq.into_iter().collect()
        }),
        "wall_time": main.map(|pass| wall_time(&pass.ledger)),
        "injected": main.map(|pass| injected(pass, &outcome.scenario)),
        "accounted": main.zip(books).map(|(pass, books)| accounted(pass, &books)),
        "psi_account_irqtime": main.map(psi_account_irqtime),
        "update_tg_load_avg": clocks.first(),
        "rate_limit_clocks": clocks,
        "psi_groups": psi_groups.unwrap_or_default(),
        "tasks": tasks(&outcome.scenario),
        "checks": findings::checks(outcome).iter().map(check).collect::<Vec<_>>(),
        "notes": findings::notes(outcome),
        "trace_sha256": outcome.trace_sha256,
        "trace_records": outcome.trace_records,
        "stopped": stopped.map(|(_, why)| why),
        "stopped_by": stopped.map(|(by, _)| match by {
            Asked::ByUser => "user",
            Asked::ByError => "error",
        }),
        "repeat": repeat(outcome),
        "scenario": outcome.scenario.to_toml(),
    })
}

/// Every task that a pid in the trace may mean: the guest's own two, then the scenario's.
fn tasks(scenario: &Scenario) -> Vec<Value> {
    let paths = scenario.group_paths();
    let own = [(IDLE_PID, "swapper"), (KSOFTIRQD_PID, "ksoftirqd")];
    let own = own.map(|(pid, name)| value!({ "pid": pid, "name": name, "group": "/" }));
    let names = (FIRST_PID..).zip(scenario.task_names());
    let scenarios = names.map(|(pid, name)| {
        let group = scenario.task_group(pid).and_then(|group| paths.get(group));
        value!({ "pid": pid, "name": name, "group": group })
    });
    own.into_iter().chain(scenarios).collect()
}

/// `n` as a JSON number, or `null` should it need more than 64 bits.
fn number(n: i128) -> Value {
    let fits = |n| i64::try_from(n).map(Value::from).or_else(|_| u64::try_from(n).map(Value::from));
    fits(n).unwrap_or(Value::Null)
}

fn rq(rq: &crate::view::RqView, has_steal_clock: bool) -> Value {
    let steal = has_steal_clock.then_some(rq.prev_steal_time_rq_ns as i64);
    value!({
        "cpu": rq.cpu,
        "clock_ns": rq.clock_ns,
        "clock_task_ns": rq.clock_task_ns,
        "clock_pelt_ns": rq.clock_pelt_ns,
        "prev_irq_time_ns": rq.prev_irq_time_ns,
        "prev_steal_time_rq_ns": steal,
        "psi_irq_time_ns": rq.psi_irq_time_ns,
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

fn injected(pass: &PassOutcome, scenario: &Scenario) -> Value {
    let l = &pass.ledger;
    let names = scenario.irq_names();
    let lines = names.iter().zip(&l.lines).map(|(name, line)| {
        value!({
            "name": name,
            "raised": line.raised,
            "handled": line.handled,
            "merged": line.coalesced,
            "hardirq_ns": line.hardirq_ns,
            "softirq_raised_ns": line.softirq_raised_ns,
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
    })
}

fn psi_account_irqtime(pass: &PassOutcome) -> Value {
    let (t, costs) = (&pass.measured.psi_table, pass.costs.as_ref());
    value!({
        "policy": pass.policy.psi_zero_delta.name(),
        "total": t.total,
        "ret_curr_swapper": t.ret_curr_swapper,
        "ret_samegrp": t.ret_samegrp,
        "reached_delta": t.reached_delta,
        "delta_positive": t.delta_positive,
        "delta_zero": t.delta_zero,
        "delta_negative": t.delta_negative,
        "seqcount_writes": costs.map(|c| c.psi_account_irqtime_seqcount_writes),
        "clock_reads": costs.map(|c| c.clock_reads_psi_account_irqtime),
        "levels": costs.map(|c| c.psi_account_irqtime_levels),
    })
}

fn rate_limit_clock(pass: &PassOutcome, scenario: &Scenario) -> Value {
    let TgRow { calls, rate_limited, below_tolerance, published, offline, staleness: st } =
        &pass.measured.tg;
    let costs = pass.costs.as_ref();
    let paths = scenario.group_paths();
    // The root publishes nothing.
    let groups = paths
        .iter()
        .zip(&pass.measured.tg_groups)
        .skip(1)
        .map(|(path, st)| stale(value!({ "path": path }), st, pass.elapsed_ns, 1));
    let groups: Vec<Value> = groups.collect();
    let head = value!({
        "clock": pass.policy.rate_limit_clock.name(),
        "calls": calls,
        "rate_limited": rate_limited,
        "below_tolerance": below_tolerance,
        "published": published,
        "offline": offline,
        "clock_reads": costs.map(|c| c.clock_reads_update_tg_load_avg),
        "atomic_adds": costs.map(|c| c.tg_load_avg_atomic_adds),
    });
    let mut row = stale(head, st, pass.elapsed_ns, findings::groups(scenario));
    row["groups"] = groups.into();
    row
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
