//! The checks: naive statements about what was seen, compared with the host's ledger.
//!
//! They know nothing of KVM, of addresses or of the accounting rules; each is written another way
//! than the rule that it watches, and each has a planted fault that it catches (see
//! [`crate::mutants`]).

mod clock;
mod psi;
mod tg;

use crate::ledger::Ledger;
use crate::observe::Step;
use crate::view::{CfsRqView, CostsView, PsiView, RqView};
use guest_model::policy::Policy;

pub use clock::Accounted;
pub use psi::PsiTable;
pub use tg::{Staleness, TgRow, weight_error_ppm};

macro_rules! checks {
    ($($(#[doc = $doc:literal])+ $id:ident $name:literal,)+) => {
        /// The checks, by their stable names.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum CheckId { $($(#[doc = $doc])+ $id,)+ }

        impl CheckId {
            /// All, in the order of the report.
            pub const ALL: &'static [Self] = &[$(Self::$id,)+];

            /// The stable name, for scenarios, reports and JSON.
            pub fn name(self) -> &'static str {
                match self { $(Self::$id => $name,)+ }
            }

            /// What it states, in one sentence.
            pub fn statement(self) -> &'static str {
                match self { $(Self::$id => concat!($($doc),+).trim_ascii(),)+ }
            }
        }

        /// The names of all checks.
        pub const NAMES: &[&str] = &[$($name,)+];
    };
}

checks! {
    /// rq->clock equals the host's clock after every update.
    ClockMatchesHost "clock_matches_host",
    /// Every update splits the clock's advance into task, IRQ and steal time without rest.
    Conservation "conservation",
    /// rq->clock_task never goes back.
    ClockTaskMonotonic "clock_task_monotonic",
    /// rq->clock_task never runs ahead of rq->clock.
    ClockTaskNotAhead "clock_task_not_ahead",
    /// update_irq_load_avg() is told no more IRQ and steal time than passed, and rq->avg_irq rises by no
    /// more than that adds.
    AvgIrq "avg_irq_within_time_taken",
    /// rq->clock_pelt advances as rq->clock_task does at full capacity, and equals it when idle.
    ClockPelt "clock_pelt_follows_clock_task",
    /// cpu_irqtime.total equals the IRQ time that the host let pass, at every accounting and whenever a
    /// task runs or the CPU halts.
    IrqAccounted "irq_accounted",
    /// prev_irq_time takes what fits into an update and carries the rest over, dropping nothing.
    IrqCarried "irq_carried_over",
    /// prev_steal_time_rq takes the steal counter as the host has it, at every update.
    StealAccounted "steal_accounted",
    /// Steal inside interrupts, which is IRQ time already, is not taken from rq->clock_task once more.
    StealInIrqOnce "steal_in_irq_once",
    /// Steal outside interrupts is taken from rq->clock_task at the next update, and none is dropped.
    StealNotDropped "steal_not_dropped",
    /// An update takes all IRQ time that has passed, so that no task is charged with it first.
    IrqTakenAtOnce "irq_taken_at_once",
    /// rq->clock_task advances by the time that the CPU was halted while the idle task is current.
    IdleKeepsItsTime "idle_keeps_its_time",
    /// A cfs_rq publishes at most once per millisecond of the rate-limit clock, and stamps that clock.
    TgRateLimit "tg_load_avg_rate_limit",
    /// A cfs_rq publishes only a change of more than 1/64 of its contribution, and all of it.
    TgTolerance "tg_load_avg_tolerance",
    /// A change beyond 1/64 is published as soon as the rate limit allows.
    TgPublished "tg_load_avg_published_when_due",
    /// tg->load_avg equals the sum of the contributions.
    TgSum "tg_load_avg_sum",
    /// From the tick that takes it offline, a CPU contributes nothing and publishes nothing.
    TgOffline "tg_load_avg_offline_cleared",
    /// Whoever calls update_tg_load_avg() has just updated rq->clock.
    RqClockFresh "rq_clock_fresh",
    /// Clock reads, publishes, PSI writes and levels that the guest counts are those that were seen.
    Costs "costs_match_calls",
    /// The leaf list has each cfs_rq once, children before parents.
    LeafList "leaf_cfs_rq_list_order",
    /// psi_account_irqtime() is called at every switch and every tick, and nowhere else.
    PsiCalled "psi_account_irqtime_called",
    /// PSI writes at a zero delta only if the policy is to account it.
    PsiZero "psi_zero_delta",
    /// PSI writes when IRQ time is due to a group that is switched away from, and only then.
    PsiWrites "psi_writes",
    /// Each group's PSI IRQ time equals the ledger's IRQ time charged to it and its children.
    PsiIrqLedger "psi_irq_ledger",
    /// The IRQ time since the last charge is never negative.
    PsiDeltaNotNegative "psi_delta_not_negative",
    /// Softirq work that interrupts raised is done once, and none is left when the CPU halts.
    SoftirqDone "softirq_work_done",
    /// Every interrupt raised was handled, merged with one that waited, or waits at the end.
    InterruptsHandled "interrupts_handled",
    /// Task, IRQ, steal and idle time of the ledger add up to the guest time that passed.
    LedgerElapsed "ledger_adds_up",
}

impl CheckId {
    /// Is it judged only where a scenario asks for it by its name? Such checks state what `clock_task`
    /// ought to do. No Linux keeps them under any load, and the scenarios that ask for them show where.
    pub fn is_asked_for(self) -> bool {
        matches!(
            self,
            Self::StealInIrqOnce
                | Self::StealNotDropped
                | Self::IrqTakenAtOnce
                | Self::IdleKeepsItsTime
        )
    }
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It held each time.
    Pass,
    /// It failed at least once.
    Fail,
    /// The guest lacks what it is about.
    NotBuiltIn,
    /// Nothing happened for it to judge.
    NotExercised,
    /// The scenario leaves it out, or does not ask for it.
    Off,
}

impl Status {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::NotBuiltIn => "not-built-in",
            Self::NotExercised => "not-exercised",
            Self::Off => "off",
        }
    }
}

/// A check's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    /// The check.
    pub id: CheckId,
    /// How it ended.
    pub status: Status,
    /// Times that it was judged.
    pub evaluated: u64,
    /// Times that it failed.
    pub failures: u64,
    /// The first failure.
    pub first: Option<Failure>,
}

/// The first failure of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Guest time, ns.
    pub at_ns: u64,
    /// The numbers.
    pub detail: String,
}

/// Where checks record what they find.
#[derive(Debug)]
pub(crate) struct Board {
    rows: [CheckResult; CheckId::ALL.len()],
}

impl Board {
    fn new(off: &[CheckId]) -> Self {
        let row = |id| CheckResult {
            id,
            status: if off.contains(&id) { Status::Off } else { Status::NotExercised },
            evaluated: 0,
            failures: 0,
            first: None,
        };
        Self { rows: std::array::from_fn(|i| row(CheckId::ALL[i])) }
    }

    /// Records that `id` was judged at `at_ns`; `detail` is asked for at the first failure only.
    #[inline]
    pub(crate) fn expect(
        &mut self,
        id: CheckId,
        ok: bool,
        at_ns: u64,
        detail: impl FnOnce() -> String,
    ) {
        let row = &mut self.rows[id as usize];
        if matches!(row.status, Status::Off | Status::NotBuiltIn) {
            return;
        }
        row.evaluated += 1;
        if ok {
            if row.failures == 0 {
                row.status = Status::Pass;
            }
            return;
        }
        row.status = Status::Fail;
        row.failures += 1;
        if row.first.is_none() {
            row.first = Some(Failure { at_ns, detail: detail() });
        }
    }
}

/// What the checks of one run need to know before it.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The variant that the guest claims to be.
    pub policy: Policy,
    /// Each group's parent; the root is its own.
    pub parents: Vec<u16>,
    /// Distance of two ticks, ns; `None` if the guest's ticks are announced with [`Checks::tick`].
    pub tick_period_ns: Option<u64>,
    /// Guest time from which the CPU is to be offline, ns.
    pub offline_ns: Option<u64>,
    /// Checks that the scenario leaves out.
    pub off: Vec<CheckId>,
}

/// The guest and the ledger at the end of a run.
#[derive(Debug)]
pub struct Final<'a> {
    /// Guest time, ns.
    pub at_ns: u64,
    /// The run queue.
    pub rq: RqView,
    /// Every group's state; `None` if the guest stopped before its time and is not to be judged.
    pub groups: Option<&'a [(CfsRqView, PsiView)]>,
    /// The guest's own cost counters, where it keeps them.
    pub costs: Option<CostsView>,
    /// The ledger.
    pub ledger: &'a Ledger,
    /// Interrupts in flight at the end, by line: waiting, or delivered with their status unread.
    pub in_flight: [u64; crate::ledger::MAX_LINES],
}

/// What was measured beside the checks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// What the run queue accounted.
    pub accounted: Accounted,
    /// What `clock_task` gained up to updates that found a task current, by pid, ns; a pid beyond the end
    /// was never found.
    pub clock_task_ns: Vec<i64>,
    /// What became of each call of `psi_account_irqtime()`.
    pub psi_table: PsiTable,
    /// PSI IRQ time that the ledger charges to each group, ns.
    pub psi_irq_ns: Vec<u64>,
    /// What became of each call of `update_tg_load_avg()`.
    pub tg: TgRow,
    /// How stale each group's contribution became, by group; the root's is never published.
    pub tg_groups: Vec<Staleness>,
}

/// All checks of one run.
#[derive(Debug)]
pub struct Checks {
    board: Board,
    clock: clock::ClockChecks,
    tg: tg::TgChecks,
    psi: psi::PsiChecks,
    ticks: Ticks,
}

/// When the guest's ticks are due, from the period alone.
#[derive(Debug)]
struct Ticks {
    period_ns: Option<u64>,
    next_ns: u64,
}

impl Ticks {
    /// Is a tick due at `at_ns`? Then the next one is in the future.
    fn take_due(&mut self, at_ns: u64) -> bool {
        let Some(period_ns) = self.period_ns.filter(|_| at_ns >= self.next_ns) else {
            return false;
        };
        let missed = (at_ns - self.next_ns) / period_ns;
        self.next_ns = self.next_ns.saturating_add((missed + 1).saturating_mul(period_ns));
        true
    }
}

impl Checks {
    /// Checks for a run that starts at guest time 0.
    pub fn new(setup: Setup) -> Self {
        Self {
            board: Board::new(&setup.off),
            clock: clock::ClockChecks::default(),
            tg: tg::TgChecks::new(
                setup.policy.rate_limit_clock,
                setup.parents.clone(),
                setup.offline_ns,
            ),
            psi: psi::PsiChecks::new(setup.policy.psi_zero_delta, setup.parents),
            ticks: Ticks {
                period_ns: setup.tick_period_ns,
                next_ns: setup.tick_period_ns.unwrap_or(0),
            },
        }
    }

    /// The guest lacks what `ids` are about: they are not built in.
    pub fn lacks(&mut self, ids: &[CheckId]) {
        for &id in ids {
            let row = &mut self.board.rows[id as usize];
            if row.status != Status::Off {
                let status = Status::NotBuiltIn;
                *row = CheckResult { id, status, evaluated: 0, failures: 0, first: None };
            }
        }
    }

    /// The guest has run before: what it has published by then counts.
    pub fn begin(&mut self, cfs_rq: &CfsRqView) {
        self.tg.begin(cfs_rq);
    }

    /// The handler of the timer has spent its cost, at `at_ns`: a tick that is due follows.
    pub fn timer_handled(&mut self, at_ns: u64) {
        if self.ticks.take_due(at_ns) {
            self.tick(at_ns);
        }
    }

    /// The guest's scheduler tick begins, at `at_ns`.
    pub fn tick(&mut self, at_ns: u64) {
        self.psi.tick_is_due();
        self.tg.tick_is_due(at_ns);
    }

    /// A task is about to run, or the CPU to halt: no interrupt is being handled, so all of the
    /// `irq_ns` that passed in interrupt context must be accounted.
    #[inline]
    pub fn outside_irq(&mut self, at_ns: u64, irq_ns: u64, total: u64) {
        self.board.expect(CheckId::IrqAccounted, total == irq_ns, at_ns, || {
            format!("no interrupt is handled, cpu_irqtime.total is {total} ns, the ledger has {irq_ns} ns")
        });
    }

    /// Softirq work of `want_ns` is asked for, of `left_ns` that interrupts raised and was not done.
    #[inline]
    pub fn softirq_wanted(&mut self, at_ns: u64, want_ns: u64, left_ns: u64) {
        self.board.expect(CheckId::SoftirqDone, want_ns <= left_ns, at_ns, || {
            format!("{want_ns} ns of softirq work are to be done, {left_ns} ns are left of what was raised")
        });
    }

    /// The CPU halts with `left_ns` of softirq work not done.
    #[inline]
    pub fn halted(&mut self, at_ns: u64, left_ns: u64) {
        self.board.expect(CheckId::SoftirqDone, left_ns == 0, at_ns, || {
            format!("the CPU halts with {left_ns} ns of softirq work not done")
        });
    }

    /// `update_irq_load_avg()` is told at `at_ns` of `running_ns`, as the register has them.
    #[inline]
    pub fn irq_load_avg(&mut self, at_ns: u64, running_ns: u64) {
        self.clock.irq_load_avg(at_ns, running_ns, &mut self.board);
    }

    /// Judges one completed call.
    #[inline]
    pub fn step(&mut self, step: &Step<'_>) {
        self.clock.step(step, &mut self.board);
        self.tg.step(step, &mut self.board);
        self.psi.step(step, &mut self.board);
    }

    /// Judges the end of the run.
    pub fn finish(mut self, end: &Final<'_>) -> (Vec<CheckResult>, Measured) {
        let board = &mut self.board;
        self.clock.finish(end, board);
        self.tg.finish(end, board);
        self.psi.finish(end, board);
        if let Some(costs) = &end.costs
            && end.groups.is_some()
        {
            self.tg.compare_costs(costs, end.at_ns, board);
            self.psi.compare_costs(costs, end.at_ns, board);
        }
        for (line, l) in end.ledger.lines.iter().enumerate() {
            let in_flight = end.in_flight[line];
            let known = l.handled + l.coalesced + in_flight;
            if l.raised != 0 {
                board.expect(CheckId::InterruptsHandled, l.raised == known, end.at_ns, || {
                    format!(
                        "line {line}: {} raised, but {} handled, {} merged and {in_flight} in flight",
                        l.raised, l.handled, l.coalesced
                    )
                });
            }
        }
        let elapsed = end.ledger.elapsed_ns();
        board.expect(CheckId::LedgerElapsed, elapsed == end.at_ns, end.at_ns, || {
            format!("the ledger adds up to {elapsed} ns, guest time is {} ns", end.at_ns)
        });
        let measured = Measured {
            accounted: self.clock.accounted,
            clock_task_ns: self.clock.gained_ns,
            psi_table: self.psi.table,
            psi_irq_ns: self.psi.charged_ns,
            tg: self.tg.row,
            tg_groups: self.tg.groups.iter().map(|g| g.staleness).collect(),
        };
        (self.board.rows.into(), measured)
    }
}

#[cfg(test)]
mod tests;
