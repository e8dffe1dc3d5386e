use proptest::prelude::*;

use super::*;

/// First vector of the legacy lines in Linux (`ISA_IRQ_VECTOR(0)`).
const VECTOR: u8 = 0x30;

/// A controller pair after Linux's `init_8259A` and with `mask` restored.
fn linux(mask: u16) -> Pic {
    let mut p = Pic::new();
    let words = [
        (MASTER_DATA, 0xff),
        (MASTER_COMMAND, 0x11),
        (MASTER_DATA, VECTOR),
        (MASTER_DATA, 0x04),
        (MASTER_DATA, 0x01),
        (SLAVE_COMMAND, 0x11),
        (SLAVE_DATA, VECTOR + 8),
        (SLAVE_DATA, 0x02),
        (SLAVE_DATA, 0x01),
        (MASTER_DATA, mask as u8),
        (SLAVE_DATA, (mask >> 8) as u8),
    ];
    for (port, value) in words {
        assert_eq!(p.write(port, value), None);
    }
    p
}

/// `mask_and_ack_8259A`; what each EOI ended.
fn mask_and_ack(p: &mut Pic, irq: u8) -> Vec<u8> {
    let (data, command) =
        if irq < 8 { (MASTER_DATA, MASTER_COMMAND) } else { (SLAVE_DATA, SLAVE_COMMAND) };
    let mask = p.read(data);
    p.write(data, mask | 1 << (irq & 7));
    let mut ended = Vec::from_iter(p.write(command, 0x60 + (irq & 7)));
    if irq >= 8 {
        ended.extend(p.write(MASTER_COMMAND, 0x60 + CASCADE));
    }
    ended
}

fn unmask(p: &mut Pic, irq: u8) {
    let data = if irq < 8 { MASTER_DATA } else { SLAVE_DATA };
    let mask = p.read(data);
    p.write(data, mask & !(1 << (irq & 7)));
}

#[test]
fn linux_finds_the_controller_before_it_initialises_it() {
    let mut p = Pic::new();
    p.write(SLAVE_DATA, 0xff);
    p.write(MASTER_DATA, 0xfb);
    assert_eq!(p.read(MASTER_DATA), 0xfb);
    p.write(MASTER_DATA, 0);
    p.pulse(0);
    assert_eq!(p.deliverable(), None, "it has no vector yet");
}

#[test]
fn each_line_is_delivered_with_its_vector_and_its_eoi_is_told() {
    for irq in (0..LINES).filter(|&irq| irq != CASCADE) {
        let mut p = linux(0);
        p.pulse(irq);
        assert_eq!(p.deliverable(), Some(irq));
        assert_eq!(p.acknowledge(), Some(VECTOR + irq));
        assert_eq!((p.deliverable(), p.acknowledge()), (None, None));
        let ended = if irq < 8 { vec![irq] } else { vec![irq, CASCADE] };
        assert_eq!(mask_and_ack(&mut p, irq), ended);
        assert!(mask_and_ack(&mut p, irq).is_empty(), "nothing is in service any more");
        assert!(p.is_masked(irq));
        p.pulse(irq);
        assert_eq!(p.deliverable(), None);
        unmask(&mut p, irq);
        assert_eq!(p.deliverable(), Some(irq), "it came while its handler ran");
    }
}

#[test]
fn nothing_is_delivered_between_the_initialisation_command_words() {
    let mut p = linux(0);
    for word in [0x11, VECTOR, 0x04] {
        p.write(if word == 0x11 { MASTER_COMMAND } else { MASTER_DATA }, word);
        p.pulse(0);
        assert_eq!((p.deliverable(), p.acknowledge()), (None, None), "{word:#x}");
    }
    p.write(MASTER_DATA, 0x01);
    assert_eq!(p.acknowledge(), Some(VECTOR));
}

#[test]
fn automatic_end_of_interrupt_leaves_nothing_in_service() {
    let mut p = linux(0);
    for (port, word) in
        [(MASTER_COMMAND, 0x11), (MASTER_DATA, VECTOR), (MASTER_DATA, 0x04), (MASTER_DATA, 0x03)]
    {
        p.write(port, word);
    }
    p.pulse(5);
    assert_eq!(p.acknowledge(), Some(VECTOR + 5));
    p.pulse(7);
    assert_eq!(p.acknowledge(), Some(VECTOR + 7));
    assert_eq!(p.write(MASTER_COMMAND, 0x20), None);
}

#[test]
fn a_line_in_service_holds_back_itself_and_later_ones_but_not_earlier_ones() {
    let mut p = linux(0);
    p.pulse(9);
    p.acknowledge();
    for later in [9, 10, 15, 3, 7] {
        p.pulse(later);
        assert_eq!(p.deliverable(), None, "IRQ {later}");
    }
    p.pulse(1);
    assert_eq!(p.acknowledge(), Some(VECTOR + 1));
    assert_eq!(p.write(MASTER_COMMAND, 0x20), Some(1), "the first of two in service");
    assert_eq!(p.write(SLAVE_COMMAND, 0x20), Some(9));
    assert_eq!(p.write(MASTER_COMMAND, 0x20), Some(CASCADE));
    let mut order = Vec::new();
    while let Some(irq) = p.deliverable() {
        p.acknowledge();
        order.push(irq);
        mask_and_ack(&mut p, irq);
    }
    assert_eq!(order, [9, 10, 15, 3, 7]);
}

#[test]
fn the_special_mask_mode_lets_later_lines_pass_a_masked_one() {
    let mut p = linux(0);
    p.pulse(3);
    p.acknowledge();
    p.write(MASTER_DATA, 1 << 3);
    p.pulse(6);
    assert_eq!(p.deliverable(), None);
    p.write(MASTER_COMMAND, 0x68);
    assert_eq!(p.acknowledge(), Some(VECTOR + 6));
    assert_eq!(p.write(MASTER_COMMAND, 0x20), Some(6), "not the masked one");
    p.write(MASTER_COMMAND, 0x48);
    p.pulse(6);
    assert_eq!(p.deliverable(), None);
    assert_eq!(p.write(MASTER_COMMAND, 0x63), Some(3));
}

#[test]
fn request_and_service_registers_are_read_as_linux_does() {
    let mut p = linux(0);
    p.pulse(4);
    p.pulse(12);
    assert_eq!((p.read(MASTER_COMMAND), p.read(SLAVE_COMMAND)), (0x14, 0x10));
    p.acknowledge();
    for (port, in_service, requests) in [(MASTER_COMMAND, 0x04, 0x10), (SLAVE_COMMAND, 0x10, 0)] {
        p.write(port, 0x0b);
        assert_eq!(p.read(port), in_service);
        p.write(port, 0x0a);
        assert_eq!(p.read(port), requests);
    }
}

#[test]
fn a_level_line_asks_until_it_is_lowered_and_an_edge_only_once() {
    let mut p = linux(0);
    p.write(MASTER_TRIGGER, 0xff);
    p.write(SLAVE_TRIGGER, 0x02);
    assert_eq!((p.read(MASTER_TRIGGER), p.read(SLAVE_TRIGGER)), (0xf8, 0x02));
    for irq in [5, 9] {
        p.raise(irq);
        for _ in 0..3 {
            assert_eq!(p.acknowledge(), Some(VECTOR + irq));
            mask_and_ack(&mut p, irq);
            unmask(&mut p, irq);
        }
        p.lower(irq);
        assert_eq!(p.deliverable(), None);
    }
    p.raise(10);
    p.raise(10);
    assert_eq!(p.acknowledge(), Some(VECTOR + 10));
    mask_and_ack(&mut p, 10);
    unmask(&mut p, 10);
    p.raise(10);
    assert_eq!(p.deliverable(), None, "the line was not low in between");
    p.pulse(11);
    p.write(SLAVE_DATA, 0xff);
    assert_eq!((p.deliverable(), p.acknowledge()), (None, None), "masked before it was taken");
}

#[test]
fn a_masked_cascade_masks_the_second_controller() {
    let mut p = linux(0x0004);
    p.pulse(8);
    assert!(p.is_masked(8) && !p.is_masked(7));
    assert_eq!(p.deliverable(), None);
    p.raise(CASCADE);
    p.write(MASTER_DATA, 0);
    p.write(SLAVE_DATA, 1);
    assert_eq!(p.deliverable(), None, "the cascade has no line of its own");
}

#[test]
fn ports_of_others_are_left_alone() {
    let mut p = linux(0);
    let before = p.clone();
    assert_eq!(p.write(0x22, 0x11), None);
    assert_eq!((p.read(0x22), p), (0xff, before));
}

/// What the data sheet says, written as sets and lists: lines in order of priority.
#[derive(Default)]
struct Naive {
    requested: Vec<u8>,
    masked: Vec<u8>,
    in_service: Vec<u8>,
}

impl Naive {
    const ORDER: [u8; 15] = [0, 1, 8, 9, 10, 11, 12, 13, 14, 15, 3, 4, 5, 6, 7];

    fn deliverable(&self) -> Option<u8> {
        let masked =
            |irq: &u8| self.masked.contains(irq) || *irq >= 8 && self.masked.contains(&CASCADE);
        let rank = |irq: u8| Self::ORDER.iter().position(|&o| o == irq).unwrap();
        let first = Self::ORDER.iter().filter(|irq| self.requested.contains(irq)).find(|i| {
            // A request of the second controller that waits is not seen by the first.
            !masked(i) && (**i < 8 || self.own_turn(**i))
        })?;
        // While one of the second controller's lines is in service the first keeps back all of them.
        let cascade_busy = *first >= 8 && self.in_service.contains(&CASCADE);
        let held = self.in_service.iter().any(|&s| {
            let s_rank = if s == CASCADE { rank(8) } else { rank(s) };
            (s < 8) && s_rank <= rank(*first)
        });
        (!cascade_busy && !held).then_some(*first)
    }

    fn own_turn(&self, irq: u8) -> bool {
        !self.in_service.iter().any(|&s| s >= 8 && s <= irq)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Pulse(u8),
    Mask(u8),
    Unmask(u8),
    Acknowledge,
    Eoi(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let irq = || (0..LINES).prop_filter("the cascade has no line", |&irq| irq != CASCADE);
    prop_oneof![
        3 => irq().prop_map(Step::Pulse),
        1 => (0..LINES).prop_map(Step::Mask),
        2 => (0..LINES).prop_map(Step::Unmask),
        2 => Just(Step::Acknowledge),
        2 => (0..LINES).prop_map(Step::Eoi),
    ]
}

proptest! {
    #[test]
    fn what_is_delivered_is_never_masked_and_first_in_priority(
        steps in proptest::collection::vec(step(), 0..200),
    ) {
        let mut p = linux(0);
        let mut naive = Naive::default();
        for s in steps {
            match s {
                Step::Pulse(irq) => {
                    p.pulse(irq);
                    naive.requested.push(irq);
                }
                Step::Mask(irq) | Step::Unmask(irq) => {
                    let data = if irq < 8 { MASTER_DATA } else { SLAVE_DATA };
                    let (bit, old) = (1 << (irq & 7), p.read(data));
                    naive.masked.retain(|&m| m != irq);
                    if matches!(s, Step::Mask(_)) {
                        naive.masked.push(irq);
                        p.write(data, old | bit);
                    } else {
                        p.write(data, old & !bit);
                    }
                }
                Step::Acknowledge => {
                    let expected = naive.deliverable();
                    prop_assert_eq!(p.acknowledge(), expected.map(|irq| VECTOR + irq));
                    if let Some(irq) = expected {
                        prop_assert!(!p.is_masked(irq));
                        naive.requested.retain(|&r| r != irq);
                        naive.in_service.push(irq);
                        if irq >= 8 {
                            naive.in_service.push(CASCADE);
                        }
                    }
                }
                Step::Eoi(irq) => {
                    let command = if irq < 8 { MASTER_COMMAND } else { SLAVE_COMMAND };
                    let ends = naive.in_service.contains(&irq).then_some(irq);
                    prop_assert_eq!(p.write(command, 0x60 + (irq & 7)), ends);
                    naive.in_service.retain(|&s| s != irq);
                }
            }
            prop_assert_eq!(p.deliverable(), naive.deliverable());
            let mut bytes = Vec::new();
            p.save(&mut bytes);
            prop_assert_eq!(Pic::restore(&mut &bytes[..]), Ok(p.clone()));
        }
    }

    #[test]
    fn any_bytes_restore_to_a_controller_that_never_panics_or_are_refused(
        bytes in proptest::collection::vec(prop_oneof![0u8..4, any::<u8>()], 0..40),
        writes in proptest::collection::vec((0usize..6, any::<u8>()), 0..50),
    ) {
        let Ok(mut p) = Pic::restore(&mut &bytes[..]) else { return Ok(()) };
        const PORTS: [u16; 6] =
            [MASTER_COMMAND, MASTER_DATA, SLAVE_COMMAND, SLAVE_DATA, MASTER_TRIGGER, SLAVE_TRIGGER];
        for (port, value) in writes {
            p.write(PORTS[port], value);
            p.read(PORTS[port]);
            p.pulse(value & 15);
            let irq = p.deliverable();
            prop_assert_eq!(p.acknowledge().is_some(), irq.is_some());
            prop_assert!(irq.is_none_or(|irq| irq != CASCADE && !p.is_masked(irq)));
        }
    }
}

#[test]
fn states_that_no_guest_can_bring_about_are_refused() {
    let mut good = Vec::new();
    linux(0).save(&mut good);
    let size = good.len();
    assert_eq!(
        Pic::restore(&mut &good[1..]),
        Err(StateError::Short { device: "interrupt controllers", expected: size, got: size - 1 })
    );
    let rows: [(usize, u8, &str); 5] = [
        (0, 4, "restore interrupt controllers: line 2 is 0x1, expected low, as the cascade's"),
        (1, 4, "restore interrupt controllers: line 2 is 0x1, expected low, as the cascade's"),
        (
            4,
            1,
            "restore interrupt controllers: trigger register is 0x1, expected none of IRQ 0, 1, 2, 8, 13",
        ),
        (5, 0x31, "restore interrupt controllers: vector is 0x31, expected a multiple of 8"),
        (6, 4, "restore interrupt controllers: a field holds a value that is not one of its own"),
    ];
    for (at, value, message) in rows {
        let mut bytes = good.clone();
        bytes[at] = value;
        assert_eq!(Pic::restore(&mut &bytes[..]).unwrap_err().to_string(), message);
    }
    let mut two = [good.clone(), good].concat();
    two.push(7);
    let mut left = &two[..];
    Pic::restore(&mut left).unwrap();
    Pic::restore(&mut left).unwrap();
    assert_eq!(left, [7], "one is taken from the front, the rest is left");
}
