//! What goes wrong: said to the host, and on the console for whoever has no host that listens.

use core::fmt::{self, Write};

use guest_model::wire::linux::{MAX_MESSAGE, control};

use crate::arch;
use crate::syscall::{self, Errno, Fd};

/// A text that is cut where it is full.
pub struct Message {
    bytes: [u8; MAX_MESSAGE],
    len: usize,
}

impl Message {
    pub fn new(args: fmt::Arguments) -> Self {
        let mut message = Self { bytes: [0; MAX_MESSAGE], len: 0 };
        // Only a full message fails.
        let _ = message.write_fmt(args);
        message
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            let place = self.bytes.get_mut(self.len).ok_or(fmt::Error)?;
            *place = if byte.is_ascii() { byte } else { b'?' };
            self.len += 1;
        }
        Ok(())
    }
}

/// The guest cannot go on. The host ends it; on a machine that does not listen the message is on the
/// console, and PID 1 restarts the machine.
pub fn fail(what: fmt::Arguments) -> ! {
    end(what, 0)
}

fn end(what: fmt::Arguments, errno: u16) -> ! {
    let message = Message::new(what);
    let text = message.bytes();
    arch::control_word(control::FAILED, [text.as_ptr() as u64, text.len() as u64, errno.into()]);
    console(text);
    give_up()
}

/// As [`fail`], before the host can be reached: on the console only.
pub fn fail_unheard(what: fmt::Arguments) -> ! {
    console(Message::new(what).bytes());
    give_up()
}

fn console(text: &[u8]) {
    for part in [b"rqscope-init: ".as_slice(), text, b"\n"] {
        // If there is no console there is nobody left to tell.
        let _ = syscall::write(Fd(2), part);
    }
}

/// PID 1 restarts the machine, and if that fails ends, which makes the kernel panic and say so.
fn give_up() -> ! {
    if syscall::pid() == 1 {
        syscall::restart();
    }
    syscall::exit(1)
}

/// Ends the guest where a system call that it needs fails.
pub trait OrFail<T> {
    /// The value; or a failure that says what was done and, if that is likely, what the kernel lacks.
    fn or_fail(self, what: fmt::Arguments, hint: &str) -> T;
}

impl<T> OrFail<T> for Result<T, Errno> {
    fn or_fail(self, what: fmt::Arguments, hint: &str) -> T {
        match self {
            Ok(value) => value,
            Err(Errno(n)) if hint.is_empty() => end(format_args!("{what}: errno {n}"), n),
            Err(Errno(n)) => end(format_args!("{what}: errno {n} ({hint})"), n),
        }
    }
}
