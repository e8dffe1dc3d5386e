//! Random Linux guests: nothing panics, and each ends.

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use crate::introspect::linux::run_view::{Baseline, RunView, StampClock, Start};
use crate::introspect::linux::symbols::SymbolTable;
use crate::introspect::linux::tests::fake::{Fake, IDT, IRQ_NS, NOW_NS, STEAL_NS};
use crate::introspect::linux::tests::shapes::Build;
use crate::introspect::{Function, Snapshot};
use crate::view::GuestView;

/// Everything that is done with a guest.
fn use_it(fake: &Fake, args: [u64; 3]) {
    let Ok(linux) = fake.find_with(fake.table_without(&[])) else { return };
    let _ = linux.sched_clock_offset_ns();
    let _ = linux.probe("update_rq_clock", 0xa8).map(|probe| probe.remove(&fake.mem()));
    let _ = linux.return_address(args[0]).map(|address| linux.symbols().caller(address).is_some());
    let Ok(groups) = linux.groups(&["/a"]) else { return };
    assert!(groups.parents.iter().zip(0..).skip(1).all(|(parent, group)| *parent < group));
    let len = groups.table.len() as u16;
    let Ok(introspector) = linux.introspector(groups.table) else { return };
    let _ = introspector.sanity_at_rest(NOW_NS);
    let _ = introspector.snapshot(&mut Snapshot::default());
    for function in Function::ALL {
        let _ = introspector.call(function, args);
    }
    let start = Start {
        sched_clock_ns: args[1],
        steal_ns: Some(STEAL_NS),
        psi: true,
        stamp_clock: StampClock::ClockTask,
    };
    let Ok(start) = Baseline::take(&introspector, len, start) else { return };
    let view = RunView { raw: &introspector, start: &start };
    let _ = (view.rq(), view.runs_ksoftirqd(), view.leaf_cfs_rqs(&mut Vec::new()));
    for group in 0..=len {
        let _ = (view.cfs_rq(group), view.psi_group(group));
    }
}

/// Values that mean something to the guest, and any value.
fn word(fake: &Fake) -> impl Strategy<Value = u64> + use<> {
    let known: Vec<u64> = fake
        .groups
        .iter()
        .flat_map(|g| [g.task_group, g.cfs_rq, g.psi_group_cpu, g.cgroup, g.kn, g.name])
        .chain([fake.curr, fake.ksoftirqd, fake.variable("task_groups"), IDT, NOW_NS, IRQ_NS])
        .collect();
    prop_oneof![
        any::<u64>(),
        0..64u64,
        (prop::sample::select(known), -64i64..64).prop_map(|(k, by)| k.wrapping_add_signed(by)),
    ]
}

#[test]
fn memory_with_any_words_changed_is_refused_or_read() {
    let config = ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let like = Fake::new(Build::New, 0);
    // The page tables and the IDT, the image, and CPU 0's variables and the objects behind them.
    let place = prop_oneof![0x1000..0x8000u64, 0x20_8000..0x21_2000u64, 0x30_0000..0x31_4000u64];
    let changes = prop::collection::vec((place, word(&like)), 1..12);
    let args = [word(&like).boxed(), word(&like).boxed(), word(&like).boxed()];
    let strategy = (any::<bool>(), changes, args);
    runner
        .run(&strategy, |(old, changes, args)| {
            let fake = Fake::new(if old { Build::Old } else { Build::New }, 0);
            for (at, value) in changes {
                fake.mem().write_obj(value, GuestAddress(at & !3)).unwrap();
            }
            use_it(&fake, args);
            Ok(())
        })
        .unwrap();
}

proptest! {
    #[test]
    fn any_text_is_a_system_map_or_refused(text in "([0-9a-f]{15,17} [A-Za-z]{0,2} ?\\PC{0,12}\n?){0,8}") {
        if let Ok(map) = SymbolTable::of_system_map("System.map", text.as_bytes()) {
            let _ = (map.find("x"), map.function("x").is_ok(), map.function_at(u64::MAX));
        }
    }
}
