//! Real kernels against guest-model, transition by transition; and that a wrong one would be noticed.

use super::{NEWEST, command_cached, kernel, kernels};
use crate::program::{Running, number, text};

const RULES: [&str; 6] = [
    "update_rq_clock",
    "irqtime_account_irq",
    "psi_account_irqtime",
    "update_irq_load_avg",
    "update_tg_load_avg",
    "update_load_avg",
];

#[test]
fn every_kernel_makes_every_transition_of_random_runs_as_guest_model_does() {
    for linux in kernels() {
        let mut transitions = 0;
        for seed in ["seed=1", "seed=2"] {
            let json = linux.json("conformance", &[seed], 0);
            let found = &json["linux"]["conformance"];
            assert_eq!(number(found, "/differences"), 0, "{found:#}");
            assert_eq!(found["first_difference"], serde_json::Value::Null);
            for (i, rule) in RULES.iter().enumerate() {
                let row = &found["rules"][i];
                assert_eq!(text(row, "/rule"), *rule);
                assert_eq!(row["unavailable"], serde_json::Value::Null, "{rule}");
                assert!(number(row, "/transitions") > 50, "{} {rule}: {row:#}", linux.version());
            }
            transitions += number(found, "/transitions");
        }
        assert!(transitions > 10_000, "{}: {transitions}", linux.version());
    }
}

#[test]
fn faults_in_the_replay_and_in_the_layout_are_all_noticed() {
    let Some(linux) = kernel(NEWEST) else { return };
    let names = [
        "steal_twice",
        "steal_carried",
        "irq_dropped",
        "hardirq_not_accounted",
        "ksoftirqd_accounted",
        "clock_task_unpaused",
        "pelt_on_wall_clock",
        "rate_limit_wrong_clock",
        "rate_limit_edge",
        "publish_lost",
        "psi_wrong_group",
        "psi_no_ancestors",
        "psi_zero_delta_inverted",
        "removed_ignored",
        "not_propagated",
        "attached_twice",
        "decayed_ahead",
        "rq.clock_task+8",
        "rq.prev_steal_time_rq-8",
        "cfs_rq.tg_load_avg_contrib-8",
        "psi_group_cpu.times+4",
    ];
    let kernel = linux.file("vmlinux");
    let args = ["mutants", "--kernel", &kernel].into_iter().chain(names);
    let done = Running::start(&mut command_cached(args)).wait().ends_with(0);
    assert!(
        done.stdout.contains(&format!("{0} mutants, {0} killed, 0 survive", names.len())),
        "{}",
        done.stdout
    );
}
