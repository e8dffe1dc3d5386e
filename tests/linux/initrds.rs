//! Initial file systems of the user's own.

use super::init::Init;
use super::{Kernel, NEWEST, kernel};
use crate::program::{Done, Scratch, number, text};
use crate::repeatability::the_books_balance;

/// Interrupts on the first entropy device, and nothing that PID 1 would have to do.
const LINE: &str = "\
[[irq]]
name = \"nic\"
rate = \"2kHz\"
cost = \"20us\"
";

/// Runs with `init` as PID 1.
fn run(linux: &Kernel, init: Init, more: &[&str]) -> Done {
    let scratch = Scratch::new();
    let initrd = scratch.file("initrd", init.pack());
    let scenario = scratch.file("line.toml", LINE);
    let args = ["--no-snapshot", "--set=duration=50ms", "--format=json", "--initrd", &initrd];
    let args: Vec<&str> = args.iter().chain(more).copied().collect();
    linux.run(&scenario, &args)
}

#[test]
fn an_initrd_that_says_ready_on_the_console_runs_and_is_judged() {
    let Some(linux) = kernel(NEWEST) else { return };
    let json = run(&linux, Init::new().ready().sleeps_for_ever(), &[]).ends_with(0).json();
    assert_eq!(text(&json, "/verdict"), "pass");
    assert_eq!(number(&json, "/elapsed_ns"), 50_000_000);
    assert!(number(&json, "/injected/lines/1/handled") >= 98, "{json:#}");
    the_books_balance(&json);
}

#[test]
fn a_task_that_spins_is_named_and_not_waited_for() {
    let Some(linux) = kernel(NEWEST) else { return };
    let init = Init::new().is_called("spinner").ready().sleeps(20_000_000).spins();
    let done = run(&linux, init, &["--watchdog=2s"]).ends_with(2);
    done.says("spinner").says("pid 1");
}

#[test]
fn an_initrd_that_never_says_ready_is_not_waited_for() {
    let Some(linux) = kernel(NEWEST) else { return };
    let init = Init::new().says("still thinking").sleeps_for_ever();
    let done = run(&linux, init, &["--boot-timeout=30s"]).ends_with(2);
    done.says("still thinking");
}

#[test]
fn a_kernel_that_panics_is_quoted() {
    let Some(linux) = kernel(NEWEST) else { return };
    // Before the run, and in it.
    let early = Init::new().says("giving up").exits(7);
    let late = Init::new().ready().sleeps(20_000_000).says("giving up").exits(7);
    for init in [early, late] {
        let done = run(&linux, init, &[]).ends_with(2);
        done.says("Attempted to kill init").says("giving up");
    }
}

#[test]
fn a_line_that_the_guest_disables_is_noticed() {
    // machine-emulator#301. Its devices are virtio0 to virtio8; the scenario's line is the first of
    // the entropy devices, behind four network devices.
    let Some(linux) = kernel(NEWEST) else { return };
    let init = Init::new()
        .mounts_sys()
        .ready()
        .sleeps(20_000_000)
        .writes("virtio4", "/sys/bus/virtio/drivers/virtio_rng/unbind")
        .sleeps_for_ever();
    let done = run(&linux, init, &[]);
    assert_ne!(done.code, Some(3), "{}", done.stderr);
    let json = done.json();
    let (handled, raised) =
        (number(&json, "/injected/lines/1/handled"), number(&json, "/injected/lines/1/raised"));
    assert!(handled < raised / 2, "{handled} of {raised}");
    assert!(json["notes"].to_string().contains("nic"), "{json:#}");
}
