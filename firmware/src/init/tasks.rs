//! All tasks, as PID 1 sees them: their creation, their start, their unexpected ends.

use core::sync::atomic::Ordering::Relaxed;

use guest_model::wire::linux::MAX_GROUPS;
use guest_model::wire::linux::{MAX_PLAN_TASKS, Plan};

use crate::report::{OrFail, fail};
use crate::syscall::{self, Child, ECHILD, Fd, Shared, Until};
use crate::task::{self, FREE, OWN, PARTNER};

/// Longest wait for a task to be ready, in steps of [`STEP_NS`].
const MAX_STEPS: u32 = 10_000;
/// 1 ms.
const STEP_NS: u64 = 1_000_000;

/// The tasks, which wait for the start.
pub struct Tasks {
    /// Pids by index in the plan; 0 where there is no task.
    pids: [u32; MAX_PLAN_TASKS],
    shared: &'static Shared,
}

/// Both ends of a task's pipe.
#[derive(Clone, Copy)]
struct Pipe {
    read: Fd,
    write: Fd,
}

impl Tasks {
    /// Creates the tasks of a valid plan, each in its group, one after the other: they wait for the start
    /// in the plan's order, and it wakes them in that order. When this returns, all of them wait.
    pub fn create(plan: &Plan, groups: &[Fd; MAX_GROUPS]) -> Self {
        let shared = syscall::shared().or_fail(format_args!("map a shared page"), "");
        let pipes = pipes(plan);
        let mut tasks = Self { pids: [0; MAX_PLAN_TASKS], shared };
        for (index, spec) in (0..plan.nr_tasks).zip(&plan.tasks) {
            let pipe = pipes[usize::from(index)];
            let group = groups[usize::from(spec.group)];
            let child = syscall::fork(Some(group)).or_fail(
                format_args!("create task {index} in group {}", spec.group),
                "is the guest's memory full?",
            );
            let Some(pid) = child else {
                let partner = pipes.get(usize::from(spec.wakes)).copied().flatten();
                take_pipes(index, pipe, partner);
                task::run(plan, index, pipe.is_some(), shared);
            };
            tasks.pids[usize::from(index)] = pid;
            tasks.wait_for(index);
        }
        syscall::close_from(OWN).or_fail(format_args!("close the tasks' pipes"), "");
        // The last task has said that it waits; now it does.
        syscall::sleep(Until::After(STEP_NS)).or_fail(format_args!("wait for the tasks"), "");
        tasks
    }

    /// Gives the CPU up until task `index` waits too.
    fn wait_for(&self, index: u16) {
        for _ in 0..MAX_STEPS {
            syscall::sleep(Until::After(STEP_NS)).or_fail(format_args!("wait for a task"), "");
            let ended = syscall::wait(Child::Ended);
            if let Some(end) = ended.or_fail(format_args!("wait for a task"), "") {
                self.ended(end);
            }
            if self.shared.waiting.load(Relaxed) > index.into() {
                return;
            }
        }
        fail(format_args!("task {index} is not ready after {MAX_STEPS} ms"));
    }

    /// Starts the run and waits for ever.
    pub fn run(&self) -> ! {
        task::start(self.shared);
        loop {
            match syscall::wait(Child::Any) {
                Err(ECHILD) => {
                    // No task, and none to come.
                    let _ = syscall::sleep(Until::After(u64::from(u32::MAX) * 1_000_000_000));
                }
                ended => {
                    if let Some(end) = ended.or_fail(format_args!("wait for the tasks"), "") {
                        self.ended(end);
                    }
                }
            }
        }
    }

    /// A process has ended: a task never does.
    fn ended(&self, (pid, status): (u32, u32)) {
        if let Some(index) = self.pids.iter().position(|p| *p == pid) {
            fail(format_args!("task {index}, pid {pid}, ended with wait status {status:#x}"));
        }
    }
}

/// A pipe for each task that another wakes, which is the one that keeps the writing end open.
fn pipes(plan: &Plan) -> [Option<Pipe>; MAX_PLAN_TASKS] {
    let mut pipes = [None; MAX_PLAN_TASKS];
    for waker in &plan.tasks[..plan.nr_tasks.into()] {
        let woken = waker.wakes;
        if let Some(pipe @ None) = pipes.get_mut(usize::from(woken)) {
            let made = syscall::pipe().and_then(|(read, write)| {
                syscall::set_nonblocking(write)?;
                Ok(Pipe { read, write })
            });
            *pipe = Some(made.or_fail(format_args!("make the pipe of task {woken}"), ""));
        }
    }
    pipes
}

/// In a new task: keeps its own pipe and its partner's, where [`task::run`] looks for them, and closes
/// all else.
fn take_pipes(index: u16, own: Option<Pipe>, partner: Option<Pipe>) {
    let taken = own
        .map_or(Ok(()), |pipe| syscall::dup_to(pipe.read, OWN))
        .and_then(|()| partner.map_or(Ok(()), |pipe| syscall::dup_to(pipe.write, PARTNER)))
        .and_then(|()| syscall::close_from(FREE));
    taken.or_fail(format_args!("set up the pipes of task {index}"), "");
}
