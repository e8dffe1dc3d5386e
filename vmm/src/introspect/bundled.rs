//! The bundled guest as a source of symbols and layout: the guest model's `repr(C)` types, under the
//! kernel's names. The only part of introspection that knows those types.

use core::mem::offset_of;

use guest_model::cputime::Irqtime;
use guest_model::fair::{CfsRq, TaskGroup};
use guest_model::kernel::{Costs, Kernel, Task};
use guest_model::list::ListHead;
use guest_model::psi::{NR_RUNNING, PSI_IRQ_FULL, PsiGroupCpu};
use guest_model::rq::Rq;
use guest_model::wire::MAX_GROUPS;
use vm_memory::GuestMemoryMmap;

use super::groups::{GroupAddresses, GroupError, GroupTable};
use super::introspector::Introspector;
use super::layout::{LayoutError, LayoutSource, Member};
use super::places::{COSTS, SetupError};
use super::symbols::{ElfSymbols, SymbolError, SymbolSource};
use super::translate::{AddressSpace, Depth};

/// Name of the image in errors: the bundled one, or another build that the user names.
const FILE: &str = "the guest image";
/// The image's only variable: everything else is a part of it.
const KERNEL: &str = "rqscope_kernel";

/// An introspector for the bundled guest: `image` is its ELF file, `nr_groups` the number of groups
/// that its boot page asks for, `cr3` its page tables.
pub fn introspector(
    mem: GuestMemoryMmap,
    cr3: u64,
    image: &[u8],
    nr_groups: usize,
) -> Result<Introspector, SetupError> {
    let symbols = BundledSymbols::of_image(image)?;
    let groups = symbols.groups(nr_groups)?;
    Introspector::new(mem, AddressSpace::new(cr3, Depth::Four), &symbols, &BundledLayout, groups)
}

/// The variables of the bundled guest.
#[derive(Clone, Copy, Debug)]
pub struct BundledSymbols {
    kernel: u64,
}

impl BundledSymbols {
    /// Finds the kernel in the guest's ELF file. A kernel of another size than this program's own
    /// types is from another build, and refused.
    pub fn of_image(image: &[u8]) -> Result<Self, SymbolError> {
        let elf = ElfSymbols::parse(FILE, image)?;
        Ok(Self::at(elf.find_sized(KERNEL, size_of::<Kernel>() as u64)?.address))
    }

    /// The variables of a kernel that is at the guest virtual address `kernel`.
    pub fn at(kernel: u64) -> Self {
        Self { kernel }
    }

    fn offset(&self, offset: usize) -> u64 {
        self.kernel.wrapping_add(offset as u64)
    }

    /// The first `nr_groups` groups, in the order of the boot page.
    pub fn groups(&self, nr_groups: usize) -> Result<GroupTable, GroupError> {
        if nr_groups > MAX_GROUPS {
            return Err(GroupError::Count { got: nr_groups, max: MAX_GROUPS });
        }
        let at = |array, stride, index| self.offset(array + stride * index);
        let addresses = |i| GroupAddresses {
            task_group: at(offset_of!(Kernel, task_groups), size_of::<TaskGroup>(), i),
            cfs_rq: at(offset_of!(Kernel, cfs_rqs), size_of::<CfsRq>(), i),
            psi_group_cpu: Some(at(offset_of!(Kernel, psi_groups), size_of::<PsiGroupCpu>(), i)),
        };
        GroupTable::new((0..nr_groups).map(addresses).collect())
    }
}

impl SymbolSource for BundledSymbols {
    fn address(&self, name: &'static str) -> Result<u64, SymbolError> {
        let offset = match name {
            "runqueues" => offset_of!(Kernel, rq),
            "cpu_irqtime" => offset_of!(Kernel, cpu_irqtime),
            "psi_seq" => offset_of!(Kernel, psi_seq),
            "__preempt_count" => offset_of!(Kernel, preempt_count),
            COSTS => offset_of!(Kernel, costs),
            _ => {
                let (file, name) = (FILE.to_owned(), name.to_owned());
                return Err(SymbolError::Missing { file, name });
            }
        };
        Ok(self.offset(offset))
    }
}

/// The types of the bundled guest.
#[derive(Clone, Copy, Debug)]
pub struct BundledLayout;

/// Size of the member that `_get` borrows.
fn size_of_member<S, T>(_get: fn(&S) -> &T) -> usize {
    size_of::<T>()
}

/// A `match` from a path to its [`Member`], for members that the kernel names as the model does.
macro_rules! members {
    ($path:expr, $type:ty: $($first:ident $(. $rest:ident)*),* $(,)?) => {
        match $path {
            $(concat!(stringify!($first) $(, ".", stringify!($rest))*) => Some(Member {
                offset: offset_of!($type, $first $(. $rest)*) as u64,
                size: size_of_member(|s: &$type| &s.$first $(. $rest)*) as u64,
            }),)*
            _ => None,
        }
    };
}

impl LayoutSource for BundledLayout {
    fn has_struct(&self, structure: &'static str) -> bool {
        self.size(structure).is_ok()
    }

    fn size(&self, structure: &'static str) -> Result<u64, LayoutError> {
        let size = match structure {
            "rq" => size_of::<Rq>(),
            "task_struct" => size_of::<Task>(),
            "cfs_rq" => size_of::<CfsRq>(),
            "task_group" => size_of::<TaskGroup>(),
            "list_head" => size_of::<ListHead>(),
            "irqtime" => size_of::<Irqtime>(),
            "psi_group_cpu" => size_of::<PsiGroupCpu>(),
            "seqcount" => size_of::<u32>(),
            COSTS => size_of::<Costs>(),
            _ => return Err(LayoutError::NoStruct { structure }),
        };
        Ok(size as u64)
    }

    #[rustfmt::skip]
    fn member(&self, structure: &'static str, path: &'static str) -> Result<Member, LayoutError> {
        self.size(structure)?;
        let member = match structure {
            "rq" => members!(path, Rq:
                nr_running, cpu, nr_switches, curr, idle, clock, clock_task, clock_pelt,
                lost_idle_time, prev_irq_time, prev_steal_time_rq, psi_irq_time,
                avg_irq.last_update_time, avg_irq.load_sum, avg_irq.runnable_sum, avg_irq.util_sum,
                avg_irq.period_contrib, avg_irq.load_avg, avg_irq.runnable_avg, avg_irq.util_avg,
                leaf_cfs_rq_list),
            "task_struct" => members!(path, Task: pid, sched_task_group),
            "cfs_rq" => members!(path, CfsRq:
                avg.load_avg, tg_load_avg_contrib, last_update_tg_load_avg, tg, leaf_cfs_rq_list),
            "task_group" => members!(path, TaskGroup: load_avg, parent),
            "list_head" => members!(path, ListHead: next, prev),
            "irqtime" => members!(path, Irqtime: total, irq_start_time),
            "psi_group_cpu" => members!(path, PsiGroupCpu: tasks, state_mask, times, state_start),
            "seqcount" if path == "sequence" => Some(Member { offset: 0, size: 4 }),
            COSTS => members!(path, Costs:
                clock_reads_update_rq_clock, clock_reads_irqtime_account_irq,
                clock_reads_update_tg_load_avg, clock_reads_psi_account_irqtime,
                clock_reads_psi_other, psi_account_irqtime_seqcount_writes,
                psi_account_irqtime_levels, tg_load_avg_atomic_adds,
                update_tg_load_avg_rate_limited, update_tg_load_avg_below_tolerance),
            _ => None,
        };
        member.ok_or(LayoutError::NoMember { structure, member: path })
    }

    fn enumerator(
        &self,
        enumeration: &'static str,
        name: &'static str,
    ) -> Result<u64, LayoutError> {
        match (enumeration, name) {
            ("psi_states", "PSI_IRQ_FULL") => Ok(PSI_IRQ_FULL as u64),
            ("psi_task_count", "NR_RUNNING") => Ok(NR_RUNNING as u64),
            _ => Err(LayoutError::NoEnumerator { enumeration, name }),
        }
    }
}
