//! A Linux guest as it is seen in a run: counted from the run's start, tasks under the scenario's
//! names.
//!
//! Which number a process has differs between boots, and an activation of a forking task is a process
//! of its own. Here a task is what the scenario calls it, as in the bundled guest: swapper is 0,
//! ksoftirqd 1, the plan's task i is `FIRST_PID` + i. Anybody else is above [`OTHERS`].

use std::collections::HashMap;

use guest_model::wire::{FIRST_PID, IDLE_PID, KSOFTIRQD_PID};

use crate::introspect::linux::run_view::{Baseline, RunView};
use crate::introspect::{Function, Introspector, ReadError};
use crate::view::{Call, CfsRqView, CostsView, GuestView, PsiView, RqView, TaskRef};

/// Above the scenario's tasks: the guest's other processes, by this plus their own number.
pub const OTHERS: u32 = 1 << 16;

/// A Linux guest.
pub struct View {
    raw: Introspector,
    start: Option<Baseline>,
    /// From a process's number to the scenario's.
    pids: HashMap<u32, u32>,
}

impl View {
    /// A guest that is not in its run yet.
    pub fn new(raw: Introspector) -> Result<Self, ReadError> {
        let ksoftirqd = raw.ksoftirqd_pid()?.map(|pid| (pid, KSOFTIRQD_PID.into()));
        let pids = [(0, IDLE_PID.into())].into_iter().chain(ksoftirqd).collect();
        Ok(Self { raw, start: None, pids })
    }

    /// The guest as it is.
    pub fn raw(&self) -> &Introspector {
        &self.raw
    }

    /// The guest has more groups by now: `raw` knows them.
    pub fn replace(&mut self, raw: Introspector) {
        self.raw = raw;
    }

    /// The run begins at `start`.
    pub fn begin(&mut self, start: Baseline) {
        self.start = Some(start);
    }

    /// The current process is the plan's task `index`, or an activation of it.
    pub fn name_task(&mut self, index: u16) -> Result<(), ReadError> {
        let pid = self.raw.curr_pid()?;
        self.pids.insert(pid, u32::from(FIRST_PID) + u32::from(index));
        Ok(())
    }

    #[inline]
    fn pid(&self, pid: u32) -> u32 {
        self.pids.get(&pid).copied().unwrap_or(OTHERS + pid)
    }

    fn task(&self, task: TaskRef) -> TaskRef {
        TaskRef { pid: self.pid(task.pid), ..task }
    }

    /// The call of `function` that was entered with `args` in `rdi`, `rsi`, `rdx`.
    #[inline]
    pub fn call(&self, function: Function, args: [u64; 3]) -> Result<Call, ReadError> {
        Ok(match self.raw.call(function, args)? {
            Call::PsiAccountIrqtime { curr, prev } => Call::PsiAccountIrqtime {
                curr: self.task(curr),
                prev: prev.map(|prev| self.task(prev)),
            },
            Call::PsiTaskSwitch { prev, next, sleep } => {
                Call::PsiTaskSwitch { prev: self.task(prev), next: self.task(next), sleep }
            }
            Call::PsiTaskChange { task, clear, set } => {
                Call::PsiTaskChange { task: self.task(task), clear, set }
            }
            other => other,
        })
    }
}

/// What `f` reads of the guest, counted from the run's start if that has been.
macro_rules! counted {
    ($view:ident, $read:ident $(, $arg:expr)*) => {
        match &$view.start {
            Some(start) => RunView { raw: &$view.raw, start }.$read($($arg),*),
            None => $view.raw.$read($($arg),*),
        }
    };
}

impl GuestView for View {
    type Error = ReadError;

    #[inline]
    fn rq(&self) -> Result<RqView, ReadError> {
        let rq = counted!(self, rq)?;
        Ok(RqView { curr_pid: self.pid(rq.curr_pid), ..rq })
    }

    fn curr_pid(&self) -> Result<u32, ReadError> {
        self.raw.curr_pid().map(|pid| self.pid(pid))
    }

    fn runs_ksoftirqd(&self) -> Result<bool, ReadError> {
        self.raw.runs_ksoftirqd()
    }

    fn irqtime_total_ns(&self) -> Result<u64, ReadError> {
        counted!(self, irqtime_total_ns)
    }

    fn cfs_rq(&self, group: u16) -> Result<CfsRqView, ReadError> {
        counted!(self, cfs_rq, group)
    }

    fn psi_group(&self, group: u16) -> Result<PsiView, ReadError> {
        counted!(self, psi_group, group)
    }

    fn leaf_cfs_rqs(&self, out: &mut Vec<CfsRqView>) -> Result<(), ReadError> {
        counted!(self, leaf_cfs_rqs, out)
    }

    fn costs(&self) -> Result<Option<CostsView>, ReadError> {
        self.raw.costs()
    }
}
