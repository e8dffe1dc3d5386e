//! What does not depend on the plan: file systems, descriptors, network interfaces.

use core::ffi::CStr;

use guest_model::wire::linux::port;

use crate::report::{Message, OrFail, fail_unheard};
use crate::syscall::{
    self, AF_INET, AF_PACKET, CWD, ENODEV, Errno, Fd, INTERFACE_NAME, O_RDONLY, O_RDWR, O_WRONLY,
};
use crate::task::FREE;

/// File system, where it goes, and the option that the kernel lacks if it does not know it.
const MOUNTS: [(&CStr, &CStr, &str); 4] = [
    (c"proc", c"/proc", "is CONFIG_PROC_FS on?"),
    (c"sysfs", c"/sys", "is CONFIG_SYSFS on?"),
    (c"devtmpfs", c"/dev", "is CONFIG_DEVTMPFS on?"),
    (c"cgroup2", CGROUP, "is CONFIG_CGROUPS on?"),
];
/// Where the cgroup hierarchy is mounted.
pub const CGROUP: &CStr = c"/sys/fs/cgroup";
/// More descriptors than PID 1 needs: a directory for each group and a pipe for each task.
const MAX_DESCRIPTORS: u64 = 2048;
/// Most network interfaces that are brought up.
const MAX_INTERFACES: usize = 32;

/// Sets the guest up, as far as PID 1 can; answers how many network interfaces are up. The ports come
/// first, so that the host hears of all else.
pub fn run() -> usize {
    let console = console();
    if let Err(Errno(n)) = syscall::allow_ports(port::FIRST, port::COUNT) {
        let hint = "is CONFIG_X86_IOPL_IOPERM on?";
        fail_unheard(format_args!("use the doorbell's ports: errno {n} ({hint})"));
    }
    console.or_fail(format_args!("open /dev/console"), "");
    for (kind, target, hint) in MOUNTS {
        let names = (kind.to_str().unwrap_or(""), target.to_str().unwrap_or(""));
        syscall::mount(kind, target)
            .or_fail(format_args!("mount {} on {}", names.0, names.1), hint);
    }
    syscall::set_descriptor_limit(MAX_DESCRIPTORS)
        .or_fail(format_args!("raise the limit of open files"), "");
    syscall::no_timer_slack().or_fail(format_args!("set the timer slack"), "");
    let interfaces = interfaces();
    syscall::lock_memory().or_fail(format_args!("lock memory"), "");
    interfaces
}

/// Opens what the kernel could not, if the initramfs has no console, and reserves the descriptors at which
/// the tasks will have their pipes. What has no console gets something that cannot be written.
fn console() -> Result<(), Errno> {
    for fd in (0..FREE.0).map(Fd).filter(|fd| !syscall::is_open(*fd)) {
        let opened = syscall::open(CWD, c"/dev/console", O_RDWR)
            .or_else(|_| syscall::open(CWD, c"/", O_RDONLY))?;
        if opened != fd {
            syscall::dup_to(opened, fd)?;
            syscall::close(opened);
        }
    }
    Ok(())
}

/// Brings eth0, eth1 and so on up: an interface that is down has no receive queue to fill.
fn interfaces() -> usize {
    // A device that has just come up would otherwise talk, at times of its own.
    if let Ok(file) = syscall::open(CWD, c"/proc/sys/net/ipv6/conf/all/disable_ipv6", O_WRONLY) {
        let _ = syscall::write(file, b"1");
        syscall::close(file);
    }
    // A kernel without sockets has no interfaces either.
    let Some(socket) = [AF_PACKET, AF_INET].into_iter().find_map(|f| syscall::socket(f, 0).ok())
    else {
        return 0;
    };
    let mut up = 0;
    for k in 0..MAX_INTERFACES {
        let mut name = [0; INTERFACE_NAME];
        let text = Message::new(format_args!("eth{k}"));
        name[..text.bytes().len()].copy_from_slice(text.bytes());
        match syscall::interface_up(socket, name) {
            Err(ENODEV) => break,
            result => result.or_fail(format_args!("bring eth{k} up"), ""),
        }
        up = k + 1;
    }
    syscall::close(socket);
    up
}
