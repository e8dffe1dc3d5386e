//! The guest's run queue as typed views.

use guest_model::wire::KSOFTIRQD_PID;
use vm_memory::GuestMemoryMmap;

use super::groups::{GroupAddresses, GroupTable};
use super::layout::{Field, LayoutSource};
use super::places::{AvgFields, Lacks, Places, SetupError};
use super::read::{ReadError, Reader};
use super::symbols::SymbolSource;
use super::translate::AddressSpace;
use crate::view::{
    AvgView, CfsLoadView, CfsRqView, CostsView, CpustatView, EntityView, GuestView, LoadView,
    PsiView, RemovedView, RqView, RunnableView, TaskRef,
};

/// Largest pid, exclusive: `PID_MAX_LIMIT` of a 64-bit kernel (include/linux/threads.h, 6.12 to 7.3).
pub(super) const PID_MAX_LIMIT: u32 = 4 << 20;
/// Reads of PSI state until it is called inconsistent.
const PSI_READS: u32 = 8;
/// Longest text taken from the guest, bytes.
const MAX_TEXT: usize = 512;

/// Name of the list in errors.
const LEAF_LIST: &str = "rq.leaf_cfs_rq_list";

/// Everything that introspection sees at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The run queue.
    pub rq: RqView,
    /// The cfs_rqs on `rq->leaf_cfs_rq_list`, in its order.
    pub leaf_cfs_rqs: Vec<CfsRqView>,
    /// The PSI state of each group, by index.
    pub psi_groups: Vec<PsiView>,
    /// The cost counters, where the guest keeps them.
    pub costs: Option<CostsView>,
    /// What the CPU's time was spent on, where the guest keeps it.
    pub cpustat: Option<CpustatView>,
}

/// Reads one guest's run queue. The guest must stand still during each call.
pub struct Introspector {
    mem: GuestMemoryMmap,
    space: AddressSpace,
    pub(super) groups: GroupTable,
    pub(super) places: Places,
}

impl Introspector {
    /// Resolves all names. Nothing of the guest is read yet, so the guest need not have run.
    pub fn new(
        mem: GuestMemoryMmap,
        space: AddressSpace,
        symbols: &dyn SymbolSource,
        layout: &dyn LayoutSource,
        groups: GroupTable,
    ) -> Result<Self, SetupError> {
        let places = Places::resolve(symbols, layout)?;
        Ok(Self { mem, space, groups, places })
    }

    /// A reader of this instant.
    #[inline]
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader::new(&self.mem, self.space)
    }

    /// The task behind a pointer that `holder` holds.
    pub(super) fn pid(
        &self,
        at: &mut Reader<'_>,
        holder: &'static str,
        task: u64,
    ) -> Result<u32, ReadError> {
        if task == 0 {
            return Err(ReadError::NullPointer { holder, target: "task_struct" });
        }
        let pid = at.get(task, &self.places.task.pid)?;
        at_most(task, &self.places.task.pid, pid, PID_MAX_LIMIT - 1)?;
        Ok(pid)
    }

    /// As [`Introspector::pid`], with the task's group.
    pub(super) fn task(
        &self,
        at: &mut Reader<'_>,
        holder: &'static str,
        task: u64,
    ) -> Result<TaskRef, ReadError> {
        let pid = self.pid(at, holder, task)?;
        let address = at.get(task, &self.places.task.sched_task_group)?;
        let group = self.task_group("task_struct.sched_task_group", address)?;
        Ok(TaskRef { pid, group })
    }

    /// Index of the group behind a pointer that `holder` holds.
    pub(super) fn task_group(&self, holder: &'static str, address: u64) -> Result<u16, ReadError> {
        let (target, known) = ("task_group", self.groups.len());
        let group = self.groups.of_task_group(address);
        group.ok_or(ReadError::UnknownAddress { holder, target, address, known })
    }

    pub(super) fn group(&self, group: u16) -> Result<GroupAddresses, ReadError> {
        self.groups.get(group).ok_or(ReadError::NoGroup { group, known: self.groups.len() })
    }

    pub(super) fn read_rq(&self, at: &mut Reader<'_>) -> Result<RqView, ReadError> {
        let (p, f) = (&self.places, &self.places.rq);
        let rq = p.runqueues;
        let curr = at.get(rq, &f.curr)?;
        Ok(RqView {
            cpu: at.get(rq, &f.cpu)?,
            nr_running: at.get(rq, &f.nr_running)?,
            nr_switches: at.get(rq, &f.nr_switches)?,
            curr_pid: self.pid(at, "rq.curr", curr)?,
            clock_update_flags: match &f.clock_update_flags {
                Some(flags) => at.get(rq, flags)?,
                None => 0,
            },
            clock_ns: at.get(rq, &f.clock)?,
            clock_task_ns: at.get(rq, &f.clock_task)?,
            clock_pelt_ns: at.get(rq, &f.clock_pelt)?,
            lost_idle_time_ns: at.get(rq, &f.lost_idle_time)?,
            prev_irq_time_ns: at.get(rq, &f.prev_irq_time)?,
            prev_steal_time_rq_ns: match &f.prev_steal_time_rq {
                Some(field) => at.get(rq, field)?,
                None => 0,
            },
            psi_irq_time_ns: match &p.psi {
                Some(psi) => at.get(rq, &psi.irq_time)?,
                None => 0,
            },
            avg_irq: read_avg(at, rq, &f.avg_irq)?,
            irqtime_total_ns: at.get(p.cpu_irqtime, &p.irqtime.total)?,
            irq_start_time_ns: at.get(p.cpu_irqtime, &p.irqtime.irq_start_time)?,
            preempt_count: match p.preempt_count {
                Some(address) => Some(at.variable("preempt_count", "cpu0", address)?),
                None => None,
            },
            psi_seq: self.psi_seq(at)?,
        })
    }

    fn psi_seq(&self, at: &mut Reader<'_>) -> Result<u32, ReadError> {
        let Some(psi) = &self.places.psi else { return Ok(0) };
        let base = match psi.seq_address {
            Some(address) => address,
            None => self.psi_group_cpu(0)?,
        };
        at.get(base, &psi.seq)
    }

    /// The address of a group's `struct psi_group_cpu`.
    pub(super) fn psi_group_cpu(&self, group: u16) -> Result<u64, ReadError> {
        let (holder, target) = ("psi_group.pcpu", "psi_group_cpu");
        self.group(group)?.psi_group_cpu.ok_or(ReadError::NullPointer { holder, target })
    }

    pub(super) fn read_cfs_rq(
        &self,
        at: &mut Reader<'_>,
        group: u16,
    ) -> Result<CfsRqView, ReadError> {
        let GroupAddresses { task_group, cfs_rq, .. } = self.group(group)?;
        let f = &self.places.cfs_rq;
        let tg = at.get(cfs_rq, &f.tg)?;
        points_to(cfs_rq, &f.tg, tg, task_group)?;
        Ok(CfsRqView {
            group,
            load_avg: at.get(cfs_rq, &f.load_avg)?,
            tg_load_avg_contrib: at.get(cfs_rq, &f.tg_load_avg_contrib)?,
            last_update_tg_load_avg_ns: at.get(cfs_rq, &f.last_update_tg_load_avg)?,
            tg_load_avg: at.get(task_group, &self.places.task_group.load_avg)?,
            runnable: match &f.runnable {
                None => None,
                Some(r) => Some(RunnableView {
                    runnable_avg: at.get(cfs_rq, &r.runnable_avg)?,
                    tg_runnable_avg_contrib: at.get(cfs_rq, &r.tg_runnable_avg_contrib)?,
                    tg_runnable_avg: at.get(task_group, &r.tg_runnable_avg)?,
                }),
            },
        })
    }

    fn read_psi(&self, at: &mut Reader<'_>, group: u16) -> Result<PsiView, ReadError> {
        let Some(psi) = &self.places.psi else {
            return self.group(group).map(|_| PsiView { group, irq_full_ns: 0 });
        };
        let groupc = self.psi_group_cpu(group)?;
        Ok(PsiView { group, irq_full_ns: at.get(groupc, &psi.irq_full)? })
    }

    /// Runs `read` until `psi_seq` is even and the same before and after, a few times at most: the
    /// reader's half of a seqcount. A guest that stands still cannot finish a write that it is in.
    fn psi_section<T>(
        &self,
        at: &mut Reader<'_>,
        what: &'static str,
        mut read: impl FnMut(&mut Reader<'_>) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        let (mut before, mut after) = (0, 0);
        for _ in 0..PSI_READS {
            before = self.psi_seq(at)?;
            let value = read(at)?;
            after = self.psi_seq(at)?;
            if before % 2 == 0 && before == after {
                return Ok(value);
            }
        }
        Err(ReadError::Torn { what, reads: PSI_READS, before, after })
    }

    /// Calls `each` with the group of each entry of `rq->leaf_cfs_rq_list`. Every entry must point
    /// back to the one before and belong to a known group; there are at most as many as groups.
    pub(super) fn walk_leaf_list(
        &self,
        at: &mut Reader<'_>,
        mut each: impl FnMut(&mut Reader<'_>, u16) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let p = &self.places;
        let head = p.runqueues.wrapping_add(p.rq.leaf_cfs_rq_list);
        let bound = self.groups.len();
        let mut before = head;
        // One step more than there are groups: the one that comes back to the head. In memory that
        // stands still the check of prev finds every loop; the bound holds if it does not.
        for _ in 0..=bound {
            let node = at.get(before, &p.list.next)?;
            let group = if node == head { None } else { Some(self.leaf_group(node)?) };
            let prev = at.get(node, &p.list.prev)?;
            if prev != before {
                let (list, expected) = (LEAF_LIST, before);
                return Err(ReadError::ListBroken { list, node, expected, got: prev });
            }
            let Some(group) = group else { return Ok(()) };
            each(at, group)?;
            before = node;
        }
        Err(ReadError::ListEndless { list: LEAF_LIST, head, bound })
    }

    /// `container_of(node, struct cfs_rq, leaf_cfs_rq_list)`, and whose it is.
    fn leaf_group(&self, node: u64) -> Result<u16, ReadError> {
        let cfs_rq = node.wrapping_sub(self.places.cfs_rq.leaf_cfs_rq_list);
        self.groups.of_cfs_rq(cfs_rq).ok_or(ReadError::UnknownAddress {
            holder: "list_head.next of rq.leaf_cfs_rq_list",
            target: "cfs_rq",
            address: node,
            known: self.groups.len(),
        })
    }

    fn read_leaf_cfs_rqs(
        &self,
        at: &mut Reader<'_>,
        out: &mut Vec<CfsRqView>,
    ) -> Result<(), ReadError> {
        out.clear();
        self.walk_leaf_list(at, |at, group| {
            out.push(self.read_cfs_rq(at, group)?);
            Ok(())
        })
    }

    fn read_costs(&self, at: &mut Reader<'_>) -> Result<Option<CostsView>, ReadError> {
        let Some(f) = &self.places.costs else { return Ok(None) };
        let mut count = |field| at.get(f.address, field);
        Ok(Some(CostsView {
            clock_reads_update_rq_clock: count(&f.clock_reads_update_rq_clock)?,
            clock_reads_irqtime_account_irq: count(&f.clock_reads_irqtime_account_irq)?,
            clock_reads_update_tg_load_avg: count(&f.clock_reads_update_tg_load_avg)?,
            clock_reads_psi_account_irqtime: count(&f.clock_reads_psi_account_irqtime)?,
            clock_reads_psi_other: count(&f.clock_reads_psi_other)?,
            psi_account_irqtime_seqcount_writes: count(&f.psi_account_irqtime_seqcount_writes)?,
            psi_account_irqtime_levels: count(&f.psi_account_irqtime_levels)?,
            tg_load_avg_atomic_adds: count(&f.tg_load_avg_atomic_adds)?,
            update_tg_load_avg_rate_limited: count(&f.update_tg_load_avg_rate_limited)?,
            update_tg_load_avg_below_tolerance: count(&f.update_tg_load_avg_below_tolerance)?,
        }))
    }

    pub(super) fn read_cpustat(
        &self,
        at: &mut Reader<'_>,
    ) -> Result<Option<CpustatView>, ReadError> {
        let Some(f) = &self.places.cpustat else { return Ok(None) };
        let mut time = |field| at.get(f.address, field);
        Ok(Some(CpustatView {
            user_ns: time(&f.user)?,
            system_ns: time(&f.system)?,
            softirq_ns: time(&f.softirq)?,
            irq_ns: time(&f.irq)?,
            idle_ns: time(&f.idle)?,
            steal_ns: time(&f.steal)?,
        }))
    }

    /// Why the load of a cfs_rq cannot be read, if it cannot.
    pub fn load_is_unknown(&self) -> Option<String> {
        self.places.load.as_ref().err().map(ToString::to_string)
    }

    /// What the guest's kernel lacks that others have.
    pub fn lacks(&self) -> Lacks {
        self.places.lacks
    }

    /// Reads everything into `out`, whose buffers are used again. After an error, `out` is part old,
    /// part new.
    pub fn snapshot(&self, out: &mut Snapshot) -> Result<(), ReadError> {
        let at = &mut self.reader();
        out.rq = self.read_rq(at)?;
        self.read_leaf_cfs_rqs(at, &mut out.leaf_cfs_rqs)?;
        self.psi_section(at, "the PSI groups", |at| {
            out.psi_groups.clear();
            for group in 0..self.groups.len() as u16 {
                out.psi_groups.push(self.read_psi(at, group)?);
            }
            Ok(())
        })?;
        out.costs = self.read_costs(at)?;
        out.cpustat = self.read_cpustat(at)?;
        Ok(())
    }

    /// The task that runs: its pid and, where the kernel keeps one, its name (`comm`), as far as it prints.
    pub fn current_task(&self) -> Result<(u32, Option<String>), ReadError> {
        let at = &mut self.reader();
        let curr = at.get(self.places.runqueues, &self.places.rq.curr)?;
        let pid = self.pid(at, "rq.curr", curr)?;
        let Some(field) = &self.places.task.comm else { return Ok((pid, None)) };
        let comm = at.get(curr, field)?;
        let name = comm.split(|b| *b == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).chars().filter(|c| !c.is_control()).collect();
        Ok((pid, Some(name)))
    }

    /// The pid of ksoftirqd, where the kernel has a pointer to it.
    pub fn ksoftirqd_pid(&self) -> Result<Option<u32>, ReadError> {
        let at = &mut self.reader();
        let Some(pointer) = self.places.ksoftirqd else { return Ok(None) };
        let ksoftirqd = at.pointer("ksoftirqd", "cpu0", pointer)?;
        self.pid(at, "ksoftirqd", ksoftirqd).map(Some)
    }

    /// Text of the guest (the file name of its panic), fit for a terminal: what does not print
    /// is escaped, what is not UTF-8 replaced, and `...` stands for what is beyond 512 bytes or not
    /// readable.
    pub fn panic_message(&self, address: u64, len: u64) -> Result<String, ReadError> {
        let mut bytes = [0; MAX_TEXT];
        let wanted = usize::try_from(len).unwrap_or(usize::MAX);
        let bytes = &mut bytes[..wanted.min(MAX_TEXT)];
        let mut at = self.reader();
        let mut good = 0;
        while good < bytes.len() {
            match at.value::<u8>(address.wrapping_add(good as u64)) {
                Ok(byte) => bytes[good] = byte,
                Err(source) if good == 0 => {
                    return Err(ReadError::UnreadableText { address, len, source });
                }
                Err(_) => break,
            }
            good += 1;
        }
        let mut text = printable(&bytes[..good]);
        if good < wanted {
            text.push_str("...");
        }
        Ok(text)
    }
}

/// The `sched_avg` of the structure at `base`.
pub(super) fn read_avg(
    at: &mut Reader<'_>,
    base: u64,
    f: &AvgFields,
) -> Result<AvgView, ReadError> {
    // Units of a period that is not over: sums are divided by what follows from it.
    let period_contrib = at.get(base, &f.period_contrib)?;
    at_most(base, &f.period_contrib, period_contrib, 1023)?;
    Ok(AvgView {
        last_update_time_ns: at.get(base, &f.last_update_time)?,
        load_sum: at.get(base, &f.load_sum)?,
        runnable_sum: at.get(base, &f.runnable_sum)?,
        util_sum: at.get(base, &f.util_sum)?,
        period_contrib,
        load_avg: at.get(base, &f.load_avg)?,
        runnable_avg: at.get(base, &f.runnable_avg)?,
        util_avg: at.get(base, &f.util_avg)?,
    })
}

/// The guest's text, fit for a terminal: what does not print is escaped, what is not UTF-8 replaced.
pub(super) fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for c in String::from_utf8_lossy(bytes).chars() {
        match c {
            '\'' | '"' | '\\' => text.push(c),
            _ => text.extend(c.escape_debug()),
        }
    }
    text
}

/// `value` of the structure at `base` is at most `limit`.
pub(super) fn at_most<T: Copy + Into<u64>>(
    base: u64,
    field: &Field<T>,
    value: T,
    limit: T,
) -> Result<(), ReadError> {
    in_range(base, field, value, "at most", limit, value.into() <= limit.into())
}

/// `value` of the structure at `base` is at least `limit`.
pub(super) fn at_least<T: Copy + Into<u64>>(
    base: u64,
    field: &Field<T>,
    value: T,
    limit: T,
) -> Result<(), ReadError> {
    in_range(base, field, value, "at least", limit, value.into() >= limit.into())
}

/// `value` of the structure at `base` is `only`.
pub(super) fn exactly<T: Copy + Into<u64>>(
    base: u64,
    field: &Field<T>,
    value: T,
    only: T,
) -> Result<(), ReadError> {
    in_range(base, field, value, "exactly", only, value.into() == only.into())
}

fn in_range<T: Into<u64>>(
    base: u64,
    field: &Field<T>,
    value: T,
    range: &'static str,
    limit: T,
    holds: bool,
) -> Result<(), ReadError> {
    if holds {
        return Ok(());
    }
    let (structure, member) = (field.structure, field.member);
    let (got, limit) = (value.into(), limit.into());
    Err(ReadError::Implausible { structure, member, base, got, range, limit })
}

/// The pointer `got` of the structure at `base` is `expected`.
pub(super) fn points_to(
    base: u64,
    field: &Field<u64>,
    got: u64,
    expected: u64,
) -> Result<(), ReadError> {
    if got == expected {
        return Ok(());
    }
    let (structure, member) = (field.structure, field.member);
    Err(ReadError::WrongPointer { structure, member, base, expected, got })
}

impl LoadView for Introspector {
    type Error = ReadError;

    fn cfs_state(&self, group: u16) -> Result<CfsLoadView, ReadError> {
        let at = &mut self.reader();
        let cfs_rq = self.group(group)?.cfs_rq;
        let Ok(f) = &self.places.load else { return Ok(CfsLoadView::default()) };
        let delayed = match &f.h_nr_delayed {
            Some(field) => at.get(cfs_rq, field)?,
            None => 0,
        };
        Ok(CfsLoadView {
            avg: read_avg(at, cfs_rq, &f.avg)?,
            load_weight: at.get(cfs_rq, &f.load_weight)?,
            h_nr_runnable: at.get(cfs_rq, &f.h_nr_runnable)?.wrapping_sub(delayed),
            running: at.get(cfs_rq, &f.curr)? != 0,
            propagate: at.get(cfs_rq, &f.propagate)?,
            prop_runnable_sum: at.get(cfs_rq, &f.prop_runnable_sum)? as i64,
            removed: RemovedView {
                nr: at.get(cfs_rq, &f.removed_nr)?,
                load_avg: at.get(cfs_rq, &f.removed_load_avg)?,
                util_avg: at.get(cfs_rq, &f.removed_util_avg)?,
                runnable_avg: at.get(cfs_rq, &f.removed_runnable_avg)?,
            },
        })
    }

    fn se_state(&self, se: u64) -> Result<EntityView, ReadError> {
        let at = &mut self.reader();
        let Ok(f) = &self.places.load else { return Ok(EntityView::default()) };
        let my_q = at.get(se, &f.my_q)?;
        let (holder, target, known) = ("sched_entity.my_q", "cfs_rq", self.groups.len());
        let my_q = match my_q {
            0 => None,
            address => Some(self.groups.of_cfs_rq(address).ok_or(ReadError::UnknownAddress {
                holder,
                target,
                address,
                known,
            })?),
        };
        Ok(EntityView {
            avg: read_avg(at, se, &f.se_avg)?,
            load_weight: at.get(se, &f.se_load_weight)?,
            my_q,
        })
    }
}

impl GuestView for Introspector {
    type Error = ReadError;

    fn rq(&self) -> Result<RqView, ReadError> {
        self.read_rq(&mut self.reader())
    }

    fn curr_pid(&self) -> Result<u32, ReadError> {
        let at = &mut self.reader();
        let curr = at.get(self.places.runqueues, &self.places.rq.curr)?;
        self.pid(at, "rq.curr", curr)
    }

    fn runs_ksoftirqd(&self) -> Result<bool, ReadError> {
        let at = &mut self.reader();
        let curr = at.get(self.places.runqueues, &self.places.rq.curr)?;
        match self.places.ksoftirqd {
            Some(address) => Ok(curr == at.pointer("ksoftirqd", "cpu0", address)?),
            None => Ok(self.pid(at, "rq.curr", curr)? == u32::from(KSOFTIRQD_PID)),
        }
    }

    fn irqtime_total_ns(&self) -> Result<u64, ReadError> {
        self.reader().get(self.places.cpu_irqtime, &self.places.irqtime.total)
    }

    fn cfs_rq(&self, group: u16) -> Result<CfsRqView, ReadError> {
        self.read_cfs_rq(&mut self.reader(), group)
    }

    fn psi_group(&self, group: u16) -> Result<PsiView, ReadError> {
        self.psi_section(&mut self.reader(), "a PSI group", |at| self.read_psi(at, group))
    }

    fn leaf_cfs_rqs(&self, out: &mut Vec<CfsRqView>) -> Result<(), ReadError> {
        self.read_leaf_cfs_rqs(&mut self.reader(), out)
    }

    fn costs(&self) -> Result<Option<CostsView>, ReadError> {
        self.read_costs(&mut self.reader())
    }
}
