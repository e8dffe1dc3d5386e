//! Bad usage and bad input: exit code 2 and a line that names the thing.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

use crate::program::{Scratch, command, rqscope, run_json};

#[test]
fn bad_usage_is_exit_code_2_and_help_is_0() {
    for args in [
        &["bogus"][..],
        &["run", "--bad"],
        &["run", "default", "extra"],
        &["run", "--guest", "vmware"],
        &["run", "--format", "xml"],
        &["run", "--seed", "-1"],
        &["run", "--seed", "18446744073709551616"],
        &["run", "--watchdog", "1ms"],
        &["run", "--watchdog", "ten"],
        &["run", "--guest", "model", "--firmware", "/dev/null"],
        &["mutants", "no-such"],
        &["scenarios", "no-such"],
        &["doctor", "extra"],
    ] {
        let done = rqscope(args).ends_with(2);
        assert!(!done.stderr.is_empty() && done.stdout.is_empty(), "{args:?}");
    }
    rqscope([OsStr::from_bytes(b"run"), OsStr::from_bytes(b"--set=seed=\xff")]).ends_with(2);
    for args in [&["--help"][..], &["--version"], &["run", "--help"]] {
        assert!(rqscope(args).ends_with(0).stderr.is_empty(), "{args:?}");
    }
    rqscope(["mutants", "no-such"]).ends_with(2).says("no mutant is called \"no-such\"");
    rqscope(["mutants", "steal_twiec"]).ends_with(2).says("did you mean `steal_twice`?");
    rqscope(["scenarios", "defualt"]).ends_with(2).says("did you mean `default`?");
}

#[test]
fn the_help_of_run_gives_defaults_units_and_examples() {
    let help = rqscope(["run", "--help"]).stdout;
    // What follows is about Linux guests, and its examples are not of --set.
    let (help, linux) = help.split_once("Linux guests:").unwrap();
    for part in
        ["vmlinux or bzImage", "[default: 128]", "nokaslr", "update_curr:cfs_rq", "[default: 2m]"]
    {
        assert!(linux.contains(part), "{part:?} in {linux}");
    }
    for part in ["[default: default]", "--set duration=2s", "[default: 10s]", "example 30s"] {
        assert!(help.contains(part), "{part:?} in {help}");
    }
    // The examples of --set fit the default scenario.
    let words = help.split_whitespace().map(|word| word.trim_end_matches(['.', ',']));
    let examples: Vec<_> =
        words.filter(|w| w.contains('=') && w.starts_with(char::is_lowercase)).collect();
    assert!(examples.len() > 1, "{help}");
    for example in examples {
        run_json("default", "model", &["duration=10ms", "policy.compare=[]", example], 0);
    }
    let help = rqscope(["--help"]).stdout;
    for code in ["0 the checks hold", "1 a check failed", "2 bad usage", "3 this host", "130"] {
        assert!(help.contains(code), "{code:?} in {help}");
    }
}

#[test]
fn a_scenario_that_does_not_exist_is_answered_with_those_that_do() {
    let done = rqscope(["run", "defualt", "--guest", "model"]).ends_with(2).in_one_line();
    done.says("no built-in scenario and no file is called \"defualt\"; did you mean `default`?");
    let done = rqscope(["run", "nothing", "--guest", "model"]).ends_with(2).in_one_line();
    done.says("known are default, ").says("irq-storm");
}

#[test]
fn a_scenario_error_names_file_line_and_key() {
    let scratch = Scratch::new();
    for (text, line, key) in [
        ("duration = \"1s\"\nbogus = 1\n", 2, "bogus: unknown key"),
        ("duration = \"1s\"\n[tick]\nrate = \"0\"\n", 3, "tick.rate"),
        ("[tick]\nrate = \"250Hz\"\nrte = 1\n", 3, "tick.rte"),
        ("duration = \"5 parsecs\"\n", 1, "duration"),
        ("duration = 5\n", 1, "duration"),
        ("duration =\n", 1, "not TOML"),
        ("[[steal]]\nfraction = 1.5\nquantum = \"1ms\"\n", 2, "steal[0].fraction"),
        ("[[irq]]\nname = \"nic\"\nrate = \"1kHz\"\ncost = \"2ms\"\n", 4, "irq[0].cost"),
    ] {
        let file = scratch.file("bad.toml", text);
        let done = rqscope(["run", &file, "--guest", "model"]).ends_with(2).in_one_line();
        done.says(&format!("bad.toml:{line}: ")).says(key);
    }
}

#[test]
fn an_override_that_does_not_fit_is_quoted() {
    for (set, why) in [
        ("foo=1", "--set foo=1: foo: unknown key"),
        ("duration", "--set duration: an override is written key=value"),
        ("=1", "--set =1:"),
        ("duration=5parsecs", "use one of ns, us, ms, s"),
        ("duration=0", "--set duration=0: duration:"),
        ("irq.nobody.rate=1kHz", "no entry `nobody`; there are entries 0 to 2: rx, tx, disk"),
        ("irq[9].rate=1kHz", "irq[9]"),
        ("steal[0].fraction=1", "--set steal[0].fraction=1:"),
        ("tick.rate=0", "tick.rate"),
        ("policy.compare=[\"tsc\"]", "policy.compare"),
        ("checks.no_such=false", "checks"),
    ] {
        rqscope(["run", "--guest=model", "--set", set]).ends_with(2).in_one_line().says(why);
    }
}

#[test]
fn files_that_are_no_scenarios_are_refused_by_what_they_are() {
    let scratch = Scratch::new();
    let run = |file: &str| rqscope(["run", file, "--guest", "model"]).ends_with(2).in_one_line();
    run(&scratch.file("latin1", b"name = \"\xff\"")).says("not UTF-8 at byte 8");
    run(&scratch.file("huge", vec![b'#'; (1 << 20) + 1])).says("larger than 1048576 bytes");
    run(&scratch.file("nul", [0; 100])).says("not TOML");
    run(&scratch.arg("")).says("Is a directory");
    run("/dev/zero").says("larger than 1048576 bytes");
    let deep = format!("a = {}", "[".repeat(100_000));
    run(&scratch.file("deep", deep)).says("not TOML");
}

#[test]
fn an_empty_file_is_a_scenario_of_a_second_of_ticks() {
    let scratch = Scratch::new();
    let file = scratch.file("empty", "");
    let done = rqscope(["run", &file, "--guest=model", "--format=json"]).ends_with(0);
    assert_eq!(done.json()["elapsed_ns"], 1_000_000_000);
}

#[test]
fn a_reader_that_leaves_early_gets_no_panic_and_the_verdict_stays_in_the_exit_code() {
    for (scenario, code) in [("default", 0), ("steal-backward", 1)] {
        for format in ["page", "json"] {
            let mut child = command(["run", scenario, "--guest=model", "--format", format])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            drop(child.stdout.take());
            let done = child.wait_with_output().unwrap();
            assert_eq!(done.status.code(), Some(code), "{scenario} {format}");
            assert_eq!(String::from_utf8_lossy(&done.stderr), "", "{scenario} {format}");
        }
    }
    let lists = [&["scenarios"][..], &["checks"], &["mutants", "--guest=model", "steal_twice"]];
    for list in lists {
        let mut child =
            command(list).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let done = child.wait_with_output().unwrap();
        assert_eq!((done.status.code(), done.stderr.len()), (Some(0), 0), "{list:?}");
    }
}

#[test]
fn a_full_disk_behind_standard_output_is_an_error() {
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else {
        println!("skipped: no /dev/full");
        return;
    };
    let mut command = command(["run", "idle", "--guest=model", "--set=duration=10ms"]);
    let done = command.stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(done.status.code(), Some(3));
    let stderr = String::from_utf8(done.stderr).unwrap();
    assert!(stderr.contains("write to standard output: No space left"), "{stderr}");
}
