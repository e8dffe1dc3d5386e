//! The first serial port (16550A): rust-vmm's, with its interrupt as a flag and its output in a buffer.

use std::cell::Cell;
use std::convert::Infallible;
use std::io;

use vm_superio::serial::{NoEvents, SerialState};
use vm_superio::{Serial as Uart, Trigger};
use zerocopy::{Immutable, IntoBytes, TryFromBytes};

use super::state::{State, StateError, take};

/// First of its eight ports.
pub const BASE: u16 = 0x3f8;
/// Last of its ports.
pub const LAST: u16 = 0x3ff;
/// Its interrupt.
pub const IRQ: u8 = 4;

/// Most bytes of output kept between two calls of [`Serial::take_output`]; what comes after is lost, and
/// counted.
pub const OUTPUT_BYTES: usize = 64 << 10;

/// Bytes that wait for the guest to read them (vm-superio's FIFO).
const INPUT_BYTES: usize = 64;

/// An interrupt wanted: rust-vmm's port triggers through a shared reference.
#[derive(Debug, Default)]
struct Wanted(Cell<bool>);

impl Trigger for Wanted {
    type E = Infallible;

    fn trigger(&self) -> Result<(), Infallible> {
        self.0.set(true);
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Output {
    bytes: Vec<u8>,
    lost: u64,
}

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fits = bytes.len().min(OUTPUT_BYTES - self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..fits]);
        self.lost += (bytes.len() - fits) as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The port.
#[derive(Debug)]
pub struct Serial {
    uart: Uart<Wanted, NoEvents, Output>,
}

impl Default for Serial {
    fn default() -> Self {
        Self::new()
    }
}

impl Serial {
    /// As after power on.
    pub fn new() -> Self {
        Self { uart: Uart::new(Wanted::default(), Output::default()) }
    }

    /// The guest wrote `value` to `port` ([`BASE`] to [`LAST`]). See [`Serial::take_interrupt`].
    pub fn write(&mut self, port: u16, value: u8) {
        // Neither the trigger nor the output fails.
        self.uart.write((port.wrapping_sub(BASE) & 7) as u8, value).unwrap_or_default();
    }

    /// The guest reads `port`.
    pub fn read(&mut self, port: u16) -> u8 {
        self.uart.read((port.wrapping_sub(BASE) & 7) as u8)
    }

    /// Gives the guest `bytes` to read; how many it had room for, or 0 in loopback mode.
    pub fn enqueue(&mut self, bytes: &[u8]) -> usize {
        self.uart.enqueue_raw_bytes(bytes).unwrap_or(0)
    }

    /// An interrupt was wanted since the last call: one edge on [`IRQ`].
    pub fn take_interrupt(&mut self) -> bool {
        self.uart.interrupt_evt().0.take()
    }

    /// Appends the guest's output since the last call; how many bytes of it were lost because there were
    /// more than [`OUTPUT_BYTES`].
    pub fn take_output(&mut self, output: &mut Vec<u8>) -> u64 {
        let out = self.uart.writer_mut();
        output.append(&mut out.bytes);
        std::mem::take(&mut out.lost)
    }
}

/// vm-superio's `SerialState`, and the flag.
#[derive(IntoBytes, TryFromBytes, Immutable)]
#[repr(C)]
struct Saved {
    baud_divisor_low: u8,
    baud_divisor_high: u8,
    interrupt_enable: u8,
    interrupt_identification: u8,
    line_control: u8,
    line_status: u8,
    modem_control: u8,
    modem_status: u8,
    scratch: u8,
    interrupt: bool,
    input_bytes: u8,
    input: [u8; INPUT_BYTES],
}

/// Output that was not taken is not part of the state.
impl State for Serial {
    fn save(&self, bytes: &mut Vec<u8>) {
        let s = self.uart.state();
        let mut input = [0; INPUT_BYTES];
        let input_bytes = s.in_buffer.len().min(INPUT_BYTES);
        input[..input_bytes].copy_from_slice(&s.in_buffer[..input_bytes]);
        let saved = Saved {
            baud_divisor_low: s.baud_divisor_low,
            baud_divisor_high: s.baud_divisor_high,
            interrupt_enable: s.interrupt_enable,
            interrupt_identification: s.interrupt_identification,
            line_control: s.line_control,
            line_status: s.line_status,
            modem_control: s.modem_control,
            modem_status: s.modem_status,
            scratch: s.scratch,
            interrupt: self.uart.interrupt_evt().0.get(),
            input_bytes: input_bytes as u8,
            input,
        };
        bytes.extend_from_slice(saved.as_bytes());
    }

    fn restore(bytes: &mut &[u8]) -> Result<Self, StateError> {
        const DEVICE: &str = "serial port";
        let s: Saved = take(DEVICE, bytes)?;
        let too_long = StateError::Field {
            device: DEVICE,
            field: "input",
            expected: "at most 64 bytes",
            got: s.input_bytes.into(),
        };
        let in_buffer = match s.input.get(..s.input_bytes.into()) {
            Some(input) => input.to_vec(),
            None => return Err(too_long),
        };
        let state = SerialState {
            baud_divisor_low: s.baud_divisor_low,
            baud_divisor_high: s.baud_divisor_high,
            interrupt_enable: s.interrupt_enable,
            interrupt_identification: s.interrupt_identification,
            line_control: s.line_control,
            line_status: s.line_status,
            modem_control: s.modem_control,
            modem_status: s.modem_status,
            scratch: s.scratch,
            in_buffer,
        };
        let uart = Uart::from_state(&state, Wanted::default(), NoEvents, Output::default())
            .map_err(|_| too_long)?;
        // It triggers again what it had triggered before it was saved.
        uart.interrupt_evt().0.set(s.interrupt);
        Ok(Self { uart })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DATA: u16 = BASE;
    const IER: u16 = BASE + 1;
    const IIR: u16 = BASE + 2;
    const LCR: u16 = BASE + 3;
    const MCR: u16 = BASE + 4;
    const LSR: u16 = BASE + 5;

    fn output(s: &mut Serial) -> Vec<u8> {
        let mut bytes = Vec::new();
        assert_eq!(s.take_output(&mut bytes), 0);
        bytes
    }

    /// `serial8250_console_putchar`: polls LSR, no interrupts.
    #[test]
    fn the_kernels_console_needs_no_interrupt() {
        let mut s = Serial::new();
        for &byte in b"Linux\n" {
            assert_eq!(s.read(LSR) & 0x60, 0x60);
            s.write(DATA, byte);
        }
        assert_eq!(output(&mut s), b"Linux\n");
        assert!(!s.take_interrupt());
        assert_eq!(output(&mut s), b"");
    }

    /// A tty's transmission: THRI on, the interrupt, IIR, a byte, again until there is nothing to send.
    #[test]
    fn a_user_space_writer_is_driven_by_transmit_interrupts() {
        let mut s = Serial::new();
        s.write(IER, 0x02);
        for &byte in b"ready" {
            assert!(s.take_interrupt());
            assert_eq!(s.read(IIR) & 0x0f, 0x02);
            assert_eq!(s.read(IIR) & 0x0f, 0x01, "read once");
            s.write(DATA, byte);
        }
        assert!(s.take_interrupt());
        s.write(IER, 0);
        s.read(IIR);
        s.write(DATA, b'!');
        assert!(!s.take_interrupt());
        assert_eq!(output(&mut s), b"ready!");
    }

    #[test]
    fn input_raises_an_interrupt_and_is_read_in_order() {
        let mut s = Serial::new();
        s.write(IER, 0x01);
        assert_eq!(s.enqueue(b"ab"), 2);
        assert!(s.take_interrupt());
        assert_eq!(s.read(IIR) & 0x0f, 0x04);
        assert_eq!(
            (s.read(LSR) & 1, s.read(DATA), s.read(DATA), s.read(LSR) & 1),
            (1, b'a', b'b', 0)
        );
        assert_eq!(s.enqueue(&[0; 100]), INPUT_BYTES);
        assert_eq!(s.enqueue(b"more"), 0);
    }

    #[test]
    fn output_beyond_the_buffer_is_counted_and_not_kept() {
        let mut s = Serial::new();
        for _ in 0..OUTPUT_BYTES + 3 {
            s.write(DATA, b'x');
        }
        let mut bytes = Vec::new();
        assert_eq!(s.take_output(&mut bytes), 3);
        assert_eq!(bytes.len(), OUTPUT_BYTES);
        s.write(DATA, b'y');
        assert_eq!(output(&mut s), b"y");
    }

    #[test]
    fn an_interrupt_that_was_taken_is_not_wanted_again_after_a_restore() {
        let mut s = Serial::new();
        s.write(IER, 0x02);
        let (mut pending, mut taken) = (Vec::new(), Vec::new());
        s.save(&mut pending);
        assert!(s.take_interrupt());
        s.save(&mut taken);
        assert!(Serial::restore(&mut &pending[..]).unwrap().take_interrupt());
        let mut restored = Serial::restore(&mut &taken[..]).unwrap();
        assert!(!restored.take_interrupt());
        assert_eq!(restored.read(IIR) & 0x0f, 0x02, "its cause is still to be read");
    }

    proptest! {
        #[test]
        fn any_bytes_restore_to_a_port_that_saves_them_or_are_refused(
            bytes in proptest::collection::vec(prop_oneof![0u8..4, 63u8..66, any::<u8>()], 70..80),
            writes in proptest::collection::vec((DATA..=LAST, any::<u8>()), 0..300),
        ) {
            let Ok(mut s) = Serial::restore(&mut &bytes[..]) else { return Ok(()) };
            for (port, value) in writes {
                s.write(port, value);
                s.enqueue(&[value]);
                s.read(port);
            }
            let (mut once, mut twice) = (Vec::new(), Vec::new());
            s.save(&mut once);
            Serial::restore(&mut &once[..]).unwrap().save(&mut twice);
            prop_assert_eq!(once, twice);
        }

        #[test]
        fn loopback_input_is_bounded(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut s = Serial::new();
            s.write(LCR, 0x03);
            s.write(MCR, 0x10);
            for &byte in &bytes {
                s.write(DATA, byte);
            }
            let mut back = Vec::new();
            while s.read(LSR) & 1 != 0 {
                back.push(s.read(DATA));
            }
            prop_assert_eq!(&back[..], &bytes[..bytes.len().min(INPUT_BYTES)]);
        }
    }
}
