//! A machine for the tests: clocks that move by script, and the state that must hold between steps.

use std::boxed::Box;
use std::format;
use std::string::String;
use std::vec::Vec;

use zerocopy::FromZeros;

use crate::fair::task_se;
use crate::hardware::{Cpu, Hardware, Probe};
use crate::kernel::{Kernel, TaskState, addr, do_irq};
use crate::policy::{Fault, Policy, PsiZeroDelta, RateLimitClock};
use crate::psi::{NR_RUNNING, PSI_ONCPU};
use crate::wire::{BootPage, GroupSpec, IDLE_PID, NONE, TaskSpec};

/// A policy without a fault.
pub const POLICY: Policy = Policy {
    rate_limit_clock: RateLimitClock::RqClock,
    psi_zero_delta: PsiZeroDelta::Skip,
    fault: Fault::None,
};

/// Draws for scripts (xorshift64, Marsaglia 2003).
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, n: u64) -> u64 {
        let x = &mut self.0;
        *x ^= *x << 13;
        *x ^= *x >> 7;
        *x ^= *x << 17;
        *x % n.max(1)
    }

    /// Below 2^b, for one of the `bits`.
    pub fn magnitude(&mut self, bits: [u32; 3]) -> u32 {
        let b = bits[self.below(3) as usize];
        self.below(1 << b) as u32
    }
}

/// The clocks and devices.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Guest time, ns.
    pub now: u64,
    /// The steal counter, ns.
    pub steal: u64,
    /// When the timer fires, ns.
    pub timer: u64,
    /// What a handler costs, ns.
    pub handler_ns: u64,
    /// Softirq work that each device interrupt raises, ns.
    pub softirq_ns: u32,
    /// Device interrupts, as (time, line), the next last.
    pub device: Vec<(u64, u16)>,
    /// Time that is stolen in each burn, up to this, ns.
    pub steal_max: u64,
    pub rng: Rng,
    /// Every probe, with its time.
    pub probes: Vec<(u64, Probe)>,
}

impl Machine {
    pub fn new() -> Self {
        Self {
            now: 0,
            steal: 0,
            timer: u64::MAX,
            handler_ns: 0,
            softirq_ns: 0,
            device: Vec::new(),
            steal_max: 0,
            rng: Rng(1),
            probes: Vec::new(),
        }
    }
}

impl Hardware for Machine {
    fn sched_clock_cpu(&mut self) -> u64 {
        self.now
    }

    fn steal_clock(&mut self) -> u64 {
        self.steal
    }

    fn probe(&mut self, _: &mut Kernel, probe: Probe) {
        self.probes.push((self.now, probe));
    }

    fn set_timer(&mut self, deadline_ns: u64) {
        self.timer = deadline_ns;
    }

    fn irq_status(&mut self, _: &mut Kernel, line: u16) -> u32 {
        self.now = self.now.wrapping_add(self.handler_ns);
        if line == 0 { 0 } else { self.softirq_ns }
    }
}

/// The CPU of a [`Machine`].
pub struct Bench {
    pub kernel: Box<Kernel>,
    pub hw: Machine,
}

impl Bench {
    pub fn boot(page: &BootPage, hw: Machine) -> Self {
        let mut bench = Self { kernel: Kernel::new_box_zeroed().unwrap(), hw };
        bench.kernel.boot(&mut bench.hw, page).unwrap();
        bench
    }

    fn next_event(&self) -> u64 {
        self.hw.device.last().map_or(u64::MAX, |(at, _)| *at).min(self.hw.timer)
    }

    /// Lets up to `want` ns pass and takes one interrupt if one is due.
    fn pass(&mut self, want: u64) -> u64 {
        let stolen = self.hw.rng.below(self.hw.steal_max + 1);
        self.hw.steal = self.hw.steal.wrapping_add(stolen);
        self.hw.now = self.hw.now.saturating_add(stolen);
        let done = want.min(self.next_event().saturating_sub(self.hw.now));
        self.hw.now += done;
        if self.hw.device.last().is_some_and(|(at, _)| *at <= self.hw.now) {
            let (_, line) = self.hw.device.pop().unwrap();
            do_irq(self, line);
        } else if self.hw.timer <= self.hw.now {
            self.hw.timer = u64::MAX;
            do_irq(self, 0);
        }
        done
    }
}

impl Cpu for Bench {
    type Hw = Machine;

    fn parts(&mut self) -> (&mut Kernel, &mut Machine) {
        (&mut self.kernel, &mut self.hw)
    }

    fn burn(&mut self, want_ns: u32) -> u32 {
        self.pass(want_ns.into()) as u32
    }

    fn softirq(&mut self, want_ns: u32) -> u32 {
        self.pass(want_ns.into()) as u32
    }

    fn halt(&mut self) {
        let until = self.next_event();
        assert_ne!(until, u64::MAX, "halted with no timer armed");
        self.pass(until.saturating_sub(self.hw.now));
    }
}

/// A page with groups under the given parents and a task of weight 1024 in each listed group, which
/// burns and sleeps for up to a millisecond.
pub fn page(parents: &[u16], tasks: &[u16]) -> Box<BootPage> {
    let mut page = BootPage::new_box_zeroed().unwrap();
    page.init(1_000_000, POLICY);
    page.nr_groups = parents.len() as u16 + 1;
    for (i, parent) in parents.iter().enumerate() {
        page.groups[i + 1] = GroupSpec { shares: 1024, parent: *parent, reserved: 0 };
    }
    page.nr_tasks = tasks.len() as u16;
    for (i, group) in tasks.iter().enumerate() {
        page.tasks[i] = TaskSpec {
            burn_min_ns: 100_000,
            burn_max_ns: 1_000_000,
            sleep_min_ns: 100_000,
            sleep_max_ns: 1_000_000,
            start_ns: 0,
            seed: i as u64 + 1,
            weight: 1024,
            group: *group,
            wakes: NONE,
            flags: 0,
            reserved: [0; 3],
        };
    }
    page
}

/// A booted kernel and its machine.
pub fn booted(parents: &[u16], tasks: &[u16]) -> (Box<Kernel>, Machine) {
    let bench = Bench::boot(&page(parents, tasks), Machine::new());
    (bench.kernel, bench.hw)
}

/// Is `group` an ancestor of `below`, or the same?
pub fn is_above(k: &Kernel, group: u16, below: u16) -> bool {
    let mut g = Some(below);
    while let Some(at) = g {
        if at == group {
            return true;
        }
        g = k.parent_group(at);
    }
    false
}

/// What holds of a kernel whenever no rule is running; the first thing that does not.
pub fn broken(k: &Kernel) -> Option<String> {
    let pids = || (0..k.nr_tasks).filter(|p| k.ses[task_se(*p)].on_rq);
    let queued = pids().count() as u32;
    if k.rq.nr_running != queued {
        return Some(format!("nr_running {} but {queued} tasks are queued", k.rq.nr_running));
    }
    if k.preempt_count != 0 || !k.psi_seq.is_multiple_of(2) {
        return Some(format!("preempt_count {:#x}, psi_seq {}", k.preempt_count, k.psi_seq));
    }
    for cfs in 0..k.nr_groups {
        if let Some(what) = broken_cfs_rq(k, cfs, pids().collect()) {
            return Some(format!("cfs_rq {cfs}: {what}"));
        }
    }
    broken_leaf_list(k).or_else(|| broken_timers(k))
}

fn broken_cfs_rq(k: &Kernel, cfs: u16, queued_pids: Vec<u16>) -> Option<String> {
    let q = &k.cfs_rqs[cfs as usize];
    let on: Vec<usize> = (0..k.nr_groups as usize)
        .chain((0..k.nr_tasks).map(task_se))
        .filter(|se| k.ses[*se].on_rq && k.ses[*se].cfs_rq == cfs)
        .collect();
    let weight: u64 = on.iter().map(|se| k.ses[*se].load_weight).sum();
    if (q.nr_queued as usize, q.load_weight) != (on.len(), weight) {
        return Some(format!(
            "{} entities of weight {}, found {on:?} {weight}",
            q.nr_queued, q.load_weight
        ));
    }
    let mut listed = Vec::new();
    let (mut next, mut prev) = (q.first, NONE);
    while next != NONE {
        if k.ses[next as usize].prev != prev || listed.len() > on.len() {
            return Some(format!("list of entities broken at {next}"));
        }
        listed.push(next as usize);
        (prev, next) = (next, k.ses[next as usize].next);
    }
    listed.sort_unstable();
    if listed != on {
        return Some(format!("entities {listed:?} listed, {on:?} queued"));
    }
    let below: Vec<u16> =
        queued_pids.into_iter().filter(|p| is_above(k, cfs, k.tasks[*p as usize].group)).collect();
    if q.h_nr_runnable as usize != below.len() {
        return Some(format!("h_nr_runnable {}, {below:?} runnable", q.h_nr_runnable));
    }
    let groupc = &k.psi_groups[cfs as usize];
    if groupc.tasks[NR_RUNNING] as usize != below.len() {
        return Some(format!("psi NR_RUNNING {}, {below:?} runnable", groupc.tasks[NR_RUNNING]));
    }
    let runs = k.curr != IDLE_PID && is_above(k, cfs, k.tasks[k.curr as usize].group);
    if (groupc.state_mask & PSI_ONCPU != 0) != runs || (q.curr != NONE) != runs {
        return Some(format!("{} runs: mask {:#x}, curr {}", k.curr, groupc.state_mask, q.curr));
    }
    if runs && k.ses[q.curr as usize].cfs_rq != cfs {
        return Some(format!("curr {} is queued elsewhere", q.curr));
    }
    let tg = &k.task_groups[cfs as usize];
    if tg.load_avg != q.tg_load_avg_contrib {
        return Some(format!(
            "tg->load_avg {}, contribution {}",
            tg.load_avg, q.tg_load_avg_contrib
        ));
    }
    None
}

/// The leaf list is circular in both directions, without duplicates, children before parents, and
/// holds every cfs_rq with something queued.
pub fn broken_leaf_list(k: &Kernel) -> Option<String> {
    let mut seen = Vec::new();
    let mut next = k.leaf_first();
    let mut prev = None;
    while let Some(cfs) = next {
        if seen.contains(&cfs) || seen.len() > k.nr_groups as usize {
            return Some(format!("leaf {cfs} twice after {seen:?}"));
        }
        if k.leaf_prev(cfs) != prev {
            return Some(format!(
                "leaf {cfs} follows {prev:?}, its prev is {:?}",
                k.leaf_prev(cfs)
            ));
        }
        if let Some(parent) = seen.iter().find(|s| k.ses[cfs].cfs_rq as usize == **s) {
            return Some(format!("leaf {cfs} after its parent {parent}"));
        }
        seen.push(cfs);
        prev = Some(cfs);
        next = k.leaf_next(cfs);
    }
    let head = addr(&k.rq.leaf_cfs_rq_list);
    if k.rq.tmp_alone_branch != head {
        return Some(String::from("a branch is not connected"));
    }
    (0..k.nr_groups as usize).find_map(|cfs| {
        let q = &k.cfs_rqs[cfs];
        let listed = seen.contains(&cfs);
        (listed != (q.on_list == 1) || !listed && q.nr_queued != 0).then(|| {
            format!("leaf {cfs}: listed {listed}, on_list {}, {} queued", q.on_list, q.nr_queued)
        })
    })
}

fn broken_timers(k: &Kernel) -> Option<String> {
    let (mut next, mut last, mut armed) = (k.timer_first, 0, 0);
    while next != NONE {
        let t = &k.tasks[next as usize];
        let asleep = t.state == TaskState::Interruptible;
        if !t.timer_armed || t.wake_ns < last || !asleep || armed > k.nr_tasks {
            return Some(format!("timer of {next}: {t:?} after {last}"));
        }
        (last, next) = (t.wake_ns, t.timer_next);
        armed += 1;
    }
    let flags = (0..k.nr_tasks).filter(|p| k.tasks[*p as usize].timer_armed).count();
    (flags != armed as usize).then(|| format!("{flags} timers armed, {armed} listed"))
}
