//! The run of a Linux guest: the loop around KVM_RUN in virtual time.
//!
//! Guest code runs in no time. Time moves at four exits only: a task burns, softirq work is done (at
//! the entry of the network driver's poll function), a handler reads its device's status (the timer's:
//! the end of interrupt that its handler writes), the CPU halts. Interrupts are delivered at those
//! exits, one at each, as for the bundled guest; before one is delivered its device is made to have
//! something to say.

use std::sync::Arc;

use guest_model::wire::linux::{MAX_PLAN_TASKS, control, port};
use guest_model::wire::port::{BURN, CONTROL};
use kvm_bindings::kvm_regs;

use super::LinuxError;
use super::bring_up::MAX_ORIGIN_NS;
use super::bus::{Bus, Storm, Written};
use super::machine::Machine;
use super::probes::{Hit, PROBE_PORTS, Probes};
use super::time::Time;
use super::view::View;
use crate::engine::Injections;
use crate::guest::{GuestError, enter, unhandled};
use crate::introspect::linux::Linux;
use crate::introspect::{Function, ReadError, SetupError};
use crate::kvm::Exit;
use crate::session::{Control, STUCK_EXITS, Session, Stop};
use crate::view::GuestView;

/// What the loop's owner has to do after an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Nothing.
    Go,
    /// Nothing: a task burns or the CPU halts, and none of the kernel's rules is half done.
    Rest,
    /// PID 1 has built the workload.
    Started,
    /// PID 1 asks whether the run may start: answer before the next turn.
    Settle,
    /// Before the run, a function was called that the observer would take.
    Called(Function, [u64; 3]),
}

/// A Linux guest in virtual time.
pub struct Guest<I> {
    /// The virtual machine.
    pub machine: Machine,
    /// Who lets time pass.
    pub time: Time<I>,
    /// Its kernel.
    pub linux: Linux,
    /// What is seen of it.
    pub view: View,
    /// Its probes.
    pub probes: Probes,
    /// The scenario's lines: entry i is line i + 1.
    pub lines: Vec<Line>,
    /// What is left of the softirq work of a poll that was interrupted, ns.
    poll_left_ns: Option<u64>,
    /// Guest time before the run, and the exits that it has not moved for.
    instant_ns: u64,
    exits_at_instant: u64,
    /// Before the run, the guest time of the last tick.
    ticked_ns: Option<u64>,
    /// Before the run, a burn is over at the next interrupt, however much of it is left.
    until_interrupt: bool,
    control: Arc<Control>,
}

/// Exits without guest time passing after which a guest before its run counts as stuck. The 318 tasks of
/// the largest plan make some tens of thousands between two of PID 1's sleeps.
const PREPARE_EXITS: u64 = 5 * STUCK_EXITS;

/// How far a stopped clock may be ahead of the run queue's, ns: a busy CPU updates that at every tick.
const MAX_BEHIND_NS: u64 = 1_000_000_000;

/// How far ahead of the run queue's clock a wrong one is put, ns: beyond all that the guest has read since.
const LEAP_NS: u64 = 300_000_000;

/// A storm source of the scenario's.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its device.
    pub storm: Storm,
    /// What wakes the task that waits for it; `None` if nobody does.
    pub frame: Option<Vec<u8>>,
}

impl<I: Injections> Guest<I> {
    /// A guest whose time stands still from here on, with `lines` as storm sources.
    pub fn new(
        machine: Machine,
        linux: Linux,
        view: View,
        probes: Probes,
        lines: Vec<Line>,
        control: Arc<Control>,
    ) -> Self {
        let mut guest = Self {
            machine,
            time: Time::prepare(),
            linux,
            view,
            probes,
            lines,
            poll_left_ns: None,
            instant_ns: 0,
            exits_at_instant: 0,
            ticked_ns: None,
            until_interrupt: false,
            control,
        };
        // It may have been armed before time stood still.
        guest.arm_timer();
        guest
    }

    /// Runs `session` to its end, from this instant on.
    pub fn run(&mut self, session: Session<I>) -> (Session<I>, Result<(), GuestError>) {
        let steal_origin_ns = self.machine.pages.state().steal_origin_ns;
        self.machine.pages.set_origin(self.now_ns(), steal_origin_ns);
        self.time = Time::Run(Box::new(session));
        self.until_interrupt = false;
        self.arm_timer();
        let ended = self.run_out();
        match std::mem::replace(&mut self.time, Time::prepare()) {
            Time::Run(session) => (*session, ended),
            Time::Prepare(..) => unreachable!("the run was begun above"),
        }
    }

    fn run_out(&mut self) -> Result<(), GuestError> {
        self.machine.pages.publish(self.time.clock())?;
        while !self.time.finished() {
            self.turn()?;
        }
        Ok(())
    }

    /// The guest's own clock, which its timer counts in, ns.
    pub fn now_ns(&self) -> u64 {
        self.machine.pages.state().origin_ns.wrapping_add(self.time.clock().now_ns())
    }

    /// The scheduler's tick was handled at this very instant. If not, the next burn ends with it.
    pub fn at_tick(&mut self) -> bool {
        self.until_interrupt = self.ticked_ns != Some(self.time.clock().now_ns());
        !self.until_interrupt
    }

    /// What the guest's `sched_clock()` shows now, ns.
    pub fn sched_clock_ns(&self) -> Result<u64, SetupError> {
        Ok(self.now_ns().wrapping_add(self.linux.sched_clock_offset_ns()?))
    }

    /// Puts the stopped clock ahead of the guest's run queue, if it is not there: where the guest did not say
    /// what its TSC was, the host may have read another. Where it did (`told`), a run queue that is far behind
    /// belongs to a host that was busy.
    pub fn catch_up(&mut self, told: bool) -> Result<(), LinuxError> {
        let clock_ns = self.view.rq()?.clock_ns;
        let behind_ns = self.sched_clock_ns()?.wrapping_sub(clock_ns);
        if behind_ns <= MAX_BEHIND_NS || told && behind_ns as i64 >= 0 {
            return Ok(());
        }
        let now_ns = self.now_ns();
        let offset_ns = self.linux.sched_clock_offset_ns()?;
        let origin_ns = clock_ns.wrapping_add(LEAP_NS).wrapping_sub(offset_ns);
        if origin_ns > MAX_ORIGIN_NS {
            return Err(GuestError::Clock { ns: origin_ns }.into());
        }
        let pages = &mut self.machine.pages;
        pages.set_origin(origin_ns, pages.state().steal_origin_ns);
        pages.publish(self.time.clock()).map_err(GuestError::from)?;
        self.machine.bus.pit.rebase(now_ns, origin_ns);
        self.arm_timer();
        Ok(())
    }

    /// The 8254's deadline becomes the engine's.
    fn arm_timer(&mut self) {
        let origin_ns = self.machine.pages.state().origin_ns;
        // What is due at once is due at the first nanosecond: 0 disarms.
        let deadline =
            self.machine.bus.pit.deadline_ns().map_or(0, |at| at.saturating_sub(origin_ns).max(1));
        self.time.set_timer(deadline);
    }

    /// One KVM_RUN and what its exit asks for.
    #[inline]
    pub fn turn(&mut self) -> Result<Flow, GuestError> {
        let exit = match enter(&mut self.machine.vcpu, &self.control) {
            Err(GuestError::Spinning(seconds)) => return Err(self.spins(seconds)),
            entered => entered?,
        };
        let before = self.time.clock().updates();
        let mut flow = Flow::Go;
        match exit {
            Exit::Out { port, size: 1, .. } if PROBE_PORTS.contains(&port) => {
                flow = self.probe(port)?;
                if let Some(resume) = self.probes.resume(port) {
                    self.go_on_at(resume)?;
                }
            }
            Exit::In { port: BURN, size: 4 } => {
                self.burn()?;
                flow = Flow::Rest;
            }
            Exit::Hlt => {
                flow = Flow::Rest;
                self.mask();
                if !self.other_interrupt()? {
                    self.time.idle(&self.view)?;
                    self.deliver()?;
                }
            }
            Exit::Mmio { address, size, written } => self.mmio(address, size, written)?,
            Exit::In { port: port::SETTLE, size: 4 } => flow = Flow::Settle,
            Exit::Out { port: CONTROL, size: 4, value } => flow = self.control_word(value)?,
            Exit::In { port, size } => {
                let now_ns = self.now_ns();
                let value = self.machine.bus.read_port(port, size, now_ns);
                self.machine.vcpu.answer_in(value)?;
            }
            Exit::Out { port, size, value } => {
                let now_ns = self.now_ns();
                match self.machine.bus.write_port(port, size, value, now_ns) {
                    Written::Nothing => {}
                    Written::Timer => self.arm_timer(),
                    Written::EndOfInterrupt(0) => {
                        if self.time.in_service(0) {
                            self.time.irq_status(0)?;
                        }
                    }
                    Written::EndOfInterrupt(_) => {}
                    Written::Console => self.machine.console.take(&mut self.machine.bus),
                    Written::Reset => return Err(self.machine.console.reset()),
                }
            }
            Exit::Wrmsr { index, value } => {
                self.machine.pages.register(index, value)?;
                self.machine.pages.publish(self.time.clock())?;
            }
            Exit::Rdmsr { index } => {
                let value = self.machine.pages.registered(index);
                self.machine.vcpu.answer_rdmsr(value)?;
            }
            Exit::Interrupted => {}
            Exit::Shutdown => return Err(GuestError::TripleFault),
            other => return Err(unhandled(other)),
        }
        if self.time.clock().updates() != before {
            self.machine.pages.publish(self.time.clock())?;
        }
        self.tick()?;
        Ok(flow)
    }

    /// Who makes no exit.
    #[cold]
    fn spins(&self, seconds: u64) -> GuestError {
        match self.view.raw().current_task() {
            Ok((0, _)) | Err(_) => GuestError::Spinning(seconds),
            Ok((pid, name)) => {
                let task = format!("{} (pid {pid})", name.as_deref().unwrap_or("of no name"));
                GuestError::TaskSpins { task, seconds }
            }
        }
    }

    fn tick(&mut self) -> Result<(), GuestError> {
        match &mut self.time {
            Time::Run(session) => {
                session.sample(&self.view)?;
                session.tick::<ReadError>()?;
            }
            Time::Prepare(..) => {
                self.control.exits.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if self.control.stopped() {
                    return Err(Stop::Interrupted.into());
                }
                let at_ns = self.time.clock().now_ns();
                if at_ns != self.instant_ns {
                    (self.instant_ns, self.exits_at_instant) = (at_ns, 0);
                }
                self.exits_at_instant += 1;
                if self.exits_at_instant > PREPARE_EXITS {
                    let (exits, last) = (self.exits_at_instant, "before the run".to_owned());
                    return Err(Stop::Stuck { exits, at_ns, last }.into());
                }
            }
        }
        Ok(())
    }

    /// Which lines the guest holds back, asked where no handler runs.
    #[inline]
    fn mask(&mut self) {
        let pic = &self.machine.bus.pic;
        let mut masked = u32::from(pic.is_masked(0));
        for (line, bit) in self.lines.iter().zip(1..) {
            masked |= u32::from(pic.is_masked(line.storm.irq())) << bit;
        }
        self.time.set_masked(masked);
    }

    /// Delivers an interrupt that waits, if the guest takes interrupts.
    #[inline]
    fn deliver(&mut self) -> Result<(), GuestError> {
        if self.time.finished() || !self.time.has_pending() || !self.machine.vcpu.can_inject() {
            return Ok(());
        }
        let now_ns = self.now_ns();
        let Some(number) = self.time.deliver() else { return Ok(()) };
        let bus = &mut self.machine.bus;
        let irq = match number.checked_sub(1).and_then(|i| self.lines.get(usize::from(i))) {
            None => {
                bus.pit.fire(now_ns);
                self.arm_timer();
                0
            }
            Some(line) => {
                bus.raise(line.storm, line.frame.as_deref(), &self.machine.memory)?;
                line.storm.irq()
            }
        };
        self.machine.bus.pic.pulse(irq);
        self.inject()
    }

    /// The vCPU takes what the interrupt controller has for it, if anything.
    fn inject(&mut self) -> Result<(), GuestError> {
        let Machine { bus, vcpu, .. } = &mut self.machine;
        if let Some(vector) = bus.pic.acknowledge() {
            vcpu.interrupt(vector)?;
        }
        Ok(())
    }

    /// An interrupt that is no line of the scenario's (the serial port's) costs no time.
    fn other_interrupt(&mut self) -> Result<bool, GuestError> {
        let Machine { bus, vcpu, .. } = &mut self.machine;
        if bus.pic.deliverable().is_none() || !vcpu.can_inject() {
            return Ok(false);
        }
        self.inject()?;
        Ok(true)
    }

    fn burn(&mut self) -> Result<(), GuestError> {
        let want_ns = self.machine.vcpu.regs()?.rdi.try_into().unwrap_or(u32::MAX);
        self.mask();
        let other = self.other_interrupt()?;
        let mut got_ns = if other { 0 } else { self.time.burn(&self.view, want_ns)? };
        if self.until_interrupt && self.time.has_pending() {
            got_ns = want_ns;
        }
        self.machine.vcpu.answer_in(got_ns)?;
        if other { Ok(()) } else { self.deliver() }
    }

    fn mmio(&mut self, address: u64, size: u8, written: Option<u64>) -> Result<(), GuestError> {
        let Machine { bus, vcpu, memory, .. } = &mut self.machine;
        let Some((device, offset)) = Bus::device_at(address) else {
            return Err(unhandled(Exit::Mmio { address, size, written }));
        };
        match written {
            Some(value) => drop(bus.write_device(device, offset, size, value, memory)?),
            None => {
                if Bus::is_status(offset)
                    && let Some(i) = self.lines.iter().position(|line| line.storm == device)
                    && self.time.in_service(i as u16 + 1)
                {
                    self.time.irq_status(i as u16 + 1)?;
                }
                vcpu.answer_mmio(bus.read_device(device, offset, size)?)?;
            }
        }
        Ok(())
    }

    /// A probe was hit.
    #[inline]
    fn probe(&mut self, port: u16) -> Result<Flow, GuestError> {
        let regs = self.machine.vcpu.regs()?;
        match self.probes.hit(port) {
            None => return Err(unhandled(Exit::Out { port, size: 1, value: 0 })),
            Some(Hit::Load(function)) => {
                if let Time::Run(session) = &mut self.time {
                    let args = [regs.rdi, regs.rsi, regs.rdx];
                    let raw = self.view.raw();
                    let call = raw.load_call(function, args).map_err(Stop::View)?;
                    session.load(raw, call)?;
                }
            }
            Some(Hit::Softirq) => self.softirq(port)?,
            Some(Hit::ClockRead) => {
                let caller = self.linux.return_address(regs.rsp).map_err(Stop::View)?;
                self.probes.clock_read(caller);
            }
            Some(Hit::Tick) => match &mut self.time {
                Time::Run(session) => session.tick_begins(),
                Time::Prepare(engine, _) => self.ticked_ns = Some(engine.clock().now_ns()),
            },
            Some(Hit::Call(function)) => {
                let args = [regs.rdi, regs.rsi, regs.rdx];
                match &mut self.time {
                    Time::Run(session) => {
                        let call = self.view.call(function, args).map_err(Stop::View)?;
                        session.probe(&self.view, call)?;
                    }
                    Time::Prepare(..) => return Ok(Flow::Called(function, args)),
                }
            }
            Some(Hit::User(index)) => {
                self.probes.user_hit(index);
                if let Time::Run(session) = &mut self.time {
                    let args = [regs.rdi, regs.rsi, regs.rdx, regs.rcx, regs.r8, regs.r9];
                    session.user_probe(&self.view, index, args)?;
                }
            }
        }
        Ok(Flow::Go)
    }

    /// The network driver polls: the softirq work that was raised until now is done here, and what is
    /// raised meanwhile is for the next poll, so that the kernel can leave it to ksoftirqd. When an
    /// interrupt comes in between, the guest goes back to the probe after it and asks for the rest.
    fn softirq(&mut self, port: u16) -> Result<(), GuestError> {
        self.mask();
        if self.other_interrupt()? {
            // The poll is asked for again after it.
            return self.probes.address(port).map_or(Ok(()), |at| self.go_on_at(at));
        }
        let poll_ns = self.poll_left_ns.take().unwrap_or_else(|| self.time.softirq_left_ns());
        let left_ns = self.time.softirq(&self.view, poll_ns)?;
        if left_ns == 0 || self.time.finished() || !self.time.has_pending() {
            return Ok(());
        }
        self.poll_left_ns = Some(left_ns);
        if let Some(address) = self.probes.address(port) {
            self.go_on_at(address)?;
        }
        self.deliver()
    }

    /// The guest goes on at `address` instead of behind the probe that it has hit.
    fn go_on_at(&mut self, address: u64) -> Result<(), GuestError> {
        let vcpu = &mut self.machine.vcpu;
        vcpu.complete()?;
        let regs = vcpu.read_regs()?;
        Ok(vcpu.set_regs(&kvm_regs { rip: address, ..regs })?)
    }

    fn control_word(&mut self, word: u32) -> Result<Flow, GuestError> {
        let regs = self.machine.vcpu.regs()?;
        match word {
            control::STARTED => Ok(Flow::Started),
            control::TASK => {
                let known = regs.rdi < MAX_PLAN_TASKS as u64;
                let index = if known {
                    regs.rdi as u16
                } else {
                    return Err(GuestError::UnknownTask(regs.rdi));
                };
                self.view.name_task(index).map_err(Stop::View)?;
                Ok(Flow::Go)
            }
            control::FAILED => Err(self.machine.failed(regs.rdi, regs.rsi, regs.rdx)),
            // Said by port after it was said on the console.
            control::READY_LINUX if regs.rsi == 0 => Ok(Flow::Go),
            other => Err(GuestError::UnknownControl(other)),
        }
    }
}
