mod driver;
mod hostile;

use std::fmt::Write as _;

use vm_memory::GuestMemoryMmap;

use super::registers::offset;
use super::*;
use crate::device::{State, StateError};
use driver::{Driver, Virtqueue, memory};

const MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 7];

/// A device after a driver's probe, with its queues and their memory.
fn entropy() -> (GuestMemoryMmap, Entropy, Virtqueue) {
    let m = memory();
    let mut e = Entropy::new();
    let [q] = Driver::new(&mut e, &m).probe([16]);
    (m, e, q)
}

fn net(size: u16) -> (GuestMemoryMmap, Net, [Virtqueue; 2]) {
    let m = memory();
    let mut n = Net::new(MAC);
    let queues = Driver::new(&mut n, &m).probe([size, size]);
    (m, n, queues)
}

fn causes(e: &DeviceError) -> String {
    let mut text = e.to_string();
    let mut source = std::error::Error::source(e);
    while let Some(s) = source {
        write!(text, ": {s}").unwrap();
        source = s.source();
    }
    text
}

fn save(device: &impl State) -> Vec<u8> {
    let mut bytes = Vec::new();
    device.save(&mut bytes);
    bytes
}

#[test]
fn linux_probes_an_entropy_device_and_handles_its_configuration_interrupt() {
    let (m, mut e, mut q) = entropy();
    // `request_entropy`.
    q.add(&m, &[(0x8000, 64, true)]);
    assert_eq!(e.write(offset::QUEUE_NOTIFY, 4, 0, &m).unwrap(), Event::Notify(0));
    for _ in 0..3 {
        assert!(e.raise_config());
        // `vm_interrupt`.
        assert!(is_status_read(offset::INTERRUPT_STATUS));
        let status = e.read(offset::INTERRUPT_STATUS, 4).unwrap();
        assert_eq!(status, 2);
        let acknowledged = e.write(offset::INTERRUPT_ACK, 4, status, &m).unwrap();
        assert_eq!(acknowledged, Event::InterruptAck);
        assert_eq!(e.read(offset::INTERRUPT_STATUS, 4).unwrap(), 0);
    }
    assert_eq!(q.take_used(&m), None, "the request is never completed");
    // `virtio_reset_device`.
    assert_eq!(e.write(offset::STATUS, 4, 0, &m).unwrap(), Event::Reset);
    assert_eq!(e, Entropy::new());
}

#[test]
fn a_device_whose_driver_is_not_ready_raises_nothing() {
    let m = memory();
    let mut e = Entropy::new();
    let mut n = Net::new(MAC);
    e.write(offset::STATUS, 4, 3, &m).unwrap();
    assert!(!e.is_running() && !e.raise_config());
    assert!(!n.is_running() && !n.receive(&m, None).unwrap());
    let status = (e.read(offset::INTERRUPT_STATUS, 4), n.read(offset::INTERRUPT_STATUS, 4));
    assert!(matches!(status, (Ok(0), Ok(0))));
}

#[test]
fn an_unhandled_line_reads_no_reason_and_keeps_it() {
    let (_, mut e, _) = entropy();
    e.set_unhandled(true);
    assert!(e.raise_config());
    assert_eq!(e.read(offset::INTERRUPT_STATUS, 4).unwrap(), 0);
    assert_eq!(e.read(offset::STATUS, 4).unwrap(), 15);
    e.set_unhandled(false);
    assert_eq!(e.read(offset::INTERRUPT_STATUS, 4).unwrap(), 2);
}

#[test]
fn linux_reads_a_network_devices_address_and_finds_two_queues() {
    let (m, mut n, _) = net(16);
    let mac: Vec<u32> = (0..6).map(|at| n.read(offset::CONFIG + at, 1).unwrap()).collect();
    assert_eq!(mac, MAC.map(u32::from));
    assert_eq!(n.read(offset::CONFIG + 4, 2).unwrap(), 0x0700);
    assert_eq!(n.read(offset::CONFIG, 4).unwrap(), 0x0000_0002);
    assert_eq!(n.read(offset::CONFIG_GENERATION, 4).unwrap(), 0);
    n.write(offset::QUEUE_SEL, 4, 2, &m).unwrap();
    assert_eq!(n.read(offset::QUEUE_NUM_MAX, 4).unwrap(), 0);
    n.write(offset::QUEUE_READY, 4, 1, &m).unwrap();
    assert_eq!(n.read(offset::QUEUE_READY, 4).unwrap(), 0);
    assert_eq!(n.write(offset::QUEUE_NOTIFY, 4, 2, &m).unwrap(), Event::None);
    // `vm_get_shm_region`: no such region.
    n.write(offset::SHM_SEL, 4, 0, &m).unwrap();
    assert_eq!(n.read(offset::SHM_LEN_LOW + 4, 4).unwrap(), u32::MAX);
}

#[test]
fn a_short_frame_uses_a_buffer_and_a_whole_one_arrives_behind_an_empty_header() {
    let (m, mut n, [mut rx, _]) = net(16);
    assert!(rx.declines_notifications(&m));
    rx.add(&m, &[(0x8000, 1530, true)]);
    rx.add(&m, &[(0x9000, 12, true), (0xa000, 10, true), (0xb000, 1508, true)]);
    driver::fill(&m, 0x9000, 12, 0xff);
    assert!(n.receive(&m, None).unwrap());
    assert_eq!(n.read(offset::INTERRUPT_STATUS, 4).unwrap(), 1);
    let frame = Vec::from_iter(0..60u8);
    assert!(n.receive(&m, Some(&frame)).unwrap());
    assert_eq!(rx.take_used(&m), Some((0, 0)), "shorter than header and Ethernet header");
    assert_eq!(rx.take_used(&m), Some((1, 72)));
    assert_eq!(driver::bytes(&m, 0x9000, 12), [0; 12]);
    assert_eq!([driver::bytes(&m, 0xa000, 10), driver::bytes(&m, 0xb000, 50)].concat(), frame);
    n.write(offset::INTERRUPT_ACK, 4, 1, &m).unwrap();
    assert!(!n.receive(&m, None).unwrap(), "no buffer is left");
    assert_eq!(n.read(offset::INTERRUPT_STATUS, 4).unwrap(), 1, "the interrupt comes all the same");
}

#[test]
fn what_the_guest_sends_is_given_back_at_once_without_an_interrupt() {
    let (m, mut n, [_, mut tx]) = net(4);
    for sent in 0..3 {
        assert_eq!(n.sent(), 2 * sent);
        tx.add(&m, &[(0x8000, 12, false), (0x9000, 60, false)]);
        tx.add(&m, &[(0xa000, 72, false)]);
        assert_eq!(n.write(offset::QUEUE_NOTIFY, 4, 1, &m).unwrap(), Event::Notify(1));
        assert_eq!((tx.take_used(&m), tx.take_used(&m)), (Some((0, 0)), Some((2, 0))));
    }
    assert_eq!(n.read(offset::INTERRUPT_STATUS, 4).unwrap(), 0);
}

#[test]
fn nothing_is_sent_before_the_driver_is_ready() {
    let m = memory();
    let mut n = Net::new(MAC);
    let mut tx = Virtqueue::at(0x1000, 4);
    let mut driver = Driver::new(&mut n, &m);
    driver.negotiate(1 << 32);
    driver.setup(1, &tx);
    tx.add(&m, &[(0x8000, 72, false)]);
    n.write(offset::QUEUE_NOTIFY, 4, 1, &m).unwrap();
    assert_eq!((n.sent(), tx.take_used(&m)), (0, None));
}

#[test]
fn the_rings_go_round_and_their_indices_wrap() {
    let (m, mut n, [mut rx, _]) = net(4);
    for i in 0..0x1_0004u32 {
        rx.add(&m, &[(0x8000, 100, true)]);
        assert!(n.receive(&m, Some(&[0; 14])).unwrap(), "{i}");
        assert_eq!(rx.take_used(&m), Some((0, 26)));
    }
}

#[test]
fn a_restored_device_goes_on_where_it_was_saved() {
    let (m, mut n, [mut rx, _]) = net(16);
    let (_, mut e, _) = entropy();
    rx.add(&m, &[(0x8000, 100, true)]);
    rx.add(&m, &[(0x9000, 100, true)]);
    n.receive(&m, None).unwrap();
    e.raise_config();
    e.set_unhandled(true);
    let bytes = [save(&n), save(&e), vec![9]].concat();
    let mut left = &bytes[..];
    let mut restored = Net::restore(&mut left).unwrap();
    let restored_entropy = Entropy::restore(&mut left).unwrap();
    e.set_unhandled(false);
    assert_eq!((&restored, &restored_entropy, left), (&n, &e, &[9][..]));
    assert!(restored.receive(&m, None).unwrap());
    assert_eq!((rx.take_used(&m), rx.take_used(&m)), (Some((0, 0)), Some((1, 0))));
}

#[test]
fn features_that_were_not_offered_are_not_agreed_on() {
    // What the driver takes, and whether the device agrees: `virtio_features_ok`.
    for (features, agreed) in [
        (1 << 32 | 1 << 5, true),
        (1 << 32, true),
        (1 << 5, false),
        (0, false),
        (1 << 32 | 1 << 15, false),
        (1 << 32 | 1 << 28, false),
        (1 << 32 | 1 << 63, false),
    ] {
        let m = memory();
        let mut n = Net::new(MAC);
        let status = Driver::new(&mut n, &m).negotiate(features);
        assert_eq!(status & 8 != 0, agreed, "{features:#x}");
        let event = n.write(offset::STATUS, 4, 15, &m).unwrap();
        assert_eq!(event == Event::DriverOk, agreed, "{features:#x}");
        assert_eq!(n.is_running(), agreed);
        if agreed {
            // Too late to ask for more.
            n.write(offset::DRIVER_FEATURES_SEL, 4, 0, &m).unwrap();
            n.write(offset::DRIVER_FEATURES, 4, 1 << 15, &m).unwrap();
            let again = n.write(offset::STATUS, 4, 15, &m).unwrap();
            assert_eq!((again, n.is_running()), (Event::None, true));
        }
    }
}

#[test]
fn another_devices_state_and_impossible_ones_are_refused() {
    let (_, e, _) = entropy();
    let (_, n, _) = net(16);
    let message = |bytes: &[u8]| Net::restore(&mut &bytes[..]).unwrap_err().to_string();
    assert_eq!(
        message(&save(&e)),
        "restore network device: device ID is 0x4, expected this device's"
    );
    let bytes = save(&n);
    let end = bytes.len();
    assert_eq!(message(&bytes[..20]), "restore network device: expected 88 bytes, got 20");
    assert!(matches!(
        Net::restore(&mut &bytes[..end - 1]),
        Err(StateError::Short { expected: 16, got: 15, .. })
    ));
    let rows: [(usize, u8, &str); 9] = [
        (32, 3, "queue size is 0x3, expected a power of two up to 256"),
        (33, 2, "queue size is 0x210, expected a power of two up to 256"),
        (38, 2, "a field holds a value that is not one of its own"),
        (39, 1, "a field holds a value that is not one of its own"),
        (84, 4, "InterruptStatus is 0x4, expected bits 0 and 1 only"),
        (0, 1, "driver features is 0x100000021, expected version 1 and what is offered"),
        (86, 2, "a field holds a value that is not one of its own"),
        (87, 1, "a field holds a value that is not one of its own"),
        (end - 1, 1, "a field holds a value that is not one of its own"),
    ];
    for (at, value, expected) in rows {
        let mut bytes = bytes.clone();
        bytes[at] = if at == 0 { bytes[at] | value } else { value };
        assert_eq!(message(&bytes), format!("restore network device: {expected}"), "byte {at}");
    }
}
