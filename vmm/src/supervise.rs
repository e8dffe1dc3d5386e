//! The main thread: an event loop over Ctrl-C, the progress and watchdog timers and the end of the
//! run, while the guest runs on a thread of its own.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
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

/// Ctrl-C and SIGTERM: the first ends the run with a report, one that comes later ends the program.
struct Interrupts {
    pipe: UnixStream,
    control: Arc<Control>,
    first: Option<Instant>,
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
                let mut bytes = [0; 16];
                let _ = io::Read::read(&mut s.pipe, &mut bytes);
                let first = *s.first.get_or_insert_with(Instant::now);
                if first.elapsed() > ONE_REQUEST {
                    // The user insists; what has reached the disk stays.
                    std::process::exit(130);
                }
                s.control.stop();
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
    let (pipe, signalled) = setup("make a socket pair for signals", UnixStream::pair())?;
    setup("make the signal socket non-blocking", pipe.set_nonblocking(true))?;
    let mut handlers = Vec::new();
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let end = setup("copy the signal socket", signalled.try_clone())?;
        handlers.push(setup(
            "install a signal handler",
            signal_hook::low_level::pipe::register(signal, end),
        )?);
    }
    let event = setup("make an event descriptor", EventFd::new(EFD_NONBLOCK))?;
    let finished = setup("copy an event descriptor", event.try_clone())?;

    let timer = |period: Duration| -> Result<TimerFd, SuperviseError> {
        let mut timer = setup("make a timer", TimerFd::new())?;
        setup("start a timer", timer.reset(period, Some(period)))?;
        Ok(timer)
    };
    let mut sources = vec![
        Source::Interrupts(Interrupts { pipe, control: control.clone(), first: None }),
        Source::Watchdog(Watchdog {
            timer: timer(WATCHDOG_STEP.min(watchdog))?,
            control: control.clone(),
            limit: watchdog,
            last_exits: 0,
            silent: Duration::ZERO,
        }),
    ];
    if let Some(report) = report {
        let progress = Progress { timer: timer(PROGRESS)?, report, control: control.clone() };
        sources.push(Source::Progress(progress));
    }
    let mut manager = EventManager::new().map_err(|e| SuperviseError::Loop(format!("{e:?}")))?;
    let mut add = |source| {
        let id = manager.add_subscriber(Subscriber { source, registered: false });
        match manager.subscriber_mut(id) {
            Ok(s) if s.registered => Ok(id),
            _ => Err(SuperviseError::Loop("epoll takes no more descriptors".into())),
        }
    };
    for source in sources {
        add(source)?;
    }
    let done = add(Source::Done(Done { event, done: false }))?;

    let spawned = std::thread::Builder::new().name("vcpu".into()).spawn(move || {
        // Also when `work` panics: the main thread must not wait for ever.
        let _signal = OnDrop(finished);
        work()
    });
    let thread = setup("start the guest's thread", spawned)?;
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
    for id in handlers {
        signal_hook::low_level::unregister(id);
    }
    thread.join().map_err(|_| SuperviseError::Panicked)
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
