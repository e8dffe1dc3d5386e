//! An entropy device (virtio 1.2, section 5.4) that never has any: it interrupts as if its configuration
//! had changed.
//!
//! Its driver (drivers/char/hw_random/virtio-rng.c, Linux 7.3) takes no note of such a change, so the
//! interrupt is handled, wakes nobody and leaves nothing to do.

use vm_memory::GuestMemoryMmap;
use zerocopy::IntoBytes;

use super::registers::{INTERRUPT_CONFIG, Kind, Registers};
use super::{DeviceError, Event, is_status_read};
use crate::device::state::{State, StateError};

/// The device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entropy {
    registers: Registers,
    unhandled: bool,
}

impl Default for Entropy {
    fn default() -> Self {
        Self::new()
    }
}

impl Entropy {
    /// As after power on.
    pub fn new() -> Self {
        Self { registers: Registers::new(Kind::Entropy), unhandled: false }
    }

    /// Lets InterruptStatus read as 0: the driver then says that an interrupt was not its own, and after
    /// 100,000 the kernel disables the line ("nobody cared", kernel/irq/spurious.c, Linux 7.3). A reset
    /// does not change this, and it is not saved.
    pub fn set_unhandled(&mut self, unhandled: bool) {
        self.unhandled = unhandled;
    }

    /// The driver is ready for interrupts.
    pub fn is_running(&self) -> bool {
        self.registers.is_running()
    }

    /// Sets the reason of an interrupt that the caller delivers now; false, and nothing set, if the
    /// driver is not ready for one.
    pub fn raise_config(&mut self) -> bool {
        self.registers.raise(INTERRUPT_CONFIG)
    }

    /// The guest reads `size` bytes at `offset` of the device's window.
    pub fn read(&self, offset: u64, size: usize) -> Result<u32, DeviceError> {
        let value = self.registers.read(offset, size, &[])?;
        Ok(if self.unhandled && is_status_read(offset) { 0 } else { value })
    }

    /// The guest writes `value`, of `size` bytes, to `offset` of the device's window. Requests are left
    /// where they are.
    pub fn write(
        &mut self,
        offset: u64,
        size: usize,
        value: u32,
        memory: &GuestMemoryMmap,
    ) -> Result<Event, DeviceError> {
        self.registers.write(offset, size, value, memory)
    }
}

impl State for Entropy {
    fn save(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.registers.as_bytes());
    }

    fn restore(bytes: &mut &[u8]) -> Result<Self, StateError> {
        let registers = Registers::restore("entropy device", Kind::Entropy, bytes)?;
        Ok(Self { registers, unhandled: false })
    }
}
