use std::boxed::Box;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::kernel::step;
use crate::machine::{Bench, Machine, POLICY, broken, page};

fn good() -> Box<BootPage> {
    let mut p = page(&[0, 1], &[2, 0]);
    p.nr_irqs = 3;
    p.tasks[1].wakes = FIRST_PID;
    p.irqs[1].wakes = FIRST_PID + 1;
    p.irqs[2].flags = IRQ_BALANCE;
    p
}

type Change = fn(&mut BootPage);

/// Every field at both sides of every bound.
#[test]
fn each_field_is_taken_to_its_bounds_and_refused_beyond_them() {
    let rows: &[(Change, Result<(), BootError>)] = &[
        (|_| (), Ok(())),
        (|p| p.magic ^= 1, Err(BootError::Magic)),
        (|p| p.magic = 0, Err(BootError::Magic)),
        (|p| p.version += 1, Err(BootError::Version)),
        (|p| p.size -= 1, Err(BootError::Version)),
        (|p| p.size = u32::MAX, Err(BootError::Version)),
        (|p| p.flags = 2, Err(BootError::Reserved)),
        (|p| p.reserved2[2] = 1, Err(BootError::Reserved)),
        (|p| p.rate_limit_clock = 2, Ok(())),
        (|p| p.rate_limit_clock = 3, Err(BootError::Policy)),
        (|p| p.psi_zero_delta = 0, Ok(())),
        (|p| p.psi_zero_delta = 2, Err(BootError::Policy)),
        (|p| p.fault = Fault::ALL.len() as u8, Ok(())),
        (|p| p.fault = Fault::ALL.len() as u8 + 1, Err(BootError::Policy)),
        (|p| p.fault = u8::MAX, Err(BootError::Policy)),
        (|p| p.nr_groups = 0, Err(BootError::Count)),
        (|p| p.nr_groups = MAX_GROUPS as u16, Ok(())),
        (|p| p.nr_groups = MAX_GROUPS as u16 + 1, Err(BootError::Count)),
        (|p| p.nr_groups = u16::MAX, Err(BootError::Count)),
        (|p| p.nr_tasks = 0, Err(BootError::Irq)),
        (|p| p.nr_tasks = 3, Err(BootError::Task)),
        (|p| p.nr_tasks = MAX_TASKS as u16 - 1, Err(BootError::Count)),
        (|p| p.nr_tasks = u16::MAX, Err(BootError::Count)),
        (|p| p.nr_irqs = 0, Err(BootError::Count)),
        (|p| p.nr_irqs = MAX_IRQS as u16, Ok(())),
        (|p| p.nr_irqs = MAX_IRQS as u16 + 1, Err(BootError::Count)),
        (|p| p.tick_period_ns = 0, Err(BootError::Tick)),
        (|p| p.tick_period_ns = 1, Ok(())),
        (|p| p.tick_period_ns = (1 << 32) - 1, Ok(())),
        (|p| p.tick_period_ns = 1 << 32, Err(BootError::Tick)),
        (|p| p.offline_ns = u64::MAX, Ok(())),
        (|p| p.groups[0].parent = 7, Ok(())),
        (|p| p.groups[1].parent = 1, Err(BootError::Group)),
        (|p| p.groups[2].parent = 2, Err(BootError::Group)),
        (|p| p.groups[2].parent = NONE, Err(BootError::Group)),
        (|p| p.groups[2].shares = 1, Err(BootError::Group)),
        (|p| p.groups[2].shares = 2, Ok(())),
        (|p| p.groups[2].shares = 1 << 18, Ok(())),
        (|p| p.groups[2].shares = (1 << 18) + 1, Err(BootError::Group)),
        (|p| p.groups[2].reserved = 1, Err(BootError::Group)),
        (|p| p.groups[3].parent = 9, Ok(())),
        (|p| p.tasks[1].group = 3, Err(BootError::Task)),
        (|p| p.tasks[1].weight = 2, Err(BootError::Task)),
        (|p| p.tasks[1].weight = 3, Ok(())),
        (|p| p.tasks[1].weight = 1 << 18, Ok(())),
        (|p| p.tasks[1].weight = (1 << 18) + 1, Err(BootError::Task)),
        (|p| p.tasks[1].burn_min_ns = 0, Err(BootError::Task)),
        (|p| p.tasks[1].burn_min_ns = 1_000_001, Err(BootError::Task)),
        (|p| p.tasks[1].burn_max_ns = 1 << 62, Ok(())),
        (|p| p.tasks[1].burn_max_ns = (1 << 62) + 1, Err(BootError::Task)),
        (|p| p.tasks[1].sleep_min_ns = 1_000_001, Err(BootError::Task)),
        (|p| p.tasks[1].sleep_max_ns = 1 << 62, Ok(())),
        (|p| p.tasks[1].sleep_max_ns = (1 << 62) + 1, Err(BootError::Task)),
        (|p| p.tasks[1].start_ns = 1 << 62, Ok(())),
        (|p| p.tasks[1].start_ns = (1 << 62) + 1, Err(BootError::Task)),
        (|p| p.tasks[1].wakes = IDLE_PID, Err(BootError::Task)),
        (|p| p.tasks[1].wakes = KSOFTIRQD_PID, Err(BootError::Task)),
        (|p| p.tasks[1].wakes = FIRST_PID + 1, Ok(())),
        (|p| p.tasks[1].wakes = FIRST_PID + 2, Err(BootError::Task)),
        (|p| p.tasks[1].flags = TASK_FORK | TASK_BLOCKED, Ok(())),
        (|p| p.tasks[1].flags = 4, Err(BootError::Task)),
        (|p| p.tasks[1].reserved[0] = 1, Err(BootError::Task)),
        (|p| p.tasks[2].weight = 0, Ok(())),
        (|p| p.irqs[1].wakes = KSOFTIRQD_PID, Err(BootError::Irq)),
        (|p| p.irqs[1].wakes = FIRST_PID + 2, Err(BootError::Irq)),
        (|p| p.irqs[1].flags = 2, Err(BootError::Irq)),
        (|p| p.irqs[3].flags = 2, Ok(())),
    ];
    for (i, (change, expected)) in rows.iter().enumerate() {
        let mut p = good();
        change(&mut p);
        assert_eq!(p.validate().map(|_| ()), *expected, "row {i}");
        if expected.is_ok() {
            let mut bench = Bench::boot(&p, Machine::new());
            for _ in 0..20 {
                step(&mut bench);
            }
            assert_eq!(broken(&bench.kernel), None, "row {i}");
        }
    }
}

#[test]
fn errors_travel_as_numbers() {
    for n in 1..=9 {
        assert_eq!(BootError::from_number(n).map(|e| e as u64), Some(n));
    }
    assert_eq!([0, 10, 257, u64::MAX].map(BootError::from_number), [None; 4]);
}

#[test]
fn a_refused_page_leaves_the_kernel_as_it_was() {
    let mut p = good();
    p.irqs[1].flags = 2;
    let mut k = crate::kernel::Kernel::new_box_zeroed().unwrap();
    assert_eq!(k.boot(&mut Machine::new(), &p), Err(BootError::Irq));
    assert_eq!((k.nr_groups, k.nr_tasks, k.need_resched), (0, 0, false));
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_refused_without_a_panic(
        seed in any::<[u8; 64]>(),
        keeps_head in any::<bool>(),
    ) {
        let mut bytes: Vec<u8> = seed.iter().copied().cycle().take(size_of::<BootPage>()).collect();
        if keeps_head {
            // A page that is right up to its tables.
            bytes[..48].copy_from_slice(&good().as_bytes()[..48]);
        }
        let mut page = BootPage::new_box_zeroed().unwrap();
        page.as_mut_bytes().copy_from_slice(&bytes);
        if let Err(e) = page.validate() {
            prop_assert!(keeps_head == (e as u8 > BootError::Tick as u8));
        }
    }

    #[test]
    fn a_page_with_one_byte_changed_is_refused_or_boots(
        at in 0usize..48 + 5 * 8,
        table in 0usize..4 * 64,
        in_table in any::<bool>(),
        value in any::<u8>(),
    ) {
        let mut page = good();
        let tasks = 48 + MAX_GROUPS * 8;
        page.as_mut_bytes()[if in_table { tasks + table } else { at }] = value;
        if page.validate().is_ok() {
            let mut bench = Bench::boot(&page, Machine::new());
            for _ in 0..30 {
                step(&mut bench);
            }
            // Faults break what holds otherwise.
            if page.fault == 0 {
                prop_assert_eq!(broken(&bench.kernel), None);
            }
        }
    }
}

#[test]
fn a_new_page_is_valid() {
    assert_eq!(BootPage::new(1, POLICY).validate(), Ok(POLICY));
}
