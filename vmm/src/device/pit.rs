//! The 8254 interval timer and port 0x61, as far as Linux drives them.
//!
//! Commands and modes: Intel 8254 data sheet (231164). The drivers: drivers/clocksource/i8253.c (counter 0
//! as clock event device: mode 2 for a periodic tick, mode 4 for one event, mode 0 to stop) and
//! arch/x86/kernel/tsc.c (counter 2, polled through port 0x61), Linux 7.3.
//!
//! # Time
//! A counter's ticks are counted from the write that loads it: tick `k` is at
//! `load + ceil(k * 10^9 / 1193182)` ns, computed from `k` each time, so that no rounding adds up. An
//! initial count of N raises counter 0's interrupt at tick N, in the periodic modes again at 2N, 3N and so
//! on. The data sheet has everything one tick later, as a count is taken over at the tick after its write,
//! and OUT rises yet a tick later in mode 4. Linux asks for a distance of N ticks, and gets it from QEMU
//! (hw/timer/i8254_common.c) and from KVM's own timer (arch/x86/kvm/i8254.c) as from here.
//!
//! # Left out
//! BCD counting; the edges that setting a mode makes on OUT; that a periodic counter takes over a new
//! count only at the end of its period. Linux sets the mode before the count, in binary.

use zerocopy::{Immutable, IntoBytes, TryFromBytes};

use super::state::{State, StateError, Unused, take};

/// Port of counter 0 (`PIT_CH0`); those of 1 and 2 follow.
pub const COUNTER_0: u16 = 0x40;
/// Port of counter 2 (`PIT_CH2`).
pub const COUNTER_2: u16 = 0x42;
/// Port of the control words (`PIT_MODE`).
pub const CONTROL: u16 = 0x43;
/// System control port B: gate and output of counter 2.
pub const PORT_B: u16 = 0x61;

/// Frequency, Hz (`PIT_TICK_RATE`).
pub const FREQUENCY_HZ: u64 = 1_193_182;

const NS_PER_S: u128 = 1_000_000_000;

/// From a load to its tick `ticks`, ns.
pub fn ticks_to_ns(ticks: u64) -> u64 {
    let ns = (u128::from(ticks) * NS_PER_S).div_ceil(u128::from(FREQUENCY_HZ));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// Ticks that have passed `ns` after a load.
fn ns_to_ticks(ns: u64) -> u64 {
    // Less than the argument, as the frequency is below 10^9.
    (u128::from(ns) * u128::from(FREQUENCY_HZ) / NS_PER_S) as u64
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, TryFromBytes, Immutable)]
#[repr(u8)]
enum Mode {
    TerminalCount = 0,
    OneShot = 1,
    RateGenerator = 2,
    SquareWave = 3,
    SoftwareStrobe = 4,
    HardwareStrobe = 5,
}

impl Mode {
    /// From bits 1 to 3 of a control word; bit 3 is not looked at in modes 2 and 3.
    fn of_control(word: u8) -> Self {
        match word >> 1 & 7 {
            0 => Self::TerminalCount,
            1 => Self::OneShot,
            2 | 6 => Self::RateGenerator,
            3 | 7 => Self::SquareWave,
            4 => Self::SoftwareStrobe,
            _ => Self::HardwareStrobe,
        }
    }

    fn is_periodic(self) -> bool {
        matches!(self, Self::RateGenerator | Self::SquareWave)
    }

    /// A rising gate starts it, and a falling one does not stop it.
    fn is_triggered(self) -> bool {
        matches!(self, Self::OneShot | Self::HardwareStrobe)
    }
}

/// Which bytes of a count pass through the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, TryFromBytes, Immutable)]
#[repr(u8)]
enum Access {
    Low = 1,
    High = 2,
    LowThenHigh = 3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, TryFromBytes, Immutable)]
#[repr(u8)]
enum Run {
    /// A mode, but no count.
    Empty,
    /// It has a count and waits for its gate.
    Waiting,
    Counting,
}

#[derive(Clone, Debug, PartialEq, Eq, IntoBytes, TryFromBytes, Immutable)]
#[repr(C)]
struct Counter {
    /// When it was loaded, ns; may lie before the clock's 0 after [`Pit::rebase`].
    loaded_ns: i64,
    /// Ticks it had counted when its gate fell.
    waiting_ticks: u64,
    /// Number of the interrupt that comes next, from 1 for the first after the load.
    next_edge: u64,
    /// 1 to 0x10000.
    initial: u32,
    latched_count: u16,
    latched_status: u8,
    /// First byte of a count of two.
    low: u8,
    mode: Mode,
    access: Access,
    run: Run,
    gate: bool,
    has_latched_count: bool,
    has_latched_status: bool,
    /// The next byte written is the count's second.
    writes_high: bool,
    /// The next byte read is the count's second.
    reads_high: bool,
}

impl Counter {
    const RESET: Self = Self {
        loaded_ns: 0,
        waiting_ticks: 0,
        next_edge: 1,
        initial: 0x10000,
        latched_count: 0,
        latched_status: 0,
        low: 0,
        mode: Mode::TerminalCount,
        access: Access::LowThenHigh,
        run: Run::Empty,
        gate: true,
        has_latched_count: false,
        has_latched_status: false,
        writes_high: false,
        reads_high: false,
    };

    /// Ticks since the load that were counted.
    fn elapsed_ticks(&self, now_ns: u64) -> u64 {
        match self.run {
            Run::Empty => 0,
            Run::Waiting => self.waiting_ticks,
            Run::Counting => {
                let ns = i128::from(now_ns) - i128::from(self.loaded_ns);
                ns_to_ticks(ns.clamp(0, u64::MAX.into()) as u64)
            }
        }
    }

    fn count(&self, now_ns: u64) -> u16 {
        let (n, t) = (u64::from(self.initial), self.elapsed_ticks(now_ns));
        let count = match self.mode {
            Mode::RateGenerator => n - t % n,
            Mode::SquareWave => n - 2 * (t % n) % n,
            // It goes on below 0.
            _ => n.wrapping_sub(t),
        };
        count as u16
    }

    /// The level of OUT.
    fn out(&self, now_ns: u64) -> bool {
        let (n, t) = (u64::from(self.initial), self.elapsed_ticks(now_ns));
        match self.mode {
            Mode::TerminalCount => self.run != Run::Empty && t >= n,
            _ if self.run == Run::Empty => true,
            Mode::SoftwareStrobe | Mode::HardwareStrobe => t != n,
            _ if self.run == Run::Waiting => true,
            Mode::OneShot => t >= n,
            Mode::RateGenerator => t % n != n - 1,
            Mode::SquareWave => t % n < n.div_ceil(2),
        }
    }

    /// The tick of the next interrupt.
    fn next_edge_tick(&self) -> Option<u64> {
        let comes = self.run == Run::Counting && (self.mode.is_periodic() || self.next_edge == 1);
        comes.then(|| self.next_edge.saturating_mul(self.initial.into()))
    }

    fn deadline_ns(&self) -> Option<u64> {
        let after_load = ticks_to_ns(self.next_edge_tick()?);
        let at = i128::from(self.loaded_ns) + i128::from(after_load);
        Some(at.clamp(0, u64::MAX.into()) as u64)
    }

    /// Interrupts up to `now_ns` that were not told yet.
    fn edges(&mut self, now_ns: u64) -> u64 {
        let elapsed = self.elapsed_ticks(now_ns);
        if self.next_edge_tick().is_none_or(|tick| elapsed < tick) {
            return 0;
        }
        let last = if self.mode.is_periodic() { elapsed / u64::from(self.initial) } else { 1 };
        let edges = last - self.next_edge + 1;
        self.next_edge = last + 1;
        edges
    }

    fn control(&mut self, word: u8) {
        self.access = match word >> 4 & 3 {
            1 => Access::Low,
            2 => Access::High,
            _ => Access::LowThenHigh,
        };
        self.mode = Mode::of_control(word);
        self.run = Run::Empty;
        self.has_latched_count = false;
        self.has_latched_status = false;
        self.writes_high = false;
        self.reads_high = false;
    }

    fn latch_count(&mut self, now_ns: u64) {
        if !self.has_latched_count {
            self.latched_count = self.count(now_ns);
            self.has_latched_count = true;
        }
    }

    fn latch_status(&mut self, now_ns: u64) {
        if !self.has_latched_status {
            self.latched_status = u8::from(self.out(now_ns)) << 7
                | u8::from(self.run == Run::Empty) << 6
                | (self.access as u8) << 4
                | (self.mode as u8) << 1;
            self.has_latched_status = true;
        }
    }

    fn write(&mut self, value: u8, now_ns: u64) {
        match self.access {
            Access::Low => self.load(value.into(), now_ns),
            Access::High => self.load(u16::from(value) << 8, now_ns),
            Access::LowThenHigh if self.writes_high => {
                self.writes_high = false;
                self.load(u16::from_le_bytes([self.low, value]), now_ns);
            }
            Access::LowThenHigh => {
                self.writes_high = true;
                self.low = value;
                if self.mode == Mode::TerminalCount {
                    self.run = Run::Empty;
                }
            }
        }
    }

    fn load(&mut self, count: u16, now_ns: u64) {
        self.initial = if count == 0 { 0x10000 } else { count.into() };
        if self.mode.is_triggered() {
            if self.run == Run::Empty {
                (self.run, self.waiting_ticks) = (Run::Waiting, 0);
            }
        } else if self.gate {
            self.start(now_ns);
        } else {
            (self.run, self.waiting_ticks, self.next_edge) = (Run::Waiting, 0, 1);
        }
    }

    fn start(&mut self, now_ns: u64) {
        self.run = Run::Counting;
        self.loaded_ns = i64::try_from(now_ns).unwrap_or(i64::MAX);
        self.next_edge = 1;
    }

    fn set_gate(&mut self, gate: bool, now_ns: u64) {
        let was = std::mem::replace(&mut self.gate, gate);
        if was == gate || self.run == Run::Empty {
            return;
        }
        if !gate {
            if !self.mode.is_triggered() {
                self.waiting_ticks = self.elapsed_ticks(now_ns);
                self.run = Run::Waiting;
            }
        } else if self.mode.is_triggered() || self.mode.is_periodic() {
            self.start(now_ns);
        } else {
            // It goes on where it stopped.
            self.start(now_ns);
            let counted_ns = i64::try_from(ticks_to_ns(self.waiting_ticks)).unwrap_or(i64::MAX);
            self.loaded_ns = self.loaded_ns.saturating_sub(counted_ns);
        }
    }

    fn read(&mut self, now_ns: u64) -> u8 {
        if std::mem::take(&mut self.has_latched_status) {
            return self.latched_status;
        }
        let count = if self.has_latched_count { self.latched_count } else { self.count(now_ns) };
        let [low, high] = count.to_le_bytes();
        let (value, last) = match self.access {
            Access::Low => (low, true),
            Access::High => (high, true),
            Access::LowThenHigh => {
                self.reads_high = !self.reads_high;
                if self.reads_high { (low, false) } else { (high, true) }
            }
        };
        if last {
            self.has_latched_count = false;
        }
        value
    }
}

/// The three counters and port 0x61. Every `now_ns` is below 2^62 (146 years) and on one clock, which
/// never runs back but by [`Pit::rebase`].
#[derive(Clone, Debug, PartialEq, Eq, IntoBytes, TryFromBytes, Immutable)]
#[repr(C)]
pub struct Pit {
    counters: [Counter; 3],
    /// Bits 0 and 1 of port 0x61: counter 2's gate, the speaker.
    port_b: u8,
    /// Bit 4 of port 0x61. A real one toggles each 15 us, this one at each read: who waits for it gets on
    /// even while time stands still.
    refresh: bool,
    unused: [Unused; 6],
}

impl Default for Pit {
    fn default() -> Self {
        Self::new()
    }
}

impl Pit {
    /// Nothing counts, counter 2's gate is low.
    pub fn new() -> Self {
        let counter_2 = Counter { gate: false, ..Counter::RESET };
        Self {
            counters: [Counter::RESET, Counter::RESET, counter_2],
            port_b: 0,
            refresh: false,
            unused: [Unused::Zero; 6],
        }
    }

    /// The guest wrote `value` to `port` at `now_ns`. [`Pit::deadline_ns`] may have changed.
    pub fn write(&mut self, port: u16, value: u8, now_ns: u64) {
        match port {
            COUNTER_0..=COUNTER_2 => {
                self.counters[usize::from(port - COUNTER_0)].write(value, now_ns)
            }
            CONTROL => self.control(value, now_ns),
            PORT_B => {
                self.port_b = value & 0x03;
                self.counters[2].set_gate(value & 0x01 != 0, now_ns);
            }
            _ => {}
        }
    }

    fn control(&mut self, word: u8, now_ns: u64) {
        match (word >> 6, word >> 4 & 3) {
            // Read back: of each selected counter what is selected, active low.
            (3, _) => {
                for (i, counter) in self.counters.iter_mut().enumerate() {
                    if word & (2 << i) == 0 {
                        continue;
                    }
                    if word & 0x20 == 0 {
                        counter.latch_count(now_ns);
                    }
                    if word & 0x10 == 0 {
                        counter.latch_status(now_ns);
                    }
                }
            }
            (i, 0) => self.counters[usize::from(i)].latch_count(now_ns),
            (i, _) => self.counters[usize::from(i)].control(word),
        }
    }

    /// The guest reads `port` at `now_ns`.
    pub fn read(&mut self, port: u16, now_ns: u64) -> u8 {
        match port {
            COUNTER_0..=COUNTER_2 => self.counters[usize::from(port - COUNTER_0)].read(now_ns),
            PORT_B => {
                self.refresh = !self.refresh;
                self.port_b
                    | u8::from(self.refresh) << 4
                    | u8::from(self.counters[2].out(now_ns)) << 5
            }
            _ => 0xff,
        }
    }

    /// When counter 0 raises IRQ 0 next, ns.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.counters[0].deadline_ns()
    }

    /// Lets the deadlines up to `now_ns` pass; how many there were. The guest gets one edge for all: a real
    /// timer's would have merged into one request as well, as long as nobody took the first.
    pub fn fire(&mut self, now_ns: u64) -> u64 {
        self.counters[0].edges(now_ns)
    }

    /// Changes over to another clock: what was `old_now_ns` is now `new_now_ns`. Every deadline keeps its
    /// distance from now.
    pub fn rebase(&mut self, old_now_ns: u64, new_now_ns: u64) {
        let shift = i128::from(new_now_ns) - i128::from(old_now_ns);
        for counter in &mut self.counters {
            let loaded = i128::from(counter.loaded_ns) + shift;
            counter.loaded_ns = loaded.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        }
    }
}

impl State for Pit {
    fn save(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.as_bytes());
    }

    fn restore(bytes: &mut &[u8]) -> Result<Self, StateError> {
        const DEVICE: &str = "interval timer";
        let pit: Self = take(DEVICE, bytes)?;
        let field = |field, expected, got: u64| {
            Err(StateError::Field { device: DEVICE, field, expected, got })
        };
        for c in &pit.counters {
            if !(1..=0x10000).contains(&c.initial) {
                return field("initial count", "1 to 0x10000", c.initial.into());
            }
            if c.next_edge == 0 {
                return field("next interrupt", "1 or more", 0);
            }
        }
        let [first, second, third] = &pit.counters;
        if !first.gate || !second.gate || third.gate != (pit.port_b & 0x01 != 0) {
            return field("port 0x61", "its bit 0 to be counter 2's gate", pit.port_b.into());
        }
        if pit.port_b & !0x03 != 0 {
            return field("port 0x61", "bits 0 and 1 only", pit.port_b.into());
        }
        Ok(pit)
    }
}

#[cfg(test)]
mod tests;
