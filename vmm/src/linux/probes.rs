//! The probes of a Linux guest: which functions, by which port, and what a hit of each means.

use std::ops::RangeInclusive;

use thiserror::Error;

use crate::introspect::{Function, LoadFunction};

/// Ports of patched function entries: `out imm8, al` names the probe by its port.
pub const PROBE_PORTS: RangeInclusive<u16> = 0xa8..=0xdf;

/// What a hit means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hit {
    /// A call that the observer takes.
    Call(Function),
    /// A call that moves load, for the replay.
    Load(LoadFunction),
    /// The scheduler's tick begins.
    Tick,
    /// The network driver polls, in softirq context or in ksoftirqd.
    Softirq,
    /// The scheduler clock is read.
    ClockRead,
    /// One of the user's, by its index.
    User(u8),
}

/// A function that is probed in every guest, beside those that the observer takes.
#[derive(Clone, Copy, Debug)]
pub struct Extra {
    /// Its names, newest first: a kernel has one of them.
    pub names: &'static [&'static str],
    /// What a hit means.
    pub hit: Hit,
}

/// The functions that are probed in every guest, beside those that the observer takes.
pub const EXTRA: [Extra; 3] = [
    // scheduler_tick() until 6.9.
    Extra { names: &["sched_tick", "scheduler_tick"], hit: Hit::Tick },
    Extra { names: &["virtnet_poll"], hit: Hit::Softirq },
    Extra { names: &["sched_clock_cpu"], hit: Hit::ClockRead },
];

/// Why a probe cannot be added.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// All ports are taken.
    #[error("probe {name}: at most {max} functions can be probed at a time")]
    TooMany {
        /// The function.
        name: String,
        /// The most.
        max: usize,
    },
}

/// One installed probe.
#[derive(Clone, Debug)]
struct Probe {
    address: u64,
    hit: Hit,
    /// Where the guest goes on after a hit, if not behind the probe.
    resume: Option<u64>,
}

/// The probes that are installed.
#[derive(Clone, Debug, Default)]
pub struct Probes {
    probes: Vec<Probe>,
    /// Return addresses of clock reads, and how many came from each.
    readers: Vec<(u64, u64)>,
    user_hits: Vec<u64>,
}

impl Probes {
    /// The port of the next probe, which is to be `name`'s.
    pub fn next_port(&self, name: &str) -> Result<u8, ProbeError> {
        let max = PROBE_PORTS.count();
        if self.probes.len() == max {
            return Err(ProbeError::TooMany { name: name.to_owned(), max });
        }
        Ok(*PROBE_PORTS.start() as u8 + self.probes.len() as u8)
    }

    /// There is a probe at `address` now, with the port that was next. `resume` is where the guest goes on
    /// after a hit, if not behind it.
    pub fn add(&mut self, address: u64, hit: Hit, resume: Option<u64>) {
        self.probes.push(Probe { address, hit, resume });
        if let Hit::User(index) = hit {
            self.user_hits.resize(usize::from(index) + 1, 0);
        }
    }

    /// A function is probed with this meaning.
    pub fn has(&self, hit: Hit) -> bool {
        self.probes.iter().any(|p| p.hit == hit)
    }

    /// Is there a probe at `address`?
    pub fn is_probed(&self, address: u64) -> bool {
        self.probes.iter().any(|p| p.address == address)
    }

    /// What a hit at `port` means.
    #[inline]
    pub fn hit(&self, port: u16) -> Option<Hit> {
        self.probe(port).map(|p| p.hit)
    }

    /// Where the guest goes on after a hit at `port`, if not behind the probe.
    #[inline]
    pub fn resume(&self, port: u16) -> Option<u64> {
        self.probe(port).and_then(|p| p.resume)
    }

    /// Guest virtual address of the probe at `port`.
    pub fn address(&self, port: u16) -> Option<u64> {
        self.probe(port).map(|p| p.address)
    }

    #[inline]
    fn probe(&self, port: u16) -> Option<&Probe> {
        self.probes.get(usize::from(port.checked_sub(*PROBE_PORTS.start())?))
    }

    /// The clock was read by the caller that goes on at `address`. Allocates for a new caller only.
    #[inline]
    pub fn clock_read(&mut self, address: u64) {
        match self.readers.binary_search_by_key(&address, |(a, _)| *a) {
            Ok(i) => self.readers[i].1 += 1,
            Err(i) if self.readers.len() < MAX_READERS => self.readers.insert(i, (address, 1)),
            Err(_) => {}
        }
    }

    /// Return addresses of clock reads and how many came from each, lowest first.
    pub fn clock_readers(&self) -> &[(u64, u64)] {
        &self.readers
    }

    /// Forgets the clock reads and the user's hits so far.
    pub fn clear_counts(&mut self) {
        self.readers.clear();
        self.user_hits.fill(0);
    }

    /// The user's probe `index` was hit.
    #[inline]
    pub fn user_hit(&mut self, index: u8) {
        if let Some(hits) = self.user_hits.get_mut(usize::from(index)) {
            *hits += 1;
        }
    }

    /// Hits of the user's probes, in their order.
    pub fn user_hits(&self) -> &[u64] {
        &self.user_hits
    }
}

/// More callers than a kernel has.
const MAX_READERS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_probe_has_a_port_of_its_own_until_there_are_no_more() {
        let mut p = Probes::default();
        for i in 0..PROBE_PORTS.count() as u64 {
            let port = p.next_port("f").unwrap();
            p.add(i, Hit::Tick, None);
            assert_eq!((p.hit(port.into()), p.address(port.into())), (Some(Hit::Tick), Some(i)));
        }
        let error = p.next_port("last_straw").unwrap_err();
        assert!(error.to_string().contains("last_straw"));
        assert_eq!((p.hit(0), p.hit(0xa7), p.hit(0xe0)), (None, None, None));
    }

    #[test]
    fn clock_reads_are_counted_by_caller() {
        let mut p = Probes::default();
        for address in [7, 3, 7, 9, 7] {
            p.clock_read(address);
        }
        assert_eq!(p.clock_readers(), [(3, 1), (7, 3), (9, 1)]);
        p.clear_counts();
        assert!(p.clock_readers().is_empty());
    }
}
