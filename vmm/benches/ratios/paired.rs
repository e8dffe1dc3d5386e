//! Two things measured side by side.
//!
//! A machine that runs other work, or is itself a guest, changes its speed from one second to the
//! next by more than most differences of interest. So each figure is the ratio of two batches that
//! ran one right after the other, in the thread's own CPU time, which leaves out what other
//! processes took. Rounds alternate in order (A B, B A, ...), so that a steady drift cancels, and the
//! median of the rounds' ratios is what is reported, with the quartiles as its spread.

use std::fmt;
use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};

/// CPU time of this thread, ns.
fn cpu_ns() -> u64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    // Neither part is negative in a running thread.
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// CPU time that `batch` takes, ns.
fn cost_ns(batch: &mut impl FnMut()) -> f64 {
    let begin = cpu_ns();
    batch();
    (cpu_ns() - begin) as f64
}

/// The median of some values and the quartiles around it.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// First quartile.
    pub low: f64,
    /// Median.
    pub median: f64,
    /// Third quartile.
    pub high: f64,
}

impl Spread {
    /// Of these.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |quarter: usize| values[(values.len() - 1) * quarter / 4];
        Self { low: at(1), median: at(2), high: at(3) }
    }

    /// Of times that `count` things took, ns: millions of things a second.
    pub fn per_second(self, count: f64) -> Self {
        let rate = |ns: f64| count * 1000.0 / ns;
        Self { low: rate(self.high), median: rate(self.median), high: rate(self.low) }
    }

    /// The values multiplied by `factor`.
    pub fn times(self, factor: f64) -> Self {
        Self { low: self.low * factor, median: self.median * factor, high: self.high * factor }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:8.3}  (quartiles {:.3} to {:.3})", self.median, self.low, self.high)
    }
}

/// A line of the output.
pub fn print(what: &str, figure: Spread) {
    println!("  {what:56}{figure}");
}

/// What `rounds` rounds of two batches gave.
pub struct Pair {
    /// Cost of A over cost of B, round by round.
    pub ratio: Spread,
    /// CPU time of a batch of A, ns.
    pub a_ns: Spread,
}

/// Runs `a` and `b` in turns, once more than `rounds`: the first round warms up and is not counted.
pub fn pair(rounds: usize, mut a: impl FnMut(), mut b: impl FnMut()) -> Pair {
    let (mut ratios, mut of_a) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let (cost_a, cost_b) = if round % 2 == 0 {
            let first = cost_ns(&mut a);
            (first, cost_ns(&mut b))
        } else {
            let first = cost_ns(&mut b);
            (cost_ns(&mut a), first)
        };
        if round != 0 {
            ratios.push(cost_a / cost_b);
            of_a.push(cost_a);
        }
    }
    Pair { ratio: Spread::of(ratios), a_ns: Spread::of(of_a) }
}

/// Waits for `count` clock cycles of the CPU at the speed that it has just then: steps of xorshift64,
/// of six instructions of one cycle each, every one of which waits for the one before.
pub fn clock_cycles(count: u32) {
    let mut x = black_box(1u64);
    for _ in 0..count / 6 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    black_box(x);
}
