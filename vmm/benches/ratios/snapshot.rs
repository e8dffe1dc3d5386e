//! A full introspection snapshot against copying the same structures out of guest memory.
//!
//! The copy knows where each structure is in guest physical memory and looks at nothing: one
//! `read_slice` for each structure whose members the snapshot reads. The snapshot walks page tables,
//! follows and checks the list and each pointer, and decodes members into views.

use std::hint::black_box;

use guest_model::cputime::Irqtime;
use guest_model::fair::{CfsRq, TaskGroup};
use guest_model::kernel::{Costs, Kernel};
use guest_model::psi::PsiGroupCpu;
use guest_model::rq::Rq;
use rqscope::introspect::Snapshot;
use rqscope::introspect::bundled::BundledSymbols;
use rqscope::introspect::symbols::SymbolSource;
use rqscope::kvm::Kvm;
use rqscope::machine::FIRMWARE;
use rqscope::machine::layout::KERNEL_BASE;
use vm_memory::{Bytes, GuestAddress};

use crate::guest::Guest;
use crate::paired::{clock_cycles, pair, print};

/// What the copy takes from a guest with `groups` groups, as guest physical address and size. A
/// kernel's groups are allocated one by one, but the bundled guest's lie in arrays: with `arrays`, each
/// is copied in one piece.
fn pieces(groups: usize, arrays: bool) -> Vec<(GuestAddress, usize)> {
    use std::mem::{offset_of, size_of};
    let rq = BundledSymbols::of_image(FIRMWARE).unwrap().address("runqueues").unwrap();
    let kernel = rq - KERNEL_BASE - offset_of!(Kernel, rq) as u64;
    let at = |offset: usize, size: usize| (GuestAddress(kernel + offset as u64), size);
    let mut all = vec![
        at(offset_of!(Kernel, rq), size_of::<Rq>()),
        at(offset_of!(Kernel, cpu_irqtime), size_of::<Irqtime>()),
        at(offset_of!(Kernel, psi_seq), size_of::<u32>()),
        at(offset_of!(Kernel, costs), size_of::<Costs>()),
    ];
    for (offset, size) in [
        (offset_of!(Kernel, task_groups), size_of::<TaskGroup>()),
        (offset_of!(Kernel, cfs_rqs), size_of::<CfsRq>()),
        (offset_of!(Kernel, psi_groups), size_of::<PsiGroupCpu>()),
    ] {
        match arrays {
            true => all.push(at(offset, size * groups)),
            false => all.extend((0..groups).map(|i| at(offset + i * size, size))),
        }
    }
    all
}

/// Prints the figures at `leaves` leaf cfs_rqs, the root's among them.
fn at(kvm: &Kvm, rounds: usize, leaves: usize) {
    let count = leaves - 1;
    let scenario = format!(
        "duration = \"1s\"\npolicy.compare = []\n[[group]]\npath = \"g\"\nweight = 100\n\
         count = {count}\n[[task]]\nname = \"t\"\ngroup = \"g\"\nburn = \"1ms\"\ncount = {count}\n"
    );
    let guest = Guest::boot(kvm, &scenario, |_, seen| seen.leaf_cfs_rqs.len() == leaves);
    let memory = &guest.machine.memory;
    let mut seen = Snapshot::default();
    let repeat = 400_000 / leaves;
    let mut snapshots = || {
        for _ in 0..repeat {
            guest.view.snapshot(&mut seen).unwrap();
            black_box(&seen);
        }
    };
    for (how, arrays) in [("one by one", false), ("as arrays", true)] {
        let pieces = pieces(leaves, arrays);
        let mut bytes = vec![0; pieces.iter().map(|(_, size)| size).sum()];
        let kb = bytes.len() as f64 / 1000.0;
        let copies = || {
            for _ in 0..repeat {
                let mut rest = bytes.as_mut_slice();
                for &(address, size) in &pieces {
                    let (now, later) = rest.split_at_mut(size);
                    memory.read_slice(now, address).unwrap();
                    rest = later;
                }
                black_box(&bytes);
            }
        };
        let ratio = pair(rounds, &mut snapshots, copies).ratio;
        print(&format!("{leaves} leaf cfs_rqs / {kb:.1} kB {how}"), ratio);
    }
    let cycles = pair(rounds, &mut snapshots, || clock_cycles(400_000)).ratio;
    print(&format!("{leaves} leaf cfs_rqs: each one's share / one clock cycle"), cycles);
}

/// Prints the figures.
pub fn run(kvm: &Kvm, rounds: usize) {
    println!("introspection: one full snapshot / copying the same structures out of guest memory");
    at(kvm, rounds, 8);
    at(kvm, rounds, 256);
}
