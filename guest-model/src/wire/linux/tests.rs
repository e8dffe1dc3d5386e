use std::boxed::Box;
use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

fn good() -> Box<Plan> {
    let mut p = Box::new(Plan::new());
    p.nr_groups = 3;
    p.groups[1] = Group::new("web", 100, 0).unwrap();
    p.groups[2] = Group::new("web.api", 10_000, 1).unwrap();
    p.nr_tasks = 2;
    for t in &mut p.tasks[..2] {
        *t = Task {
            burn_min_ns: 1,
            burn_max_ns: 10,
            sleep_min_ns: 0,
            sleep_max_ns: 0,
            start_ns: 0,
            seed: 1,
            nice: 0,
            group: 2,
            wakes: 0,
            flags: 0,
            reserved: [0; 4],
        };
    }
    p.nr_nets = 2;
    p.net_wakes[1] = 1;
    p
}

type Change = fn(&mut Plan);

/// Every field at both sides of every bound.
#[test]
fn each_field_is_taken_to_its_bounds_and_refused_beyond_them() {
    use PlanError::*;
    let rows: &[(Change, Result<(), PlanError>)] = &[
        (|_| (), Ok(())),
        (|p| p.magic = 0, Err(Magic(0))),
        (|p| p.magic = crate::wire::MAGIC, Err(Magic(crate::wire::MAGIC))),
        (|p| p.version = 2, Err(Version { version: 2, size: 103_712 })),
        (|p| p.size -= 1, Err(Version { version: 1, size: 103_711 })),
        (|p| p.reserved = 1, Err(Reserved)),
        (|p| p.nr_groups = 0, Err(Count)),
        (|p| p.nr_groups = 4, Err(Group(3))),
        (|p| p.nr_groups = MAX_GROUPS as u16 + 1, Err(Count)),
        (|p| p.nr_groups = u16::MAX, Err(Count)),
        (|p| p.nr_tasks = 3, Err(Task(2))),
        (|p| p.nr_tasks = 1, Err(Net(1))),
        (|p| p.nr_tasks = MAX_PLAN_TASKS as u16 + 1, Err(Count)),
        (|p| p.nr_tasks = u16::MAX, Err(Count)),
        (|p| p.nr_nets = 4, Ok(())),
        (|p| p.nr_nets = 5, Err(Count)),
        (|p| p.nr_nets = 1, Err(Net(1))),
        (|p| p.net_wakes[1] = 2, Err(Net(1))),
        (|p| p.net_wakes[0] = 1, Ok(())),
        (|p| p.net_wakes[2] = 0, Err(Net(2))),
        (|p| p.groups[0].parent = 7, Ok(())),
        (|p| p.groups[1].parent = 1, Err(Group(1))),
        (|p| p.groups[2].parent = NONE, Err(Group(2))),
        (|p| p.groups[2].weight = 0, Err(Group(2))),
        (|p| p.groups[2].weight = 1, Ok(())),
        (|p| p.groups[2].weight = 10_001, Err(Group(2))),
        (|p| p.groups[2].name[0] = 0, Err(Group(2))),
        (|p| p.groups[2].name = [b'a'; 256], Err(Group(2))),
        (|p| p.groups[2].name[..255].fill(b'a'), Ok(())),
        (|p| p.groups[2].name[2] = b'/', Err(Group(2))),
        (|p| p.groups[2].name[2] = b'\n', Err(Group(2))),
        (|p| p.groups[2].name[2] = 0x80, Err(Group(2))),
        (|p| p.groups[2].name[255] = 1, Err(Group(2))),
        (|p| p.tasks[1].group = 3, Err(Task(1))),
        (|p| p.tasks[1].nice = -21, Err(Task(1))),
        (|p| p.tasks[1].nice = -20, Ok(())),
        (|p| p.tasks[1].nice = 19, Ok(())),
        (|p| p.tasks[1].nice = 20, Err(Task(1))),
        (|p| p.tasks[1].burn_min_ns = 0, Err(Task(1))),
        (|p| p.tasks[1].burn_min_ns = 11, Err(Task(1))),
        (|p| p.tasks[1].burn_max_ns = 1 << 62, Ok(())),
        (|p| p.tasks[1].burn_max_ns = (1 << 62) + 1, Err(Task(1))),
        (|p| p.tasks[1].sleep_min_ns = 1, Err(Task(1))),
        (|p| p.tasks[1].sleep_max_ns = 1 << 62, Ok(())),
        (|p| p.tasks[1].sleep_max_ns = (1 << 62) + 1, Err(Task(1))),
        (|p| p.tasks[1].start_ns = 1 << 62, Ok(())),
        (|p| p.tasks[1].start_ns = (1 << 62) + 1, Err(Task(1))),
        (|p| p.tasks[1].wakes = 1, Ok(())),
        (|p| p.tasks[1].wakes = 2, Err(Task(1))),
        (|p| p.tasks[1].wakes = NONE, Ok(())),
        (|p| p.tasks[1].flags = TASK_FORK | TASK_BLOCKED, Ok(())),
        (|p| p.tasks[1].flags = 4, Err(Task(1))),
        (|p| p.tasks[1].reserved[3] = 1, Err(Task(1))),
        (|p| p.tasks[2].nice = 99, Ok(())),
    ];
    for (i, (change, expected)) in rows.iter().enumerate() {
        let mut p = good();
        change(&mut p);
        assert_eq!(p.validate(), *expected, "row {i}");
    }
    assert_eq!(Plan::default().validate(), Ok(()));
}

#[test]
fn a_group_has_a_name_that_a_directory_can_have() {
    for name in ["a", "web.api", "...", ".a", &"x".repeat(255)] {
        let group = Group::new(name, 1, 0).unwrap();
        assert_eq!(group.name(), Some(name.as_bytes()));
    }
    for name in ["", ".", "..", "a/b", "/", "a b", "a\0b", "a\0", "\n", "é", &"x".repeat(256)] {
        assert_eq!(Group::new(name, 1, 0), None, "{name:?}");
    }
}

#[test]
fn a_task_waits_to_be_woken_as_in_the_bundled_guest() {
    let blocks = |sleep: u64, wakes: u16, flags: u16| {
        Task { sleep_max_ns: sleep, wakes, flags, ..good().tasks[0] }.blocks(7)
    };
    assert_eq!([blocks(0, NONE, 0), blocks(0, 7, 0), blocks(0, 6, 0)], [false, false, true]);
    assert_eq!([blocks(0, NONE, TASK_BLOCKED), blocks(0, 7, TASK_BLOCKED)], [true, true]);
    assert_eq!([blocks(1, 6, 0), blocks(1, NONE, TASK_BLOCKED)], [false, false]);
}

#[test]
fn a_refusal_says_what_was_found() {
    assert_eq!(PlanError::Magic(0).to_string(), "it begins with 0x0, not 0x4e414c50535152");
    let got = PlanError::Version { version: 9, size: 1 }.to_string();
    assert_eq!(got, "it has version 9 and 1 bytes, not version 1 and 103712 bytes");
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_refused_or_valid_without_a_panic(
        seed in any::<[u8; 64]>(),
        keeps_head in any::<bool>(),
    ) {
        let mut bytes: Vec<u8> = seed.iter().copied().cycle().take(size_of::<Plan>()).collect();
        if keeps_head {
            bytes[..32].copy_from_slice(&good().as_bytes()[..32]);
        }
        let plan = Plan::read_from_bytes(&bytes).unwrap();
        if let Err(e) = plan.validate() {
            prop_assert_eq!(keeps_head, matches!(e, PlanError::Group(_) | PlanError::Task(_)));
        }
    }
}
