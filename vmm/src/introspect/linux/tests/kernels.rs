//! Crafted kernels of both shapes, read whole, and refused for what they lack.

use crate::introspect::linux::Linux;
use crate::introspect::linux::tests::fake::{Fake, IDT, IRQ_NS, LINKED, NOW_NS, STEAL_NS};
use crate::introspect::linux::tests::shapes::Build;
use crate::introspect::linux::types_of_elf;
use crate::introspect::translate::Depth;
use crate::introspect::{Introspector, SetupError, Snapshot};
use crate::view::{CpustatView, GuestView};

const WANTED: [&str; 3] = ["/a", "/a/b", "/c"];

fn introspector(linux: &Linux) -> Result<Introspector, SetupError> {
    linux.introspector(linux.groups(&WANTED)?.table)
}

fn snapshot(fake: &Fake) -> Snapshot {
    let introspector = introspector(&fake.find()).unwrap();
    introspector.sanity_at_rest(NOW_NS).unwrap();
    let mut snapshot = Snapshot::default();
    introspector.snapshot(&mut snapshot).unwrap();
    snapshot
}

#[test]
fn a_guest_is_read_whole_whatever_its_kernels_shape() {
    for (build, psi_seq) in [(Build::Old, 20), (Build::New, 4888)] {
        let s = snapshot(&Fake::new(build, 0));
        assert_eq!((s.rq.curr_pid, s.rq.nr_running, s.rq.nr_switches), (42, 2, 995));
        assert_eq!(s.rq.clock_ns - s.rq.clock_task_ns, IRQ_NS + STEAL_NS);
        assert_eq!((s.rq.prev_irq_time_ns, s.rq.psi_irq_time_ns), (IRQ_NS, IRQ_NS));
        assert_eq!((s.rq.irqtime_total_ns, s.rq.psi_seq), (IRQ_NS, psi_seq));
        assert_eq!(s.rq.prev_steal_time_rq_ns, STEAL_NS);
        let leaves: Vec<_> = s.leaf_cfs_rqs.iter().map(|c| (c.group, c.load_avg)).collect();
        assert_eq!(leaves, [(2, 1022), (1, 1023), (3, 1021), (0, 1024)]);
        let psi: Vec<_> = s.psi_groups.iter().map(|p| u64::from(p.irq_full_ns)).collect();
        assert_eq!(psi, [IRQ_NS, IRQ_NS >> 1, IRQ_NS >> 2, IRQ_NS >> 3]);
        let stat = CpustatView {
            user_ns: 2_000_000_000,
            system_ns: 900_000_000,
            softirq_ns: 20_000_123,
            irq_ns: 60_000_000,
            idle_ns: 1_000_000_000,
            steal_ns: 0,
        };
        assert_eq!((s.cpustat, s.costs), (Some(stat), None));
    }
}

#[test]
fn the_readings_are_the_same_wherever_the_kernel_was_put() {
    for build in [Build::Old, Build::New] {
        let unmoved = snapshot(&Fake::new(build, 0));
        for slide in [2 << 20, 0x1240_0000, (1 << 30) - (2 << 20)] {
            let fake = Fake::new(build, slide);
            assert_eq!(fake.find().symbols().slide(), slide);
            assert_eq!(snapshot(&fake), unmoved);
        }
    }
}

#[test]
fn a_slide_that_no_kernel_has_is_refused() {
    let gate = |fake: &Fake, vector: u64, handler: u64| {
        fake.poke_u64(IDT + vector * 16, handler & 0xffff | (handler & 0xffff_0000) << 32);
        fake.poke_u64(IDT + vector * 16 + 8, handler >> 32);
    };
    let refusal = |vector, handler| {
        let fake = Fake::new(Build::New, 4 << 20);
        gate(&fake, vector, handler);
        fake.find_with(fake.table_without(&[])).unwrap_err().to_string()
    };
    let at = LINKED + 0x1000;
    assert_eq!(
        refusal(0, at + 0x1000),
        format!(
            "interrupt gate 0 leads to {:#x}, but asm_exc_divide_error is linked at {at:#x} in \
             System.map, and the difference is no multiple of 2 MiB: is that the kernel that runs?",
            at + 0x1000
        )
    );
    assert!(refusal(0, at - (2 << 20)).contains("is not between 0 and 1 GiB"));
    assert!(refusal(0, at + (1 << 30)).contains("is not between 0 and 1 GiB"));
    assert!(refusal(13, LINKED + 0x1200).contains("another gate gives another difference"));
    let fake = Fake::new(Build::New, 0);
    let table = fake.table_without(&[]);
    let error = Linux::find(fake.mem(), fake.cr3(), Depth::Four, 0x1000, table, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read interrupt gate 0 at 0x1000, where System.map has it"
    );
}

#[test]
fn per_cpu_variables_that_are_not_where_they_should_be_are_noticed() {
    for build in [Build::Old, Build::New] {
        let fake = Fake::new(build, 0);
        let offset = fake.per_cpu_offset();
        fake.poke_u64(fake.variable("__per_cpu_offset"), offset + 64);
        let error = fake.find_with(fake.table_without(&[])).unwrap_err().to_string();
        assert!(error.starts_with("this_cpu_off at 0x"), "{error}");
        assert!(
            error.ends_with("is System.map the kernel that runs, and has it booted?"),
            "{error}"
        );
        // Before boot has set them up there is nothing.
        fake.poke_u64(fake.variable("__per_cpu_offset"), 0x7000_0000_0000);
        let error = fake.find_with(fake.table_without(&[])).unwrap_err().to_string();
        assert!(error.starts_with("cannot read this_cpu_off at 0x"), "{error}");
    }
}

#[test]
fn the_kernel_file_must_have_the_types_of_the_kernel_that_runs() {
    let fake = Fake::new(Build::New, 0);
    let find = |types: &[u8]| {
        let elf = super::btf::elf_with_section(1, types);
        let types = types_of_elf("vmlinux", &elf).unwrap();
        let table = fake.table_without(&[]);
        Linux::find(fake.mem(), fake.cr3(), Depth::Four, IDT, table, Some(types))
    };
    assert!(find(&fake.btf).is_ok());
    let other = super::shapes::types(Build::New, |_, member| member != "prev_mm");
    let error = find(&other).unwrap_err().to_string();
    assert_eq!(
        error,
        "the types in System.map are not those in guest memory: it is the file of another kernel"
    );
}

#[test]
fn a_kernel_without_types_in_memory_is_refused_unless_its_file_has_them() {
    let fake = Fake::new(Build::New, 0);
    let bare = fake.table_without(&["__start_BTF", "__stop_BTF"]);
    let error = fake.find_with(bare.clone()).unwrap_err().to_string();
    assert_eq!(error, "the kernel has no BTF: build it with CONFIG_DEBUG_INFO_BTF");
    let elf = super::btf::elf_with_section(1, &fake.btf);
    let types = types_of_elf("vmlinux", &elf).unwrap();
    assert!(Linux::find(fake.mem(), fake.cr3(), Depth::Four, IDT, bare, Some(types)).is_ok());
}

/// What is said of a kernel that has not the structures and members that `lacks` names.
fn lacking(lacks: &'static [(&'static str, &'static str)], symbols: &[&str]) -> String {
    let fake = Fake::with(Build::New, 0, |structure, member| !lacks.contains(&(structure, member)));
    let linux = fake.find_with(fake.table_without(symbols)).unwrap();
    introspector(&linux).err().expect("the kernel was taken").to_string()
}

#[test]
fn what_a_kernel_must_have_is_named_by_its_option() {
    assert_eq!(
        lacking(&[], &["cpu_irqtime"]),
        "the guest's kernel is built without CONFIG_IRQ_TIME_ACCOUNTING: no symbol cpu_irqtime in \
         System.map"
    );
    assert_eq!(
        lacking(&[("rq", "prev_irq_time")], &[]),
        "the guest's kernel is built without CONFIG_IRQ_TIME_ACCOUNTING: struct rq of the guest's \
         kernel has no member prev_irq_time"
    );
    assert_eq!(
        lacking(&[("cfs_rq", "last_update_tg_load_avg")], &[]),
        "the guest's kernel is older than Linux 6.7: struct cfs_rq of the guest's kernel has no member \
         last_update_tg_load_avg"
    );
    assert_eq!(
        lacking(&[("cfs_rq", "avg")], &[]),
        "the guest's kernel is built without CONFIG_SMP: struct cfs_rq of the guest's kernel has no \
         member avg.load_avg"
    );
    assert_eq!(
        lacking(&[("task_group", "")], &[]),
        "the guest's kernel is built without CONFIG_FAIR_GROUP_SCHED: the guest's kernel has no \
         struct task_group"
    );
    assert_eq!(
        lacking(&[("rq", "nr_running")], &[]),
        "struct rq of the guest's kernel has neither nr_running nor nr_queued"
    );
    assert_eq!(lacking(&[], &["ksoftirqd"]), "no symbol ksoftirqd in System.map");
    assert_eq!(lacking(&[("irqtime", "")], &[]), "the guest's kernel has no struct irqtime");
}

#[test]
fn a_kernel_that_does_not_trust_its_clock_is_refused() {
    let fake = Fake::new(Build::New, 0);
    fake.poke_u64(fake.variable("sched_clock_irqtime"), 0);
    assert_eq!(
        introspector(&fake.find()).err().unwrap().to_string(),
        "the guest's kernel accounts no IRQ time, since it does not trust its clock: \
         sched_clock_irqtime is off"
    );
}

#[test]
fn what_a_kernel_can_do_without_is_told_as_not_built_in() {
    let with = |lacks: &'static [(&'static str, &'static str)], off: Option<(&str, u64)>| {
        let keep = |structure: &str, member: &str| !lacks.contains(&(structure, member));
        let fake = Fake::with(Build::New, 0, keep);
        if let Some((name, value)) = off {
            fake.poke_u64(fake.variable(name), value);
        }
        let introspector = introspector(&fake.find()).unwrap();
        introspector.sanity_at_rest(NOW_NS).unwrap();
        introspector.snapshot(&mut Snapshot::default()).unwrap();
        let rq = introspector.rq().unwrap();
        let psi = introspector.psi_group(2).unwrap().irq_full_ns;
        (introspector.lacks(), rq, psi)
    };
    let (lacks, rq, psi) = with(&[], None);
    assert_eq!((lacks.psi, lacks.steal), (None, None));
    assert!(rq.psi_seq != 0 && psi != 0);

    let (lacks, rq, psi) = with(&[("psi_group_cpu", "")], None);
    assert_eq!(lacks.psi, Some("is built without CONFIG_PSI"));
    assert_eq!((lacks.steal, rq.psi_seq, rq.psi_irq_time_ns, psi), (None, 0, 0, 0));

    let (lacks, ..) = with(&[("rq", "psi_irq_time")], None);
    assert_eq!(lacks.psi, Some("is older than Linux 6.10, which has rq.psi_irq_time"));

    let (lacks, ..) = with(&[], Some(("psi_disabled", 1)));
    assert_eq!(lacks.psi, Some("has PSI turned off: boot it with psi=1"));

    let (lacks, rq, _) = with(&[("rq", "prev_steal_time_rq")], None);
    assert_eq!(lacks.steal, Some("is built without CONFIG_PARAVIRT_TIME_ACCOUNTING"));
    assert_eq!((lacks.psi, rq.prev_steal_time_rq_ns), (None, 0));

    let (lacks, ..) = with(&[], Some(("paravirt_steal_rq_enabled", 0)));
    assert_eq!(
        lacks.steal,
        Some("has steal accounting turned off: it found no steal clock at boot")
    );

    // Kernels need not keep this enumeration: it is a check less.
    let (lacks, ..) = with(&[("psi_task_count", "")], None);
    assert_eq!(lacks, Default::default());
}

#[test]
fn ksoftirqd_is_told_by_the_kernels_own_pointer() {
    let fake = Fake::new(Build::New, 0);
    let view = introspector(&fake.find()).unwrap();
    assert_eq!(view.runs_ksoftirqd(), Ok(false));
    let rq = fake.groups[0].cfs_rq - fake.offset("rq", "cfs");
    fake.set("rq", "curr", rq, fake.ksoftirqd);
    assert_eq!(view.runs_ksoftirqd(), Ok(true));
    assert_eq!(view.curr_pid(), Ok(15));
}

#[test]
fn the_clock_of_the_scheduler_is_the_pages_time_and_an_offset() {
    let fake = Fake::new(Build::New, 2 << 20);
    assert_eq!(fake.find().sched_clock_offset_ns(), Ok(100));
    fake.poke_u64(fake.variable("kvm_sched_clock_offset"), 1001);
    assert_eq!(fake.find().sched_clock_offset_ns(), Ok(u64::MAX));
    fake.poke_u64(fake.variable("__sched_clock_stable"), 0);
    assert_eq!(
        fake.find().sched_clock_offset_ns().unwrap_err().to_string(),
        "the guest's kernel does not take its clock for stable: __sched_clock_stable is off"
    );
    let fake = Fake::new(Build::New, 0);
    let linux = fake.find_with(fake.table_without(&["kvm_sched_clock_offset"])).unwrap();
    assert_eq!(
        linux.sched_clock_offset_ns().unwrap_err().to_string(),
        "the guest's kernel is built without CONFIG_KVM_GUEST: no symbol kvm_sched_clock_offset in \
         System.map"
    );
}

#[test]
fn the_kernels_own_tables_are_found_from_the_half_that_a_user_has() {
    let mut fake = Fake::new(Build::New, 0);
    // A user's half is the page after the kernel's, and maps only the IDT.
    let kernel = 0x38_0000;
    let mut page = vec![0u8; 4096];
    let root = fake.cr3();
    vm_memory::Bytes::read_slice(&fake.mem(), &mut page, vm_memory::GuestAddress(root)).unwrap();
    vm_memory::Bytes::write_slice(&fake.mem(), &page, vm_memory::GuestAddress(kernel)).unwrap();
    let user = kernel + 0x1000;
    let idt = (IDT >> 39 & 0x1ff) as usize * 8;
    let entry = u64::from_le_bytes(page[idt..idt + 8].try_into().unwrap());
    fake.tables.put(user + idt as u64, entry);
    fake.tables.root = user;
    let linux = fake.find_with(fake.table_without(&[])).unwrap();
    assert_eq!(linux.space().root(), 0x1000, "init_top_pgt");
}

#[test]
fn a_shifted_member_is_noticed_or_known_to_go_unnoticed() {
    for build in [Build::Old, Build::New] {
        let fake = Fake::new(build, 0);
        let missed = super::shift::missed(&fake.find(), NOW_NS);
        assert_eq!(missed, super::shift::KNOWN);
    }
}
