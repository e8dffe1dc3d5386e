//! A run: one pass over the scenario for each rate-limit clock, the scenario's own first.

use std::sync::Arc;

use guest_model::policy::{Fault, Policy, RateLimitClock};
use guest_model::wire::BootError;

use crate::check::{CheckId, Setup, Status};
use crate::clock::HostFault;
use crate::engine::Engine;
use crate::kvm::Kvm;
use crate::linux::UserProbe;
use crate::scenario::Scenario;
use crate::schedule::Schedule;
use crate::session::{Control, PassOutcome, Session};
use crate::trace::Trace;
use crate::{firmware, model};

/// A fault planted for a run, in the guest or in the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planted {
    /// In the guest's accounting.
    pub guest: Option<Fault>,
    /// In the host's clock pages, ledger or injection.
    pub host: HostFault,
}

/// The rate-limit clocks that a scenario's run passes over, its own first.
pub fn pass_clocks(scenario: &Scenario) -> Vec<RateLimitClock> {
    let own = scenario.policy.rate_limit_clock;
    let others = scenario.policy.compare.iter().copied().filter(|c| *c != own);
    std::iter::once(own).chain(others).collect()
}

/// A session over `scenario` with the rate limit on `clock`.
pub fn session(
    scenario: &Scenario,
    clock: RateLimitClock,
    planted: Planted,
    trace: Trace,
    control: Arc<Control>,
) -> (Policy, Session<Schedule>) {
    let policy = Policy {
        rate_limit_clock: clock,
        psi_zero_delta: scenario.policy.psi,
        fault: planted.guest.unwrap_or(Fault::None),
    };
    let parents = scenario.groups.iter().map(|g| g.parent).collect();
    let tick_period_ns = Some(scenario.tick.rate.period_ns());
    (policy, new_session(scenario, policy, planted, parents, tick_period_ns, trace, control))
}

/// A session over `scenario` on a Linux guest that follows `policy` and has groups with these parents.
/// Its ticks are its own.
pub fn linux_session(
    scenario: &Scenario,
    policy: Policy,
    parents: Vec<u16>,
    trace: Trace,
    control: Arc<Control>,
) -> Session<Schedule> {
    new_session(scenario, policy, Planted::default(), parents, None, trace, control)
}

fn new_session(
    scenario: &Scenario,
    policy: Policy,
    planted: Planted,
    parents: Vec<u16>,
    tick_period_ns: Option<u64>,
    trace: Trace,
    control: Arc<Control>,
) -> Session<Schedule> {
    let checks = &scenario.checks;
    let asked = |id: &CheckId| !id.is_asked_for() || checks.asks_for(id.name());
    let off = |id: &&CheckId| !(checks.runs(id.name()) && asked(id));
    let setup = Setup {
        tick_period_ns,
        offline_ns: scenario.offline_ns,
        policy,
        parents,
        off: CheckId::ALL.iter().filter(off).copied().collect(),
    };
    let engine = Engine::new(
        Schedule::new(scenario, scenario.seed),
        scenario.duration_ns,
        scenario.tick.cost_ns,
        planted.host,
    );
    Session::new(setup, scenario.seed, engine, trace, control)
}

/// Runs one pass on the in-process model.
pub fn pass_on_model(
    scenario: &Scenario,
    clock: RateLimitClock,
    planted: Planted,
    trace: Trace,
    control: Arc<Control>,
) -> Result<(PassOutcome, Trace), BootError> {
    let (policy, session) = session(scenario, clock, planted, trace, control);
    model::run(&scenario.boot_page(policy), session)
}

/// Runs one pass on `image` in a virtual machine. To be called on the thread that is to run the vCPU.
pub fn pass_on_firmware(
    kvm: &Kvm,
    image: &[u8],
    scenario: &Scenario,
    clock: RateLimitClock,
    planted: Planted,
    trace: Trace,
    control: Arc<Control>,
) -> Result<(PassOutcome, Trace), firmware::StartError> {
    let (policy, session) = session(scenario, clock, planted, trace, control);
    firmware::run(kvm, image, &scenario.boot_page(policy), session)
}

/// The guest that a run is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestKind {
    /// The bundled firmware in a virtual machine.
    Firmware,
    /// The bundled kernel in this process.
    Model,
    /// A Linux kernel in a virtual machine.
    Linux,
}

impl GuestKind {
    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Firmware => "firmware",
            Self::Model => "model",
            Self::Linux => "linux",
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every check that was exercised held in every pass.
    Pass,
    /// A check failed.
    Fail,
    /// The run ended before its time and no check had failed until then.
    Incomplete,
}

impl Verdict {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Incomplete => "incomplete",
        }
    }
}

/// What a run of a Linux guest says beside the rest.
#[derive(Clone, Debug)]
pub struct LinuxOutcome {
    /// The kernel's own version line.
    pub banner: String,
    /// The options that chose the guest, each with its value, for the command that repeats the run.
    pub args: Vec<Vec<String>>,
    /// The clock of its rate limit was seen before the run.
    pub rate_limit_seen: bool,
    /// Scenario keys that do not apply to a Linux guest, and what holds instead.
    pub notes: Vec<String>,
    /// Checks that are about what the kernel lacks, and why it does.
    pub lacks: Vec<(CheckId, String)>,
    /// Functions that read the scheduler clock, and how often each did, most often first.
    pub clock_readers: Vec<(String, u64)>,
    /// The user's probes and how often each was hit.
    pub probes: Vec<(UserProbe, u64)>,
    /// Paths of the guest's groups as the trace counts them: the scenario's, then the guest's own.
    pub groups: Vec<String>,
    /// IRQ of each interrupt line, the timer's first.
    pub irqs: Vec<u8>,
    /// The guest booted an initrd of the user's, which has groups and tasks of its own.
    pub has_own_workload: bool,
}

/// Everything that a run found.
#[derive(Clone, Debug)]
pub struct RunOutcome {
    /// The scenario as run, overrides applied.
    pub scenario: Scenario,
    /// The built-in scenario's name or the file it came from, for the command that repeats the run.
    pub source: String,
    /// The overrides, for the same command.
    pub sets: Vec<String>,
    /// The guest.
    pub guest: GuestKind,
    /// What only a Linux guest has.
    pub linux: Option<LinuxOutcome>,
    /// The host's KVM: `vmx`, `svm`, `pvm`, `none` or `unknown`.
    pub host_kvm: &'static str,
    /// The passes that ran, the scenario's own rate-limit clock first.
    pub passes: Vec<PassOutcome>,
    /// SHA-256 of the whole trace, in hexadecimal.
    pub trace_sha256: String,
    /// Records of the trace.
    pub trace_records: u64,
}

impl RunOutcome {
    /// How it ended.
    pub fn verdict(&self) -> Verdict {
        let failed = |p: &PassOutcome| {
            p.checks.iter().any(|c| c.status == Status::Fail)
                || p.conformance.first().is_some_and(|c| c.differences() != 0)
        };
        if self.passes.iter().any(failed) {
            Verdict::Fail
        } else if self.passes.len() < pass_clocks(&self.scenario).len()
            || self.passes.iter().any(|p| p.stopped.is_some())
        {
            Verdict::Incomplete
        } else {
            Verdict::Pass
        }
    }
}
