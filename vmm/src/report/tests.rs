use std::collections::BTreeSet;

use guest_model::policy::Fault;
use serde_json::Value;

use super::*;
use crate::check::{NAMES, Status};
use crate::clock::HostFault;
use crate::run::{GuestKind, Planted, Verdict, pass_clocks, pass_on_model};
use crate::scenario::{BUILTIN, Scenario, builtin};
use crate::session::{Asked, Control};
use crate::trace::Trace;

fn run(name: &str, sets: &[&str], planted: Planted) -> RunOutcome {
    let b = builtin(name).unwrap();
    let sets: Vec<String> = sets.iter().map(|s| (*s).to_owned()).collect();
    let scenario = Scenario::load(b.text, b.name, &sets, NAMES).unwrap();
    let mut trace = Trace::hashed();
    let mut passes = Vec::new();
    for clock in pass_clocks(&scenario) {
        let ran = pass_on_model(&scenario, clock, planted, trace, Default::default()).unwrap();
        passes.push(ran.0);
        trace = ran.1;
    }
    let (trace_sha256, trace_records, _) = trace.finish();
    RunOutcome {
        scenario,
        source: name.into(),
        sets,
        guest: GuestKind::Model,
        linux: None,
        host_kvm: "none",
        passes,
        trace_sha256,
        trace_records,
    }
}

/// A built-in scenario, cut short: the shape of the report does not depend on its length.
fn short(name: &str) -> RunOutcome {
    run(name, &["duration=60ms"], Planted::default())
}

fn plain(outcome: &RunOutcome) -> String {
    let mut out = Vec::new();
    page(&mut out, outcome, false).unwrap();
    String::from_utf8(out).unwrap()
}

fn assert_fits(page: &str) {
    for line in page.lines() {
        assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
        assert!(!line.ends_with(' '), "`{line}` ends in a space");
        assert!(!line.contains(char::is_control), "{line:?}");
    }
    assert!(page.ends_with('\n'));
}

/// The number at a path such as `accounted.irq_ns`.
fn number(v: &Value, path: &str) -> i128 {
    let found = path.split('.').fold(v, |v, key| &v[key]);
    let n = found.as_i64().map(i128::from).or_else(|| found.as_u64().map(i128::from));
    n.unwrap_or_else(|| panic!("{path} is {found}"))
}

/// Every leaf's path, list items under `[]`.
fn paths(v: &Value, at: &str, out: &mut BTreeSet<String>) {
    match v {
        Value::Object(map) => {
            for (key, v) in map {
                let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                paths(v, &path, out);
            }
        }
        Value::Array(items) => items.iter().for_each(|v| paths(v, &format!("{at}[]"), out)),
        _ => drop(out.insert(at.to_owned())),
    }
}

#[test]
fn every_builtin_scenario_fits_the_page_and_its_books_balance() {
    for b in BUILTIN {
        let o = run(b.name, &[], Planted::default());
        assert_fits(&plain(&o));
        let v = json(&o);
        let n = |path: &str| number(&v, path);
        let sum = |paths: &[&str]| paths.iter().map(|p| n(p)).sum::<i128>();

        assert_eq!(sum(&["accounted.irq_ns", "accounted.irq_pending_ns"]), n("injected.irq_ns"));
        let steal =
            ["accounted.steal_ns", "accounted.steal_dropped_ns", "accounted.steal_pending_ns"];
        assert_eq!(sum(&steal), n("injected.steal_ns"), "{}", b.name);
        let irq = ["injected.hardirq_ns", "injected.softirq_ns", "injected.steal_in_irq_ns"];
        assert_eq!(sum(&irq), n("injected.irq_ns"));
        let wall = v["wall_time"].as_object().unwrap();
        let wall: u64 = wall.values().map(|ns| ns.as_u64().unwrap()).sum();
        assert_eq!(i128::from(wall), n("elapsed_ns"), "{}", b.name);
        assert_eq!(n("elapsed_ns"), i128::from(o.scenario.duration_ns));
        let lines = v["injected"]["lines"].as_array().unwrap();
        let handled: i128 = lines.iter().map(|l| number(l, "handled")).sum();
        assert_eq!(handled, n("injected.irq_count"));

        let p = &v["psi_account_irqtime"];
        let of = |keys: &[&str]| keys.iter().map(|k| number(p, k)).sum::<i128>();
        assert_eq!(of(&["ret_curr_swapper", "ret_samegrp", "reached_delta"]), of(&["total"]));
        let deltas = of(&["delta_positive", "delta_zero", "delta_negative"]);
        assert_eq!(deltas, of(&["reached_delta"]));

        assert_eq!(v["rate_limit_clocks"].as_array().unwrap().len(), o.passes.len());
        assert_eq!(v["rate_limit_clocks"][0], v["update_tg_load_avg"]);
        for row in v["rate_limit_clocks"].as_array().unwrap() {
            let keys = ["rate_limited", "below_tolerance", "published", "offline"];
            let parts: i128 = keys.iter().map(|k| number(row, k)).sum();
            assert_eq!(parts, number(row, "calls"), "{} {row}", b.name);
        }
        for pass in &o.passes {
            let books = findings::books(pass).unwrap();
            assert_eq!(books.unexplained, 0, "{}", b.name);
            assert_eq!(books.causes[6], ("unexplained", 0), "{}", b.name);
            assert_eq!(books.causes.iter().map(|(_, ns)| ns).sum::<i128>(), books.off_by);
        }
    }
}

#[test]
fn two_runs_give_the_same_bytes() {
    let (a, b) = (short("default"), short("default"));
    assert_eq!(plain(&a), plain(&b));
    assert_eq!(json(&a).to_string(), json(&b).to_string());
    assert_ne!(plain(&a), plain(&run("default", &["duration=60ms", "seed=2"], Planted::default())));
}

#[test]
fn the_documented_keys_are_the_keys() {
    let mut found = BTreeSet::new();
    for outcome in [run("steal-backward", &[], Planted::default()), linux::with_everything()] {
        paths(&json(&outcome), "", &mut found);
    }
    // The same object under both names is documented once.
    let clocks = |p: &String| p.strip_prefix("rate_limit_clocks[]").map(str::to_owned);
    let of_clocks: BTreeSet<String> = found.iter().filter_map(clocks).collect();
    let main = |p: &String| p.strip_prefix("update_tg_load_avg").map(str::to_owned);
    assert_eq!(of_clocks, found.iter().filter_map(main).collect());
    found.retain(|p| clocks(p).is_none());

    let text = include_str!("../../../docs/json.md");
    let rows = text.lines().filter_map(|l| l.strip_prefix("| `")?.split_once('`'));
    let documented: BTreeSet<String> = rows.map(|(key, _)| key.to_owned()).collect();
    assert_eq!(found, documented);
    assert!(text.contains(&format!("`rqscope_json` is {VERSION}.")));
}

#[test]
fn colour_adds_codes_and_nothing_else() {
    let o = run(
        "default",
        &["duration=60ms"],
        Planted { guest: Some(Fault::StealTwice), ..Default::default() },
    );
    let mut colored = Vec::new();
    page(&mut colored, &o, true).unwrap();
    let colored = String::from_utf8(colored).unwrap();
    let mut stripped = String::new();
    for (i, part) in colored.split('\x1b').enumerate() {
        stripped.push_str(if i == 0 { part } else { part.split_once('m').unwrap().1 });
    }
    assert_ne!(colored, stripped);
    assert_eq!(stripped, plain(&o));
    assert!(!plain(&o).contains('\x1b'));
}

#[test]
fn a_failing_check_shows_its_first_instant_and_numbers() {
    let planted = Planted { guest: Some(Fault::StealTwice), ..Planted::default() };
    let o = run("default", &[], planted);
    assert_eq!(o.verdict(), Verdict::Fail);
    let (text, v) = (plain(&o), json(&o));
    assert_fits(&text);
    let checks = v["checks"].as_array().unwrap();
    let failed: Vec<&Value> = checks.iter().filter(|c| c["status"] == "fail").collect();
    assert!(!failed.is_empty());
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for c in failed {
        assert!(number(c, "failures") > 0 && number(c, "evaluated") >= number(c, "failures"));
        assert_eq!(c["clock"], "rq_clock");
        let at = figure::both(number(c, "first_at_ns"));
        let detail = c["detail"].as_str().unwrap();
        let story = format!("first at {at} in the rq_clock pass: {detail}");
        assert!(flat.contains(&story), "{story}\n{text}");
        assert!(flat.contains(&format!("✗ FAIL {}", c["name"].as_str().unwrap())));
    }
    assert!(flat.contains("3 of 3 passes"));
    assert!(text.contains("\nFAIL  "));
    assert!(text.contains("planted fault: StealTwice"));
    assert_eq!(v["guest"]["planted_fault"], "StealTwice");
}

#[test]
fn time_that_the_books_do_not_explain_is_shown() {
    let planted = Planted { host: HostFault::HandlerCostTwice, ..Planted::default() };
    let o = run("idle", &["duration=60ms"], planted);
    let books = findings::books(&o.passes[0]).unwrap();
    assert_ne!(books.causes[6].1, 0);
    assert!(plain(&o).contains("    unexplained"));
}

#[test]
fn a_run_that_stops_at_once_says_why_and_calls_nothing_zero_that_was_not_seen() {
    let mut o = short("default");
    let control = Control::default();
    control.stop();
    let clock = o.scenario.policy.rate_limit_clock;
    let ran = pass_on_model(
        &o.scenario,
        clock,
        Planted::default(),
        Trace::hashed(),
        std::sync::Arc::new(control),
    );
    o.passes = vec![ran.unwrap().0];
    o.passes[0].rq = Default::default();
    o.passes[0].costs = None;
    assert_eq!(o.verdict(), Verdict::Incomplete);
    let (text, v) = (plain(&o), json(&o));
    assert_fits(&text);
    assert!(text.contains("\nINCOMPLETE  "), "{text}");
    assert!(text.contains("The rq_clock pass stopped at 0 ns of 60,000,000 ns: interrupted."));
    assert!(text.contains("The sched_clock_cpu and rq_clock_task passes did not run."));
    assert!(text.contains("unavailable: the pass stopped before"));
    assert_eq!(v["verdict"], "incomplete");
    assert_eq!(v["stopped"], "interrupted");
    assert_eq!(v["stopped_by"], "user");
    assert_eq!(v["rq"], Value::Array(vec![]));
    assert!(v["accounted"].is_null());
    assert!(v["update_tg_load_avg"]["clock_reads"].is_null());
}

#[test]
fn a_run_without_a_single_pass_is_incomplete() {
    let mut o = short("idle");
    o.passes.clear();
    let (text, v) = (plain(&o), json(&o));
    assert_fits(&text);
    assert!(text.contains("INCOMPLETE"));
    for key in ["elapsed_ns", "injected", "accounted", "update_tg_load_avg", "wall_time"] {
        assert!(v[key].is_null(), "{key}");
    }
    assert_eq!(v["checks"][0]["status"], "not-exercised");
}

#[test]
fn costs_that_a_guest_does_not_count_are_unavailable() {
    let mut o = short("default");
    o.passes.iter_mut().for_each(|p| p.costs = None);
    let (text, v) = (plain(&o), json(&o));
    assert_eq!(text.matches("unavailable").count(), 1 + 3, "{text}");
    assert!(v["psi_account_irqtime"]["clock_reads"].is_null());
    // What is seen from outside needs nobody's counters.
    for key in ["seqcount_writes", "levels"] {
        assert_ne!(v["psi_account_irqtime"][key].as_u64(), Some(0));
        assert!(v["psi_account_irqtime"][key].is_u64());
    }
    for key in ["total", "update_rq_clock", "irqtime_account_irq", "psi_other"] {
        assert!(v["clock_reads"][key].is_null(), "{key}");
    }
    assert!(v["rate_limit_clocks"][2]["atomic_adds"].is_null());
}

#[test]
fn backward_steal_is_named_with_its_first_instant_and_what_clock_task_did() {
    let o = run("steal-backward", &[], Planted::default());
    let notes = findings::notes(&o);
    let [note] = notes.as_slice() else { panic!("{notes:?}") };
    let l = &o.passes[0].ledger;
    for part in [
        "Backward steal: the steal counter fell 5 times, by 2,200,000,000 ns (2.200 s) in all",
        &format!("first at {}", figure::both(l.steal_backward_first_at_ns.unwrap())),
        "clock_task ran ahead of clock, by up to 539,730,000 ns",
        "ahead at the end",
    ] {
        assert!(note.contains(part), "{note}");
    }
    assert_eq!(json(&o)["rq"][0]["prev_steal_time_rq_ns"], -200_000_000);
    assert_eq!(json(&o)["injected"]["steal_ns"], -200_000_000);
}

#[test]
fn a_jump_of_the_steal_counter_is_named_with_the_standstill() {
    let o = run("steal-jump", &[], Planted::default());
    let notes = findings::notes(&o);
    let [note] = notes.as_slice() else { panic!("{notes:?}") };
    assert!(note.contains("grew by 1,099,511,627,776 ns (1,099.512 s) more than the 0 ns"));
    assert!(note.contains("clock_task stood still for at most 4,000,000 ns (4.000 ms)"), "{note}");
    assert!(findings::notes(&short("default")).is_empty());
}

#[test]
fn the_widest_numbers_stay_exact_and_on_the_page() {
    let mut o = short("default");
    for pass in &mut o.passes {
        pass.rq.clock_task_ns = u64::MAX;
        pass.rq.prev_irq_time_ns = u64::MAX;
        pass.rq.prev_steal_time_rq_ns = i64::MIN as u64;
        pass.measured.accounted.steal_ns = i64::MIN;
        pass.measured.psi_table.total = u64::MAX;
        pass.measured.psi_irq_ns[0] = u64::MAX;
        let tg = &mut pass.measured.tg;
        (tg.calls, tg.rate_limited, tg.published) = (u64::MAX, u64::MAX, u64::MAX);
        tg.staleness.max_ns = u64::MAX;
        tg.staleness.max_task_ns = u64::MAX;
        tg.staleness.max_load = u64::MAX;
        pass.ledger.lines[1].raised = u64::MAX;
        pass.ledger.lines[1].softirq_raised_ns = u64::MAX;
    }
    let text = plain(&o);
    assert_fits(&text);
    assert!(text.contains("18,446,744,073,709,551,615 ns"));
    let v = json(&o);
    assert_eq!(v["rq"][0]["clock_task_ns"], u64::MAX);
    assert_eq!(v["rq"][0]["prev_steal_time_rq_ns"], i64::MIN);
    assert_eq!(v["accounted"]["steal_ns"], i64::MIN);
    let text = v.to_string();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), v);
    assert!(v["accounted"]["irq_pending_ns"].is_null(), "less than -2^63 does not fit");
}

#[test]
fn user_text_cannot_steer_the_terminal() {
    let mut o = short("default");
    let odd = "\x1b[2J\r\n\u{202e}\u{9b}31m".repeat(20);
    o.scenario.name = odd.clone();
    o.scenario.summary = odd.clone();
    o.scenario.irqs[0].name = odd.clone();
    o.scenario.groups[1].path = odd.clone();
    o.host_kvm = "none";
    o.passes[0].stopped = Some((Asked::ByError, odd));
    assert_fits(&plain(&o));
    o.sets = vec!["task.x='\x1b[2J'".into()];
    assert!(plain(&o).lines().all(|l| !l.contains(char::is_control)));
    assert!(!json(&o)["repeat"].as_str().unwrap().contains(char::is_control));
}

#[test]
fn the_command_gives_the_seed_once_wherever_it_came_from() {
    let o = run("default", &["seed = 5", "duration=60ms"], Planted::default());
    let expected = "rqscope run default --guest model --seed 5 --set duration=60ms";
    assert_eq!(repeat(&o), expected);
    let text = plain(&o);
    assert!(text.contains("\n  seed 5 · ") && !text.contains("set seed"), "{text}");
}

#[test]
fn the_command_repeats_source_guest_seed_and_overrides() {
    let mut o = run("default", &["duration=60ms", "irq[0].rate=2kHz"], Planted::default());
    o.source = "it's a file.toml".into();
    let expected = r"rqscope run 'it'\''s a file.toml' --guest model --seed 1 --set duration=60ms --set 'irq[0].rate=2kHz'";
    assert_eq!(repeat(&o), expected);
    assert!(plain(&o).ends_with(
        "repeat  rqscope run 'it'\\''s a file.toml' --guest model --seed 1 --set duration=60ms \\\n          \
         --set 'irq[0].rate=2kHz'\n"
    ));
    o.source = "-x.toml".into();
    assert!(repeat(&o).starts_with("rqscope run ./-x.toml --guest"));
    assert!(plain(&o).contains("set duration=60ms"));
    assert!(plain(&o).contains("set irq[0].rate=2kHz"));
}

#[test]
fn of_many_groups_the_twelve_with_the_most_are_listed() {
    let o = run("rate-limit", &["duration=60ms"], Planted::default());
    let groups = o.scenario.groups.len();
    assert!(groups > 20);
    let text = plain(&o);
    let section = text.split("PSI IRQ time by group").nth(1).unwrap();
    let lines: Vec<&str> = section.lines().skip(1).take(13).collect();
    assert!(lines[0].starts_with("  /  "));
    assert!(lines[11].starts_with("  /"));
    assert_eq!(lines[12], format!("  … {} more", groups - 12));
}

#[test]
fn a_check_passes_only_if_it_passes_in_every_pass() {
    let mut o = short("default");
    let id = o.passes[0].checks[0].id;
    let status = |o: &RunOutcome| findings::checks(o).iter().find(|c| c.id == id).unwrap().status;
    assert_eq!(status(&o), Status::Pass);
    o.passes[1].checks[0].status = Status::NotExercised;
    assert_eq!(status(&o), Status::NotExercised);
    assert!(plain(&o).contains("passed in only 2 of 3 passes"));
    o.passes[2].checks[0].status = Status::Fail;
    assert_eq!(status(&o), Status::Fail);
    for (status, word) in [(Status::NotBuiltIn, "○ not built in"), (Status::Off, "○ off")] {
        o.passes.iter_mut().for_each(|p| p.checks[0].status = status);
        assert!(plain(&o).contains(&format!("{word:<17}{}", id.name())), "{}", plain(&o));
    }
}

#[test]
fn calls_on_an_offline_cpu_are_told_apart() {
    let o = run("default", &["duration=60ms", "cpu.offline_at=20ms"], Planted::default());
    let offline = figure::grouped(o.passes[0].measured.tg.offline);
    assert_ne!(offline, "0");
    let text = plain(&o);
    assert!(
        text.contains(&format!("rq_clock: {offline} of the calls with the CPU offline")),
        "{text}"
    );
    assert_fits(&text);
}

#[test]
fn a_writer_that_fails_is_reported() {
    assert!(page(&mut [0_u8; 10].as_mut_slice(), &short("idle"), false).is_err());
}

#[test]
fn a_guest_without_a_steal_clock_has_no_steal_figures_rather_than_zeros() {
    let b = builtin("busy-half-steal").unwrap();
    let sets = ["cpu.steal_clock=false".to_owned(), "duration=20ms".to_owned()];
    let scenario = Scenario::load(b.text, b.name, &sets, NAMES).unwrap();
    let clock = scenario.policy.rate_limit_clock;
    let (pass, _) =
        pass_on_model(&scenario, clock, Planted::default(), Trace::hashed(), Default::default())
            .unwrap();
    let mut o = short("busy-half-steal");
    o.scenario = scenario;
    o.passes = vec![pass];
    let v = json(&o);
    for key in ["steal_ns", "steal_dropped_ns", "steal_pending_ns"] {
        assert_eq!(v["accounted"][key], Value::Null, "{key}");
    }
    assert_eq!(v["rq"][0]["prev_steal_time_rq_ns"], Value::Null);
    let check = v["checks"].as_array().unwrap().iter().find(|c| c["name"] == "steal_accounted");
    assert_eq!(check.unwrap()["status"], "not-built-in");
    assert_ne!(v["injected"]["steal_wall_ns"], 0);
    assert!(plain(&o).contains("unavailable"), "{}", plain(&o));
}

mod linux;
