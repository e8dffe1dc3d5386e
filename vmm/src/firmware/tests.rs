//! The handler, fed with exits made up here: no KVM is needed.

use std::sync::Arc;

use guest_model::policy::RateLimitClock;
use guest_model::wire::probe;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::*;
use crate::machine::clock_pages::{MSR_KVM_STEAL_TIME, MSR_KVM_SYSTEM_TIME_NEW};
use crate::machine::{FIRMWARE, image, layout};
use crate::run::{self, Planted};
use crate::scenario::{Scenario, builtin};
use crate::schedule::Schedule;

const PVCLOCK: u64 = layout::IMAGE.end() - 0x2000;
const STEAL: u64 = layout::IMAGE.end() - 0x1000;

/// A handler of a guest that has been loaded and has not run.
fn handler() -> (Handler<Schedule>, GuestMemoryMmap) {
    let b = builtin("idle").unwrap();
    let quiet = ["irq.nic.from=1s".to_owned(), "steal.0.from=1s".to_owned()];
    let scenario = Scenario::load(b.text, b.name, &quiet, crate::check::NAMES).unwrap();
    let clock = RateLimitClock::RqClock;
    let control = Arc::default();
    let (policy, session) =
        run::session(&scenario, clock, Planted::default(), Trace::hashed(), control);
    let ranges = [(GuestAddress(0), layout::MEMORY_SIZE as usize)];
    let memory = GuestMemoryMmap::from_ranges(&ranges).unwrap();
    image::load(&memory, FIRMWARE).unwrap();
    for (address, table) in paging::tables() {
        memory.write_slice(zerocopy::IntoBytes::as_bytes(&table), GuestAddress(address)).unwrap();
    }
    let groups = scenario.boot_page(policy).nr_groups;
    let view = bundled::introspector(memory.clone(), paging::CR3, FIRMWARE, groups.into()).unwrap();
    let pages = ClockPages::new(memory.clone());
    (Handler::new(session, view, pages), memory)
}

/// The same, with both clock pages registered.
fn with_clocks() -> (Handler<Schedule>, GuestMemoryMmap) {
    let (mut h, memory) = handler();
    for (index, page) in [(MSR_KVM_SYSTEM_TIME_NEW, PVCLOCK), (MSR_KVM_STEAL_TIME, STEAL)] {
        let reply = h.handle(Exit::Wrmsr { index, value: page | 1 }, [0; 3]).unwrap();
        assert_eq!(reply, Reply::Resume);
    }
    (h, memory)
}

fn input(port: u16) -> Exit {
    Exit::In { port, size: 4 }
}

fn text(h: &mut Handler<Schedule>, exit: Exit, args: [u64; 3]) -> String {
    crate::session::chain(&h.handle(exit, args).unwrap_err())
}

#[test]
fn a_burn_moves_time_and_the_page_before_the_guest_runs_again() {
    let (mut h, memory) = with_clocks();
    assert_eq!(h.handle(input(port::BURN), [1_000, 0, 0]).unwrap(), Reply::Answer(1_000));
    let time: u64 = memory.read_obj(GuestAddress(PVCLOCK + 16)).unwrap();
    assert_eq!(time, 1_000);
    let version: u32 = memory.read_obj(GuestAddress(PVCLOCK)).unwrap();
    assert!(version.is_multiple_of(2) && version > 0);
}

#[test]
fn a_burn_of_all_time_is_cut_to_32_bits_and_to_the_next_event() {
    let (mut h, _) = with_clocks();
    h.handle(Exit::Out { port: port::TIMER, size: 4, value: 0 }, [5_000_000, 0, 0]).unwrap();
    let reply = h.handle(input(port::BURN), [u64::MAX, 0, 0]).unwrap();
    assert_eq!(reply, Reply::Answer(5_000_000));
    assert!(h.has_pending());
}

#[test]
fn requests_before_the_clocks_are_registered_are_refused() {
    let (mut h, _) = handler();
    for exit in [
        input(port::BURN),
        input(port::SOFTIRQ),
        input(port::IRQ_STATUS),
        Exit::Out { port: port::PROBE, size: 1, value: probe::UPDATE_RQ_CLOCK.into() },
        Exit::Out { port: port::CONTROL, size: 4, value: control::READY },
    ] {
        let why = text(&mut h, exit, [0; 3]);
        assert!(why.contains("before it registered its clock page"), "{exit:?}: {why}");
    }
}

#[test]
fn ready_is_believed_only_if_the_run_queue_looks_like_one() {
    let (mut h, _) = with_clocks();
    let ready = Exit::Out { port: port::CONTROL, size: 4, value: control::READY };
    let why = text(&mut h, ready, [0; 3]);
    assert!(why.starts_with("cannot read the guest's run queue: "), "{why}");
}

#[test]
fn every_way_to_go_wrong_is_named_with_its_numbers() {
    let (mut h, _) = with_clocks();
    let out = |port, value| Exit::Out { port, size: 4, value };
    for (exit, args, expected) in [
        (input(port::IRQ_STATUS), [7, 0, 0], "interrupt line 7, which has no interrupt in service"),
        (input(port::IRQ_STATUS), [u64::MAX, 0, 0], "interrupt line 18446744073709551615"),
        (Exit::In { port: 0x71, size: 1 }, [0; 3], "read of 1 bytes at port 0x71"),
        (Exit::In { port: port::BURN, size: 2 }, [0; 3], "read of 2 bytes at port"),
        (Exit::Out { port: 0x80, size: 1, value: 3 }, [0; 3], "write of 1 bytes at port 0x80"),
        (out(port::CONTROL, 99), [0; 3], "unknown word 0x63"),
        (out(port::CONTROL, control::PANIC), [0xdead_0000_0000, 9, 7], "(file name unreadable: "),
        (
            out(port::CONTROL, control::EXCEPTION),
            [14, 2, 0xffff],
            "exception 14 (#PF), error code 0x2, at rip 0xffff",
        ),
        (
            out(port::CONTROL, control::EXCEPTION),
            [u64::MAX, 0, 0],
            "exception 18446744073709551615 (unknown)",
        ),
        (out(port::CONTROL, control::BAD_BOOT_PAGE), [8, 0, 0], "boot page: Task"),
        (out(port::CONTROL, control::BAD_BOOT_PAGE), [0, 0, 0], "unknown reason 0"),
        (
            Exit::Mmio { address: 0xfee0_0000, size: 4, written: None },
            [0; 3],
            "read of 4 bytes at physical address 0xfee00000",
        ),
        (
            Exit::Mmio { address: 0x10, size: 8, written: Some(1) },
            [0; 3],
            "write of 8 bytes at physical address 0x10",
        ),
        (Exit::Shutdown, [0; 3], "triple-faulted"),
        (Exit::InternalError { suberror: 3, data0: 5 }, [0; 3], "KVM internal error 3, data 0x5"),
        (Exit::InternalError { suberror: 1, data0: 5 }, [0; 3], "cannot emulate"),
        (Exit::FailEntry { reason: 0x21, cpu: 1 }, [0; 3], "reason 0x21 on host CPU 1"),
        (Exit::Other("KVM_EXIT_XEN"), [0; 3], "unexpected exit KVM_EXIT_XEN"),
        (
            Exit::Wrmsr { index: MSR_KVM_STEAL_TIME, value: u64::MAX },
            [0; 3],
            "guest registered its steal page at",
        ),
        (
            Exit::Out { port: port::PROBE, size: 1, value: 200 },
            [0; 3],
            "cannot read the guest's run queue",
        ),
    ] {
        let why = text(&mut h, exit, args);
        assert!(why.contains(expected), "{exit:?}: {why}");
    }
}

#[test]
fn a_guest_that_never_lets_time_pass_runs_out_of_exits() {
    let (mut h, _) = with_clocks();
    let timer = Exit::Out { port: port::TIMER, size: 4, value: 0 };
    let why = (0..=crate::session::STUCK_EXITS)
        .find_map(|_| h.handle(timer, [0; 3]).err())
        .expect("the budget ends");
    assert!(why.to_string().starts_with("guest is stuck: "), "{why}");
}

#[test]
fn a_stopped_guest_leaves_what_was_found_until_then() {
    let (mut h, _) = with_clocks();
    h.handle(input(port::BURN), [1_000, 0, 0]).unwrap();
    let (outcome, _) = h.finish(Some((Asked::ByUser, "interrupted".into())));
    assert_eq!(outcome.elapsed_ns, 1_000);
    assert_eq!(outcome.stopped.unwrap().0, Asked::ByUser);
}
