//! Stopping a vCPU from another thread: a signal that ends `KVM_RUN`, and `kvm_run.immediate_exit` for
//! a vCPU that is about to enter it (KVM API 5).
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler};

use super::VcpuError;

/// Stops a vCPU from any thread.
#[derive(Clone, Debug, Default)]
pub struct VcpuKick(Arc<Mutex<Target>>);

/// Where a kick goes.
#[derive(Debug, Default)]
struct Target {
    /// `kvm_run.immediate_exit`, for as long as the vCPU lives.
    immediate_exit: Option<NonNull<u8>>,
    thread: libc::pid_t,
}

// SAFETY: the pointer is used under the mutex only, and is removed under it before the page goes.
unsafe impl Send for Target {}

/// The handler does nothing: the signal's arrival ends KVM_RUN with EINTR.
extern "C" fn on_kick(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

impl VcpuKick {
    /// Makes the vCPU exit with [`super::Exit::Interrupted`], now or when it next runs; once or, if the
    /// signal comes late, twice. Does nothing once the vCPU is gone.
    pub fn kick(&self) {
        let target = self.target();
        let Some(immediate_exit) = target.immediate_exit else { return };
        // SAFETY: the byte is in the shared page, which lives for as long as the target has its
        // address, and a byte is always aligned. The kernel reads it when KVM_RUN is entered. The
        // vCPU's thread has references to the whole page, which is all that kvm-ioctls gives, but
        // neither it nor `Vcpu` reads or writes this byte, or copies the whole page, through them:
        // every access of this process is atomic and here, so none races with another.
        unsafe { AtomicU8::from_ptr(immediate_exit.as_ptr()) }.store(1, Ordering::Release);
        // SAFETY: tgkill takes plain numbers; a thread that has ended gives ESRCH, and the signal has a
        // handler since `aim`.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), target.thread, SIGRTMIN()) };
    }

    /// A kick has arrived. What was asked before it (a flag that the caller looks at next) is seen, as
    /// the lock orders kicks and this; a kick that comes later sets the byte anew.
    pub(super) fn acknowledge(&self) {
        if let Some(immediate_exit) = self.target().immediate_exit {
            // SAFETY: as in `kick`.
            unsafe { AtomicU8::from_ptr(immediate_exit.as_ptr()) }.store(0, Ordering::Release);
        }
    }

    /// From now on kicks go to the calling thread and the vCPU whose shared page has `immediate_exit`.
    pub(super) fn aim(&self, immediate_exit: NonNull<u8>) -> Result<(), VcpuError> {
        let signal = SIGRTMIN();
        register_signal_handler(signal, on_kick)
            .map_err(|e| VcpuError::KickSignal { signal, source: e.into() })?;
        // SAFETY: gettid has no precondition.
        let thread = unsafe { libc::gettid() };
        *self.target() = Target { immediate_exit: Some(immediate_exit), thread };
        Ok(())
    }

    /// The vCPU is about to go.
    pub(super) fn disarm(&self) {
        self.target().immediate_exit = None;
    }

    fn target(&self) -> MutexGuard<'_, Target> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
