//! The main thread: an event loop over Ctrl-C, the progress and watchdog timers and the end of the
//! run, while the guest runs on a thread of its own.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use event_manager::{EventManager, EventOps, Events, MutEventSubscriber, SubscriberOps};
use thiserror::Error;
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use vmm_sys_util::timerfd::TimerFd;

use crate::session::Control;

/// Distance of two progress reports.
const PROGRESS: Duration = Duration::from_millis(100);

/// The main thread cannot watch the run.
#[derive(Debug, Error)]
pub enum SuperviseError {
    /// No file descriptor, timer or thread.
    #[error("{what}")]
    Setup {
        /// What was tried.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The event loop failed.
    #[error("event loop: {0}")]
    Loop(String),
    /// The guest's thread panicked: a fault of this program.
    #[error("the guest's thread panicked: this is a bug in rqscope")]
    Panicked,
}

fn setup<T, E: Into<io::Error>>(
    what: &'static str,
    result: Result<T, E>,
) -> Result<T, SuperviseError> {
    result.map_err(|e| SuperviseError::Setup { what, source: e.into() })
}

/// Ctrl-C, SIGTERM and SIGHUP: the first ends the run with a report, one that comes later ends the program.
struct Interrupts {
    pipe: UnixStream,
    control: Arc<Control>,
    first: Option<Instant>,
    handlers: Handlers,
}

/// Signal handlers of this program, until this is dropped.
#[derive(Default)]
struct Handlers(Vec<signal_hook::SigId>);

impl Drop for Handlers {
    fn drop(&mut self) {
        for id in self.0.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

impl Interrupts {
    fn new(control: Arc<Control>) -> Result<Self, SuperviseError> {
        let (pipe, signalled) = setup("make a socket pair for signals", UnixStream::pair())?;
        setup("make the signal socket non-blocking", pipe.set_nonblocking(true))?;
        let mut handlers = Handlers::default();
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let end = setup("copy the signal socket", signalled.try_clone())?;
            let id = signal_hook::low_level::pipe::register(signal, end);
            handlers.0.push(setup("install a signal handler", id)?);
        }
        Ok(Self { pipe, control, first: None, handlers })
    }

    /// Takes a signal, and ends the program if the user insists: what has reached the disk stays. False
    /// if none has come; a pipe that blocks waits for one.
    fn take(&mut self) -> bool {
        if io::Read::read_exact(&mut self.pipe, &mut [0]).is_err() {
            return false;
        }
        if self.first.get_or_insert_with(Instant::now).elapsed() > ONE_REQUEST {
            std::process::exit(130);
        }
        true
    }

    /// The run is over, and what comes now ends the program, which may wait for a reader or a disk. A
    /// signal that came with the end is one for the run, which is over anyway.
    fn outlive_the_run(mut self) -> io::Result<()> {
        self.take();
        self.pipe.set_nonblocking(false)?;
        if self.first.is_none() {
            self.first = Instant::now().checked_sub(2 * ONE_REQUEST);
        }
        let watch = move || {
            while self.take() {}
            drop(self.handlers);
        };
        std::thread::Builder::new().name("signals".into()).spawn(watch).map(drop)
    }
}

/// Signals this close are one request: timeout(1), for one, signals a child and then its whole group.
const ONE_REQUEST: Duration = Duration::from_millis(500);

/// Shows how far a run is.
pub type Report = Box<dyn FnMut(&Control) + Send>;

/// Calls `report` ten times a second.
struct Progress {
    timer: TimerFd,
    report: Report,
    control: Arc<Control>,
}

/// Ends a run whose guest makes no exit. A host that is held up elsewhere, by a slow disk for one, is
/// not the guest's fault and is not counted; nor is the model, which is never inside KVM_RUN.
struct Watchdog {
    timer: TimerFd,
    control: Arc<Control>,
    limit: Duration,
    last_exits: u64,
    silent: Duration,
}

/// The guest's thread is done.
struct Done {
    event: EventFd,
    done: bool,
}

/// A source of events, and whether epoll has taken it.
struct Subscriber {
    source: Source,
    registered: bool,
}

enum Source {
    Interrupts(Interrupts),
    Progress(Progress),
    Watchdog(Watchdog),
    Done(Done),
}

impl Watchdog {
    /// One step of its timer is over.
    fn look(&mut self) {
        let control = &self.control;
        let exits = control.exits.load(Relaxed);
        let spins = exits == self.last_exits && control.in_guest.load(Relaxed);
        self.silent = if spins { self.silent + WATCHDOG_STEP } else { Duration::ZERO };
        self.last_exits = exits;
        if self.silent >= self.limit {
            control.spinning_s.store(self.limit.as_secs().max(1), Relaxed);
            control.kick();
        } else {
            control.spinning_s.store(0, Relaxed);
        }
    }
}

impl Subscriber {
    fn fd(&self) -> RawFd {
        match &self.source {
            Source::Interrupts(s) => s.pipe.as_raw_fd(),
            Source::Progress(s) => s.timer.as_raw_fd(),
            Source::Watchdog(s) => s.timer.as_raw_fd(),
            Source::Done(s) => s.event.as_raw_fd(),
        }
    }
}

/// How often the watchdog looks.
const WATCHDOG_STEP: Duration = Duration::from_millis(500);

impl MutEventSubscriber for Subscriber {
    fn init(&mut self, ops: &mut EventOps<'_>) {
        self.registered = ops.add(Events::with_data_raw(self.fd(), 0, EventSet::IN)).is_ok();
    }

    fn process(&mut self, _: Events, _: &mut EventOps<'_>) {
        match &mut self.source {
            Source::Interrupts(s) => {
                if s.take() {
                    s.control.stop();
                }
            }
            Source::Progress(s) => {
                let _ = s.timer.wait();
                (s.report)(&s.control);
            }
            Source::Watchdog(s) => {
                let _ = s.timer.wait();
                s.look();
            }
            Source::Done(s) => {
                let _ = s.event.read();
                s.done = true;
            }
        }
    }
}

/// Runs `work` on a thread of its own and watches over it until it is done: Ctrl-C asks it to stop,
/// `watchdog` is how long its guest may run without an exit, `report` is called ten times a second.
pub fn supervise<T: Send + 'static>(
    control: &Arc<Control>,
    watchdog: Duration,
    report: Option<Report>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, SuperviseError> {
    let interrupts = Interrupts::new(control.clone())?;
    let event = setup("make an event descriptor", EventFd::new(EFD_NONBLOCK))?;
    let finished = setup("copy an event descriptor", event.try_clone())?;

    let timer = |period: Duration| -> Result<TimerFd, SuperviseError> {
        let mut timer = setup("make a timer", TimerFd::new())?;
        setup("start a timer", timer.reset(period, Some(period)))?;
        Ok(timer)
    };
    let watchdog = Watchdog {
        timer: timer(WATCHDOG_STEP.min(watchdog))?,
        control: control.clone(),
        limit: watchdog,
        last_exits: 0,
        silent: Duration::ZERO,
    };
    let mut manager = EventManager::new().map_err(|e| SuperviseError::Loop(format!("{e:?}")))?;
    let mut add = |source| {
        let id = manager.add_subscriber(Subscriber { source, registered: false });
        match manager.subscriber_mut(id) {
            Ok(s) if s.registered => Ok(id),
            _ => Err(SuperviseError::Loop("epoll takes no more descriptors".into())),
        }
    };
    let interrupts = add(Source::Interrupts(interrupts))?;
    add(Source::Watchdog(watchdog))?;
    if let Some(report) = report {
        let timer = timer(PROGRESS)?;
        add(Source::Progress(Progress { timer, report, control: control.clone() }))?;
    }
    let done = add(Source::Done(Done { event, done: false }))?;

    let spawned = std::thread::Builder::new().name("vcpu".into()).spawn(move || {
        // Also when `work` panics: the main thread must not wait for ever.
        let _signal = OnDrop(finished);
        work()
    });
    let thread = setup("start the guest's thread", spawned)?;
    let mut guest = Guest { thread: Some(thread), control };
    loop {
        manager.run().map_err(|e| SuperviseError::Loop(format!("{e:?}")))?;
        let over = match manager.subscriber_mut(done) {
            Ok(Subscriber { source: Source::Done(d), .. }) => d.done,
            _ => true,
        };
        if over {
            break;
        }
    }
    if let Ok(Subscriber { source: Source::Interrupts(i), .. }) =
        manager.remove_subscriber(interrupts)
    {
        // Without it signals are not heard from here on, which is no reason to lose what was found.
        let _ = i.outlive_the_run();
    }
    guest.join().unwrap_or(Err(SuperviseError::Panicked))
}

/// The guest's thread: not left behind when the main thread cannot go on.
struct Guest<'a, T> {
    thread: Option<JoinHandle<T>>,
    control: &'a Control,
}

impl<T> Guest<'_, T> {
    fn join(&mut self) -> Option<Result<T, SuperviseError>> {
        Some(self.thread.take()?.join().map_err(|_| SuperviseError::Panicked))
    }
}

impl<T> Drop for Guest<'_, T> {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.control.stop();
            let _ = self.join();
        }
    }
}

struct OnDrop(EventFd);

impl Drop for OnDrop {
    fn drop(&mut self) {
        // A counter of one cannot overflow.
        let _ = self.0.write(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watchdog() -> Watchdog {
        let timer = TimerFd::new().unwrap();
        let (limit, silent) = (2 * WATCHDOG_STEP, Duration::ZERO);
        Watchdog { timer, control: Arc::default(), limit, last_exits: 0, silent }
    }

    #[test]
    fn only_a_vcpu_that_stays_inside_kvm_run_spins() {
        let mut w = watchdog();
        for _ in 0..9 {
            w.look();
        }
        assert_eq!(w.control.spinning_s.load(Relaxed), 0, "the host is held up, not the guest");
        w.control.in_guest.store(true, Relaxed);
        w.look();
        assert_eq!(w.control.spinning_s.load(Relaxed), 0);
        w.look();
        assert_eq!(w.control.spinning_s.load(Relaxed), 1);
    }

    #[test]
    fn a_guest_that_exits_again_spins_no_more() {
        let mut w = watchdog();
        w.control.in_guest.store(true, Relaxed);
        w.look();
        w.look();
        assert_eq!(w.control.spinning_s.load(Relaxed), 1);
        w.control.exits.store(1, Relaxed);
        w.look();
        assert_eq!(w.control.spinning_s.load(Relaxed), 0);
    }
}
