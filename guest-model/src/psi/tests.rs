use std::boxed::Box;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::machine::{Machine, Rng, booted, is_above};
use crate::wire::FIRST_PID;

/// What happens to PSI, as the scheduler tells it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Wake(u16),
    Switch { prev: u16, next: u16, sleep: bool },
    Charge { curr: u16, prev: Option<u16>, irq: u64 },
}

/// The time in a state of `group`, from the list of events alone: between two events a state holds
/// or does not, by who is runnable and who runs.
fn naive(k: &Kernel, events: &[(u64, Event)], group: u16, state: usize, until: u64) -> u64 {
    let within = |pid: u16| is_above(k, group, k.tasks[pid as usize].group);
    let mut runnable: Vec<u16> = Vec::new();
    let (mut curr, mut time) = (IDLE_PID, 0);
    let (mut irq_seen, mut irq_total) = (0, 0);
    for (i, (at, event)) in events.iter().enumerate() {
        match *event {
            Event::Wake(pid) => runnable.push(pid),
            Event::Switch { prev, next, sleep } => {
                curr = next;
                if sleep {
                    runnable.retain(|p| *p != prev);
                }
            }
            Event::Charge { curr, prev, irq } => {
                let same =
                    prev.is_some_and(|p| k.tasks[p as usize].group == k.tasks[curr as usize].group);
                if curr != IDLE_PID && !same {
                    irq_total += if within(curr) { irq - irq_seen } else { 0 };
                    irq_seen = irq;
                }
            }
        }
        let end = events.get(i + 1).map_or(until, |(at, _)| *at);
        let here = runnable.iter().filter(|p| within(**p)).count();
        let running = curr != IDLE_PID && within(curr);
        let holds = match state {
            PSI_CPU_SOME => here > usize::from(running),
            PSI_CPU_FULL => here > 0 && !running,
            _ => here > 0,
        };
        time += if holds { end - at } else { 0 };
    }
    if state == PSI_IRQ_FULL { irq_total } else { time }
}

/// Tasks 2.. in their groups, all asleep, nothing charged.
fn asleep(parents: &[u16], groups: &[u16]) -> (Box<Kernel>, Machine) {
    let (mut k, hw) = booted(parents, &[]);
    for (i, group) in groups.iter().enumerate() {
        k.tasks[FIRST_PID as usize + i].group = *group;
    }
    (k, hw)
}

fn apply(k: &mut Kernel, hw: &mut Machine, at: u64, event: Event) {
    hw.now = at;
    match event {
        Event::Wake(pid) => k.psi_task_change(hw, pid, 0, TSK_RUNNING),
        Event::Switch { prev, next, sleep } => k.psi_task_switch(hw, prev, next, sleep),
        Event::Charge { curr, prev, irq } => {
            k.cpu_irqtime.total = irq;
            k.psi_account_irqtime(hw, curr, prev);
        }
    }
}

/// A course of events that a scheduler could have made.
fn course(seed: u64, tasks: u16) -> Vec<(u64, Event)> {
    let mut rng = Rng(seed);
    let mut runnable: Vec<u16> = Vec::new();
    let (mut now, mut irq, mut curr) = (0, 0, IDLE_PID);
    let mut events = Vec::new();
    for _ in 0..80 {
        now += rng.below(3) * rng.below(5_000_000);
        irq += rng.below(2) * rng.below(100_000);
        match rng.below(3) {
            0 => {
                let pid = FIRST_PID + rng.below(tasks.into()) as u16;
                if !runnable.contains(&pid) {
                    runnable.push(pid);
                    events.push((now, Event::Wake(pid)));
                }
            }
            1 => events.push((now, Event::Charge { curr, prev: None, irq })),
            _ => {
                let sleep = curr != IDLE_PID && rng.below(2) == 0;
                if sleep {
                    runnable.retain(|p| *p != curr);
                }
                let next = match runnable.len() {
                    0 => IDLE_PID,
                    n => runnable[rng.below(n as u64) as usize],
                };
                if next != curr {
                    events.push((now, Event::Charge { curr, prev: Some(next), irq }));
                    events.push((now, Event::Switch { prev: curr, next, sleep }));
                    curr = next;
                } else if sleep {
                    runnable.push(curr);
                }
            }
        }
    }
    events
}

const PARENTS: [u16; 5] = [0, 1, 1, 0, 4];
const GROUPS: [u16; 6] = [2, 2, 3, 5, 1, 0];

proptest! {
    #[test]
    fn times_are_those_that_the_list_of_events_gives(seed in 1u64.., policy in 0usize..2) {
        let (mut k, mut hw) = asleep(&PARENTS, &GROUPS);
        k.policy.psi_zero_delta = PsiZeroDelta::ALL[policy];
        let mut events = course(seed, GROUPS.len() as u16);
        // Ends every state, so that all of its time is recorded.
        let until = events.last().map_or(0, |(at, _)| *at);
        for (at, event) in &events {
            apply(&mut k, &mut hw, *at, *event);
        }
        events.push((until, Event::Charge { curr: IDLE_PID, prev: None, irq: 0 }));
        for group in 0..k.nr_groups {
            let mut groupc = k.psi_groups[group as usize].clone();
            groupc.record_times(until);
            for state in [PSI_CPU_SOME, PSI_CPU_FULL, PSI_IRQ_FULL, PSI_NONIDLE] {
                let expected = naive(&k, &events, group, state, until);
                prop_assert_eq!(u64::from(groupc.times[state]), expected, "{} {}", group, state);
            }
        }
        prop_assert!(k.psi_seq.is_multiple_of(2));
    }

    #[test]
    fn skipping_zero_deltas_moves_no_time(seed in 1u64..) {
        let times = PsiZeroDelta::ALL.map(|policy| {
            let (mut k, mut hw) = asleep(&PARENTS, &GROUPS);
            k.policy.psi_zero_delta = policy;
            for (at, event) in course(seed, GROUPS.len() as u16) {
                apply(&mut k, &mut hw, at, event);
            }
            let groups = k.psi_groups.iter().take(k.nr_groups.into());
            let times = groups.map(|g| {
                let mut g = g.clone();
                g.record_times(u64::from(u32::MAX));
                g.times
            });
            times.collect::<Vec<_>>()
        });
        prop_assert_eq!(&times[0], &times[1]);
    }
}

#[test]
fn a_charge_returns_where_the_kernel_returns() {
    // (curr, prev, delta) -> writes under account and under skip; tasks 2 and 3 share a group.
    let rows = [
        (IDLE_PID, None, 5, [0, 0]),
        (IDLE_PID, Some(2), 5, [0, 0]),
        (2, Some(3), 5, [0, 0]),
        (2, Some(4), 5, [1, 1]),
        (2, Some(IDLE_PID), 5, [1, 1]),
        (2, None, 5, [1, 1]),
        (2, None, 0, [1, 0]),
        (2, Some(4), 0, [1, 0]),
        (2, None, -1, [0, 0]),
    ];
    for (curr, prev, delta, writes) in rows {
        for (policy, writes) in PsiZeroDelta::ALL.into_iter().zip(writes) {
            let (mut k, mut hw) = asleep(&PARENTS, &GROUPS);
            k.policy.psi_zero_delta = policy;
            k.rq.psi_irq_time = 100;
            k.cpu_irqtime.total = 100u64.wrapping_add_signed(delta);
            k.psi_account_irqtime(&mut hw, curr, prev);
            let row = (curr, prev, delta, policy);
            assert_eq!(k.costs.psi_account_irqtime_seqcount_writes, writes, "{row:?}");
            assert_eq!(k.costs.clock_reads_psi_account_irqtime, writes, "{row:?}");
            // Group 2 has two ancestors.
            assert_eq!(k.costs.psi_account_irqtime_levels, 3 * writes, "{row:?}");
            let moved = if writes == 1 { delta } else { 0 };
            assert_eq!(k.rq.psi_irq_time, 100u64.wrapping_add_signed(moved), "{row:?}");
        }
    }
}

#[test]
fn a_swapper_that_follows_a_task_of_the_root_group_shares_its_group() {
    let (mut k, mut hw) = asleep(&[], &[0]);
    k.cpu_irqtime.total = 7;
    k.psi_account_irqtime(&mut hw, FIRST_PID, Some(IDLE_PID));
    assert_eq!(k.rq.psi_irq_time, 0);
}

#[test]
fn states_hold_by_who_waits_and_who_runs() {
    for running in 0..4 {
        for oncpu in [0, PSI_ONCPU] {
            let g = PsiGroupCpu { tasks: [0, 0, running, 0], ..PsiGroupCpu::default() };
            let mask = g.test_states(oncpu);
            let holds = |state: usize| mask & 1 << state != 0;
            assert_eq!(holds(PSI_CPU_SOME), running > u32::from(oncpu != 0));
            assert_eq!(holds(PSI_CPU_FULL), running > 0 && oncpu == 0);
            assert_eq!(holds(PSI_NONIDLE), running > 0);
            assert_eq!(mask & PSI_ONCPU, oncpu);
        }
    }
}

#[test]
fn a_switch_inside_a_group_leaves_its_ancestors_untouched() {
    let (mut k, mut hw) = asleep(&PARENTS, &GROUPS);
    for (at, pid) in [(10, 2), (20, 3)] {
        apply(&mut k, &mut hw, at, Event::Wake(pid));
    }
    apply(&mut k, &mut hw, 30, Event::Switch { prev: IDLE_PID, next: 2, sleep: false });
    apply(&mut k, &mut hw, 40, Event::Switch { prev: 2, next: 3, sleep: false });
    assert!(k.psi_groups.iter().all(|g| g.state_start != 40));
    apply(&mut k, &mut hw, 50, Event::Switch { prev: 3, next: 2, sleep: true });
    let changed: Vec<_> = (0..6).filter(|g| k.psi_groups[*g].state_start == 50).collect();
    assert_eq!(changed, [0, 1, 2]);
}

#[test]
fn times_wrap_at_32_bits_as_in_the_kernel() {
    let mut g = PsiGroupCpu { state_mask: 1 << PSI_NONIDLE, ..PsiGroupCpu::default() };
    g.record_times((1 << 32) + 5);
    assert_eq!(g.times[PSI_NONIDLE], 5);
    g.record_times(3);
    assert_eq!(g.times[PSI_NONIDLE], 3);
}
