//! Kernels that were built: every vmlinux below the directory that `RQSCOPE_KERNELS` names. Without
//! it, these tests say that they are skipped and show nothing.

use std::fs;
use std::path::{Path, PathBuf};

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::introspect::Snapshot;
use crate::introspect::layout::LayoutSource;
use crate::introspect::linux::btf::Btf;
use crate::introspect::linux::layout::BtfLayout;
use crate::introspect::linux::symbols::SymbolTable;
use crate::introspect::linux::{Linux, types_of_elf};
use crate::introspect::places::Places;
use crate::introspect::symbols::{SymbolError, SymbolSource};
use crate::introspect::translate::Depth;

/// A kernel: its name, its directory and its vmlinux.
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
    assert!(!found.is_empty(), "RQSCOPE_KERNELS has no VERSION/vmlinux");
    found
}

/// Symbols where they were linked.
struct Linked(SymbolTable);

impl SymbolSource for Linked {
    fn address(&self, name: &'static str) -> Result<u64, SymbolError> {
        Ok(self.0.find(name)?.address)
    }
}

fn types(data: &[u8]) -> BtfLayout {
    let btf: Btf = types_of_elf("vmlinux", data).unwrap();
    BtfLayout::new(btf)
}

#[test]
fn every_place_is_found_in_every_kernel() {
    for Kernel { name, data, .. } in kernels() {
        let begin = std::time::Instant::now();
        let symbols = Linked(SymbolTable::of_elf(&name, &data).unwrap());
        let t1 = begin.elapsed();
        let layout = types(&data);
        let t2 = begin.elapsed();
        let places = Places::resolve(&symbols, &layout).unwrap_or_else(|e| panic!("{name}: {e}"));
        eprintln!("{name}: {t1:?} {t2:?} {:?}", begin.elapsed());
        assert_eq!(places.lacks, Default::default(), "{name}");
        assert!(places.ksoftirqd.is_some() && places.cpustat.is_some(), "{name}");
        assert!(places.task.comm.is_some() && places.cfs_rq.rq.is_some(), "{name}");
        for (s, m) in [("rq", "clock"), ("rq", "curr"), ("rq", "avg_irq.util_avg")] {
            eprintln!("{name}: {s}.{m} {:?}", layout.member(s, m));
        }
    }
}

/// A guest that ran one of these kernels and was stopped: beside its vmlinux, `memory` with all of
/// its memory from address 0 on, and `registers` with lines `cr3 HEX`, `cr4 HEX` and `idt HEX`.
struct Stopped {
    mem: GuestMemoryMmap,
    cr3: u64,
    depth: Depth,
    idt_base: u64,
}

fn stopped(kernel: &Path) -> Option<Stopped> {
    let memory = fs::read(kernel.join("memory")).ok()?;
    let registers = fs::read_to_string(kernel.join("registers")).unwrap();
    let register = |name: &str| {
        let line = registers.lines().find_map(|l| l.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    let mem = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), memory.len())]).unwrap();
    mem.write_slice(&memory, GuestAddress(0)).unwrap();
    // CR4.LA57
    let depth = if register("cr4") & 1 << 12 == 0 { Depth::Four } else { Depth::Five };
    Some(Stopped { mem, cr3: register("cr3"), depth, idt_base: register("idt") })
}

#[test]
fn a_kernel_that_ran_is_read_whole() {
    for Kernel { name, path, data } in kernels() {
        let Some(s) = stopped(&path) else { continue };
        let table = SymbolTable::of_elf(&name, &data).unwrap();
        let types = types_of_elf(&name, &data).unwrap();
        let linux = Linux::find(s.mem, s.cr3, s.depth, s.idt_base, table, Some(types)).unwrap();
        eprintln!("{name}: slide {:#x}", linux.symbols().slide());
        let groups = linux.groups(&["/a", "/a/b", "/c"]).unwrap();
        eprintln!("{groups:#x?}");
        let introspector = linux.introspector(groups.table).unwrap();
        let mut snapshot = Snapshot::default();
        introspector.snapshot(&mut snapshot).unwrap();
        eprintln!("{snapshot:#?}");
        introspector.sanity_at_rest(snapshot.rq.clock_ns + 20_000_000).unwrap();
        eprintln!("{:#?}", super::shift::missed(&linux, snapshot.rq.clock_ns + 20_000_000));
    }
}
