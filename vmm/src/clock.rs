//! Guest time. Nothing else in the program changes it.
//!
//! Virtual time stands still while guest code runs and moves only through [`GuestClock`]: the
//! engine advances it, and what the guest reads (the pvclock page, the steal page) is derived from
//! it. The in-process model reads it through the same two functions that fill the pages.

/// A fault planted in the host, to show that a check notices it. `None` in every real run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostFault {
    /// Time and interrupts as recorded in the ledger.
    #[default]
    None,
    /// Every 16th update of the clock page leaves the low half of the time as it was.
    TornClockPage,
    /// The steal page lags by the last amount added.
    StealPageLags,
    /// A handler's cost passes twice, but is recorded once.
    HandlerCostTwice,
    /// Every 64th interrupt is recorded as raised and never delivered.
    InterruptLost,
    /// Steal moves the guest's clock, but not the steal counter.
    StealNotCounted,
}

/// The guest's clock and steal counter.
#[derive(Clone, Debug, Default)]
pub struct GuestClock {
    now_ns: u64,
    steal_ns: u64,
    last_steal_ns: i64,
    updates: u64,
    page_ns: u64,
    fault: HostFault,
}

impl GuestClock {
    /// A clock at guest time 0 with nothing stolen.
    pub fn new(fault: HostFault) -> Self {
        Self { fault, ..Self::default() }
    }

    /// Guest time, ns.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// The steal counter, ns; wraps as the guest's own 64-bit counter does.
    #[inline]
    pub fn steal_ns(&self) -> u64 {
        self.steal_ns
    }

    /// Lets `ns` of guest time pass.
    #[inline]
    pub fn advance(&mut self, ns: u64) {
        self.now_ns = self.now_ns.saturating_add(ns);
        self.update_page();
    }

    /// Lets `wall_ns` pass without the guest and moves the steal counter by `counter_ns`.
    #[inline]
    pub fn steal(&mut self, wall_ns: u64, counter_ns: i64) {
        self.now_ns = self.now_ns.saturating_add(wall_ns);
        if self.fault != HostFault::StealNotCounted {
            self.steal_ns = self.steal_ns.wrapping_add_signed(counter_ns);
            self.last_steal_ns = counter_ns;
        }
        self.update_page();
    }

    /// Times that time or steal moved: unequal counts mean that the pages must be written again.
    #[inline]
    pub fn updates(&self) -> u64 {
        self.updates
    }

    fn update_page(&mut self) {
        self.updates += 1;
        self.page_ns = if self.fault == HostFault::TornClockPage && self.updates.is_multiple_of(16)
        {
            self.now_ns & !0xffff_ffff | self.page_ns & 0xffff_ffff
        } else {
            self.now_ns
        };
    }

    /// `system_time` of the pvclock page, ns.
    #[inline]
    pub fn page_system_time_ns(&self) -> u64 {
        self.page_ns
    }

    /// `steal` of the steal page, ns.
    #[inline]
    pub fn page_steal_ns(&self) -> u64 {
        if self.fault == HostFault::StealPageLags {
            self.steal_ns.wrapping_add_signed(-self.last_steal_ns)
        } else {
            self.steal_ns
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_and_counter_move_together_and_the_counter_may_step_back() {
        let mut c = GuestClock::new(HostFault::None);
        c.advance(10);
        c.steal(5, 5);
        c.steal(0, -7);
        assert_eq!((c.now_ns(), c.steal_ns() as i64), (15, -2));
        assert_eq!((c.page_system_time_ns(), c.page_steal_ns() as i64), (15, -2));
    }

    #[test]
    fn time_stops_at_its_end_instead_of_wrapping() {
        let mut c = GuestClock::new(HostFault::None);
        c.advance(u64::MAX);
        c.advance(1);
        assert_eq!(c.now_ns(), u64::MAX);
    }
}
