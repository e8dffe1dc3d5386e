//! From a document's tables to the sources of interrupts and steal time.

use super::decode::{Names, Result, duration, ends, flag};
use super::error::Problem;
use super::field::{Field, Table, hint};
use super::units::{MAX_NS, Rate, Share, format_duration};
use super::{
    Arrival, Cost, Irq, MAX_DURATION_NS, MAX_HANDLER_NS, Steal, StealPattern, TIMER, When, Window,
};

/// Cap of an exponential cost, in means, where none is given.
const CAP_MEANS: u32 = 16;

fn window(table: &Table<'_>) -> Result<Window> {
    let from_ns = duration(table, "from", 0, 0)?;
    let until_ns = table.get("until").map(|f| f.duration(0, MAX_DURATION_NS)).transpose()?;
    if let Some(until_ns) = until_ns
        && until_ns <= from_ns
    {
        let [from, until] = [from_ns, until_ns].map(|ns| format_duration(ns as i64));
        return Err(table.error("until", Problem::EmptyWindow { from, until }));
    }
    Ok(Window { from_ns, until_ns })
}

/// Interrupt source `index`.
pub(super) fn irq(table: &Table<'_>, index: usize, names: &Names<'_>) -> Result<Irq> {
    let table = table.clone().only(&[
        "name", "rate", "load", "arrival", "burst", "gap", "cost", "softirq", "from", "until",
        "wakes", "balance",
    ])?;
    let cost = cost(table.need("cost", "cost = \"5us\"")?)?;
    let load = table.get("load").map(|f| f.share_below_one()).transpose()?;
    let rate = match load {
        None => Some(table.need("rate", "rate = \"20kHz\"")?.rate()?),
        Some(load) => {
            table.refuse("rate", "given together with `load`; keep one of them")?;
            rate_of(&table, load, cost)?
        }
    };
    let kinds = [("periodic", 0), ("poisson", 1), ("burst", 2)];
    let arrival = match table.get("arrival").map_or(Ok(0), |f| f.one_of(&kinds))? {
        2 => burst(&table, rate)?,
        kind => {
            for key in ["burst", "gap"] {
                table.refuse(key, "needs arrival = \"burst\"")?;
            }
            if kind == 1 { Arrival::Poisson } else { Arrival::Periodic }
        }
    };
    Ok(Irq {
        name: names.lines[index].to_owned(),
        rate,
        load,
        arrival,
        cost,
        softirq: table.get("softirq").map_or(Ok(Share::ZERO), |f| f.share())?,
        window: window(&table)?,
        wakes: table.get("wakes").map(|f| names.woken(&f, 1)).transpose()?,
        balance: flag(&table, "balance")?,
    })
}

/// The rate at which handlers of mean `cost` take `load` of the CPU, rounded down to nHz; `None` for none.
fn rate_of(table: &Table<'_>, load: Share, cost: Cost) -> Result<Option<Rate>> {
    if load == Share::ZERO {
        return Ok(None);
    }
    let rate = Rate::of_load(load, cost.twice_mean_ns());
    let too_fast = || {
        let why = "handlers that short cannot take this share at 1000MHz or less; raise `cost`";
        table.error("load", Problem::Conflict { why: why.to_owned() })
    };
    rate.map(Some).ok_or_else(too_fast)
}

fn burst(table: &Table<'_>, rate: Option<Rate>) -> Result<Arrival> {
    let burst = table.get("burst").map_or(Ok(8), |f| f.integer(1, 1_000_000))? as u32;
    let gap_ns = duration(table, "gap", 0, 1_000)?;
    let Some(rate) = rate else { return Ok(Arrival::Burst { burst, gap_ns }) };
    let lasts = u128::from(burst - 1) * u128::from(gap_ns);
    let period = u128::from(burst) * u128::from(Rate::GHZ) / u128::from(rate.nano_hz());
    if lasts > period {
        let text = |ns: u128| format_duration(ns.min(MAX_NS.into()) as i64);
        let problem = Problem::BurstTooLong { burst, lasts: text(lasts), period: text(period) };
        return Err(table.error(if table.get("gap").is_some() { "gap" } else { "burst" }, problem));
    }
    Ok(Arrival::Burst { burst, gap_ns })
}

/// `"5us"`, `{ min, max }` or `{ mean, max }`.
fn cost(field: Field<'_>) -> Result<Cost> {
    if !field.is_table() {
        return Ok(Cost::Fixed(field.duration(0, MAX_HANDLER_NS)? as u32));
    }
    let table = field.table("a table")?.only(&["min", "max", "mean"])?;
    if table.get("mean").is_none() {
        let (min, max) = ends(&table, 0, MAX_HANDLER_NS)?;
        return Ok(Cost::Uniform { min: min as u32, max: max as u32 });
    }
    table.refuse("min", "given together with `mean`; write min and max, or mean and max")?;
    let mean = table.need("mean", "mean = \"5us\"")?.duration(1, MAX_HANDLER_NS)? as u32;
    let max = match table.get("max") {
        Some(field) => field.duration(mean.into(), MAX_HANDLER_NS)? as u32,
        None => mean.saturating_mul(CAP_MEANS),
    };
    Ok(Cost::Exponential { mean, max })
}

/// A steal source.
pub(super) fn steal(table: &Table<'_>, names: &Names<'_>) -> Result<Steal> {
    let table = table.clone().only(&[
        "fraction", "quantum", "jitter", "period", "slice", "at", "every", "line", "counter",
        "when", "from", "until",
    ])?;
    // A fraction may be one of each period.
    let periodic_share = table.get("fraction").is_some() && table.get("period").is_some();
    let kinds = ["fraction", "period", "at", "every"];
    let kinds = kinds.into_iter().filter(|kind| !(periodic_share && *kind == "period"));
    let mut given = kinds.filter(|kind| table.get(kind).is_some());
    let kind = given.next().ok_or_else(|| {
        let why = "says not when to steal; add one of `fraction`, `period`, `at` and `every`";
        table.error("", Problem::Conflict { why: why.to_owned() })
    })?;
    if let Some(other) = given.next() {
        table
            .refuse(other, &format!("given together with `{kind}`; use one [[steal]] for each"))?;
    }
    let own: &[&str] = match kind {
        "fraction" if periodic_share => &["from", "until"],
        "fraction" => &["quantum", "jitter", "from", "until"],
        "period" => &["slice", "from", "until"],
        "at" => &["slice"],
        _ => &["slice", "line", "from", "until"],
    };
    for key in ["quantum", "jitter", "slice", "line", "from", "until"] {
        if !own.contains(&key) {
            let with =
                if periodic_share { "`fraction` and `period`" } else { &format!("`{kind}`") };
            table.refuse(key, &format!("does not go with {with}"))?;
        }
    }

    let max = MAX_DURATION_NS;
    let (pattern, slice_ns, window) = match kind {
        "fraction" if periodic_share => {
            let share = table.need(kind, "fraction = 0.25")?.share_below_one()?;
            let period_ns = table.need("period", "period = \"4ms\"")?.duration(1, max)?;
            let slice_ns = share.of_ns(period_ns);
            if slice_ns == 0 && share != Share::ZERO {
                let why = "this share of the period is less than 1 ns; raise `period`";
                return Err(table.error(kind, Problem::Conflict { why: why.to_owned() }));
            }
            let pattern = StealPattern::Period { period_ns, share: Some(share) };
            (pattern, slice_ns, window(&table)?)
        }
        "fraction" => {
            let share = table.need(kind, "fraction = 0.25")?.share_below_one()?;
            let jitter = flag(&table, "jitter")?;
            let quantum = duration(&table, "quantum", 1, 1_000_000)?;
            (StealPattern::Fraction { share, jitter }, quantum, window(&table)?)
        }
        "period" => {
            let period_ns = table.need(kind, "period = \"4ms\"")?.duration(1, max)?;
            let slice = table.need("slice", "slice = \"1ms\"")?;
            let slice_ns = slice.duration(0, period_ns - 1)?;
            (StealPattern::Period { period_ns, share: None }, slice_ns, window(&table)?)
        }
        "at" => {
            let from_ns = table.need(kind, "at = \"500ms\"")?.duration(0, max)?;
            let slice_ns = duration(&table, "slice", 0, 0)?;
            (StealPattern::Once, slice_ns, Window { from_ns, until_ns: None })
        }
        _ => {
            let every = table.need(kind, "every = 7")?.integer(1, u32::MAX.into())? as u32;
            let line = table.get("line").map(|f| line(&f, names)).transpose()?;
            let slice = table.need("slice", "slice = \"3us\"")?;
            let slice_ns = slice.duration(0, MAX_HANDLER_NS)?;
            (StealPattern::InHandler { every, line }, slice_ns, window(&table)?)
        }
    };
    let counter_ns = match table.get("counter") {
        Some(field) => field.signed_duration(-(MAX_NS as i64), MAX_NS as i64)?,
        None => slice_ns as i64,
    };
    if slice_ns == 0 && counter_ns == 0 && kind != "fraction" {
        let why = "steals nothing: slice and counter are both 0; set one of them";
        return Err(table.error("", Problem::Conflict { why: why.to_owned() }));
    }
    Ok(Steal { when: when(&table, kind == "every")?, pattern, slice_ns, counter_ns, window })
}

fn line(field: &Field<'_>, names: &Names<'_>) -> Result<u16> {
    let text = field.text()?;
    let mut all = std::iter::once(TIMER).chain(names.lines.iter().copied());
    let lines = all.clone();
    let found = all.position(|name| name == text);
    found.map(|line| line as u16).ok_or_else(|| {
        let hint = hint(text, lines);
        field.unknown_name("interrupt line", "irq", hint)
    })
}

fn when(table: &Table<'_>, in_handler: bool) -> Result<When> {
    let known =
        [("any", When::Any), ("busy", When::Busy), ("idle", When::Idle), ("irq", When::Irq)];
    let default = if in_handler { When::Irq } else { When::Any };
    let when = table.get("when").map_or(Ok(default), |f| f.one_of(&known))?;
    match (when == When::Irq, in_handler) {
        (true, false) => {
            table.refuse(
                "when",
                "\"irq\" steals inside handlers, which needs `every` and `slice`",
            )?;
        }
        (false, true) => {
            table.refuse("when", "`every` steals inside handlers, so it is \"irq\"")?
        }
        _ => {}
    }
    Ok(when)
}
