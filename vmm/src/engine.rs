//! The discrete-event engine: lets guest time pass, and on the way raises interrupts and steals
//! time as the schedule says.
//!
//! Pure: no fd, no guest memory. It is asked by whoever runs the guest ([`Engine::run_for`] for
//! time that guest code asks to spend, [`Engine::idle`] for a halted CPU), and answers with how
//! much passed and which interrupt to deliver.

use crate::clock::{GuestClock, HostFault};
use crate::ledger::{Context, Ledger, MAX_LINES};
use crate::scenario::When;
use crate::schedule::{Event, Injection, Schedule};
use crate::trace::{Kind, Record, Trace};

/// Where injections come from, in the order of time.
pub trait Injections {
    /// When the next one is due, ns; `None` when there are no more.
    fn peek(&self) -> Option<u64>;
    /// The next one.
    fn next(&mut self) -> Option<Event>;
    /// What is stolen inside the handler of `line` that runs at `now_ns`: wall time and counter
    /// movement, ns. Called once per handler.
    fn steal_in_irq(&mut self, line: u16, now_ns: u64) -> Option<(u64, i64)>;
}

impl Injections for Schedule {
    #[inline]
    fn peek(&self) -> Option<u64> {
        Schedule::peek(self)
    }
    #[inline]
    fn next(&mut self) -> Option<Event> {
        Iterator::next(self)
    }
    #[inline]
    fn steal_in_irq(&mut self, line: u16, now_ns: u64) -> Option<(u64, i64)> {
        Schedule::steal_in_irq(self, line, now_ns)
    }
}

/// An interrupt that has arrived and waits, or whose handler has not read its status yet.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    hardirq_ns: u32,
    softirq_ns: u32,
}

/// Something the guest did that the engine cannot answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// A handler read the status of a line that had no interrupt delivered.
    #[error("guest read the status of interrupt line {line}, which has no interrupt in service")]
    StatusNotInService {
        /// The line as the guest gave it.
        line: u64,
    },
}

/// The engine of one run.
#[derive(Debug)]
pub struct Engine<I> {
    clock: GuestClock,
    injections: I,
    ledger: Ledger,
    /// Lines with an interrupt waiting for delivery.
    pending: u32,
    /// Lines whose handler runs and has not read its status.
    in_service: u32,
    /// Lines that the guest's interrupt controller holds back.
    masked: u32,
    waiting: [Cost; MAX_LINES],
    serving: [Cost; MAX_LINES],
    timer_ns: Option<u64>,
    tick_cost_ns: u32,
    end_ns: u64,
    fault: HostFault,
}

impl<I: Injections> Engine<I> {
    /// An engine at guest time 0 that stops at `end_ns`. Line 0 is the guest's timer, whose handler
    /// costs `tick_cost_ns`.
    pub fn new(injections: I, end_ns: u64, tick_cost_ns: u32, fault: HostFault) -> Self {
        Self {
            clock: GuestClock::new(fault),
            injections,
            ledger: Ledger::default(),
            pending: 0,
            in_service: 0,
            masked: 0,
            waiting: [Cost::default(); MAX_LINES],
            serving: [Cost::default(); MAX_LINES],
            timer_ns: None,
            tick_cost_ns,
            end_ns,
            fault,
        }
    }

    /// Guest time and steal.
    #[inline]
    pub fn clock(&self) -> &GuestClock {
        &self.clock
    }

    /// A fault is planted in the host.
    pub fn has_fault(&self) -> bool {
        self.fault != HostFault::None
    }

    /// What was done so far.
    #[inline]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Guest time is up.
    #[inline]
    pub fn finished(&self) -> bool {
        self.clock.now_ns() >= self.end_ns
    }

    /// When it stops, ns.
    pub fn end_ns(&self) -> u64 {
        self.end_ns
    }

    /// Interrupts that arrived and wait for delivery.
    pub fn waiting(&self) -> u64 {
        u64::from(self.pending.count_ones())
    }

    /// Interrupts in flight by line: waiting, or delivered with their status unread.
    pub fn in_flight(&self) -> [u64; MAX_LINES] {
        std::array::from_fn(|i| {
            u64::from(self.pending >> i & 1) + u64::from(self.in_service >> i & 1)
        })
    }

    /// Arms the guest's one-shot timer; 0 disarms it.
    #[inline]
    pub fn set_timer(&mut self, deadline_ns: u64) {
        self.timer_ns = (deadline_ns != 0).then_some(deadline_ns);
    }

    /// An interrupt waits and can be delivered.
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.pending & !self.masked != 0
    }

    /// From now on the lines with a bit in `lines` are held back by the guest's interrupt controller;
    /// what arrives on them waits, as one. Noted in the ledger the first time, but for the timer's line.
    #[inline]
    pub fn set_masked(&mut self, lines: u32) {
        if lines != self.masked {
            let mut new = lines & !self.masked & !1;
            while new != 0 {
                let line = &mut self.ledger.lines[new.trailing_zeros() as usize];
                line.disabled_at_ns.get_or_insert(self.clock.now_ns());
                new &= new - 1;
            }
            self.masked = lines;
        }
    }

    /// Was the interrupt of `line` delivered, and its status not read yet?
    #[inline]
    pub fn in_service(&self, line: u16) -> bool {
        self.in_service >> (line as u32 % u32::BITS) & 1 != 0
    }

    /// Takes the interrupt to deliver now, lowest line first; its handler must read its status.
    #[inline]
    pub fn deliver(&mut self, trace: &mut Trace) -> Option<u16> {
        if !self.has_pending() {
            return None;
        }
        let line = (self.pending & !self.masked).trailing_zeros() as usize;
        self.pending &= !(1 << line);
        self.in_service |= 1 << line;
        let cost = self.waiting[line];
        self.serving[line] = cost;
        let values = [line as u64, cost.hardirq_ns.into(), cost.softirq_ns.into()];
        trace.push(Record::host(self.clock.now_ns(), Kind::Irq, values));
        Some(line as u16)
    }

    /// The handler of `line` reads its status: its cost passes, with what is stolen inside it.
    /// Returns the softirq work raised, ns.
    pub fn irq_status(&mut self, line: u64, trace: &mut Trace) -> Result<u32, EngineError> {
        let in_service = line < MAX_LINES as u64 && self.in_service & 1 << line != 0;
        if !in_service {
            return Err(EngineError::StatusNotInService { line });
        }
        let line = line as usize;
        self.in_service &= !(1 << line);
        let cost = self.serving[line];
        if let Some((wall_ns, counter_ns)) =
            self.injections.steal_in_irq(line as u16, self.clock.now_ns())
        {
            self.steal(Context::Hardirq, wall_ns, counter_ns, trace);
        }
        let spent = self.run_for(cost.hardirq_ns.into(), Context::Hardirq, trace);
        if self.fault == HostFault::HandlerCostTwice {
            self.clock.advance(spent);
        }
        let l = &mut self.ledger.lines[line];
        l.handled += 1;
        l.hardirq_ns += spent;
        l.softirq_raised_ns += u64::from(cost.softirq_ns);
        self.ledger.softirq_raised_ns += u64::from(cost.softirq_ns);
        Ok(cost.softirq_ns)
    }

    /// Lets up to `want_ns` of guest execution pass in `context`. In contexts with interrupts on it
    /// stops when one waits; it always stops at the end. Returns what passed for the guest.
    pub fn run_for(&mut self, want_ns: u64, context: Context, trace: &mut Trace) -> u64 {
        let interruptible = context != Context::Hardirq;
        let mut left = want_ns;
        loop {
            self.take_due(context, trace);
            let now = self.clock.now_ns();
            if left == 0 || now >= self.end_ns || (interruptible && self.has_pending()) {
                return want_ns - left;
            }
            let step = left.min(self.next_event_ns() - now);
            self.clock.advance(step);
            self.ledger.spend(context, step);
            left -= step;
        }
    }

    /// Lets time pass with the CPU halted until an interrupt waits or time is up.
    pub fn idle(&mut self, trace: &mut Trace) {
        loop {
            self.take_due(Context::Idle, trace);
            let now = self.clock.now_ns();
            if now >= self.end_ns || self.has_pending() {
                return;
            }
            let step = self.next_event_ns() - now;
            self.clock.advance(step);
            self.ledger.spend(Context::Idle, step);
        }
    }

    /// The next instant at which something happens; later than now once [`Self::take_due`] ran.
    #[inline]
    fn next_event_ns(&self) -> u64 {
        let mut next = self.end_ns;
        if let Some(at) = self.timer_ns {
            next = next.min(at);
        }
        if let Some(at) = self.injections.peek() {
            next = next.min(at);
        }
        next
    }

    /// Everything due by now: steal is applied (which may make more due), interrupts wait.
    #[inline]
    fn take_due(&mut self, context: Context, trace: &mut Trace) {
        loop {
            let now = self.clock.now_ns();
            if now >= self.end_ns {
                // What is due at the end or later never happens.
                return;
            }
            if self.timer_ns.is_some_and(|at| at <= now) {
                self.timer_ns = None;
                self.raise(0, self.tick_cost_ns, 0);
            }
            if self.injections.peek().is_none_or(|at| at > now) {
                return;
            }
            match self.injections.next().map(|e| e.injection) {
                None => return,
                Some(Injection::Irq { line, cost_ns, softirq_ns }) => {
                    self.raise(line, cost_ns, softirq_ns);
                }
                Some(Injection::Steal { wall_ns, counter_ns, when, .. }) => {
                    let applies = match when {
                        When::Any => true,
                        When::Idle => context == Context::Idle,
                        When::Busy => context != Context::Idle,
                        When::Irq => context.is_irq(),
                    };
                    if applies {
                        self.steal(context, wall_ns, counter_ns, trace);
                    } else {
                        self.ledger.steal_skipped += 1;
                    }
                }
            }
        }
    }

    fn raise(&mut self, line: u16, hardirq_ns: u32, softirq_ns: u32) {
        let i = line as usize % MAX_LINES;
        let l = &mut self.ledger.lines[i];
        l.raised += 1;
        if self.fault == HostFault::InterruptLost && line != 0 && l.raised.is_multiple_of(64) {
            return;
        }
        if self.pending & 1 << i != 0 {
            l.coalesced += 1;
            return;
        }
        self.pending |= 1 << i;
        self.waiting[i] = Cost { hardirq_ns, softirq_ns };
    }

    /// Steals, but not past the end: what does not fit is cut from wall time and counter alike.
    fn steal(&mut self, context: Context, wall_ns: u64, counter_ns: i64, trace: &mut Trace) {
        let now = self.clock.now_ns();
        let wall = wall_ns.min(self.end_ns.saturating_sub(now));
        let counter = counter_ns.wrapping_sub((wall_ns - wall) as i64);
        self.clock.steal(wall, counter);
        self.ledger.steal(context, now, wall, counter);
        let values = [wall, counter as u64, self.clock.steal_ns()];
        trace.push(Record::host(now, Kind::Steal, values));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[derive(Default)]
    struct List(VecDeque<Event>, Option<(u64, i64)>);

    impl Injections for List {
        fn peek(&self) -> Option<u64> {
            self.0.front().map(|e| e.at_ns)
        }
        fn next(&mut self) -> Option<Event> {
            self.0.pop_front()
        }
        fn steal_in_irq(&mut self, _: u16, _: u64) -> Option<(u64, i64)> {
            self.1
        }
    }

    fn irq(at_ns: u64, line: u16, cost_ns: u32) -> Event {
        Event { at_ns, injection: Injection::Irq { line, cost_ns, softirq_ns: 7 } }
    }

    fn steal(at_ns: u64, wall_ns: u64, when: When) -> Event {
        let injection = Injection::Steal { source: 0, wall_ns, counter_ns: wall_ns as i64, when };
        Event { at_ns, injection }
    }

    fn engine(events: impl IntoIterator<Item = Event>) -> (Engine<List>, Trace) {
        let list = List(events.into_iter().collect(), None);
        (Engine::new(list, 1000, 5, HostFault::None), Trace::hashed())
    }

    #[test]
    fn a_burn_stops_at_an_interrupt_and_the_rest_is_asked_for_again() {
        let (mut e, mut t) = engine([irq(40, 3, 10)]);
        assert_eq!(e.run_for(100, Context::Task, &mut t), 40);
        assert_eq!(e.deliver(&mut t), Some(3));
        assert_eq!(e.irq_status(3, &mut t), Ok(7));
        assert_eq!(e.clock().now_ns(), 50);
        assert_eq!(e.run_for(60, Context::Task, &mut t), 60);
        assert_eq!(e.ledger().task_ns, 100);
        assert_eq!(e.ledger().hardirq_ns, 10);
        assert_eq!(e.ledger().elapsed_ns(), e.clock().now_ns());
    }

    #[test]
    fn steal_during_a_burn_costs_the_task_nothing() {
        let (mut e, mut t) = engine([steal(30, 25, When::Any)]);
        assert_eq!(e.run_for(100, Context::Task, &mut t), 100);
        assert_eq!((e.clock().now_ns(), e.clock().steal_ns()), (125, 25));
    }

    #[test]
    fn an_interrupt_that_arrives_while_stolen_waits_for_the_guest() {
        let (mut e, mut t) = engine([steal(30, 25, When::Any), irq(40, 1, 10)]);
        assert_eq!(e.run_for(100, Context::Task, &mut t), 30);
        assert_eq!((e.clock().now_ns(), e.has_pending()), (55, true));
    }

    #[test]
    fn a_handler_is_not_interrupted_and_a_second_arrival_waits_once() {
        let (mut e, mut t) = engine([irq(10, 1, 50), irq(20, 1, 50), irq(30, 1, 50)]);
        e.idle(&mut t);
        assert_eq!(e.deliver(&mut t), Some(1));
        assert_eq!(e.irq_status(1, &mut t), Ok(7));
        assert_eq!(e.clock().now_ns(), 60);
        assert_eq!(e.deliver(&mut t), Some(1));
        assert_eq!(e.ledger().lines[1].coalesced, 1);
        assert_eq!(e.ledger().lines[1].raised, 3);
    }

    #[test]
    fn steal_inside_a_handler_is_irq_time_too() {
        let (mut e, mut t) = engine([irq(10, 1, 50)]);
        e.injections.1 = Some((5, 5));
        e.idle(&mut t);
        e.deliver(&mut t);
        e.irq_status(1, &mut t).unwrap();
        assert_eq!(e.ledger().irq_ns(), 55);
        assert_eq!((e.clock().now_ns(), e.clock().steal_ns()), (65, 5));
    }

    #[test]
    fn steal_for_a_busy_cpu_leaves_an_idle_one_alone() {
        let (mut e, mut t) = engine([steal(10, 5, When::Busy), steal(20, 5, When::Idle)]);
        e.idle(&mut t);
        assert_eq!(e.ledger().steal_skipped, 1);
        assert_eq!(e.ledger().steal_in_idle_ns, 5);
    }

    #[test]
    fn time_ends_exactly_at_the_end_in_every_context() {
        let (mut e, mut t) = engine([steal(990, 50, When::Any)]);
        e.idle(&mut t);
        assert!(e.finished());
        assert_eq!((e.clock().now_ns(), e.clock().steal_ns()), (1000, 10));
        let (mut e, mut t) = engine([irq(995, 1, 50)]);
        assert_eq!(e.run_for(2000, Context::Task, &mut t), 995);
        e.deliver(&mut t);
        e.irq_status(1, &mut t).unwrap();
        assert_eq!((e.clock().now_ns(), e.ledger().irq_ns()), (1000, 5));
        let (mut e, mut t) = engine([]);
        assert_eq!(e.run_for(2000, Context::Softirq, &mut t), 1000);
    }

    #[test]
    fn the_timer_is_line_0_and_fires_once() {
        let (mut e, mut t) = engine([]);
        e.set_timer(100);
        e.idle(&mut t);
        assert_eq!((e.clock().now_ns(), e.deliver(&mut t)), (100, Some(0)));
        e.irq_status(0, &mut t).unwrap();
        assert_eq!(e.clock().now_ns(), 105);
        e.idle(&mut t);
        assert!(e.finished());
    }

    #[test]
    fn a_line_that_the_guest_masks_waits_as_one_and_is_noted_once() {
        let (mut e, mut t) = engine([irq(10, 3, 5), irq(20, 3, 5), irq(30, 4, 5)]);
        e.set_masked(1 << 3 | 1);
        assert_eq!(e.run_for(100, Context::Task, &mut t), 30);
        assert_eq!((e.deliver(&mut t), e.deliver(&mut t)), (Some(4), None));
        assert!(e.in_service(4) && !e.in_service(3));
        assert_eq!(
            (e.ledger().lines[3].disabled_at_ns, e.ledger().lines[0].disabled_at_ns),
            (Some(0), None)
        );
        e.set_masked(0);
        e.set_masked(1 << 3);
        e.set_masked(0);
        assert_eq!(e.ledger().lines[3].disabled_at_ns, Some(0));
        assert_eq!((e.deliver(&mut t), e.ledger().lines[3].coalesced), (Some(3), 1));
    }

    #[test]
    fn the_status_of_a_line_out_of_service_is_refused() {
        let (mut e, mut t) = engine([]);
        for line in [0, 5, 31, 32, u64::MAX] {
            let refused = Err(EngineError::StatusNotInService { line });
            assert_eq!(e.irq_status(line, &mut t), refused);
        }
    }
}
