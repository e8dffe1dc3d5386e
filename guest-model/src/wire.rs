//! The wire format between the host (vmm) and the bundled guest (firmware): I/O ports, interrupt
//! vectors, probe numbers and the boot page.
//!
//! Everything is little-endian and versioned by [`VERSION`]. The host writes the boot page before
//! the guest starts; the guest checks all of it with [`BootPage::validate`] before it uses any.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::policy::{Fault, Policy, PsiZeroDelta, RateLimitClock};

pub mod linux;

/// Version of this module's layout; the boot page carries it.
pub const VERSION: u32 = 2;
/// First eight bytes of a boot page, `"RQSCOPE\0"` read as a little-endian integer.
pub const MAGIC: u64 = u64::from_le_bytes(*b"RQSCOPE\0");

/// Most task groups, the root included: 4,096 leaves and what they hang on.
pub const MAX_GROUPS: usize = 4160;
/// Most tasks, swapper and ksoftirqd included: one in each leaf, and some more.
pub const MAX_TASKS: usize = 4160;
/// Most interrupt lines, the timer included.
pub const MAX_IRQS: usize = 32;

/// No task, no group: the empty value of every 16-bit reference on the wire.
pub const NONE: u16 = u16::MAX;

/// I/O ports of the doorbell. Arguments travel in `rdi`, `rsi`, `rdx`; a 32-bit `in` answers in `eax`.
///
/// All are below 0x100, so that the port is part of the instruction and `rdx` is free for an argument.
pub mod port {
    /// `in`: a task burns up to `rdi` ns of CPU; answers the ns consumed (at most `rdi`, which is
    /// below 2^32). Interrupts must be enabled: it returns early when one becomes pending.
    pub const BURN: u16 = 0xe0;
    /// `in`: softirq work burns up to `rdi` ns; otherwise as [`BURN`].
    pub const SOFTIRQ: u16 = 0xe4;
    /// `in`: the status register of interrupt line `rdi`, read by its handler in hardirq context.
    /// The host spends the handler's cost here and answers the softirq work raised, in ns.
    pub const IRQ_STATUS: u16 = 0xe8;
    /// `out`: arm the one-shot timer for the absolute guest time `rdi` ns (0 disarms).
    pub const TIMER: u16 = 0xec;
    /// `out`: a control word in `eax`, see [`super::control`].
    pub const CONTROL: u16 = 0xf4;
    /// `out imm8, al`: the probe whose number is in `al`, see [`super::probe`].
    pub const PROBE: u16 = 0xf8;
}

/// Words written to [`port::CONTROL`].
pub mod control {
    /// The guest has booted: its clock pages are registered and its structures can be read.
    pub const READY: u32 = 1;
    /// The guest panicked: `rdi` is the file name's address, `rsi` its length, `rdx` the line.
    pub const PANIC: u32 = 2;
    /// The guest refuses the boot page: `rdi` is a [`super::BootError`] as a number.
    pub const BAD_BOOT_PAGE: u32 = 3;
    /// The CPU raised an exception: `rdi` is the vector, `rsi` the error code, `rdx` the rip.
    pub const EXCEPTION: u32 = 4;
}

/// Interrupt vectors: the timer is line 0, injected interrupt sources follow.
pub const VECTOR_BASE: u8 = 0x20;

/// Numbers of the instrumented functions, hit at their entry. Pointers are guest virtual addresses.
pub mod probe {
    /// `update_rq_clock(rq)`.
    pub const UPDATE_RQ_CLOCK: u8 = 1;
    /// `irqtime_account_irq(curr, offset)`.
    pub const IRQTIME_ACCOUNT_IRQ: u8 = 2;
    /// `psi_account_irqtime(rq, curr, prev)`; `prev` is 0 from the tick.
    pub const PSI_ACCOUNT_IRQTIME: u8 = 3;
    /// `psi_task_switch(prev, next, sleep)`.
    pub const PSI_TASK_SWITCH: u8 = 4;
    /// `psi_task_change(task, clear, set)`.
    pub const PSI_TASK_CHANGE: u8 = 5;
    /// `update_tg_load_avg(cfs_rq)`.
    pub const UPDATE_TG_LOAD_AVG: u8 = 6;
    /// `clear_tg_load_avg(cfs_rq)`.
    pub const CLEAR_TG_LOAD_AVG: u8 = 7;
}

/// A task group; index 0 is the root and ignores its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GroupSpec {
    /// `tg->shares` before scaling: 2 to 262,144 (kernel/sched/sched.h `MIN_SHARES`, `MAX_SHARES`).
    pub shares: u32,
    /// Index of the parent, which comes earlier in the table.
    pub parent: u16,
    /// Zero.
    pub reserved: u16,
}

/// A task fork: each activation is a new task that attaches, and exits (detaches) when it sleeps.
pub const TASK_FORK: u16 = 1 << 0;
/// The task starts asleep and waits for a wake-up (from a partner or an interrupt).
pub const TASK_BLOCKED: u16 = 1 << 1;

/// A task: burns a drawn amount of CPU time, then wakes its partner, sleeps, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TaskSpec {
    /// Least CPU time of one activation, ns, above zero.
    pub burn_min_ns: u64,
    /// Most CPU time of one activation, ns.
    pub burn_max_ns: u64,
    /// Least sleep after an activation, ns.
    pub sleep_min_ns: u64,
    /// Most sleep after an activation, ns; 0 means no timed sleep.
    pub sleep_max_ns: u64,
    /// Guest time of the first activation, ns.
    pub start_ns: u64,
    /// Seed of the task's draws.
    pub seed: u64,
    /// `se.load.weight` before scaling (kernel/sched/core.c `sched_prio_to_weight`): 3 to 262,144.
    pub weight: u32,
    /// Index of the group.
    pub group: u16,
    /// Task woken at the end of each activation, as an index into the guest's task table, or [`NONE`].
    /// A task with a partner and no timed sleep blocks until it is woken.
    pub wakes: u16,
    /// [`TASK_FORK`] and [`TASK_BLOCKED`].
    pub flags: u16,
    /// Zero.
    pub reserved: [u16; 3],
}

/// After its softirq work the line's softirq also runs `update_blocked_averages()`, as the
/// kernel's load balancer does from `SCHED_SOFTIRQ`.
pub const IRQ_BALANCE: u16 = 1 << 0;

/// An interrupt line; line 0 is the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IrqSpec {
    /// Task woken by the handler, as an index into the guest's task table, or [`NONE`].
    pub wakes: u16,
    /// [`IRQ_BALANCE`].
    pub flags: u16,
}

/// The guest has no paravirtual steal clock: it registers no steal page and takes no steal from its
/// clocks, as a kernel that finds `KVM_FEATURE_STEAL_TIME` missing.
pub const NO_STEAL_CLOCK: u8 = 1 << 0;

/// What the host tells the bundled guest: workload and policies.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BootPage {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u32,
    /// `size_of::<BootPage>()`.
    pub size: u32,
    /// Distance of two ticks, ns, above zero.
    pub tick_period_ns: u64,
    /// Guest time from which the CPU is inactive (its contributions cleared), ns; 0 for never.
    pub offline_ns: u64,
    /// A [`RateLimitClock`] as a number.
    pub rate_limit_clock: u8,
    /// A [`PsiZeroDelta`] as a number.
    pub psi_zero_delta: u8,
    /// A planted [`Fault`] as a number; 0 for none.
    pub fault: u8,
    /// [`NO_STEAL_CLOCK`].
    pub flags: u8,
    /// Groups used in `groups`, the root included.
    pub nr_groups: u16,
    /// Tasks used in `tasks`.
    pub nr_tasks: u16,
    /// Lines used in `irqs`, the timer included.
    pub nr_irqs: u16,
    /// Zero.
    pub reserved2: [u16; 3],
    /// The group table.
    pub groups: [GroupSpec; MAX_GROUPS],
    /// The task table; entry i becomes pid i + [`FIRST_PID`].
    pub tasks: [TaskSpec; MAX_TASKS],
    /// The interrupt lines.
    pub irqs: [IrqSpec; MAX_IRQS],
}

/// swapper's place in the guest's task table, and its pid.
pub const IDLE_PID: u16 = 0;
/// ksoftirqd's place in the guest's task table, and its pid.
pub const KSOFTIRQD_PID: u16 = 1;
/// Place and pid of the first task of the boot page.
pub const FIRST_PID: u16 = 2;

const _: () = {
    assert!(size_of::<GroupSpec>() == 8);
    assert!(size_of::<TaskSpec>() == 64);
    assert!(size_of::<IrqSpec>() == 4);
    assert!(size_of::<BootPage>() == 48 + MAX_GROUPS * 8 + MAX_TASKS * 64 + MAX_IRQS * 4);
};

/// Why a boot page is refused. The numbers travel to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BootError {
    /// `magic` is not [`MAGIC`].
    Magic = 1,
    /// `version` or `size` is not this build's.
    Version = 2,
    /// A reserved field is not zero, or a flag is unknown.
    Reserved = 3,
    /// An enumeration holds an unknown number.
    Policy = 4,
    /// A table's length is zero or above its limit.
    Count = 5,
    /// The tick period is zero, or 2^32 ns or more.
    Tick = 6,
    /// A group's parent does not come before it, or its shares are out of range.
    Group = 7,
    /// A task's group, weight, times, flags or partner are out of range.
    Task = 8,
    /// An interrupt line's flags or woken task are out of range.
    Irq = 9,
}

impl BootError {
    /// The error that travelled as `n`.
    pub fn from_number(n: u64) -> Option<Self> {
        use BootError::*;
        [Magic, Version, Reserved, Policy, Count, Tick, Group, Task, Irq]
            .into_iter()
            .find(|e| *e as u64 == n)
    }
}

/// Bounds of `tg->shares` and `se.load.weight` before scaling.
const MAX_WEIGHT: u32 = 1 << 18;
/// Longest time that a boot page may ask for in one piece: 2^62 ns, so that sums cannot wrap.
const MAX_TIME_NS: u64 = 1 << 62;

impl BootPage {
    /// A page with a root group, no task and only the timer line.
    pub fn new(tick_period_ns: u64, policy: Policy) -> Self {
        let mut page = Self::new_zeroed();
        page.init(tick_period_ns, policy);
        page
    }

    /// Makes a page of zeros what [`BootPage::new`] returns: it is too large to be moved around.
    pub fn init(&mut self, tick_period_ns: u64, policy: Policy) {
        self.magic = MAGIC;
        self.version = VERSION;
        self.size = size_of::<Self>() as u32;
        self.tick_period_ns = tick_period_ns;
        self.rate_limit_clock = policy.rate_limit_clock as u8;
        self.psi_zero_delta = policy.psi_zero_delta as u8;
        self.fault = policy.fault as u8;
        self.nr_groups = 1;
        self.nr_irqs = 1;
        for group in &mut self.groups {
            group.shares = 1024;
        }
        for irq in &mut self.irqs {
            irq.wakes = NONE;
        }
    }

    /// The policies, if the numbers are known ones.
    pub fn policy(&self) -> Option<Policy> {
        Some(Policy {
            rate_limit_clock: RateLimitClock::from_number(self.rate_limit_clock)?,
            psi_zero_delta: PsiZeroDelta::from_number(self.psi_zero_delta)?,
            fault: Fault::from_number(self.fault)?,
        })
    }

    /// Checks every field that the guest will use; after it, no index of the page is out of range.
    pub fn validate(&self) -> Result<Policy, BootError> {
        let ensure = |ok: bool, e: BootError| if ok { Ok(()) } else { Err(e) };
        ensure(self.magic == MAGIC, BootError::Magic)?;
        ensure(
            self.version == VERSION && self.size as usize == size_of::<Self>(),
            BootError::Version,
        )?;
        ensure(self.flags & !NO_STEAL_CLOCK == 0 && self.reserved2 == [0; 3], BootError::Reserved)?;
        let policy = self.policy().ok_or(BootError::Policy)?;
        let (groups, tasks, irqs) =
            (self.nr_groups as usize, self.nr_tasks as usize, self.nr_irqs as usize);
        ensure((1..=MAX_GROUPS).contains(&groups), BootError::Count)?;
        ensure(tasks + FIRST_PID as usize <= MAX_TASKS, BootError::Count)?;
        ensure((1..=MAX_IRQS).contains(&irqs), BootError::Count)?;
        ensure((1..=u32::MAX as u64).contains(&self.tick_period_ns), BootError::Tick)?;

        for (i, g) in self.groups[..groups].iter().enumerate().skip(1) {
            let ok =
                (g.parent as usize) < i && (2..=MAX_WEIGHT).contains(&g.shares) && g.reserved == 0;
            ensure(ok, BootError::Group)?;
        }
        let pids = FIRST_PID as usize..FIRST_PID as usize + tasks;
        let wakeable = |pid: u16| pid == NONE || pids.contains(&(pid as usize));
        for t in &self.tasks[..tasks] {
            let ok = (t.group as usize) < groups
                && (3..=MAX_WEIGHT).contains(&t.weight)
                && t.burn_min_ns > 0
                && t.burn_min_ns <= t.burn_max_ns
                && t.sleep_min_ns <= t.sleep_max_ns
                && t.burn_max_ns <= MAX_TIME_NS
                && t.sleep_max_ns <= MAX_TIME_NS
                && t.start_ns <= MAX_TIME_NS
                && wakeable(t.wakes)
                && t.flags & !(TASK_FORK | TASK_BLOCKED) == 0
                && t.reserved == [0; 3];
            ensure(ok, BootError::Task)?;
        }
        for irq in &self.irqs[..irqs] {
            ensure(wakeable(irq.wakes) && irq.flags & !IRQ_BALANCE == 0, BootError::Irq)?;
        }
        Ok(policy)
    }
}

#[cfg(test)]
mod tests;
