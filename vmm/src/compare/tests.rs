use serde_json::json;

use super::*;
use crate::check::NAMES;
use crate::run::{GuestKind, Planted, session};
use crate::scenario::{Scenario, builtin};
use crate::trace::Trace;

fn row(key: &str, values: [Option<i128>; 2]) -> Row {
    let values: Vec<_> = values.map(|v| v.map(Leaf::Number)).into();
    Row { key: key.into(), relation: Relation::of(&values), values }
}

/// A comparison of two subjects, made by hand.
pub(super) fn comparison() -> Comparison {
    let series = |key: &str, a: &[i128], b: Option<&[i128]>| {
        track(key.into(), &[Some(a.to_vec()), b.map(<[i128]>::to_vec)], 10)
    };
    Comparison {
        rows: vec![
            row("a.same", [Some(1), Some(1)]),
            row("a.other", [Some(1), Some(2)]),
            row("a.lacks", [Some(0), None]),
            row("a.nobody", [None, None]),
        ],
        tracks: vec![
            series("series.same", &[1, 2, 3], Some(&[1, 2, 3])),
            series("series.other", &[1, 2, 3, 4], Some(&[1, 5, 3])),
            series("series.lacks", &[0, 0], None),
        ],
        period_ns: Some(10),
    }
}

/// A run of a built-in scenario on the model, with samples.
fn run(sets: &[&str]) -> (RunOutcome, Value) {
    let b = builtin("mutants").unwrap();
    let sets: Vec<String> = sets.iter().map(|s| (*s).to_owned()).collect();
    let mut scenario = Scenario::load(b.text, b.name, &sets, NAMES).unwrap();
    scenario.policy.compare.clear();
    let clock = scenario.policy.rate_limit_clock;
    let (policy, mut session) =
        session(&scenario, clock, Planted::default(), Trace::hashed(), Default::default());
    session.sample_times(50);
    let (pass, trace) = crate::model::run(&scenario.boot_page(policy), session).unwrap();
    let (trace_sha256, trace_records, _) = trace.finish();
    let outcome = RunOutcome {
        scenario,
        source: b.name.into(),
        sets,
        guest: GuestKind::Model,
        linux: None,
        host_kvm: "none",
        passes: vec![pass],
        trace_sha256,
        trace_records,
    };
    let json = crate::report::json(&outcome);
    (outcome, json)
}

fn compare(a: &[&str], b: &[&str]) -> Comparison {
    let (a, b) = (run(a), run(b));
    Comparison::new(&[(&a.0, &a.1), (&b.0, &b.1)])
}

#[track_caller]
fn relation(c: &Comparison, key: &str) -> Relation {
    c.keys().find(|(k, _)| *k == key).unwrap_or_else(|| panic!("no {key}")).1
}

#[test]
fn a_value_that_one_subject_lacks_equals_no_number_and_none_at_all_is_not_equal() {
    let c = comparison();
    assert_eq!(relation(&c, "a.lacks"), Relation::Different);
    assert_eq!(relation(&c, "series.lacks"), Relation::Different);
    assert_eq!(relation(&c, "a.nobody"), Relation::Unavailable);
    let counts = [Relation::Equal, Relation::Different, Relation::Unavailable].map(|r| c.count(r));
    assert_eq!(counts, [2, 4, 1]);
}

#[test]
fn a_series_tells_its_first_sample_that_differs_and_how_many_do() {
    let c = comparison();
    let other = &c.tracks[1];
    assert_eq!((other.samples, other.differ), (4, 2));
    let first = Parting { index: 1, at_ns: 20, values: vec![Some(2), Some(5)] };
    assert_eq!(other.first, Some(first));
    // A series that ends early differs from there on; one that is not there differs at once.
    assert_eq!((c.tracks[2].samples, c.tracks[2].differ), (2, 2));
    let (key, parting) = c.parting().unwrap();
    assert_eq!((key, parting.at_ns, parting.values[1]), ("series.lacks", 10, None));
}

#[test]
fn keys_that_only_others_have_stand_behind_the_one_that_they_follow_there() {
    let list = |keys: &[&str]| keys.iter().map(|k| ((*k).to_owned(), *k == "b")).collect();
    let merged = by_key(vec![list(&["a", "b", "d"]), list(&["z", "a", "c", "e", "d", "f"])]);
    let keys: Vec<_> = merged.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["z", "a", "c", "e", "b", "d", "f"]);
    assert_eq!(merged[4].1, [Some(true), None]);
    assert_eq!(merged[5].1, [Some(false), Some(false)]);
}

#[test]
fn a_run_equals_itself_in_every_key() {
    let c = compare(&[], &[]);
    assert_eq!(c.count(Relation::Different), 0);
    assert!(c.count(Relation::Equal) > 200);
    assert!(c.same_schedule());
    assert_eq!(c.parting(), None);
    assert!(c.tracks.iter().all(|t| t.samples == 50), "{:?}", c.tracks);
    let claim = Claim { key: "*".into() };
    assert!(claim.judge(&c).holds());
}

#[test]
fn asking_for_samples_changes_nothing_else_of_a_run() {
    let b = builtin("mutants").unwrap();
    let mut scenario = Scenario::load(b.text, b.name, &[], NAMES).unwrap();
    scenario.policy.compare.clear();
    let clock = scenario.policy.rate_limit_clock;
    let plain = crate::run::pass_on_model(
        &scenario,
        clock,
        Planted::default(),
        Trace::hashed(),
        Default::default(),
    );
    let (pass, trace) = plain.unwrap();
    assert!(pass.series.is_none());
    let sampled = run(&[]).0;
    assert_eq!(trace.finish().0, sampled.trace_sha256);
    let without = crate::session::PassOutcome { series: None, ..sampled.passes[0].clone() };
    assert_eq!(format!("{pass:?}"), format!("{without:?}"));
}

#[test]
fn the_last_sample_is_the_end_of_the_run() {
    let (outcome, _) = run(&[]);
    let pass = &outcome.passes[0];
    let series = pass.series.as_ref().unwrap();
    let last = series.cpu().last().unwrap();
    assert_eq!(last.at_ns, pass.elapsed_ns);
    assert_eq!(last.irqtime_total_ns, pass.rq.irqtime_total_ns);
    for psi in &pass.psi {
        let sample = series.group(psi.group).last().unwrap();
        assert_eq!(sample.psi_irq_full_ns, psi.irq_full_ns);
    }
}

#[test]
fn the_zero_delta_rule_changes_what_psi_costs_and_no_group_s_time() {
    let c = compare(&["policy.psi=skip_zero_delta"], &["policy.psi=account_zero_delta"]);
    for key in ["series.psi_irq_full.*", "psi_groups.*", "accounted.*", "injected.*", "rq.*"] {
        let judged = Claim { key: key.into() }.judge(&c);
        assert!(judged.holds(), "{judged:?}");
    }
    for key in ["policy", "seqcount_writes", "clock_reads", "levels"] {
        let key = format!("psi_account_irqtime.{key}");
        assert_eq!(relation(&c, &key), Relation::Different, "{key}");
    }
    assert!(c.same_schedule());
}

#[test]
fn another_seed_is_another_schedule_and_parts_early() {
    let c = compare(&[], &["seed=2"]);
    assert!(!c.same_schedule());
    let (_, parting) = c.parting().unwrap();
    assert!(parting.index < 25, "{parting:?}");
}

#[test]
fn a_guest_without_a_steal_clock_has_no_steal_series_and_that_is_not_0() {
    let c = compare(&["cpu.steal_clock=false"], &["cpu.steal_clock=false"]);
    assert_eq!(relation(&c, "series.prev_steal_time_rq_ns"), Relation::Unavailable);
    assert_eq!(relation(&c, "accounted.steal_ns"), Relation::Unavailable);
    let c = compare(&["cpu.steal_clock=false"], &[]);
    assert_eq!(relation(&c, "series.prev_steal_time_rq_ns"), Relation::Different);
}

#[test]
fn a_run_that_took_no_samples_has_no_series() {
    let mut only = run(&[]);
    only.0.passes[0].series = None;
    let c = Comparison::new(&[(&only.0, &only.1)]);
    assert_eq!((c.tracks.len(), c.period_ns), (0, None));
    only.0.passes.clear();
    let nothing = json!({ "accounted": null, "elapsed_ns": null });
    assert_eq!(Comparison::new(&[(&only.0, &nothing)]).count(Relation::Equal), 0);
}
