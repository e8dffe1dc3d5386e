//! A task: what a process does from its birth on.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use guest_model::draw::draw;
use guest_model::wire::linux::{ETHERTYPE, MAX_NETS, Plan, Task, control};
use guest_model::wire::{NONE, TASK_BLOCKED, TASK_FORK};

use crate::arch;
use crate::report::{Message, OrFail, fail};
use crate::syscall::{self, AF_PACKET, Child, EAGAIN, Errno, Fd, PIPE_SIZE, Poll, Shared, Until};

/// Where each process has the reading end of its own pipe, if it has one.
pub const OWN: Fd = Fd(3);
/// Where each process has the writing end of its partner's pipe, if it has a partner.
pub const PARTNER: Fd = Fd(4);
/// The first descriptor that is the task's own to open.
pub const FREE: Fd = Fd(5);

/// Most frames that are taken from a socket in one go; its buffer holds fewer.
const MAX_FRAMES: usize = 4096;

/// Lives the life of task `index` of a valid plan. `own_pipe`: there is a pipe at [`OWN`].
pub fn run(plan: &Plan, index: u16, own_pipe: bool, shared: &Shared) -> ! {
    let task = &plan.tasks[usize::from(index)];
    let name = Message::new(format_args!("task.{index}"));
    syscall::set_name(name.bytes()).or_fail(format_args!("name task {index}"), "");
    syscall::set_nice(task.nice).or_fail(format_args!("set the nice value of task {index}"), "");
    arch::control_word(control::TASK, [index.into(), 0, 0]);
    let mut alarm = Alarm::new(plan, index, own_pipe);
    wait_for_start(shared);

    let start_ns = shared.start_ns.load(Relaxed).saturating_add(task.start_ns);
    if task.flags & TASK_BLOCKED != 0 {
        alarm.wait();
    } else if task.start_ns != 0 {
        alarm.sleep(Until::At(start_ns));
    }
    let mut rng = task.seed;
    loop {
        let burn_ns = draw(&mut rng, task.burn_min_ns, task.burn_max_ns);
        if task.flags & TASK_FORK != 0 {
            activate_in_child(task, index, burn_ns);
        } else {
            activate(task, burn_ns);
        }
        if task.sleep_max_ns != 0 {
            let sleep_ns = draw(&mut rng, task.sleep_min_ns, task.sleep_max_ns);
            if sleep_ns != 0 {
                alarm.sleep(Until::After(sleep_ns));
            }
        } else if task.blocks(index) {
            alarm.wait();
        }
    }
}

fn wait_for_start(shared: &Shared) {
    shared.waiting.fetch_add(1, Relaxed);
    while shared.started.load(Acquire) == 0 {
        match syscall::futex_wait(&shared.started, 0) {
            Err(EAGAIN) => {}
            result => result.or_fail(format_args!("wait for the start"), "is CONFIG_FUTEX on?"),
        }
    }
}

/// Starts the run, now: wakes all tasks, in the order in which they began to wait.
pub fn start(shared: &Shared) {
    let now_ns = syscall::now().or_fail(format_args!("read the monotonic clock"), "");
    shared.start_ns.store(now_ns, Relaxed);
    shared.started.store(1, Release);
    syscall::futex_wake(&shared.started).or_fail(format_args!("wake the tasks"), "");
}

/// One activation: burns, then wakes the partner.
fn activate(task: &Task, burn_ns: u64) {
    burn(burn_ns);
    if task.wakes != NONE {
        match syscall::write(PARTNER, b"w") {
            // A partner with a full pipe has been woken and not run yet.
            Ok(_) | Err(EAGAIN) => {}
            Err(Errno(n)) => fail(format_args!("wake task {}: errno {n}", task.wakes)),
        }
    }
}

/// One activation of a task whose activations are processes.
fn activate_in_child(task: &Task, index: u16, burn_ns: u64) {
    let what = format_args!("fork task {index}");
    let Some(pid) = syscall::fork(None).or_fail(what, "is the guest's memory full?") else {
        arch::control_word(control::TASK, [index.into(), 0, 0]);
        activate(task, burn_ns);
        syscall::exit(0);
    };
    let ended = syscall::wait(Child::Pid(pid)).or_fail(format_args!("wait for task {index}"), "");
    if let Some((_, status)) = ended
        && status != 0
    {
        fail(format_args!("an activation of task {index} ended with wait status {status:#x}"));
    }
}

/// Asks for CPU time until `ns` are consumed.
pub fn burn(ns: u64) {
    let mut left_ns = ns;
    while left_ns != 0 {
        let want_ns = u32::try_from(left_ns).unwrap_or(u32::MAX);
        left_ns = left_ns.saturating_sub(arch::burn(want_ns).into());
    }
}

/// What may wake a task from its sleep. As in the bundled guest, wake-ups do not add up, one that comes
/// while the task runs counts if it then waits to be woken, and not if it sleeps for a time, and one that
/// comes in a timed sleep ends it.
struct Alarm {
    /// There is a pipe at [`OWN`].
    pipe: bool,
    /// Sockets that receive the frames of a network device.
    sockets: [Option<Fd>; MAX_NETS],
    /// For a timed sleep that can be cut short. `ppoll`'s own time limit is not exact.
    timer: Option<Fd>,
}

impl Alarm {
    fn new(plan: &Plan, index: u16, pipe: bool) -> Self {
        let task = &plan.tasks[usize::from(index)];
        let mut alarm = Self { pipe, sockets: [None; MAX_NETS], timer: None };
        let devices = (0..).zip(plan.net_wakes).zip(&mut alarm.sockets);
        for ((k, woken), socket) in devices.filter(|((_, woken), _)| *woken == index) {
            let opened = syscall::socket(AF_PACKET, ETHERTYPE + k);
            let what = format_args!("open a packet socket for task {woken}");
            *socket = Some(opened.or_fail(what, "is CONFIG_PACKET on?"));
        }
        let sources = alarm.sources().count();
        if sources != 0 && (task.sleep_max_ns != 0 || task.start_ns != 0) {
            let what = format_args!("make a timer for task {index}");
            alarm.timer = Some(syscall::timer().or_fail(what, "is CONFIG_TIMERFD on?"));
        }
        // One that only ever waits for its one source waits in read(), and must not return from it.
        if pipe && (sources > 1 || alarm.timer.is_some()) {
            syscall::set_nonblocking(OWN)
                .or_fail(format_args!("set up the pipe of task {index}"), "");
        }
        alarm
    }

    /// All but the timer.
    fn sources(&self) -> impl Iterator<Item = Fd> {
        self.pipe.then_some(OWN).into_iter().chain(self.sockets.into_iter().flatten())
    }

    /// Waits to be woken, if that has not happened since the last wait; for ever, if nothing can.
    fn wait(&self) {
        let mut sources = self.sources();
        match (sources.next(), sources.next()) {
            (Some(only), None) if self.timer.is_none() => {
                let read = syscall::read(only, &mut [0; PIPE_SIZE]);
                read.or_fail(format_args!("wait to be woken"), "");
                if only == OWN {
                    return;
                }
            }
            _ => self.poll(None),
        }
        self.drain();
    }

    /// Sleeps until the time has come or the task is woken.
    fn sleep(&mut self, until: Until) {
        let Some(timer) = self.timer else {
            return syscall::sleep(until).or_fail(format_args!("sleep"), "");
        };
        self.drain();
        syscall::set_timer(timer, Some(until)).or_fail(format_args!("set a timer"), "");
        self.poll(Some(timer));
        syscall::set_timer(timer, None).or_fail(format_args!("stop a timer"), "");
        self.drain();
    }

    fn poll(&self, timer: Option<Fd>) {
        let mut polls = [Poll::readable(OWN); MAX_NETS + 2];
        let mut used = 0;
        for (poll, fd) in polls.iter_mut().zip(self.sources().chain(timer)) {
            *poll = Poll::readable(fd);
            used += 1;
        }
        syscall::poll(&mut polls[..used]).or_fail(format_args!("wait to be woken"), "");
    }

    /// Forgets what has woken the task.
    fn drain(&self) {
        if self.pipe {
            // Empty or not: a pipe holds no more than this.
            let _ = syscall::read(OWN, &mut [0; PIPE_SIZE]);
        }
        for socket in self.sockets.into_iter().flatten() {
            let _ = (0..MAX_FRAMES).find(|_| syscall::receive(socket).is_err());
        }
    }
}
