//! The samples of a run as series, one under one key.

use crate::check::CheckId;
use crate::run::RunOutcome;

/// A series of a run, or `None` where its guest has no such value.
pub type Column = Option<Vec<i128>>;

/// Every series of the first pass of `run`, under keys such as `series.clock_task_ns` or
/// `series.psi_irq_full./web/api`; none if it took no samples.
pub fn columns(run: &RunOutcome) -> Vec<(String, Column)> {
    let Some(pass) = run.passes.first() else { return Vec::new() };
    let Some(series) = &pass.series else { return Vec::new() };
    let paths = match &run.linux {
        Some(linux) => linux.groups.clone(),
        None => run.scenario.group_paths(),
    };
    let lacks = |id: CheckId| run.linux.iter().flat_map(|l| &l.lacks).any(|(lack, _)| *lack == id);
    let has_psi = !lacks(CheckId::PsiIrqLedger);
    let cpu = |of: fn(&crate::series::CpuSample) -> i128| series.cpu().iter().map(of).collect();
    let mut columns: Vec<(String, Column)> = vec![
        ("series.at_ns".into(), Some(cpu(|s| s.at_ns.into()))),
        ("series.clock_ns".into(), Some(cpu(|s| s.clock_ns.into()))),
        ("series.clock_task_ns".into(), Some(cpu(|s| s.clock_task_ns.into()))),
        ("series.cpu_irqtime_total_ns".into(), Some(cpu(|s| s.irqtime_total_ns.into()))),
        (
            "series.prev_steal_time_rq_ns".into(),
            // Signed: a counter that was set back below its start.
            pass.has_steal_clock.then(|| cpu(|s| (s.prev_steal_time_rq_ns as i64).into())),
        ),
    ];
    for (name, of) in GROUP {
        for (group, path) in (0u16..).zip(&paths) {
            // The root contributes to nothing.
            if group == 0 && name != PSI {
                continue;
            }
            let there = name != PSI || has_psi;
            let column = there.then(|| series.group(group).map(of).collect());
            columns.push((format!("series.{name}.{path}"), column));
        }
    }
    columns
}

const PSI: &str = "psi_irq_full";

type OfGroup = fn(&crate::series::GroupSample) -> i128;

/// What is sampled of each group.
const GROUP: [(&str, OfGroup); 3] = [
    (PSI, |s| s.psi_irq_full_ns.into()),
    ("tg_load_avg", |s| s.tg_load_avg.into()),
    ("tg_load_avg_contrib", |s| s.tg_load_avg_contrib.into()),
];
