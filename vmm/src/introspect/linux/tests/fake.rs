//! A Linux guest at rest, made by hand: its types as BTF, its symbols as a System.map, its memory.
//!
//! The values are such as a guest has that ran for some seconds.

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::shapes::{Build, types};
use crate::introspect::layout::LayoutSource;
use crate::introspect::linux::btf::Btf;
use crate::introspect::linux::layout::BtfLayout;
use crate::introspect::linux::symbols::SymbolTable;
use crate::introspect::linux::{Linux, SetupError};
use crate::introspect::tests::PageTables;
use crate::introspect::translate::{Depth, PAGE_SIZE};

/// Where the kernel is linked, and where it is in guest physical memory.
pub const LINKED: u64 = 0xffff_ffff_8100_0000;
const IMAGE: u64 = 0x20_0000;
const IMAGE_SIZE: u64 = 0x4_0000;
/// Offsets in the image.
const DATA: u64 = 0x8000;
const BTF: u64 = 0x1_0000;
const PER_CPU: u64 = 0x3_0000;
const PER_CPU_SIZE: u64 = 0x4000;
/// The direct map.
const DIRECT: u64 = 0xffff_8880_0000_0000;
/// CPU 0's variables, then objects, physical.
const CPU_0: u64 = 0x30_0000;
const OBJECTS: u64 = 0x31_0000;
const MEMORY: u64 = 4 << 20;
/// The IDT, guest virtual and physical.
pub const IDT: u64 = 0xffff_fe00_0000_0000;
const IDT_AT: u64 = 0x2f_0000;

/// `sched_clock()` of the guest, ns.
pub const NOW_NS: u64 = 5_000_000_000;
/// All that the guest accounted as IRQ time, ns.
pub const IRQ_NS: u64 = 80_000_123;
/// The steal counter, ns.
pub const STEAL_NS: u64 = 7_000_001;

/// One task group.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    pub task_group: u64,
    pub cfs_rq: u64,
    pub psi_group_cpu: u64,
    pub cgroup: u64,
    pub kn: u64,
    pub name: u64,
}

/// The guest.
pub struct Fake {
    pub tables: PageTables,
    pub build: Build,
    pub slide: u64,
    pub layout: BtfLayout,
    pub btf: Vec<u8>,
    /// Linked addresses, types and names.
    pub symbols: Vec<(u64, char, &'static str)>,
    /// Root, `/a`, `/a/b`, `/c`.
    pub groups: Vec<Group>,
    pub curr: u64,
    pub ksoftirqd: u64,
    next_data: u64,
    next_per_cpu: u64,
    next_object: u64,
}

impl Fake {
    pub fn new(build: Build, slide: u64) -> Self {
        Self::with(build, slide, |_, _| true)
    }

    /// A guest whose kernel has only the structures and members that `keep` keeps.
    pub fn with(build: Build, slide: u64, keep: impl Fn(&str, &str) -> bool) -> Self {
        let btf = types(build, keep);
        let mut tables = PageTables::new(MEMORY as usize);
        let mut map = |va: u64, gpa: u64, size: u64| {
            for page in (0..size).step_by(PAGE_SIZE as usize) {
                tables.map(va + page, gpa + page);
            }
        };
        map(LINKED + slide, IMAGE, IMAGE_SIZE);
        map(DIRECT + CPU_0, CPU_0, MEMORY - CPU_0);
        map(IDT, IDT_AT, PAGE_SIZE);
        let mut fake = Self {
            tables,
            build,
            slide,
            layout: BtfLayout::new(Btf::parse(btf.clone()).unwrap()),
            btf,
            symbols: Vec::new(),
            groups: Vec::new(),
            curr: 0,
            ksoftirqd: 0,
            next_data: DATA,
            next_per_cpu: 0x100,
            next_object: OBJECTS,
        };
        fake.fill();
        fake
    }

    pub fn mem(&self) -> GuestMemoryMmap {
        self.tables.mem.clone()
    }

    /// Where the vCPU's registers say that the tables and the IDT are.
    pub fn cr3(&self) -> u64 {
        self.tables.root
    }

    pub fn gpa(&self, va: u64) -> GuestAddress {
        let space = crate::introspect::translate::AddressSpace::new(self.cr3(), Depth::Four);
        GuestAddress(space.translate(&self.tables.mem, va).unwrap().gpa)
    }

    pub fn poke(&self, va: u64, bytes: &[u8]) {
        self.tables.mem.write_slice(bytes, self.gpa(va)).unwrap();
    }

    pub fn poke_u64(&self, va: u64, value: u64) {
        self.poke(va, &value.to_le_bytes());
    }

    /// Sets a member, as many bytes as it has; one that the kernel has not is left.
    pub fn set(&self, structure: &'static str, member: &'static str, base: u64, value: u64) {
        if let Ok(place) = self.layout.member(structure, member) {
            let bytes = &value.to_le_bytes()[..place.size.min(8) as usize];
            self.poke(base + place.offset, bytes);
        }
    }

    /// Sets an element of an array of `u32` or `u64`.
    fn set_element(
        &self,
        structure: &'static str,
        member: &'static str,
        at: (u64, u64),
        bytes: &[u8],
    ) {
        let (base, index) = at;
        if let Ok(place) = self.layout.member(structure, member) {
            self.poke(base + place.offset + index * bytes.len() as u64, bytes);
        }
    }

    pub fn offset(&self, structure: &'static str, member: &'static str) -> u64 {
        self.layout.member(structure, member).map_or(0, |place| place.offset)
    }

    fn size(&self, structure: &'static str) -> u64 {
        self.layout.size(structure).unwrap_or(64)
    }

    /// A variable in the image; its address in the guest.
    fn data(&mut self, name: &'static str, size: u64) -> u64 {
        let linked = LINKED + self.next_data;
        self.next_data += size.next_multiple_of(64);
        self.symbols.push((linked, 'D', name));
        linked + self.slide
    }

    fn per_cpu_linked(&self) -> u64 {
        if self.build == Build::Old { 0 } else { LINKED + PER_CPU }
    }

    /// A per-CPU variable; CPU 0's address.
    fn per_cpu(&mut self, name: &'static str, size: u64) -> u64 {
        let linked = self.per_cpu_linked() + self.next_per_cpu;
        let address = DIRECT + CPU_0 + self.next_per_cpu;
        self.next_per_cpu += size.next_multiple_of(64);
        if !name.is_empty() {
            self.symbols.push((linked, 'D', name));
        }
        address
    }

    /// From CPU 0's instance to the pointer that the kernel holds.
    pub fn per_cpu_pointer(&self, address: u64) -> u64 {
        address.wrapping_sub(self.per_cpu_offset())
    }

    pub fn per_cpu_offset(&self) -> u64 {
        let slide = if self.build == Build::Old { 0 } else { self.slide };
        (DIRECT + CPU_0).wrapping_sub(self.per_cpu_linked().wrapping_add(slide))
    }

    fn object(&mut self, size: u64) -> u64 {
        let address = DIRECT + self.next_object;
        self.next_object += size.next_multiple_of(64) + 64;
        address
    }

    fn task(&self, at: u64, pid: u64, comm: &[u8], group: u64) -> u64 {
        self.set("task_struct", "pid", at, pid);
        self.set("task_struct", "tgid", at, pid);
        self.set("task_struct", "stack", at, 0xffff_c900_0000_0000);
        self.set("task_struct", "sched_task_group", at, group);
        self.poke(at + self.offset("task_struct", "comm"), comm);
        at
    }

    fn fill(&mut self) {
        self.symbols.extend([
            (LINKED, 'T', "_text"),
            (LINKED + 0x1000, 'T', "asm_exc_divide_error"),
            (LINKED + 0x1100, 'T', "asm_exc_invalid_op"),
            (LINKED + 0x1200, 'T', "asm_exc_general_protection"),
            (LINKED + 0x2000, 'T', "update_rq_clock"),
            (LINKED + 0x2100, 'T', "psi_account_irqtime"),
            (LINKED + 0x3000, 'T', "_etext"),
            (LINKED + BTF, 'R', "__start_BTF"),
            (LINKED + BTF + self.btf.len() as u64, 'R', "__stop_BTF"),
            (self.per_cpu_linked(), 'D', "__per_cpu_start"),
            (self.per_cpu_linked() + PER_CPU_SIZE, 'D', "__per_cpu_end"),
        ]);
        for (vector, offset) in [(0u64, 0x1000), (6, 0x1100), (13, 0x1200)] {
            let handler = LINKED + self.slide + offset;
            let low = handler & 0xffff | 0x10 << 16 | 0x8e00 << 32 | (handler & 0xffff_0000) << 32;
            self.poke_u64(IDT + vector * 16, low);
            self.poke_u64(IDT + vector * 16 + 8, handler >> 32);
        }
        self.poke(LINKED + self.slide + BTF, &self.btf.clone());
        self.poke(LINKED + self.slide + 0x2000, &[0xf3, 0x0f, 0x1e, 0xfa, 0x41, 0x54]);
        self.poke(LINKED + self.slide + 0x2100, &[0x0f, 0x1f, 0x40, 0xd6, 0x8b, 0x4e, 0x14]);

        // The kernel's own tables are the first page of all.
        let linked = LINKED + IMAGE_SIZE;
        self.tables.map(linked + self.slide, self.tables.root);
        self.symbols.push((linked, 'D', "init_top_pgt"));

        let offsets = self.data("__per_cpu_offset", 64);
        self.poke_u64(offsets, self.per_cpu_offset());
        let this_cpu_off = self.per_cpu("this_cpu_off", 8);
        self.poke_u64(this_cpu_off, self.per_cpu_offset());
        for (name, value) in [
            ("psi_disabled", 0u64),
            ("sched_clock_irqtime", 1),
            ("paravirt_steal_rq_enabled", 1),
            ("__sched_clock_stable", 1),
            ("kvm_sched_clock_offset", 900),
            ("__sched_clock_offset", 1000),
            ("nr_threads", 60),
        ] {
            let at = self.data(name, 8);
            self.poke_u64(at, value);
        }

        let rq = self.per_cpu("runqueues", self.size("rq"));
        let root = self.data("root_task_group", self.size("task_group"));
        let init_task = self.data("init_task", self.size("task_struct"));
        self.task(init_task, 0, b"swapper/0\0", root);
        let at = self.object(self.size("task_struct"));
        self.ksoftirqd = self.task(at, 15, b"ksoftirqd/0\0", root);
        let pointer = self.per_cpu("ksoftirqd", 8);
        self.poke_u64(pointer, self.ksoftirqd);

        self.fill_groups(rq, root);
        let at = self.object(self.size("task_struct"));
        self.curr = self.task(at, 42, b"burn\0", self.groups[2].task_group);
        self.fill_rq(rq, init_task);
        self.fill_times();
    }

    fn fill_groups(&mut self, rq: u64, root: u64) {
        let list = self.data("task_groups", 16);
        let system = self.data("psi_system", self.size("psi_group"));
        let names: [(&[u8], usize); 4] = [(b"", 0), (b"a", 0), (b"b", 1), (b"c", 0)];
        for (i, (name, parent)) in names.into_iter().enumerate() {
            let is_root = i == 0;
            let cfs_rq = match is_root {
                true => rq + self.offset("rq", "cfs"),
                false => self.per_cpu("", self.size("cfs_rq")),
            };
            let symbol = if is_root { "system_group_pcpu" } else { "" };
            let psi_group_cpu = self.per_cpu(symbol, self.size("psi_group_cpu"));
            let task_group = match is_root {
                true => root,
                false => self.object(self.size("task_group")),
            };
            let (cgroup, kn) =
                (self.object(self.size("cgroup")), self.object(self.size("kernfs_node")));
            let (text, psi) = (
                self.object(256),
                match is_root {
                    true => system,
                    false => self.object(self.size("psi_group")),
                },
            );
            self.poke(text, name);
            let pointer = match self.build {
                Build::New => self.per_cpu_pointer(cfs_rq),
                Build::Old => {
                    let array = self.object(32);
                    self.poke_u64(array, cfs_rq);
                    array
                }
            };
            self.set("kernfs_node", "name", kn, text);
            self.set("kernfs_node", "count", kn, 1);
            self.set("cgroup", "kn", cgroup, kn);
            self.set("cgroup", "self.cgroup", cgroup, cgroup);
            // The root's is never looked at.
            self.set("cgroup", "psi", cgroup, if is_root { 0 } else { psi });
            self.set("psi_group", "enabled", psi, 1);
            self.set("psi_group", "pcpu", psi, self.per_cpu_pointer(psi_group_cpu));
            self.set("task_group", "css.cgroup", task_group, cgroup);
            self.set("task_group", "css.ss", task_group, system);
            self.set("task_group", "cfs_rq", task_group, pointer);
            self.set("task_group", "shares", task_group, 1 << 20);
            let parent = if is_root { 0 } else { self.groups[parent].task_group };
            self.set("task_group", "parent", task_group, parent);
            self.set("task_group", "siblings", task_group, list);
            self.groups.push(Group { task_group, cfs_rq, psi_group_cpu, cgroup, kn, name: text });

            let i = i as u64;
            let load = if is_root { 0 } else { 1024 - i };
            self.set("cfs_rq", "avg.load_avg", cfs_rq, 1024 - i);
            self.set("cfs_rq", "avg.load_sum", cfs_rq, 47_000_000_000_000);
            self.set("cfs_rq", "avg.util_sum", cfs_rq, 23_000_000);
            self.set("cfs_rq", "avg.period_contrib", cfs_rq, 900);
            self.set("cfs_rq", "avg.runnable_avg", cfs_rq, 1023);
            self.set("cfs_rq", "avg.util_avg", cfs_rq, 500);
            self.set("cfs_rq", "tg_load_avg_contrib", cfs_rq, load);
            let stamp = if is_root { 0 } else { NOW_NS - 3_000_000 - i };
            self.set("cfs_rq", "last_update_tg_load_avg", cfs_rq, stamp);
            self.set("task_group", "load_avg", task_group, load);
            self.set("cfs_rq", "rq", cfs_rq, rq);
            self.set("cfs_rq", "on_list", cfs_rq, 1);
            self.set("cfs_rq", "tg", cfs_rq, task_group);
            if self.build == Build::Old {
                self.set("psi_group_cpu", "seq.sequence", psi_group_cpu, 20);
            }
            let running = 2u32;
            self.set_element("psi_group_cpu", "tasks", (psi_group_cpu, 2), &running.to_le_bytes());
            self.set("psi_group_cpu", "state_mask", psi_group_cpu, 0x180);
            let times = (IRQ_NS as u32 >> i).to_le_bytes();
            self.set_element("psi_group_cpu", "times", (psi_group_cpu, 6), &times);
            self.set("psi_group_cpu", "state_start", psi_group_cpu, NOW_NS - 2_000_000);
        }
        // The newest group is the first.
        let offset = self.offset("task_group", "list");
        let nodes: Vec<u64> = self.groups.iter().rev().map(|g| g.task_group + offset).collect();
        self.link(list, &nodes);
        let offset = self.offset("cfs_rq", "leaf_cfs_rq_list");
        let leaves: Vec<u64> =
            [2, 1, 3, 0].iter().map(|&i| self.groups[i].cfs_rq + offset).collect();
        self.link(rq + self.offset("rq", "leaf_cfs_rq_list"), &leaves);
    }

    /// A list of `nodes` behind `head`.
    pub fn link(&self, head: u64, nodes: &[u64]) {
        let all: Vec<u64> = [head].iter().chain(nodes).copied().collect();
        for (i, &node) in all.iter().enumerate() {
            let next = all[(i + 1) % all.len()];
            self.poke_u64(node, next);
            self.poke_u64(next + 8, node);
        }
    }

    fn fill_rq(&mut self, rq: u64, init_task: u64) {
        let clock = NOW_NS - 2_000_000;
        let clock_task = clock - IRQ_NS - STEAL_NS;
        for (member, value) in [
            ("nr_running", 2),
            ("cpu_capacity", 1024),
            ("curr", self.curr),
            ("idle", init_task),
            ("nr_switches", 995),
            ("tmp_alone_branch", rq),
            ("prev_mm", 0xffff_8880_1234_5678),
            ("clock_task", clock_task),
            ("clock_pelt", clock_task - 1_000_000),
            ("clock", clock),
            ("lost_idle_time", 12_345),
            ("clock_update_flags", 4),
            ("online", 1),
            ("cfs_tasks", self.curr),
            ("avg_irq.load_avg", 12),
            ("avg_irq.runnable_avg", 12),
            ("avg_irq.util_avg", 12),
            ("max_idle_balance_cost", 500_000),
            ("prev_irq_time", IRQ_NS),
            ("psi_irq_time", IRQ_NS),
            ("prev_steal_time", STEAL_NS),
            ("prev_steal_time_rq", STEAL_NS),
            ("calc_load_update", 4_294_900_000),
        ] {
            self.set("rq", member, rq, value);
        }
    }

    fn fill_times(&mut self) {
        let irqtime = self.per_cpu("cpu_irqtime", self.size("irqtime"));
        self.set("irqtime", "total", irqtime, IRQ_NS);
        self.set("irqtime", "tick_delta", irqtime, 1000);
        self.set("irqtime", "irq_start_time", irqtime, NOW_NS - 1_000_000);
        self.set("irqtime", "sync", irqtime, NOW_NS * 2);
        if self.build == Build::New {
            let seq = self.per_cpu("psi_seq", 4);
            self.set("seqcount", "sequence", seq, 4888);
        }
        let stat = self.per_cpu("kernel_cpustat", self.size("kernel_cpustat"));
        for (index, ns) in [2_000_000_000u64, 0, 900_000_000, 20_000_123, 60_000_000, 1_000_000_000]
            .into_iter()
            .enumerate()
        {
            let at = (stat, index as u64);
            self.set_element("kernel_cpustat", "cpustat", at, &ns.to_le_bytes());
        }
    }

    /// The System.map, without some symbols.
    pub fn table_without(&self, without: &[&str]) -> SymbolTable {
        let line =
            |(address, kind, name): &(u64, char, &str)| format!("{address:016x} {kind} {name}\n");
        let kept = self.symbols.iter().filter(|(_, _, name)| !without.contains(name));
        let text: String = kept.map(line).collect();
        SymbolTable::of_system_map("System.map", text.as_bytes()).unwrap()
    }

    /// Address of a symbol of the image in the guest.
    pub fn variable(&self, name: &str) -> u64 {
        let found = self.symbols.iter().find(|(_, _, other)| *other == name);
        found.unwrap().0 + self.slide
    }

    pub fn find_with(&self, table: SymbolTable) -> Result<Linux, SetupError> {
        Linux::find(self.mem(), self.cr3(), Depth::Four, IDT, table, None)
    }

    pub fn find(&self) -> Linux {
        self.find_with(self.table_without(&[])).unwrap()
    }
}
