//! `--kernel`: a Linux kernel in a virtual machine, unmodified and without an agent.
//!
//! [`bring_up`] boots it in real time until its PID 1 says that it is ready; from then on guest time is
//! the host's ([`run`]). [`Prepared`] has its workload built and its accounting settled; its run starts
//! from there with [`Prepared::run`].

pub mod bring_up;
pub mod bus;
pub mod console;
pub mod machine;
pub mod probes;
mod rules;
mod run;
pub mod snapshot;
pub mod time;
pub mod view;

use std::sync::Arc;

use guest_model::policy::Policy;
use guest_model::wire::linux::Plan;
use kvm_bindings::kvm_sregs;
use thiserror::Error;
use zerocopy::IntoBytes;

use self::bring_up::{Ready, STEAL_ORIGIN_NS};
use self::bus::Storm;
use self::machine::{Machine, MachineError};
use self::probes::{EXTRA, Hit, ProbeError, Probes};
use self::rules::Rules;
use self::run::{Flow, Guest};
use self::view::View;
use crate::check::CheckId;
use crate::engine::Injections;
use crate::guest::{GuestError, broke_off};
use crate::introspect::linux::btf::Btf;
use crate::introspect::linux::displace::Slots;
use crate::introspect::linux::layout::Shift;
use crate::introspect::linux::patch::PatchError;
use crate::introspect::linux::run_view::{Baseline, StampClock, Start, StartError, settled};
use crate::introspect::linux::symbols::SymbolTable;
use crate::introspect::linux::{Groups, Linux};
use crate::introspect::translate::{AddressSpace, Depth};
use crate::introspect::user::{UserError, write_user};
use crate::introspect::{Function, Lacks, LoadFunction, ReadError, SetupError};
use crate::kvm::VcpuError;
use crate::replay::{self, Replay, Rule};
use crate::session::{Control, PassOutcome, Session, Stop, chain};
use crate::trace::Trace;
use crate::view::{GuestView, RqView};

pub use self::run::Line;

/// Why a Linux guest does not come to its run.
#[derive(Debug, Error)]
pub enum LinuxError {
    /// No machine.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The guest broke off.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// Its kernel cannot be read.
    #[error("read the guest's kernel")]
    Setup(#[from] SetupError),
    /// A function cannot be probed.
    #[error(transparent)]
    Patch(#[from] PatchError),
    /// Too many probes.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The plan does not reach PID 1.
    #[error("hand PID 1 its plan")]
    Plan(#[from] UserError),
    /// PID 1 has room for another plan.
    #[error("PID 1 has {got} bytes for its plan of {expected}: is it from another build?")]
    PlanSize {
        /// The plan's size.
        expected: u64,
        /// The buffer's.
        got: u64,
    },
    /// The run cannot start.
    #[error(transparent)]
    Start(#[from] StartError<ReadError>),
    /// The vCPU refuses.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
    /// Something of the run queue cannot be read.
    #[error("read the guest's run queue")]
    Read(#[from] ReadError),
    /// The guest does not come to its run.
    #[error("the guest did not get ready for its run in {seconds} s of guest time")]
    NotStarted {
        /// Guest time that it had, s.
        seconds: u64,
    },
    /// A function is named twice.
    #[error("--probe {symbol}: named twice; once is enough")]
    ProbedTwice {
        /// The function.
        symbol: String,
    },
    /// A function has a standard probe.
    #[error("--probe {symbol}: it is probed in every run, for what rqscope judges")]
    AlreadyProbed {
        /// The function.
        symbol: String,
    },
    /// Softirq work has no place to be done.
    #[error(
        "the scenario has softirq work or lines that wake tasks, and the kernel's network driver cannot be probed: {why}"
    )]
    NoSoftirq {
        /// Why not.
        why: String,
    },
}

impl LinuxError {
    /// The user asked for the end.
    pub fn interrupted(&self) -> bool {
        matches!(self, Self::Guest(GuestError::Session(Stop::Interrupted)))
    }
}

/// What a kernel file says of the kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its symbols.
    pub symbols: SymbolTable,
    /// Its types; `None` has them read from guest memory.
    pub types: Option<Btf>,
    /// A member that is taken to be elsewhere, to see that it is noticed.
    pub shift: Option<Shift>,
}

/// What the user wants probed beside the standard functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserProbe {
    /// The function.
    pub symbol: String,
    /// Names of its arguments.
    pub args: Vec<String>,
}

/// What was found out about a kernel before its run.
#[derive(Clone, Debug)]
pub struct Found {
    /// The kernel's own line about itself.
    pub banner: String,
    /// Its rules, as it followed them before the run.
    pub policy: Policy,
    /// The clock of its rate limit is among them because it was seen, and not for want of another.
    pub rate_limit_seen: bool,
    /// Its groups: the scenario's in their order, then its own.
    pub groups: Groups,
    /// Checks that are about what it lacks, and what that is.
    pub lacks: Vec<(CheckId, String)>,
    /// It has a steal clock.
    pub has_steal_clock: bool,
    /// One level of hardirq in the kernel's preempt count; 0 if not seen.
    pub hardirq_offset: u32,
    /// Rules whose calls cannot be made again, and why.
    pub unseen: Vec<(Rule, String)>,
}

/// A guest whose run can start at once.
pub struct Prepared<I> {
    guest: Guest<I>,
    faults: Vec<replay::Planted>,
    /// What was found out about it.
    pub found: Found,
}

/// What a run of a Linux guest says beside its [`PassOutcome`].
#[derive(Clone, Debug, Default)]
pub struct Extras {
    /// Functions that read the scheduler clock, and how often each did.
    pub clock_readers: Vec<(String, u64)>,
    /// Hits of the user's probes.
    pub user_hits: Vec<u64>,
}

/// How long a guest is watched for a zero delta, of which every tick of a task is one: 100 ms.
const WATCH_NS: u64 = 100_000_000;
/// A guest that has not settled after this much guest time is not waited for: 2 s.
const SETTLE_NS: u64 = 2_000_000_000;

/// Bit 12 of CR4: 5-level paging (SDM 3A, section 2.5).
const CR4_LA57: u64 = 1 << 12;

fn depth(sregs: &kvm_sregs) -> Depth {
    if sregs.cr4 & CR4_LA57 != 0 { Depth::Five } else { Depth::Four }
}

/// The address space of the task that runs.
fn address_space(sregs: &kvm_sregs) -> AddressSpace {
    AddressSpace::new(sregs.cr3, depth(sregs))
}

/// What a run of a Linux guest is made of, beside its machine.
#[derive(Clone, Debug)]
pub struct Workload<'a> {
    /// What PID 1 is to build; an initrd of the user's brings its own.
    pub plan: &'a Plan,
    /// Paths of the scenario's groups, the root's first.
    pub paths: Vec<String>,
    /// The scenario's interrupt lines.
    pub lines: Vec<Line>,
    /// What the user wants probed.
    pub probes: &'a [UserProbe],
}

/// Finds the kernel in a guest that stands still, installs the probes, has PID 1 carry out its plan, and
/// waits until the accounting of what went before is settled. To be called on the thread that is to run
/// the vCPU.
pub fn prepare<I: Injections>(
    mut machine: Machine,
    ready: &Ready,
    kernel: &Kernel,
    work: Workload<'_>,
    control: &Arc<Control>,
) -> Result<Prepared<I>, LinuxError> {
    let sregs = machine.vcpu.read_sregs()?;
    let depth = depth(&sregs);
    let (symbols, types) = (kernel.symbols.clone(), kernel.types.clone());
    let mut linux =
        Linux::find(machine.memory.clone(), sregs.cr3, depth, sregs.idt.base, symbols, types)?;
    if let Some(shift) = kernel.shift {
        linux.shift(shift);
    }
    if let Some(buffer) = ready.buffer {
        let plan = work.plan.as_bytes();
        let expected = plan.len() as u64;
        if buffer.size != expected {
            return Err(LinuxError::PlanSize { expected, got: buffer.size });
        }
        write_user(&machine.memory, address_space(&sregs), buffer.address, plan)?;
    }
    control.set_kick(Some(machine.vcpu.kick_handle()?));
    let (probes, missing) = install(&linux, work.probes)?;
    if work.lines.iter().any(|line| matches!(line.storm, Storm::Net(_)))
        && let Some((_, why)) = missing.iter().find(|(hit, _)| *hit == Hit::Softirq)
    {
        return Err(LinuxError::NoSoftirq { why: why.clone() });
    }
    // Tasks say who they are before all groups are there.
    let raw = linux.introspector(linux.groups(&[])?.table)?;
    let view = View::new(raw)?;
    let mut guest: Guest<I> = Guest::new(machine, linux, view, probes, work.lines, control.clone());
    guest.catch_up(ready.buffer.is_some())?;

    let mut rules = Rules::default();
    let own_init = ready.buffer.is_some();
    if own_init {
        while turn(&mut guest, &mut rules, false)? != Flow::Started {}
    }
    let wanted: Vec<&str> = work.paths.iter().skip(1).map(String::as_str).collect();
    let groups = guest.linux.groups(if own_init { &wanted } else { &[] })?;
    let raw = guest.linux.introspector(groups.table.clone())?;
    guest.view.replace(raw);
    guest.view.raw().sanity_at_rest(guest.sched_clock_ns()?)?;
    let mut lacks = guest.view.raw().lacks();
    let steal_ns = lacks.steal.is_none().then_some(STEAL_ORIGIN_NS);
    let mut psi = lacks.psi.is_none();
    let begun_ns = guest.time.clock().now_ns();
    let ticks = guest.probes.has(Hit::Tick);
    loop {
        if own_init {
            // PID 1 burns between two questions.
            while turn(&mut guest, &mut rules, true)? != Flow::Settle {}
        } else {
            // A run does not begin inside a rule.
            while turn(&mut guest, &mut rules, true)? != Flow::Rest {}
        }
        let since_ns = guest.time.clock().now_ns() - begun_ns;
        let seen = !psi || rules.knows_zero_delta() || since_ns > WATCH_NS;
        let late = since_ns > SETTLE_NS;
        let ready = seen && settled(&guest.view.rq()?, steal_ns, psi);
        // Two kernels are alike only from the same instant of their ticks on.
        let done = late || ready && (!own_init || !ticks || guest.at_tick());
        if own_init {
            guest.machine.vcpu.answer_in(done.into())?;
        }
        if done {
            break;
        }
    }

    let rq = guest.view.rq()?;
    if psi && !own_init && settled(&rq, steal_ns, false) && !settled(&rq, steal_ns, true) {
        // PSI charges at ticks, and a guest of the user's may be one that only sleeps.
        psi = false;
        lacks.psi = Some("has IRQ time of before the run to charge: no task ran through a tick");
    }

    let count = groups.parents.len() as u16;
    let seen = rules.stamp_clock(&guest.view, count)?;
    let stamp_clock = seen.unwrap_or(StampClock::Clock);
    let policy = rules.policy(stamp_clock, &guest.probes, guest.linux.symbols());
    let sched_clock_ns = guest.sched_clock_ns()?;
    let start = Start { sched_clock_ns, steal_ns, psi, stamp_clock };
    let baseline = Baseline::take(&guest.view, count, start)?;
    guest.view.begin(baseline);
    guest.probes.clear_counts();
    let mut unseen = unseen(&missing, &lacks, guest.view.raw().load_is_unknown(), &rq);
    let hardirq_offset = rules.hardirq_offset().unwrap_or_else(|| {
        let why = "no interrupt came before the run that would show how contexts are counted";
        unseen.push((Rule::IrqtimeAccountIrq, why.into()));
        0
    });
    let mut lacks = lacking(&missing, lacks);
    if psi && !rules.knows_zero_delta() {
        let why = "the kernel met no zero delta before the run";
        unseen.push((Rule::PsiAccountIrqtime, why.into()));
        lacks.push((CheckId::PsiZero, why.into()));
    }
    let reads_seen = guest.probes.has(Hit::ClockRead);
    let rate_limit_seen = seen.is_some_and(|s| s == StampClock::ClockTask || reads_seen);
    if seen.is_none() {
        let why = "the kernel published no load before the run, so its clock is not known";
        unseen.push((Rule::UpdateTgLoadAvg, why.into()));
        lacks.push((CheckId::TgRateLimit, why.into()));
    }
    let banner = guest.linux.banner()?;
    let has_steal_clock = steal_ns.is_some();
    let found = Found {
        banner,
        policy,
        rate_limit_seen,
        groups,
        lacks,
        has_steal_clock,
        hardirq_offset,
        unseen,
    };
    Ok(Prepared { guest, faults: Vec::new(), found })
}

/// One turn of a guest before its run.
fn turn<I: Injections>(
    guest: &mut Guest<I>,
    rules: &mut Rules,
    groups_known: bool,
) -> Result<Flow, LinuxError> {
    let flow = guest.turn()?;
    match flow {
        Flow::Called(function, args) if groups_known => {
            rules.called(&guest.view, function, args)?
        }
        Flow::Called(..) => drop(rules.look(&guest.view)?),
        _ => {}
    }
    if guest.time.finished() {
        return Err(LinuxError::NotStarted { seconds: time::PREPARE_NS / 1_000_000_000 });
    }
    Ok(flow)
}

/// Probes that could not be installed, and why.
type Missing = Vec<(Hit, String)>;

/// Patches the entries of all functions that are probed.
fn install(linux: &Linux, wanted: &[UserProbe]) -> Result<(Probes, Missing), LinuxError> {
    let (mut probes, mut missing) = (Probes::default(), Vec::new());
    let mut slots = linux.slots()?;
    for function in Function::ALL {
        let hit = Hit::Call(function);
        let name = function.symbol();
        let port = probes.next_port(name)?;
        match plant(linux, name, port, &mut slots) {
            Ok((address, resume)) => probes.add(address, hit, resume),
            Err(e) if matches!(function, Function::UpdateRqClock | Function::IrqtimeAccountIrq) => {
                return Err(e.into());
            }
            Err(e) => missing.push((hit, chain(&e))),
        }
    }
    for function in LoadFunction::ALL {
        let name = function.symbol();
        let port = probes.next_port(name)?;
        match plant(linux, name, port, &mut slots) {
            Ok((address, resume)) => probes.add(address, Hit::Load(function), resume),
            Err(e) => missing.push((Hit::Load(function), chain(&e))),
        }
    }
    for extra in EXTRA {
        let known = |name: &&&str| linux.symbols().table().has(name);
        let name = extra.names.iter().find(known).unwrap_or(&extra.names[0]);
        match linux.probe_entry(name, probes.next_port(name)?) {
            Ok(planted) => probes.add(planted.address, extra.hit, None),
            Err(e) => missing.push((extra.hit, chain(&e))),
        }
    }
    for (index, probe) in (0u8..).zip(wanted) {
        let symbol = &probe.symbol;
        if wanted[..usize::from(index)].iter().any(|other| other.symbol == *symbol) {
            return Err(LinuxError::ProbedTwice { symbol: symbol.clone() });
        }
        if linux.symbols().function(symbol).is_ok_and(|at| probes.is_probed(at)) {
            return Err(LinuxError::AlreadyProbed { symbol: symbol.clone() });
        }
        let planted = linux.probe(symbol, probes.next_port(symbol)?)?;
        probes.add(planted.address, Hit::User(index), None);
    }
    Ok((probes, missing))
}

/// Plants a probe, whatever the function begins with: where it is, and where the guest goes on if not behind it.
fn plant(
    linux: &Linux,
    name: &str,
    port: u8,
    slots: &mut Slots,
) -> Result<(u64, Option<u64>), PatchError> {
    match linux.probe(name, port) {
        Err(PatchError::NotANoOp { .. }) => linux
            .displace(name, port, slots)
            .map(|displaced| (displaced.address, Some(displaced.resume))),
        other => other.map(|planted| (planted.address, None)),
    }
}

/// The checks that are about what a kernel lacks, and what that is.
fn lacking(missing: &Missing, lacks: Lacks) -> Vec<(CheckId, String)> {
    let mut checks: Vec<(CheckId, String)> = vec![
        (CheckId::Costs, "a Linux kernel keeps no counters of what its rules cost".into()),
        (CheckId::TgOffline, "the only CPU cannot go offline".into()),
    ];
    let why = |hit| missing.iter().find(|(m, _)| *m == hit).map(|(_, why)| why.clone());
    let mut without = |hit, ids: &[CheckId]| {
        if let Some(why) = why(hit) {
            checks.extend(ids.iter().map(|id| (*id, why.clone())));
        }
    };
    use CheckId::*;
    without(
        Hit::Call(Function::UpdateTgLoadAvg),
        &[TgRateLimit, TgTolerance, TgPublished, RqClockFresh],
    );
    let psi = [PsiCalled, PsiZero, PsiWrites, PsiIrqLedger, PsiDeltaNotNegative];
    without(Hit::Call(Function::PsiAccountIrqtime), &psi);
    without(Hit::Call(Function::PsiTaskSwitch), &[PsiCalled]);
    without(Hit::Tick, &[PsiCalled, LeafList]);
    if let Some(why) = lacks.psi {
        checks.extend(psi.iter().map(|id| (*id, format!("the kernel {why}"))));
    }
    if let Some(why) = lacks.steal {
        checks.push((StealAccounted, format!("the kernel {why}")));
    }
    checks
}

/// Rules whose calls cannot be made again, and why.
fn unseen(
    missing: &Missing,
    lacks: &Lacks,
    load_unknown: Option<String>,
    rq: &RqView,
) -> Vec<(Rule, String)> {
    let mut unseen = Vec::new();
    for (rule, function) in [
        (Rule::PsiAccountIrqtime, Function::PsiAccountIrqtime),
        (Rule::UpdateIrqLoadAvg, Function::UpdateIrqLoadAvg),
        (Rule::UpdateTgLoadAvg, Function::UpdateTgLoadAvg),
    ] {
        let hit = Hit::Call(function);
        if let Some((_, why)) = missing.iter().find(|(m, _)| *m == hit) {
            unseen.push((rule, why.clone()));
        }
    }
    let load = missing.iter().find(|(hit, _)| matches!(hit, Hit::Load(_)));
    if let Some(why) = load.map(|(_, why)| why.clone()).or(load_unknown) {
        unseen.push((Rule::UpdateLoadAvg, why));
    }
    if let Some(why) = lacks.psi {
        unseen.push((Rule::PsiAccountIrqtime, format!("the kernel {why}")));
    }
    if rq.preempt_count.is_none() {
        let why = "the kernel's preempt count is not found";
        unseen.push((Rule::IrqtimeAccountIrq, why.into()));
    }
    unseen
}

impl<I: Injections> Prepared<I> {
    /// The run: `session` from its start to its end. Whatever the guest does, what was found until then
    /// is in the outcome.
    pub fn run(mut self, mut session: Session<I>) -> (PassOutcome, Trace, Extras) {
        let ids: Vec<CheckId> = self.found.lacks.iter().map(|(id, _)| *id).collect();
        session.lacks(&ids);
        if !self.found.has_steal_clock {
            session.lacks_steal_clock();
        }
        let control = session.control();
        let begun = self.begin(&mut session).map_err(GuestError::from);
        let (session, ended) = match begun {
            Ok(()) => self.guest.run(session),
            Err(e) => (session, Err(e)),
        };
        let stopped = ended.err().map(|e| broke_off(&self.guest.machine.vcpu, &e));
        control.set_kick(None);
        let (outcome, trace) = session.finish(&self.guest.view, stopped);
        let extras = Extras {
            clock_readers: self.clock_readers(),
            user_hits: self.guest.probes.user_hits().to_vec(),
        };
        (outcome, trace, extras)
    }

    /// What the guest holds is where the checks and the replay start from.
    fn begin(&self, session: &mut Session<I>) -> Result<(), Stop<ReadError>> {
        let view = &self.guest.view;
        session.begin(view)?;
        let guest = replay::Guest {
            policy: self.found.policy,
            parents: self.found.groups.parents.clone(),
            has_steal_clock: self.found.has_steal_clock,
            hardirq_offset: self.found.hardirq_offset,
            unseen: self.found.unseen.clone(),
        };
        session.replay(Replay::begin(guest, &self.faults, view).map_err(Stop::View)?);
        Ok(())
    }

    /// Plants faults, each in a replay of its own.
    pub fn plant(&mut self, faults: &[replay::Planted]) {
        self.faults = faults.to_vec();
    }

    /// Functions that read the scheduler clock, most often first.
    fn clock_readers(&self) -> Vec<(String, u64)> {
        let mut readers: Vec<(String, u64)> = Vec::new();
        for (at, count) in self.guest.probes.clock_readers() {
            let name = self.guest.linux.symbols().caller(*at).unwrap_or("(unknown)");
            match readers.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum += count,
                None => readers.push((name.to_owned(), *count)),
            }
        }
        readers.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        readers
    }
}
