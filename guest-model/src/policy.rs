//! The kernel variants under test, as data.

use zerocopy::FromZeros;

/// The clock that `update_tg_load_avg()` compares with `cfs_rq->last_update_tg_load_avg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, FromZeros)]
#[repr(u8)]
pub enum RateLimitClock {
    /// A clock read per call (Linux 6.7 to 7.1).
    SchedClockCpu = 0,
    /// `rq->clock`: wall time as of the last update, no clock read (Linux 7.2).
    RqClock = 1,
    /// `rq->clock_task`: no clock read; stands still under IRQ and steal (proposed May 2026).
    RqClockTask = 2,
}

impl RateLimitClock {
    /// All, in the order in which the kernel met them.
    pub const ALL: [Self; 3] = [Self::SchedClockCpu, Self::RqClock, Self::RqClockTask];

    /// The clock that travels as `n`.
    pub fn from_number(n: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|c| *c as u8 == n)
    }

    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::SchedClockCpu => "sched_clock_cpu",
            Self::RqClock => "rq_clock",
            Self::RqClockTask => "rq_clock_task",
        }
    }
}

/// What `psi_account_irqtime()` does when no IRQ time has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, FromZeros)]
#[repr(u8)]
pub enum PsiZeroDelta {
    /// Takes the seqcount, reads the clock and walks the groups (`delta < 0` returns, to Linux 7.2).
    Account = 0,
    /// Returns (`delta <= 0` returns, Linux 7.3).
    Skip = 1,
}

impl PsiZeroDelta {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Account, Self::Skip];

    /// The rule that travels as `n`.
    pub fn from_number(n: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|p| *p as u8 == n)
    }

    /// The name used in scenarios.
    pub fn name(self) -> &'static str {
        match self {
            Self::Account => "account_zero_delta",
            Self::Skip => "skip_zero_delta",
        }
    }
}

/// A fault planted in the accounting, to show that a check notices it. `None` in every real run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, FromZeros)]
#[repr(u8)]
pub enum Fault {
    /// The rules as the kernel has them.
    None = 0,
    /// Steal time is taken from `clock_task` twice.
    StealTwice = 1,
    /// Steal time is read and remembered, but not taken from `clock_task`.
    StealIgnored = 2,
    /// Steal that does not fit is carried over, as IRQ time is, instead of dropped.
    StealCarried = 3,
    /// IRQ time that does not fit is dropped instead of carried over.
    IrqDropped = 4,
    /// The hardirq part of an interrupt is not added to `cpu_irqtime`.
    HardirqNotAccounted = 5,
    /// ksoftirqd's softirq time is accounted as IRQ time.
    KsoftirqdAccounted = 6,
    /// The rate limit runs on another clock than the policy's.
    RateLimitWrongClock = 7,
    /// The rate limit lets a publish through after 0.5 ms.
    RateLimitHalf = 8,
    /// A publish happens however small the change.
    PublishWithoutTolerance = 9,
    /// A due publish is left out.
    PublishMissed = 10,
    /// `tg_load_avg_contrib` moves without `tg->load_avg`.
    PublishLost = 11,
    /// PSI IRQ time goes to the group of `prev` instead of `curr`.
    PsiWrongGroup = 12,
    /// PSI IRQ time stops at the first group instead of walking to the root.
    PsiNoAncestors = 13,
    /// A zero delta is written, or skipped, against the policy.
    PsiZeroDeltaInverted = 14,
    /// `psi_irq_time` moves on without the delta being charged.
    PsiDeltaLost = 15,
    /// `clock_task` advances by the whole of a delta that IRQ time filled.
    ClockTaskUnpaused = 16,
    /// `prev_irq_time` is not updated, so the same IRQ time is taken twice.
    IrqTwice = 17,
    /// `clock_pelt` advances with `clock` instead of `clock_task`.
    PeltOnWallClock = 18,
    /// A CPU that goes offline keeps its contributions.
    OfflineNotCleared = 19,
    /// Each 64th update of the run queue's clock takes 1 us back from `clock_task`.
    ClockTaskBack = 20,
    /// IRQ and steal time are added to `clock_task` on top of the wall time.
    ClockTaskAhead = 21,
    /// A charge moves `psi_irq_time` 1 us beyond what was charged.
    PsiTimeAhead = 22,
    /// `irqtime_account_irq()` is never entered.
    IrqNeverAccounted = 23,
    /// The tick leaves out `psi_account_irqtime()`.
    PsiTickSkipped = 24,
    /// A switch leaves out `psi_account_irqtime()`.
    PsiSwitchSkipped = 25,
    /// A CPU that is to go offline stays.
    OfflineIgnored = 26,
    /// `update_tg_load_avg()` is never entered.
    PublishNever = 27,
    /// `__schedule()` works with the clock of the last update.
    ScheduleStaleClock = 28,
    /// Softirq work is forgotten.
    SoftirqDropped = 29,
    /// Softirq work is done twice.
    SoftirqTwice = 30,
    /// The rate limit turns away a call exactly 1 ms after the last publish.
    RateLimitEdge = 31,
    /// The clock reads of `psi_account_irqtime()` are not counted.
    ClockReadNotCounted = 32,
    /// A cfs_rq goes onto the leaf list behind its parent.
    LeafListOrder = 33,
    /// `update_irq_load_avg()` is told of IRQ and steal time below 0, which wraps.
    IrqLoadAvgWrapped = 34,
}

impl Fault {
    /// Every planted fault.
    pub const ALL: [Self; 34] = [
        Self::StealTwice,
        Self::StealIgnored,
        Self::StealCarried,
        Self::IrqDropped,
        Self::HardirqNotAccounted,
        Self::KsoftirqdAccounted,
        Self::RateLimitWrongClock,
        Self::RateLimitHalf,
        Self::PublishWithoutTolerance,
        Self::PublishMissed,
        Self::PublishLost,
        Self::PsiWrongGroup,
        Self::PsiNoAncestors,
        Self::PsiZeroDeltaInverted,
        Self::PsiDeltaLost,
        Self::ClockTaskUnpaused,
        Self::IrqTwice,
        Self::PeltOnWallClock,
        Self::OfflineNotCleared,
        Self::ClockTaskBack,
        Self::ClockTaskAhead,
        Self::PsiTimeAhead,
        Self::IrqNeverAccounted,
        Self::PsiTickSkipped,
        Self::PsiSwitchSkipped,
        Self::OfflineIgnored,
        Self::PublishNever,
        Self::ScheduleStaleClock,
        Self::SoftirqDropped,
        Self::SoftirqTwice,
        Self::RateLimitEdge,
        Self::ClockReadNotCounted,
        Self::LeafListOrder,
        Self::IrqLoadAvgWrapped,
    ];

    /// The fault that travels as `n`; 0 is [`Fault::None`].
    pub fn from_number(n: u8) -> Option<Self> {
        if n == 0 { Some(Self::None) } else { Self::ALL.into_iter().find(|f| *f as u8 == n) }
    }
}

/// One variant of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromZeros)]
pub struct Policy {
    /// The rate limit's clock.
    pub rate_limit_clock: RateLimitClock,
    /// The zero-delta rule.
    pub psi_zero_delta: PsiZeroDelta,
    /// The planted fault.
    pub fault: Fault,
}
