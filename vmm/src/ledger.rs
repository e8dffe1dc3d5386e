//! The host's own record of what it did to a guest. Checks compare the guest with this, never
//! with the accounting rules that the guest runs.

/// Most interrupt lines, the timer included.
pub const MAX_LINES: usize = guest_model::wire::MAX_IRQS;

/// What the CPU was doing while guest time passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// A task ran.
    Task,
    /// A handler ran in hardirq context.
    Hardirq,
    /// Softirq work ran outside ksoftirqd.
    Softirq,
    /// Softirq work ran in ksoftirqd, which the kernel counts as task time.
    Ksoftirqd,
    /// The CPU was halted.
    Idle,
}

impl Context {
    /// The kernel counts time in this context as IRQ time.
    pub fn is_irq(self) -> bool {
        matches!(self, Self::Hardirq | Self::Softirq)
    }
}

/// One line's interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Arrivals.
    pub raised: u64,
    /// Handlers that ran.
    pub handled: u64,
    /// Arrivals that found the line already pending and merged with it.
    pub coalesced: u64,
    /// Handler time that passed, ns.
    pub hardirq_ns: u64,
    /// Softirq work raised, ns.
    pub softirq_raised_ns: u64,
    /// Guest time at which the line was first seen disabled by the guest, ns.
    pub disabled_at_ns: Option<u64>,
}

/// Everything the host injected and every nanosecond that it let pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Time in each context, without what was stolen there, ns.
    pub task_ns: u64,
    /// Hardirq time, ns.
    pub hardirq_ns: u64,
    /// Softirq time outside ksoftirqd, ns.
    pub softirq_ns: u64,
    /// ksoftirqd's softirq time, ns.
    pub ksoftirqd_ns: u64,
    /// Softirq work raised, on all lines, ns.
    pub softirq_raised_ns: u64,
    /// Halted time, ns.
    pub idle_ns: u64,
    /// Time stolen, in any context, ns.
    pub steal_wall_ns: u64,
    /// Part of `steal_wall_ns` stolen in hardirq or softirq context, which the guest sees as IRQ
    /// time as well, ns.
    pub steal_in_irq_ns: u64,
    /// Part of `steal_wall_ns` stolen while halted, ns.
    pub steal_in_idle_ns: u64,
    /// Sum of the steal counter's movements, ns.
    pub steal_counter_ns: i64,
    /// Steal events applied.
    pub steal_count: u64,
    /// Steal events left out because the CPU was not in the state that they ask for.
    pub steal_skipped: u64,
    /// Steps of the steal counter backwards.
    pub steal_backward_count: u64,
    /// Sum of the steps backwards, ns; stops at the largest number.
    pub steal_backward_ns: u64,
    /// Guest time of the first step backwards, ns.
    pub steal_backward_first_at_ns: Option<u64>,
    /// Interrupts, by line.
    pub lines: [Line; MAX_LINES],
}

impl Ledger {
    /// Time that the guest must see as IRQ time, ns.
    #[inline]
    pub fn irq_ns(&self) -> u64 {
        self.hardirq_ns + self.softirq_ns + self.steal_in_irq_ns
    }

    /// Softirq work that interrupts raised and was not done yet, ns; negative if more was done.
    #[inline]
    pub fn softirq_left_ns(&self) -> i64 {
        let done_ns = self.softirq_ns.wrapping_add(self.ksoftirqd_ns);
        self.softirq_raised_ns.wrapping_sub(done_ns) as i64
    }

    /// Handlers that ran, on all lines.
    pub fn irq_count(&self) -> u64 {
        self.lines.iter().map(|l| l.handled).sum()
    }

    /// `ns` passed in `context`.
    #[inline]
    pub fn spend(&mut self, context: Context, ns: u64) {
        let part = match context {
            Context::Task => &mut self.task_ns,
            Context::Hardirq => &mut self.hardirq_ns,
            Context::Softirq => &mut self.softirq_ns,
            Context::Ksoftirqd => &mut self.ksoftirqd_ns,
            Context::Idle => &mut self.idle_ns,
        };
        *part += ns;
    }

    /// `wall_ns` were stolen in `context` at `at_ns`, and the counter moved by `counter_ns`.
    pub fn steal(&mut self, context: Context, at_ns: u64, wall_ns: u64, counter_ns: i64) {
        self.steal_count += 1;
        self.steal_wall_ns += wall_ns;
        self.steal_counter_ns = self.steal_counter_ns.wrapping_add(counter_ns);
        if context.is_irq() {
            self.steal_in_irq_ns += wall_ns;
        }
        if context == Context::Idle {
            self.steal_in_idle_ns += wall_ns;
        }
        if counter_ns < 0 {
            self.steal_backward_count += 1;
            self.steal_backward_ns =
                self.steal_backward_ns.saturating_add(counter_ns.unsigned_abs());
            self.steal_backward_first_at_ns.get_or_insert(at_ns);
        }
    }

    /// All time that passed, ns.
    pub fn elapsed_ns(&self) -> u64 {
        self.task_ns
            + self.hardirq_ns
            + self.softirq_ns
            + self.ksoftirqd_ns
            + self.idle_ns
            + self.steal_wall_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_each_context_is_kept_apart_and_adds_up() {
        let mut l = Ledger::default();
        l.spend(Context::Task, 1);
        l.spend(Context::Hardirq, 20);
        l.spend(Context::Softirq, 300);
        l.spend(Context::Ksoftirqd, 4_000);
        l.spend(Context::Idle, 50_000);
        l.spend(Context::Idle, 50_000);
        let parts = (l.task_ns, l.hardirq_ns, l.softirq_ns, l.ksoftirqd_ns, l.idle_ns);
        assert_eq!(parts, (1, 20, 300, 4_000, 100_000));
        assert_eq!((l.elapsed_ns(), l.irq_ns()), (104_321, 320));
    }

    #[test]
    fn what_is_stolen_counts_once_and_by_where_it_was_stolen() {
        let mut l = Ledger::default();
        for (context, wall_ns) in [
            (Context::Task, 1),
            (Context::Hardirq, 20),
            (Context::Softirq, 300),
            (Context::Ksoftirqd, 4_000),
            (Context::Idle, 20_000),
            (Context::Idle, 30_000),
        ] {
            l.steal(context, 7, wall_ns, 2 * wall_ns as i64);
        }
        assert_eq!((l.steal_count, l.steal_wall_ns, l.steal_counter_ns), (6, 54_321, 108_642));
        assert_eq!((l.steal_in_irq_ns, l.steal_in_idle_ns), (320, 50_000));
        assert_eq!((l.irq_ns(), l.elapsed_ns()), (320, 54_321));
        let backward = (l.steal_backward_count, l.steal_backward_ns, l.steal_backward_first_at_ns);
        assert_eq!(backward, (0, 0, None));
    }

    #[test]
    fn steps_backwards_are_summed_and_the_first_is_dated() {
        let mut l = Ledger::default();
        l.steal(Context::Task, 10, 5, 5);
        l.steal(Context::Task, 20, 0, -7);
        l.steal(Context::Idle, 30, 2, -1);
        l.steal(Context::Task, 40, 0, 0);
        assert_eq!((l.steal_counter_ns, l.steal_count), (-3, 4));
        let backward = (l.steal_backward_count, l.steal_backward_ns, l.steal_backward_first_at_ns);
        assert_eq!(backward, (2, 8, Some(20)));
    }

    #[test]
    fn softirq_work_is_left_until_softirqs_or_ksoftirqd_did_it() {
        let mut l = Ledger { softirq_raised_ns: 100, ..Ledger::default() };
        assert_eq!(l.softirq_left_ns(), 100);
        l.spend(Context::Softirq, 30);
        l.spend(Context::Hardirq, 1_000);
        assert_eq!(l.softirq_left_ns(), 70);
        l.spend(Context::Ksoftirqd, 70);
        assert_eq!(l.softirq_left_ns(), 0);
        l.spend(Context::Softirq, 1);
        assert_eq!(l.softirq_left_ns(), -1);
    }

    #[test]
    fn handlers_are_counted_over_all_lines() {
        let mut l = Ledger::default();
        l.lines[0].handled = 3;
        l.lines[MAX_LINES - 1].handled = 4;
        l.lines[5].raised = 9;
        assert_eq!(l.irq_count(), 7);
    }

    #[test]
    fn the_steal_counter_wraps_and_the_sum_of_steps_backwards_stops() {
        let mut l = Ledger::default();
        l.steal(Context::Task, 1, 0, i64::MIN);
        l.steal(Context::Task, 2, 0, i64::MIN);
        assert_eq!((l.steal_counter_ns, l.steal_backward_ns), (0, u64::MAX));
        l.steal(Context::Task, 3, 0, i64::MAX);
        l.steal(Context::Task, 4, 0, 2);
        assert_eq!(l.steal_counter_ns, i64::MIN + 1);
        let l = Ledger { softirq_raised_ns: u64::MAX, softirq_ns: u64::MAX, ..Ledger::default() };
        assert_eq!(l.softirq_left_ns(), 0);
    }
}
