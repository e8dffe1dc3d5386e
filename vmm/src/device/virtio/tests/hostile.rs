//! Guests that do what no driver does.

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::driver::{Driver, MEMORY, Virtqueue, memory};
use super::*;

/// The error of receiving a frame into what `prepare` made of a queue of 4.
fn receive_error(prepare: impl Fn(&GuestMemoryMmap, &mut Virtqueue)) -> String {
    let (m, mut n, [mut rx, _]) = net(4);
    prepare(&m, &mut rx);
    causes(&n.receive(&m, Some(&[0; 60])).unwrap_err())
}

fn write_u16(m: &GuestMemoryMmap, at: u64, value: u16) {
    m.write_obj(value, GuestAddress(at)).unwrap();
}

#[test]
fn broken_rings_are_named() {
    let available_index = receive_error(|m, q| write_u16(m, q.available + 2, 5));
    assert_eq!(
        available_index,
        "virtio queue 0: available index is 5, expected at most 4 beyond 0"
    );
    let backwards = receive_error(|m, q| write_u16(m, q.available + 2, 0xffff));
    assert_eq!(backwards, "virtio queue 0: available index is 65535, expected at most 4 beyond 0");
    let head = receive_error(|m, q| q.offer(m, 4));
    assert_eq!(head, "virtio queue 0: head descriptor is 4, expected one of 4");
    let next = receive_error(|m, q| {
        q.descriptor(m, 0, 0x8000, 10, 3, 4);
        q.offer(m, 0);
    });
    assert_eq!(next, "virtio queue 0: next descriptor is 4, expected one of 4");
}

#[test]
fn broken_chains_are_named_and_end() {
    let own_tail = receive_error(|m, q| {
        q.descriptor(m, 2, 0x8000, 1, 3, 2);
        q.offer(m, 2);
    });
    let looped = "virtio queue 0: chain of descriptor 2 is longer than the 4 descriptors there are";
    assert_eq!(own_tail, looped);
    let readable = receive_error(|m, q| {
        q.descriptor(m, 2, 0x8000, u32::MAX, 1, 3);
        q.descriptor(m, 3, 0x8000, u32::MAX, 1, 2);
        q.offer(m, 2);
    });
    assert_eq!(readable, looped);
    let indirect = receive_error(|m, q| {
        q.descriptor(m, 1, 0x8000, 16, 4, 0);
        q.offer(m, 1);
    });
    assert_eq!(
        indirect,
        "virtio queue 0: descriptor 1 has flags 0x4, expected next (1) and write (2) only"
    );
}

#[test]
fn buffers_that_are_too_small_or_nowhere_are_named() {
    let small = receive_error(|m, q| q.add(m, &[(0x8000, 40, true), (0x9000, 31, true)]));
    assert_eq!(small, "virtio queue 0: chain of descriptor 0 has room for 71 bytes, expected 72");
    let readable = receive_error(|m, q| q.add(m, &[(0x8000, 4096, false)]));
    assert_eq!(readable, "virtio queue 0: chain of descriptor 0 has room for 0 bytes, expected 72");
    for address in [MEMORY, MEMORY - 71, 0xd000_0000, u64::MAX, u64::MAX - 71] {
        let outside = receive_error(|m, q| q.add(m, &[(address, 4096, true)]));
        let expected = format!("virtio queue 0: access buffer at {address:#x}");
        assert!(outside.starts_with(&expected), "{outside}");
    }
    // The last byte of memory is one.
    let (m, mut n, [mut rx, _]) = net(4);
    rx.add(&m, &[(MEMORY - 72, u32::MAX, true)]);
    assert!(n.receive(&m, Some(&[0; 60])).unwrap());
}

#[test]
fn a_queue_that_is_not_in_memory_or_misaligned_is_refused_when_it_is_to_be_used() {
    let end = MEMORY;
    // Areas: 16 * 16, 6 + 2 * 16, 6 + 8 * 16 bytes.
    let rows: [([u64; 3], &str); 8] = [
        (
            [0x1008, 0, 0],
            "descriptor table at 0x1008: expected 16-byte alignment and 256 bytes of guest memory",
        ),
        (
            [end - 0xf0, 0, 0],
            "descriptor table at 0xff10: expected 16-byte alignment and 256 bytes of guest memory",
        ),
        (
            [0, 0x1001, 0],
            "available ring at 0x1001: expected 2-byte alignment and 38 bytes of guest memory",
        ),
        (
            [0, end - 36, 0],
            "available ring at 0xffdc: expected 2-byte alignment and 38 bytes of guest memory",
        ),
        (
            [0, 0, 0x1002],
            "used ring at 0x1002: expected 4-byte alignment and 134 bytes of guest memory",
        ),
        (
            [0, 0, end - 132],
            "used ring at 0xff7c: expected 4-byte alignment and 134 bytes of guest memory",
        ),
        (
            [0, 0, u64::MAX - 3],
            "used ring at 0xfffffffffffffffc: expected 4-byte alignment and 134 bytes of guest memory",
        ),
        (
            [1 << 63, 0, 0],
            "descriptor table at 0x8000000000000000: expected 16-byte alignment and 256 bytes of \
             guest memory",
        ),
    ];
    for (areas, expected) in rows {
        let m = memory();
        let mut n = Net::new(MAC);
        n.write(offset::QUEUE_SEL, 4, 1, &m).unwrap();
        n.write(offset::QUEUE_NUM, 4, 16, &m).unwrap();
        for (low, address) in
            [offset::QUEUE_DESC_LOW, offset::QUEUE_AVAIL_LOW, offset::QUEUE_USED_LOW]
                .into_iter()
                .zip(areas)
        {
            n.write(low, 4, address as u32, &m).unwrap();
            n.write(low + 4, 4, (address >> 32) as u32, &m).unwrap();
        }
        let refused = n.write(offset::QUEUE_READY, 4, 1, &m).unwrap_err();
        assert_eq!(causes(&refused), format!("virtio queue 1: {expected}"));
        assert_eq!(n.read(offset::QUEUE_READY, 4).unwrap(), 0);
    }
}

#[test]
fn queue_sizes_that_are_none_are_refused() {
    let m = memory();
    for size in [0, 3, 257, 512, 0x1_0000, 0x1_0010, u32::MAX] {
        let refused = Entropy::new().write(offset::QUEUE_NUM, 4, size, &m).unwrap_err();
        assert_eq!(
            causes(&refused),
            format!("virtio queue 0: queue size is {size}, expected a power of two up to 256")
        );
    }
    for size in [1, 2, 256] {
        Entropy::new().write(offset::QUEUE_NUM, 4, size, &m).unwrap();
    }
}

#[test]
fn a_queue_in_use_stays_where_it_is() {
    let (m, mut n, [mut rx, _]) = net(4);
    n.write(offset::QUEUE_SEL, 4, 0, &m).unwrap();
    for register in [offset::QUEUE_NUM, offset::QUEUE_AVAIL_LOW, offset::QUEUE_USED_HIGH] {
        n.write(register, 4, 0xff, &m).unwrap();
    }
    rx.add(&m, &[(0x8000, 100, true)]);
    assert!(n.receive(&m, None).unwrap());
    assert_eq!(rx.take_used(&m), Some((0, 0)));
    // Taken away and given again, it starts at its beginning.
    n.write(offset::QUEUE_READY, 4, 0, &m).unwrap();
    assert!(!n.receive(&m, None).unwrap());
    let again = Virtqueue::at(0x8000, 4);
    Driver::new(&mut n, &m).setup(0, &again);
    assert!(!n.receive(&m, None).unwrap());
}

#[test]
fn accesses_that_no_driver_makes_are_named() {
    let m = memory();
    let mut n = Net::new(MAC);
    for (offset, size) in [
        (offset::MAGIC_VALUE, 1),
        (offset::INTERRUPT_STATUS, 2),
        (offset::INTERRUPT_STATUS, 8),
        (offset::STATUS + 1, 4),
        (offset::DRIVER_FEATURES, 4),
        (offset::SHM_LEN_LOW + 2, 4),
        (offset::CONFIG - 1, 4),
        (offset::CONFIG + 5, 2),
        (offset::CONFIG + 6, 1),
        (offset::CONFIG, 0),
        (offset::CONFIG, 3),
        (WINDOW_BYTES, 4),
        (u64::MAX, usize::MAX),
    ] {
        let refused = n.read(offset, size).unwrap_err().to_string();
        let start = format!("guest reads {size} bytes at offset {offset:#x} of a virtio device:");
        assert!(refused.starts_with(&start), "{refused}");
    }
    let before = n.clone();
    for (offset, size) in [
        (offset::STATUS, 1),
        (offset::MAGIC_VALUE, 4),
        (offset::INTERRUPT_STATUS, 4),
        (offset::CONFIG, 4),
        (u64::MAX, 4),
    ] {
        let refused = n.write(offset, size, 0xff, &m).unwrap_err().to_string();
        let start = format!("guest writes {size} bytes at offset {offset:#x} of a virtio device:");
        assert!(refused.starts_with(&start), "{refused}");
    }
    assert_eq!(n, before);
}

/// Registers that a write may go to.
fn register() -> impl Strategy<Value = u64> {
    use offset::*;
    prop_oneof![
        proptest::sample::select(vec![
            QUEUE_SEL,
            QUEUE_NUM,
            QUEUE_READY,
            QUEUE_NOTIFY,
            STATUS,
            INTERRUPT_ACK,
            QUEUE_DESC_LOW,
            QUEUE_AVAIL_LOW,
            QUEUE_USED_LOW,
            DRIVER_FEATURES,
            DRIVER_FEATURES_SEL,
        ]),
        0..WINDOW_BYTES,
    ]
}

proptest! {
    /// Rings full of small numbers, so that what is wrong lies deep.
    #[test]
    fn no_memory_makes_a_device_panic_or_hang(
        contents in proptest::collection::vec(prop_oneof![0u16..6, any::<u16>()], 64),
        frames in proptest::collection::vec(proptest::option::of(0usize..100), 1..20),
    ) {
        let m = memory();
        let mut n = Net::new(MAC);
        let [rx, tx] = Driver::new(&mut n, &m).probe([4, 4]);
        for (i, &value) in contents.iter().enumerate() {
            let area = [rx.descriptors, rx.available, tx.descriptors, tx.available][i % 4];
            m.write_obj(value, GuestAddress(area + 2 * (i as u64 / 4))).unwrap();
        }
        for frame in frames {
            let frame = frame.map(|bytes| vec![1; bytes]);
            let _ = n.receive(&m, frame.as_deref());
            let _ = n.write(offset::QUEUE_NOTIFY, 4, 1, &m);
        }
        prop_assert!(n.sent() <= 20 * 4);
    }

    #[test]
    fn no_sequence_of_writes_makes_a_device_panic_or_one_that_cannot_be_saved(
        writes in proptest::collection::vec(
            (register(), prop_oneof![0u32..17, Just(0x1000), any::<u32>()]), 0..60),
    ) {
        let m = memory();
        let (mut n, mut e) = (Net::new(MAC), Entropy::new());
        for (offset, value) in writes {
            let _ = n.write(offset, 4, value, &m);
            let _ = e.write(offset, 4, value, &m);
            let _ = n.receive(&m, Some(&[0; 14]));
            e.raise_config();
            for size in [1, 2, 4] {
                let _ = (n.read(offset, size), e.read(offset, size));
            }
        }
        prop_assert_eq!(Net::restore(&mut &save(&n)[..]), Ok(n));
        prop_assert_eq!(Entropy::restore(&mut &save(&e)[..]), Ok(e));
    }

    #[test]
    fn any_bytes_restore_to_a_device_that_never_panics_or_are_refused(
        flips in proptest::collection::vec((0usize..104, any::<u8>()), 0..12),
    ) {
        let (m, n, [mut rx, _]) = net(16);
        rx.add(&m, &[(0x8000, 100, true)]);
        let mut bytes = save(&n);
        for (at, value) in flips {
            bytes[at] = value;
        }
        if let Ok(mut n) = Net::restore(&mut &bytes[..]) {
            let _ = n.receive(&m, Some(&[0; 60]));
            let _ = n.write(offset::QUEUE_NOTIFY, 4, 1, &m);
            let _ = n.write(offset::STATUS, 4, 15, &m);
            prop_assert_eq!(Net::restore(&mut &save(&n)[..]), Ok(n));
        }
    }
}
