//! What is read is what the kernel holds.

use core::mem::offset_of;

use guest_model::hardware::Probe;
use guest_model::kernel::Kernel;
use guest_model::psi::PSI_IRQ_FULL;
use guest_model::wire::{IDLE_PID, probe};

use super::{Devices, Guest, Image, NR_GROUPS};
use crate::introspect::{Introspector, Snapshot};
use crate::view::{Call, GuestView, TaskRef};

fn after_20_ms() -> (Guest, Image, Introspector) {
    let guest = Guest::run(20_000_000);
    let image = Image::of(&guest.kernel);
    let introspector = image.introspector();
    (guest, image, introspector)
}

#[test]
fn the_run_queue_is_read_as_the_kernel_has_it() {
    let (guest, _image, introspector) = after_20_ms();
    let (k, rq) = (&guest.kernel, introspector.rq().unwrap());
    assert!(rq.clock_ns > 0 && rq.irqtime_total_ns > 0 && rq.nr_switches > 10);
    assert_ne!(rq.clock_ns, rq.clock_task_ns);
    assert_eq!(
        (rq.cpu, rq.nr_running, rq.nr_switches, rq.curr_pid),
        (0, k.rq.nr_running, k.rq.nr_switches, u32::from(k.curr))
    );
    assert_eq!(
        [rq.clock_ns, rq.clock_task_ns, rq.clock_pelt_ns, rq.lost_idle_time_ns],
        [k.rq.clock, k.rq.clock_task, k.rq.clock_pelt, k.rq.lost_idle_time]
    );
    assert_eq!(
        [rq.prev_irq_time_ns, rq.prev_steal_time_rq_ns, rq.psi_irq_time_ns, rq.avg_irq.util_avg],
        [k.rq.prev_irq_time, k.rq.prev_steal_time_rq, k.rq.psi_irq_time, k.rq.avg_irq.util_avg]
    );
    assert_eq!((rq.irqtime_total_ns, rq.psi_seq), (k.cpu_irqtime.total, k.psi_seq));
}

#[test]
fn every_group_is_read_as_the_kernel_has_it() {
    let (guest, _image, introspector) = after_20_ms();
    let k = &guest.kernel;
    let mut published = 0;
    for group in 0..NR_GROUPS as u16 {
        let (view, g) = (introspector.cfs_rq(group).unwrap(), usize::from(group));
        published += u32::from(view.tg_load_avg != 0);
        assert_eq!(view.group, group);
        assert_eq!(view.load_avg, k.cfs_rqs[g].avg.load_avg);
        assert_eq!(view.tg_load_avg_contrib, k.cfs_rqs[g].tg_load_avg_contrib);
        assert_eq!(view.last_update_tg_load_avg_ns, k.cfs_rqs[g].last_update_tg_load_avg);
        assert_eq!(view.tg_load_avg, k.task_groups[g].load_avg);
        let psi = introspector.psi_group(group).unwrap();
        assert_eq!((psi.group, psi.irq_full_ns), (group, k.psi_groups[g].times[PSI_IRQ_FULL]));
    }
    assert!(published >= 3, "only {published} groups have published a load");
    assert!(introspector.psi_group(0).unwrap().irq_full_ns > 0);
}

#[test]
fn the_leaf_list_is_read_in_its_order() {
    let (guest, _image, introspector) = after_20_ms();
    let mut expected = Vec::new();
    let mut next = guest.kernel.leaf_first();
    while let Some(group) = next {
        expected.push(group as u16);
        next = guest.kernel.leaf_next(group);
    }
    assert!(expected.len() >= 4);
    let mut leaves = Vec::new();
    introspector.leaf_cfs_rqs(&mut leaves).unwrap();
    assert_eq!(leaves.iter().map(|l| l.group).collect::<Vec<_>>(), expected);
    for leaf in leaves {
        assert_eq!(leaf, introspector.cfs_rq(leaf.group).unwrap());
    }
}

#[test]
fn the_costs_are_read_as_the_kernel_counted_them() {
    let (guest, _image, introspector) = after_20_ms();
    let (view, costs) = (introspector.costs().unwrap().unwrap(), &guest.kernel.costs);
    let seen = [
        (view.clock_reads_update_rq_clock, costs.clock_reads_update_rq_clock),
        (view.clock_reads_irqtime_account_irq, costs.clock_reads_irqtime_account_irq),
        (view.clock_reads_update_tg_load_avg, costs.clock_reads_update_tg_load_avg),
        (view.clock_reads_psi_account_irqtime, costs.clock_reads_psi_account_irqtime),
        (view.clock_reads_psi_other, costs.clock_reads_psi_other),
        (view.psi_account_irqtime_seqcount_writes, costs.psi_account_irqtime_seqcount_writes),
        (view.psi_account_irqtime_levels, costs.psi_account_irqtime_levels),
        (view.tg_load_avg_atomic_adds, costs.tg_load_avg_atomic_adds),
        (view.update_tg_load_avg_rate_limited, costs.update_tg_load_avg_rate_limited),
        (view.update_tg_load_avg_below_tolerance, costs.update_tg_load_avg_below_tolerance),
    ];
    for (read, counted) in seen {
        assert_eq!(read, counted);
    }
}

#[test]
fn a_snapshot_holds_what_the_single_reads_give_and_is_used_again() {
    let (_guest, _image, introspector) = after_20_ms();
    let mut snapshot = Snapshot::default();
    introspector.snapshot(&mut snapshot).unwrap();
    let first = snapshot.clone();
    introspector.snapshot(&mut snapshot).unwrap();
    assert_eq!(snapshot, first);
    assert_eq!(snapshot.rq, introspector.rq().unwrap());
    let mut leaves = Vec::new();
    introspector.leaf_cfs_rqs(&mut leaves).unwrap();
    assert_eq!(snapshot.leaf_cfs_rqs, leaves);
    assert_eq!(snapshot.costs, introspector.costs().unwrap());
    assert_eq!(snapshot.psi_groups.len(), NR_GROUPS);
}

/// What the firmware passes at a probe: the number, and addresses in `rdi`, `rsi`, `rdx`.
fn registers(kernel: &Kernel, image: &Image, hit: Probe) -> (u8, [u64; 3]) {
    let rq = image.rq(0);
    let task = |pid: u16| image.task(pid.into(), 0);
    let cfs_rq = |group: u16| image.cfs_rq(group.into(), 0);
    match hit {
        Probe::UpdateRqClock => (probe::UPDATE_RQ_CLOCK, [rq, 0, 0]),
        // Above the low 32 bits of an `unsigned int` argument, anything may be left.
        Probe::IrqtimeAccountIrq { offset } => (
            probe::IRQTIME_ACCOUNT_IRQ,
            [kernel.rq.curr, 0xdead_0000_0000_0000 | u64::from(offset), 0],
        ),
        Probe::PsiAccountIrqtime { curr, prev } => {
            (probe::PSI_ACCOUNT_IRQTIME, [rq, task(curr), prev.map_or(0, task)])
        }
        Probe::PsiTaskSwitch { prev, next, sleep } => {
            (probe::PSI_TASK_SWITCH, [task(prev), task(next), 0xbeef_0000 | u64::from(sleep)])
        }
        Probe::PsiTaskChange { task: t, clear, set } => {
            (probe::PSI_TASK_CHANGE, [task(t), clear.into(), set.into()])
        }
        Probe::UpdateTgLoadAvg { group } => (probe::UPDATE_TG_LOAD_AVG, [cfs_rq(group), 0, 0]),
        Probe::ClearTgLoadAvg { group } => (probe::CLEAR_TG_LOAD_AVG, [cfs_rq(group), 0, 0]),
    }
}

fn call(kernel: &Kernel, hit: Probe) -> Call {
    let task =
        |pid: u16| TaskRef { pid: pid.into(), group: kernel.tasks[usize::from(pid)].spec.group };
    match hit {
        Probe::UpdateRqClock => Call::UpdateRqClock,
        Probe::IrqtimeAccountIrq { offset } => Call::IrqtimeAccountIrq { offset },
        Probe::PsiAccountIrqtime { curr, prev } => {
            Call::PsiAccountIrqtime { curr: task(curr), prev: prev.map(task) }
        }
        Probe::PsiTaskSwitch { prev, next, sleep } => {
            Call::PsiTaskSwitch { prev: task(prev), next: task(next), sleep }
        }
        Probe::PsiTaskChange { task: t, clear, set } => {
            Call::PsiTaskChange { task: task(t), clear, set }
        }
        Probe::UpdateTgLoadAvg { group } => Call::UpdateTgLoadAvg { group },
        Probe::ClearTgLoadAvg { group } => Call::ClearTgLoadAvg { group },
    }
}

#[test]
fn every_probe_hit_is_decoded_to_the_call_that_was_made() {
    let (guest, image, introspector) = after_20_ms();
    let mut kinds = std::collections::BTreeSet::new();
    let clear = Probe::ClearTgLoadAvg { group: 2 };
    for &hit in guest.devices.probes.iter().chain([&clear]) {
        let (number, args) = registers(&guest.kernel, &image, hit);
        kinds.insert(number);
        assert_eq!(introspector.decode(number, args), Ok(call(&guest.kernel, hit)));
    }
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_run_queue_is_plausible_before_the_first_task_and_after_many() {
    for run_ns in [0, 3_000_000, 20_000_000, 300_000_000] {
        let guest = Guest::run(run_ns);
        let image = Image::of(&guest.kernel);
        image.introspector().sanity(guest.devices.now_ns).unwrap();
    }
}

#[test]
fn a_run_queue_is_plausible_at_each_update_of_its_clock_from_the_first_on() {
    let devices = Devices { now_ns: 500, judge: true, ..Devices::default() };
    let guest = Guest::run_with(5_000_000, devices);
    assert!(guest.devices.judged > 20);
}

#[test]
fn entries_changed_by_the_guest_are_walked_anew() {
    let (guest, mut image, introspector) = after_20_ms();
    assert_eq!(introspector.rq().unwrap().clock_ns, guest.kernel.rq.clock);
    // The page of rq->clock moves to another frame with another clock in it.
    let va = image.rq(offset_of!(guest_model::rq::Rq, clock));
    let frame = DATA_ELSEWHERE;
    let old = image.gpa(va).0 & !0xfff;
    let mut page = [0; 4096];
    use vm_memory::{Bytes, GuestAddress};
    image.tables.mem.read_slice(&mut page, GuestAddress(old)).unwrap();
    image.tables.mem.write_slice(&page, GuestAddress(frame)).unwrap();
    image.tables.map(va & !0xfff, frame);
    image.poke(va, 42u64);
    assert_eq!(introspector.rq().unwrap().clock_ns, 42);
    assert_eq!(guest.kernel.rq.idle, image.task(IDLE_PID.into(), 0));
}

/// A frame that the image does not use.
const DATA_ELSEWHERE: u64 = 0x3f_0000;
