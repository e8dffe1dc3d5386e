//! `--kernel`: a Linux guest for `rqscope run`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use guest_model::wire::NONE;
use guest_model::wire::linux::ETHERTYPE;
use kvm_bindings::CpuId;

use super::run::read_file;
use super::{Failure, Stdout, complain, no_kvm};
use crate::boot::kernel::{self, Kind};
use crate::boot::{self, cpuid};
use crate::check::NAMES;
use crate::cli::{DEFAULT_MIB, LinuxArgs, SnapshotArgs};
use crate::guest::GuestError;
use crate::initramfs::{INIT, pack};
use crate::introspect::linux::layout::Shift;
use crate::introspect::linux::symbols::SymbolTable;
use crate::introspect::linux::types_of_elf;
use crate::kvm::{HostKvm, Kvm};
use crate::linux::bring_up::{Ready, bring_up};
use crate::linux::bus::{self, Storm};
use crate::linux::console::Console;
use crate::linux::machine::{Machine, MachineError, cpu};
use crate::linux::snapshot::{Key, SnapshotError, Store};
use crate::linux::{Kernel, Line, LinuxError, Prepared, UserProbe, Workload, prepare};
use crate::run::{LinuxOutcome, linux_session};
use crate::scenario::{DeviceKind, Group, LinuxPlan, Scenario, builtin};
use crate::schedule::Schedule;
use crate::session::{Control, PassOutcome, chain};
use crate::supervise::supervise;
use crate::trace::Trace;

/// Largest kernel, initrd or symbol file, bytes.
const MAX_FILE: u64 = 1 << 30;

/// A Linux guest that is about to be started.
pub(super) struct Guest {
    kvm: Kvm,
    kernel_name: String,
    kernel: Vec<u8>,
    initrd: Vec<u8>,
    initrd_name: String,
    facts: Kernel,
    plan: LinuxPlan,
    args: LinuxArgs,
}

/// What was done for a snapshot, and how long it took.
pub(super) enum Done {
    /// It was there, and a machine was started from it.
    Restored(Duration),
    /// The guest booted until it was ready.
    Booted(Duration),
}

/// The host's KVM, if Linux runs on it.
pub(super) fn open() -> Result<(Kvm, &'static str), Failure> {
    let kvm = Kvm::open().map_err(|e| Failure::Host(no_kvm(&e)))?;
    let host = HostKvm::detect();
    if host == HostKvm::Pvm {
        let why = "this host's KVM (kvm-pvm) runs guests in an instruction emulator, where Linux does \
                   not boot: use scripts/nested-kvm -- rqscope run --kernel ... (docs/nested.md)";
        return Err(Failure::Host(why.into()));
    }
    Ok((kvm, host.name()))
}

impl Guest {
    /// Reads and checks all files; nothing runs yet.
    pub(super) fn load(
        kvm: Kvm,
        path: &Path,
        args: &LinuxArgs,
        scenario: &Scenario,
    ) -> Result<Self, Failure> {
        let plan = scenario.linux_plan().map_err(|e| Failure::input(&e))?;
        let kernel = read_file(path, MAX_FILE, "--kernel")?;
        let kernel_name = path.display().to_string();
        let (initrd, initrd_name) = match &args.boot.initrd {
            None => (pack(INIT), "(rqscope's own)".to_owned()),
            Some(path) => (read_file(path, MAX_FILE, "--initrd")?, path.display().to_string()),
        };
        let facts = match &args.boot.symbols {
            None => own_facts(&kernel_name, &kernel)?,
            Some(path) => {
                facts(&path.display().to_string(), &read_file(path, MAX_FILE, "--symbols")?)?
            }
        };
        let args = args.clone();
        Ok(Self { kvm, kernel_name, kernel, initrd, initrd_name, facts, plan, args })
    }

    /// Takes a member of the kernel's structures to be elsewhere than it is.
    pub(super) fn shift(&mut self, shift: Option<Shift>) {
        self.facts.shift = shift;
    }

    /// The same guest for another scenario.
    pub(super) fn take(&mut self, scenario: &Scenario) -> Result<(), Failure> {
        self.plan = scenario.linux_plan().map_err(|e| Failure::input(&e))?;
        Ok(())
    }

    /// A machine that is ready: from its snapshot, which is made first if there is none that can be used.
    fn ready(&self, control: &Arc<Control>) -> Result<(Machine, Ready), LinuxError> {
        let cpuid = cpu(&self.kvm, cpuid::Options::default())?;
        let Some(store) = Store::default_place().filter(|_| !self.args.no_snapshot) else {
            return self.boot(&cpuid, control);
        };
        let key = self.key(&cpuid);
        if let Some(found) = self.restore(&store, &key, &cpuid) {
            return Ok(found);
        }
        let (mut machine, ready) = self.boot(&cpuid, control)?;
        if let Err(e) = store.save(&self.kvm, &key, &mut machine, &ready) {
            complain(&format!("{}; going on without a snapshot", chain(&e)));
            return Ok((machine, ready));
        }
        // The first run starts from the same bytes as all others.
        drop(machine);
        match self.restore(&store, &key, &cpuid) {
            Some(found) => Ok(found),
            None => self.boot(&cpuid, control),
        }
    }

    /// A machine from its snapshot; `None` if there is none, or after a line on why it cannot be used.
    fn restore(&self, store: &Store, key: &Key, cpuid: &CpuId) -> Option<(Machine, Ready)> {
        match store.restore(&self.kvm, key, cpuid, Console::new(self.args.boot.console)) {
            Ok(found) => Some(found),
            Err(SnapshotError::Missing) => None,
            Err(e) => {
                complain(&format!("{}; booting anew", chain(&e)));
                None
            }
        }
    }

    fn key(&self, cpuid: &CpuId) -> Key {
        let devices: Vec<String> = bus::devices().iter().map(ToString::to_string).collect();
        let boot = &self.args.boot;
        let cmdline = format!("{}\n{}\n{}", boot.cmdline, boot.console, devices.join(" "));
        Key::new(&self.kernel, &self.initrd, &cmdline, self.memory_size(), cpuid)
    }

    fn memory_size(&self) -> u64 {
        self.args.boot.memory.saturating_mul(1 << 20)
    }

    fn boot(&self, cpuid: &CpuId, control: &Arc<Control>) -> Result<(Machine, Ready), LinuxError> {
        let devices = bus::devices();
        let linux = boot::Linux {
            kernel: boot::File { name: &self.kernel_name, bytes: &self.kernel },
            initrd: Some(boot::File { name: &self.initrd_name, bytes: &self.initrd }),
            cmdline: &self.args.boot.cmdline,
            quiet: !self.args.boot.console,
            devices: &devices,
            memory_size: self.memory_size(),
        };
        let console = Console::new(self.args.boot.console);
        let mut machine = Machine::new(&self.kvm, &linux, cpuid, console)?;
        control.set_kick(Some(machine.vcpu.kick_handle()?));
        let ready = bring_up(&mut machine, control, self.args.boot.boot_timeout);
        control.set_kick(None);
        Ok((machine, ready?))
    }

    /// Makes the snapshot, unless it is there; its directory, and what was done for how long.
    pub(super) fn snapshot(&self, control: &Arc<Control>) -> Result<(PathBuf, Done), Failure> {
        let store = Store::default_place().ok_or_else(|| {
            Failure::Input("no place for snapshots: set RQSCOPE_CACHE or HOME".into())
        })?;
        let cpuid = cpu(&self.kvm, cpuid::Options::default()).map_err(|e| Failure::host(&e))?;
        let key = self.key(&cpuid);
        let path = store.path(&key);
        let begin = Instant::now();
        if self.restore(&store, &key, &cpuid).is_some() {
            return Ok((path, Done::Restored(begin.elapsed())));
        }
        let begin = Instant::now();
        let (mut machine, ready) = self.boot(&cpuid, control).map_err(failure)?;
        let booted = begin.elapsed();
        store.save(&self.kvm, &key, &mut machine, &ready).map_err(|e| Failure::host(&e))?;
        Ok((path, Done::Booted(booted)))
    }

    /// A guest whose run can start; `scenario` takes over the rules that its kernel was seen to follow.
    pub(super) fn prepare(
        &self,
        scenario: &mut Scenario,
        control: &Arc<Control>,
    ) -> Result<Prepared<Schedule>, Failure> {
        let (machine, ready) = self.ready(control).map_err(failure)?;
        let work = Workload {
            plan: &self.plan.plan,
            paths: scenario.group_paths(),
            lines: lines(&self.plan),
            probes: &self.args.probes,
        };
        let prepared = prepare(machine, &ready, &self.facts, work, control).map_err(failure)?;
        let found = &prepared.found;
        scenario.policy.rate_limit_clock = found.policy.rate_limit_clock;
        scenario.policy.psi = found.policy.psi_zero_delta;
        scenario.policy.compare.clear();
        if self.args.boot.initrd.is_some() {
            // The guest's workload is its own.
            let group = |(path, parent): (&String, &u16)| Group {
                path: path.trim_start_matches('/').to_owned(),
                weight: 100,
                parent: *parent,
            };
            let groups = found.groups.paths.iter().zip(&found.groups.parents);
            scenario.groups = groups.map(group).collect();
            scenario.tasks.clear();
            scenario.irqs.iter_mut().for_each(|irq| irq.wakes = None);
        }
        Ok(prepared)
    }

    /// The run, with this many samples if any.
    pub(super) fn run(
        &self,
        prepared: Prepared<Schedule>,
        scenario: &Scenario,
        trace: Trace,
        samples: Option<u32>,
        control: &Arc<Control>,
    ) -> (PassOutcome, Trace, LinuxOutcome) {
        let found = prepared.found.clone();
        let mut session =
            linux_session(scenario, found.policy, found.groups.parents, trace, control.clone());
        if let Some(count) = samples {
            session.sample_times(count);
        }
        let (pass, trace, extras) = prepared.run(session);
        let outcome = LinuxOutcome {
            banner: found.banner,
            rate_limit_seen: found.rate_limit_seen,
            lacks: found.lacks,
            clock_readers: extras.clock_readers,
            probes: self.args.probes.iter().cloned().zip(extras.user_hits).collect(),
            groups: found.groups.paths,
            ..self.outcome(scenario)
        };
        (pass, trace, outcome)
    }

    /// What is known of the guest before it has booted.
    pub(super) fn outcome(&self, scenario: &Scenario) -> LinuxOutcome {
        let irqs = lines(&self.plan).into_iter().map(|line| line.storm.irq());
        LinuxOutcome {
            banner: String::new(),
            args: self.repeat_args(),
            rate_limit_seen: false,
            notes: self.plan.notes.iter().map(ToString::to_string).collect(),
            lacks: Vec::new(),
            clock_readers: Vec::new(),
            probes: Vec::new(),
            groups: scenario.group_paths(),
            irqs: std::iter::once(0).chain(irqs).collect(),
            has_own_workload: self.args.boot.initrd.is_some(),
        }
    }

    /// The options that choose this guest, each with its value.
    fn repeat_args(&self) -> Vec<Vec<String>> {
        let boot = &self.args.boot;
        let path = |p: &PathBuf| p.display().to_string();
        let mut args = vec![vec!["--kernel".to_owned(), self.kernel_name.clone()]];
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                args.push(vec![name.to_owned(), value]);
            }
        };
        add("--symbols", boot.symbols.as_ref().map(path));
        add("--initrd", boot.initrd.as_ref().map(path));
        add("--cmdline", (!boot.cmdline.is_empty()).then(|| boot.cmdline.clone()));
        add("--memory", (boot.memory != DEFAULT_MIB).then(|| boot.memory.to_string()));
        for UserProbe { symbol, args } in &self.args.probes {
            let colon = if args.is_empty() { "" } else { ":" };
            add("--probe", Some(format!("{symbol}{colon}{}", args.join(","))));
        }
        for (name, given) in [("--console", boot.console), ("--no-snapshot", self.args.no_snapshot)]
        {
            if given {
                args.push(vec![name.to_owned()]);
            }
        }
        args
    }
}

/// `rqscope snapshot`.
pub(super) fn command(args: &SnapshotArgs) -> Result<u8, Failure> {
    let Some(kernel) = &args.boot.kernel else {
        return Err(Failure::Input("name a kernel with --kernel".into()));
    };
    let (kvm, _) = open()?;
    let idle = builtin("idle").ok_or(Failure::Input("the idle scenario is missing".into()))?;
    let scenario =
        Scenario::load(idle.text, idle.name, &[], NAMES).map_err(|e| Failure::input(&e))?;
    let run = LinuxArgs { boot: args.boot.clone(), probes: Vec::new(), no_snapshot: false };
    let guest = Guest::load(kvm, kernel, &run, &scenario)?;
    let control = Arc::new(Control::default());
    let for_guest = control.clone();
    let made = supervise(&control, args.watchdog, None, move || guest.snapshot(&for_guest));
    let (path, done) = made.map_err(|e| Failure::host(&e))??;
    let mut out = Stdout::lock();
    let path = path.display();
    match done {
        Done::Booted(time) => writeln!(out, "made {path}, ready after {} us", time.as_micros())?,
        Done::Restored(time) => writeln!(out, "kept {path}, restored in {} us", time.as_micros())?,
    }
    Ok(0)
}

/// Symbols and types of a kernel that has its own.
fn own_facts(name: &str, file: &[u8]) -> Result<Kernel, Failure> {
    let without = match kernel::check(file) {
        Ok(Kind::Vmlinux) => return facts(name, file),
        Ok(Kind::BzImage) => {
            "a bzImage has no symbols: name its vmlinux or System.map with --symbols".to_owned()
        }
        Err(e) => chain(&e),
    };
    Err(Failure::Input(format!("--kernel {name}: {without}")))
}

/// Symbols and types of a vmlinux, or symbols of a System.map.
fn facts(name: &str, bytes: &[u8]) -> Result<Kernel, Failure> {
    if bytes.starts_with(b"\x7fELF") {
        let symbols = SymbolTable::of_elf(name, bytes).map_err(|e| Failure::input(&e))?;
        let types = types_of_elf(name, bytes).map_err(|e| Failure::input(&e))?;
        return Ok(Kernel { symbols, types: Some(types), shift: None });
    }
    let symbols = SymbolTable::of_system_map(name, bytes).map_err(|e| Failure::input(&e))?;
    Ok(Kernel { symbols, types: None, shift: None })
}

/// The devices of the scenario's lines, each with the frame that wakes whoever waits for it.
fn lines(plan: &LinuxPlan) -> Vec<Line> {
    let line = |device: &crate::scenario::Device| {
        let index = usize::from(device.index);
        match device.kind {
            DeviceKind::Entropy => Line { storm: Storm::Entropy(index), frame: None },
            DeviceKind::Net => Line { storm: Storm::Net(index), frame: frame(plan, index) },
        }
    };
    plan.devices.iter().map(line).collect()
}

/// An Ethernet frame of no content for whoever listens on network device `index`, if anybody does.
fn frame(plan: &LinuxPlan, index: usize) -> Option<Vec<u8>> {
    let wakes = plan.plan.net_wakes.get(index).is_some_and(|task| *task != NONE);
    let ethertype = ETHERTYPE + index as u16;
    wakes.then(|| {
        let (everybody, nobody) = ([0xff; 6], [0x02, 0, 0, 0, 1, index as u8]);
        [&everybody[..], &nobody, &ethertype.to_be_bytes(), &[0; 46]].concat()
    })
}

/// Whose fault it is that a guest does not come to its run.
fn failure(e: LinuxError) -> Failure {
    match &e {
        _ if e.interrupted() => Failure::Interrupted,
        LinuxError::Machine(MachineError::Boot(_)) => Failure::input(&e),
        LinuxError::Machine(_) | LinuxError::Vcpu(_) => Failure::host(&e),
        LinuxError::Guest(
            GuestError::Vcpu(_)
            | GuestError::State(_)
            | GuestError::FailEntry { .. }
            | GuestError::Internal { .. },
        ) => Failure::host(&e),
        _ => Failure::input(&e),
    }
}
