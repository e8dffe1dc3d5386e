//! The system calls that PID 1 and its tasks make, each as a safe function.
//!
//! Numbers: arch/x86/entry/syscalls/syscall_64.tbl. Constants and layouts: include/uapi. Both are ABI.
#![allow(unsafe_code)]

use core::arch::asm;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// An error number of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub u16);

/// No such device.
pub const ENODEV: Errno = Errno(19);
/// Would block, or nothing there.
pub const EAGAIN: Errno = Errno(11);
/// No child process.
pub const ECHILD: Errno = Errno(10);

/// A file descriptor. Never closed by being dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fd(pub i32);

/// The working directory, in the place of a directory's descriptor (`AT_FDCWD`).
pub const CWD: Fd = Fd(-100);

pub const O_RDONLY: u32 = 0;
pub const O_WRONLY: u32 = 1;
pub const O_RDWR: u32 = 2;
pub const O_DIRECTORY: u32 = 0o200_000;

pub const AF_INET: u16 = 2;
pub const AF_PACKET: u16 = 17;

/// Length of an interface's name with its NUL (`IFNAMSIZ`).
pub const INTERFACE_NAME: usize = 16;

type Result<T> = core::result::Result<T, Errno>;

/// Makes system call `number`.
///
/// # Safety
/// What the arguments point to must be as the call wants it, for as long as it does.
unsafe fn syscall(number: usize, args: [usize; 6]) -> Result<usize> {
    let answer: isize;
    // SAFETY: by the caller. The kernel preserves all registers but rax, rcx and r11
    // (arch/x86/entry/entry_64.S).
    unsafe {
        asm!("syscall", inlateout("rax") number => answer, in("rdi") args[0], in("rsi") args[1],
            in("rdx") args[2], in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    // Errors are -4095 to -1 (include/linux/err.h `MAX_ERRNO`).
    match answer {
        -4095..=-1 => Err(Errno(-answer as u16)),
        _ => Ok(answer as usize),
    }
}

/// System calls whose arguments are numbers only; of `fcntl` and `prctl`, the commands used here.
#[derive(Clone, Copy)]
enum Plain {
    Close = 3,
    Dup2 = 33,
    Getpid = 39,
    Socket = 41,
    Fcntl = 72,
    Setpriority = 141,
    Mlockall = 151,
    Prctl = 157,
    Reboot = 169,
    Ioperm = 173,
    ExitGroup = 231,
    TimerfdCreate = 283,
    CloseRange = 436,
}

/// Makes a system call whose arguments are numbers; what it does not take is 0.
fn plain<const N: usize>(call: Plain, arguments: [usize; N]) -> Result<usize> {
    let mut args = [0; 6];
    args[..N].copy_from_slice(&arguments);
    // SAFETY: none of these calls takes an address or touches this process's memory.
    unsafe { syscall(call as usize, args) }
}

/// `mount(2)` of a file system without options.
pub fn mount(kind: &CStr, target: &CStr) -> Result<()> {
    let (kind, target) = (kind.as_ptr() as usize, target.as_ptr() as usize);
    // SAFETY: C strings that outlive the call.
    unsafe { syscall(165, [kind, target, kind, 0, 0, 0]) }.map(drop)
}

/// `mkdirat(2)`, mode 0755.
pub fn mkdir(dir: Fd, name: &CStr) -> Result<()> {
    // SAFETY: a C string that outlives the call.
    unsafe { syscall(258, [dir.0 as usize, name.as_ptr() as usize, 0o755, 0, 0, 0]) }.map(drop)
}

/// `openat(2)`.
pub fn open(dir: Fd, name: &CStr, flags: u32) -> Result<Fd> {
    let args = [dir.0 as usize, name.as_ptr() as usize, flags as usize, 0, 0, 0];
    // SAFETY: a C string that outlives the call.
    unsafe { syscall(257, args) }.map(|fd| Fd(fd as i32))
}

/// `write(2)`.
pub fn write(fd: Fd, bytes: &[u8]) -> Result<usize> {
    // SAFETY: the kernel reads the slice, which outlives the call.
    unsafe { syscall(1, [fd.0 as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) }
}

/// `read(2)`.
pub fn read(fd: Fd, bytes: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes the slice, which is borrowed mutably.
    unsafe { syscall(0, [fd.0 as usize, bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0]) }
}

/// `close(2)`.
pub fn close(fd: Fd) {
    // An error would mean that it was not open, which is what is wanted.
    let _ = plain(Plain::Close, [fd.0 as usize]);
}

/// `close_range(2)` from `first` on.
pub fn close_from(first: Fd) -> Result<()> {
    plain(Plain::CloseRange, [first.0 as usize, u32::MAX as usize]).map(drop)
}

/// `dup2(2)`: `to` becomes another name of `fd`.
pub fn dup_to(fd: Fd, to: Fd) -> Result<()> {
    plain(Plain::Dup2, [fd.0 as usize, to.0 as usize]).map(drop)
}

/// Is the descriptor open?
pub fn is_open(fd: Fd) -> bool {
    // F_GETFD
    plain(Plain::Fcntl, [fd.0 as usize, 1]).is_ok()
}

/// Calls on the descriptor answer [`EAGAIN`] instead of waiting.
pub fn set_nonblocking(fd: Fd) -> Result<()> {
    const F_SETFL: usize = 4;
    const O_NONBLOCK: usize = 0o4000;
    plain(Plain::Fcntl, [fd.0 as usize, F_SETFL, O_NONBLOCK]).map(drop)
}

/// `pipe2(2)` of one page: its reading end and its writing end.
pub fn pipe() -> Result<(Fd, Fd)> {
    const F_SETPIPE_SZ: usize = 1031;
    let mut fds = [0i32; 2];
    // SAFETY: the kernel writes two descriptors.
    unsafe { syscall(293, [fds.as_mut_ptr() as usize, 0, 0, 0, 0, 0]) }?;
    plain(Plain::Fcntl, [fds[0] as usize, F_SETPIPE_SZ, PIPE_SIZE])?;
    Ok((Fd(fds[0]), Fd(fds[1])))
}

/// What a pipe holds, bytes.
pub const PIPE_SIZE: usize = 4096;

/// `fork(2)`, into the cgroup whose directory is given: the child's pid, or `None` in the child.
pub fn fork(cgroup: Option<Fd>) -> Result<Option<u32>> {
    /// `struct clone_args` (include/uapi/linux/sched.h).
    #[repr(C)]
    #[derive(Default)]
    struct CloneArgs {
        flags: u64,
        pidfd: u64,
        child_tid: u64,
        parent_tid: u64,
        exit_signal: u64,
        stack: u64,
        stack_size: u64,
        tls: u64,
        set_tid: u64,
        set_tid_size: u64,
        cgroup: u64,
    }
    const CLONE_INTO_CGROUP: u64 = 1 << 33;
    const SIGCHLD: u64 = 17;
    let args = CloneArgs {
        flags: if cgroup.is_some() { CLONE_INTO_CGROUP } else { 0 },
        exit_signal: SIGCHLD,
        cgroup: cgroup.map_or(0, |fd| fd.0 as u64),
        ..CloneArgs::default()
    };
    let args = [&raw const args as usize, size_of::<CloneArgs>(), 0, 0, 0, 0];
    // SAFETY: the kernel reads the structure. The child goes on with a copy of this process's only
    // thread, its stack included.
    let pid = unsafe { syscall(435, args) }?;
    Ok(if pid == 0 { None } else { Some(pid as u32) })
}

/// Which children [`wait`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Child {
    /// Waits for any to end.
    Any,
    /// Any that has ended already.
    Ended,
    /// Waits for this one to end.
    Pid(u32),
}

/// `wait4(2)`: pid and wait status of a child that has ended, `None` if [`Child::Ended`] found none.
pub fn wait(child: Child) -> Result<Option<(u32, u32)>> {
    const WNOHANG: usize = 1;
    let (pid, options) = match child {
        Child::Any => (usize::MAX, 0),
        Child::Ended => (usize::MAX, WNOHANG),
        Child::Pid(pid) => (pid as usize, 0),
    };
    let mut status = 0u32;
    // SAFETY: the kernel writes the status.
    let pid = unsafe { syscall(61, [pid, &raw mut status as usize, options, 0, 0, 0]) }?;
    Ok(if pid == 0 { None } else { Some((pid as u32, status)) })
}

/// `exit_group(2)`.
pub fn exit(status: u8) -> ! {
    loop {
        let _ = plain(Plain::ExitGroup, [status.into()]);
    }
}

/// `getpid(2)`.
pub fn pid() -> u32 {
    plain(Plain::Getpid, []).unwrap_or(0) as u32
}

/// Restarts the machine, which ends a virtual one; returns if it cannot be.
pub fn restart() {
    // LINUX_REBOOT_MAGIC1, LINUX_REBOOT_MAGIC2, LINUX_REBOOT_CMD_RESTART
    let _ = plain(Plain::Reboot, [0xfee1_dead, 0x2812_1969, 0x0123_4567]);
}

/// `setpriority(2)` of this process: its `nice`.
pub fn set_nice(nice: i16) -> Result<()> {
    plain(Plain::Setpriority, [0, 0, isize::from(nice) as usize]).map(drop)
}

/// Timers of this process and its children to come expire when they are due, not up to 50 us later so
/// that several can share an interrupt (`PR_SET_TIMERSLACK`).
pub fn no_timer_slack() -> Result<()> {
    // 0 would mean the default.
    plain(Plain::Prctl, [29, 1]).map(drop)
}

/// What this process is called (`PR_SET_NAME`), cut after 15 bytes.
pub fn set_name(name: &[u8]) -> Result<()> {
    let mut comm = [0u8; 16];
    comm.iter_mut().take(15).zip(name).for_each(|(to, from)| *to = *from);
    // SAFETY: the kernel reads at most 16 bytes.
    unsafe { syscall(157, [15, comm.as_ptr() as usize, 0, 0, 0, 0]) }.map(drop)
}

/// The most descriptors this process may have (`RLIMIT_NOFILE`).
pub fn set_descriptor_limit(most: u64) -> Result<()> {
    let limit = [most, most];
    // SAFETY: the kernel reads a `struct rlimit64`; no old one is asked for.
    unsafe { syscall(302, [0, 7, limit.as_ptr() as usize, 0, 0, 0]) }.map(drop)
}

/// `ioperm(2)`: this process and its children may use `count` ports from `first` on.
pub fn allow_ports(first: u16, count: u16) -> Result<()> {
    plain(Plain::Ioperm, [first.into(), count.into(), 1]).map(drop)
}

/// `mlockall(MCL_CURRENT)`: every page of this process is present from now on.
pub fn lock_memory() -> Result<()> {
    plain(Plain::Mlockall, [1]).map(drop)
}

const CLOCK_MONOTONIC: usize = 1;
const TIMER_ABSTIME: usize = 1;

/// `struct timespec`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Timespec {
    seconds: u64,
    ns: u64,
}

const GIGA: u64 = 1_000_000_000;

impl Timespec {
    fn new(ns: u64) -> Self {
        Self { seconds: ns / GIGA, ns: ns % GIGA }
    }
}

/// When a sleep ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// So many ns from now.
    After(u64),
    /// At this time of the monotonic clock, ns.
    At(u64),
}

impl Until {
    fn parts(self) -> (usize, Timespec) {
        match self {
            Self::After(ns) => (0, Timespec::new(ns)),
            Self::At(ns) => (TIMER_ABSTIME, Timespec::new(ns)),
        }
    }
}

/// The monotonic clock, ns.
pub fn now() -> Result<u64> {
    let mut t = Timespec::default();
    // SAFETY: the kernel writes the structure.
    unsafe { syscall(228, [CLOCK_MONOTONIC, &raw mut t as usize, 0, 0, 0, 0]) }?;
    Ok(t.seconds.wrapping_mul(GIGA).wrapping_add(t.ns))
}

/// `clock_nanosleep(2)` on the monotonic clock.
pub fn sleep(until: Until) -> Result<()> {
    let (flags, t) = until.parts();
    // SAFETY: the kernel reads the structure; no remainder is asked for.
    unsafe { syscall(230, [CLOCK_MONOTONIC, flags, &raw const t as usize, 0, 0, 0]) }.map(drop)
}

/// `timerfd_create(2)` on the monotonic clock.
pub fn timer() -> Result<Fd> {
    plain(Plain::TimerfdCreate, [CLOCK_MONOTONIC]).map(|fd| Fd(fd as i32))
}

/// `timerfd_settime(2)`: the timer expires once, or never.
pub fn set_timer(timer: Fd, until: Option<Until>) -> Result<()> {
    // A time of 0 disarms it.
    let (flags, value) = until.map_or((0, Timespec::default()), Until::parts);
    let spec = [Timespec::default(), value];
    // SAFETY: the kernel reads a `struct itimerspec`: interval, value.
    unsafe { syscall(286, [timer.0 as usize, flags, spec.as_ptr() as usize, 0, 0, 0]) }.map(drop)
}

/// `struct pollfd`, of a descriptor that is to become readable.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Poll {
    fd: i32,
    events: i16,
    revents: i16,
}

impl Poll {
    pub fn readable(fd: Fd) -> Self {
        const POLLIN: i16 = 1;
        Self { fd: fd.0, events: POLLIN, revents: 0 }
    }
}

/// `ppoll(2)` without a time limit: waits until one is readable.
pub fn poll(fds: &mut [Poll]) -> Result<()> {
    // SAFETY: the kernel reads and writes the slice; no time limit and no signal mask are given.
    unsafe { syscall(271, [fds.as_mut_ptr() as usize, fds.len(), 0, 0, 0, 0]) }.map(drop)
}

/// A datagram socket; in [`AF_PACKET`] one that receives frames of EtherType `protocol` from every
/// interface, from now on.
pub fn socket(family: u16, protocol: u16) -> Result<Fd> {
    const SOCK_DGRAM: usize = 2;
    let protocol = usize::from(protocol.to_be());
    plain(Plain::Socket, [family.into(), SOCK_DGRAM, protocol]).map(|fd| Fd(fd as i32))
}

/// Takes one datagram from a socket, or none ([`EAGAIN`]); never waits.
pub fn receive(socket: Fd) -> Result<()> {
    const MSG_DONTWAIT: usize = 0x40;
    let mut byte = 0u8;
    let args = [socket.0 as usize, &raw mut byte as usize, 1, MSG_DONTWAIT, 0, 0];
    // SAFETY: the kernel writes one byte; no address is asked for.
    unsafe { syscall(45, args) }.map(drop)
}

/// Brings a network interface up, through any socket (netdevice(7)).
pub fn interface_up(socket: Fd, name: [u8; INTERFACE_NAME]) -> Result<()> {
    /// `struct ifreq`, with the flags of its union.
    #[repr(C)]
    struct Request {
        name: [u8; INTERFACE_NAME],
        flags: u16,
        rest: [u8; 22],
    }
    const SIOCGIFFLAGS: usize = 0x8913;
    const SIOCSIFFLAGS: usize = 0x8914;
    const IFF_UP: u16 = 1;
    let mut request = Request { name, flags: 0, rest: [0; 22] };
    let mut ioctl = |number, set_flags: u16| {
        request.flags |= set_flags;
        // SAFETY: both read and write a `struct ifreq`, which is borrowed mutably.
        unsafe { syscall(16, [socket.0 as usize, number, &raw mut request as usize, 0, 0, 0]) }
    };
    ioctl(SIOCGIFFLAGS, 0)?;
    ioctl(SIOCSIFFLAGS, IFF_UP).map(drop)
}

/// What PID 1 and the tasks share.
#[derive(Debug)]
#[repr(C)]
pub struct Shared {
    /// 1 once the run has started; the tasks wait for it.
    pub started: AtomicU32,
    /// Tasks that wait for the start.
    pub waiting: AtomicU32,
    /// When the run started, by the monotonic clock, ns.
    pub start_ns: AtomicU64,
}

/// A page of zeros that this process shares with its children to come.
pub fn shared() -> Result<&'static Shared> {
    const PROT_READ_WRITE: usize = 3;
    const MAP_SHARED_ANONYMOUS: usize = 0x21;
    let args = [0, 4096, PROT_READ_WRITE, MAP_SHARED_ANONYMOUS, usize::MAX, 0];
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let address = unsafe { syscall(9, args) }?;
    // SAFETY: the page is never unmapped, and zeros are valid atomics.
    Ok(unsafe { &*(address as *const Shared) })
}

/// Waits until the word is no longer `value` and somebody wakes the waiters (`FUTEX_WAIT`); answers
/// [`EAGAIN`] if it is not now.
pub fn futex_wait(word: &AtomicU32, value: u32) -> Result<()> {
    // SAFETY: the word outlives the call; no time limit is given.
    unsafe { syscall(202, [word.as_ptr() as usize, 0, value as usize, 0, 0, 0]) }.map(drop)
}

/// Wakes all who wait for the word (`FUTEX_WAKE`), in the order in which they came.
pub fn futex_wake(word: &AtomicU32) -> Result<()> {
    // SAFETY: the word outlives the call.
    unsafe { syscall(202, [word.as_ptr() as usize, 1, i32::MAX as usize, 0, 0, 0]) }.map(drop)
}
