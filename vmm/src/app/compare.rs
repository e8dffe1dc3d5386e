//! `rqscope compare`.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use serde_json::Value;

use super::output::Output;
use super::run::{bar, scenario_text, start_failure};
use super::{Failure, Stdout, color, complain, linux, no_kvm};
use crate::check::NAMES;
use crate::cli::{BootArgs, CompareArgs, Format, Guest, LinuxArgs};
use crate::compare::subject::{Identity, Subject, What, names};
use crate::compare::{Cell, Claim, Comparison, Study, Summary};
use crate::kvm::{HostKvm, Kvm};
use crate::machine::FIRMWARE;
use crate::run::{GuestKind, Planted, RunOutcome, session};
use crate::scenario::Scenario;
use crate::session::{Asked, Control};
use crate::supervise::{Report, supervise};
use crate::trace::Trace;
use crate::{firmware, model};

/// Most subjects.
const MAX_SUBJECTS: usize = 16;
/// Most pairs of scenario and seed.
const MAX_CELLS: u64 = 10_000;

/// Runs every subject under every scenario and seed; exit code 1 if a claim fails.
pub fn command(args: &CompareArgs) -> Result<u8, Failure> {
    let claims = args.claims.iter().map(|key| claim(key)).collect::<Result<Vec<_>, _>>()?;
    let subjects = subjects(args)?;
    let cells = cells(args)?;
    let mut bench = Bench::new(args, subjects, &cells)?;
    let output = args.out.as_deref().map(Output::empty).transpose();
    let output = output.map_err(|e| Failure::input(&e))?;
    let study = Study {
        names: Vec::new(),
        subjects: args.subjects.clone(),
        sets: args.sets.clone(),
        claims,
        cells: Vec::new(),
        planned: cells.len(),
        interrupted: false,
    };

    let control = Arc::new(Control::default());
    let begun = Arc::new(AtomicUsize::new(0));
    let bar = io::stderr().is_terminal().then(|| progress(&cells, &args.subjects, begun.clone()));
    let for_guest = control.clone();
    let work = move || {
        let mut ran = Ran { study, broke_off: None, failure: None };
        if let Err(failure) = bench.run(&cells, output.as_ref(), &begun, &for_guest, &mut ran) {
            ran.failure = Some(failure);
        }
        if let Some(output) = &output {
            let summary = json_line(&crate::report::compare_json(&ran.study, false));
            let kept = output.write("summary.json", &summary).map_err(|e| Failure::host(&e));
            ran.failure = ran.failure.or(kept.err());
        }
        ran
    };
    let ran = supervise(&control, args.watchdog, bar, work).map_err(|e| Failure::host(&e))?;
    let printed = if ran.failure.is_none() || !ran.study.cells.is_empty() {
        print(&ran.study, args)
    } else {
        Ok(())
    };
    if let Some(failure) = ran.failure {
        return Err(failure);
    }
    printed?;
    Ok(exit_code(&ran))
}

/// What came of it.
struct Ran {
    study: Study,
    /// Why the first guest that broke off did.
    broke_off: Option<String>,
    /// What kept the rest from running, or from being kept.
    failure: Option<Failure>,
}

fn exit_code(ran: &Ran) -> u8 {
    if let Some(why) = &ran.broke_off {
        complain(why);
        2
    } else if ran.study.failed().next().is_some() {
        1
    } else if ran.study.interrupted {
        130
    } else {
        0
    }
}

fn claim(key: &str) -> Result<Claim, Failure> {
    match key.trim() {
        "" => Err(Failure::Input("--expect-equal: names no key".into())),
        key => Ok(Claim { key: key.to_owned() }),
    }
}

fn subjects(args: &CompareArgs) -> Result<Vec<Subject>, Failure> {
    let subjects = args.subjects.iter().map(|text| Subject::parse(text));
    let subjects = subjects.collect::<Result<Vec<_>, _>>().map_err(|e| Failure::input(&e))?;
    match subjects.len() {
        0 | 1 => {
            let why =
                "one subject has nothing to be compared with: name another, or the same again";
            return Err(Failure::Input(why.into()));
        }
        n if n > MAX_SUBJECTS => {
            return Err(Failure::Input(format!(
                "{n} subjects; at most {MAX_SUBJECTS} fit a table"
            )));
        }
        _ => {}
    }
    let mut seen = HashSet::new();
    let twice = subjects.iter().filter_map(|s| s.name.as_ref()).find(|name| !seen.insert(*name));
    match twice {
        Some(name) => Err(Failure::Input(format!("two subjects are called {name}"))),
        None => Ok(subjects),
    }
}

/// A scenario and a seed that are to be run.
struct Todo {
    source: String,
    text: Arc<str>,
    /// The user's seed, if not the scenario's own.
    seed: Option<u64>,
    duration_ns: u64,
    /// Its file in the output directory.
    file: String,
}

impl Todo {
    fn scenario(&self, sets: &[String]) -> Result<Scenario, Failure> {
        let mut sets = sets.to_vec();
        sets.extend(self.seed.map(|seed| format!("seed={seed}")));
        Scenario::load(&self.text, &self.source, &sets, NAMES).map_err(|e| Failure::input(&e))
    }
}

/// All scenarios under the first seed, then all under the next: what is broken off has something of each.
fn cells(args: &CompareArgs) -> Result<Vec<Todo>, Failure> {
    let count = |&(first, last): &(u64, u64)| (last - first).saturating_add(1);
    let seeds = args.seeds.iter().map(count).fold(0u64, u64::saturating_add).max(1);
    let all = seeds.saturating_mul(args.scenarios.len() as u64);
    if all > MAX_CELLS {
        let why =
            format!("{all} pairs of scenario and seed; at most {MAX_CELLS} are run at a time");
        return Err(Failure::Input(why));
    }
    let seeds: Vec<Option<u64>> = match args.seeds.as_slice() {
        [] => vec![None],
        ranges => ranges.iter().flat_map(|&(first, last)| first..=last).map(Some).collect(),
    };
    let texts = args.scenarios.iter().map(|source| scenario_text(source));
    let texts = texts.collect::<Result<Vec<Cow<'_, str>>, _>>()?;
    let texts: Vec<Arc<str>> = texts.iter().map(|text| Arc::from(text.as_ref())).collect();
    let mut cells = Vec::new();
    let mut files = HashSet::new();
    for seed in seeds {
        for (source, text) in args.scenarios.iter().zip(&texts) {
            let mut todo = Todo {
                source: source.clone(),
                text: text.clone(),
                seed,
                duration_ns: 0,
                file: String::new(),
            };
            let scenario = todo.scenario(&args.sets)?;
            todo.duration_ns = scenario.duration_ns;
            let stem = file_stem(source);
            let name = |n: usize| match n {
                1 => format!("{stem}-{}.json", scenario.seed),
                n => format!("{stem}-{}-{n}.json", scenario.seed),
            };
            todo.file = (1..).map(name).find(|name| !files.contains(name)).unwrap_or_default();
            files.insert(todo.file.clone());
            cells.push(todo);
        }
    }
    Ok(cells)
}

/// The name of a scenario's file without its directory and extension, and without what a file's name
/// had better not have.
fn file_stem(source: &str) -> String {
    let stem = Path::new(source).file_stem().unwrap_or_default().to_string_lossy();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    stem.trim_start_matches('.').chars().map(plain).take(64).collect()
}

/// Where a subject runs.
enum On {
    Model,
    Firmware(Box<Kvm>),
    Linux(Box<linux::Guest>),
}

/// The subjects, ready to run.
struct Bench {
    subjects: Vec<Subject>,
    on: Vec<On>,
    sets: Vec<String>,
    samples: u32,
    host_kvm: &'static str,
}

impl Bench {
    /// Reads and checks all files; nothing runs yet.
    fn new(args: &CompareArgs, subjects: Vec<Subject>, cells: &[Todo]) -> Result<Self, Failure> {
        let mut bench = Self {
            subjects,
            on: Vec::new(),
            sets: args.sets.clone(),
            samples: args.samples,
            host_kvm: if Kvm::open().is_ok() { HostKvm::detect().name() } else { "none" },
        };
        let seed = |cell: &&Todo| cells.first().is_some_and(|first| first.seed == cell.seed);
        for subject in &bench.subjects {
            // Other seeds change nothing that could be refused.
            let scenarios =
                cells.iter().filter(seed).map(|cell| cell.scenario(&bench.sets_of(subject)));
            let scenarios = scenarios.collect::<Result<Vec<_>, _>>()?;
            let on = match &subject.what {
                What::Bundled { guest: Guest::Model, .. } => On::Model,
                What::Bundled { guest: Guest::Firmware, .. } => {
                    let kvm = Kvm::open().map_err(|e| {
                        let why = "or compare `model`, which needs no virtual machine";
                        Failure::Host(format!("{}; {why}", no_kvm(&e)))
                    })?;
                    On::Firmware(Box::new(kvm))
                }
                What::Kernel(path) => {
                    let (kvm, _) = linux::open()?;
                    let args = linux_args(path, args)?;
                    let Some(first) = scenarios.first() else { continue };
                    let mut guest = linux::Guest::load(kvm, path, &args, first)?;
                    for scenario in &scenarios {
                        guest.take(scenario)?;
                    }
                    On::Linux(Box::new(guest))
                }
            };
            bench.on.push(on);
        }
        Ok(bench)
    }

    /// The overrides of a subject's runs.
    fn sets_of(&self, subject: &Subject) -> Vec<String> {
        let mut sets = self.sets.clone();
        if let What::Bundled { clock, psi, .. } = subject.what {
            sets.extend(clock.map(|clock| format!("policy.rate_limit_clock={}", clock.name())));
            sets.extend(psi.map(|psi| format!("policy.psi={}", psi.name())));
            sets.push("policy.compare=[]".into());
        }
        sets
    }

    /// All cells, until one is broken off.
    fn run(
        &mut self,
        cells: &[Todo],
        output: Option<&Output>,
        begun: &AtomicUsize,
        control: &Arc<Control>,
        ran: &mut Ran,
    ) -> Result<(), Failure> {
        let mut kept = Ok(());
        let scenarios = cells.iter().take_while(|cell| cell.seed == cells[0].seed).count();
        for (i, todo) in cells.iter().enumerate() {
            let mut runs: Vec<(RunOutcome, Value)> = Vec::new();
            for subject in 0..self.subjects.len() {
                begun.store(i * self.subjects.len() + subject, Relaxed);
                control.now_ns.store(0, Relaxed);
                control.hits.store(0, Relaxed);
                let outcome = self.subject(subject, todo, control)?;
                let by_user = outcome.as_ref().is_none_or(|outcome| {
                    let stopped = outcome.passes.first().and_then(|pass| pass.stopped.as_ref());
                    stopped.is_some_and(|(asked, _)| *asked == Asked::ByUser)
                });
                let Some(outcome) = outcome.filter(|_| !by_user) else {
                    ran.study.interrupted = true;
                    return kept;
                };
                let json = crate::report::json(&outcome);
                runs.push((outcome, json));
            }
            let cell = self.cell(todo, &runs, &mut ran.study);
            if ran.broke_off.is_none() {
                let stopped = ran.study.names.iter().zip(&cell.runs);
                ran.broke_off = stopped
                    .filter_map(|(name, run)| Some(format!("{name}: {}", run.stopped.as_ref()?)))
                    .next();
            }
            if let Some(output) = output {
                let json = json_line(&crate::report::cell_json(&ran.study, &cell, true));
                kept = kept.and(output.write(&todo.file, &json).map_err(|e| Failure::host(&e)));
            }
            ran.study.cells.push(cell);
            // Every scenario has been run once.
            if i + 1 == scenarios {
                known(&ran.study)?;
            }
        }
        kept
    }

    fn cell(&self, todo: &Todo, runs: &[(RunOutcome, Value)], study: &mut Study) -> Cell {
        let summaries: Vec<Summary> = runs.iter().map(|(_, json)| Summary::new(json)).collect();
        if study.names.is_empty() {
            let identities = self.subjects.iter().zip(runs).zip(&summaries);
            let identity =
                |((subject, (run, _)), summary): ((&Subject, &(RunOutcome, _)), &Summary)| {
                    match &subject.what {
                        What::Kernel(path) => {
                            Identity::Kernel { version: summary.version(), path: path.clone() }
                        }
                        What::Bundled { guest, .. } => Identity::Bundled {
                            guest: *guest,
                            clock: run.scenario.policy.rate_limit_clock,
                            psi: run.scenario.policy.psi,
                        },
                    }
                };
            study.names = names(&self.subjects, &identities.map(identity).collect::<Vec<_>>());
        }
        let runs: Vec<_> = runs.iter().map(|(outcome, json)| (outcome, json)).collect();
        let comparison = Comparison::new(&runs);
        let judged = study.claims.iter().map(|claim| claim.judge(&comparison)).collect();
        Cell {
            source: todo.source.clone(),
            seed: runs.first().map_or(0, |(run, _)| run.scenario.seed),
            duration_ns: todo.duration_ns,
            runs: summaries,
            comparison,
            judged,
        }
    }

    /// One run of a subject: one pass, with samples. `None` if it was broken off before it began.
    fn subject(
        &mut self,
        index: usize,
        todo: &Todo,
        control: &Arc<Control>,
    ) -> Result<Option<RunOutcome>, Failure> {
        let sets = self.sets_of(&self.subjects[index]);
        let mut scenario = todo.scenario(&sets)?;
        let trace = Trace::hashed();
        let mut linux = None;
        let (guest, pass, trace) = match &mut self.on[index] {
            On::Linux(guest) => {
                scenario.policy.compare.clear();
                guest.take(&scenario)?;
                let prepared = match guest.prepare(&mut scenario, control) {
                    Err(Failure::Interrupted) => return Ok(None),
                    other => other?,
                };
                let samples = Some(self.samples);
                let (pass, trace, found) = guest.run(prepared, &scenario, trace, samples, control);
                linux = Some(found);
                (GuestKind::Linux, pass, trace)
            }
            bundled => {
                let clock = scenario.policy.rate_limit_clock;
                let planted = Planted::default();
                let (policy, mut session) =
                    session(&scenario, clock, planted, trace, control.clone());
                session.sample_times(self.samples);
                let page = scenario.boot_page(policy);
                match bundled {
                    On::Firmware(kvm) => {
                        let ran = firmware::run(kvm, FIRMWARE, &page, session);
                        let (pass, trace) = ran.map_err(|e| start_failure(&e))?;
                        (GuestKind::Firmware, pass, trace)
                    }
                    _ => {
                        let ran = model::run(&page, session);
                        let (pass, trace) = ran.map_err(|e| {
                            Failure::Input(format!("the guest refuses its boot page: {e:?}"))
                        })?;
                        (GuestKind::Model, pass, trace)
                    }
                }
            }
        };
        let (trace_sha256, trace_records, _) = trace.finish();
        Ok(Some(RunOutcome {
            scenario,
            source: todo.source.clone(),
            sets,
            guest,
            linux,
            host_kvm: self.host_kvm,
            passes: vec![pass],
            trace_sha256,
            trace_records,
        }))
    }
}

/// Every claim is about a key that some cell has.
fn known(study: &Study) -> Result<(), Failure> {
    let Some(claim) = study.unknown() else { return Ok(()) };
    let keys = study.cells.iter().flat_map(|cell| cell.comparison.keys().map(|(key, _)| key));
    let keys: HashSet<&str> = keys.collect();
    let near = claim.near(keys.into_iter());
    Err(Failure::Input(format!("--expect-equal {}: no result has this key; {near}", claim.key)))
}

/// How the kernel in `path` is booted.
fn linux_args(path: &Path, args: &CompareArgs) -> Result<LinuxArgs, Failure> {
    let boot = BootArgs {
        kernel: Some(path.to_owned()),
        symbols: symbols(path)?,
        initrd: None,
        cmdline: args.cmdline.clone(),
        memory: args.memory,
        console: false,
        boot_timeout: args.boot_timeout,
    };
    Ok(LinuxArgs { boot, probes: Vec::new(), no_snapshot: args.no_snapshot })
}

/// The System.map beside a kernel that is no ELF file and so has no symbols of its own.
fn symbols(path: &Path) -> Result<Option<PathBuf>, Failure> {
    let mut magic = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(4).read_to_end(&mut magic))
        .map_err(|e| Failure::Input(format!("subject {}: {e}", path.display())))?;
    let map = path.with_file_name("System.map");
    Ok((magic != b"\x7fELF" && map.exists()).then_some(map))
}

/// The report, on standard output.
fn print(study: &Study, args: &CompareArgs) -> Result<(), Failure> {
    let mut out = io::BufWriter::new(Stdout::lock());
    match args.format {
        Format::Json => {
            let json = crate::report::compare_json(study, true);
            serde_json::to_writer_pretty(&mut out, &json).map_err(io::Error::from)?;
            out.write_all(b"\n")?;
        }
        Format::Page => crate::report::compare_page(&mut out, study, color(args.color))?,
    }
    Ok(out.flush()?)
}

fn json_line(json: &Value) -> Vec<u8> {
    let mut text = json.to_string();
    text.push('\n');
    text.into_bytes()
}

/// A bar over the guest time of all runs.
fn progress(cells: &[Todo], subjects: &[String], begun: Arc<AtomicUsize>) -> Report {
    let mut runs: Vec<(u64, u64, String)> = Vec::new();
    let mut sum = 0u64;
    for cell in cells {
        for subject in subjects {
            let seed = cell.seed.map_or(String::new(), |seed| format!(" seed {seed}"));
            runs.push((sum, cell.duration_ns, format!("{}{seed}: {subject}", cell.source)));
            sum = sum.saturating_add(cell.duration_ns);
        }
    }
    let bar = bar(sum);
    let show = move |control: &Control| {
        let Some((before, duration, what)) = runs.get(begun.load(Relaxed)) else { return };
        let now = control.now_ns.load(Relaxed);
        bar.set_message(match control.hits.load(Relaxed) {
            0 => what.clone(),
            _ => format!("{what}, {} ms", now / 1_000_000),
        });
        bar.set_position(before + now.min(*duration));
    };
    // At once, not only when the first tenth of a second is over.
    show(&Control::default());
    Box::new(show)
}
