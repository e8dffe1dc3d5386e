//! `rqscope grid`: rows, their order and what they agree with.

use std::fs;

use serde_json::Value;

use crate::host::virtual_machines;
use crate::program::{Done, Running, Scratch, command, failed_checks, rqscope, run_json, text};

const AXES: [&str; 4] = ["--x", "irq.nic.load=0..0.6/3", "--y", "steal.0.fraction=0,0.3,0.6"];
const SHORT: [&str; 2] = ["--set", "duration=60ms"];

fn grid(args: &[&str]) -> Done {
    rqscope([&["grid", "load-grid"], &AXES[..], &SHORT, args].concat())
}

/// The rows of a grid in JSON.
pub fn rows(done: &Done) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    done.stdout.lines().map(parse).collect()
}

#[test]
fn three_by_three_cells_are_nine_rows_a_clock_in_grid_order() {
    let done = grid(&["--format", "json"]).ends_with(0);
    assert_eq!(done.stderr, "");
    let rows = rows(&done);
    assert_eq!(rows.len(), 27);
    let clocks = ["rq_clock", "sched_clock_cpu", "rq_clock_task"];
    for (i, row) in rows.iter().enumerate() {
        assert_eq!(row["cell"], i / 3);
        assert_eq!(row["irq.nic.load"], ["0", "0.3", "0.6"][i / 9]);
        assert_eq!(row["steal.0.fraction"], ["0", "0.3", "0.6"][i / 3 % 3]);
        assert_eq!(row["rate_limit_clock"], clocks[i % 3]);
        assert_eq!((&row["verdict"], &row["failed"]), (&"pass".into(), &"".into()), "{row}");
        // 0 is none: what is left are the ticks and wake-ups.
        let of = |key: &str| row[key].as_i64().unwrap();
        assert_eq!(of("injected_steal_ns"), of("elapsed_ns") * (i as i64 / 3 % 3) * 3 / 10);
        assert_eq!(of("injected_irq_ns") < 1_000_000, i < 9, "{row}");
        assert_eq!(of("clock_reads_saved") == 0, i % 3 == 1, "{row}");
    }
}

#[test]
fn csv_has_a_header_and_the_same_fields_in_every_row_whatever_the_jobs() {
    let one = grid(&["--jobs", "1"]).ends_with(0).stdout;
    for jobs in ["2", "5", "1024"] {
        assert_eq!(grid(&["--jobs", jobs]).ends_with(0).stdout, one, "{jobs} jobs");
    }
    let mut lines = one.lines();
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    assert_eq!(header[..4], ["cell", "irq.nic.load", "steal.0.fraction", "guest"]);
    assert_eq!(lines.clone().count(), 27);
    // No field of these has a comma in it.
    assert!(lines.all(|line| line.split(',').count() == header.len()));
}

#[test]
fn the_figures_of_a_row_are_those_of_the_run_that_it_says_repeats_it() {
    let rows = rows(&grid(&["--format", "json"]).ends_with(0));
    let sets = [
        "duration=60ms",
        "irq.nic.load=0.3",
        "steal.0.fraction=0.6",
        "policy.rate_limit_clock=rq_clock_task",
        "policy.compare=[]",
    ];
    let (row, run) = (&rows[17], run_json("load-grid", "model", &sets, 0));
    for (key, pointer) in [
        ("clock_task_ns", "/rq/0/clock_task_ns"),
        ("accounted_irq_ns", "/accounted/irq_ns"),
        ("tg_published", "/update_tg_load_avg/published"),
        ("stale_max_ns", "/update_tg_load_avg/staleness_max_ns"),
        ("weight_error_mean_ppm", "/update_tg_load_avg/weight_error_mean_ppm"),
        ("clock_reads", "/clock_reads/total"),
        ("psi_delta_zero", "/psi_account_irqtime/delta_zero"),
        ("psi_levels", "/psi_account_irqtime/levels"),
        ("repeat", "/repeat"),
    ] {
        assert!(!row[key].is_null(), "{key}");
        assert_eq!(Some(&row[key]), run.pointer(pointer), "{key}");
    }
    assert!(text(row, "/repeat").contains("--set steal.0.fraction=0.6"));
}

#[test]
fn a_virtual_machine_gives_the_rows_of_the_model() {
    let Some(()) = virtual_machines() else { return };
    let args = |guest| {
        let axes = ["--x", "irq.nic.load=0,0.4", "--y", "steal.0.fraction=0,0.5"];
        let args =
            ["--guest", guest, "--set", "duration=20ms", "--clocks", "own", "--format", "json"];
        [&["grid", "load-grid"], &axes[..], &args].concat()
    };
    let [firmware, model] =
        ["firmware", "model"].map(|guest| rows(&rqscope(args(guest)).ends_with(0)));
    assert_eq!(model.len(), 4);
    for (mut firmware, mut model) in firmware.into_iter().zip(model) {
        for row in [&mut firmware, &mut model] {
            for key in ["guest", "repeat"] {
                row.as_object_mut().unwrap().remove(key);
            }
        }
        assert_eq!(firmware, model);
    }
}

#[test]
fn a_check_that_fails_in_a_cell_is_exit_code_1_and_the_row_names_it() {
    let args = ["grid", "steal-backward", "--x", "seed=1,2", "--clocks", "own", "--format=json"];
    let rows = rows(&rqscope(args).ends_with(1));
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!(
            (&row["verdict"], &row["failed"]),
            (&"fail".into(), &"clock_task_not_ahead avg_irq_within_time_taken".into())
        );
    }
    let run = run_json("steal-backward", "model", &["policy.compare=[]"], 1);
    let failed = ["clock_task_not_ahead", "avg_irq_within_time_taken"];
    assert_eq!(failed_checks(&run), failed);
}

#[test]
fn what_makes_no_grid_is_exit_code_2_in_words() {
    let refused = |args: &[&str], why: &str| {
        let done = rqscope([&["grid", "load-grid"], args].concat()).ends_with(2);
        assert!(done.stderr.contains(why) && done.stdout.is_empty(), "{args:?}: {}", done.stderr);
    };
    refused(&["--x", "irq.nic.load"], "names no key; write for example");
    refused(&["--x", "irq.nic.load="], "has an empty value");
    refused(&["--x", "irq.nic.load=0..1"], "is not a range");
    refused(&["--x", "irq.nic.load=0,0"], "has the value `0` twice");
    refused(&["--x", "irq.nic.laod=0.1"], "did you mean `load`?");
    refused(
        &["--x", "irq.nic.load=0.1,1.5"],
        "--set irq.nic.load=1.5: irq[0].load: 1.5 is out of range",
    );
    refused(&["--x", "irq.nic.rate=1kHz"], "given together with `load`");
    refused(&["--x", "seed=1", "--z", "seed=2"], "two axes set seed");
    refused(&["--x", "seed=1..1000/1000", "--y", "irq.nic.load=0..0.9/101"], "101000 cells");
    refused(&["--seed=3", "--x", "seed=1,2"], "--seed and an axis both set the seed");
    refused(&["--jobs", "0"], "0 is not in 1..=1024");
    refused(&["--clocks", "some"], "possible values: all, own");
    refused(&["--guest", "model", "--kernel", "/dev/null"], "leave out --guest");
    rqscope(["grid", "no-such"]).ends_with(2).says("no built-in scenario and no file");
}

#[test]
fn an_output_directory_gets_the_rows_and_the_scenario() {
    let scratch = Scratch::new();
    let out = scratch.arg("out");
    let done = grid(&["--out", &out]).ends_with(0);
    assert_eq!(done.stdout, "");
    let read = |name| fs::read_to_string(scratch.path("out").join(name)).unwrap();
    assert_eq!(read("grid.csv"), grid(&[]).ends_with(0).stdout);
    assert!(read("scenario.toml").contains("name = \"load-grid\""));
    grid(&["--out", &out]).ends_with(2).says("not empty");
}

#[test]
fn ctrl_c_leaves_whole_rows_and_is_exit_code_130() {
    let scratch = Scratch::new();
    let out = scratch.arg("out");
    let args = ["grid", "load-grid", "--x", "seed=1..2000/2000", "--out", &out, "--clocks=own"];
    let mut running = Running::start(&mut command(args));
    let rows = scratch.path("out/grid.csv");
    let read = || fs::read_to_string(&rows).unwrap_or_default();
    running.wait_until("there are some rows", || read().lines().count() > 3);
    running.signal("INT");
    let done = running.wait().ends_with(130);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""));
    let text = read();
    assert!(text.ends_with('\n'));
    for (i, line) in text.lines().skip(1).enumerate() {
        assert!(line.starts_with(&format!("{i},{},", i + 1)), "{line}");
    }
}

#[test]
fn an_axis_that_is_a_figure_too_is_one_column() {
    let args = ["grid", "default", "--x", "seed=1,2", "--clocks", "own", "--set", "duration=5ms"];
    let out = rqscope(args).ends_with(0).stdout;
    let header: Vec<&str> = out.lines().next().unwrap().split(',').collect();
    assert_eq!(header[..3], ["cell", "seed", "guest"]);
    assert_eq!(header.iter().filter(|name| **name == "seed").count(), 1);
    assert!(out.lines().nth(2).unwrap().starts_with("1,2,model,"), "{out}");
}
