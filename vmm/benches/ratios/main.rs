//! `cargo bench`: each figure is the ratio of two things measured side by side in one run.
//!
//! `cargo bench -- exit` runs one part; parts are `exit`, `snapshot`, `model`, `events`, `leaves`,
//! `memory` and,
//! with a kernel in RQSCOPE_KERNEL, `linux`. `rounds=N`
//! changes the number of rounds, `decades=N` lets the memory and events parts go up to 10^N events.

mod bare;
mod exit;
mod guest;
mod linux;
mod model;
mod paired;
mod snapshot;

use rqscope::kvm::{HostKvm, Kvm};

fn main() {
    let (mut parts, mut rounds, mut decades) = (Vec::new(), 41, 7);
    for arg in std::env::args().skip(1) {
        match arg.split_once('=') {
            Some(("rounds", n)) => rounds = n.parse().expect("rounds=N"),
            Some(("decades", n)) => decades = n.parse().expect("decades=N"),
            // What cargo adds for every benchmark.
            None if arg == "--bench" => {}
            _ => parts.push(arg),
        }
    }
    let kernel = std::env::var_os("RQSCOPE_KERNEL").map(std::path::PathBuf::from);
    if parts.iter().any(|part| part == linux::BOOT_ONCE) {
        let kvm = Kvm::open().expect("a KVM");
        drop(linux::boot(&kvm, &kernel.expect("RQSCOPE_KERNEL")));
        return;
    }
    println!("machine: {}", machine());
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|p| p == part);

    // First, because a process keeps its peak.
    if wanted("memory") {
        model::memory(decades);
    }
    if wanted("exit") || wanted("snapshot") {
        match Kvm::open() {
            Err(e) => println!("exit, snapshot: skipped, no KVM here: {e}"),
            Ok(kvm) => {
                if wanted("exit") {
                    exit::run(&kvm, rounds);
                }
                if wanted("snapshot") {
                    snapshot::run(&kvm, rounds);
                }
            }
        }
    }
    if let Some(kernel) = &kernel
        && wanted("linux")
    {
        match Kvm::open() {
            Err(e) => println!("linux: skipped, no KVM here: {e}"),
            Ok(kvm) => linux::run(&kvm, kernel, rounds.min(7)),
        }
    }
    if wanted("model") {
        model::run(rounds);
    }
    if wanted("events") {
        model::events(rounds, decades);
    }
    if wanted("leaves") {
        model::leaves(rounds);
    }
}

/// The processor, its number of cores, the kind of KVM and the kernel.
fn machine() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown CPU", |text| text.trim_start_matches([':', ' ', '\t']));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{model}, {cores} cores, KVM {}, Linux {}", HostKvm::detect().name(), kernel.trim())
}
