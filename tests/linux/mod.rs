//! Linux guests as a user runs them: real kernels in virtual machines.
//!
//! They need a KVM that runs Linux, and guest kernels: `RQSCOPE_KERNELS` is a directory with one for each
//! version, such as `7.3`, that has `vmlinux`, `bzImage` and `System.map`. `scripts/test-linux` gets
//! both. Where something is missing a test prints `skipped` with the reason; with
//! `RQSCOPE_REQUIRE_LINUX=1` it fails instead, unless it is about a kernel that may be missing.

mod init;

mod boots;
mod compare;
mod conformance;
mod grid;
mod initrds;
mod interrupted;
mod lacking;
mod ledger;
mod probes;
mod psi;
mod refused;
mod repeatability;
mod scenarios;
mod snapshots;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, OnceLock};

use rqscope::kvm::{HostKvm, Kvm};
use serde_json::Value;

use crate::host::skipped;
use crate::program::{Done, Running, command};

/// Names the directory of kernels.
const KERNELS: &str = "RQSCOPE_KERNELS";
/// Set to 1 where Linux guests must run, so that no test is skipped unseen.
const REQUIRE_LINUX: &str = "RQSCOPE_REQUIRE_LINUX";

/// Versions that have a snapshot of their own, oldest first.
const VERSIONS: [&str; 3] = ["6.12", "7.2", "7.3"];
/// The one that may be missing.
const OPTIONAL: &str = "6.12";

/// The version of tests that need no other.
pub const NEWEST: &str = "7.3";

/// Where the program under test keeps its snapshots: of this process alone, so that nothing of an
/// earlier program is used.
static CACHE: LazyLock<PathBuf> = LazyLock::new(|| {
    let (temp, prefix) = (std::env::temp_dir(), "rqscope-tests-");
    // What processes that are gone have left.
    for entry in fs::read_dir(&temp).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|n| n.strip_prefix(prefix)?.parse::<u32>().ok());
        if process.is_some_and(|pid| !PathBuf::from(format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    temp.join(format!("{prefix}{}", std::process::id()))
});

/// A kernel that can be run.
#[derive(Clone, Debug)]
pub struct Kernel {
    version: &'static str,
    dir: PathBuf,
}

/// The kernel of a version, or `None` after a line that says why the test is skipped.
#[track_caller]
pub fn kernel(version: &'static str) -> Option<Kernel> {
    let why = match find(version) {
        Ok(found) => return Some(found),
        Err(why) => why,
    };
    let required = std::env::var_os(REQUIRE_LINUX).is_some_and(|v| v == "1");
    assert!(!required || version == OPTIONAL, "{REQUIRE_LINUX}=1, but {why}");
    skipped(&why)
}

/// Those of all versions that are there.
#[track_caller]
pub fn kernels() -> impl Iterator<Item = Kernel> {
    VERSIONS.into_iter().filter_map(kernel)
}

fn find(version: &'static str) -> Result<Kernel, String> {
    Kvm::open().map_err(|e| format!("there is no KVM here: {e}"))?;
    if HostKvm::detect() == HostKvm::Pvm {
        return Err("this host's KVM does not run Linux: use scripts/test-linux".into());
    }
    let dir = std::env::var_os(KERNELS).ok_or(format!("{KERNELS} names no guest kernels"))?;
    let dir = Path::new(&dir).join(version);
    let there = dir.join("vmlinux").exists();
    there.then_some(Kernel { version, dir }).ok_or(format!("there is no {version} in {KERNELS}"))
}

impl Kernel {
    /// Its version, as 7.3.
    pub fn version(&self) -> &'static str {
        self.version
    }

    /// One of its files, as an argument.
    pub fn file(&self, name: &str) -> String {
        self.dir.join(name).into_os_string().into_string().expect("paths of kernels are UTF-8")
    }

    /// `rqscope run SCENARIO` on its vmlinux, with `args`.
    pub fn command(&self, scenario: &str, args: &[&str]) -> Command {
        command_on(&self.file("vmlinux"), scenario, args)
    }

    /// Runs `scenario` to its end.
    pub fn run(&self, scenario: &str, args: &[&str]) -> Done {
        Running::start(&mut self.command(scenario, args)).wait()
    }

    /// Runs `scenario` from a snapshot, with overrides; the run must end with `code`. The JSON result.
    #[track_caller]
    pub fn json(&self, scenario: &str, sets: &[&str], code: i32) -> Value {
        self.snapshot();
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let args: Vec<&str> = ["--format", "json"].into_iter().chain(sets).collect();
        self.run(scenario, &args).ends_with(code).json()
    }

    /// Runs `scenario` to its end on a guest booted anew, with more arguments; it must hold. The JSON
    /// result.
    #[track_caller]
    pub fn boot_json(&self, scenario: &str, args: &[&str]) -> Value {
        boot_json_on(&self.file("vmlinux"), scenario, args)
    }

    /// Makes its snapshot, once, whoever comes first.
    fn snapshot(&self) {
        static MADE: [OnceLock<()>; VERSIONS.len()] = [const { OnceLock::new() }; VERSIONS.len()];
        let made = VERSIONS.iter().zip(&MADE).find(|(version, _)| **version == self.version);
        let (_, made) = made.expect("kernel() is the only way to get a kernel");
        made.get_or_init(|| {
            let vmlinux = self.file("vmlinux");
            let mut snapshot = command_in(&CACHE, ["snapshot", "--kernel", &vmlinux]);
            drop(Running::start(&mut snapshot).wait().ends_with(0));
        });
    }
}

/// The program with arguments, and with the snapshots of these tests.
pub fn command_cached<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    command_in(&CACHE, args)
}

/// `rqscope run SCENARIO` on the kernel in `file`, with `args`.
pub fn command_on(file: &str, scenario: &str, args: &[&str]) -> Command {
    command_in(&CACHE, ["run", scenario, "--kernel", file].iter().chain(args))
}

/// [`Kernel::boot_json`] of the kernel in `file`.
#[track_caller]
pub fn boot_json_on(file: &str, scenario: &str, args: &[&str]) -> Value {
    let args = [&["--format", "json", "--no-snapshot"], args].concat();
    Running::start(&mut command_on(file, scenario, &args)).wait().ends_with(0).json()
}

/// The program with arguments and `cache` as its cache.
pub fn command_in(cache: &Path, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = command(args);
    command.env("RQSCOPE_CACHE", cache);
    command
}

/// The check called `name`.
#[track_caller]
pub fn check<'a>(json: &'a Value, name: &str) -> &'a Value {
    let checks = json["checks"].as_array().expect("checks is an array");
    let found = checks.iter().find(|c| c["name"] == name);
    found.unwrap_or_else(|| panic!("{name} in {json:#}"))
}

/// The named checks have this status.
#[track_caller]
pub fn checks_are(json: &Value, status: &str, names: &[&str]) {
    for name in names {
        let check = check(json, name);
        assert_eq!(check["status"], status, "{check:#}");
    }
}
