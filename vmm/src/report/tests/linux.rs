//! A crafted Linux guest's outcome: what the bundled kernel did, seen as a Linux kernel is.

use super::*;
use crate::check::CheckId;
use crate::linux::UserProbe;
use crate::run::LinuxOutcome;

const BANNER: &str =
    "Linux version 7.3.4-rqscope (build@host) (gcc 14.2.0) #1 SMP PREEMPT_DYNAMIC Thu Jan 1";
const INLINED: &str = "cannot probe update_tg_load_avg of vmlinux: it has no such function; was it inlined into its callers?";

fn linux(name: &str, sets: &[&str], lacks: &[(CheckId, &str)]) -> RunOutcome {
    let sets: Vec<&str> = [sets, &["duration=60ms", "policy.compare=[]"]].concat();
    let mut o = run(name, &sets, Planted::default());
    o.sets.pop();
    o.guest = GuestKind::Linux;
    o.host_kvm = "svm";
    let pass = &mut o.passes[0];
    pass.costs = None;
    for c in pass.checks.iter_mut().filter(|c| lacks.iter().any(|(id, _)| *id == c.id)) {
        (c.status, c.evaluated) = (Status::NotBuiltIn, 0);
    }
    let text = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    o.linux = Some(LinuxOutcome {
        banner: BANNER.into(),
        args: [
            &["--kernel", "my kernels/vmlinux"][..],
            &["--cmdline", "-- single"],
            &["--memory", "256"],
        ]
        .map(text)
        .into(),
        rate_limit_seen: true,
        notes: o.scenario.linux_plan().unwrap().notes.iter().map(ToString::to_string).collect(),
        lacks: lacks.iter().map(|(id, why)| (*id, (*why).to_owned())).collect(),
        clock_readers: vec![
            ("irqtime_account_irq".into(), 5_000),
            ("update_rq_clock".into(), 900),
            ("psi_account_irqtime".into(), 80),
        ],
        probes: vec![(UserProbe { symbol: "f".into(), args: text(&["cfs_rq", "se"]) }, 1_234)],
        groups: o.scenario.group_paths(),
        irqs: (0..o.scenario.irq_names().len() as u8).map(|line| line * 9).collect(),
        has_own_workload: false,
    });
    o
}

/// All that a kernel with nothing to see of it lacks.
fn lacking() -> Vec<(CheckId, &'static str)> {
    use CheckId::*;
    let tg = [TgRateLimit, TgTolerance, TgPublished, RqClockFresh].map(|id| (id, INLINED));
    let psi = [PsiCalled, PsiZero, PsiWrites, PsiIrqLedger, PsiDeltaNotNegative]
        .map(|id| (id, "the kernel is built without CONFIG_PSI"));
    [&tg[..], &psi, &[(Costs, "a Linux kernel keeps no counters of what its rules cost")]].concat()
}

fn flat(page: &str) -> String {
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_page_names_the_kernel_and_calls_its_rules_observed() {
    let o = linux("psi-zero-delta", &[], &[]);
    let text = plain(&o);
    assert_fits(&text);
    let title = flat(text.split("\nInjected").next().unwrap());
    for part in [
        "seed 1 · guest Linux 7.3.4-rqscope · host kvm svm · 60ms of virtual time",
        "psi skip_zero_delta, as observed",
        "rate limit on rq_clock, as observed",
        "does not apply: tick.rate: the kernel's CONFIG_HZ decides; policy: ",
    ] {
        assert!(title.contains(part), "{part}\n{title}");
    }
    assert!(!title.contains("· tick") && !title.contains("compared with"), "{title}");
    assert!(text.contains("psi_account_irqtime()  skip_zero_delta, as observed"));
    assert!(!text.contains("rq_clock pass") && !text.contains("* rq_clock"), "{text}");
    assert!(text.contains("sched_clock_cpu()  calls by caller; one that"));
    assert!(text.contains("  f(cfs_rq, se)  1,234"));
    assert!(!text.contains("more updates"));
}

#[test]
fn a_banner_that_is_not_linux_s_own_is_shown_as_it_is() {
    let version = |banner: &str| super::super::linux::kernel_version(banner);
    assert_eq!(version(BANNER), "Linux 7.3.4-rqscope");
    assert_eq!(version("Linux version"), "Linux, Linux version");
    assert_eq!(version("x\x1b[2J\n"), r"Linux, x\u{1b}[2J");
    assert!(version(&"9".repeat(500)).chars().count() < 60);
}

#[test]
fn the_command_repeats_the_kernel_and_its_options_for_a_shell() {
    let o = linux("psi-zero-delta", &["irq[0].rate=2kHz"], &[]);
    let expected = "rqscope run psi-zero-delta --kernel 'my kernels/vmlinux' '--cmdline=-- single' \
                    --memory 256 --seed 1 --set 'irq[0].rate=2kHz' --set duration=60ms";
    assert_eq!(repeat(&o), expected);
    assert_eq!(json(&o)["repeat"], expected);
    assert!(flat(&plain(&o).replace("\\\n", "")).ends_with(&format!("repeat {expected}")));
}

#[test]
fn what_a_kernel_lacks_is_unavailable_and_never_zero() {
    let o = linux("psi-zero-delta", &[], &lacking());
    let (text, v) = (plain(&o), json(&o));
    assert_fits(&text);
    let all = flat(&text);
    for part in [
        "psi not built in",
        "psi_account_irqtime() not built in the kernel is built without CONFIG_PSI",
        "update_tg_load_avg() not seen cannot probe update_tg_load_avg of vmlinux",
        "psi_irq_time unavailable PSI is not built in",
        "costs_match_calls is not built in: a Linux kernel keeps no counters",
    ] {
        assert!(all.contains(part), "{part}\n{text}");
    }
    for absent in ["seqcount writes", "PSI IRQ time by group", "stale by", "reached the delta"] {
        assert!(!text.contains(absent), "{absent}\n{text}");
    }
    assert!(text.contains("\n\n  tg_load_avg_rate_limit, "), "{text}");
    let tg = "tg_load_avg_rate_limit, tg_load_avg_tolerance, tg_load_avg_published_when_due, \
              rq_clock_fresh are not built in: cannot probe";
    assert!(all.contains(tg), "{text}");

    assert!(v["rq"][0]["psi_irq_time_ns"].is_null());
    for (key, value) in v["psi_account_irqtime"].as_object().unwrap() {
        assert!(value.is_null(), "{key}");
    }
    for (key, value) in
        v["psi_groups"].as_array().unwrap().iter().flat_map(|g| g.as_object().unwrap())
    {
        assert_eq!(value.is_null(), key != "path", "{key}");
    }
    for (key, value) in v["update_tg_load_avg"].as_object().unwrap() {
        assert_eq!(value.is_null(), !["clock", "groups"].contains(&key.as_str()), "{key}");
    }
    let groups = v["update_tg_load_avg"]["groups"].as_array().unwrap();
    assert!(!groups.is_empty());
    for (key, value) in groups.iter().flat_map(|g| g.as_object().unwrap()) {
        assert_eq!(value.is_null(), key != "path", "{key}");
    }
    assert_eq!(v["linux"]["lacks"][0]["check"], "tg_load_avg_rate_limit");
    assert_eq!(v["linux"]["lacks"][0]["reason"], INLINED);
}

#[test]
fn a_rule_that_was_not_seen_is_not_called_observed() {
    let o = linux("psi-zero-delta", &[], &[(CheckId::PsiZero, "the kernel met no zero delta")]);
    let (text, v) = (plain(&o), json(&o));
    assert_fits(&text);
    assert!(text.contains("psi at a zero delta not observed"), "{text}");
    assert!(text.contains("psi_account_irqtime()  what it does at a zero delta was not observed"));
    assert!(!text.contains("skip_zero_delta"), "{text}");
    assert!(v["psi_account_irqtime"]["policy"].is_null());
    assert_ne!(v["psi_account_irqtime"]["total"], 0);
}

#[test]
fn clock_reads_of_a_kernel_are_those_that_were_seen_or_unavailable() {
    let mut o = linux("psi-zero-delta", &[], &[]);
    let reads = |o: &RunOutcome| {
        let v = json(o);
        let of = |key: &str| v[key]["clock_reads"].as_u64();
        (of("psi_account_irqtime"), of("update_tg_load_avg"))
    };
    // Nobody reads the clock in update_tg_load_avg(), which the limit on rq_clock explains.
    assert_eq!(reads(&o), (Some(80), Some(0)));
    assert!(flat(&plain(&o)).contains(" clock reads 80 cgroup levels walked "));
    o.passes[0].policy.rate_limit_clock = guest_model::policy::RateLimitClock::SchedClockCpu;
    assert_ne!(o.passes[0].measured.tg.calls, 0);
    assert_eq!(reads(&o), (Some(80), None));
    let readers = |o: &mut RunOutcome, readers: &[(&str, u64)]| {
        let owned = readers.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        o.linux.as_mut().unwrap().clock_readers = owned;
    };
    readers(&mut o, &[("update_tg_load_avg", 7)]);
    assert_eq!(reads(&o), (None, Some(7)));
    // Calls that return before they would read it do not.
    o.passes[0].measured.psi_table.reached_delta = 0;
    assert_eq!(reads(&o), (Some(0), Some(7)));
    readers(&mut o, &[]);
    assert_eq!(reads(&o), (None, None));
    assert!(plain(&o).contains("sched_clock_cpu()  no call was seen"));
}

#[test]
fn of_many_clock_readers_the_first_six_are_listed_and_the_rest_summed() {
    let mut o = linux("psi-zero-delta", &[], &[]);
    let readers = (0..10).map(|i| (format!("reader_{i}"), 100 - i)).collect();
    o.linux.as_mut().unwrap().clock_readers = readers;
    let text = plain(&o);
    let section: Vec<&str> =
        text.split("sched_clock_cpu()").nth(1).unwrap().lines().skip(1).take(8).collect();
    assert_eq!(section[0], "  reader_0  100   10.5%");
    assert!(section[5].starts_with("  reader_5"));
    assert_eq!(section[6], "  … 4 more  370   38.7%");
    assert_eq!(section[7], "  all       955  100.0%");
}

#[test]
fn skipped_updates_of_the_clock_are_told_with_what_they_mean() {
    let mut o = linux("psi-zero-delta", &[], &[]);
    let acc = &mut o.passes[0].measured.accounted;
    (acc.updates_skipped, acc.skipped_behind_max_ns) = (12, 2_500);
    let text = plain(&o);
    assert_fits(&text);
    let said = "12 more updates were skipped by the scheduler, which takes the clock as a wake-up has \
                just updated it (RQCF_ACT_SKIP); it was up to 2,500 ns (2.500 us) behind guest time";
    assert!(flat(&text).contains(said), "{text}");
    o.passes[0].measured.accounted.skipped_behind_max_ns = 0;
    assert!(flat(&plain(&o)).contains("(RQCF_ACT_SKIP); it was not behind guest time then"));
    o.passes[0].measured.accounted.skipped_behind_max_ns = 2_500;
    let v = json(&o);
    assert_eq!(
        (number(&v, "linux.updates_skipped"), number(&v, "linux.skipped_behind_max_ns")),
        (12, 2_500)
    );
}

#[test]
fn a_line_that_the_guest_disabled_is_told_on_every_guest() {
    let mut o = linux("psi-zero-delta", &[], &[]);
    let line = &mut o.passes[0].ledger.lines[1];
    (line.raised, line.handled, line.coalesced) = (100_000, 99_000, 999);
    line.disabled_at_ns = Some(41_000_000);
    let said = "Line nic (IRQ 9) was disabled by the guest at 41,000,000 ns (41.000 ms): of 100,000 \
                interrupts in the run 99,000 were handled, 999 were merged with one that waited, and 1 \
                waits at the end.";
    assert_eq!(findings::notes(&o), [said]);
    assert!(flat(&plain(&o)).contains(said));
    let v = json(&o);
    let line = &v["injected"]["lines"][1];
    assert_eq!((&line["irq"], &line["disabled_at_ns"]), (&9.into(), &41_000_000.into()));
    o.linux = None;
    o.guest = GuestKind::Firmware;
    let notes = findings::notes(&o);
    assert!(notes[0].starts_with("Line nic was disabled by the guest at "), "{notes:?}");
    assert!(json(&o)["injected"]["lines"][1]["irq"].is_null());
}

#[test]
fn groups_and_tasks_of_a_user_s_initrd_are_not_taken_for_the_scenario_s() {
    let mut o = linux("psi-zero-delta", &[], &[]);
    let pass = &mut o.passes[0];
    pass.measured.psi_irq_ns.truncate(2);
    pass.measured.tg_groups.truncate(2);
    pass.psi.truncate(2);
    let guest = o.linux.as_mut().unwrap();
    (guest.groups, guest.has_own_workload) = (vec!["/".into(), "/init.scope".into()], true);
    let (text, v) = (plain(&o), json(&o));
    assert_fits(&text);
    assert!(flat(&text).contains("group, task: the initrd has its own"));
    assert!(text.contains("  /init.scope") && !text.contains("/web"), "{text}");
    assert_eq!(v["psi_groups"].as_array().unwrap().len(), 2);
    assert_eq!(v["update_tg_load_avg"]["groups"][0]["path"], "/init.scope");
    let names: Vec<&str> =
        v["tasks"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["swapper", "ksoftirqd"]);
}

#[test]
fn a_run_that_breaks_off_and_a_check_that_fails_speak_of_no_passes_by_clock() {
    let mut o = linux("psi-zero-delta", &[], &[]);
    o.passes[0].stopped = Some((Asked::ByError, "the guest's kernel panicked".into()));
    let check = &mut o.passes[0].checks[0];
    check.status = Status::Fail;
    check.failures = 1;
    check.first = Some(crate::check::Failure { at_ns: 7, detail: "one is two".into() });
    let text = plain(&o);
    assert_fits(&text);
    assert!(text.contains("first at 7 ns: one is two"), "{text}");
    assert!(text.contains("The run stopped at "), "{text}");
    assert!(!text.contains("rq_clock pass"), "{text}");
}

#[test]
fn what_the_guest_says_of_itself_cannot_steer_the_terminal() {
    let odd = "\x1b[2J\r\n\u{202e}\u{9b}31m".repeat(20);
    let mut o = linux(
        "psi-zero-delta",
        &[],
        &[(CheckId::TgPublished, &odd), (CheckId::PsiIrqLedger, &odd)],
    );
    let guest = o.linux.as_mut().unwrap();
    guest.banner = odd.clone();
    guest.notes = vec![odd.clone()];
    guest.groups[1] = odd.clone();
    guest.clock_readers = vec![(odd.clone(), 1), (odd.clone(), 2)];
    guest.probes[0].0.symbol = odd.clone();
    assert_fits(&plain(&o));
    o.linux.as_mut().unwrap().args = vec![vec!["--kernel".into(), odd]];
    assert!(plain(&o).lines().all(|l| !l.contains(char::is_control)));
}

/// For the test of the documented keys.
pub(super) fn with_everything() -> RunOutcome {
    linux("psi-zero-delta", &[], &lacking())
}

#[test]
fn a_rate_limit_whose_clock_was_not_seen_is_not_called_observed() {
    let mut o = with_everything();
    o.linux.as_mut().unwrap().rate_limit_seen = false;
    let page = flat(&plain(&o));
    assert!(page.contains("rate limit's clock not observed"), "{page}");
}

#[test]
fn a_boot_that_nobody_waited_for_is_reported_without_what_was_not_seen() {
    let mut o = with_everything();
    o.passes.clear();
    let linux = o.linux.as_mut().unwrap();
    linux.banner.clear();
    linux.lacks.clear();
    linux.args.push(vec!["--no-snapshot".into()]);
    let page = flat(&plain(&o));
    assert!(page.contains("Linux, not booted") && page.contains("psi not observed"), "{page}");
    assert!(page.contains("--no-snapshot") && !page.contains("--guest"), "{page}");
}
