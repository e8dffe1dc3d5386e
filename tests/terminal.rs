//! Colour and progress: on a terminal only.

use std::process::Command;

use crate::host::skipped;
use crate::program::{Running, command, rqscope};

const ESC: char = '\u{1b}';
/// Long enough for a few progress reports, ten a second.
const RUN: [&str; 4] = ["run", "idle", "--guest=model", "--set=duration=30s"];

/// Runs the program on a terminal of its own, with `script(1)`; what the terminal got.
fn on_a_terminal(env: (&str, &str), args: &[&str]) -> Option<String> {
    let works = Command::new("script").arg("--version").output();
    if !works.is_ok_and(|o| o.status.success()) {
        return skipped("there is no script(1)");
    }
    let line = format!("{} {}", crate::program::RQSCOPE, args.join(" "));
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    command.env_remove("NO_COLOR").env("TERM", "xterm").env(env.0, env.1);
    Some(Running::start(&mut command).wait().ends_with(0).stdout)
}

#[test]
fn a_terminal_gets_colour_and_a_progress_bar() {
    let Some(seen) = on_a_terminal(("RQSCOPE_TEST", "1"), &RUN) else { return };
    assert!(seen.contains(&format!("{ESC}[1mrqscope")), "{seen}");
    assert!(seen.contains("ms of guest time"), "{seen}");
}

#[test]
fn no_color_and_color_never_are_heard() {
    let page = ["run", "idle", "--guest=model", "--set=duration=10ms", "2>/dev/null"];
    let Some(seen) = on_a_terminal(("NO_COLOR", "1"), &page) else { return };
    assert!(seen.contains("rqscope idle") && !seen.contains(ESC), "{seen}");
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
