//! Layouts that are wrong, or of another kernel (bcc#4602, bpftrace#3898).

use super::{Guest, Image, NR_GROUPS};
use crate::introspect::bundled::BundledLayout;
use crate::introspect::layout::{LayoutError, LayoutSource, Member};
use crate::introspect::{Introspector, ReadError, SetupError};

/// The bundled layout with something changed.
struct Changed<F>(F);

impl<F: Fn(&str, &str, Member) -> Result<Member, LayoutError>> LayoutSource for Changed<F> {
    fn has_struct(&self, structure: &'static str) -> bool {
        BundledLayout.has_struct(structure)
    }

    fn size(&self, structure: &'static str) -> Result<u64, LayoutError> {
        BundledLayout.size(structure)
    }

    fn member(&self, structure: &'static str, path: &'static str) -> Result<Member, LayoutError> {
        (self.0)(structure, path, BundledLayout.member(structure, path)?)
    }

    fn enumerator(
        &self,
        enumeration: &'static str,
        name: &'static str,
    ) -> Result<u64, LayoutError> {
        BundledLayout.enumerator(enumeration, name)
    }
}

fn introspector(image: &Image, layout: &dyn LayoutSource) -> Result<Introspector, SetupError> {
    let symbols = image.symbols();
    let groups = symbols.groups(NR_GROUPS).unwrap();
    Introspector::new(image.tables.mem.clone(), image.space(), &symbols, layout, groups)
}

fn refusal(layout: &dyn LayoutSource) -> String {
    let image = Image::of(&Guest::run(0).kernel);
    introspector(&image, layout).err().expect("the layout was taken").to_string()
}

#[test]
fn a_member_that_the_kernel_lacks_is_named() {
    let layout = Changed(|structure: &str, path: &str, member| match (structure, path) {
        ("cfs_rq", "last_update_tg_load_avg") => {
            Err(LayoutError::NoMember { structure: "cfs_rq", member: "last_update_tg_load_avg" })
        }
        _ => Ok(member),
    });
    assert_eq!(
        refusal(&layout),
        "the guest's kernel is older than Linux 6.7: struct cfs_rq of the guest's kernel has no \
         member last_update_tg_load_avg"
    );
}

#[test]
fn names_that_the_bundled_kernel_has_not_are_refused() {
    let l = BundledLayout;
    assert_eq!(
        l.member("rq", "nr_queued").unwrap_err().to_string(),
        "struct rq of the guest's kernel has no member nr_queued"
    );
    assert_eq!(
        l.member("psi_group", "times").unwrap_err().to_string(),
        "the guest's kernel has no struct psi_group"
    );
    assert_eq!(
        l.enumerator("psi_states", "NR_PSI_STATES").unwrap_err().to_string(),
        "enum psi_states of the guest's kernel has no enumerator NR_PSI_STATES"
    );
}

#[test]
fn a_member_of_another_size_is_refused() {
    let layout = Changed(|structure: &str, path: &str, member: Member| match (structure, path) {
        ("rq", "nr_running") => Ok(Member { size: 2, ..member }),
        _ => Ok(member),
    });
    assert_eq!(refusal(&layout), "rq.nr_running has 2 bytes, expected 4");
}

#[test]
fn a_member_beyond_its_structure_is_refused() {
    let layout = Changed(|structure: &str, path: &str, member: Member| match (structure, path) {
        ("task_struct", "pid") => Ok(Member { offset: u64::MAX - 1, ..member }),
        _ => Ok(member),
    });
    assert!(refusal(&layout).starts_with("task_struct.pid ends at byte 18446744073709551615"));
}

#[test]
fn a_member_shifted_into_its_neighbour_is_refused() {
    let layout = Changed(|structure: &str, path: &str, member: Member| match (structure, path) {
        ("rq", "clock") => Ok(Member { offset: member.offset + 8, ..member }),
        _ => Ok(member),
    });
    assert_eq!(refusal(&layout), "rq.clock_task at byte 48 overlaps rq.clock");
}

#[test]
fn an_array_without_the_wanted_element_is_refused() {
    let layout = Changed(|structure: &str, path: &str, member: Member| match (structure, path) {
        ("psi_group_cpu", "times") => Ok(Member { size: 24, ..member }),
        _ => Ok(member),
    });
    assert_eq!(refusal(&layout), "psi_group_cpu.times has 6 elements, expected one with index 6");
}

/// Every structure whose members can be moved together by a wrong layout, and by how much. The
/// counters of `rqscope_costs` have nothing to contradict; the size of the image's symbol guards them.
const STRUCTURES: [&str; 6] =
    ["rq", "task_struct", "cfs_rq", "task_group", "irqtime", "psi_group_cpu"];

#[test]
fn a_structure_shifted_by_any_step_is_noticed() {
    let guest = Guest::run(20_000_000);
    let image = Image::of(&guest.kernel);
    let mut missed = Vec::new();
    for shifted in STRUCTURES {
        for shift in (-64i64..=64).step_by(4).filter(|s| *s != 0) {
            let layout = Changed(|structure: &str, _: &str, member: Member| {
                let offset = if structure == shifted {
                    // Before the structure's start, the shift wraps as an address does.
                    member.offset.wrapping_add_signed(shift)
                } else {
                    member.offset
                };
                Ok(Member { offset, ..member })
            });
            let noticed = match introspector(&image, &layout) {
                Ok(introspector) => introspector.sanity(guest.devices.now_ns).is_err(),
                Err(_) => true,
            };
            if !noticed {
                missed.push((shifted, shift));
            }
        }
    }
    assert_eq!(missed, []);
}

#[test]
fn symbols_shifted_by_any_step_are_noticed() {
    let guest = Guest::run(20_000_000);
    let image = Image::of(&guest.kernel);
    for shift in (-4096i64..=4096).step_by(4).filter(|s| *s != 0) {
        let base = image.base.wrapping_add_signed(shift);
        let symbols = crate::introspect::bundled::BundledSymbols::at(base);
        let groups = symbols.groups(NR_GROUPS).unwrap();
        let mem = image.tables.mem.clone();
        let introspector =
            Introspector::new(mem, image.space(), &symbols, &BundledLayout, groups).unwrap();
        let noticed: Result<(), ReadError> = introspector.sanity(guest.devices.now_ns);
        assert!(noticed.is_err(), "symbols shifted by {shift} bytes went unnoticed");
    }
}

#[test]
fn a_kernel_that_has_not_booted_is_not_taken_for_one_that_has() {
    let kernel = crate::model::zeroed::<guest_model::kernel::Kernel>();
    let error = Image::of(&kernel).introspector().sanity(1_000_000).unwrap_err();
    assert_eq!(error.to_string(), "rq.curr is a null pointer, expected a task_struct");
}
