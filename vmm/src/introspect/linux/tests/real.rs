//! Kernels that were built: those below the directory that `RQSCOPE_KERNELS` names, each in a
//! directory of its own with `vmlinux` and perhaps `System.map`. Without it, these tests say that they
//! are skipped and show nothing.
//!
//! Beside its vmlinux a kernel may have the `memory` of a guest of one CPU that ran it and was stopped
//! in a task of cgroup `/a/b` or `/c`, all of it from address 0 on, and `registers`: lines `cr3 HEX`,
//! `cr4 HEX` and `idt HEX`.

use std::fs;
use std::path::PathBuf;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::introspect::layout::LayoutSource;
use crate::introspect::linux::layout::BtfLayout;
use crate::introspect::linux::symbols::SymbolTable;
use crate::introspect::linux::{Linux, types_of_elf};
use crate::introspect::places::Places;
use crate::introspect::symbols::{SymbolError, SymbolSource};
use crate::introspect::translate::Depth;
use crate::introspect::{Function, Snapshot};

/// A kernel's directory and its vmlinux.
struct Kernel {
    name: String,
    path: PathBuf,
    data: Vec<u8>,
}

fn kernels() -> Vec<Kernel> {
    let Some(dir) = std::env::var_os("RQSCOPE_KERNELS") else {
        eprintln!("skipped: RQSCOPE_KERNELS names no directory of kernels");
        return Vec::new();
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(PathBuf::from(dir)).unwrap() {
        let path = entry.unwrap().path();
        if let Ok(data) = fs::read(path.join("vmlinux")) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            found.push(Kernel { name, path, data });
        }
    }
    assert!(!found.is_empty(), "RQSCOPE_KERNELS has no KERNEL/vmlinux");
    found
}

impl Kernel {
    fn table(&self) -> SymbolTable {
        SymbolTable::of_elf(&self.name, &self.data).unwrap()
    }

    fn layout(&self) -> BtfLayout {
        BtfLayout::new(types_of_elf(&self.name, &self.data).unwrap())
    }

    /// The kernel in its stopped guest, by `table` or by its vmlinux.
    fn stopped(&self, table: Option<SymbolTable>) -> Option<Linux> {
        let memory = fs::read(self.path.join("memory")).ok()?;
        let registers = fs::read_to_string(self.path.join("registers")).unwrap();
        let register = |name: &str| {
            let line = registers.lines().find_map(|l| l.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        let mem = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), memory.len())]).unwrap();
        mem.write_slice(&memory, GuestAddress(0)).unwrap();
        // CR4.LA57
        let depth = if register("cr4") & 1 << 12 == 0 { Depth::Four } else { Depth::Five };
        let types = match table {
            Some(_) => None,
            None => Some(types_of_elf(&self.name, &self.data).unwrap()),
        };
        let table = table.unwrap_or_else(|| self.table());
        Some(Linux::find(mem, register("cr3"), depth, register("idt"), table, types).unwrap())
    }
}

/// Symbols where they were linked.
struct Linked(SymbolTable);

impl SymbolSource for Linked {
    fn address(&self, name: &'static str) -> Result<u64, SymbolError> {
        Ok(self.0.find(name)?.address)
    }
}

#[test]
fn every_place_is_found_in_every_kernel() {
    for kernel in kernels() {
        let (name, layout) = (&kernel.name, kernel.layout());
        let places = Places::resolve(&Linked(kernel.table()), &layout)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(places.lacks, Default::default(), "{name}");
        assert!(places.ksoftirqd.is_some() && places.cpustat.is_some(), "{name}");
        assert!(places.init_task.is_some() && places.nr_threads.is_some(), "{name}");
        assert!(places.task.comm.is_some() && places.cfs_rq.rq.is_some(), "{name}");
        assert!(places.rq.cfs.is_some(), "{name}");
        // The figures of pahole(1), to be compared by eye.
        for (structure, member) in [
            ("rq", "curr"),
            ("rq", "clock"),
            ("rq", "clock_task"),
            ("rq", "avg_irq.util_avg"),
            ("rq", "prev_irq_time"),
            ("rq", "prev_steal_time_rq"),
            ("rq", "leaf_cfs_rq_list"),
            ("cfs_rq", "avg.load_avg"),
            ("cfs_rq", "last_update_tg_load_avg"),
            ("cfs_rq", "leaf_cfs_rq_list"),
            ("cfs_rq", "tg"),
            ("task_group", "load_avg"),
            ("task_group", "parent"),
            ("task_struct", "sched_task_group"),
            ("psi_group_cpu", "times"),
            ("psi_group_cpu", "state_start"),
            ("kernel_cpustat", "cpustat"),
            ("cgroup", "psi"),
        ] {
            let place = layout.member(structure, member).unwrap();
            eprintln!("{name}: {structure}.{member} at {}, {} bytes", place.offset, place.size);
        }
        let nr_running = places.psi.is_some_and(|psi| psi.nr_running.is_some());
        eprintln!("{name}: enum psi_task_count {}", if nr_running { "kept" } else { "dropped" });
    }
}

#[test]
fn a_system_map_has_the_addresses_of_its_vmlinux() {
    for kernel in kernels() {
        let Ok(text) = fs::read(kernel.path.join("System.map")) else { continue };
        let map = SymbolTable::of_system_map("System.map", &text).unwrap();
        let elf = kernel.table();
        for name in ["runqueues", "__per_cpu_offset", "task_groups", "asm_exc_divide_error"] {
            assert_eq!(
                map.find(name).unwrap().address,
                elf.find(name).unwrap().address,
                "{}: {name}",
                kernel.name
            );
        }
        for function in Function::ALL {
            let symbol = function.symbol();
            let (map, elf) = (map.function(symbol), elf.function(symbol));
            assert_eq!(map.map(|s| s.address).ok(), elf.map(|s| s.address).ok(), "{symbol}");
        }
    }
}

/// Calls of these are inlined into their callers by some compilers; what is wanted of them is told by
/// the state before and after.
const MAY_BE_INLINED: [Function; 2] = [Function::UpdateTgLoadAvg, Function::ClearTgLoadAvg];

#[test]
fn a_guest_that_ran_is_read_whole_by_either_table() {
    for kernel in kernels() {
        let Some(linux) = kernel.stopped(None) else { continue };
        let name = &kernel.name;
        eprintln!("{name}: runs {:#x} above where it was linked", linux.symbols().slide());
        let groups = linux.groups(&["/a", "/a/b", "/c"]).unwrap();
        assert_eq!((&groups.paths[0], &groups.parents[..4]), (&"/".to_owned(), &[0, 0, 1, 0][..]));
        let introspector = linux.introspector(groups.table).unwrap();
        let mut snapshot = Snapshot::default();
        introspector.snapshot(&mut snapshot).unwrap();
        let rq = snapshot.rq;
        let now_ns = rq.clock_ns + 20_000_000;
        introspector.sanity_at_rest(now_ns).unwrap();
        eprintln!("{name}: {snapshot:?}");
        // Nothing was stolen there.
        assert_eq!(rq.clock_ns - rq.clock_task_ns, rq.prev_irq_time_ns, "{name}");
        let leaves: Vec<u16> = snapshot.leaf_cfs_rqs.iter().map(|c| c.group).collect();
        assert_eq!(leaves.len(), 4, "{name}: {leaves:?}");
        assert_eq!(u64::from(snapshot.psi_groups[0].irq_full_ns), rq.psi_irq_time_ns, "{name}");
        for function in Function::ALL {
            match linux.probe(function.symbol(), 0xa8) {
                Ok(probe) => eprintln!("{name}: {} at {:#x}", probe.function, probe.address),
                Err(e) => {
                    eprintln!("{name}: {e}");
                    assert!(MAY_BE_INLINED.contains(&function), "{name}: {e}");
                }
            }
        }

        let missed = super::shift::missed(&linux, now_ns);
        let unknown: Vec<_> = missed.iter().filter(|m| !super::shift::KNOWN.contains(m)).collect();
        assert!(unknown.is_empty(), "{name}: unnoticed shifts {unknown:?}");

        let Ok(text) = fs::read(kernel.path.join("System.map")) else { continue };
        let map = SymbolTable::of_system_map("System.map", &text).unwrap();
        let linux = kernel.stopped(Some(map)).unwrap();
        let groups = linux.groups(&["/a", "/a/b", "/c"]).unwrap();
        let mut by_map = Snapshot::default();
        linux.introspector(groups.table).unwrap().snapshot(&mut by_map).unwrap();
        assert_eq!(by_map, snapshot, "{name}");
    }
}
