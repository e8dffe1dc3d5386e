//! A network device (virtio 1.2, section 5.1) on no network: it receives what it is told to, and what the
//! guest sends goes nowhere.
//!
//! Its driver is drivers/net/virtio_net.c, Linux 6.12 to 7.3. Receiving makes NAPI run: `virtnet_poll`,
//! in softirq context or in ksoftirqd. A used buffer shorter than header and Ethernet header is dropped
//! there at once (`receive_buf`), without a message; a frame goes to the sockets that wait for it.

use vm_memory::GuestMemoryMmap;
use zerocopy::{Immutable, IntoBytes, TryFromBytes};

use super::queue::QueueError;
use super::registers::{INTERRUPT_QUEUE, Kind, Registers};
use super::{DeviceError, Event};
use crate::device::state::{State, StateError, Unused, take};

const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;

/// `struct virtio_net_hdr` with `num_buffers`, as of version 1.
const HEADER_BYTES: usize = 12;

const DEVICE: &str = "network device";

/// The device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Net {
    registers: Registers,
    wire: Wire,
}

/// What of it is not registers.
#[derive(Clone, Debug, PartialEq, Eq, IntoBytes, TryFromBytes, Immutable)]
#[repr(C)]
struct Wire {
    sent: u64,
    mac: [u8; 6],
    unused: [Unused; 2],
}

fn in_queue(queue: u16) -> impl Fn(QueueError) -> DeviceError {
    move |source| DeviceError::Queue { queue, source }
}

impl Net {
    /// As after power on, with the address `mac`.
    pub fn new(mac: [u8; 6]) -> Self {
        let wire = Wire { sent: 0, mac, unused: [Unused::Zero; 2] };
        Self { registers: Registers::new(Kind::Net), wire }
    }

    /// The driver is ready for interrupts.
    pub fn is_running(&self) -> bool {
        self.registers.is_running()
    }

    /// Frames that the guest has sent.
    pub fn sent(&self) -> u64 {
        self.wire.sent
    }

    /// Receives `frame` (from its destination address on), or one that is too short for the driver to pass
    /// on, and sets the reason of an interrupt that the caller delivers now. False if the driver had no
    /// buffer for it: then what it was given before is still there for it to find, if it is running.
    ///
    /// That the driver asks for no interrupt while it polls (`VIRTQ_AVAIL_F_NO_INTERRUPT`) is not heeded:
    /// when interrupts come is what the caller is there to say.
    pub fn receive(
        &mut self,
        memory: &GuestMemoryMmap,
        frame: Option<&[u8]>,
    ) -> Result<bool, DeviceError> {
        if !self.registers.raise(INTERRUPT_QUEUE) {
            return Ok(false);
        }
        self.fill_next(memory, frame).map_err(in_queue(RECEIVE))
    }

    fn fill_next(
        &mut self,
        memory: &GuestMemoryMmap,
        frame: Option<&[u8]>,
    ) -> Result<bool, QueueError> {
        let queue = &mut self.registers.queues[usize::from(RECEIVE)];
        let Some(head) = queue.take(memory)? else { return Ok(false) };
        let mut bytes = 0;
        if let Some(frame) = frame {
            let packet = [&[0; HEADER_BYTES], frame].concat();
            queue.fill(memory, head, &packet)?;
            bytes = packet.len() as u32;
        }
        queue.give_back(memory, head, bytes)?;
        Ok(true)
    }

    /// The guest reads `size` bytes at `offset` of the device's window.
    pub fn read(&self, offset: u64, size: usize) -> Result<u32, DeviceError> {
        self.registers.read(offset, size, &self.wire.mac)
    }

    /// The guest writes `value`, of `size` bytes, to `offset` of the device's window. What it sends is given
    /// back at once, without an interrupt.
    pub fn write(
        &mut self,
        offset: u64,
        size: usize,
        value: u32,
        memory: &GuestMemoryMmap,
    ) -> Result<Event, DeviceError> {
        let event = self.registers.write(offset, size, value, memory)?;
        match event {
            Event::Notify(TRANSMIT) if self.is_running() => {
                self.transmit(memory).map_err(in_queue(TRANSMIT))?
            }
            Event::DriverOk => {
                let queue = &self.registers.queues[usize::from(RECEIVE)];
                if queue.is_ready() {
                    queue.decline_notifications(memory).map_err(in_queue(RECEIVE))?;
                }
            }
            _ => {}
        }
        Ok(event)
    }

    fn transmit(&mut self, memory: &GuestMemoryMmap) -> Result<(), QueueError> {
        let queue = &mut self.registers.queues[usize::from(TRANSMIT)];
        // Another vCPU may add as fast as this takes: one queue's worth at a time.
        for _ in 0..queue.size() {
            let Some(head) = queue.take(memory)? else { break };
            queue.give_back(memory, head, 0)?;
            self.wire.sent = self.wire.sent.wrapping_add(1);
        }
        Ok(())
    }
}

impl State for Net {
    fn save(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.registers.as_bytes());
        bytes.extend_from_slice(self.wire.as_bytes());
    }

    fn restore(bytes: &mut &[u8]) -> Result<Self, StateError> {
        let registers = Registers::restore(DEVICE, Kind::Net, bytes)?;
        Ok(Self { registers, wire: take(DEVICE, bytes)? })
    }
}
