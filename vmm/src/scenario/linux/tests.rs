use guest_model::policy::{Fault, Policy, PsiZeroDelta, RateLimitClock};
use guest_model::wire::{FIRST_PID, TASK_BLOCKED, TASK_FORK};
use proptest::prelude::*;

use super::super::BUILTIN;
use super::*;

const POLICY: Policy = Policy {
    rate_limit_clock: RateLimitClock::RqClock,
    psi_zero_delta: PsiZeroDelta::Skip,
    fault: Fault::None,
};

fn load(text: &str) -> Scenario {
    Scenario::load(text, "f.toml", &[], &[]).unwrap_or_else(|e| panic!("{e}"))
}

fn refusal(text: &str) -> String {
    load(text).linux_plan().unwrap_err().to_string()
}

fn irq(name: &str, more: &str) -> String {
    format!("[[irq]]\nname='{name}'\nrate='1kHz'\ncost='1us'\n{more}\n")
}

#[test]
fn every_builtin_scenario_is_a_plan_unless_the_cpu_goes_offline() {
    for b in BUILTIN {
        let scenario = Scenario::load(b.text, b.name, &[], crate::check::NAMES).unwrap();
        match scenario.linux_plan() {
            Ok(made) => {
                assert_eq!(made.plan.validate(), Ok(()), "{}", b.name);
                assert_eq!(made.devices.len(), scenario.irqs.len());
            }
            Err(e) => {
                assert!(e.to_string().contains("offline") && b.text.contains("offline_at"), "{e}")
            }
        }
    }
}

/// The same tasks, draws and groups on both guests.
#[test]
fn the_plan_says_what_the_boot_page_says() {
    for b in BUILTIN {
        let mut scenario = Scenario::load(b.text, b.name, &[], crate::check::NAMES).unwrap();
        scenario.offline_ns = None;
        let (plan, page) = (scenario.linux_plan().unwrap().plan, scenario.boot_page(POLICY));
        assert_eq!((plan.nr_tasks, plan.nr_groups), (page.nr_tasks, page.nr_groups));
        let pid = |index: u16| if index == NONE { NONE } else { index + FIRST_PID };
        for (ours, theirs) in plan.tasks.iter().zip(&page.tasks).take(plan.nr_tasks.into()) {
            let of_plan = (
                [ours.burn_min_ns, ours.burn_max_ns, ours.sleep_min_ns, ours.sleep_max_ns],
                [ours.start_ns, ours.seed],
                NICE_WEIGHTS[(ours.nice + 20) as usize],
                [ours.group, pid(ours.wakes), ours.flags],
            );
            let of_page = (
                [theirs.burn_min_ns, theirs.burn_max_ns, theirs.sleep_min_ns, theirs.sleep_max_ns],
                [theirs.start_ns, theirs.seed],
                theirs.weight,
                [theirs.group, theirs.wakes, theirs.flags],
            );
            assert_eq!(of_plan, of_page, "{}", b.name);
        }
        let parents = |nr: u16| 1..usize::from(nr);
        for i in parents(plan.nr_groups) {
            assert_eq!(plan.groups[i].parent, page.groups[i].parent);
        }
    }
}

#[test]
fn groups_keep_the_last_part_of_their_path_and_their_weight() {
    let long = "x".repeat(251);
    let s = load(&format!(
        "[[group]]\npath='a/b.c'\nweight=10000\n[[group]]\npath='a/{long}.y'\nweight=1\n\
         [[task]]\nname='t'\ngroup='a'\nburn='1us'\n"
    ));
    let plan = s.linux_plan().unwrap().plan;
    let groups: Vec<_> = plan.groups[1..4]
        .iter()
        .map(|g| (String::from_utf8(g.name().unwrap().to_vec()).unwrap(), g.weight, g.parent))
        .collect();
    let expected = [("a".into(), 100, 0), ("b.c".into(), 10_000, 1), (format!("{long}.y"), 1, 1)];
    assert_eq!(groups, expected);
    assert_eq!(plan.tasks[0].group, 1);
}

#[test]
fn lines_take_the_next_device_of_the_kind_they_need() {
    let text = [
        "[[task]]\nname='t'\nburn='1us'\nblocked=true\nfork=true\ncount=2\n".to_owned(),
        irq("plain", "balance=true"),
        irq("soft", "softirq=0.5"),
        irq("waker", "wakes='t.1'"),
        irq("other", ""),
        irq("another", "wakes='t.0'\nsoftirq=1.0"),
    ]
    .concat();
    let made = load(&text).linux_plan().unwrap();
    use DeviceKind::{Entropy, Net};
    let devices: Vec<_> = made.devices.iter().map(|d| (d.kind, d.index)).collect();
    assert_eq!(devices, [(Entropy, 0), (Net, 0), (Net, 1), (Entropy, 1), (Net, 2)]);
    assert_eq!((made.plan.nr_nets, made.plan.net_wakes), (3, [NONE, 1, 0, NONE]));
    assert_eq!(made.plan.tasks[1].flags, TASK_FORK | TASK_BLOCKED);
    let notes: Vec<_> = made.notes.iter().map(Note::to_string).collect();
    assert_eq!(
        notes,
        [
            "tick.rate: the kernel's CONFIG_HZ decides",
            "policy: the kernel has one variant, its own",
            "irq.plain.balance: the kernel decides when it balances",
        ]
    );
}

#[test]
fn more_lines_than_devices_are_refused() {
    let lines = |n: usize, more: &str| -> String {
        (0..n).map(|i| irq(&format!("l{i}{}", more.len()), more)).collect()
    };
    assert!(load(&(lines(5, "") + &lines(4, "softirq=0.1"))).linux_plan().is_ok());
    assert_eq!(
        refusal(&lines(6, "")),
        "6 interrupt lines have neither `softirq` nor `wakes`, and a Linux guest has 5 devices for them"
    );
    assert_eq!(
        refusal(&lines(7, "softirq=0.1")),
        "7 interrupt lines have `softirq` or `wakes`, and a Linux guest has 4 devices for them"
    );
}

#[test]
fn a_weight_that_no_nice_value_has_is_refused_with_its_neighbours() {
    let rows = [
        (3, "nearest: nice = 19, which is 15"),
        (16, "nearest: nice = 19, which is 15, or nice = 18, which is 18"),
        (1000, "nearest: nice = 1, which is 820, or nice = 0, which is 1024"),
        (1 << 18, "nearest: nice = -20, which is 88761"),
    ];
    for (weight, nearest) in rows {
        let text = format!("[[task]]\nname='t'\nburn='1us'\nweight={weight}\ncount=2");
        let expected = format!(
            "task `t`: weight {weight} is that of no nice value, which Linux needs; {nearest}"
        );
        assert_eq!(refusal(&text), expected);
    }
    for (i, weight) in NICE_WEIGHTS.iter().enumerate() {
        let plan = load(&format!("[[task]]\nname='t'\nburn='1us'\nweight={weight}")).linux_plan();
        assert_eq!(i16::try_from(i).unwrap() - 20, plan.unwrap().plan.tasks[0].nice);
    }
}

#[test]
fn a_cpu_that_goes_offline_during_the_run_is_refused() {
    let text = |at: &str| format!("duration='10ms'\n[cpu]\noffline_at='{at}'");
    assert_eq!(
        refusal(&text("9999us")),
        "cpu.offline_at: a Linux guest has one CPU, which cannot go offline at 9.999ms; leave the key \
         out or run the bundled guest"
    );
    assert!(load(&text("10ms")).linux_plan().is_ok());
}

#[test]
fn the_most_tasks_and_groups_fit() {
    let text =
        "[[group]]\npath='g'\ncount=319\n[[task]]\nname='t'\nburn='1us'\nsleep='1us'\ncount=318\n";
    let plan = load(text).linux_plan().unwrap().plan;
    assert_eq!((plan.nr_groups, plan.nr_tasks), (320, 318));
    let more = |what: &str, from: &str, to: &str| {
        let e = load(&text.replace(from, to)).linux_plan().unwrap_err();
        assert!(e.to_string().starts_with(what), "{e}");
    };
    more("321 groups are too many for a Linux guest; at most 320", "count=319", "count=320");
    more("319 tasks are too many for a Linux guest; at most 318", "count=318", "count=319");
}

#[test]
fn a_scenario_changed_by_hand_gives_an_error_not_a_wrong_plan() {
    let mut s = load("[[group]]\npath='a/b'\n[[task]]\nname='t'\nburn='1us'");
    s.groups[2].path = "a/..".to_owned();
    assert_eq!(s.linux_plan(), Err(LinuxPlanError::GroupName { path: "a/..".to_owned() }));
    s.groups[2].path = "b".to_owned();
    s.tasks[0].burn.min_ns = 0;
    assert_eq!(s.linux_plan(), Err(LinuxPlanError::Plan(PlanError::Task(0))));
}

proptest! {
    #[test]
    fn nearest_nice_values_are_the_two_around_a_weight(weight in 3u32..=1 << 18) {
        match nice(weight) {
            Ok(n) => prop_assert_eq!(NICE_WEIGHTS[(n + 20) as usize], weight),
            Err(Nearest { below, above }) => {
                prop_assert!(below.is_none_or(|(_, w)| w < weight));
                prop_assert!(above.is_none_or(|(_, w)| w > weight));
                match (below, above) {
                    (Some((b, _)), Some((a, _))) => prop_assert_eq!(b, a + 1),
                    (Some((b, _)), None) => prop_assert_eq!(b, -20),
                    (None, Some((a, _))) => prop_assert_eq!(a, 19),
                    (None, None) => prop_assert!(false),
                }
            }
        }
    }
}
