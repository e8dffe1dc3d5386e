//! Initial file systems of the user's own.

use super::init::Init;
use super::{Kernel, NEWEST, checks_are, kernel};
use crate::program::{Done, Scratch, number, text};
use crate::repeatability::the_books_balance;

/// Interrupts on two entropy devices, and nothing that PID 1 would have to do.
const LINES: &str = "\
[[irq]]
name = \"rx\"
rate = \"2kHz\"
cost = \"20us\"
[[irq]]
name = \"tx\"
rate = \"2kHz\"
cost = \"20us\"
";

/// Runs with `init` as PID 1.
fn run(linux: &Kernel, init: Init, more: &[&str]) -> Done {
    let scratch = Scratch::new();
    let initrd = scratch.file("initrd", init.pack());
    let scenario = scratch.file("lines.toml", LINES);
    let args = ["--no-snapshot", "--set=duration=50ms", "--format=json", "--initrd", &initrd];
    let args: Vec<&str> = args.iter().chain(more).copied().collect();
    linux.run(&scenario, &args)
}

#[test]
fn an_initrd_that_says_ready_on_the_console_runs_and_is_judged() {
    let Some(linux) = kernel(NEWEST) else { return };
    let json = run(&linux, Init::new().ready().burns_for_ever(), &[]).ends_with(0).json();
    assert_eq!(text(&json, "/verdict"), "pass");
    assert_eq!(number(&json, "/elapsed_ns"), 50_000_000);
    assert!(number(&json, "/injected/lines/1/handled") >= 98, "{json:#}");
    assert_eq!(number(&json, "/wall_time/idle_ns"), 0);
    checks_are(&json, "pass", &["irq_accounted", "conservation", "psi_irq_ledger"]);
    the_books_balance(&json);
}

#[test]
fn an_initrd_that_only_sleeps_runs_and_psi_which_has_no_tick_to_charge_at_is_not_judged() {
    let Some(linux) = kernel(NEWEST) else { return };
    let json = run(&linux, Init::new().ready().sleeps_for_ever(), &[]).ends_with(0).json();
    assert_eq!(text(&json, "/verdict"), "pass");
    assert!(number(&json, "/injected/lines/1/handled") >= 98, "{json:#}");
    checks_are(&json, "pass", &["irq_accounted", "conservation"]);
    checks_are(&json, "not-built-in", &["psi_irq_ledger"]);
    the_books_balance(&json);
}

#[test]
fn a_task_that_spins_is_named_and_not_waited_for() {
    let Some(linux) = kernel(NEWEST) else { return };
    let init = Init::new().called("spinner").ready().sleeps(20_000_000).spins();
    let done = run(&linux, init, &["--watchdog=2s"]).ends_with(2);
    done.says("spinner").says("pid 1");
}

#[test]
fn an_initrd_that_never_says_ready_is_not_waited_for() {
    let Some(linux) = kernel(NEWEST) else { return };
    let init = Init::new().says("still thinking").sleeps_for_ever();
    let done = run(&linux, init, &["--boot-timeout=20s"]).ends_with(2);
    done.says("still thinking");
}

#[test]
fn a_kernel_that_panics_is_quoted() {
    let Some(linux) = kernel(NEWEST) else { return };
    // Before the run, and in it.
    let early = Init::new().says("giving up").exits(7);
    let late = Init::new().ready().says("giving up").sleeps(20_000_000).exits(7);
    for init in [early, late] {
        let done = run(&linux, init, &[]).ends_with(2);
        done.says("Attempted to kill init").says("giving up");
    }
}

#[test]
fn a_line_that_the_guest_disables_is_noticed() {
    // machine-emulator#301. The devices are virtio0 to virtio8, network devices first. The kernel's own
    // thread reads from the first entropy device, the fifth of all; the scenario's second line is the
    // second's.
    let Some(linux) = kernel(NEWEST) else { return };
    let init = Init::new()
        .mounts_sys()
        .ready()
        .burns(100_000_000)
        .writes("virtio5", "/sys/bus/virtio/drivers/virtio_rng/unbind")
        .burns_for_ever();
    let done = run(&linux, init, &["--set=duration=200ms"]);
    assert_ne!(done.code, Some(3), "{}", done.stderr);
    let json = done.json();
    let n = |pointer: &str| number(&json, pointer);
    assert!(n("/injected/lines/1/handled") >= 398, "{json:#}");
    let disabled = n("/injected/lines/2/disabled_at_ns");
    assert!(disabled > 0 && disabled < 200_000_000, "{disabled}");
    let (handled, raised) = (n("/injected/lines/2/handled"), n("/injected/lines/2/raised"));
    assert!(handled > 0 && handled < raised, "{handled} of {raised}");
    assert!(json["notes"].to_string().contains("tx"), "{json:#}");
}
