//! `rqscope run`.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use guest_model::policy::RateLimitClock;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use super::output::Output;
use super::{Failure, Place, Stdout, color, complain, linux, place};
use crate::check::NAMES;
use crate::cli::{Format, Guest, RunArgs};
use crate::firmware::{self, StartError};
use crate::kvm::Kvm;
use crate::machine::{FIRMWARE, MachineError};
use crate::run::{
    GuestKind, Planted, RunOutcome, Verdict, pass_clocks, pass_on_firmware, pass_on_model,
};
use crate::scenario::{BUILTIN, Scenario, builtin, hint};
use crate::session::{Asked, Control, PassOutcome};
use crate::supervise::{Report, supervise};
use crate::trace::Trace;

/// Largest scenario file, bytes.
const MAX_SCENARIO: u64 = 1 << 20;
/// Largest guest image, bytes: what guest memory holds.
const MAX_IMAGE: u64 = 16 << 20;

/// Runs a scenario and reports; the exit code is the verdict's.
pub fn command(args: &RunArgs) -> Result<u8, Failure> {
    let mut scenario = load(args)?;
    if args.firmware.is_some() && args.guest == Some(Guest::Model) {
        let why = "--firmware needs a virtual machine: leave out --guest model";
        return Err(Failure::Input(why.into()));
    }
    let (on, guest, host_kvm) = choose(args, &scenario)?;
    if guest == GuestKind::Linux {
        // A kernel has the clock that it has: there is one pass.
        scenario.policy.compare.clear();
    }
    let control = Arc::new(Control::default());
    let (output, trace) = match &args.out {
        None => (None, Trace::hashed()),
        Some(dir) => {
            let output = Output::create(dir, &scenario).map_err(|e| Failure::input(&e))?;
            let trace = output.trace(control.stop_flag()).map_err(|e| Failure::input(&e))?;
            (Some(output), trace)
        }
    };

    let passes_begun = Arc::new(AtomicU64::new(0));
    let bar = io::stderr().is_terminal().then(|| progress(&scenario, guest, passes_begun.clone()));
    let work = Work {
        on,
        trace,
        control: control.clone(),
        passes_begun,
        output: output.clone(),
        outcome: RunOutcome {
            source: args.scenario.clone(),
            sets: args.sets.clone(),
            guest,
            linux: None,
            host_kvm,
            passes: Vec::new(),
            trace_sha256: String::new(),
            trace_records: 0,
            scenario,
        },
    };
    let done = supervise(&control, args.watchdog, bar, move || work.run());
    let (outcome, mut kept) = done.map_err(|e| Failure::host(&e))??;
    if let Some(output) = &output {
        kept = kept.and(output.finish(&outcome).map_err(|e| Failure::host(&e)));
    }
    let printed = print(&outcome, args);
    kept?;
    printed?;
    Ok(exit_code(&outcome))
}

/// What a run is on.
enum On {
    /// A virtual machine with this image, or the model in this process without one.
    Bundled(Option<Kvm>, Vec<u8>),
    /// A Linux kernel.
    Linux(Box<linux::Guest>),
}

/// The guest that the arguments ask for, with its kind and the host's KVM by name. Reads and checks all
/// of its files, before there is an output directory that holds nothing.
fn choose(args: &RunArgs, scenario: &Scenario) -> Result<(On, GuestKind, &'static str), Failure> {
    if let Some(kernel) = &args.linux.boot.kernel {
        if args.firmware.is_some() || args.guest.is_some() {
            let why = "--kernel is a guest of its own: leave out --guest and --firmware";
            return Err(Failure::Input(why.into()));
        }
        let (kvm, host_kvm) = linux::open()?;
        let guest = linux::Guest::load(kvm, kernel, &args.linux, scenario)?;
        return Ok((On::Linux(Box::new(guest)), GuestKind::Linux, host_kvm));
    }
    let image = match &args.firmware {
        None => FIRMWARE.into(),
        Some(path) => read_file(path, MAX_IMAGE, "--firmware")?,
    };
    let asked = args.firmware.as_ref().map_or(args.guest, |_| Some(Guest::Firmware));
    let Place { kvm, host_kvm } = place(asked)?;
    if let Some(path) = &args.firmware {
        firmware::check(&image, scenario.groups.len()).map_err(|e| match start_failure(&e) {
            Failure::Input(why) => Failure::Input(format!("--firmware {}: {why}", path.display())),
            other => other,
        })?;
    }
    let guest = if kvm.is_some() { GuestKind::Firmware } else { GuestKind::Model };
    Ok((On::Bundled(kvm, image), guest, host_kvm))
}

/// The report, on standard output.
fn print(outcome: &RunOutcome, args: &RunArgs) -> Result<(), Failure> {
    let mut out = io::BufWriter::new(Stdout::lock());
    match args.format {
        Format::Json => {
            serde_json::to_writer_pretty(&mut out, &crate::report::json(outcome))
                .map_err(io::Error::from)?;
            out.write_all(b"\n")?;
        }
        Format::Page => crate::report::page(&mut out, outcome, color(args.color))?,
    }
    Ok(out.flush()?)
}

/// The exit code of a run, and a line on standard error if it broke off.
fn exit_code(outcome: &RunOutcome) -> u8 {
    match outcome.passes.iter().find_map(|p| p.stopped.as_ref()) {
        Some((Asked::ByError, why)) => {
            complain(why);
            2
        }
        _ if outcome.verdict() == Verdict::Fail => 1,
        // The user did not wait for a guest to boot.
        None if outcome.passes.is_empty() => 130,
        Some((Asked::ByUser, _)) => 130,
        None => 0,
    }
}

/// What the guest's thread does.
struct Work {
    on: On,
    trace: Trace,
    control: Arc<Control>,
    passes_begun: Arc<AtomicU64>,
    output: Option<Output>,
    outcome: RunOutcome,
}

impl Work {
    /// All passes, until one breaks off. The second result is how keeping them on disk went: a full
    /// disk is no reason to lose what was found.
    fn run(mut self) -> Result<(RunOutcome, Result<(), Failure>), Failure> {
        let mut kept = Ok(());
        let clocks = match &self.on {
            On::Bundled(..) => pass_clocks(&self.outcome.scenario),
            // A kernel has the clock that it has.
            On::Linux(_) => vec![self.outcome.scenario.policy.rate_limit_clock],
        };
        for clock in clocks {
            self.control.now_ns.store(0, Relaxed);
            self.control.hits.store(0, Relaxed);
            self.passes_begun.fetch_add(1, Relaxed);
            let (scenario, control) = (&mut self.outcome.scenario, self.control.clone());
            let (pass, trace) = match &self.on {
                On::Bundled(kvm, image) => {
                    let machine = kvm.as_ref().map(|kvm| (kvm, image.as_slice()));
                    pass(machine, scenario, clock, Planted::default(), self.trace, control)?
                }
                On::Linux(guest) => {
                    self.outcome.linux = Some(guest.outcome(scenario));
                    let prepared = match guest.prepare(scenario, &control) {
                        // What is known is said all the same.
                        Err(Failure::Interrupted) => break,
                        other => other?,
                    };
                    let (pass, trace, linux) =
                        guest.run(prepared, scenario, self.trace, None, &control);
                    self.outcome.linux = Some(linux);
                    (pass, trace)
                }
            };
            self.trace = trace;
            let over = pass.stopped.is_some();
            self.outcome.passes.push(pass);
            if let Some(output) = &self.output {
                // What is known so far; the hash comes with the last.
                kept = kept.and(output.finish(&self.outcome).map_err(|e| Failure::host(&e)));
            }
            if over {
                break;
            }
        }
        let (hash, records, written) = self.trace.finish();
        self.outcome.trace_sha256 = hash;
        self.outcome.trace_records = records;
        let written = written.map_err(|e| Failure::Host(format!("write the trace: {e}")));
        Ok((self.outcome, kept.and(written)))
    }
}

/// One pass on an image in a virtual machine or, without a `machine`, on the model.
pub(super) fn pass(
    machine: Option<(&Kvm, &[u8])>,
    scenario: &Scenario,
    clock: RateLimitClock,
    planted: Planted,
    trace: Trace,
    control: Arc<Control>,
) -> Result<(PassOutcome, Trace), Failure> {
    match machine {
        Some((kvm, image)) => {
            pass_on_firmware(kvm, image, scenario, clock, planted, trace, control)
                .map_err(|e| start_failure(&e))
        }
        None => pass_on_model(scenario, clock, planted, trace, control)
            .map_err(|e| Failure::Input(format!("the guest refuses its boot page: {e:?}"))),
    }
}

/// A guest that cannot be started: its image's fault or the host's.
pub(super) fn start_failure(e: &StartError) -> Failure {
    match e {
        StartError::Machine(MachineError::Image(_)) | StartError::Introspection(_) => {
            Failure::input(e)
        }
        _ => Failure::host(e),
    }
}

/// The scenario that the arguments name, with their overrides.
fn load(args: &RunArgs) -> Result<Scenario, Failure> {
    let mut sets = args.sets.clone();
    sets.extend(args.seed.map(|seed| format!("seed={seed}")));
    let text = scenario_text(&args.scenario)?;
    Scenario::load(&text, &args.scenario, &sets, NAMES).map_err(|e| Failure::input(&e))
}

/// The TOML of a built-in scenario or of the file that `source` names.
pub(super) fn scenario_text(source: &str) -> Result<Cow<'static, str>, Failure> {
    if let Some(b) = builtin(source) {
        return Ok(Cow::Borrowed(b.text));
    }
    let path = Path::new(source);
    if !path.exists() {
        let hint = hint(source, BUILTIN.iter().map(|b| b.name));
        let why = format!("no built-in scenario and no file is called {source:?}; {hint}");
        return Err(Failure::Input(why));
    }
    let bytes = read_file(path, MAX_SCENARIO, "scenario")?;
    let text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Failure::Input(format!("scenario {}: not UTF-8 at byte {at}", path.display()))
    })?;
    Ok(Cow::Owned(text))
}

/// A file of at most `max` bytes.
pub(super) fn read_file(path: &Path, max: u64, what: &str) -> Result<Vec<u8>, Failure> {
    use std::io::Read;
    let fail = |e: io::Error| Failure::Input(format!("{what} {}: {e}", path.display()));
    let file = std::fs::File::open(path).map_err(fail)?;
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > max {
        let why = format!("{what} {}: larger than {max} bytes", path.display());
        return Err(Failure::Input(why));
    }
    Ok(bytes)
}

/// A bar of `length`, on standard error.
pub(super) fn bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length).with_finish(ProgressFinish::AndClear);
    // The template is a constant of this program; the default style is as good if it were refused.
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3}%  {msg}") {
        bar.set_style(style);
    }
    bar
}

/// A bar over all passes' guest time.
fn progress(scenario: &Scenario, guest: GuestKind, begun: Arc<AtomicU64>) -> Report {
    let duration = scenario.duration_ns;
    let passes = pass_clocks(scenario);
    let bar = bar(duration.saturating_mul(passes.len() as u64));
    let show = move |control: &Control| {
        let pass = begun.load(Relaxed).max(1) - 1;
        let now = control.now_ns.load(Relaxed);
        let clock = passes.get(pass as usize).map_or("", |c| c.name());
        let hits = control.hits.load(Relaxed);
        let ms = now / 1_000_000;
        bar.set_message(match guest {
            GuestKind::Linux if hits == 0 => "the guest gets ready".to_owned(),
            GuestKind::Linux => format!("{ms} ms of guest time, {hits} probes"),
            _ => format!("{clock}: {ms} ms of guest time, {hits} probes"),
        });
        bar.set_position(pass * duration + now.min(duration));
    };
    // At once, not only when the first tenth of a second is over.
    show(&Control::default());
    Box::new(show)
}
