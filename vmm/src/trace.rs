//! The observed trace: fixed-size records, hashed as they come and, if asked for, written to disk
//! as JSON Lines by a thread of its own.
//!
//! The hash covers the records' bytes, not the JSON, so a run without an output directory has the
//! same hash. Records hold no addresses: two boots that differ only in where things lie in memory
//! leave the same trace.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use sha2::{Digest, Sha256};
use zerocopy::{Immutable, IntoBytes};

/// Values of one record.
pub const FIELDS: usize = 16;

/// What a record tells, with the names of its values in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(u64)]
pub enum Kind {
    /// A pass over the scenario begins.
    Pass = 1,
    /// An interrupt was delivered.
    Irq = 2,
    /// Steal was applied.
    Steal = 3,
    /// `update_rq_clock()` was entered.
    UpdateRqClock = 4,
    /// `irqtime_account_irq()` was entered.
    IrqtimeAccountIrq = 5,
    /// `psi_account_irqtime()` was entered.
    PsiAccountIrqtime = 6,
    /// `psi_task_switch()` was entered.
    PsiTaskSwitch = 7,
    /// `psi_task_change()` was entered.
    PsiTaskChange = 8,
    /// `update_tg_load_avg()` was entered.
    UpdateTgLoadAvg = 9,
    /// `clear_tg_load_avg()` was entered.
    ClearTgLoadAvg = 10,
    /// The pass ended; the run queue as it was.
    End = 11,
    /// `update_irq_load_avg()` was entered.
    UpdateIrqLoadAvg = 12,
    /// A function that the user wants probed was entered.
    Probe = 13,
}

/// Names of the run-queue values that every call records, after its own.
const RQ: [&str; 9] = [
    "clock_ns",
    "clock_task_ns",
    "clock_pelt_ns",
    "prev_irq_time_ns",
    "prev_steal_time_rq_ns",
    "psi_irq_time_ns",
    "irqtime_total_ns",
    "psi_seq",
    "curr_pid",
];

impl Kind {
    /// The `ev` of the JSON line.
    fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Irq => "irq",
            Self::Steal => "steal",
            Self::UpdateRqClock => "update_rq_clock",
            Self::IrqtimeAccountIrq => "irqtime_account_irq",
            Self::PsiAccountIrqtime => "psi_account_irqtime",
            Self::PsiTaskSwitch => "psi_task_switch",
            Self::PsiTaskChange => "psi_task_change",
            Self::UpdateTgLoadAvg => "update_tg_load_avg",
            Self::ClearTgLoadAvg => "clear_tg_load_avg",
            Self::End => "end",
            Self::UpdateIrqLoadAvg => "update_irq_load_avg",
            Self::Probe => "probe",
        }
    }

    /// Names of the record's own values; calls are followed by [`RQ`].
    fn own(self) -> &'static [&'static str] {
        match self {
            Self::Pass => &["rate_limit_clock", "psi_zero_delta", "seed"],
            Self::Irq => &["line", "cost_ns", "softirq_ns"],
            Self::Steal => &["wall_ns", "counter_ns", "steal_ns"],
            Self::UpdateRqClock | Self::End => &[],
            Self::IrqtimeAccountIrq => &["offset"],
            Self::UpdateIrqLoadAvg => &["running_ns"],
            Self::Probe => &["probe", "rdi", "rsi", "rdx", "rcx", "r8", "r9"],
            Self::PsiAccountIrqtime => &["pid", "group", "next_pid", "next_group"],
            Self::PsiTaskSwitch => &["prev_pid", "next_pid", "sleep"],
            Self::PsiTaskChange => &["pid", "clear", "set"],
            Self::UpdateTgLoadAvg | Self::ClearTgLoadAvg => {
                &["group", "load_avg", "tg_load_avg_contrib", "tg_load_avg", "last_update_ns"]
            }
        }
    }

    fn is_host(self) -> bool {
        matches!(self, Self::Pass | Self::Irq | Self::Steal)
    }
}

/// One record: 18 little-endian words, which are hashed as they lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(C)]
pub struct Record {
    /// Guest time, ns.
    pub at_ns: u64,
    /// What it tells.
    pub kind: Kind,
    /// Its values, unused ones 0.
    pub values: [u64; FIELDS],
}

// The words' order in memory is the hash's.
const _: () = assert!(cfg!(target_endian = "little"));

impl Record {
    /// A record of the host's own doing.
    pub fn host(at_ns: u64, kind: Kind, own: [u64; 3]) -> Self {
        let mut values = [0; FIELDS];
        values[..3].copy_from_slice(&own);
        Self { at_ns, kind, values }
    }

    /// A call's record: its own values, then the run queue's.
    #[inline]
    pub fn call(at_ns: u64, kind: Kind, own: &[u64], rq: [u64; RQ.len()]) -> Self {
        let mut values = [0; FIELDS];
        values[..own.len()].copy_from_slice(own);
        values[own.len()..own.len() + RQ.len()].copy_from_slice(&rq);
        Self { at_ns, kind, values }
    }

    /// The JSON line, without its end.
    fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        write!(out, r#"{{"at_ns":{},"ev":"{}""#, self.at_ns, self.kind.name())?;
        let own = self.kind.own();
        let rq: &[&str] = if self.kind.is_host() { &[] } else { &RQ };
        for (name, value) in own.iter().chain(rq).zip(self.values) {
            // Only what can be negative is printed signed.
            match *name {
                "counter_ns" | "steal_ns" | "prev_steal_time_rq_ns" => {
                    write!(out, r#","{name}":{}"#, value as i64)?
                }
                "next_pid" | "next_group" if value == u64::MAX => write!(out, r#","{name}":null"#)?,
                _ => write!(out, r#","{name}":{value}"#)?,
            }
        }
        out.write_all(b"}")
    }
}

/// Records handed over at a time.
const BATCH: usize = 1024;
/// Buffers that the writer may have at a time; with all of them taken the run waits for the disk.
const BUFFERS: usize = 4;
/// Room for those, and for the last ones of a run that is stopped while it waits.
const ROOM: usize = 2 * BUFFERS;
/// How often one who waits for the disk looks whether the run is to stop.
const LOOK: Duration = Duration::from_millis(50);
/// How many looks a stopped run waits for a disk that takes nothing: five seconds.
const PATIENCE: u32 = 100;

/// Where the trace goes: a hash, and perhaps a file; or nowhere.
#[derive(Debug)]
pub struct Trace {
    kept: bool,
    hash: Sha256,
    records: u64,
    batch: Vec<Record>,
    writer: Option<Writer>,
    failed: bool,
}

#[derive(Debug)]
struct Writer {
    full: SyncSender<Vec<Record>>,
    /// Hangs up when the writer ends.
    empty: Receiver<Vec<Record>>,
    /// Buffers that the writer has.
    lent: usize,
    /// The run is to stop: then a disk that takes nothing is waited for no longer.
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<()>>,
}

impl Writer {
    /// Hands `batch` over and returns an empty one; `None` if the writer has failed.
    fn swap(&mut self, batch: Vec<Record>) -> Option<Vec<Record>> {
        self.full.try_send(batch).ok()?;
        self.lent += 1;
        loop {
            let patient = self.lent >= BUFFERS && !self.stop.load(Relaxed);
            match self.empty.recv_timeout(if patient { LOOK } else { Duration::ZERO }) {
                Ok(empty) => {
                    self.lent -= 1;
                    return Some(empty);
                }
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if patient => {}
                Err(RecvTimeoutError::Timeout) => return Some(Vec::with_capacity(BATCH)),
            }
        }
    }

    /// Waits until everything is written. A stopped run waits for a disk only while that makes headway.
    fn finish(self) -> io::Result<()> {
        drop(self.full);
        let mut looks = 0;
        loop {
            match self.empty.recv_timeout(LOOK) {
                Ok(_) => looks = 0,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if looks < PATIENCE => looks += 1,
                Err(RecvTimeoutError::Timeout) if self.stop.load(Relaxed) => {
                    let why = "the disk has taken nothing for 5 s; the trace is cut off";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the trace writer panicked")))
    }
}

impl Trace {
    /// A trace that is only hashed.
    pub fn hashed() -> Self {
        let batch = Vec::with_capacity(BATCH);
        Self { kept: true, hash: Sha256::new(), records: 0, batch, writer: None, failed: false }
    }

    /// A trace that nobody asks for: nothing of it is kept, not even a count.
    pub fn none() -> Self {
        Self { kept: false, batch: Vec::new(), ..Self::hashed() }
    }

    /// A trace that is also written to `out` as JSON Lines, by a thread of its own. Once `stop` is set,
    /// an `out` that blocks holds nobody up for long.
    pub fn written(out: impl Write + Send + 'static, stop: Arc<AtomicBool>) -> io::Result<Self> {
        let (full, take) = sync_channel::<Vec<Record>>(ROOM);
        let (give, empty) = sync_channel(ROOM);
        let thread = std::thread::Builder::new().name("trace".into()).spawn(move || {
            let mut out = io::BufWriter::with_capacity(1 << 16, out);
            while let Ok(mut batch) = take.recv() {
                for record in &batch {
                    record.write_json(&mut out)?;
                    out.write_all(b"\n")?;
                }
                batch.clear();
                // The other side may be gone; then nobody needs the buffer.
                let _ = give.try_send(batch);
            }
            out.flush()
        })?;
        Ok(Self { writer: Some(Writer { full, empty, lent: 0, stop, thread }), ..Self::hashed() })
    }

    /// The trace cannot be written: the run has no use without it. [`Trace::finish`] says why.
    #[inline]
    pub fn failed(&self) -> bool {
        self.failed
    }

    /// Adds a record. Allocates only until the writer's few buffers exist.
    #[inline]
    pub fn push(&mut self, record: Record) {
        if !self.kept {
            return;
        }
        self.batch.push(record);
        if self.batch.len() == BATCH {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.hash.update(self.batch.as_bytes());
        self.records += self.batch.len() as u64;
        match &mut self.writer {
            Some(w) if !self.failed => match w.swap(std::mem::take(&mut self.batch)) {
                Some(next) => self.batch = next,
                None => self.failed = true,
            },
            _ => self.batch.clear(),
        }
    }

    /// Ends the trace: its hash in hexadecimal, its records, and whether writing it failed.
    pub fn finish(mut self) -> (String, u64, io::Result<()>) {
        self.flush();
        let written = match self.writer.take() {
            None => Ok(()),
            Some(writer) => writer.finish(),
        };
        let hash = self.hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
        (hash, self.records, written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_fits_and_writes_one_json_object() {
        use Kind::*;
        for kind in [
            Pass,
            Irq,
            Steal,
            UpdateRqClock,
            IrqtimeAccountIrq,
            PsiAccountIrqtime,
            PsiTaskSwitch,
            PsiTaskChange,
            UpdateTgLoadAvg,
            ClearTgLoadAvg,
            End,
            UpdateIrqLoadAvg,
        ] {
            let n = kind.own().len() + if kind.is_host() { 0 } else { RQ.len() };
            assert!(n <= FIELDS, "{kind:?}");
            let mut line = Vec::new();
            Record { at_ns: 1, kind, values: [u64::MAX; FIELDS] }.write_json(&mut line).unwrap();
            let value: serde_json::Value = serde_json::from_slice(&line).unwrap();
            assert_eq!(value["ev"], kind.name());
            assert_eq!(value.as_object().unwrap().len(), n + 2, "{kind:?}");
        }
    }

    #[test]
    fn the_hash_is_the_same_with_and_without_a_file_and_tells_records_apart() {
        let run = |mut t: Trace, last: u64| {
            for i in 0..3000 {
                t.push(Record::host(i, Kind::Irq, [1, 2, 3]));
            }
            t.push(Record::host(9, Kind::Steal, [0, 0, last]));
            t.finish()
        };
        let (a, n, _) = run(Trace::hashed(), 0);
        let (b, _, written) = run(Trace::written(io::sink(), Arc::default()).unwrap(), 0);
        let (c, ..) = run(Trace::hashed(), 1);
        assert!(written.is_ok());
        assert_eq!((&a, n), (&b, 3001));
        assert_ne!(a, c);
    }

    #[test]
    fn a_disk_that_is_full_is_noticed_at_once_and_reported_at_the_end() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::Error::from(io::ErrorKind::StorageFull))
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut t = Trace::written(Full, Arc::default()).unwrap();
        let records = (BUFFERS + 1) * BATCH;
        for i in 0..records as u64 {
            t.push(Record::host(i, Kind::Irq, [0; 3]));
        }
        assert!(t.failed());
        assert_eq!(t.finish().2.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_run_that_is_stopped_does_not_wait_for_a_disk_that_takes_nothing() {
        /// Blocks until its other end goes.
        struct Stuck(Receiver<()>);
        impl Write for Stuck {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let _ = self.0.recv();
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (disk, end) = sync_channel(1);
        let stop = Arc::new(AtomicBool::new(false));
        let mut t = Trace::written(Stuck(end), stop.clone()).unwrap();
        let stopper = std::thread::spawn(move || stop.store(true, Relaxed));
        for i in 0..(ROOM * BATCH) as u64 {
            t.push(Record::host(i, Kind::Irq, [0; 3]));
        }
        stopper.join().unwrap();
        assert!(!t.failed());
        assert_eq!(t.finish().2.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(disk);
    }
}
