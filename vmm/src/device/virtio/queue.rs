//! Split virtqueues (virtio 1.2, section 2.7), every index and address of which the guest provides and
//! this module checks.
//!
//! Not rust-vmm's virtio-queue: there a broken chain ends as a short one, and its errors name neither
//! address nor index. What is needed here, without event indices and indirect tables, is not longer than
//! the code that would make up for that.

use std::sync::atomic::Ordering;

use thiserror::Error;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryError, GuestMemoryMmap};
use zerocopy::{Immutable, IntoBytes, TryFromBytes};

use crate::device::state::{StateError, Unused};

/// Most buffers of a queue (QueueNumMax).
pub(super) const MAX_SIZE: u16 = 256;

/// `VIRTQ_DESC_F_NEXT`, `VIRTQ_DESC_F_WRITE`.
const DESCRIPTOR_NEXT: u16 = 1;
const DESCRIPTOR_WRITE: u16 = 2;
/// `VIRTQ_USED_F_NO_NOTIFY`.
const USED_NO_NOTIFY: u16 = 1;

const DESCRIPTOR_BYTES: u64 = 16;
/// `flags`, `idx`, the ring, `used_event` or `avail_event`.
const RING_HEADER_BYTES: u64 = 4;
const INDEX_AT: u64 = 2;
const AVAILABLE_BYTES: u64 = 2;
const USED_BYTES: u64 = 8;
const EVENT_BYTES: u64 = 2;

/// What the guest made of a queue.
#[derive(Debug, Error)]
pub enum QueueError {
    /// Its size is none.
    #[error("queue size is {got}, expected a power of two up to {max}", max = MAX_SIZE)]
    Size {
        /// What the driver set.
        got: u32,
    },
    /// One of its three areas is misaligned or not in guest memory.
    #[error(
        "{what} at {address:#x}: expected {align}-byte alignment and {size} bytes of guest memory"
    )]
    Area {
        /// Which.
        what: &'static str,
        /// Guest physical address.
        address: u64,
        /// Needed alignment, bytes.
        align: u64,
        /// Needed size, bytes.
        size: u64,
    },
    /// More buffers than it has.
    #[error("available index is {got}, expected at most {size} beyond {taken}")]
    AvailableIndex {
        /// What the driver wrote.
        got: u16,
        /// Size of the queue.
        size: u16,
        /// Buffers that the device has taken.
        taken: u16,
    },
    /// An index of no descriptor.
    #[error("{what} descriptor is {got}, expected one of {size}")]
    Descriptor {
        /// "head" or "next".
        what: &'static str,
        /// What the driver wrote.
        got: u16,
        /// Size of the queue.
        size: u16,
    },
    /// A chain that does not end.
    #[error("chain of descriptor {head} is longer than the {size} descriptors there are")]
    Loop {
        /// Its first descriptor.
        head: u16,
        /// Size of the queue.
        size: u16,
    },
    /// A feature that was not offered.
    #[error("descriptor {index} has flags {got:#x}, expected next (1) and write (2) only")]
    Flags {
        /// The descriptor.
        index: u16,
        /// What the driver wrote.
        got: u16,
    },
    /// A buffer that the device is to write has not the room.
    #[error("chain of descriptor {head} has room for {got} bytes, expected {expected}")]
    Room {
        /// Its first descriptor.
        head: u16,
        /// Bytes that the device may write.
        got: u64,
        /// Bytes to write.
        expected: u64,
    },
    /// An address is not in guest memory.
    #[error("access {what} at {address:#x}")]
    Memory {
        /// What was to be read or written.
        what: &'static str,
        /// Guest physical address.
        address: u64,
        /// What vm-memory says.
        source: GuestMemoryError,
    },
}

/// `struct virtq_desc`.
struct Descriptor {
    address: u64,
    bytes: u32,
    flags: u16,
    next: u16,
}

/// A queue's registers and how far the device is in it. Each access to guest memory is checked, so any
/// values are safe to hold.
#[derive(Clone, Debug, PartialEq, Eq, IntoBytes, TryFromBytes, Immutable)]
#[repr(C)]
pub(super) struct Queue {
    /// Guest physical addresses of descriptor table, available and used ring.
    pub areas: [u64; 3],
    size: u16,
    /// Buffers taken from the available ring; wraps.
    next_available: u16,
    /// Buffers put into the used ring; wraps.
    next_used: u16,
    ready: bool,
    unused: Unused,
}

impl Queue {
    pub const RESET: Self = Self {
        areas: [0; 3],
        size: MAX_SIZE,
        next_available: 0,
        next_used: 0,
        ready: false,
        unused: Unused::Zero,
    };

    /// The driver gave it to the device.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    pub fn size(&self) -> u16 {
        self.size
    }

    /// QueueNum.
    pub fn set_size(&mut self, size: u32) -> Result<(), QueueError> {
        if !size.is_power_of_two() || size > MAX_SIZE.into() {
            return Err(QueueError::Size { got: size });
        }
        self.size = size as u16;
        Ok(())
    }

    /// QueueReady. A queue starts at its beginning.
    pub fn set_ready(&mut self, memory: &GuestMemoryMmap, ready: bool) -> Result<(), QueueError> {
        self.ready = false;
        if ready {
            let size = u64::from(self.size);
            let ring_bytes = RING_HEADER_BYTES + EVENT_BYTES;
            let areas = [
                ("descriptor table", 16, DESCRIPTOR_BYTES * size),
                ("available ring", 2, ring_bytes + AVAILABLE_BYTES * size),
                ("used ring", 4, ring_bytes + USED_BYTES * size),
            ];
            for ((what, align, size), address) in areas.into_iter().zip(self.areas) {
                let inside = memory.check_range(GuestAddress(address), size as usize);
                if !address.is_multiple_of(align) || !inside {
                    return Err(QueueError::Area { what, address, align, size });
                }
            }
        }
        (self.next_available, self.next_used, self.ready) = (0, 0, ready);
        Ok(())
    }

    /// Asks the driver not to tell of new buffers (`VIRTQ_USED_F_NO_NOTIFY`).
    pub fn decline_notifications(&self, memory: &GuestMemoryMmap) -> Result<(), QueueError> {
        let address = self.areas[2];
        memory
            .store(USED_NO_NOTIFY, GuestAddress(address), Ordering::Relaxed)
            .map_err(|source| QueueError::Memory { what: "used ring's flags", address, source })
    }

    /// Takes the next available buffer: its first descriptor.
    pub fn take(&mut self, memory: &GuestMemoryMmap) -> Result<Option<u16>, QueueError> {
        if !self.ready {
            return Ok(None);
        }
        let size = self.size;
        let ring = self.areas[1];
        let got = load(memory, "available index", ring.saturating_add(INDEX_AT))?;
        match got.wrapping_sub(self.next_available) {
            0 => return Ok(None),
            n if n > size => {
                return Err(QueueError::AvailableIndex { got, size, taken: self.next_available });
            }
            _ => {}
        }
        let at = RING_HEADER_BYTES + AVAILABLE_BYTES * u64::from(self.next_available % size);
        let head = load(memory, "available ring", ring.saturating_add(at))?;
        if head >= size {
            return Err(QueueError::Descriptor { what: "head", got: head, size });
        }
        self.next_available = self.next_available.wrapping_add(1);
        Ok(Some(head))
    }

    /// Writes `bytes` to the buffer that begins with descriptor `head`.
    pub fn fill(
        &self,
        memory: &GuestMemoryMmap,
        head: u16,
        bytes: &[u8],
    ) -> Result<(), QueueError> {
        let (mut left, mut room, mut index) = (bytes, 0, head);
        for _ in 0..self.size {
            let d = self.descriptor(memory, index)?;
            if d.flags & DESCRIPTOR_WRITE != 0 {
                let (now, later) = left.split_at(left.len().min(d.bytes as usize));
                memory.write_slice(now, GuestAddress(d.address)).map_err(|source| {
                    QueueError::Memory { what: "buffer", address: d.address, source }
                })?;
                left = later;
                room += u64::from(d.bytes);
            }
            if left.is_empty() {
                return Ok(());
            }
            if d.flags & DESCRIPTOR_NEXT == 0 {
                let expected = bytes.len() as u64;
                return Err(QueueError::Room { head, got: room, expected });
            }
            index = d.next;
            if index >= self.size {
                return Err(QueueError::Descriptor { what: "next", got: index, size: self.size });
            }
        }
        Err(QueueError::Loop { head, size: self.size })
    }

    fn descriptor(&self, memory: &GuestMemoryMmap, index: u16) -> Result<Descriptor, QueueError> {
        let address = self.areas[0].saturating_add(DESCRIPTOR_BYTES * u64::from(index));
        let [address, rest]: [u64; 2] = memory
            .read_obj(GuestAddress(address))
            .map_err(|source| QueueError::Memory { what: "descriptor", address, source })?;
        let d = Descriptor {
            address,
            bytes: rest as u32,
            flags: (rest >> 32) as u16,
            next: (rest >> 48) as u16,
        };
        if d.flags & !(DESCRIPTOR_NEXT | DESCRIPTOR_WRITE) != 0 {
            return Err(QueueError::Flags { index, got: d.flags });
        }
        Ok(d)
    }

    /// Gives the buffer that begins with descriptor `head` back, `bytes` of it written.
    pub fn give_back(
        &mut self,
        memory: &GuestMemoryMmap,
        head: u16,
        bytes: u32,
    ) -> Result<(), QueueError> {
        let ring = self.areas[2];
        let at = RING_HEADER_BYTES + USED_BYTES * u64::from(self.next_used % self.size);
        let element = ring.saturating_add(at);
        memory
            .write_obj([u32::from(head), bytes], GuestAddress(element))
            .map_err(|source| QueueError::Memory { what: "used ring", address: element, source })?;
        self.next_used = self.next_used.wrapping_add(1);
        let index = ring.saturating_add(INDEX_AT);
        memory
            .store(self.next_used, GuestAddress(index), Ordering::Release)
            .map_err(|source| QueueError::Memory { what: "used index", address: index, source })
    }

    /// Refuses what no driver can have set.
    pub fn check(&self, device: &'static str) -> Result<(), StateError> {
        if !self.size.is_power_of_two() || self.size > MAX_SIZE {
            return Err(StateError::Field {
                device,
                field: "queue size",
                expected: "a power of two up to 256",
                got: self.size.into(),
            });
        }
        Ok(())
    }
}

/// The two bytes at `address`, little-endian as this host is.
fn load(memory: &GuestMemoryMmap, what: &'static str, address: u64) -> Result<u16, QueueError> {
    memory.load(GuestAddress(address), Ordering::Acquire).map_err(|source| QueueError::Memory {
        what,
        address,
        source,
    })
}
