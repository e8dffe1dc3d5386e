//! Kernels that were built: every vmlinux below the directory that `RQSCOPE_KERNELS` names. Without
//! it, these tests say that they are skipped and show nothing.

use std::fs;
use std::path::PathBuf;

use crate::introspect::layout::LayoutSource;
use crate::introspect::linux::btf::Btf;
use crate::introspect::linux::layout::BtfLayout;
use crate::introspect::linux::symbols::SymbolTable;
use crate::introspect::linux::types_of_elf;
use crate::introspect::places::Places;
use crate::introspect::symbols::{SymbolError, SymbolSource};

/// Each kernel's name and its file.
fn kernels() -> Vec<(String, Vec<u8>)> {
    let Some(dir) = std::env::var_os("RQSCOPE_KERNELS") else {
        eprintln!("skipped: RQSCOPE_KERNELS names no directory of kernels");
        return Vec::new();
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(PathBuf::from(dir)).unwrap() {
        let dir = entry.unwrap().path();
        if let Ok(data) = fs::read(dir.join("vmlinux")) {
            found.push((dir.file_name().unwrap().to_string_lossy().into_owned(), data));
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
    for (name, data) in kernels() {
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
