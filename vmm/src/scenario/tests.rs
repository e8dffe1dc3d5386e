use super::*;
use guest_model::policy::Fault;
use proptest::prelude::*;

mod refused;

const CHECKS: &[&str] = &["conservation", "clock_task_monotonic", "irq_ledger"];
/// With those that the built-in scenarios name.
const KNOWN: &[&str] = crate::check::NAMES;
const POLICY: Policy = Policy {
    rate_limit_clock: RateLimitClock::RqClock,
    psi_zero_delta: PsiZeroDelta::Skip,
    fault: Fault::None,
};

fn load(text: &str) -> Result<Scenario, ScenarioError> {
    load_with(text, &[])
}

fn load_with(text: &str, sets: &[&str]) -> Result<Scenario, ScenarioError> {
    let sets: Vec<String> = sets.iter().map(|s| (*s).to_owned()).collect();
    Scenario::load(text, "f.toml", &sets, CHECKS)
}

fn message(text: &str) -> String {
    load(text).unwrap_err().to_string()
}

/// The rate of the first line.
fn rate(s: &Scenario) -> String {
    s.irqs[0].rate.map_or("none".to_owned(), |rate| rate.to_string())
}

#[test]
fn a_load_is_as_many_interrupts_as_take_that_share_in_the_mean() {
    let with = |line: &str| load(&format!("[[irq]]\nname='a'\n{line}")).unwrap();
    for (line, want) in [
        ("load=0.5\ncost='50us'", "10kHz"),
        ("load=0.5\ncost={min='20us',max='80us'}", "10kHz"),
        ("load=0.5\ncost={mean='50us',max='60us'}", "10kHz"),
        ("load=0.1\ncost='30us'", "3333.333333333Hz"),
        ("load=0\ncost='30us'", "none"),
        ("load=0.0\ncost='0'", "none"),
        ("load=0\ncost='1us'\narrival='burst'", "none"),
    ] {
        let s = with(line);
        assert_eq!(rate(&s), want, "{line}");
        assert_eq!(load(&s.to_toml()), Ok(s));
    }
}

#[test]
fn a_fraction_of_a_period_is_one_slice_in_each() {
    let steal = |text: &str| load(&format!("[[steal]]\n{text}")).unwrap();
    let s = steal("fraction=0.3\nperiod='10ms'");
    assert_eq!((s.steals[0].slice_ns, s.steals[0].counter_ns), (3_000_000, 3_000_000));
    assert_eq!(load(&s.to_toml()), Ok(s));
    for none in ["fraction=0\nperiod='10ms'", "fraction=0.0", "fraction=0\njitter=true"] {
        let s = steal(none);
        assert_eq!(crate::schedule::Schedule::new(&s, 1).count(), 0, "{none}");
        assert_eq!(load(&s.to_toml()), Ok(s));
    }
}

#[test]
fn interrupts_that_merge_in_a_slice_take_the_cpu_once() {
    let with = |quantum: &str| {
        load(&format!(
            "[[irq]]\nname='a'\nload=0.95\ncost='40us'\n[[steal]]\nfraction=0.95\nquantum='{quantum}'"
        ))
    };
    // 0.95 of what is left, and one interrupt a slice.
    with("19ms").unwrap();
    let refused = with("1ms").unwrap_err().to_string();
    assert!(refused.contains("all handlers and slices together take 103%"), "{refused}");
}

#[test]
fn an_empty_scenario_has_every_default() {
    let s = load("").unwrap();
    assert_eq!((s.name.as_str(), s.duration_ns, s.seed), ("f.toml", 1_000_000_000, 1));
    assert_eq!((s.tick.rate.period_ns(), s.tick.cost_ns), (4_000_000, 2_000));
    assert_eq!(s.policy.compare, RateLimitClock::ALL);
    assert_eq!(s.policy.rate_limit_clock, RateLimitClock::RqClock);
    assert_eq!(s.policy.psi, PsiZeroDelta::Skip);
    assert_eq!(s.offline_ns, None);
    assert_eq!(s.group_paths(), ["/"]);
    assert_eq!(s.irq_names(), ["timer"]);
    assert!(s.checks.runs("conservation"));
}

#[test]
fn every_builtin_loads_validates_and_repeats_its_summary() {
    assert_eq!(BUILTIN[0].name, "default");
    for b in BUILTIN {
        let s = Scenario::load(b.text, b.name, &[], KNOWN).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((s.name.as_str(), s.summary.as_str()), (b.name, b.summary));
        let question = b.summary.trim_end_matches(" (fails, as Linux does)");
        assert!(question.ends_with('?') && b.summary.len() <= 110, "{}", b.summary);
        assert_eq!(s.boot_page(POLICY).validate(), Ok(POLICY), "{}", b.name);
        assert_eq!(builtin(b.name), Some(b));
        assert_eq!(Scenario::load(&s.to_toml(), "f.toml", &[], KNOWN), Ok(s));
    }
    assert_eq!(builtin("none"), None);
}

#[test]
fn the_default_scenario_has_eight_leaf_groups_with_tasks() {
    let s = load(builtin("default").unwrap().text).unwrap();
    let parents: Vec<_> = (1..s.groups.len()).filter_map(|i| s.group_parent(i)).collect();
    let leaf_tasks =
        (2..).map_while(|pid| s.task_group(pid)).filter(|g| !parents.contains(g)).count();
    assert_eq!(leaf_tasks, 8);
    assert_eq!(
        s.groups.len()
            - 1
            - parents.iter().filter(|p| **p > 0).collect::<std::collections::HashSet<_>>().len(),
        8
    );
}

#[test]
fn the_example_in_the_documentation_loads() {
    let page = include_str!("../../../docs/scenario.md");
    let example = page.split("```toml").nth(1).and_then(|rest| rest.split("```").next());
    let s = load(example.unwrap()).unwrap();
    assert_eq!((s.task_names().len(), rate(&s).as_str()), (4, "20kHz"));
}

#[test]
fn groups_come_after_their_parents_declared_or_not() {
    let s = load("[[group]]\npath='a/b/c'\nweight=10000\n[[group]]\npath='a'\nweight=1\n[[group]]\npath='d'\n").unwrap();
    assert_eq!(s.group_paths(), ["/", "/a", "/a/b", "/a/b/c", "/d"]);
    let parents: Vec<_> = (0..6).map(|i| s.group_parent(i)).collect();
    assert_eq!(parents, [None, Some(0), Some(1), Some(2), Some(0), None]);
    let page = s.boot_page(POLICY);
    let shares: Vec<_> = page.groups[..5].iter().map(|g| g.shares).collect();
    assert_eq!(shares, [1024, 10, 1024, 102_400, 1024]);
}

#[test]
fn copies_of_a_task_pair_with_copies_of_its_partner_and_of_its_group() {
    let s = load(
        "[[group]]\npath='pod'\ncount=2\n\
         [[task]]\nname='a'\ncount=2\nburn='1us'\nwakes='b'\ngroup='pod'\n\
         [[task]]\nname='b'\ncount=2\nburn='1us'\nwakes='c'\nblocked=true\n\
         [[task]]\nname='c'\nburn='1us'\nwakes='a.1'\nblocked=true\ngroup='pod.1'\n\
         [[irq]]\nname='nic'\nrate='1kHz'\ncost='1us'\nwakes='b.1'\nbalance=true\n",
    )
    .unwrap();
    assert_eq!(s.task_names(), ["a.0", "a.1", "b.0", "b.1", "c"]);
    let page = s.boot_page(POLICY);
    let wakes: Vec<_> = page.tasks[..5].iter().map(|t| t.wakes).collect();
    assert_eq!(wakes, [4, 5, 6, 6, 3]);
    let groups: Vec<_> = (0..8).map(|pid| s.task_group(pid)).collect();
    assert_eq!(groups, [None, None, Some(1), Some(2), Some(0), Some(0), Some(2), None]);
    assert_eq!(page.irqs[1], IrqSpec { wakes: 5, flags: wire::IRQ_BALANCE });
    assert_eq!(page.irqs[0], IrqSpec { wakes: wire::NONE, flags: 0 });
    assert_eq!(page.validate(), Ok(POLICY));
    let mut seeds: Vec<_> = page.tasks[..5].iter().map(|t| t.seed).collect();
    seeds.dedup();
    assert_eq!(seeds.len(), 5);
    assert_eq!(load(&s.to_toml()), Ok(Scenario { name: "f.toml".into(), ..s }));
}

#[test]
fn nice_values_are_the_kernels_weights() {
    for (nice, weight) in [(-20, 88761), (-1, 1277), (0, 1024), (1, 820), (19, 15)] {
        let s = load(&format!("[[task]]\nname='t'\nburn='1us'\nnice={nice}")).unwrap();
        assert_eq!(s.tasks[0].weight, weight);
    }
}

#[test]
fn overrides_win_in_order_and_make_missing_tables() {
    let text = "seed = 3\n[[irq]]\nname='nic'\nrate='1kHz'\ncost='1us'\n";
    let sets = [
        "irq.0.rate=20kHz",
        "irq[0].rate=30kHz",
        "cpu.offline_at=900ms",
        "seed = 18446744073709551615",
        "irq.nic.cost={min='1us',max='3us'}",
        "irq.nic.cost.max=2us",
        "checks.skip=['irq_ledger']",
        "name=other",
    ];
    let s = load_with(text, &sets).unwrap();
    assert_eq!(rate(&s), "30kHz");
    assert_eq!(s.irqs[0].cost, Cost::Uniform { min: 1_000, max: 2_000 });
    assert_eq!((s.offline_ns, s.seed, s.name.as_str()), (Some(900_000_000), u64::MAX, "other"));
    assert!(!s.checks.runs("irq_ledger") && s.checks.runs("conservation"));
    assert_eq!(s.boot_page(POLICY).offline_ns, 900_000_000);
}

#[test]
fn a_check_is_asked_for_in_also_or_in_only_and_kept_when_the_scenario_is_written() {
    let s = load("[checks]\nskip=['conservation']\nalso=['irq_ledger']").unwrap();
    assert!(s.checks.asks_for("irq_ledger") && !s.checks.asks_for("clock_task_monotonic"));
    assert!(s.checks.runs("irq_ledger") && !s.checks.runs("conservation"));
    assert_eq!(load(&s.to_toml()), Ok(s));
    let s = load("[checks]\nonly=['irq_ledger']").unwrap();
    assert!(s.checks.asks_for("irq_ledger") && !s.checks.runs("conservation"));
}

/// The built-in texts, whose lines and values are shuffled into others.
fn mutated() -> impl Strategy<Value = String> {
    let lines: Vec<&str> = BUILTIN.iter().flat_map(|b| b.text.lines()).collect();
    let values = prop::sample::select(vec![
        "0",
        "1",
        "-1",
        "nan",
        "inf",
        "0.5",
        "true",
        "''",
        "'1s'",
        "'-300ms'",
        "'20kHz'",
        "{}",
        "[]",
        "{ min = '1us', max = '2us' }",
        "{ mean = '1us' }",
        "18446744073709551616",
        "'4611686018427387904ns'",
        "'burst'",
        "'poisson'",
        "'irq'",
        "'api'",
        "'web/api'",
        "2026-01-01",
        "\"\\u0000\"",
        "['conservation']",
    ]);
    let line = prop::sample::select(lines);
    let changed = (line.clone(), values).prop_map(|(line, value)| match line.split_once('=') {
        Some((key, _)) => format!("{key}= {value}"),
        None => line.to_owned(),
    });
    let edit = prop_oneof![line.prop_map(str::to_owned), changed];
    (
        prop::sample::select(BUILTIN),
        prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), edit), 0..4),
    )
        .prop_map(|(builtin, edits)| {
            let mut lines: Vec<String> = builtin.text.lines().map(str::to_owned).collect();
            for (at, insert, line) in edits {
                let at = at.index(lines.len());
                if insert { lines.insert(at, line) } else { lines[at] = line }
            }
            lines.join("\n")
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_text_is_loaded_or_refused(text in any::<String>(), set in any::<String>(), value in any::<String>()) {
        let _ = load(&text);
        let _ = load_with("[[irq]]\nname='a'", &[&set, &format!("irq[0].{value}={set}"), &format!("{set}={value}")]);
    }

    #[test]
    fn a_mutated_scenario_is_refused_or_sound_and_writes_itself(text in mutated()) {
        match load(&text) {
            Ok(s) => {
                prop_assert_eq!(s.boot_page(POLICY).validate(), Ok(POLICY));
                prop_assert_eq!(s.task_names().len(), usize::from(s.boot_page(POLICY).nr_tasks));
                prop_assert_eq!(load(&s.to_toml()), Ok(s.clone()), "{}", s.to_toml());
                let mut last = 0;
                for event in crate::schedule::Schedule::new(&s, s.seed).take(2_000) {
                    prop_assert!(event.at_ns >= last && event.at_ns < s.duration_ns);
                    last = event.at_ns;
                }
            }
            Err(e) => {
                prop_assert!(!e.key.is_empty() || matches!(*e.problem, Problem::Syntax { .. }), "{}", e);
                let lines = text.lines().count() as u32;
                prop_assert!(matches!(&e.place, Place::Line { line, .. } if (1..=lines).contains(line)), "{}", e);
            }
        }
    }

    #[test]
    fn an_override_equals_the_same_line_in_the_file(khz in 1..50_u32, seed in any::<u64>()) {
        let text = |rate: &str, seed: u64| format!("seed={seed}\n[[irq]]\nname='a'\nrate='{rate}'\ncost='1us'\n");
        let sets = [format!("irq.a.rate={khz}kHz"), format!("seed={seed}")];
        let by_set = load_with(&text("1Hz", 1), &[&sets[0], &sets[1]]);
        prop_assert_eq!(by_set, load(&text(&format!("{khz}kHz"), seed)));
    }
}
