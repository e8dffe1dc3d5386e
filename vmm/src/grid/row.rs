//! A row: the figures of one pass over one cell, out of the same JSON object that `rqscope run` prints.

use serde_json::{Map, Value};

use super::Grid;
use crate::report;
use crate::run::RunOutcome;

/// How rows are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Comma-separated values (RFC 4180, but each line ends with a newline alone), a header first.
    #[default]
    Csv,
    /// One JSON object a line.
    Json,
}

/// Names of the figures, units last, and where the JSON object of a run has each (docs/json.md).
const FIGURES: &[(&str, &str)] = &[
    ("guest", "/guest/kind"),
    ("seed", "/seed"),
    ("rate_limit_clock", "/update_tg_load_avg/clock"),
    ("psi_zero_delta", "/psi_account_irqtime/policy"),
    ("verdict", "/verdict"),
    ("elapsed_ns", "/elapsed_ns"),
    ("clock_ns", "/rq/0/clock_ns"),
    ("clock_task_ns", "/rq/0/clock_task_ns"),
    ("task_ns", "/wall_time/task_ns"),
    ("idle_ns", "/wall_time/idle_ns"),
    ("injected_irq_ns", "/injected/irq_ns"),
    ("injected_irqs", "/injected/irq_count"),
    ("injected_steal_ns", "/injected/steal_ns"),
    ("steal_in_irq_ns", "/injected/steal_in_irq_ns"),
    ("accounted_irq_ns", "/accounted/irq_ns"),
    ("accounted_steal_ns", "/accounted/steal_ns"),
    ("steal_dropped_ns", "/accounted/steal_dropped_ns"),
    ("clock_task_off_by_ns", "/accounted/clock_task_off_by_ns"),
    ("clock_updates", "/accounted/updates"),
    ("tg_calls", "/update_tg_load_avg/calls"),
    ("tg_rate_limited", "/update_tg_load_avg/rate_limited"),
    ("tg_below_tolerance", "/update_tg_load_avg/below_tolerance"),
    ("tg_published", "/update_tg_load_avg/published"),
    ("tg_published_clock_milli_hz", "/update_tg_load_avg/published_clock_milli_hz"),
    ("tg_published_clock_task_milli_hz", "/update_tg_load_avg/published_clock_task_milli_hz"),
    ("stale_periods", "/update_tg_load_avg/staleness_count"),
    ("stale_max_ns", "/update_tg_load_avg/staleness_max_ns"),
    ("stale_max_clock_task_ns", "/update_tg_load_avg/staleness_max_clock_task_ns"),
    ("stale_mean_ns", "/update_tg_load_avg/staleness_mean_ns"),
    ("stale_mean_clock_task_ns", "/update_tg_load_avg/staleness_mean_clock_task_ns"),
    ("stale_max_load", "/update_tg_load_avg/staleness_max_load"),
    ("stale_mean_load_milli", "/update_tg_load_avg/staleness_mean_load_milli"),
    ("weight_error_max_ppm", "/update_tg_load_avg/weight_error_max_ppm"),
    ("weight_error_mean_ppm", "/update_tg_load_avg/weight_error_mean_ppm"),
    ("clock_reads", "/clock_reads/total"),
    ("clock_reads_update_rq_clock", "/clock_reads/update_rq_clock"),
    ("clock_reads_irqtime_account_irq", "/clock_reads/irqtime_account_irq"),
    ("clock_reads_update_tg_load_avg", "/clock_reads/update_tg_load_avg"),
    ("clock_reads_psi_account_irqtime", "/clock_reads/psi_account_irqtime"),
    ("clock_reads_psi_other", "/clock_reads/psi_other"),
    ("clock_reads_saved", "/update_tg_load_avg/clock_reads_saved"),
    ("psi_calls", "/psi_account_irqtime/total"),
    ("psi_curr_swapper", "/psi_account_irqtime/ret_curr_swapper"),
    ("psi_same_group", "/psi_account_irqtime/ret_samegrp"),
    ("psi_reached_delta", "/psi_account_irqtime/reached_delta"),
    ("psi_delta_positive", "/psi_account_irqtime/delta_positive"),
    ("psi_delta_zero", "/psi_account_irqtime/delta_zero"),
    ("psi_delta_negative", "/psi_account_irqtime/delta_negative"),
    ("psi_delta_zero_ppm", "/psi_account_irqtime/delta_zero_ppm"),
    ("psi_seqcount_writes", "/psi_account_irqtime/seqcount_writes"),
    ("psi_levels", "/psi_account_irqtime/levels"),
    ("updates_skipped", "/linux/updates_skipped"),
    ("skipped_behind_max_ns", "/linux/skipped_behind_max_ns"),
    ("conformance_transitions", "/linux/conformance/transitions"),
    ("conformance_differences", "/linux/conformance/differences"),
    ("repeat", "/repeat"),
];

/// The rows of a grid, in one format.
#[derive(Clone, Debug)]
pub struct Rows {
    format: Format,
    keys: Vec<String>,
}

impl Rows {
    /// Rows for the cells of `grid`.
    pub fn new(grid: &Grid, format: Format) -> Self {
        Self { format, keys: grid.keys().map(str::to_owned).collect() }
    }

    /// The figures that are not an axis: a row has each name once.
    fn figures(&self) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
        FIGURES.iter().filter(|(name, _)| self.keys.iter().all(|key| key != name))
    }

    /// The line before the first row, if there is one.
    pub fn header(&self) -> Option<String> {
        let keys = self.keys.iter().map(String::as_str);
        let figures = self.figures().map(|(name, _)| *name);
        let names = ["cell"].into_iter().chain(keys).chain(figures).chain(["failed"]);
        (self.format == Format::Csv).then(|| names.map(field).collect::<Vec<_>>().join(","))
    }

    /// The row of cell `index`, whose axes have these values, of the only pass of `outcome`. A figure
    /// that is unavailable is empty or `null`; `failed` names the checks that failed.
    pub fn row(&self, index: usize, values: &[&str], outcome: &RunOutcome) -> String {
        let json = report::json(outcome);
        let checks = json["checks"].as_array().into_iter().flatten();
        let failed = checks.filter(|check| check["status"] == "fail");
        let failed: Vec<&str> = failed.filter_map(|check| check["name"].as_str()).collect();

        let keys = self.keys.iter().zip(values).map(|(key, value)| (key.as_str(), (*value).into()));
        let figures = self
            .figures()
            .map(|(name, pointer)| (*name, json.pointer(pointer).cloned().unwrap_or_default()));
        let cells = [("cell", Value::from(index))].into_iter().chain(keys).chain(figures);
        let cells = cells.chain([("failed", failed.join(" ").into())]);
        match self.format {
            Format::Csv => cells.map(|(_, value)| text(&value)).collect::<Vec<_>>().join(","),
            Format::Json => {
                let object: Map<String, Value> =
                    cells.map(|(name, value)| (name.to_owned(), value)).collect();
                Value::Object(object).to_string()
            }
        }
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => field(text),
        other => other.to_string(),
    }
}

/// A field of CSV, in quotes where it needs them.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
