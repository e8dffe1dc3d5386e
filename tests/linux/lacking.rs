//! What a kernel lacks is said to be lacking, and everything else is judged.

use super::{NEWEST, check, checks_are, kernel, kernels};
use crate::program::text;

const PSI: [&str; 5] = [
    "psi_account_irqtime_called",
    "psi_zero_delta",
    "psi_writes",
    "psi_irq_ledger",
    "psi_delta_not_negative",
];

#[test]
fn without_psi_its_checks_are_not_built_in_and_the_others_hold() {
    // netdata#15729: the PSI file of IRQ time is missing.
    for linux in kernels() {
        let json = linux.boot_json("default", &["--set=duration=20ms", "--cmdline=psi=0"]);
        assert_eq!(text(&json, "/verdict"), "pass");
        checks_are(&json, "not-built-in", &PSI);
        checks_are(&json, "pass", &["irq_accounted", "steal_accounted", "conservation"]);
    }
}

#[test]
fn without_steal_accounting_steal_is_unavailable_and_not_zero() {
    // cloud-hypervisor#8262.
    let Some(linux) = kernel(NEWEST) else { return };
    let args = ["--set=duration=20ms", "--set=steal=[]", "--cmdline=no-steal-acc"];
    let json = linux.boot_json("default", &args);
    assert_eq!(check(&json, "steal_accounted")["status"], "not-built-in");
    checks_are(&json, "pass", &["irq_accounted", "psi_irq_ledger"]);
    assert!(json["accounted"]["steal_ns"].is_null(), "{json:#}");
    assert!(json["rq"][0]["prev_steal_time_rq_ns"].is_null(), "{json:#}");
}

#[test]
fn a_kernel_without_the_hosts_clock_is_refused_and_the_clock_named() {
    let Some(linux) = kernel(NEWEST) else { return };
    let args = ["--no-snapshot", "--set=duration=20ms", "--cmdline=no-kvmclock"];
    linux.run("default", &args).ends_with(2).says("kvmclock");
}

#[test]
fn a_kernel_that_does_not_account_irq_time_is_refused_and_that_is_said() {
    let Some(linux) = kernel(NEWEST) else { return };
    let args = ["--no-snapshot", "--set=duration=20ms", "--cmdline=tsc=noirqtime"];
    linux.run("default", &args).ends_with(2).says("accounts no IRQ time");
}
