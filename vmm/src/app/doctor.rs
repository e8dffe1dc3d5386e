//! `rqscope doctor`.

use std::io::Write;
use std::sync::Arc;

use super::{Failure, Stdout};
use crate::check::{NAMES, Status};
use crate::kvm::{HostKvm, Kvm};
use crate::machine::FIRMWARE;
use crate::run::{Planted, pass_on_firmware};
use crate::scenario::{Scenario, builtin};
use crate::session::{Control, chain};
use crate::supervise::supervise;
use crate::trace::Trace;

/// Says what this host's KVM is and what can run; exit code 3 if no virtual machine can, which the bundled
/// guest decides.
pub fn command() -> Result<u8, Failure> {
    let mut out = Stdout::lock();
    let kvm = match Kvm::open() {
        Ok(kvm) => kvm,
        Err(e) => {
            writeln!(out, "KVM                 none")?;
            writeln!(out, "  {}", chain(&e))?;
            writeln!(out, "\n--guest firmware    no, for want of a KVM")?;
            writeln!(out, "--guest model       yes, needs no virtual machine")?;
            writeln!(out, "--kernel FILE       no, for want of a KVM; {NESTED}")?;
            return Ok(3);
        }
    };
    let host = HostKvm::detect();
    writeln!(out, "KVM                 {}: {}", host.name(), describe(host))?;
    for c in kvm.capabilities() {
        let state = match (c.present, c.required) {
            (true, _) => "yes",
            (false, true) => "NO, required",
            (false, false) => "no",
        };
        writeln!(out, "  {:30} {state:13} {}", c.name, c.needed_for)?;
    }
    out.flush()?;
    let (works, firmware) = match boots(kvm) {
        Ok(()) => (true, "yes, booted and judged just now".to_owned()),
        Err(why) => (false, format!("no: {why}")),
    };
    writeln!(out, "\n--guest firmware    {firmware}")?;
    writeln!(out, "--guest model       yes, needs no virtual machine")?;
    writeln!(out, "--kernel FILE       {}", linux(host, works))?;
    Ok(if works { 0 } else { 3 })
}

/// What runs Linux guests on a host that cannot.
const NESTED: &str = "use scripts/nested-kvm -- rqscope run --kernel FILE";

/// Do Linux guests run on a KVM of this kind, on which the bundled guest `works`?
fn linux(host: HostKvm, works: bool) -> String {
    match host {
        HostKvm::Pvm => format!("no: KVM's emulator cannot run Linux; {NESTED}"),
        _ if !works => format!("no, as the bundled guest does not run; {NESTED}"),
        HostKvm::Vmx | HostKvm::Svm => "yes, Linux guests run here".to_owned(),
        HostKvm::Unknown | HostKvm::None => {
            format!("not tried on a KVM of this kind; should it fail, {NESTED}")
        }
    }
}

fn describe(host: HostKvm) -> &'static str {
    match host {
        HostKvm::Vmx => "Intel hardware virtualisation",
        HostKvm::Svm => "AMD hardware virtualisation",
        HostKvm::Pvm => {
            "software virtualisation; the bundled guest runs in KVM's instruction emulator, at about \
             a million instructions a second"
        }
        HostKvm::Unknown | HostKvm::None => "works, but is not one that this program knows",
    }
}

/// Boots the bundled guest for two milliseconds of guest time.
fn boots(kvm: Kvm) -> Result<(), String> {
    let b = builtin("idle").ok_or("the idle scenario is missing")?;
    let sets = ["duration=2ms".to_owned(), "tick.rate=1kHz".to_owned()];
    let scenario = Scenario::load(b.text, b.name, &sets, NAMES).map_err(|e| chain(&e))?;
    let control = Arc::new(Control::default());
    let for_guest = control.clone();
    let clock = scenario.policy.rate_limit_clock;
    let watchdog = std::time::Duration::from_secs(10);
    let (pass, _) = supervise(&control, watchdog, None, move || {
        let (none, trace) = (Planted::default(), Trace::hashed());
        pass_on_firmware(&kvm, FIRMWARE, &scenario, clock, none, trace, for_guest)
    })
    .map_err(|e| chain(&e))?
    .map_err(|e| chain(&e))?;
    if let Some((_, why)) = pass.stopped {
        return Err(why);
    }
    match pass.checks.iter().find(|c| c.status == Status::Fail) {
        Some(c) => Err(format!("it boots, but the check {} fails", c.id.name())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_runs_on_hardware_virtualisation_and_elsewhere_the_way_out_is_named() {
        for host in [HostKvm::Vmx, HostKvm::Svm] {
            assert_eq!(linux(host, true), "yes, Linux guests run here");
            assert!(linux(host, false).starts_with("no, "));
        }
        assert!(linux(HostKvm::Pvm, true).starts_with("no: KVM's emulator cannot run Linux"));
        assert!(linux(HostKvm::Unknown, true).starts_with("not tried"));
        for answer in [linux(HostKvm::Pvm, true), linux(HostKvm::Svm, false)] {
            assert!(answer.contains("scripts/nested-kvm -- rqscope"), "{answer}");
        }
    }
}
