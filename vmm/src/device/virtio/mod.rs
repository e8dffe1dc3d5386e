//! virtio devices on the memory-mapped transport, version 2 (virtio 1.2, section 4.2), as interrupt
//! sources: they have no work of their own, and raise an interrupt when they are told to.
//!
//! The driver of the transport is drivers/virtio/virtio_mmio.c, Linux 6.12 to 7.3. Its interrupt handler
//! reads a device's InterruptStatus, in hardirq context, and acknowledges what it read. So that a
//! handler's cost can be spent there, a caller asks [`is_status_read`] before it answers the read.
mod entropy;
mod net;
mod queue;
mod registers;

use thiserror::Error;

pub use entropy::Entropy;
pub use net::Net;
pub use queue::QueueError;

use registers::offset;

/// Bytes of a device's window.
pub const WINDOW_BYTES: u64 = 0x1000;

/// A read at `offset` of a device's window is one of InterruptStatus.
pub fn is_status_read(offset: u64) -> bool {
    offset == offset::INTERRUPT_STATUS
}

/// What a write made of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing that anyone else must know.
    None,
    /// The driver acknowledged what it read from InterruptStatus.
    InterruptAck,
    /// The driver told that this queue has new buffers; the device has dealt with them.
    Notify(u16),
    /// The driver is ready: from now on the device may interrupt.
    DriverOk,
    /// The device was reset.
    Reset,
}

/// An access that no driver makes.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// There is no such register, or not of this size.
    #[error(
        "guest {what} {size} bytes at offset {offset:#x} of a virtio device: expected one of the \
         transport's registers, 4 bytes wide, or the device's configuration"
    )]
    Access {
        /// "reads" or "writes".
        what: &'static str,
        /// Where in the window.
        offset: u64,
        /// Of how many bytes.
        size: usize,
    },
    /// A queue is not what a driver makes of one.
    #[error("virtio queue {queue}")]
    Queue {
        /// Its number.
        queue: u16,
        /// What is wrong with it.
        source: QueueError,
    },
}

#[cfg(test)]
mod tests;
