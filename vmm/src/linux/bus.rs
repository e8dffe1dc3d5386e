//! What a Linux guest finds at its ports and behind its memory.

use std::ops::RangeInclusive;

use vm_memory::GuestMemoryMmap;

use crate::boot::cmdline::VirtioMmio;
use crate::boot::layout::{VIRTIO_MMIO, VIRTIO_MMIO_SIZE};
use crate::device::legacy::Legacy;
use crate::device::pic::{self, Pic};
use crate::device::pit::Pit;
use crate::device::serial::{self, Serial};
use crate::device::virtio::{DeviceError, Entropy, Event, Net, is_status_read};
use crate::device::{State, StateError};
use crate::scenario::DeviceKind;

/// The serial port's IRQ.
pub const SERIAL_IRQ: u8 = serial::IRQ;
/// IRQs of the network devices.
const NET_IRQS: [u8; 4] = [9, 10, 11, 12];
/// IRQs of the entropy devices.
const ENTROPY_IRQS: [u8; 5] = [14, 15, 3, 5, 6];
/// Devices of both kinds.
const DEVICES: usize = NET_IRQS.len() + ENTROPY_IRQS.len();

// A scenario's lines are counted there.
const _: () = assert!(DeviceKind::Net.count() == NET_IRQS.len());
const _: () = assert!(DeviceKind::Entropy.count() == ENTROPY_IRQS.len());

/// Ports of devices with registers of a byte, which wider accesses reach one after the other.
const PORTS: [RangeInclusive<u16>; 6] = [
    pic::MASTER_COMMAND..=pic::MASTER_DATA,
    pic::SLAVE_COMMAND..=pic::SLAVE_DATA,
    pic::MASTER_TRIGGER..=pic::SLAVE_TRIGGER,
    0x40..=0x43,
    0x61..=0x61,
    serial::BASE..=serial::LAST,
];

/// A device that injects interrupts, on a line of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storm {
    /// A network device: its interrupt has softirq work, and may wake a task.
    Net(usize),
    /// An entropy device: its interrupt is all there is.
    Entropy(usize),
}

impl Storm {
    /// Its interrupt line.
    #[inline]
    pub fn irq(self) -> u8 {
        match self {
            Self::Net(index) => NET_IRQS[index % NET_IRQS.len()],
            Self::Entropy(index) => ENTROPY_IRQS[index % ENTROPY_IRQS.len()],
        }
    }

    /// The device with the window number `n`.
    fn at(n: usize) -> Option<Self> {
        match n.checked_sub(NET_IRQS.len()) {
            None => Some(Self::Net(n)),
            Some(i) => (i < ENTROPY_IRQS.len()).then_some(Self::Entropy(i)),
        }
    }
}

/// What the kernel's command line says of the devices, all of which are always there.
pub fn devices() -> Vec<VirtioMmio> {
    let device = |n| {
        let address = VIRTIO_MMIO.start + n as u64 * VIRTIO_MMIO_SIZE;
        Storm::at(n).map(|storm| VirtioMmio { address, irq: storm.irq() })
    };
    (0..DEVICES).map_while(device).collect()
}

/// What a write to a port asks of whoever runs the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Nothing.
    Nothing,
    /// The timer was programmed: its deadline may have moved.
    Timer,
    /// The handler of this IRQ ended its service.
    EndOfInterrupt(u8),
    /// The serial port may have output.
    Console,
    /// The machine is to be reset.
    Reset,
}

/// All devices.
#[derive(Debug)]
pub struct Bus {
    /// The interrupt controllers.
    pub pic: Pic,
    /// The timer.
    pub pit: Pit,
    /// The serial port.
    pub serial: Serial,
    legacy: Legacy,
    nets: [Net; NET_IRQS.len()],
    entropies: [Entropy; ENTROPY_IRQS.len()],
}

impl Default for Bus {
    fn default() -> Self {
        Self {
            pic: Pic::new(),
            pit: Pit::new(),
            serial: Serial::new(),
            legacy: Legacy::new(),
            // Locally administered, and nobody else is on the wire.
            nets: std::array::from_fn(|i| Net::new([0x02, 0, 0, 0, 0, i as u8])),
            entropies: std::array::from_fn(|_| Entropy::new()),
        }
    }
}

impl Bus {
    /// The guest reads `size` bytes at `port`. Of a port that is not there it reads ones.
    pub fn read_port(&mut self, port: u16, size: u8, now_ns: u64) -> u32 {
        if size != 1 && !PORTS.iter().any(|ports| ports.contains(&port)) {
            return u32::MAX;
        }
        let mut byte = |port| match port {
            pic::MASTER_COMMAND
            | pic::MASTER_DATA
            | pic::SLAVE_COMMAND
            | pic::SLAVE_DATA
            | pic::MASTER_TRIGGER
            | pic::SLAVE_TRIGGER => self.pic.read(port),
            0x40..=0x43 | 0x61 => self.pit.read(port, now_ns),
            serial::BASE..=serial::LAST => self.serial.read(port),
            _ => self.legacy.read(port),
        };
        (0..u16::from(size.min(4)))
            .rev()
            .fold(0, |value, i| value << 8 | u32::from(byte(port.wrapping_add(i))))
    }

    /// The guest writes `value`, of `size` bytes, to `port`. A port that is not there takes it.
    pub fn write_port(&mut self, port: u16, size: u8, value: u32, now_ns: u64) -> Written {
        let mut asks = Written::Nothing;
        if size != 1 && !PORTS.iter().any(|ports| ports.contains(&port)) {
            return asks;
        }
        for i in 0..u16::from(size.min(4)) {
            let (port, byte) = (port.wrapping_add(i), (value >> (8 * i)) as u8);
            match port {
                pic::MASTER_COMMAND
                | pic::MASTER_DATA
                | pic::SLAVE_COMMAND
                | pic::SLAVE_DATA
                | pic::MASTER_TRIGGER
                | pic::SLAVE_TRIGGER => {
                    if let Some(irq) = self.pic.write(port, byte) {
                        asks = Written::EndOfInterrupt(irq);
                    }
                }
                0x40..=0x43 | 0x61 => {
                    self.pit.write(port, byte, now_ns);
                    asks = Written::Timer;
                }
                serial::BASE..=serial::LAST => {
                    self.serial.write(port, byte);
                    if self.serial.take_interrupt() {
                        self.pic.pulse(SERIAL_IRQ);
                    }
                    asks = Written::Console;
                }
                _ => {
                    if self.legacy.write(port, byte).is_some() {
                        asks = Written::Reset;
                    }
                }
            }
        }
        asks
    }

    /// The device whose window holds `address`, and where in it.
    #[inline]
    pub fn device_at(address: u64) -> Option<(Storm, u64)> {
        let offset = address.checked_sub(VIRTIO_MMIO.start)?;
        let storm = Storm::at((offset / VIRTIO_MMIO_SIZE).try_into().ok()?)?;
        Some((storm, offset % VIRTIO_MMIO_SIZE))
    }

    /// A read at `offset` of a device's window asks whether it has interrupted.
    #[inline]
    pub fn is_status(offset: u64) -> bool {
        is_status_read(offset)
    }

    /// The guest reads a device's register.
    pub fn read_device(&self, storm: Storm, offset: u64, size: u8) -> Result<u64, DeviceError> {
        let size = size.into();
        Ok(match storm {
            Storm::Net(i) => self.nets[i % NET_IRQS.len()].read(offset, size)?,
            Storm::Entropy(i) => self.entropies[i].read(offset, size)?,
        }
        .into())
    }

    /// The guest writes a device's register.
    pub fn write_device(
        &mut self,
        storm: Storm,
        offset: u64,
        size: u8,
        value: u64,
        memory: &GuestMemoryMmap,
    ) -> Result<Event, DeviceError> {
        let (size, value) = (size.into(), value as u32);
        match storm {
            Storm::Net(i) => self.nets[i].write(offset, size, value, memory),
            Storm::Entropy(i) => self.entropies[i].write(offset, size, value, memory),
        }
    }

    /// A device has something to say: its handler finds it when it reads the status. A network device
    /// has received `frame`, or what its driver drops at once.
    pub fn raise(
        &mut self,
        storm: Storm,
        frame: Option<&[u8]>,
        memory: &GuestMemoryMmap,
    ) -> Result<(), DeviceError> {
        match storm {
            Storm::Net(i) => self.nets[i].receive(memory, frame).map(drop),
            Storm::Entropy(i) => {
                self.entropies[i].raise_config();
                Ok(())
            }
        }
    }

    /// Appends all devices to `bytes`.
    pub fn put(&self, bytes: &mut Vec<u8>) {
        self.pic.save(bytes);
        self.pit.save(bytes);
        self.serial.save(bytes);
        self.legacy.save(bytes);
        for net in &self.nets {
            net.save(bytes);
        }
        for entropy in &self.entropies {
            entropy.save(bytes);
        }
    }

    /// Takes all devices from the front of `bytes`, which may be anything.
    pub fn take(bytes: &mut &[u8]) -> Result<Self, StateError> {
        let mut bus = Self {
            pic: Pic::restore(bytes)?,
            pit: Pit::restore(bytes)?,
            serial: Serial::restore(bytes)?,
            legacy: Legacy::restore(bytes)?,
            ..Self::default()
        };
        for net in &mut bus.nets {
            *net = Net::restore(bytes)?;
        }
        for entropy in &mut bus.entropies {
            *entropy = Entropy::restore(bytes)?;
        }
        Ok(bus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_has_a_window_and_an_interrupt_line_of_its_own() {
        let devices = devices();
        assert_eq!(devices.len(), DEVICES);
        for (i, device) in devices.iter().enumerate() {
            let (storm, offset) = Bus::device_at(device.address).unwrap();
            assert_eq!((storm.irq(), offset), (device.irq, 0));
            assert_eq!(Bus::device_at(device.address + 0xfff), Some((storm, 0xfff)));
            // Not the timer's, the cascade's, the serial port's nor the clock's.
            assert!(![0, 2, SERIAL_IRQ, 8].contains(&device.irq));
            assert!(devices[i + 1..].iter().all(|other| other.irq != device.irq));
        }
        let end = VIRTIO_MMIO.start + DEVICES as u64 * VIRTIO_MMIO_SIZE;
        assert_eq!((Bus::device_at(VIRTIO_MMIO.start - 1), Bus::device_at(end)), (None, None));
    }

    #[test]
    fn ports_that_are_not_there_read_as_ones_and_take_what_is_written() {
        let mut bus = Bus::default();
        assert_eq!(bus.read_port(0xcf8, 4, 0), u32::MAX);
        assert_eq!(bus.read_port(0x1234, 1, 0), 0xff);
        assert_eq!(bus.write_port(0xcf8, 4, 0x8000_00fe, 0), Written::Nothing);
    }

    #[test]
    fn what_a_write_asks_for_is_told() {
        let mut bus = Bus::default();
        assert_eq!(bus.write_port(0x43, 1, 0x34, 0), Written::Timer);
        assert_eq!(bus.write_port(0x3f8, 1, b'a'.into(), 0), Written::Console);
        assert_eq!(bus.write_port(0x64, 1, 0xfe, 0), Written::Reset);
    }

    #[test]
    fn all_devices_come_back_from_their_bytes_and_half_of_them_are_refused() {
        let mut bus = Bus::default();
        for (port, value) in [(0x20u16, 0x11u32), (0x21, 0x30), (0x21, 4), (0x21, 1), (0x43, 0x34)]
        {
            bus.write_port(port, 1, value, 5);
        }
        let mut bytes = Vec::new();
        bus.put(&mut bytes);
        let again = Bus::take(&mut &bytes[..]).unwrap();
        let mut twice = Vec::new();
        again.put(&mut twice);
        assert_eq!(bytes, twice);
        for len in 0..bytes.len() {
            assert!(Bus::take(&mut &bytes[..len]).is_err(), "{len} bytes");
        }
    }
}
