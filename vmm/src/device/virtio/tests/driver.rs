//! A driver: what virtio_mmio.c and virtio_ring.c write, in their order.

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::super::registers::offset;
use super::{DeviceError, Entropy, Event, Net};

pub const MEMORY: u64 = 0x10000;

pub fn memory() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY as usize)]).unwrap()
}

pub fn fill(m: &GuestMemoryMmap, at: u64, bytes: usize, value: u8) {
    m.write_slice(&vec![value; bytes], GuestAddress(at)).unwrap();
}

pub fn bytes(m: &GuestMemoryMmap, at: u64, bytes: usize) -> Vec<u8> {
    let mut read = vec![0; bytes];
    m.read_slice(&mut read, GuestAddress(at)).unwrap();
    read
}

/// What the tests do with either device.
pub trait Window {
    fn read(&self, offset: u64, size: usize) -> Result<u32, DeviceError>;
    fn write(
        &mut self,
        offset: u64,
        size: usize,
        value: u32,
        memory: &GuestMemoryMmap,
    ) -> Result<Event, DeviceError>;
}

macro_rules! window {
    ($($device:ty),*) => {$(
        impl Window for $device {
            fn read(&self, offset: u64, size: usize) -> Result<u32, DeviceError> {
                self.read(offset, size)
            }

            fn write(
                &mut self,
                offset: u64,
                size: usize,
                value: u32,
                memory: &GuestMemoryMmap,
            ) -> Result<Event, DeviceError> {
                self.write(offset, size, value, memory)
            }
        }
    )*};
}
window!(Entropy, Net);

pub struct Driver<'a, W: Window> {
    device: &'a mut W,
    memory: &'a GuestMemoryMmap,
}

impl<'a, W: Window> Driver<'a, W> {
    pub fn new(device: &'a mut W, memory: &'a GuestMemoryMmap) -> Self {
        Self { device, memory }
    }

    fn read(&self, offset: u64) -> u32 {
        self.device.read(offset, 4).unwrap()
    }

    fn write(&mut self, offset: u64, value: u32) -> Event {
        self.device.write(offset, 4, value, self.memory).unwrap()
    }

    /// `register_virtio_device` and `virtio_dev_probe` up to `virtio_features_ok`; the status then.
    pub fn negotiate(&mut self, features: u64) -> u32 {
        assert_eq!(self.write(offset::STATUS, 0), Event::Reset);
        for status in [1, 3] {
            assert_eq!(self.write(offset::STATUS, status), Event::None);
            assert_eq!(self.read(offset::STATUS), status);
        }
        for (half, value) in [(1, features >> 32), (0, features & 0xffff_ffff)] {
            self.write(offset::DRIVER_FEATURES_SEL, half);
            self.write(offset::DRIVER_FEATURES, value as u32);
        }
        self.write(offset::STATUS, 3 | 8);
        self.read(offset::STATUS)
    }

    /// `virtio_mmio_probe` and a driver's `probe`, with queues of these sizes.
    pub fn probe<const N: usize>(mut self, sizes: [u16; N]) -> [Virtqueue; N] {
        assert_eq!(self.read(offset::MAGIC_VALUE).to_le_bytes(), *b"virt");
        assert_eq!(self.read(offset::VERSION), 2);
        assert_eq!(self.read(offset::DEVICE_ID), if N == 1 { 4 } else { 1 });
        assert_eq!(self.read(offset::VENDOR_ID).to_le_bytes(), *b"rqsc");
        let mut offered = 0;
        for half in [2, 1, 0] {
            self.write(offset::DEVICE_FEATURES_SEL, half);
            offered = offered << 32 | u64::from(self.read(offset::DEVICE_FEATURES));
        }
        assert_eq!(self.negotiate(offered), 11);
        let mut at = 0x1000;
        let queues = std::array::from_fn(|i| {
            let q = Virtqueue::at(at, sizes[i]);
            at += 0x3000;
            self.setup(i as u32, &q);
            q
        });
        assert_eq!(self.write(offset::STATUS, 15), Event::DriverOk);
        queues
    }

    /// `vm_setup_vq`.
    pub fn setup(&mut self, index: u32, q: &Virtqueue) {
        self.write(offset::QUEUE_SEL, index);
        assert_eq!(self.read(offset::QUEUE_READY), 0);
        assert_eq!(self.read(offset::QUEUE_NUM_MAX), 256);
        self.write(offset::QUEUE_NUM, q.size.into());
        for (low, address) in [
            (offset::QUEUE_DESC_LOW, q.descriptors),
            (offset::QUEUE_AVAIL_LOW, q.available),
            (offset::QUEUE_USED_LOW, q.used),
        ] {
            self.write(low, address as u32);
            self.write(low + 4, (address >> 32) as u32);
        }
        self.write(offset::QUEUE_READY, 1);
        assert_eq!(self.read(offset::QUEUE_READY), 1);
    }
}

/// The driver's side of a queue. Descriptors are used again as soon as none is in use.
pub struct Virtqueue {
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
    size: u16,
    next_descriptor: u16,
    added: u16,
    taken: u16,
}

impl Virtqueue {
    pub fn at(address: u64, size: u16) -> Self {
        Self {
            descriptors: address,
            available: address + 0x1000,
            used: address + 0x2000,
            size,
            next_descriptor: 0,
            added: 0,
            taken: 0,
        }
    }

    /// Writes a descriptor.
    pub fn descriptor(
        &self,
        m: &GuestMemoryMmap,
        index: u16,
        address: u64,
        bytes: u32,
        flags: u16,
        next: u16,
    ) {
        let rest = u64::from(bytes) | u64::from(flags) << 32 | u64::from(next) << 48;
        let at = self.descriptors + 16 * u64::from(index);
        m.write_obj([address, rest], GuestAddress(at)).unwrap();
    }

    /// Makes the chain of descriptor `head` available.
    pub fn offer(&mut self, m: &GuestMemoryMmap, head: u16) {
        let at = self.available + 4 + 2 * u64::from(self.added % self.size);
        m.write_obj(head, GuestAddress(at)).unwrap();
        self.added = self.added.wrapping_add(1);
        m.write_obj(self.added, GuestAddress(self.available + 2)).unwrap();
    }

    /// `virtqueue_add`: parts as address, bytes, and whether the device writes them.
    pub fn add(&mut self, m: &GuestMemoryMmap, parts: &[(u64, u32, bool)]) {
        if self.added == self.taken {
            self.next_descriptor = 0;
        }
        let head = self.next_descriptor;
        for (i, &(address, bytes, write)) in parts.iter().enumerate() {
            let index = self.next_descriptor;
            self.next_descriptor += 1;
            let next = i + 1 < parts.len();
            let flags = u16::from(next) | u16::from(write) << 1;
            self.descriptor(m, index, address, bytes, flags, index + 1);
        }
        assert!(self.next_descriptor <= self.size);
        self.offer(m, head);
    }

    /// `virtqueue_get_buf`: head and length.
    pub fn take_used(&mut self, m: &GuestMemoryMmap) -> Option<(u32, u32)> {
        let index: u16 = m.read_obj(GuestAddress(self.used + 2)).unwrap();
        if index == self.taken {
            return None;
        }
        let at = self.used + 4 + 8 * u64::from(self.taken % self.size);
        self.taken = self.taken.wrapping_add(1);
        let [head, bytes]: [u32; 2] = m.read_obj(GuestAddress(at)).unwrap();
        Some((head, bytes))
    }

    /// The driver's test before it notifies (`virtqueue_kick_prepare`).
    pub fn declines_notifications(&self, m: &GuestMemoryMmap) -> bool {
        m.read_obj::<u16>(GuestAddress(self.used)).unwrap() & 1 != 0
    }
}
