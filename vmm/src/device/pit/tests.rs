use proptest::prelude::*;

use super::*;

/// `PIT_LATCH` of a 1000 Hz kernel.
const LATCH: u16 = 1193;

fn load(p: &mut Pit, counter: u16, count: u16, now_ns: u64) {
    let [low, high] = count.to_le_bytes();
    p.write(COUNTER_0 + counter, low, now_ns);
    p.write(COUNTER_0 + counter, high, now_ns);
}

/// `pit_set_periodic`.
fn periodic(now_ns: u64, count: u16) -> Pit {
    let mut p = Pit::new();
    p.write(CONTROL, 0x34, now_ns);
    load(&mut p, 0, count, now_ns);
    p
}

fn read_count(p: &mut Pit, counter: u16, now_ns: u64) -> u16 {
    u16::from_le_bytes([0; 2].map(|_: u8| p.read(COUNTER_0 + counter, now_ns)))
}

#[test]
fn a_tick_is_at_the_first_nanosecond_that_is_not_before_it() {
    // 10^9 / 1193182 = 838.095...
    let ticks = [0, 1, 2, 11, FREQUENCY_HZ, 1000 * FREQUENCY_HZ + 1, u64::MAX];
    let ns = [0, 839, 1677, 9220, 1_000_000_000, 1_000_000_000_839, u64::MAX];
    assert_eq!(ticks.map(ticks_to_ns), ns);
    for k in (0..100_000).chain([1 << 40, (1 << 40) + 1]) {
        let ns = ticks_to_ns(k);
        assert_eq!(ns_to_ticks(ns), k);
        assert!(k == 0 || ns_to_ticks(ns - 1) == k - 1);
    }
}

#[test]
fn periodic_ticks_stay_on_their_grid_however_late_they_are_asked_for() {
    let mut p = periodic(5, LATCH);
    let mut edges = 0;
    for _ in 0..5000 {
        let at = p.deadline_ns().unwrap();
        assert_eq!(at, 5 + ticks_to_ns((edges + 1) * u64::from(LATCH)));
        assert_eq!(p.fire(at - 1), 0);
        assert_eq!(p.fire(at), 1);
        assert_eq!(p.fire(at), 0);
        edges += 1;
    }
    // The host was away: one call for all that passed, and the next is on the grid.
    let late = 86_400_000_000_000;
    let passed = ns_to_ticks(late - 5) / u64::from(LATCH);
    assert_eq!(p.fire(late), passed - edges);
    assert_eq!(p.deadline_ns(), Some(5 + ticks_to_ns((passed + 1) * u64::from(LATCH))));
}

/// `pit_set_oneshot`, `pit_next_event`, and `clockevent_i8253_disable`.
#[test]
fn a_one_shot_event_comes_once_after_its_ticks_and_a_new_one_replaces_it() {
    let mut p = Pit::new();
    p.write(CONTROL, 0x38, 0);
    assert_eq!(p.deadline_ns(), None);
    load(&mut p, 0, 0x7fff, 1000);
    assert_eq!(p.deadline_ns(), Some(1000 + ticks_to_ns(0x7fff)));
    load(&mut p, 0, 0x0f, 2000);
    let at = 2000 + ticks_to_ns(0x0f);
    assert_eq!((p.deadline_ns(), p.fire(at - 1), p.fire(at)), (Some(at), 0, 1));
    assert_eq!((p.deadline_ns(), p.fire(u64::MAX)), (None, 0));
    load(&mut p, 0, 100, at);
    p.write(COUNTER_0, 7, at);
    assert_eq!(p.deadline_ns(), Some(at + ticks_to_ns(100)), "half a count changes nothing");
    for (port, value) in [(CONTROL, 0x30), (COUNTER_0, 0), (COUNTER_0, 0)] {
        p.write(port, value, at);
    }
    assert_eq!(p.deadline_ns(), Some(at + ticks_to_ns(0x10000)), "0 is 65536");
    p.write(CONTROL, 0x30, at);
    assert_eq!((p.deadline_ns(), p.fire(u64::MAX)), (None, 0), "stopped");
}

#[test]
fn mode_0_stops_at_the_first_byte_of_a_new_count() {
    let mut p = Pit::new();
    p.write(CONTROL, 0x30, 0);
    load(&mut p, 0, 500, 0);
    assert!(p.deadline_ns().is_some());
    p.write(COUNTER_0, 1, 0);
    assert_eq!(p.deadline_ns(), None);
    p.write(COUNTER_0, 0, 10);
    assert_eq!(p.deadline_ns(), Some(10 + ticks_to_ns(1)));
}

#[test]
fn another_clock_keeps_every_distance() {
    let mut p = periodic(0, LATCH);
    let now = 4_500_000_123;
    p.fire(now);
    let distance = p.deadline_ns().unwrap() - now;
    p.rebase(now, 0);
    assert_eq!(p.deadline_ns(), Some(distance));
    assert_eq!(p.fire(distance), 1);
    // And the tick after it is exactly where it was on the old clock.
    let old = periodic(0, LATCH).counters[0].clone();
    let next = ticks_to_ns((ns_to_ticks(now) / u64::from(old.initial) + 2) * u64::from(LATCH));
    assert_eq!(p.deadline_ns(), Some(next - now));
    p.rebase(0, u64::MAX);
    p.rebase(u64::MAX, 0);
    p.deadline_ns();
}

#[test]
fn an_overdue_event_is_due_at_once_on_the_new_clock() {
    let mut p = periodic(0, LATCH);
    p.rebase(10_000_000, 3);
    assert_eq!(p.deadline_ns(), Some(0));
    assert_eq!(p.fire(3), 10);
}

/// `pit_calibrate_tsc`: gate on, mode 0, wait for OUT.
#[test]
fn out_of_counter_2_rises_when_its_count_has_passed() {
    let mut p = Pit::new();
    let b = p.read(PORT_B, 0);
    p.write(PORT_B, b & !0x02 | 0x01, 0);
    p.write(CONTROL, 0xb0, 0);
    assert_eq!(p.read(PORT_B, 0) & 0x21, 0x01);
    load(&mut p, 2, 59659, 100);
    let at = 100 + ticks_to_ns(59659);
    assert_eq!(p.read(PORT_B, at - 1) & 0x20, 0);
    assert_eq!(p.read(PORT_B, at) & 0x20, 0x20);
    assert_eq!(p.read(PORT_B, at + 1_000_000_000) & 0x20, 0x20, "it stays high");
    assert_eq!(p.deadline_ns(), None, "only counter 0 interrupts");
}

/// `quick_pit_calibrate`: watches the high byte fall, without latching.
#[test]
fn counter_2_is_read_while_it_counts() {
    let mut p = Pit::new();
    p.write(PORT_B, 0x01, 0);
    p.write(CONTROL, 0xb0, 0);
    load(&mut p, 2, 0xffff, 0);
    for high in (0xf0..=0xffu8).rev() {
        let first = ticks_to_ns(0xffff - u64::from(u16::from_be_bytes([high, 0xff])));
        p.read(COUNTER_2, first);
        assert_eq!(p.read(COUNTER_2, first), high);
        p.read(COUNTER_2, first + ticks_to_ns(255) - 1);
        assert_eq!(p.read(COUNTER_2, first + ticks_to_ns(255) - 1), high);
    }
    assert_eq!(read_count(&mut p, 2, ticks_to_ns(0x10001)), 0xfffe, "on below 0");
}

#[test]
fn a_low_gate_holds_the_count_and_a_rising_one_goes_on_or_starts_again() {
    // Mode, whether a rising gate starts it again, whether a low one stops it.
    for (mode, again, stops) in
        [(0, false, true), (2, true, true), (3, true, true), (4, false, true)]
    {
        let mut p = Pit::new();
        p.write(PORT_B, 0x01, 0);
        p.write(CONTROL, 0xb0 | mode << 1, 0);
        load(&mut p, 2, 1000, 0);
        let at = ticks_to_ns(400);
        p.write(PORT_B, 0x00, at);
        let held = if mode == 3 { 200 } else { 600 };
        assert_eq!(read_count(&mut p, 2, 10 * at), if stops { held } else { 0 }, "mode {mode}");
        p.write(PORT_B, 0x01, 10 * at);
        let expected = if again { 1000 } else { held };
        assert_eq!(read_count(&mut p, 2, 10 * at), expected, "mode {mode}");
    }
    // Triggered modes wait for the edge, and are not stopped.
    for mode in [1, 5] {
        let mut p = Pit::new();
        p.write(CONTROL, 0xb0 | mode << 1, 0);
        load(&mut p, 2, 1000, 0);
        assert_eq!(read_count(&mut p, 2, 1_000_000), 1000, "mode {mode}");
        assert_eq!(p.read(PORT_B, 0) & 0x20, 0x20);
        p.write(PORT_B, 0x01, 1_000_000);
        p.write(PORT_B, 0x00, 1_000_000);
        let later = 1_000_000 + ticks_to_ns(10);
        assert_eq!(read_count(&mut p, 2, later), 990, "mode {mode}");
        assert_eq!(p.read(PORT_B, later) & 0x20, if mode == 1 { 0 } else { 0x20 });
    }
}

#[test]
fn periodic_outputs_have_the_shape_of_their_mode() {
    let level = |p: &mut Pit, tick| p.read(PORT_B, ticks_to_ns(tick)) & 0x20 != 0;
    for (mode, low) in [(2u8, vec![6]), (3, vec![4, 5, 6]), (4, vec![7])] {
        let mut p = Pit::new();
        p.write(PORT_B, 0x01, 0);
        p.write(CONTROL, 0xb0 | mode << 1, 0);
        load(&mut p, 2, 7, 0);
        let lows = Vec::from_iter((0..14).filter(|&tick| !level(&mut p, tick)));
        let mut expected = low.clone();
        if mode != 4 {
            expected.extend(low.iter().map(|tick| tick + 7));
        }
        assert_eq!(lows, expected, "mode {mode}");
    }
}

#[test]
fn latched_counts_and_status_wait_to_be_read() {
    let mut p = periodic(0, 1000);
    p.write(CONTROL, 0x00, ticks_to_ns(1));
    p.write(CONTROL, 0x00, ticks_to_ns(2));
    assert_eq!(read_count(&mut p, 0, ticks_to_ns(5)), 999, "the first latch holds");
    assert_eq!(read_count(&mut p, 0, ticks_to_ns(5)), 995);
    // Read back count and status of counter 0, and the status of counter 2.
    p.write(CONTROL, 0xc2, ticks_to_ns(7));
    p.write(CONTROL, 0xe8, ticks_to_ns(7));
    assert_eq!(p.read(COUNTER_0, ticks_to_ns(9)), 0x80 | 0x34);
    assert_eq!(read_count(&mut p, 0, ticks_to_ns(9)), 993);
    assert_eq!(p.read(COUNTER_2, 0), 0x40 | 0x30, "no count yet, OUT low");
    // One byte only, low and high.
    for (word, count) in [(0x14, 0x12), (0x24, 0x1200)] {
        p.write(CONTROL, word, 0);
        p.write(COUNTER_0, 0x12, 0);
        assert_eq!((p.read(COUNTER_0, 0), p.read(COUNTER_0, 0)), (0x12, 0x12));
        assert_eq!(p.deadline_ns(), Some(ticks_to_ns(count)));
    }
}

#[test]
fn the_refresh_bit_toggles_though_time_stands_still() {
    let mut p = Pit::new();
    let bits = [0; 4].map(|_: u8| p.read(PORT_B, 0) & 0x10);
    assert_eq!(bits, [0x10, 0, 0x10, 0]);
}

proptest! {
    /// Against a sum of remainders: exact, without a division by the frequency per tick.
    #[test]
    fn a_periodic_tick_never_drifts(count: u16, start in 0u64..1 << 40, edges in 1usize..2000) {
        let mut p = periodic(start, count);
        let n = if count == 0 { 65536 } else { u64::from(count) };
        let (whole, part) = (n * 1_000_000_000 / FREQUENCY_HZ, n * 1_000_000_000 % FREQUENCY_HZ);
        let (mut ns, mut parts) = (start, 0);
        for _ in 0..edges {
            ns += whole;
            parts += part;
            if parts >= FREQUENCY_HZ {
                ns += 1;
                parts -= FREQUENCY_HZ;
            }
            let expected = if parts == 0 { ns } else { ns + 1 };
            prop_assert_eq!(p.deadline_ns(), Some(expected));
            prop_assert_eq!(p.fire(expected), 1);
        }
    }

    #[test]
    fn edges_are_the_same_however_often_they_are_asked_for(
        count in 1u16.., steps in proptest::collection::vec(0u64..10_000_000, 1..50),
    ) {
        let mut often = periodic(0, count);
        let (mut now, mut edges) = (0, 0);
        for step in steps {
            now += step;
            edges += often.fire(now);
            prop_assert!(often.deadline_ns().unwrap() > now);
        }
        prop_assert_eq!(periodic(0, count).fire(now), edges);
        prop_assert_eq!(edges, ns_to_ticks(now) / u64::from(count));
    }

    #[test]
    fn any_writes_leave_a_timer_that_answers_and_survives_a_save(
        writes in proptest::collection::vec(
            (prop_oneof![COUNTER_0..=CONTROL, Just(PORT_B)], any::<u8>(), 0u64..1 << 50), 0..100),
        shift in 0u64..1 << 50,
    ) {
        let mut p = Pit::new();
        for (port, value, now) in writes {
            p.write(port, value, now);
            p.read(port, now);
            let due = p.deadline_ns().is_some_and(|at| at <= now);
            prop_assert_eq!(p.fire(now) > 0, due, "{:?} at {}", &p, now);
            p.rebase(now, shift);
        }
        let mut bytes = Vec::new();
        p.save(&mut bytes);
        prop_assert_eq!(Pit::restore(&mut &bytes[..]), Ok(p));
    }

    #[test]
    fn any_bytes_restore_to_a_timer_that_never_panics_or_are_refused(
        flips in proptest::collection::vec((0usize..128, prop_oneof![0u8..6, any::<u8>()]), 0..20),
        now: u64,
    ) {
        let mut bytes = Vec::new();
        periodic(0, LATCH).save(&mut bytes);
        for (at, value) in flips {
            bytes[at] = value;
        }
        if let Ok(mut p) = Pit::restore(&mut &bytes[..]) {
            for port in [COUNTER_0, COUNTER_2, PORT_B] {
                p.read(port, now);
            }
            p.deadline_ns();
            p.fire(now);
            p.write(PORT_B, 0, now);
            p.write(PORT_B, 1, now);
            p.rebase(now, 0);
        }
    }
}

#[test]
fn states_that_no_guest_can_bring_about_are_refused() {
    let mut padded = Vec::new();
    Pit::new().save(&mut padded);
    *padded.last_mut().unwrap() = 1;
    let refused = Pit::restore(&mut &padded[..]);
    assert_eq!(refused, Err(StateError::Value { device: "interval timer" }));
    type Change = fn(&mut Pit);
    let refused = |change: Change| {
        let mut p = periodic(0, LATCH);
        change(&mut p);
        let mut bytes = Vec::new();
        p.save(&mut bytes);
        Pit::restore(&mut &bytes[..]).unwrap_err().to_string()
    };
    let rows: [(Change, &str); 5] = [
        (|p| p.counters[1].initial = 0, "initial count is 0x0, expected 1 to 0x10000"),
        (|p| p.counters[2].initial = 0x10001, "initial count is 0x10001, expected 1 to 0x10000"),
        (|p| p.counters[0].next_edge = 0, "next interrupt is 0x0, expected 1 or more"),
        (
            |p| p.counters[0].gate = false,
            "port 0x61 is 0x0, expected its bit 0 to be counter 2's gate",
        ),
        (|p| p.port_b = 0x10, "port 0x61 is 0x10, expected bits 0 and 1 only"),
    ];
    for (change, message) in rows {
        assert_eq!(refused(change), format!("restore interval timer: {message}"));
    }
}
