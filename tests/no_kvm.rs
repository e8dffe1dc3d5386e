//! Hosts on which no KVM can be opened: made by hiding the device from the program.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use crate::host::{behind, kvm, skipped, virtual_machines};
use crate::program::{Done, Running, Scratch, command_after, rqscope};

/// No `/dev/kvm` at all.
const MISSING: &str = "mount -t tmpfs none /dev";
/// A `/dev/kvm` that is another device.
const NOT_KVM: &str = "mount --bind /dev/null /dev/kvm";

fn run_after(wrapper: &[String], args: &[&str]) -> Done {
    Running::start(&mut command_after(wrapper, args)).wait()
}

#[test]
fn the_firmware_behind_is_exit_code_3_with_reason_and_fix_in_one_line() {
    let Some(hidden) = behind(MISSING) else { return };
    let done = run_after(&hidden, &["run", "--guest", "firmware"]).ends_with(3).in_one_line();
    let done = done.says("open /dev/kvm: no such device").says("load kvm_intel or kvm_amd");
    assert_eq!(done.says("or use --guest model").stdout, "");
    run_after(&hidden, &["mutants", "--guest", "firmware"]).ends_with(3).in_one_line();
}

#[test]
fn a_plain_run_behind_says_so_in_one_line_and_runs_the_model() {
    let Some(hidden) = behind(MISSING) else { return };
    let args = ["run", "--set=duration=20ms", "--format=json"];
    let done = run_after(&hidden, &args).ends_with(0).in_one_line();
    let done = done.says("no such device").says("running on --guest model instead");
    let json = done.json();
    assert_eq!((&json["guest"]["kind"], &json["host"]["kvm"]), (&"model".into(), &"none".into()));
    assert_eq!(json["verdict"], "pass");
    // A command line without a word is the same with the default scenario, whole.
    let page = run_after(&hidden, &[]).ends_with(0).in_one_line().stdout;
    assert!(page.starts_with("rqscope default\n") && page.contains("PASS"), "{page}");
    // Who asks for the model need not be told.
    let args = ["run", "--guest=model", "--set=duration=20ms"];
    assert_eq!(run_after(&hidden, &args).ends_with(0).stderr, "");
}

#[test]
fn the_doctor_says_what_is_missing_and_what_runs_all_the_same() {
    let Some(hidden) = behind(MISSING) else { return };
    let done = run_after(&hidden, &["doctor"]).ends_with(3).stdout;
    for part in ["KVM                 none", "load kvm_intel", "--guest model       yes"] {
        assert!(done.contains(part), "{part:?} in {done}");
    }
    // To nobody, too.
    let (closed, _) = UnixStream::pair().unwrap();
    let mut doctor = command_after(&hidden, ["doctor"]);
    Running::start_into(&mut doctor, OwnedFd::from(closed)).wait().ends_with(3);
}

#[test]
fn a_device_that_is_not_kvm_is_not_taken_for_one() {
    // The mount needs a device to cover.
    let Some(()) = virtual_machines() else { return };
    let Some(hidden) = behind(NOT_KVM) else { return };
    let done = run_after(&hidden, &["run", "--guest", "firmware"]).ends_with(3).in_one_line();
    done.says("/dev/kvm: Inappropriate ioctl for device").says("dmesg");
}

#[test]
fn a_device_that_this_user_may_not_open_is_answered_with_the_group() {
    let Some(()) = virtual_machines() else { return };
    let scratch = Scratch::new();
    let locked = scratch.file("kvm", "");
    let lock = format!("chmod 0 '{locked}' && mount --bind '{locked}' /dev/kvm");
    let Some(mut hidden) = behind(&lock) else { return };
    hidden.extend(["setpriv", "--reuid=65534", "--clear-groups"].map(str::to_owned));
    let done = run_after(&hidden, &["run", "--guest", "firmware"]);
    // setpriv itself could not: not found, refused by the kernel, or a small one (busybox's).
    let why = done.stderr.to_lowercase();
    let refused = why.starts_with("setpriv:")
        && ["operation not permitted", "unrecognized option"].iter().any(|w| why.contains(w));
    if refused || matches!(done.code, Some(126 | 127)) {
        skipped::<()>(&format!("this user may not become another: {}", done.stderr));
        return;
    }
    done.ends_with(3).in_one_line().says("permission denied").says("usermod -aG kvm");
}

#[test]
fn the_doctor_names_the_kvm_and_boots_a_guest() {
    let Some(kvm) = kvm() else { return };
    let done = rqscope(["doctor"]).ends_with(0).stdout;
    let name = rqscope::kvm::HostKvm::detect().name();
    assert!(done.starts_with(&format!("KVM                 {name}: ")), "{done}");
    for c in kvm.capabilities() {
        assert!(done.contains(c.name), "{} in {done}", c.name);
    }
    assert!(done.contains("--guest firmware    yes, booted and judged just now"), "{done}");
}
