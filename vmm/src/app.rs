//! The commands: what `main` runs.

mod compare;
mod doctor;
mod grid;
mod linux;
mod linux_mutants;
mod mutants;
mod output;
mod run;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::check::CheckId;
use crate::cli::{Cli, Color, Command};
use crate::kvm::{HostKvm, Kvm, KvmError};
use crate::scenario::{BUILTIN, builtin, hint};
use crate::session::chain;

/// Why a command ends without a verdict; each kind has an exit code of its own.
#[derive(Debug)]
pub enum Failure {
    /// Bad usage or input: 2.
    Input(String),
    /// This host cannot: 3.
    Host(String),
    /// The user broke it off: 130.
    Interrupted,
}

impl Failure {
    fn input(e: &dyn std::error::Error) -> Self {
        Self::Input(chain(e))
    }

    fn host(e: &dyn std::error::Error) -> Self {
        Self::Host(chain(e))
    }
}

impl From<io::Error> for Failure {
    /// Writing to standard output failed.
    fn from(e: io::Error) -> Self {
        Self::Host(format!("write to standard output: {e}"))
    }
}

/// Standard output, of which a reader may have seen enough, as `head`: the command is finished all the
/// same and its exit code tells how it went.
#[derive(Debug)]
struct Stdout(io::StdoutLock<'static>);

impl Stdout {
    fn lock() -> Self {
        Self(io::stdout().lock())
    }
}

/// `done`, unless there was nobody to read it.
fn unless_closed<T>(result: io::Result<T>, done: T) -> io::Result<T> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(done),
        other => other,
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        unless_closed(self.0.write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        unless_closed(self.0.flush(), ())
    }
}

/// The program.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version go to standard output and are no error.
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { 2 } else { 0 });
        }
    };
    let default = || Cli::parse_from(["rqscope", "run"]).command;
    let result = match cli.command.or_else(default) {
        Some(Command::Run(args)) => run::command(&args),
        Some(Command::Grid(args)) => grid::command(&args),
        Some(Command::Compare(args)) => compare::command(&args),
        Some(Command::Scenarios { name }) => scenarios(name.as_deref()),
        Some(Command::Checks) => checks(),
        Some(Command::Mutants(args)) => mutants::command(&args),
        Some(Command::Snapshot(args)) => linux::command(&args),
        Some(Command::Doctor) => doctor::command(),
        None => Ok(2),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(Failure::Input(why)) => {
            complain(&why);
            ExitCode::from(2)
        }
        Err(Failure::Host(why)) => {
            complain(&why);
            ExitCode::from(3)
        }
        Err(Failure::Interrupted) => ExitCode::from(130),
    }
}

/// A line on standard error. Where that cannot be written, the exit code has to do.
fn complain(why: &str) {
    let _ = writeln!(io::stderr(), "rqscope: {why}");
}

/// `rqscope scenarios`.
fn scenarios(name: Option<&str>) -> Result<u8, Failure> {
    let mut out = Stdout::lock();
    let Some(name) = name else {
        let width = BUILTIN.iter().map(|b| b.name.len()).max().unwrap_or(0);
        for b in BUILTIN {
            writeln!(out, "{:width$}  {}", b.name, b.summary)?;
        }
        return Ok(0);
    };
    let Some(b) = builtin(name) else {
        let hint = hint(name, BUILTIN.iter().map(|b| b.name));
        return Err(Failure::Input(format!("no built-in scenario is called {name:?}; {hint}")));
    };
    out.write_all(b.text.as_bytes())?;
    Ok(0)
}

/// `rqscope checks`.
fn checks() -> Result<u8, Failure> {
    let mut out = Stdout::lock();
    let width = CheckId::ALL.iter().map(|id| id.name().len()).max().unwrap_or(0);
    for id in CheckId::ALL {
        let asked = if id.is_asked_for() { " (where a scenario asks for it)" } else { "" };
        writeln!(out, "{:width$}  {}{asked}", id.name(), id.statement())?;
    }
    Ok(0)
}

/// A guest and the host that it runs on.
#[derive(Debug)]
struct Place {
    /// Where to run a virtual machine; `None` for the model.
    kvm: Option<Kvm>,
    /// The host's KVM by name.
    host_kvm: &'static str,
}

/// Where to run: what the user asked for, or else a virtual machine if this host can, or else the
/// model, with a line that says why.
fn place(asked: Option<crate::cli::Guest>) -> Result<Place, Failure> {
    use crate::cli::Guest;
    let opened = Kvm::open();
    let host_kvm = if opened.is_ok() { HostKvm::detect().name() } else { "none" };
    match (asked, opened) {
        (Some(Guest::Model), _) => Ok(Place { kvm: None, host_kvm }),
        (_, Ok(kvm)) => Ok(Place { kvm: Some(kvm), host_kvm }),
        (Some(Guest::Firmware), Err(e)) => {
            let why = "or use --guest model, which needs no virtual machine";
            Err(Failure::Host(format!("{}; {why}", no_kvm(&e))))
        }
        (None, Err(e)) => {
            complain(&format!("{}; running on --guest model instead", no_kvm(&e)));
            Ok(Place { kvm: None, host_kvm })
        }
    }
}

fn no_kvm(e: &KvmError) -> String {
    format!("no KVM: {}", chain(e))
}

/// Is standard output to be coloured?
fn color(choice: Color) -> bool {
    match choice {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
            let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
            io::stdout().is_terminal() && !no_color && !dumb
        }
    }
}
