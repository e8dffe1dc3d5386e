//! `--guest model`: the bundled kernel in this process, without a virtual machine.
//!
//! It runs the same code as the firmware on the same engine, so the same scenario leaves the same
//! trace.

use std::alloc::{Layout, handle_alloc_error};
use std::convert::Infallible;

use guest_model::hardware::{Cpu, Hardware, Probe};
use guest_model::kernel::{Kernel, do_irq, step};
use guest_model::pelt::SchedAvg;
use guest_model::psi::PSI_IRQ_FULL;
use guest_model::wire::{BootError, BootPage, KSOFTIRQD_PID, NO_STEAL_CLOCK};
use zerocopy::FromZeros;

use crate::engine::Injections;
use crate::session::{Asked, PassOutcome, Session, Stop, chain};
use crate::trace::Trace;
use crate::view::{AvgView, Call, CfsRqView, CostsView, GuestView, PsiView, RqView, TaskRef};

/// The model's kernel, read directly.
#[derive(Clone, Copy, Debug)]
pub struct ModelView<'a>(pub &'a Kernel);

/// A `sched_avg` of the model's.
pub fn avg_view(avg: &SchedAvg) -> AvgView {
    AvgView {
        last_update_time_ns: avg.last_update_time,
        load_sum: avg.load_sum,
        runnable_sum: avg.runnable_sum,
        util_sum: avg.util_sum,
        period_contrib: avg.period_contrib,
        load_avg: avg.load_avg,
        runnable_avg: avg.runnable_avg,
        util_avg: avg.util_avg,
    }
}

impl ModelView<'_> {
    fn task(&self, pid: u16) -> TaskRef {
        TaskRef { pid: pid.into(), group: self.0.tasks[pid as usize].group }
    }

    fn call(&self, probe: Probe) -> Call {
        match probe {
            Probe::UpdateRqClock => Call::UpdateRqClock,
            Probe::IrqtimeAccountIrq { offset } => Call::IrqtimeAccountIrq { offset },
            Probe::PsiAccountIrqtime { curr, prev } => {
                Call::PsiAccountIrqtime { curr: self.task(curr), prev: prev.map(|p| self.task(p)) }
            }
            Probe::PsiTaskSwitch { prev, next, sleep } => {
                Call::PsiTaskSwitch { prev: self.task(prev), next: self.task(next), sleep }
            }
            Probe::PsiTaskChange { task, clear, set } => {
                Call::PsiTaskChange { task: self.task(task), clear, set }
            }
            Probe::UpdateTgLoadAvg { group } => Call::UpdateTgLoadAvg { group },
            Probe::ClearTgLoadAvg { group } => Call::ClearTgLoadAvg { group },
        }
    }
}

impl GuestView for ModelView<'_> {
    type Error = Infallible;

    #[inline]
    fn rq(&self) -> Result<RqView, Infallible> {
        let (k, rq) = (self.0, &self.0.rq);
        Ok(RqView {
            cpu: rq.cpu,
            nr_running: rq.nr_running,
            nr_switches: rq.nr_switches,
            curr_pid: k.curr.into(),
            clock_update_flags: 0,
            clock_ns: rq.clock,
            clock_task_ns: rq.clock_task,
            clock_pelt_ns: rq.clock_pelt,
            lost_idle_time_ns: rq.lost_idle_time,
            prev_irq_time_ns: rq.prev_irq_time,
            prev_steal_time_rq_ns: rq.prev_steal_time_rq,
            psi_irq_time_ns: rq.psi_irq_time,
            avg_irq: avg_view(&rq.avg_irq),
            irqtime_total_ns: k.cpu_irqtime.total,
            irq_start_time_ns: k.cpu_irqtime.irq_start_time,
            preempt_count: Some(k.preempt_count),
            psi_seq: k.psi_seq,
        })
    }

    #[inline]
    fn curr_pid(&self) -> Result<u32, Infallible> {
        Ok(self.0.curr.into())
    }

    #[inline]
    fn runs_ksoftirqd(&self) -> Result<bool, Infallible> {
        Ok(self.0.curr == KSOFTIRQD_PID)
    }

    #[inline]
    fn irqtime_total_ns(&self) -> Result<u64, Infallible> {
        Ok(self.0.cpu_irqtime.total)
    }

    #[inline]
    fn cfs_rq(&self, group: u16) -> Result<CfsRqView, Infallible> {
        let q = &self.0.cfs_rqs[group as usize];
        Ok(CfsRqView {
            group,
            load_avg: q.avg.load_avg,
            tg_load_avg_contrib: q.tg_load_avg_contrib,
            last_update_tg_load_avg_ns: q.last_update_tg_load_avg,
            tg_load_avg: self.0.task_groups[group as usize].load_avg,
            runnable: None,
        })
    }

    #[inline]
    fn psi_group(&self, group: u16) -> Result<PsiView, Infallible> {
        let irq_full_ns = self.0.psi_groups[group as usize].times[PSI_IRQ_FULL];
        Ok(PsiView { group, irq_full_ns })
    }

    fn leaf_cfs_rqs(&self, out: &mut Vec<CfsRqView>) -> Result<(), Infallible> {
        out.clear();
        let mut next = self.0.leaf_first();
        while let Some(cfs) = next {
            out.push(self.cfs_rq(cfs as u16)?);
            next = self.0.leaf_next(cfs);
        }
        Ok(())
    }

    fn costs(&self) -> Result<Option<CostsView>, Infallible> {
        let c = &self.0.costs;
        Ok(Some(CostsView {
            clock_reads_update_rq_clock: c.clock_reads_update_rq_clock,
            clock_reads_irqtime_account_irq: c.clock_reads_irqtime_account_irq,
            clock_reads_update_tg_load_avg: c.clock_reads_update_tg_load_avg,
            clock_reads_psi_account_irqtime: c.clock_reads_psi_account_irqtime,
            clock_reads_psi_other: c.clock_reads_psi_other,
            psi_account_irqtime_seqcount_writes: c.psi_account_irqtime_seqcount_writes,
            psi_account_irqtime_levels: c.psi_account_irqtime_levels,
            tg_load_avg_atomic_adds: c.tg_load_avg_atomic_adds,
            update_tg_load_avg_rate_limited: c.update_tg_load_avg_rate_limited,
            update_tg_load_avg_below_tolerance: c.update_tg_load_avg_below_tolerance,
        }))
    }
}

/// The machine under the model: a session, until it has finished.
///
/// Guest code cannot be stopped in the middle of a function here, so once time is up every request
/// is answered at once and changes nothing, until the guest is back in its main loop.
struct ModelHw<I> {
    session: Option<Session<I>>,
    outcome: Option<(PassOutcome, Trace)>,
}

impl<I: Injections> ModelHw<I> {
    /// Ends the session if guest time is up or something failed.
    #[inline]
    fn after(&mut self, kernel: &Kernel, result: Result<(), Stop<Infallible>>) {
        let Some(session) = &mut self.session else { return };
        let result =
            result.and_then(|()| session.sample(&ModelView(kernel))).and_then(|()| session.tick());
        if (result.is_err() || session.finished())
            && let Some(session) = self.session.take()
        {
            let stopped = result.err().map(|e| match e {
                Stop::Interrupted => (Asked::ByUser, e.to_string()),
                e => (Asked::ByError, chain(&e)),
            });
            self.outcome = Some(session.finish(&ModelView(kernel), stopped));
        }
    }
}

impl<I: Injections> Hardware for ModelHw<I> {
    #[inline]
    fn sched_clock_cpu(&mut self) -> u64 {
        self.session.as_ref().map_or(0, |s| s.clock().page_system_time_ns())
    }

    #[inline]
    fn steal_clock(&mut self) -> u64 {
        self.session.as_ref().map_or(0, |s| s.clock().page_steal_ns())
    }

    #[inline]
    fn probe(&mut self, kernel: &mut Kernel, probe: Probe) {
        let Some(session) = &mut self.session else { return };
        let view = ModelView(kernel);
        let call = view.call(probe);
        let result = session.probe(&view, call);
        self.after(kernel, result);
    }

    fn set_timer(&mut self, deadline_ns: u64) {
        if let Some(session) = &mut self.session {
            session.set_timer(deadline_ns);
        }
    }

    fn irq_status(&mut self, kernel: &mut Kernel, line: u16) -> u32 {
        let Some(session) = &mut self.session else { return 0 };
        let (softirq_ns, result) = match session.irq_status(line.into()) {
            Ok(ns) => (ns, Ok(())),
            Err(e) => (0, Err(e)),
        };
        self.after(kernel, result);
        softirq_ns
    }
}

struct ModelCpu<I> {
    kernel: Box<Kernel>,
    hw: ModelHw<I>,
}

impl<I: Injections> ModelCpu<I> {
    /// Takes one interrupt if one waits: see [`crate::firmware`] for why only one.
    fn take_interrupt(&mut self) {
        self.hw.after(&self.kernel, Ok(()));
        if let Some(line) = self.hw.session.as_mut().and_then(Session::deliver) {
            do_irq(self, line);
        }
    }
}

impl<I: Injections> Cpu for ModelCpu<I> {
    type Hw = ModelHw<I>;

    #[inline]
    fn parts(&mut self) -> (&mut Kernel, &mut ModelHw<I>) {
        (&mut self.kernel, &mut self.hw)
    }

    fn burn(&mut self, want_ns: u32) -> u32 {
        let Some(session) = &mut self.hw.session else { return want_ns };
        let Ok(consumed) = session.burn(&ModelView(&self.kernel), want_ns) else { return want_ns };
        self.take_interrupt();
        consumed
    }

    fn softirq(&mut self, want_ns: u32) -> u32 {
        let Some(session) = &mut self.hw.session else { return want_ns };
        let Ok(done) = session.softirq(&ModelView(&self.kernel), want_ns) else { return want_ns };
        self.take_interrupt();
        done
    }

    fn halt(&mut self) {
        if let Some(session) = &mut self.hw.session {
            // Reading the model does not fail.
            let _ = session.idle(&ModelView(&self.kernel));
            self.take_interrupt();
        }
    }
}

/// A large value of zeros, made on the heap.
pub fn zeroed<T: FromZeros>() -> Box<T> {
    T::new_box_zeroed().unwrap_or_else(|_| handle_alloc_error(Layout::new::<T>()))
}

/// Runs a pass to its end.
pub fn run<I: Injections>(
    page: &BootPage,
    mut session: Session<I>,
) -> Result<(PassOutcome, Trace), BootError> {
    if page.flags & NO_STEAL_CLOCK != 0 {
        session.lacks_steal_clock();
    }
    let hw = ModelHw { session: Some(session), outcome: None };
    let mut cpu = ModelCpu { kernel: zeroed(), hw };
    cpu.kernel.boot(&mut cpu.hw, page)?;
    loop {
        if let Some(done) = cpu.hw.outcome.take() {
            return Ok(done);
        }
        step(&mut cpu);
    }
}
