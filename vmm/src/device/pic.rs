//! Two cascaded 8259A interrupt controllers, as far as Linux drives them.
//!
//! Registers and command words: Intel 8259A data sheet (231468); the trigger registers (ELCR): 82371AB
//! data sheet. The driver: arch/x86/kernel/i8259.c, Linux 7.3.
//!
//! Left out, since no x86 Linux asks for it: rotating priorities (a rotating EOI is a plain one), polling,
//! and the special fully nested mode. A request is weighed and acknowledged in one step, so it cannot be
//! withdrawn in between: the spurious interrupts 7 and 15 of the real chips do not occur.

use zerocopy::{Immutable, IntoBytes, TryFromBytes};

use super::state::{State, StateError, take};

/// Command port of the first controller (`PIC_MASTER_CMD`).
pub const MASTER_COMMAND: u16 = 0x20;
/// Data port of the first controller (`PIC_MASTER_IMR`).
pub const MASTER_DATA: u16 = 0x21;
/// Command port of the second controller (`PIC_SLAVE_CMD`).
pub const SLAVE_COMMAND: u16 = 0xa0;
/// Data port of the second controller (`PIC_SLAVE_IMR`).
pub const SLAVE_DATA: u16 = 0xa1;
/// Trigger register of IRQ 0 to 7 (`PIC_ELCR1`).
pub const MASTER_TRIGGER: u16 = 0x4d0;
/// Trigger register of IRQ 8 to 15 (`PIC_ELCR2`).
pub const SLAVE_TRIGGER: u16 = 0x4d1;

/// Interrupt lines of both controllers.
pub const LINES: u8 = 16;
/// The line of the first controller that the second is wired to (`PIC_CASCADE_IR`).
pub const CASCADE: u8 = 2;

const CASCADE_BIT: u8 = 1 << CASCADE;
/// Lines that can be level-triggered: not 0, 1, 2, 8 and 13.
const TRIGGER_BITS: [u8; 2] = [0xf8, 0xde];

/// What the next write to a controller's data port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, TryFromBytes, Immutable)]
#[repr(u8)]
enum Expects {
    /// OCW1, the mask.
    Mask,
    /// ICW2, the vector of its first line.
    Vector,
    /// ICW3, how the two are wired.
    Cascade,
    /// ICW4, the mode.
    Mode,
}

#[derive(Clone, Debug, PartialEq, Eq, IntoBytes, TryFromBytes, Immutable)]
#[repr(C)]
struct Controller {
    /// Lines that are high.
    lines: u8,
    /// Rising edges not yet acknowledged.
    edges: u8,
    /// ISR.
    in_service: u8,
    /// IMR.
    mask: u8,
    /// ELCR: lines that request by their level instead of by an edge.
    level: u8,
    vector: u8,
    expects: Expects,
    /// It was initialised once: without a vector there is nothing to deliver.
    programmed: bool,
    /// ICW1 said that it is alone: no ICW3 follows.
    single: bool,
    /// ICW1 said that ICW4 follows.
    has_mode: bool,
    auto_eoi: bool,
    special_mask: bool,
    /// The command port reads ISR instead of IRR.
    reads_in_service: bool,
}

impl Controller {
    const RESET: Self = Self {
        lines: 0,
        edges: 0,
        in_service: 0,
        mask: 0,
        level: 0,
        vector: 0,
        expects: Expects::Mask,
        programmed: false,
        single: false,
        has_mode: false,
        auto_eoi: false,
        special_mask: false,
        reads_in_service: false,
    };

    /// IRR.
    fn requests(&self) -> u8 {
        self.edges & !self.level | self.lines & self.level
    }

    /// The line that asks for service, of its own requests and those in `cascaded`.
    fn wants(&self, cascaded: u8) -> Option<u8> {
        if !self.programmed || self.expects != Expects::Mask {
            return None;
        }
        let requests = (self.requests() | cascaded) & !self.mask;
        let line = requests.trailing_zeros();
        (line < self.served().trailing_zeros()).then_some(line as u8)
    }

    /// Lines in service that keep their own and all later lines waiting. The special mask mode lifts
    /// that for masked ones.
    fn served(&self) -> u8 {
        if self.special_mask { self.in_service & !self.mask } else { self.in_service }
    }

    /// The acknowledge cycle for `line`; its vector.
    fn acknowledge(&mut self, line: u8) -> u8 {
        self.edges &= !(1 << line);
        if !self.auto_eoi {
            self.in_service |= 1 << line;
        }
        self.vector | line
    }

    /// The line whose service ended.
    fn command(&mut self, value: u8) -> Option<u8> {
        if value & 0x10 != 0 {
            self.initialise(value);
            return None;
        }
        if value & 0x08 != 0 {
            // OCW3.
            match value & 0x03 {
                2 => self.reads_in_service = false,
                3 => self.reads_in_service = true,
                _ => {}
            }
            match value & 0x60 {
                0x40 => self.special_mask = false,
                0x60 => self.special_mask = true,
                _ => {}
            }
            return None;
        }
        // OCW2.
        let line = match value & 0x60 {
            0x20 => self.served().trailing_zeros() as u8,
            0x60 => value & 0x07,
            _ => return None,
        };
        let bit = 1u8.checked_shl(line.into()).unwrap_or(0);
        let ends = self.in_service & bit != 0;
        self.in_service &= !bit;
        ends.then_some(line)
    }

    /// ICW1.
    fn initialise(&mut self, value: u8) {
        *self = Self {
            lines: self.lines,
            level: self.level,
            expects: Expects::Vector,
            programmed: true,
            single: value & 0x02 != 0,
            has_mode: value & 0x01 != 0,
            ..Self::RESET
        };
    }

    fn data(&mut self, value: u8) {
        let mode = if self.has_mode { Expects::Mode } else { Expects::Mask };
        self.expects = match self.expects {
            Expects::Mask => {
                self.mask = value;
                Expects::Mask
            }
            Expects::Vector => {
                self.vector = value & 0xf8;
                if self.single { mode } else { Expects::Cascade }
            }
            Expects::Cascade => mode,
            Expects::Mode => {
                self.auto_eoi = value & 0x02 != 0;
                Expects::Mask
            }
        };
    }
}

/// Both controllers.
#[derive(Clone, Debug, PartialEq, Eq, IntoBytes, TryFromBytes, Immutable)]
#[repr(C)]
pub struct Pic {
    controllers: [Controller; 2],
}

impl Default for Pic {
    fn default() -> Self {
        Self::new()
    }
}

/// Controller and bit of an IRQ.
fn place(irq: u8) -> (usize, u8) {
    debug_assert!(irq < LINES, "IRQ {irq}");
    (usize::from(irq >> 3 & 1), 1 << (irq & 7))
}

impl Pic {
    /// Both as they are after power on, every line low.
    pub fn new() -> Self {
        Self { controllers: [Controller::RESET, Controller::RESET] }
    }

    /// The guest wrote `value` to `port`; the IRQ whose service this ended (an EOI for a line that is
    /// in service). An IRQ of 8 and up ends with two: its own and that of IRQ 2.
    pub fn write(&mut self, port: u16, value: u8) -> Option<u8> {
        let [master, slave] = &mut self.controllers;
        match port {
            MASTER_COMMAND => return master.command(value),
            SLAVE_COMMAND => return slave.command(value).map(|line| line + 8),
            MASTER_DATA => master.data(value),
            SLAVE_DATA => slave.data(value),
            MASTER_TRIGGER => master.level = value & TRIGGER_BITS[0],
            SLAVE_TRIGGER => slave.level = value & TRIGGER_BITS[1],
            _ => {}
        }
        None
    }

    /// The guest reads `port`.
    pub fn read(&self, port: u16) -> u8 {
        let [master, slave] = &self.controllers;
        match port {
            MASTER_COMMAND if master.reads_in_service => master.in_service,
            MASTER_COMMAND => master.requests() | self.cascaded(),
            SLAVE_COMMAND if slave.reads_in_service => slave.in_service,
            SLAVE_COMMAND => slave.requests(),
            MASTER_DATA => master.mask,
            SLAVE_DATA => slave.mask,
            MASTER_TRIGGER => master.level,
            SLAVE_TRIGGER => slave.level,
            _ => 0xff,
        }
    }

    /// Raises the line of `irq` (below [`LINES`]). [`CASCADE`] has none: it is taken.
    pub fn raise(&mut self, irq: u8) {
        if irq == CASCADE {
            return;
        }
        let (controller, bit) = place(irq);
        let c = &mut self.controllers[controller];
        c.edges |= bit & !c.lines;
        c.lines |= bit;
    }

    /// Lowers the line of `irq`. An edge that was seen stays requested.
    pub fn lower(&mut self, irq: u8) {
        let (controller, bit) = place(irq);
        self.controllers[controller].lines &= !bit;
    }

    /// One edge on the line of `irq`.
    pub fn pulse(&mut self, irq: u8) {
        self.raise(irq);
        self.lower(irq);
    }

    /// The guest has masked `irq`, or all of the second controller that it belongs to.
    pub fn is_masked(&self, irq: u8) -> bool {
        let [master, slave] = &self.controllers;
        let (controller, bit) = place(irq);
        match controller {
            0 => master.mask & bit != 0,
            _ => slave.mask & bit != 0 || master.mask & CASCADE_BIT != 0,
        }
    }

    /// The IRQ that the guest would take now, if it took interrupts.
    pub fn deliverable(&self) -> Option<u8> {
        let [master, slave] = &self.controllers;
        match master.wants(self.cascaded())? {
            CASCADE => slave.wants(0).map(|line| line + 8),
            line => Some(line),
        }
    }

    /// The acknowledge cycle: the vector of what is [`Pic::deliverable`], which is in service from now
    /// on. `None` if nothing is.
    pub fn acknowledge(&mut self) -> Option<u8> {
        let irq = self.deliverable()?;
        let [master, slave] = &mut self.controllers;
        if irq < 8 {
            return Some(master.acknowledge(irq));
        }
        master.acknowledge(CASCADE);
        Some(slave.acknowledge(irq - 8))
    }

    /// What the second controller requests from the first, as a bit of its requests.
    fn cascaded(&self) -> u8 {
        if self.controllers[1].wants(0).is_some() { CASCADE_BIT } else { 0 }
    }
}

impl State for Pic {
    fn save(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.as_bytes());
    }

    fn restore(bytes: &mut &[u8]) -> Result<Self, StateError> {
        const DEVICE: &str = "interrupt controllers";
        let pic: Self = take(DEVICE, bytes)?;
        let cascade = (pic.controllers[0].lines | pic.controllers[0].edges) & CASCADE_BIT;
        if cascade != 0 {
            let (field, expected) = ("line 2", "low, as the cascade's");
            return Err(StateError::Field { device: DEVICE, field, expected, got: 1 });
        }
        for (c, trigger_bits) in pic.controllers.iter().zip(TRIGGER_BITS) {
            let field = |field, expected, got: u8| {
                Err(StateError::Field { device: DEVICE, field, expected, got: got.into() })
            };
            if c.vector & 0x07 != 0 {
                return field("vector", "a multiple of 8", c.vector);
            }
            if c.level & !trigger_bits != 0 {
                return field("trigger register", "none of IRQ 0, 1, 2, 8, 13", c.level);
            }
        }
        Ok(pic)
    }
}

#[cfg(test)]
mod tests;
