//! `rqscope grid`.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;

use guest_model::policy::RateLimitClock;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use super::output::Output;
use super::run::{pass, scenario_text};
use super::{Failure, Stdout, complain, linux, place};
use crate::check::NAMES;
use crate::cli::{Clocks, GridArgs, Guest};
use crate::grid::{Format, Grid, Rows};
use crate::kvm::Kvm;
use crate::machine::FIRMWARE;
use crate::run::{GuestKind, Planted, RunOutcome, Verdict, pass_clocks};
use crate::scenario::Scenario;
use crate::session::{Asked, Control};
use crate::supervise::{Report, supervise};
use crate::trace::Trace;

/// Runs a grid and writes its rows; the exit code is 1 if a check failed in any of them.
pub fn command(args: &GridArgs) -> Result<u8, Failure> {
    let axes = [&args.x, &args.y, &args.z].into_iter().flatten().cloned().collect();
    let grid = Grid::new(axes).map_err(|e| Failure::Input(format!("--x, --y, --z: {e}")))?;
    let cells = Cells::new(args, grid)?;
    let on = choose(args, &cells)?;
    let rows = Rows::new(&cells.grid, args.format);
    let file = match &args.out {
        None => None,
        Some(dir) => {
            let output = Output::create(dir, &cells.base).map_err(|e| Failure::input(&e))?;
            let name = match args.format {
                Format::Csv => "grid.csv",
                Format::Json => "grid.json",
            };
            Some(output.file(name).map_err(|e| Failure::input(&e))?)
        }
    };

    let control = Arc::new(Control::default());
    let done = Arc::new(AtomicUsize::new(0));
    let bar = io::stderr().is_terminal().then(|| progress(cells.passes.len(), done.clone()));
    let jobs = match args.jobs {
        Some(jobs) => jobs.into(),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let work = Work { cells, rows, jobs, control: control.clone(), done };
    let ended = supervise(&control, args.watchdog, bar, move || match file {
        Some(file) => work.run(on, &mut Sink::new(file)),
        None => work.run(on, &mut Sink::new(Stdout::lock())),
    });
    ended.map_err(|e| Failure::host(&e))?
}

/// The cells of a grid and the passes over them.
struct Cells {
    grid: Grid,
    source: String,
    text: String,
    sets: Vec<String>,
    seed: Option<u64>,
    /// The scenario without the axes' values.
    base: Scenario,
    /// Cell and rate-limit clock of each pass, in the order of the rows.
    passes: Vec<(usize, RateLimitClock)>,
}

impl Cells {
    /// Loads every cell, so that none is found to be impossible when others have run.
    fn new(args: &GridArgs, grid: Grid) -> Result<Self, Failure> {
        if args.seed.is_some() && grid.keys().any(|key| key == "seed") {
            return Err(Failure::Input(
                "--seed and an axis both set the seed: leave one out".into(),
            ));
        }
        let text = scenario_text(&args.scenario)?.into_owned();
        let (source, sets) = (args.scenario.clone(), args.sets.clone());
        let seed = args.seed;
        let load = |more: Vec<String>| {
            let sets = with_seed([&sets[..], &more].concat(), seed);
            Scenario::load(&text, &source, &sets, NAMES).map_err(|e| Failure::input(&e))
        };
        let base = load(Vec::new())?;
        let mut passes = Vec::new();
        for cell in 0..grid.cells() {
            let scenario = load(grid.sets(cell))?;
            let own = scenario.policy.rate_limit_clock;
            if args.linux.boot.kernel.is_some() {
                scenario.linux_plan().map_err(|e| Failure::input(&e))?;
            }
            match args.clocks {
                // A kernel has the clock that it has.
                Clocks::All if args.linux.boot.kernel.is_none() => {
                    passes.extend(pass_clocks(&scenario).into_iter().map(|clock| (cell, clock)));
                }
                _ => passes.push((cell, own)),
            }
        }
        Ok(Self { grid, source, text, sets, seed, base, passes })
    }

    /// What is set in a cell beside the seed: for all cells, by the axes, and the clock of the pass.
    fn sets(&self, cell: usize, clock: Option<RateLimitClock>) -> Vec<String> {
        let clock = clock.map(|clock| format!("policy.rate_limit_clock={}", clock.name()));
        let own = clock.into_iter().chain(["policy.compare=[]".to_owned()]);
        self.sets.iter().cloned().chain(self.grid.sets(cell)).chain(own).collect()
    }

    /// The scenario of one pass over a cell.
    fn scenario(&self, sets: &[String]) -> Result<Scenario, Failure> {
        let sets = with_seed(sets.to_vec(), self.seed);
        Scenario::load(&self.text, &self.source, &sets, NAMES).map_err(|e| Failure::input(&e))
    }
}

/// The overrides, the seed's last.
fn with_seed(mut sets: Vec<String>, seed: Option<u64>) -> Vec<String> {
    sets.extend(seed.map(|seed| format!("seed={seed}")));
    sets
}

/// What the passes are on.
enum On {
    /// The model, or the bundled image in a virtual machine.
    Bundled(Option<Kvm>, &'static str),
    /// A Linux kernel.
    Linux(Box<linux::Guest>, &'static str),
}

fn choose(args: &GridArgs, cells: &Cells) -> Result<On, Failure> {
    if let Some(kernel) = &args.linux.boot.kernel {
        if args.guest.is_some() {
            let why = "--kernel is a guest of its own: leave out --guest";
            return Err(Failure::Input(why.into()));
        }
        let (kvm, host_kvm) = linux::open()?;
        let guest = linux::Guest::load(kvm, kernel, &args.linux, &cells.base)?;
        return Ok(On::Linux(Box::new(guest), host_kvm));
    }
    let place = place(Some(args.guest.unwrap_or(Guest::Model)))?;
    Ok(On::Bundled(place.kvm, place.host_kvm))
}

/// A row, and how its pass ended.
struct Row {
    text: String,
    verdict: Verdict,
    stopped: Option<(Asked, String)>,
}

/// What the guest's thread does.
struct Work {
    cells: Cells,
    rows: Rows,
    jobs: usize,
    control: Arc<Control>,
    /// Rows written.
    done: Arc<AtomicUsize>,
}

impl Work {
    /// All passes, until one breaks off; each row is written when those before it are.
    fn run<W: Write>(&self, on: On, out: &mut Sink<W>) -> Result<u8, Failure> {
        if let Some(header) = self.rows.header() {
            out.line(&header)?;
        }
        let end = match on {
            On::Bundled(None, host_kvm) => self.side_by_side(host_kvm, out)?,
            On::Bundled(kvm, host_kvm) => self.one_by_one(out, |index| {
                self.bundled(index, kvm.as_ref(), host_kvm, self.control.clone())
            })?,
            On::Linux(mut guest, host_kvm) => {
                self.one_by_one(out, |index| self.linux(index, &mut guest, host_kvm))?
            }
        };
        match end {
            End { stopped: Some((Asked::ByError, why)), .. } => {
                complain(&why);
                Ok(2)
            }
            End { failed: true, .. } => Ok(1),
            End { stopped: Some((Asked::ByUser, _)), .. } => Ok(130),
            End { .. } => Ok(0),
        }
    }

    /// The passes in the order of their rows.
    fn one_by_one<W: Write>(
        &self,
        out: &mut Sink<W>,
        mut run: impl FnMut(usize) -> Result<Row, Failure>,
    ) -> Result<End, Failure> {
        let mut end = End::default();
        for index in 0..self.cells.passes.len() {
            let row = match run(index) {
                // The user did not wait for a guest to boot.
                Err(Failure::Interrupted) => {
                    end.stopped = Some((Asked::ByUser, "interrupted".to_owned()));
                    break;
                }
                other => other?,
            };
            if !end.take(&row, self.cell_of(index)) {
                break;
            }
            out.line(&row.text)?;
            self.done.fetch_add(1, Relaxed);
        }
        Ok(end)
    }

    /// The model's passes, as many at a time as there are jobs.
    fn side_by_side<W: Write>(
        &self,
        host_kvm: &'static str,
        out: &mut Sink<W>,
    ) -> Result<End, Failure> {
        let passes = self.cells.passes.len();
        let next = AtomicUsize::new(0);
        let (send, receive) = channel();
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.min(passes) {
                let (send, next) = (send.clone(), &next);
                // Of its own, so that threads do not write to one place all the time.
                let control = Arc::new(self.control.ends_with());
                scope.spawn(move || {
                    loop {
                        let index = next.fetch_add(1, Relaxed);
                        if index >= passes || control.stopped() {
                            return;
                        }
                        let row = self.bundled(index, None, host_kvm, control.clone());
                        if send.send((index, row)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(send);
            let written = self.in_order(&receive, out);
            if !matches!(written, Ok(End { stopped: None, .. })) {
                // The other threads' rows are of no use any more.
                self.control.stop();
            }
            written
        })
    }

    /// Writes rows that come in any order in that of the grid.
    fn in_order<W: Write>(
        &self,
        rows: &std::sync::mpsc::Receiver<(usize, Result<Row, Failure>)>,
        out: &mut Sink<W>,
    ) -> Result<End, Failure> {
        let (mut end, mut early) = (End::default(), BTreeMap::new());
        let mut next = 0;
        for (index, row) in rows {
            early.insert(index, row);
            while let Some(row) = early.remove(&next) {
                let row = row?;
                if !end.take(&row, self.cell_of(next)) {
                    return Ok(end);
                }
                out.line(&row.text)?;
                next += 1;
                self.done.store(next, Relaxed);
            }
        }
        if next < self.cells.passes.len() && end.stopped.is_none() {
            end.stopped = Some((Asked::ByUser, "interrupted".to_owned()));
        }
        Ok(end)
    }

    /// One pass on the bundled guest: in a virtual machine, or without a `kvm` on the model.
    fn bundled(
        &self,
        index: usize,
        kvm: Option<&Kvm>,
        host_kvm: &'static str,
        control: Arc<Control>,
    ) -> Result<Row, Failure> {
        let (cell, clock) = self.cells.passes[index];
        let sets = self.cells.sets(cell, Some(clock));
        let scenario = self.cells.scenario(&sets)?;
        let machine = kvm.map(|kvm| (kvm, FIRMWARE));
        let none = Planted::default();
        let (done, _) = pass(machine, &scenario, clock, none, Trace::none(), control)?;
        let guest = if kvm.is_some() { GuestKind::Firmware } else { GuestKind::Model };
        let outcome = self.outcome(sets, scenario, guest, host_kvm);
        Ok(self.row(cell, RunOutcome { passes: vec![done], ..outcome }))
    }

    /// One pass on a Linux guest.
    fn linux(
        &self,
        index: usize,
        guest: &mut linux::Guest,
        host_kvm: &'static str,
    ) -> Result<Row, Failure> {
        let (cell, _) = self.cells.passes[index];
        let sets = self.cells.sets(cell, None);
        let mut scenario = self.cells.scenario(&sets)?;
        guest.take(&scenario)?;
        let prepared = guest.prepare(&mut scenario, &self.control)?;
        let (done, _, linux) = guest.run(prepared, &scenario, Trace::none(), None, &self.control);
        let outcome = self.outcome(sets, scenario, GuestKind::Linux, host_kvm);
        Ok(self.row(cell, RunOutcome { passes: vec![done], linux: Some(linux), ..outcome }))
    }

    fn outcome(
        &self,
        sets: Vec<String>,
        scenario: Scenario,
        guest: GuestKind,
        host_kvm: &'static str,
    ) -> RunOutcome {
        RunOutcome {
            source: self.cells.source.clone(),
            sets,
            guest,
            linux: None,
            host_kvm,
            passes: Vec::new(),
            trace_sha256: String::new(),
            trace_records: 0,
            scenario,
        }
    }

    fn row(&self, cell: usize, outcome: RunOutcome) -> Row {
        let text = self.rows.row(cell, &self.cells.grid.values(cell), &outcome);
        let stopped = outcome.passes.iter().find_map(|pass| pass.stopped.clone());
        Row { text, verdict: outcome.verdict(), stopped }
    }

    /// A pass by its cell, for messages.
    fn cell_of(&self, index: usize) -> String {
        let (cell, clock) = self.cells.passes[index];
        let sets = self.cells.grid.sets(cell);
        format!("cell {cell} ({} {})", sets.join(" "), clock.name())
    }
}

/// How a grid ended.
#[derive(Default)]
struct End {
    failed: bool,
    stopped: Option<(Asked, String)>,
}

impl End {
    /// Takes note of how a pass ended; false if it was before its time, and its row is none.
    fn take(&mut self, row: &Row, cell: String) -> bool {
        self.failed |= row.verdict == Verdict::Fail;
        self.stopped = row.stopped.as_ref().map(|(asked, why)| (*asked, format!("{cell}: {why}")));
        self.stopped.is_none()
    }
}

/// Where rows go. Each is handed on whole.
struct Sink<W: Write>(BufWriter<W>);

impl<W: Write> Sink<W> {
    fn new(out: W) -> Self {
        Self(BufWriter::new(out))
    }

    fn line(&mut self, line: &str) -> Result<(), Failure> {
        let written = writeln!(self.0, "{line}").and_then(|()| self.0.flush());
        written.map_err(|e| Failure::Host(format!("write a row: {e}")))
    }
}

/// A bar over all passes.
fn progress(passes: usize, done: Arc<AtomicUsize>) -> Report {
    let bar = ProgressBar::new(passes as u64).with_finish(ProgressFinish::AndClear);
    // The template is a constant of this program; the default style is as good if it were refused.
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3}%  {msg}") {
        bar.set_style(style);
    }
    let show = move |_: &Control| {
        let rows = done.load(Relaxed);
        bar.set_message(format!("{rows} of {passes} rows"));
        bar.set_position(rows as u64);
    };
    show(&Control::default());
    Box::new(show)
}
