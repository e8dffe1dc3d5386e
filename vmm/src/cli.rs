//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::grid::{self, Axis};
use crate::linux::UserProbe;
use crate::run::GuestKind;
use crate::scenario::parse_duration;
use crate::series::MAX_SAMPLES;

/// rqscope injects exact IRQ storms and steal time into a guest kernel, reads its run queue from
/// outside, and judges whether its clocks are right.
///
/// Without a command it runs the default scenario.
#[derive(Debug, Parser)]
#[command(name = "rqscope", version, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do; `run` if left out.
    #[command(subcommand)]
    pub command: Option<Command>,
}

const EXIT_CODES: &str = "\
Exit codes: 0 the checks hold, 1 a check failed, a claim did or a mutant survived, 2 bad usage or input (a guest \
that breaks off included), 3 this host cannot, 130 interrupted before any check had failed.";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a scenario and judge it.
    Run(RunArgs),
    /// Run a scenario under every combination of some values, and give the figures as rows.
    Grid(GridArgs),
    /// Run kernels, or policies of the bundled guest, under the same scenarios and seeds and show what is
    /// equal and what is not.
    Compare(CompareArgs),
    /// List the built-in scenarios, or print one as a file to start from.
    Scenarios {
        /// Print this scenario's TOML, for example `default`.
        name: Option<String>,
    },
    /// List the checks and what each states.
    Checks,
    /// Plant faults one at a time and show which check catches each.
    Mutants(MutantsArgs),
    /// Boot a Linux kernel and keep it as it is when it is ready. Runs of it start from there; they make
    /// the snapshot themselves if it is missing.
    Snapshot(SnapshotArgs),
    /// Say what this host's KVM is, what can run here and how to fix what cannot.
    Doctor,
}

/// Which guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Guest {
    /// The bundled bare-metal guest in a virtual machine.
    Firmware,
    /// The same kernel in this process, without a virtual machine.
    Model,
}

impl From<Guest> for GuestKind {
    fn from(guest: Guest) -> Self {
        match guest {
            Guest::Firmware => Self::Firmware,
            Guest::Model => Self::Model,
        }
    }
}

/// What to print at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A page to read.
    #[default]
    #[value(alias = "text")]
    Page,
    /// One JSON object (docs/json.md).
    Json,
}

/// When to colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set or TERM is dumb.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Options of `run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// A built-in scenario (see `rqscope scenarios`), or the path of a TOML file.
    #[arg(default_value = "default", value_name = "SCENARIO")]
    pub scenario: String,
    /// The guest [default: firmware, or model where no KVM can be opened].
    #[arg(long, value_enum)]
    pub guest: Option<Guest>,
    /// The seed of every draw, instead of the scenario's or of any --set seed; for example 7.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Override a key of the scenario; repeatable. For example --set duration=2s, --set
    /// irq.rx.rate=8kHz.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// What to print on standard output.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Keep the scenario as run, the trace (JSON Lines, written as it happens) and the result in
    /// this directory, which must be new or empty; for example out/.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Boot this ELF image, built from firmware/, instead of the bundled one.
    #[arg(long, value_name = "ELF")]
    pub firmware: Option<PathBuf>,
    /// How long the guest may run without asking for anything before it counts as spinning, for
    /// example 30s.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = watchdog)]
    pub watchdog: Duration,
    /// When to colour the page.
    #[arg(long, value_enum, default_value_t)]
    pub color: Color,
    // Last: its heading in the help is that of all options behind it.
    /// How to run a Linux kernel.
    #[command(flatten)]
    pub linux: LinuxArgs,
}

/// Options of `grid`.
#[derive(Args, Debug)]
pub struct GridArgs {
    /// A built-in scenario, or the path of a TOML file.
    #[arg(default_value = "load-grid", value_name = "SCENARIO")]
    pub scenario: String,
    /// The slowest axis: a key as --set takes it, and its values or an even range of N. For example --x
    /// irq.nic.load=0..0.95/20, --x policy.psi=account_zero_delta,skip_zero_delta.
    #[arg(long, value_name = "KEY=V1,V2,...|KEY=A..B/N")]
    pub x: Option<Axis>,
    /// The next axis; for example --y steal.0.fraction=0..0.95/20.
    #[arg(long, value_name = "KEY=...")]
    pub y: Option<Axis>,
    /// The fastest axis; for example --z seed=1..5/5.
    #[arg(long, value_name = "KEY=...")]
    pub z: Option<Axis>,
    /// Which rate-limit clocks each cell runs under; a Linux kernel has its own only.
    #[arg(long, value_enum, default_value_t)]
    pub clocks: Clocks,
    /// The guest [default: model].
    #[arg(long, value_enum)]
    pub guest: Option<Guest>,
    /// The seed of every draw, instead of the scenario's; for example 7.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Override a key of the scenario in every cell; repeatable.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// How many cells of the model run at a time, 1 to 1024 [default: as many as there are CPUs]. Other
    /// guests run one at a time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
    /// How rows are written.
    #[arg(long, value_enum, default_value_t)]
    pub format: grid::Format,
    /// Write the rows to grid.csv or grid.json in this directory, which must be new or empty, and the
    /// scenario beside them.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// How long the guest may run without asking for anything before it counts as spinning.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = watchdog)]
    pub watchdog: Duration,
    // Last: its heading in the help is that of all options behind it.
    /// How to run a Linux kernel.
    #[command(flatten)]
    pub linux: LinuxArgs,
}

/// The passes over a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Clocks {
    /// The scenario's own clock, then each other one that it compares.
    #[default]
    All,
    /// The scenario's own clock.
    Own,
}

/// Guest memory unless told otherwise, MiB.
pub const DEFAULT_MIB: u64 = crate::boot::layout::MEMORY_DEFAULT >> 20;

/// Options that choose a Linux guest and what it boots.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Linux guests")]
pub struct BootArgs {
    /// Run this Linux kernel, a vmlinux or bzImage of 6.12 to 7.3, instead of the bundled guest; for
    /// example one that scripts/guest-kernel built. Needs a KVM on hardware virtualisation: `rqscope
    /// doctor` says whether this is one, scripts/nested-kvm gives one.
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// Where the symbols of a bzImage are: its vmlinux or System.map [default: the kernel itself].
    #[arg(long, value_name = "FILE", requires = "kernel")]
    pub symbols: Option<PathBuf>,
    /// Initial file system, instead of the one that builds the scenario's groups and tasks
    /// (docs/linux.md says how it tells that it is ready).
    #[arg(long, value_name = "FILE", requires = "kernel")]
    pub initrd: Option<PathBuf>,
    /// Parameters for the kernel's command line; for example "nokaslr psi=1".
    #[arg(
        long,
        value_name = "TEXT",
        requires = "kernel",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub cmdline: String,
    /// Guest memory, MiB, 32 to 3072; for example 256.
    #[arg(long, value_name = "MIB", requires = "kernel", default_value_t = DEFAULT_MIB)]
    pub memory: u64,
    /// Show the guest's serial console on standard error, all that its kernel says included.
    #[arg(long, requires = "kernel")]
    pub console: bool,
    /// How long the guest may take to boot, for example 5m.
    #[arg(long, value_name = "TIME", requires = "kernel", default_value = "2m", value_parser = watchdog)]
    pub boot_timeout: Duration,
}

/// Options of a run of a Linux guest.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Linux guests")]
pub struct LinuxArgs {
    /// What it boots.
    #[command(flatten)]
    pub boot: BootArgs,
    /// Also probe this function, with names for its arguments (six at most); repeatable. For
    /// example --probe update_curr:cfs_rq.
    #[arg(long = "probe", value_name = "SYMBOL[:ARG,...]", requires = "kernel", value_parser = probe)]
    pub probes: Vec<UserProbe>,
    /// Boot the guest anew and keep no snapshot of it.
    #[arg(long, requires = "kernel")]
    pub no_snapshot: bool,
}

fn probe(text: &str) -> Result<UserProbe, String> {
    let (symbol, args) = text.split_once(':').unwrap_or((text, ""));
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.".contains(&b))
    };
    let args: Vec<String> =
        args.split(',').filter(|_| text.contains(':')).map(str::to_owned).collect();
    if args.len() > 6 {
        return Err("at most six arguments come in registers".into());
    }
    match std::iter::once(symbol).chain(args.iter().map(String::as_str)).find(|n| !is_name(n)) {
        Some(bad) => Err(format!("{bad:?} is not a name: expected SYMBOL or SYMBOL:ARG,...")),
        None => Ok(UserProbe { symbol: symbol.to_owned(), args }),
    }
}

/// Options of `compare`.
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// What to compare: the file of a Linux kernel (docs/linux.md; a vmlinux, or a bzImage with its
    /// System.map beside it), or `model` or `firmware`, the bundled guest in this process or in a virtual
    /// machine, with a policy if it is not to be the scenario's: model:rate-limit-clock=rq_clock_task,
    /// model:psi-zero-delta=account. Named by its version or by what differs, unless NAME says otherwise.
    #[arg(value_name = "[NAME=]SUBJECT", required = true, num_args = 1..)]
    pub subjects: Vec<String>,
    /// A built-in scenario or the path of a TOML file; repeatable.
    #[arg(long = "scenario", value_name = "SCENARIO", default_value = "default")]
    pub scenarios: Vec<String>,
    /// The seed of every draw, instead of the scenario's, or seeds from A to B, both included;
    /// repeatable. For example 7, or 1..20.
    #[arg(long = "seed", value_name = "N|A..B", value_parser = seeds)]
    pub seeds: Vec<(u64, u64)>,
    /// Override a key of every scenario; repeatable. For example --set duration=2s.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Claim that this key has the same value in all subjects; repeatable. `*` stands for any text: for
    /// example 'series.psi_irq_full.*' (docs/compare.md has the keys). Exit code 1 if a claim fails.
    #[arg(long = "expect-equal", value_name = "KEY")]
    pub claims: Vec<String>,
    /// Samples of the run queue and of each group in a run, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SAMPLES)))]
    pub samples: u32,
    /// What to print on standard output.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Keep a JSON file of each scenario and seed, written when it is done, and summary.json in this
    /// directory, which must be new or empty; for example out/.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// How long a guest may run without asking for anything before it counts as spinning, for
    /// example 30s.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = watchdog)]
    pub watchdog: Duration,
    /// When to colour the page.
    #[arg(long, value_enum, default_value_t)]
    pub color: Color,
    // Last: its heading in the help is that of all options behind it.
    /// Parameters for every kernel's command line; for example "psi=1".
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true,
        help_heading = "Linux guests"
    )]
    pub cmdline: String,
    /// Guest memory, MiB, 32 to 3072; for example 256.
    #[arg(long, value_name = "MIB", default_value_t = DEFAULT_MIB, help_heading = "Linux guests")]
    pub memory: u64,
    /// How long a guest may take to boot, for example 5m.
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = watchdog, help_heading = "Linux guests")]
    pub boot_timeout: Duration,
    /// Boot a kernel anew for each run and keep no snapshot of it.
    #[arg(long, help_heading = "Linux guests")]
    pub no_snapshot: bool,
}

/// `N` or `A..B`: the first and the last.
fn seeds(text: &str) -> Result<(u64, u64), String> {
    let number = |n: &str| n.parse::<u64>().map_err(|_| "expected N or A..B, as 7 or 1..20");
    let (first, last) = match text.split_once("..") {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(text)?, number(text)?),
    };
    if first > last {
        return Err(format!("no seed is in {first}..{last}: the first comes first"));
    }
    Ok((first, last))
}

/// Options of `snapshot`.
#[derive(Args, Debug)]
pub struct SnapshotArgs {
    /// What to boot.
    #[command(flatten)]
    pub boot: BootArgs,
    /// How long the guest may run without asking for anything before it counts as spinning.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = watchdog)]
    pub watchdog: Duration,
}

/// Options of `mutants`.
#[derive(Args, Debug)]
pub struct MutantsArgs {
    /// The guest [default: firmware, or model where no KVM can be opened].
    #[arg(long, value_enum, conflicts_with = "kernel")]
    pub guest: Option<Guest>,
    /// Only these mutants, by name.
    #[arg(value_name = "MUTANT")]
    pub names: Vec<String>,
    /// A Linux guest, whose mutants are faults in its replay and in its layout.
    #[command(flatten)]
    pub boot: BootArgs,
}

fn watchdog(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Err(e) => Err(e.to_string()),
        Ok(ns) => match u64::try_from(ns) {
            Ok(ns) if ns >= 1_000_000_000 => Ok(Duration::from_nanos(ns)),
            _ => Err("expected at least 1s: a busy host may stop the guest for that long".into()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_one_or_a_range_with_both_its_ends() {
        assert_eq!(seeds("7"), Ok((7, 7)));
        assert_eq!(seeds("1..20"), Ok((1, 20)));
        for bad in ["", "..", "1..", "..2", "1..=2", "-1", "2..1", "1...3", "x"] {
            assert!(seeds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
