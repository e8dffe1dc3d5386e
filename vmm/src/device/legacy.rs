//! What else a PC has at its ports: a keyboard controller that only resets, a real-time clock that stands
//! still, the fast reset, delay ports. All other ports read as ones, PCI's configuration ports among
//! them, from which Linux concludes that there is no PCI (`pci_check_type1`, arch/x86/pci/direct.c,
//! Linux 7.3). A write there is ignored whole: the reset register 0xcf9 lies among them.

use zerocopy::{Immutable, IntoBytes, TryFromBytes};

use super::state::{State, StateError, take};

/// Keyboard controller: data.
const I8042_DATA: u16 = 0x60;
/// Keyboard controller: status, command.
const I8042_COMMAND: u16 = 0x64;
/// Pulse the reset line (`native_machine_emergency_restart`, arch/x86/kernel/reboot.c).
const I8042_RESET: u8 = 0xfe;
/// Real-time clock: register number.
const CMOS_INDEX: u16 = 0x70;
/// Real-time clock: register.
const CMOS_DATA: u16 = 0x71;
/// System control port A: fast reset, A20.
const PORT_A: u16 = 0x92;

/// How the guest asked for a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// Command 0xfe to the keyboard controller: what Linux tries first.
    KeyboardController,
    /// Bit 0 of port 0x92.
    PortA,
}

/// The ports' state: only the clock's register number is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, IntoBytes, TryFromBytes, Immutable)]
#[repr(C)]
pub struct Legacy {
    cmos_index: u8,
}

impl Legacy {
    /// As after power on.
    pub fn new() -> Self {
        Self::default()
    }

    /// The guest wrote `value` to `port`, any port that belongs to no other device. Whether that asks for a
    /// reset.
    pub fn write(&mut self, port: u16, value: u8) -> Option<Reset> {
        match port {
            // Bit 7 masks the NMI, which nothing here raises.
            CMOS_INDEX => self.cmos_index = value & 0x7f,
            I8042_COMMAND if value == I8042_RESET => return Some(Reset::KeyboardController),
            PORT_A if value & 0x01 != 0 => return Some(Reset::PortA),
            _ => {}
        }
        None
    }

    /// The guest reads `port`.
    pub fn read(&self, port: u16) -> u8 {
        match port {
            // Nothing typed, ready for a command.
            I8042_DATA | I8042_COMMAND => 0,
            CMOS_INDEX => self.cmos_index,
            CMOS_DATA => cmos(self.cmos_index),
            // A20 is open.
            PORT_A => 0x02,
            _ => 0xff,
        }
    }
}

/// A register of the clock, MC146818A data sheet: always Thursday, 2026-01-01 00:00:00, so that no run
/// depends on the host's date.
fn cmos(index: u8) -> u8 {
    match index {
        // Weekday, Sunday is 1.
        0x06 => 5,
        // Day, month, year, in BCD.
        0x07 => 0x01,
        0x08 => 0x01,
        0x09 => 0x26,
        // A: divider on, no update in progress. B: 24 hours, BCD. D: power was never lost.
        0x0a => 0x26,
        0x0b => 0x02,
        0x0d => 0x80,
        // Century, in BCD.
        0x32 => 0x20,
        _ => 0,
    }
}

impl State for Legacy {
    fn save(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.as_bytes());
    }

    fn restore(bytes: &mut &[u8]) -> Result<Self, StateError> {
        const DEVICE: &str = "legacy ports";
        let legacy: Self = take(DEVICE, bytes)?;
        if legacy.cmos_index & 0x80 != 0 {
            return Err(StateError::Field {
                device: DEVICE,
                field: "clock register",
                expected: "below 0x80",
                got: legacy.cmos_index.into(),
            });
        }
        Ok(legacy)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn register(legacy: &mut Legacy, index: u8) -> u8 {
        assert_eq!(legacy.write(CMOS_INDEX, index), None);
        legacy.read(CMOS_DATA)
    }

    /// As `mc146818_get_time` reads it.
    #[test]
    fn the_clock_stands_at_new_year_2026_and_never_updates() {
        let mut l = Legacy::new();
        let date = [0x32, 9, 8, 7, 6, 4, 2, 0].map(|index| register(&mut l, index));
        assert_eq!(date, [0x20, 0x26, 0x01, 0x01, 5, 0, 0, 0]);
        assert_eq!(register(&mut l, 0x0a) & 0x80, 0, "update in progress");
        assert_eq!(register(&mut l, 0x0b) & 0x06, 0x02, "24 hours, BCD");
        assert_eq!(register(&mut l, 0x8d), 0x80, "valid, with the NMI masked");
    }

    #[test]
    fn each_way_to_reset_is_told_and_nothing_else_is() {
        let mut l = Legacy::new();
        // The keyboard controller takes the command at once: `kb_wait` sees an empty input buffer.
        assert_eq!(l.read(I8042_COMMAND) & 0x02, 0);
        for port in 0..=u16::MAX {
            for value in [0x00, 0x02, 0xfe, 0xff] {
                let expected = match (port, value) {
                    (I8042_COMMAND, 0xfe) => Some(Reset::KeyboardController),
                    (PORT_A, 0xff) => Some(Reset::PortA),
                    _ => None,
                };
                assert_eq!(l.write(port, value), expected, "{port:#x} {value:#x}");
            }
        }
    }

    #[test]
    fn ports_of_nobody_read_as_ones() {
        let l = Legacy::new();
        assert!([0x80, 0xed, 0xcf8, 0xcfc, 0x1f7, 0xffff].iter().all(|&port| l.read(port) == 0xff));
    }

    proptest! {
        #[test]
        fn the_register_number_survives_and_a_wrong_one_is_refused(byte: u8) {
            match Legacy::restore(&mut &[byte][..]) {
                Ok(l) => {
                    let mut bytes = Vec::new();
                    l.save(&mut bytes);
                    prop_assert_eq!((byte < 0x80, bytes), (true, vec![byte]));
                }
                Err(e) => prop_assert!(byte >= 0x80, "{}", e),
            }
        }
    }
}
