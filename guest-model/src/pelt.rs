//! Per-entity load tracking in the kernel's integer arithmetic (kernel/sched/pelt.c, pelt.h).

use zerocopy::FromZeros;

use crate::kernel::Kernel;
use crate::wire::IDLE_PID;

/// Periods (of 1,024 us) after which a contribution has halved.
pub const LOAD_AVG_PERIOD: u64 = 32;
/// The largest load sum: 1024 * (1 + y + y^2 + ...), y^32 = 1/2, in the kernel's rounding.
pub const LOAD_AVG_MAX: u32 = 47742;
/// `LOAD_AVG_MAX` less one period: the least divider of a sum.
pub const PELT_MIN_DIVIDER: u32 = LOAD_AVG_MAX - 1024;
/// log2 of the capacity scale.
pub const SCHED_CAPACITY_SHIFT: u32 = 10;

/// y^n for n below 32, as fractions of 2^32 - 1 (`runnable_avg_yN_inv`, kernel/sched/sched-pelt.h).
#[rustfmt::skip]
const RUNNABLE_AVG_YN_INV: [u32; 32] = [
    0xffff_ffff, 0xfa83_b2da, 0xf525_7d14, 0xefe4_b99a, 0xeac0_c6e6, 0xe5b9_06e6, 0xe0cc_deeb,
    0xdbfb_b796, 0xd744_fcc9, 0xd2a8_1d91, 0xce24_8c14, 0xc9b9_bd85, 0xc567_2a10, 0xc12c_4cc9,
    0xbd08_a39e, 0xb8fb_af46, 0xb504_f333, 0xb123_f581, 0xad58_3ee9, 0xa9a1_5ab4, 0xa5fe_d6a9,
    0xa270_4302, 0x9ef5_325f, 0x9b8d_39b9, 0x9837_f050, 0x94f4_efa8, 0x91c3_d373, 0x8ea4_398a,
    0x8b95_c1e3, 0x8898_0e80, 0x85aa_c367, 0x82cd_8698,
];

/// `struct sched_avg`.
#[derive(Clone, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(C)]
pub struct SchedAvg {
    /// Clock value up to which time has been accumulated, ns in whole 1,024 ns units.
    pub last_update_time: u64,
    /// Decayed sum of load.
    pub load_sum: u64,
    /// Decayed sum of runnable time.
    pub runnable_sum: u64,
    /// Decayed sum of running time.
    pub util_sum: u32,
    /// Part of the current period already accumulated, in 1,024 ns units.
    pub period_contrib: u32,
    /// Load average.
    pub load_avg: u64,
    /// Runnable average.
    pub runnable_avg: u64,
    /// Utilisation, 0 to 1,024.
    pub util_avg: u64,
}

/// `val * y^n`, in the kernel's rounding.
pub fn decay_load(val: u64, n: u64) -> u64 {
    Decay::over(n).apply(val)
}

/// y^n, split as `decay_load()` does: a power of one half and a fraction.
#[derive(Clone, Copy)]
struct Decay {
    shift: u32,
    inv: u32,
}

impl Decay {
    #[inline]
    fn over(n: u64) -> Self {
        if n > LOAD_AVG_PERIOD * 63 {
            return Self { shift: 0, inv: 0 };
        }
        let n = n as u32;
        Self { shift: n / 32, inv: RUNNABLE_AVG_YN_INV[(n % 32) as usize] }
    }

    #[inline]
    fn apply(self, val: u64) -> u64 {
        ((u128::from(val >> self.shift) * u128::from(self.inv)) >> 32) as u64
    }

    /// [`Decay::apply`], in 64 bits.
    #[inline]
    fn apply_u32(self, val: u32) -> u32 {
        (((u64::from(val) >> self.shift) * u64::from(self.inv)) >> 32) as u32
    }

    /// `__accumulate_pelt_segments()`: contribution of a span that begins `d1` units before the end
    /// of a period, crosses the boundaries that this is the decay of, and reaches `d3` units into
    /// the last period.
    #[inline]
    fn segments(self, d1: u32, d3: u32) -> u32 {
        let c1 = self.apply_u32(d1);
        let c2 = LOAD_AVG_MAX.wrapping_sub(self.apply_u32(LOAD_AVG_MAX)).wrapping_sub(1024);
        c1.wrapping_add(c2).wrapping_add(d3)
    }
}

impl SchedAvg {
    /// `get_pelt_divider()`: the sum that stands for "always", at this position in the period. Never 0,
    /// even if the position is none: averages are divided by it, also those read of a hostile guest.
    #[inline]
    pub fn divider(&self) -> u32 {
        PELT_MIN_DIVIDER.wrapping_add(self.period_contrib).max(1)
    }

    /// `accumulate_sum()`: adds `delta` units; returns whether a period boundary was crossed.
    fn accumulate_sum(&mut self, mut delta: u64, load: u64, runnable: u64, running: bool) -> bool {
        let mut contrib = delta as u32;
        delta += u64::from(self.period_contrib);
        let periods = delta / 1024;
        if periods != 0 {
            let y = Decay::over(periods);
            self.load_sum = y.apply(self.load_sum);
            self.runnable_sum = y.apply(self.runnable_sum);
            self.util_sum = y.apply_u32(self.util_sum);
            delta %= 1024;
            if load != 0 {
                contrib = y.segments(1024u32.wrapping_sub(self.period_contrib), delta as u32);
            }
        }
        self.period_contrib = delta as u32;

        let contrib64 = u64::from(contrib);
        if load != 0 {
            self.load_sum = self.load_sum.wrapping_add(load.wrapping_mul(contrib64));
        }
        if runnable != 0 {
            let add = runnable.wrapping_mul(contrib64) << SCHED_CAPACITY_SHIFT;
            self.runnable_sum = self.runnable_sum.wrapping_add(add);
        }
        if running {
            self.util_sum = self.util_sum.wrapping_add(contrib << SCHED_CAPACITY_SHIFT);
        }
        periods != 0
    }

    /// `___update_load_sum()`: accumulates up to `now`; true if the averages are due for an update.
    #[inline]
    pub fn update_load_sum(&mut self, now: u64, load: u64, runnable: u64, running: bool) -> bool {
        let mut delta = now.wrapping_sub(self.last_update_time);
        if (delta as i64) < 0 {
            self.last_update_time = now;
            return false;
        }
        delta >>= 10;
        if delta == 0 {
            return false;
        }
        self.last_update_time = self.last_update_time.wrapping_add(delta << 10);
        let (runnable, running) = if load == 0 { (0, false) } else { (runnable, running) };
        self.accumulate_sum(delta, load, runnable, running)
    }

    /// `___update_load_avg()`: derives the averages from the sums.
    #[inline]
    pub fn update_load_avg(&mut self, load: u64) {
        let divider = self.divider();
        self.load_avg = load.wrapping_mul(self.load_sum) / u64::from(divider);
        self.runnable_avg = self.runnable_sum / u64::from(divider);
        self.util_avg = u64::from(self.util_sum / divider);
    }

    /// `load_avg_is_decayed()`: nothing is left to decay.
    pub fn is_decayed(&self) -> bool {
        self.load_sum == 0 && self.util_sum == 0 && self.runnable_sum == 0
    }
}

/// `cap_scale(v, SCHED_CAPACITY_SCALE)` of an unsigned `v`: the product and the shift lose the top
/// ten bits. A second time loses no more.
#[inline]
fn cap_scale_full(v: u64) -> u64 {
    v << SCHED_CAPACITY_SHIFT >> SCHED_CAPACITY_SHIFT
}

impl Kernel {
    /// `rq_clock_pelt()`: the clock in which the averages decay, ns.
    #[inline]
    pub fn rq_clock_pelt(&self) -> u64 {
        self.rq.clock_pelt.wrapping_sub(self.rq.lost_idle_time)
    }

    /// Accumulates `running` ns of IRQ and steal time, assumed to lie just before the update.
    pub fn update_irq_load_avg(&mut self, running: u64) -> bool {
        let running = cap_scale_full(running);
        let clock = self.rq.clock;
        let avg = &mut self.rq.avg_irq;
        let before = avg.update_load_sum(clock.wrapping_sub(running), 0, 0, false);
        let during = avg.update_load_sum(clock, 1, 1, true);
        let due = before | during;
        if due {
            avg.update_load_avg(1);
        }
        due
    }

    /// Advances `clock_pelt` by `delta` ns of task time, or synchronises it while idle.
    pub fn update_rq_clock_pelt(&mut self, delta: i64) {
        if self.curr == IDLE_PID {
            self.sync_idle_rq_clock_pelt();
            return;
        }
        // The first cap_scale() is unsigned and loses the top ten bits; the second is signed, because
        // x86's arch_scale_freq_capacity() is a long, and extends what is left from bit 53.
        let scaled = delta << SCHED_CAPACITY_SHIFT >> SCHED_CAPACITY_SHIFT;
        self.rq.clock_pelt = self.rq.clock_pelt.wrapping_add(scaled as u64);
    }

    /// `_update_idle_rq_clock_pelt()`.
    fn sync_idle_rq_clock_pelt(&mut self) {
        self.rq.clock_pelt = self.rq.clock_task;
        self.rq.clock_idle = self.rq.clock;
        self.rq.clock_pelt_idle = self.rq_clock_pelt();
    }

    /// `update_idle_rq_clock_pelt()`: the CPU goes idle; a saturated run queue loses the idle time
    /// that it never had.
    pub fn update_idle_rq_clock_pelt(&mut self) {
        let divider = ((LOAD_AVG_MAX - 1024) << SCHED_CAPACITY_SHIFT) - LOAD_AVG_MAX;
        if self.cfs_rqs[0].avg.util_sum >= divider {
            let lost = self.rq.clock_task.wrapping_sub(self.rq.clock_pelt);
            self.rq.lost_idle_time = self.rq.lost_idle_time.wrapping_add(lost);
        }
        self.sync_idle_rq_clock_pelt();
    }
}

#[cfg(test)]
mod tests;
