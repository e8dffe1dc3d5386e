//! The time-ordered injections of a scenario.
//!
//! Pure: a schedule is a function of scenario and seed, the same on every machine, and knows
//! neither guest nor host. It is generated as it is read, in constant memory and without
//! allocation. Each source draws from streams of its own, so that changing one source, or adding
//! one after the others, leaves the others as they were.

use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::scenario::{Arrival, Cost, Rate, Scenario, Share, StealPattern, When, Window};

/// What is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injection {
    /// An interrupt.
    Irq {
        /// Its line; never 0, the timer's.
        line: u16,
        /// Time spent in its handler, in hardirq context.
        cost_ns: u32,
        /// Softirq work that it raises.
        softirq_ns: u32,
    },
    /// A slice of steal time.
    Steal {
        /// Index of its source in the scenario.
        source: u16,
        /// Wall time that passes while no guest code runs.
        wall_ns: u64,
        /// What the guest's steal counter moves by.
        counter_ns: i64,
        /// What the CPU must be doing; never [`When::Irq`].
        when: When,
    },
}

/// An injection and its instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Guest time, ns.
    pub at_ns: u64,
    /// What is injected.
    pub injection: Injection,
}

/// What a stream of random numbers is for; each index of each kind has a stream of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// A task's draws, by its index in the boot page.
    Task = 1,
    /// Gaps between a source's interrupts, by its index in the scenario.
    Arrival = 2,
    /// Costs of a source's interrupts, by its index in the scenario.
    Cost = 3,
    /// Gaps between a source's steal slices, by its index in the scenario.
    Steal = 4,
}

/// The seed of stream `index` of kind `stream` in a run with `seed`.
pub fn stream_seed(seed: u64, stream: Stream, index: u16) -> u64 {
    splitmix64(splitmix64(seed) ^ ((stream as u64) << 32 | u64::from(index)))
}

/// One step of splitmix64 from state `x` (Steele, Lea and Flood, OOPSLA 2014): a bijection.
fn splitmix64(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A generator of the draws of one stream.
#[derive(Clone, Debug)]
struct Draws(Xoshiro256PlusPlus);

impl Draws {
    fn new(seed: u64, stream: Stream, index: usize) -> Self {
        // The scenario's limits keep every index below 2^16.
        Self(Xoshiro256PlusPlus::seed_from_u64(stream_seed(seed, stream, index as u16)))
    }

    /// Uniform in `min..=max`, without bias (Lemire's rejection).
    fn uniform(&mut self, min: u32, max: u32) -> u32 {
        let span = u64::from(max - min) + 1;
        let reject_below = (1 << 32) % span;
        loop {
            let wide = (self.0.next_u64() >> 32) * span;
            if wide & 0xffff_ffff >= reject_below {
                return min + (wide >> 32) as u32;
            }
        }
    }

    /// Exponential with mean 1, at most 36.8. `libm` gives the same bits on every machine.
    fn exponential(&mut self) -> f64 {
        let above_zero = ((self.0.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        -libm::log(above_zero)
    }

    fn cost(&mut self, cost: Cost) -> u32 {
        match cost {
            Cost::Fixed(ns) => ns,
            Cost::Uniform { min, max } => self.uniform(min, max),
            Cost::Exponential { mean, max } => {
                // Float to integer saturates.
                (self.exponential() * f64::from(mean) + 0.5).min(f64::from(max)) as u32
            }
        }
    }
}

/// Steps of exactly `num / den` ns: after k of them, `floor(k * num / den)` has passed.
#[derive(Clone, Debug)]
struct Steps {
    whole: u64,
    part: u64,
    den: u64,
    carry: u64,
}

impl Steps {
    fn new(num: u128, den: u64) -> Self {
        let (whole, part) = (num / u128::from(den), num % u128::from(den));
        // A step beyond 2^63 ns is beyond the end of every run.
        Self { whole: whole.min(1 << 63) as u64, part: part as u64, den, carry: 0 }
    }

    fn next(&mut self) -> u64 {
        self.carry += self.part;
        let wrap = self.carry >= self.den;
        self.carry -= if wrap { self.den } else { 0 };
        self.whole + u64::from(wrap)
    }
}

/// Exponential steps whose fractions of a ns are carried on, so that the mean is exact.
#[derive(Clone, Debug)]
struct RandomSteps {
    mean_ns: f64,
    carry_ns: f64,
    draws: Draws,
}

impl RandomSteps {
    fn next(&mut self) -> u64 {
        let gap = self.draws.exponential() * self.mean_ns + self.carry_ns;
        // Float to integer saturates.
        let whole = gap as u64;
        self.carry_ns = gap - whole as f64;
        whole
    }
}

/// How the instants of a source follow each other.
#[derive(Clone, Debug)]
enum Pace {
    Even(Steps),
    Random(RandomSteps),
    /// A slice and then a random gap.
    Jitter {
        slice_ns: u64,
        gap: RandomSteps,
    },
    Burst {
        burst: u32,
        done: u32,
        gap_ns: u64,
        group_ns: u64,
        steps: Steps,
    },
    Once,
    /// Not even the first.
    Never,
}

impl Pace {
    /// The instant after `at_ns`.
    fn after(&mut self, at_ns: u64) -> u64 {
        match self {
            Self::Even(steps) => at_ns.saturating_add(steps.next()),
            Self::Random(steps) => at_ns.saturating_add(steps.next()),
            Self::Jitter { slice_ns, gap } => {
                at_ns.saturating_add(*slice_ns).saturating_add(gap.next())
            }
            Self::Burst { burst, done, gap_ns, group_ns, steps } => {
                *done += 1;
                if *done < *burst {
                    return at_ns.saturating_add(*gap_ns);
                }
                *done = 0;
                *group_ns = group_ns.saturating_add(steps.next());
                *group_ns
            }
            Self::Once | Self::Never => NEVER,
        }
    }
}

/// An instant that no run reaches.
const NEVER: u64 = u64::MAX;

/// What a source injects.
#[derive(Clone, Debug)]
enum Load {
    Irq { line: u16, cost: Cost, softirq: Share, draws: Draws },
    Steal(Injection),
}

/// A source of timed injections.
#[derive(Clone, Debug)]
struct Source {
    pace: Pace,
    until_ns: u64,
    load: Load,
}

/// A source of steal inside interrupt handlers.
#[derive(Clone, Debug)]
struct InHandler {
    line: Option<u16>,
    every: u32,
    handled: u32,
    window: Window,
    wall_ns: u64,
    counter_ns: i64,
}

/// The injections of a scenario in the order of their instants.
///
/// At one instant, steal comes before interrupts, and a source before those declared after it.
/// Nothing is due at or after the end of the run. Slices of one source do not overlap; those of
/// different sources may, and the reader decides which waits.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Next instant of each of `sources`.
    due_ns: Vec<u64>,
    sources: Vec<Source>,
    in_handler: Vec<InHandler>,
    first: usize,
}

impl Schedule {
    /// The schedule of `scenario`, with `seed` in place of the scenario's own.
    pub fn new(scenario: &Scenario, seed: u64) -> Self {
        let mut schedule =
            Self { due_ns: Vec::new(), sources: Vec::new(), in_handler: Vec::new(), first: 0 };
        let end = |w: Window| w.until_ns.unwrap_or(NEVER).min(scenario.duration_ns);
        for (i, steal) in scenario.steals.iter().enumerate() {
            let (wall_ns, counter_ns) = (steal.slice_ns, steal.counter_ns);
            let slice = u128::from(wall_ns);
            let pace = match steal.pattern {
                StealPattern::Fraction { share: Share::ZERO, .. }
                | StealPattern::Period { share: Some(Share::ZERO), .. } => Pace::Never,
                StealPattern::Fraction { share, jitter: false } => {
                    Pace::Even(Steps::new(slice * 1_000_000_000, share.billionths().into()))
                }
                StealPattern::Fraction { share, jitter: true } => {
                    let taken = f64::from(share.billionths()) / 1e9;
                    let mean_ns = wall_ns as f64 * (1.0 - taken) / taken;
                    let draws = Draws::new(seed, Stream::Steal, i);
                    let gap = RandomSteps { mean_ns, carry_ns: 0.0, draws };
                    Pace::Jitter { slice_ns: wall_ns, gap }
                }
                StealPattern::Period { period_ns, .. } => {
                    Pace::Even(Steps::new(period_ns.into(), 1))
                }
                StealPattern::Once => Pace::Once,
                StealPattern::InHandler { every, line } => {
                    let window = Window { until_ns: Some(end(steal.window)), ..steal.window };
                    let handled = 0;
                    schedule.in_handler.push(InHandler {
                        line,
                        every,
                        handled,
                        window,
                        wall_ns,
                        counter_ns,
                    });
                    continue;
                }
            };
            let injection =
                Injection::Steal { source: i as u16, wall_ns, counter_ns, when: steal.when };
            let load = Load::Steal(injection);
            schedule.add(steal.window.from_ns, Source { pace, until_ns: end(steal.window), load });
        }
        for (i, irq) in scenario.irqs.iter().enumerate() {
            let mut from_ns = irq.window.from_ns;
            let nano_hz = irq.rate.map_or(0, Rate::nano_hz);
            let pace = match irq.arrival {
                _ if nano_hz == 0 => Pace::Never,
                Arrival::Periodic => Pace::Even(Steps::new(Rate::GHZ.into(), nano_hz)),
                Arrival::Poisson => {
                    let mean_ns = Rate::GHZ as f64 / nano_hz as f64;
                    let draws = Draws::new(seed, Stream::Arrival, i);
                    let mut steps = RandomSteps { mean_ns, carry_ns: 0.0, draws };
                    from_ns = from_ns.saturating_add(steps.next());
                    Pace::Random(steps)
                }
                Arrival::Burst { burst, gap_ns } => {
                    let steps = Steps::new(u128::from(burst) * u128::from(Rate::GHZ), nano_hz);
                    Pace::Burst { burst, done: 0, gap_ns, group_ns: from_ns, steps }
                }
            };
            let draws = Draws::new(seed, Stream::Cost, i);
            let load =
                Load::Irq { line: i as u16 + 1, cost: irq.cost, softirq: irq.softirq, draws };
            schedule.add(from_ns, Source { pace, until_ns: end(irq.window), load });
        }
        schedule.find_first();
        schedule
    }

    fn add(&mut self, from_ns: u64, source: Source) {
        let never = from_ns >= source.until_ns || matches!(source.pace, Pace::Never);
        self.due_ns.push(if never { NEVER } else { from_ns });
        self.sources.push(source);
    }

    /// Finds the first source among those that are due next.
    fn find_first(&mut self) {
        let mut least = NEVER;
        self.first = 0;
        for (i, due) in self.due_ns.iter().enumerate() {
            if *due < least {
                (least, self.first) = (*due, i);
            }
        }
    }

    /// The instant of the next injection, ns of guest time; `None` if there is none any more.
    pub fn peek(&self) -> Option<u64> {
        self.due_ns.get(self.first).copied().filter(|due| *due != NEVER)
    }

    /// What must be stolen, as wall time and movement of the counter, inside the handler of an
    /// interrupt of `line` at guest time `now_ns`. To be called once for each interrupt handled,
    /// the timer's (line 0) included.
    pub fn steal_in_irq(&mut self, line: u16, now_ns: u64) -> Option<(u64, i64)> {
        let mut stolen = None;
        for source in &mut self.in_handler {
            let active = now_ns >= source.window.from_ns
                && source.window.until_ns.is_none_or(|until| now_ns < until)
                && source.line.is_none_or(|own| own == line);
            if !active {
                continue;
            }
            source.handled += 1;
            if source.handled == source.every {
                source.handled = 0;
                let (wall, counter) = stolen.unwrap_or((0_u64, 0_i64));
                // The scenario's limits keep both far from the ends.
                stolen = Some((
                    wall.saturating_add(source.wall_ns),
                    counter.saturating_add(source.counter_ns),
                ));
            }
        }
        stolen
    }
}

impl Iterator for Schedule {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let at_ns = self.peek()?;
        let source = &mut self.sources[self.first];
        let injection = match &mut source.load {
            Load::Steal(injection) => *injection,
            Load::Irq { line, cost, softirq, draws } => {
                let total = draws.cost(*cost);
                let softirq_ns = softirq.of(total);
                Injection::Irq { line: *line, cost_ns: total - softirq_ns, softirq_ns }
            }
        };
        let next = source.pace.after(at_ns);
        self.due_ns[self.first] = if next < source.until_ns { next } else { NEVER };
        self.find_first();
        Some(Event { at_ns, injection })
    }
}

#[cfg(test)]
mod tests;
