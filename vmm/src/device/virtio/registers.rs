//! The register file of the memory-mapped transport (virtio 1.2, section 4.2.2) and the device status
//! protocol (section 2.1).

use vm_memory::GuestMemoryMmap;
use zerocopy::{Immutable, IntoBytes, TryFromBytes};

use super::queue::{MAX_SIZE, Queue, QueueError};
use super::{DeviceError, Event};
use crate::device::state::{StateError, Unused, take};

/// Offsets, as include/uapi/linux/virtio_mmio.h names them.
pub(super) mod offset {
    pub const MAGIC_VALUE: u64 = 0x00;
    pub const VERSION: u64 = 0x04;
    pub const DEVICE_ID: u64 = 0x08;
    pub const VENDOR_ID: u64 = 0x0c;
    pub const DEVICE_FEATURES: u64 = 0x10;
    pub const DEVICE_FEATURES_SEL: u64 = 0x14;
    pub const DRIVER_FEATURES: u64 = 0x20;
    pub const DRIVER_FEATURES_SEL: u64 = 0x24;
    pub const QUEUE_SEL: u64 = 0x30;
    pub const QUEUE_NUM_MAX: u64 = 0x34;
    pub const QUEUE_NUM: u64 = 0x38;
    pub const QUEUE_READY: u64 = 0x44;
    pub const QUEUE_NOTIFY: u64 = 0x50;
    pub const INTERRUPT_STATUS: u64 = 0x60;
    pub const INTERRUPT_ACK: u64 = 0x64;
    pub const STATUS: u64 = 0x70;
    pub const QUEUE_DESC_LOW: u64 = 0x80;
    pub const QUEUE_DESC_HIGH: u64 = 0x84;
    pub const QUEUE_AVAIL_LOW: u64 = 0x90;
    pub const QUEUE_AVAIL_HIGH: u64 = 0x94;
    pub const QUEUE_USED_LOW: u64 = 0xa0;
    pub const QUEUE_USED_HIGH: u64 = 0xa4;
    pub const SHM_SEL: u64 = 0xac;
    pub const SHM_LEN_LOW: u64 = 0xb0;
    pub const SHM_BASE_HIGH: u64 = 0xbc;
    pub const CONFIG_GENERATION: u64 = 0xfc;
    pub const CONFIG: u64 = 0x100;
}

const MAGIC: u32 = u32::from_le_bytes(*b"virt");
const VERSION: u32 = 2;
const VENDOR: u32 = u32::from_le_bytes(*b"rqsc");

/// `VIRTIO_F_VERSION_1`.
const VERSION_1: u64 = 1 << 32;
/// `VIRTIO_NET_F_MAC`.
const NET_MAC: u64 = 1 << 5;

/// Bits of the device status.
mod status {
    pub const DRIVER_OK: u8 = 4;
    pub const FEATURES_OK: u8 = 8;
}

/// `VIRTIO_MMIO_INT_VRING`: a buffer was used.
pub(super) const INTERRUPT_QUEUE: u8 = 1;
/// `VIRTIO_MMIO_INT_CONFIG`: the configuration changed.
pub(super) const INTERRUPT_CONFIG: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, TryFromBytes, Immutable)]
#[repr(u8)]
pub(super) enum Kind {
    Net = 1,
    Entropy = 4,
}

impl Kind {
    fn features(self) -> u64 {
        match self {
            Self::Net => VERSION_1 | NET_MAC,
            Self::Entropy => VERSION_1,
        }
    }

    fn queues(self) -> usize {
        match self {
            Self::Net => 2,
            Self::Entropy => 1,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, IntoBytes, TryFromBytes, Immutable)]
#[repr(C)]
pub(super) struct Registers {
    driver_features: u64,
    /// The kind says how many there are; the rest stay as they are.
    pub queues: [Queue; 2],
    device_features_select: u32,
    driver_features_select: u32,
    queue_select: u32,
    interrupt_status: u8,
    status: u8,
    kind: Kind,
    unused: Unused,
}

impl Registers {
    pub fn new(kind: Kind) -> Self {
        Self {
            driver_features: 0,
            queues: [Queue::RESET, Queue::RESET],
            device_features_select: 0,
            driver_features_select: 0,
            queue_select: 0,
            interrupt_status: 0,
            status: 0,
            kind,
            unused: Unused::Zero,
        }
    }

    /// The driver is ready: the device may interrupt and use buffers.
    pub fn is_running(&self) -> bool {
        self.status & status::DRIVER_OK != 0
    }

    /// Sets an interrupt's reason, if the driver is ready for one.
    pub fn raise(&mut self, reason: u8) -> bool {
        if self.is_running() {
            self.interrupt_status |= reason;
        }
        self.is_running()
    }

    /// The guest reads `size` bytes at `offset`. `config` is the device's configuration.
    pub fn read(&self, offset: u64, size: usize, config: &[u8]) -> Result<u32, DeviceError> {
        let refused = DeviceError::Access { what: "reads", offset, size };
        if let Some(at) = offset.checked_sub(offset::CONFIG) {
            let value = usize::try_from(at).ok().and_then(|at| config.get(at..)?.get(..size));
            return match value {
                Some(&[a]) => Ok(a.into()),
                Some(&[a, b]) => Ok(u16::from_le_bytes([a, b]).into()),
                Some(&[a, b, c, d]) => Ok(u32::from_le_bytes([a, b, c, d])),
                _ => Err(refused),
            };
        }
        if size != 4 {
            return Err(refused);
        }
        let queue = self.selected().map(|at| &self.queues[at]);
        Ok(match offset {
            offset::MAGIC_VALUE => MAGIC,
            offset::VERSION => VERSION,
            offset::DEVICE_ID => self.kind as u32,
            offset::VENDOR_ID => VENDOR,
            offset::DEVICE_FEATURES => match self.device_features_select {
                0 => self.kind.features() as u32,
                1 => (self.kind.features() >> 32) as u32,
                _ => 0,
            },
            offset::QUEUE_NUM_MAX => queue.map_or(0, |_| MAX_SIZE.into()),
            offset::QUEUE_READY => queue.is_some_and(Queue::is_ready).into(),
            offset::INTERRUPT_STATUS => self.interrupt_status.into(),
            offset::STATUS => self.status.into(),
            // A length of all ones: there is no such region.
            offset::SHM_LEN_LOW..=offset::SHM_BASE_HIGH if offset.is_multiple_of(4) => u32::MAX,
            // The configuration never changes, whatever the interrupts say.
            offset::CONFIG_GENERATION => 0,
            _ => return Err(refused),
        })
    }

    /// The guest writes `value`, of `size` bytes, to `offset`.
    pub fn write(
        &mut self,
        offset: u64,
        size: usize,
        value: u32,
        memory: &GuestMemoryMmap,
    ) -> Result<Event, DeviceError> {
        if size != 4 {
            return Err(DeviceError::Access { what: "writes", offset, size });
        }
        match offset {
            offset::DEVICE_FEATURES_SEL => self.device_features_select = value,
            offset::DRIVER_FEATURES_SEL => self.driver_features_select = value,
            offset::DRIVER_FEATURES if self.status & status::FEATURES_OK == 0 => {
                let features = &mut self.driver_features;
                match self.driver_features_select {
                    0 => *features = *features & !0xffff_ffff | u64::from(value),
                    1 => *features = *features & 0xffff_ffff | u64::from(value) << 32,
                    _ => {}
                }
            }
            offset::DRIVER_FEATURES | offset::SHM_SEL => {}
            offset::QUEUE_SEL => self.queue_select = value,
            offset::QUEUE_NUM
            | offset::QUEUE_READY
            | offset::QUEUE_DESC_LOW
            | offset::QUEUE_DESC_HIGH
            | offset::QUEUE_AVAIL_LOW
            | offset::QUEUE_AVAIL_HIGH
            | offset::QUEUE_USED_LOW
            | offset::QUEUE_USED_HIGH => self.write_queue(offset, value, memory)?,
            offset::QUEUE_NOTIFY => {
                let known = (value as usize) < self.kind.queues();
                return Ok(if known { Event::Notify(value as u16) } else { Event::None });
            }
            offset::INTERRUPT_ACK => {
                self.interrupt_status &= !(value as u8);
                return Ok(Event::InterruptAck);
            }
            offset::STATUS => return Ok(self.write_status(value as u8)),
            _ => return Err(DeviceError::Access { what: "writes", offset, size }),
        }
        Ok(Event::None)
    }

    /// A write to a register of the selected queue: ignored if there is none or, but for QueueReady, if
    /// it is in use.
    fn write_queue(
        &mut self,
        offset: u64,
        value: u32,
        memory: &GuestMemoryMmap,
    ) -> Result<(), DeviceError> {
        let Some(at) = self.selected() else { return Ok(()) };
        let queue = &mut self.queues[at];
        let source = |source: QueueError| DeviceError::Queue { queue: at as u16, source };
        if offset == offset::QUEUE_READY {
            return queue.set_ready(memory, value & 1 != 0).map_err(source);
        }
        if queue.is_ready() {
            return Ok(());
        }
        if offset == offset::QUEUE_NUM {
            return queue.set_size(value).map_err(source);
        }
        let area = &mut queue.areas[((offset - offset::QUEUE_DESC_LOW) / 0x10) as usize];
        *area = match offset & 0x04 {
            0 => *area & !0xffff_ffff | u64::from(value),
            _ => *area & 0xffff_ffff | u64::from(value) << 32,
        };
        Ok(())
    }

    fn write_status(&mut self, value: u8) -> Event {
        if value == 0 {
            *self = Self::new(self.kind);
            return Event::Reset;
        }
        let was_running = self.is_running();
        self.status = value;
        if !self.accepts_features() {
            self.status &= !(status::FEATURES_OK | status::DRIVER_OK);
        }
        if self.is_running() && !was_running { Event::DriverOk } else { Event::None }
    }

    /// The driver's features are version 1 and nothing that was not offered.
    fn accepts_features(&self) -> bool {
        let refused = self.driver_features & !self.kind.features();
        refused == 0 && self.driver_features & VERSION_1 != 0
    }

    /// The queue that QueueSel selects.
    fn selected(&self) -> Option<usize> {
        usize::try_from(self.queue_select).ok().filter(|&at| at < self.kind.queues())
    }

    pub fn restore(
        device: &'static str,
        kind: Kind,
        bytes: &mut &[u8],
    ) -> Result<Self, StateError> {
        let registers: Self = take(device, bytes)?;
        registers.check(device, kind)?;
        Ok(registers)
    }

    fn check(&self, device: &'static str, kind: Kind) -> Result<(), StateError> {
        let field =
            |field, expected, got: u64| Err(StateError::Field { device, field, expected, got });
        if self.kind != kind {
            return field("device ID", "this device's", self.kind as u64);
        }
        let reasons = INTERRUPT_QUEUE | INTERRUPT_CONFIG;
        if self.interrupt_status & !reasons != 0 {
            return field("InterruptStatus", "bits 0 and 1 only", self.interrupt_status.into());
        }
        let negotiated = self.status & (status::FEATURES_OK | status::DRIVER_OK) != 0;
        if negotiated && !self.accepts_features() {
            return field("driver features", "version 1 and what is offered", self.driver_features);
        }
        self.queues.iter().try_for_each(|queue| queue.check(device))
    }
}
