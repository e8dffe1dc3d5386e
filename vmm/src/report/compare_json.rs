//! A comparison as JSON; docs/compare.md gives each key's meaning.

use serde_json::{Map, Value, json as value};

use super::json::number;
use crate::compare::{Cell, Judged, Leaf, Parting, Study, Summary};

/// `rqscope_compare_json`, the version of the keys. Keys may be added within a version; none is removed
/// or changes its meaning or type.
pub const VERSION: u32 = 1;

/// Everything that a comparison found; without `values` the cells have no values and no series.
pub fn study(study: &Study, values: bool) -> Value {
    let failed: Vec<_> = study.failed().map(|claim| &claim.key).collect();
    let subjects = study.names.iter().enumerate().map(|(i, name)| {
        let run = study.cells.first().and_then(|cell| cell.runs.get(i));
        value!({
            "name": name,
            "subject": study.subjects.get(i),
            "guest": run.map(|run| &run.guest),
            "banner": run.and_then(|run| run.banner.as_ref()),
        })
    });
    value!({
        "rqscope_compare_json": VERSION,
        "claims": study.claims.iter().map(|claim| value!({
            "key": claim.key,
            "holds": !failed.contains(&&claim.key),
        })).collect::<Vec<_>>(),
        "planned": study.planned,
        "done": study.cells.len(),
        "interrupted": study.interrupted,
        "sets": study.sets,
        "subjects": subjects.collect::<Vec<_>>(),
        "cells": study.cells.iter().map(|c| cell(study, c, values)).collect::<Vec<_>>(),
    })
}

/// One scenario and seed.
pub fn cell(study: &Study, cell: &Cell, values: bool) -> Value {
    use crate::compare::Relation::{Different, Equal, Unavailable};
    let c = &cell.comparison;
    let runs = study.names.iter().zip(&cell.runs);
    let parting = c.parting().map(|(key, parting)| {
        let mut object = part(parting);
        object["key"] = key.into();
        object
    });
    let mut object = value!({
        "rqscope_compare_json": VERSION,
        "scenario": cell.source,
        "seed": cell.seed,
        "duration_ns": cell.duration_ns,
        "subjects": runs.map(|(name, run)| subject(name, run)).collect::<Vec<_>>(),
        "same_schedule": c.same_schedule(),
        "equal": c.count(Equal),
        "different": c.count(Different),
        "unavailable": c.count(Unavailable),
        "claims": cell.judged.iter().map(claim).collect::<Vec<_>>(),
        "sample_period_ns": c.period_ns,
        "parting": parting,
    });
    if values {
        let rows = c.rows.iter().map(|row| {
            let values: Vec<Value> = row.values.iter().map(leaf).collect();
            (row.key.clone(), value!({ "relation": row.relation.name(), "values": values }))
        });
        object["values"] = rows.collect::<Map<_, _>>().into();
        let tracks = c.tracks.iter().map(|track| {
            let entry = value!({
                "relation": track.relation.name(),
                "samples": track.samples,
                "differ": track.differ,
                "first": track.first.as_ref().map(part),
            });
            (track.key.clone(), entry)
        });
        object["series"] = tracks.collect::<Map<_, _>>().into();
    }
    object
}

fn subject(name: &str, run: &Summary) -> Value {
    value!({
        "name": name,
        "psi": run.psi,
        "rate_limit_clock": run.clock,
        "verdict": run.verdict,
        "failed_checks": run.failed,
        "stopped": run.stopped,
        "trace_sha256": run.trace_sha256,
        "trace_records": run.trace_records,
        "repeat": run.repeat,
    })
}

fn claim(judged: &Judged) -> Value {
    value!({
        "key": judged.key,
        "holds": judged.holds(),
        "equal": judged.equal,
        "different": judged.different,
        "unavailable": judged.unavailable,
    })
}

fn part(parting: &Parting) -> Value {
    let values = parting.values.iter().map(|v| v.map_or(Value::Null, number));
    value!({
        "index": parting.index,
        "at_ns": parting.at_ns,
        "values": values.collect::<Vec<_>>(),
    })
}

fn leaf(leaf: &Option<Leaf>) -> Value {
    match leaf {
        None => Value::Null,
        Some(Leaf::Number(n)) => number(*n),
        Some(Leaf::Text(text)) => text.as_str().into(),
    }
}
