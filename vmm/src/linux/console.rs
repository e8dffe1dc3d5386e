//! The guest's serial console: shown to the user if asked for, and read for what it says.

use std::collections::VecDeque;
use std::io::Write;

use super::bus::Bus;
use crate::guest::GuestError;

/// Bytes kept for error messages.
const TAIL: usize = 2048;
/// Longest line that is looked at.
const LINE: usize = 512;

/// Line that any initrd may print to say that its guest is ready.
pub const READY_LINE: &str = "rqscope: ready";

/// What came over the serial port.
#[derive(Debug, Default)]
pub struct Console {
    show: bool,
    bytes: Vec<u8>,
    line: Vec<u8>,
    tail: VecDeque<u8>,
    panic: Option<String>,
    ready: bool,
}

impl Console {
    /// A console that is shown on standard error, or not.
    pub fn new(show: bool) -> Self {
        Self { show, ..Self::default() }
    }

    /// Takes what the guest has printed since the last time.
    pub fn take(&mut self, bus: &mut Bus) {
        self.bytes.clear();
        bus.serial.take_output(&mut self.bytes);
        if self.bytes.is_empty() {
            return;
        }
        if self.show {
            // Nobody may be there to read it, which is no reason to stop.
            let _ = std::io::stderr().write_all(&self.bytes);
        }
        for &byte in &self.bytes {
            // Behind a panic comes a dump of registers, which would push its cause out.
            if self.panic.is_none() {
                if self.tail.len() == TAIL {
                    self.tail.pop_front();
                }
                self.tail.push_back(byte);
            }
            match byte {
                b'\n' => {
                    Self::read_line(&self.line, &mut self.panic, &mut self.ready);
                    self.line.clear();
                }
                b'\r' => {}
                _ if self.line.len() < LINE => self.line.push(byte),
                _ => {}
            }
        }
    }

    fn read_line(line: &[u8], panic: &mut Option<String>, ready: &mut bool) {
        let line = String::from_utf8_lossy(line);
        if panic.is_none()
            && let Some(at) = line.find("Kernel panic - not syncing")
        {
            *panic = Some(printable(&line[at..]));
        }
        *ready |= line.contains(READY_LINE);
    }

    /// The guest's kernel has said that it panics, in these words.
    pub fn panicked(&self) -> Option<&str> {
        self.panic.as_deref()
    }

    /// [`READY_LINE`] was printed.
    pub fn said_ready(&self) -> bool {
        self.ready
    }

    /// Why a guest that has reset its machine did so.
    pub fn reset(&self) -> GuestError {
        match &self.panic {
            Some(why) => GuestError::KernelPanic { why: why.clone(), console: self.last_lines() },
            None => GuestError::Reset { console: self.last_lines() },
        }
    }

    /// The last lines, fit for a terminal.
    pub fn last_lines(&self) -> String {
        let bytes: Vec<u8> = self.tail.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let mut lines: Vec<String> =
            text.lines().map(printable).filter(|line| !line.is_empty()).collect();
        let last = lines.split_off(lines.len().saturating_sub(8));
        if last.is_empty() {
            return "nothing was printed (is there a serial console: CONFIG_SERIAL_8250_CONSOLE?)"
                .into();
        }
        format!("its last lines were:\n  {}", last.join("\n  "))
    }
}

/// Without what would move a terminal's cursor.
pub fn printable(line: &str) -> String {
    line.chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(text: &str) -> Console {
        let (mut console, mut bus) = (Console::new(false), Bus::default());
        for byte in text.bytes() {
            bus.write_port(0x3f8, 1, byte.into(), 0);
            console.take(&mut bus);
        }
        console
    }

    #[test]
    fn a_panic_is_told_by_its_first_line_and_the_last_lines_without_what_moves_a_cursor() {
        let mut text = String::new();
        for i in 0..20 {
            text += &format!("[    1.{i:06}] line {i}\r\n");
        }
        text += "[    2.000000] Kernel panic - not syncing: no \x1b[31minit found\r\n";
        text += "[    2.000001] Kernel panic - not syncing: a second one\r\nhalf a line";
        let console = printed(&text);
        assert_eq!(console.panicked(), Some("Kernel panic - not syncing: no [31minit found"));
        let told = console.reset().to_string();
        assert!(told.starts_with("guest kernel: Kernel panic - not syncing: no [31minit found; "));
        assert!(
            told.contains("line 19") && !told.contains("line 9") && !told.contains("half a line")
        );
    }

    #[test]
    fn a_reset_without_a_word_says_that_nothing_was_printed() {
        let told = printed("").reset().to_string();
        assert!(told.contains("reset its machine; nothing was printed"), "{told}");
    }

    #[test]
    fn the_ready_line_counts_once_it_is_complete_and_endless_lines_take_no_room() {
        assert!(!printed("rqscope: ready").said_ready());
        assert!(printed("rqscope: ready\n").said_ready());
        let console = printed(&"x".repeat(100_000));
        assert!(console.line.len() <= LINE && console.tail.len() <= TAIL);
    }
}
