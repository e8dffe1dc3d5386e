//! Bringing a Linux guest up, in real time: from its first instruction until it says that it is ready.
//!
//! The guest's clock runs with its TSC, its timer with the host's clock. An interrupt is delivered
//! as soon as the guest takes it. At the end time is stopped for good: the clock pages show the guest
//! time of that instant and move only when the host says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use guest_model::wire::linux::control;
use guest_model::wire::port::CONTROL;

use super::bus::{Bus, Written};
use super::machine::Machine;
use crate::guest::{GuestError, enter, unhandled};
use crate::kvm::Exit;
use crate::machine::clock_pages::{MSR_KVM_SYSTEM_TIME_NEW, TscScale};
use crate::session::{Control, Stop};

/// A guest that is ready, its time stopped.
#[derive(Debug)]
pub struct Ready {
    /// Guest virtual address of the buffer that takes the plan; `None` for an initrd of the user's.
    pub buffer: Option<Buffer>,
}

/// Where PID 1 wants its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Guest virtual address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

/// The steal counter when time is stopped: a number that nothing else in the guest has, so that the
/// member which takes it is known to be the right one.
pub const STEAL_ORIGIN_NS: u64 = 1_000_003;

/// Latest time at which a guest's clock may be stopped, ns: 36 years leave room for a run.
pub const MAX_ORIGIN_NS: u64 = 1 << 60;

/// Longest sleep of a halted guest between two looks at whether the user wants to stop.
const LOOK: Duration = Duration::from_millis(20);

/// Runs `machine` until its guest is ready, for `patience` at most.
pub fn bring_up(
    machine: &mut Machine,
    control: &Arc<Control>,
    patience: Duration,
) -> Result<Ready, GuestError> {
    let mut host = HostTime::start(control.clone());
    // From where the TSC is 0.
    let scale = TscScale { khz: machine.vcpu.tsc_khz()?, tsc: 0, origin_ns: 0 };
    let mut held = false;
    loop {
        let exit = match enter(&mut machine.vcpu, control) {
            // An early kernel may be busy for long without asking for anything; patience is what ends it.
            Err(GuestError::Spinning(_)) => Exit::Interrupted,
            entered => entered?,
        };
        let mut halted = false;
        match exit {
            Exit::Hlt => halted = true,
            Exit::In { port, size } => {
                let value = machine.bus.read_port(port, size, host.now_ns());
                machine.vcpu.answer_in(value)?;
            }
            Exit::Out { port: CONTROL, size: 4, value } => {
                let regs = machine.vcpu.regs()?;
                match value {
                    control::READY_LINUX => {
                        let buffer = Buffer { address: regs.rdi, size: regs.rsi };
                        let now_ns = host.now_ns();
                        drop(host);
                        // Only who brings a buffer knows that it is asked for.
                        let told = if buffer.size != 0 { regs.rdx } else { 0 };
                        freeze(machine, scale, told, now_ns)?;
                        return Ok(Ready { buffer: (buffer.size != 0).then_some(buffer) });
                    }
                    control::HOLD => {
                        held = true;
                        machine.vcpu.request_interrupt_window(false);
                    }
                    control::FAILED => {
                        return Err(machine.failed(regs.rdi, regs.rsi, regs.rdx));
                    }
                    other => return Err(GuestError::UnknownControl(other)),
                }
            }
            Exit::Out { port, size, value } => {
                match machine.bus.write_port(port, size, value, host.now_ns()) {
                    Written::Reset => return Err(machine.console.reset()),
                    Written::Timer => host.wake_at(machine.bus.pit.deadline_ns()),
                    Written::Console => machine.console.take(&mut machine.bus),
                    Written::Nothing | Written::EndOfInterrupt(_) => {}
                }
            }
            Exit::Mmio { address, size, written } => {
                let Machine { bus, vcpu, memory, .. } = &mut *machine;
                match (Bus::device_at(address), written) {
                    (Some((device, offset)), Some(value)) => {
                        bus.write_device(device, offset, size, value, memory)?;
                    }
                    (Some((device, offset)), None) => {
                        vcpu.answer_mmio(bus.read_device(device, offset, size)?)?;
                    }
                    // Early boot looks for devices of a PC that are not here.
                    (None, Some(_)) => {}
                    (None, None) => vcpu.answer_mmio(u64::MAX)?,
                }
            }
            Exit::Wrmsr { index, value } => {
                machine.pages.register(index, value)?;
                if index == MSR_KVM_SYSTEM_TIME_NEW {
                    machine.pages.run_with_tsc(scale)?;
                }
            }
            Exit::Rdmsr { index } => {
                let value = machine.pages.registered(index);
                machine.vcpu.answer_rdmsr(value)?;
            }
            Exit::InterruptWindow | Exit::Interrupted => {}
            Exit::Shutdown => return Err(GuestError::TripleFault),
            other => return Err(unhandled(other)),
        }
        control.exits.fetch_add(1, Relaxed);
        if control.stopped() {
            return Err(Stop::Interrupted.into());
        }
        if machine.console.said_ready() {
            let now_ns = host.now_ns();
            drop(host);
            freeze(machine, scale, 0, now_ns)?;
            return Ok(Ready { buffer: None });
        }
        if host.started.elapsed() > patience {
            return Err(GuestError::NotReady {
                seconds: patience.as_secs(),
                console: machine.console.last_lines(),
            });
        }
        if held {
            continue;
        }
        deliver(machine, &mut host)?;
        if halted && machine.bus.pic.deliverable().is_none() && machine.vcpu.can_inject() {
            host.sleep(machine.bus.pit.deadline_ns());
            deliver(machine, &mut host)?;
        }
    }
}

/// An interrupt that is due is queued, or asked for when the guest takes it.
fn deliver(machine: &mut Machine, host: &mut HostTime) -> Result<(), GuestError> {
    let Machine { bus, vcpu, .. } = machine;
    let now_ns = host.now_ns();
    if bus.pit.deadline_ns().is_some_and(|at| at <= now_ns) {
        bus.pit.fire(now_ns);
        bus.pic.pulse(0);
        host.wake_at(bus.pit.deadline_ns());
    }
    if bus.pic.deliverable().is_none() {
        return Ok(());
    }
    let now = vcpu.can_inject();
    vcpu.request_interrupt_window(!now);
    if now && let Some(vector) = bus.pic.acknowledge() {
        vcpu.interrupt(vector)?;
    }
    Ok(())
}

/// Stops the guest's time at this instant, for good. `told` is the guest's own reading of its TSC; where it
/// has made none it is 0, and the host's takes its place. That one may be off: a host whose TSC is not
/// stable moves the guest's. What the guest's kernel has seen of time decides in the end, once that can
/// be read.
fn freeze(
    machine: &mut Machine,
    scale: TscScale,
    told: u64,
    host_ns: u64,
) -> Result<(), GuestError> {
    if !machine.pages.has_clock() {
        return Err(GuestError::NoKvmClock);
    }
    machine.vcpu.request_interrupt_window(false);
    machine.vcpu.complete()?;
    let tsc = if told != 0 { told } else { machine.vcpu.tsc()? };
    let now_ns = scale.system_time_ns(tsc);
    if now_ns > MAX_ORIGIN_NS {
        return Err(GuestError::Clock { ns: now_ns });
    }
    machine.pages.freeze()?;
    machine.pages.set_origin(now_ns, STEAL_ORIGIN_NS);
    machine.bus.pit.rebase(host_ns, now_ns);
    machine.pages.publish(&crate::clock::GuestClock::default())?;
    Ok(())
}

/// The host's clock since the guest's first instruction, and a thread that makes the vCPU exit when the
/// guest's timer is due.
struct HostTime {
    started: Instant,
    alarm: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
    waker: Option<Thread>,
}

/// No alarm.
const NEVER: u64 = u64::MAX;
/// The thread is to end.
const END: u64 = 0;

impl HostTime {
    fn start(control: Arc<Control>) -> Self {
        let started = Instant::now();
        let alarm = Arc::new(AtomicU64::new(NEVER));
        let at = alarm.clone();
        let ring = move || {
            loop {
                match at.load(Relaxed) {
                    END => return,
                    NEVER => std::thread::park(),
                    due => {
                        let now = started.elapsed().as_nanos() as u64;
                        if now < due {
                            std::thread::park_timeout(Duration::from_nanos(due - now));
                        } else if at.compare_exchange(due, NEVER, Relaxed, Relaxed).is_ok() {
                            control.kick();
                        }
                    }
                }
            }
        };
        // Without it the guest's timer is late, which a boot survives.
        let thread = std::thread::Builder::new().name("timer".into()).spawn(ring).ok();
        let waker = thread.as_ref().map(|t| t.thread().clone());
        Self { started, alarm, thread, waker }
    }

    /// Sleeps until `at_ns`, a little at most: a guest that halts again is looked at in between.
    fn sleep(&self, at_ns: Option<u64>) {
        let now_ns = self.now_ns();
        let wait = at_ns.map_or(LOOK, |at| Duration::from_nanos(at.saturating_sub(now_ns)));
        std::thread::sleep(wait.min(LOOK));
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn wake_at(&mut self, at_ns: Option<u64>) {
        self.set(at_ns.unwrap_or(NEVER).max(1));
    }

    fn set(&self, at_ns: u64) {
        self.alarm.store(at_ns, Relaxed);
        if let Some(thread) = &self.waker {
            thread.unpark();
        }
    }
}

impl Drop for HostTime {
    fn drop(&mut self) {
        self.set(END);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
