//! A guest for the tests: the guest model's kernel, run in this process, then laid out in guest
//! memory with page tables for the very addresses at which it ran.
#![allow(unsafe_code)]

mod hostile;
mod layout;
mod random;
mod symbols;
mod translate;
mod user;
mod views;

use core::ptr;

use guest_model::fair::{CfsRq, TaskGroup};
use guest_model::hardware::{Cpu, Hardware, Probe};
use guest_model::kernel::{Kernel, Task, do_irq, step};
use guest_model::policy::{Fault, Policy, PsiZeroDelta, RateLimitClock};
use guest_model::wire::{BootPage, GroupSpec, NONE, TASK_BLOCKED, TaskSpec};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use super::Introspector;
use super::bundled::{BundledLayout, BundledSymbols};
use super::translate::{AddressSpace, Depth, PAGE_SIZE};

/// Groups of the test guest: the root, 1 in it, 2 and 3 in 1, 4 in the root; 3 stays empty.
const NR_GROUPS: usize = 5;

/// The devices: a clock that moves in `burn`, a timer, a source of interrupts every 170 us.
#[derive(Default)]
struct Devices {
    now_ns: u64,
    steal_ns: u64,
    timer_ns: u64,
    irq_ns: u64,
    probes: Vec<Probe>,
    /// Look at the guest at each `update_rq_clock()`.
    judge: bool,
    judged: u32,
}

impl Hardware for Devices {
    fn sched_clock_cpu(&mut self) -> u64 {
        self.now_ns
    }

    fn steal_clock(&mut self) -> u64 {
        self.steal_ns
    }

    fn probe(&mut self, kernel: &mut Kernel, probe: Probe) {
        if self.judge && probe == Probe::UpdateRqClock {
            Image::of(kernel).introspector().sanity(self.now_ns).unwrap();
            self.judged += 1;
        }
        self.probes.push(probe);
    }

    fn set_timer(&mut self, deadline_ns: u64) {
        self.timer_ns = deadline_ns;
    }

    fn irq_status(&mut self, _kernel: &mut Kernel, line: u16) -> u32 {
        self.now_ns += 7_000;
        if line == 0 { 0 } else { 3_000 }
    }
}

/// A guest that ran.
struct Guest {
    kernel: Box<Kernel>,
    devices: Devices,
}

impl Guest {
    /// Boots, and runs for `run_ns` of guest time.
    fn run(run_ns: u64) -> Self {
        Self::run_with(run_ns, Devices { now_ns: 500, ..Devices::default() })
    }

    fn run_with(run_ns: u64, devices: Devices) -> Self {
        let policy = Policy {
            rate_limit_clock: RateLimitClock::RqClock,
            psi_zero_delta: PsiZeroDelta::Account,
            fault: Fault::None,
        };
        let mut page = BootPage::new(1_000_000, policy);
        page.nr_groups = NR_GROUPS as u16;
        page.nr_irqs = 2;
        for (group, parent) in [(1, 0), (2, 1), (3, 1), (4, 0)] {
            page.groups[group] = GroupSpec { shares: 1024, parent, reserved: 0 };
        }
        let task = |group, wakes, sleep_ns, flags| TaskSpec {
            burn_min_ns: 50_000,
            burn_max_ns: 400_000,
            sleep_min_ns: 0,
            sleep_max_ns: sleep_ns,
            start_ns: 0,
            seed: 7,
            weight: 1024,
            group,
            wakes,
            flags,
            reserved: [0; 3],
        };
        // Pids 2 to 5: two that sleep at times, and a pair that wakes each other across groups.
        let tasks = [
            task(1, NONE, 900_000, 0),
            task(2, NONE, 900_000, 0),
            task(2, 5, 0, 0),
            task(4, 4, 0, TASK_BLOCKED),
        ];
        page.nr_tasks = tasks.len() as u16;
        page.tasks[..tasks.len()].copy_from_slice(&tasks);

        let mut guest = Self { kernel: crate::model::zeroed(), devices };
        guest.kernel.boot(&mut guest.devices, &page).unwrap();
        while guest.devices.now_ns < run_ns {
            step(&mut guest);
        }
        guest
    }

    /// Passes up to `want_ns` and delivers what comes due.
    fn pass(&mut self, want_ns: u64) -> u64 {
        let d = &mut self.devices;
        let irq_due_ns = d.irq_ns + 170_000;
        let next_ns = d.timer_ns.min(irq_due_ns).max(d.now_ns);
        if d.now_ns + want_ns < next_ns {
            d.now_ns += want_ns;
            return want_ns;
        }
        let passed = next_ns - d.now_ns;
        d.now_ns = next_ns + 1_000;
        d.steal_ns += 1_000;
        let line = if irq_due_ns <= next_ns {
            d.irq_ns = d.now_ns;
            1
        } else {
            0
        };
        do_irq(self, line);
        passed
    }
}

impl Cpu for Guest {
    type Hw = Devices;

    fn parts(&mut self) -> (&mut Kernel, &mut Devices) {
        (&mut self.kernel, &mut self.devices)
    }

    fn burn(&mut self, want_ns: u32) -> u32 {
        self.pass(want_ns.into()) as u32
    }

    fn softirq(&mut self, want_ns: u32) -> u32 {
        self.devices.now_ns += u64::from(want_ns);
        want_ns
    }

    fn halt(&mut self) {
        self.pass(u64::MAX / 4);
    }
}

/// Page tables built by hand in guest memory: 4-level, 4 KiB pages.
pub(super) struct PageTables {
    pub(super) mem: GuestMemoryMmap,
    pub(super) root: u64,
    next_free: u64,
}

const PRESENT_WRITABLE: u64 = 0x3;

impl PageTables {
    /// Guest memory from 0 to `size`, with an empty PML4 at 0x1000.
    pub(super) fn new(size: usize) -> Self {
        let mem = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), size)]).unwrap();
        Self { mem, root: 0x1000, next_free: 0x2000 }
    }

    pub(super) fn put(&self, gpa: u64, value: u64) {
        self.mem.write_obj(value, GuestAddress(gpa)).unwrap();
    }

    /// Where the entry of `va` is in the table at `level` (0 for page tables); missing tables above
    /// it are added.
    pub(super) fn entry(&mut self, va: u64, level: u32) -> u64 {
        let mut table = self.root;
        for above in (level + 1..4).rev() {
            let at = table + (va >> (12 + 9 * above) & 0x1ff) * 8;
            let mut entry: u64 = self.mem.read_obj(GuestAddress(at)).unwrap();
            if entry == 0 {
                entry = self.next_free | PRESENT_WRITABLE;
                self.next_free += PAGE_SIZE;
                self.put(at, entry);
            }
            table = entry & !0xfff;
        }
        table + (va >> (12 + 9 * level) & 0x1ff) * 8
    }

    pub(super) fn map(&mut self, va: u64, gpa: u64) {
        let at = self.entry(va, 0);
        self.put(at, gpa | PRESENT_WRITABLE);
    }
}

/// A guest laid out in guest memory.
struct Image {
    tables: PageTables,
    /// Guest virtual address of the kernel.
    base: u64,
}

/// Where the kernel's pages are, guest physical.
const DATA: u64 = 0x10_0000;

impl Image {
    /// Copies the kernel into guest memory, its pages in reverse order.
    fn of(kernel: &Kernel) -> Self {
        let mut tables = PageTables::new(4 << 20);
        let base = ptr::from_ref(kernel) as u64;
        let end = base + size_of::<Kernel>() as u64;
        let first_page = base & !(PAGE_SIZE - 1);
        let pages = (end - first_page).div_ceil(PAGE_SIZE);
        for page in 0..pages {
            let va = first_page + page * PAGE_SIZE;
            let gpa = DATA + (pages - 1 - page) * PAGE_SIZE;
            tables.map(va, gpa);
            let (from, to) = (va.max(base), (va + PAGE_SIZE).min(end));
            let at = GuestAddress(gpa + from % PAGE_SIZE);
            let len = (to - from) as usize;
            let slice = GuestMemoryBackend::get_slice(&tables.mem, at, len).unwrap();
            // SAFETY: `from..to` lies within `kernel`, `slice` is `len` bytes of a mapping that
            // nothing else refers to, and the two do not overlap. The copy is of bytes without a
            // type, so padding may be anything; nothing reads it.
            unsafe {
                ptr::copy_nonoverlapping(
                    ptr::from_ref(kernel).cast::<u8>().add((from - base) as usize),
                    slice.ptr_guard_mut().as_ptr(),
                    len,
                );
            }
        }
        Self { tables, base }
    }

    fn space(&self) -> AddressSpace {
        AddressSpace::new(self.tables.root, Depth::Four)
    }

    fn symbols(&self) -> BundledSymbols {
        BundledSymbols::at(self.base)
    }

    fn introspector(&self) -> Introspector {
        let symbols = self.symbols();
        let groups = symbols.groups(NR_GROUPS).unwrap();
        let mem = self.tables.mem.clone();
        Introspector::new(mem, self.space(), &symbols, &BundledLayout, groups).unwrap()
    }

    fn gpa(&self, va: u64) -> GuestAddress {
        GuestAddress(self.space().translate(&self.tables.mem, va).unwrap().gpa)
    }

    fn read(&self, va: u64) -> u64 {
        self.tables.mem.read_obj(self.gpa(va)).unwrap()
    }

    /// Overwrites eight bytes of the guest, or four.
    fn poke<T: vm_memory::ByteValued>(&self, va: u64, value: T) {
        self.tables.mem.write_obj(value, self.gpa(va)).unwrap();
    }

    fn rq(&self, member: usize) -> u64 {
        self.base + (core::mem::offset_of!(Kernel, rq) + member) as u64
    }

    fn cfs_rq(&self, group: usize, member: usize) -> u64 {
        let start = core::mem::offset_of!(Kernel, cfs_rqs) + group * size_of::<CfsRq>();
        self.base + (start + member) as u64
    }

    fn task_group(&self, group: usize) -> u64 {
        let start = core::mem::offset_of!(Kernel, task_groups) + group * size_of::<TaskGroup>();
        self.base + start as u64
    }

    fn task(&self, pid: usize, member: usize) -> u64 {
        let start = core::mem::offset_of!(Kernel, tasks) + pid * size_of::<Task>();
        self.base + (start + member) as u64
    }
}
