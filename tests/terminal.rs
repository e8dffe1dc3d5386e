//! Colour and progress: on a terminal only.

use std::fs;
use std::process::Command;

use crate::host::skipped;
use crate::program::{RQSCOPE, Running, Scratch, command, rqscope, signal};

const ESC: char = '\u{1b}';
const RUN: [&str; 4] = ["run", "idle", "--guest=model", "--set=duration=30s"];

/// A command that runs a shell's `line` on a terminal of its own, with `script(1)`, and copies what the
/// terminal gets to a file.
fn script(line: &str, copy: &str) -> Option<Command> {
    let works = Command::new("script").arg("--version").output();
    if !works.is_ok_and(|o| o.status.success()) {
        return skipped("there is no script(1)");
    }
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--flush", "--command", line, copy]);
    command.env_remove("NO_COLOR").env("TERM", "xterm");
    Some(command)
}

/// Runs the program on a terminal of its own; what the terminal got.
fn on_a_terminal(env: (&str, &str), args: &[&str]) -> Option<String> {
    let line = format!("{RQSCOPE} {}", args.join(" "));
    let mut command = script(&line, "/dev/null")?;
    command.env(env.0, env.1);
    Some(Running::start(&mut command).wait().ends_with(0).stdout)
}

#[test]
fn a_terminal_gets_colour_and_a_progress_bar() {
    let scratch = Scratch::new();
    // Hours of guest time: it runs until the bar has been seen.
    let line = format!(
        "echo $$ >'{}'; exec '{RQSCOPE}' run idle --guest=model --set=duration=3600s",
        scratch.arg("pid")
    );
    let Some(mut script) = script(&line, &scratch.arg("seen")) else { return };
    let mut run = Running::start(&mut script);
    let seen = || String::from_utf8(fs::read(scratch.path("seen")).unwrap_or_default());
    // A read may end within a character.
    let shows = |text: &str| seen().is_ok_and(|seen| seen.contains(text));
    run.wait_until("there is a bar", || shows("ms of guest time"));
    let pid = fs::read_to_string(scratch.path("pid")).unwrap();
    signal(pid.trim().parse().unwrap(), "INT");
    run.wait().ends_with(130);
    assert!(shows(&format!("{ESC}[1mrqscope")), "{:?}", seen());
}

#[test]
fn no_color_a_dumb_terminal_and_color_never_are_heard() {
    let page = ["run", "idle", "--guest=model", "--set=duration=10ms", "2>/dev/null"];
    for env in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let Some(seen) = on_a_terminal(env, &page) else { return };
        assert!(seen.contains("rqscope idle") && !seen.contains(ESC), "{seen}");
    }
    let never = [&page[..4], &["--color=never", "2>/dev/null"]].concat();
    let Some(seen) = on_a_terminal(("RQSCOPE_TEST", "1"), &never) else { return };
    assert!(seen.contains("rqscope idle") && !seen.contains(ESC), "{seen}");
}

#[test]
fn a_pipe_gets_neither_colour_nor_progress() {
    for args in [&RUN[..], &["scenarios"], &["checks"], &["mutants", "--guest=model"], &["--help"]]
    {
        let done = rqscope(args).ends_with(0);
        assert!(!done.stdout.contains(ESC), "{args:?}");
        assert_eq!(done.stderr, "", "{args:?}");
    }
    let coloured = rqscope(RUN.into_iter().chain(["--color=always"])).stdout;
    assert!(coloured.contains(ESC), "always is always");
}

#[test]
fn json_on_standard_output_is_one_object_and_nothing_else() {
    let done = Running::start(&mut command(RUN.into_iter().chain(["--format=json"]))).wait();
    let json = done.json();
    assert!(json.is_object());
    assert!(done.stdout.starts_with('{') && done.stdout.ends_with("}\n"));
    assert_eq!(done.stderr, "");
}
