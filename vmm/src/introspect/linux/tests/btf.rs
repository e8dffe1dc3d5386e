//! Types that kernels have, that newer kernels may have, and that nobody should have.

use proptest::prelude::*;

use super::blob::*;
use crate::introspect::SetupError;
use crate::introspect::layout::{LayoutSource, Member as Place};
use crate::introspect::linux::btf::{Btf, BtfError};
use crate::introspect::linux::layout::BtfLayout;
use crate::introspect::linux::types_of_elf;
use crate::introspect::symbols::SymbolError;

fn layout(blob: &Blob) -> BtfLayout {
    BtfLayout::new(Btf::parse(blob.build()).unwrap())
}

fn refusal(data: &[u8]) -> String {
    Btf::parse(data.to_vec()).unwrap_err().to_string()
}

/// Three structures in one another, as `rq`, `avg` and what is anonymous in them.
fn nested() -> Blob {
    let mut b = Blob::new();
    let (u32_, u64_) = (b.int("unsigned int", 4), b.int("unsigned long long", 8));
    let task = b.to(FWD, "task_struct", 0);
    let pointer = b.to(PTR, "", task);
    let either = b.composite(UNION, false, "", 8, &[("donor", pointer, 0), ("curr", pointer, 0)]);
    let deep = b.structure("", 16, &[("first", u64_, 0), ("second", u64_, 64)]);
    let both = b.composite(UNION, false, "", 16, &[("", deep, 0), ("whole", u64_, 0)]);
    let avg = b.structure("sched_avg", 24, &[("sum", u64_, 0), ("", both, 64)]);
    let tag = b.to(TYPE_TAG, "percpu", avg);
    let long = b.to(TYPEDEF, "avg_t", tag);
    let constant = b.to(CONST, "", long);
    let volatile = b.to(VOLATILE, "", constant);
    b.structure(
        "rq",
        56,
        &[
            ("nr_running", u32_, 0),
            ("", either, 64),
            ("avg_irq", volatile, 128),
            ("clock", u64_, 320),
        ],
    );
    b
}

#[test]
fn members_are_found_through_anonymous_ones_typedefs_and_qualifiers() {
    let l = layout(&nested());
    let place = |path| l.member("rq", path).unwrap();
    assert_eq!(place("nr_running"), Place { offset: 0, size: 4 });
    assert_eq!(place("curr"), Place { offset: 8, size: 8 });
    assert_eq!(place("clock"), Place { offset: 40, size: 8 });
    assert_eq!(place("avg_irq"), Place { offset: 16, size: 24 });
    assert_eq!(place("avg_irq.second"), Place { offset: 16 + 8 + 8, size: 8 });
    assert_eq!(place("avg_irq.whole"), Place { offset: 16 + 8, size: 8 });
    assert_eq!(l.size("rq"), Ok(56));
    assert!(l.has_struct("sched_avg") && !l.has_struct("task_struct") && !l.has_struct("avg_t"));
}

#[test]
fn members_that_there_are_not_are_named() {
    let l = layout(&nested());
    let refusal = |path| l.member("rq", path).unwrap_err().to_string();
    let none = "struct rq of the guest's kernel has no member ";
    for path in ["nr_queued", "avg_irq.third", "clock.low", "curr.pid", "", "avg_irq."] {
        assert_eq!(refusal(path), format!("{none}{path}"));
    }
    // The name of a structure that is only declared is no structure.
    assert_eq!(
        l.member("task_struct", "pid").unwrap_err().to_string(),
        "the guest's kernel has no struct task_struct"
    );
}

#[test]
fn bitfields_and_anonymous_unions_before_a_member_do_not_move_it() {
    let mut b = Blob::new();
    let u32_ = b.int("unsigned int", 4);
    let u64_ = b.int("unsigned long", 8);
    let flags = b.composite(
        STRUCT,
        true,
        "",
        4,
        &[("throttled", u32_, 1 << 24), ("pelt_clock_throttled", u32_, 1 << 24 | 1)],
    );
    let pad = b.composite(UNION, true, "", 4, &[("", flags, 0), ("word", u32_, 0)]);
    let members: [Member<'_>; 6] = [
        ("on_list", u32_, 3 << 24),
        ("", u32_, 5 << 24 | 3),
        ("idle", u32_, 24 << 24 | 8),
        ("", pad, 32),
        ("tg", u64_, 64),
        ("throttle_count", u32_, 128),
    ];
    b.composite(STRUCT, true, "cfs_rq", 24, &members);
    let l = layout(&b);
    assert_eq!(l.member("cfs_rq", "tg"), Ok(Place { offset: 8, size: 8 }));
    assert_eq!(l.member("cfs_rq", "throttle_count"), Ok(Place { offset: 16, size: 4 }));
    assert_eq!(l.member("cfs_rq", "word"), Ok(Place { offset: 4, size: 4 }));
    let refusal = |path| l.member("cfs_rq", path).unwrap_err().to_string();
    assert_eq!(refusal("on_list"), "cfs_rq.on_list is a bitfield of 3 bits, expected whole bytes");
    assert_eq!(refusal("idle"), "cfs_rq.idle is a bitfield of 24 bits, expected whole bytes");
    assert_eq!(
        refusal("pelt_clock_throttled"),
        "cfs_rq.pelt_clock_throttled is a bitfield of 1 bits, expected whole bytes"
    );
}

#[test]
fn a_bitfield_without_the_kind_flag_is_told_by_its_integer() {
    let mut b = Blob::new();
    let three = b.add("unsigned int", INT << 24, 4, &[3]);
    let shifted = b.add("unsigned int", INT << 24, 4, &[5 << 16 | 32]);
    b.structure("s", 8, &[("a", three, 0), ("b", shifted, 32)]);
    let l = layout(&b);
    assert!(l.member("s", "a").unwrap_err().to_string().contains("bitfield of 3 bits"));
    assert!(l.member("s", "b").unwrap_err().to_string().contains("bitfield of 32 bits"));
}

#[test]
fn arrays_have_the_size_of_all_their_elements() {
    let mut b = Blob::new();
    let u32_ = b.int("u32", 4);
    let row = b.array(u32_, 9);
    let rows = b.array(row, 2);
    b.structure("psi_group_cpu", 108, &[("times", row, 0), ("times_prev", rows, 288)]);
    let l = layout(&b);
    assert_eq!(l.member("psi_group_cpu", "times"), Ok(Place { offset: 0, size: 36 }));
    assert_eq!(l.member("psi_group_cpu", "times_prev"), Ok(Place { offset: 36, size: 72 }));
}

#[test]
fn pointers_are_counted_through_tags() {
    let mut b = Blob::new();
    let cfs_rq = b.structure("cfs_rq", 8, &[]);
    let tag = b.to(TYPE_TAG, "percpu", cfs_rq);
    let per_cpu = b.to(PTR, "", tag);
    let plain = b.to(PTR, "", cfs_rq);
    let array = b.to(PTR, "", plain);
    let nothing = b.to(PTR, "", 0);
    let members = [
        ("per_cpu", per_cpu, 0),
        ("array", array, 64),
        ("void", nothing, 128),
        ("it", cfs_rq, 192),
    ];
    b.structure("task_group", 32, &members);
    let l = layout(&b);
    let pointers = |path| l.pointers("task_group", path).unwrap();
    assert_eq!(
        [pointers("per_cpu"), pointers("array"), pointers("void"), pointers("it")],
        [1, 2, 1, 0]
    );
}

#[test]
fn enumerators_have_their_values_whatever_their_width_and_sign() {
    let mut b = Blob::new();
    b.enumeration("psi_states", &[("PSI_IO_SOME", 0), ("PSI_IRQ_FULL", 6)]);
    let name = b.string("LOW");
    b.add("signed", 1 << 31 | ENUM << 24 | 1, 4, &[name, -2i32 as u32]);
    let name = b.string("WIDE");
    b.add("wide", ENUM64 << 24 | 1, 8, &[name, 1, 2]);
    b.enumeration("twice", &[("A", 1)]);
    b.enumeration("twice", &[("A", 2), ("B", 3)]);
    let l = layout(&b);
    assert_eq!(l.enumerator("psi_states", "PSI_IRQ_FULL"), Ok(6));
    assert_eq!(l.enumerator("signed", "LOW"), Ok(-2i64 as u64));
    assert_eq!(l.enumerator("wide", "WIDE"), Ok(2 << 32 | 1));
    assert_eq!(l.enumerator("twice", "B"), Ok(3));
    let refusal = |e, name| l.enumerator(e, name).unwrap_err().to_string();
    assert!(refusal("twice", "A").starts_with("twice of the guest's kernel is ambiguous"));
    assert_eq!(
        refusal("psi_states", "PSI"),
        "enum psi_states of the guest's kernel has no enumerator PSI"
    );
}

#[test]
fn two_structures_of_one_name_are_taken_only_where_they_agree() {
    let mut b = Blob::new();
    let u64_ = b.int("u64", 8);
    b.structure("irqtime", 16, &[("total", u64_, 0), ("sync", u64_, 64)]);
    b.structure("irqtime", 16, &[("total", u64_, 0), ("start", u64_, 64)]);
    let l = layout(&b);
    assert_eq!(l.member("irqtime", "total"), Ok(Place { offset: 0, size: 8 }));
    assert_eq!(l.size("irqtime"), Ok(16));
    let error = l.member("irqtime", "start").unwrap_err().to_string();
    assert!(error.starts_with("irqtime of the guest's kernel is ambiguous"), "{error}");
}

/// One type of each kind, then a structure.
fn all_kinds() -> Blob {
    let mut b = Blob::new();
    let u64_ = b.int("u64", 8);
    b.to(FWD, "declared", 0);
    let name = b.string("arg");
    let proto = b.add("", FUNC_PROTO << 24 | 1, u64_, &[name, u64_]);
    let function = b.to(FUNC, "function", proto);
    let var = b.add("runqueues", VAR << 24, u64_, &[1]);
    b.add(".data..percpu", DATASEC << 24 | 1, 8, &[var, 0, 8]);
    b.to(FLOAT, "double", 8);
    b.add("tag", DECL_TAG << 24, function, &[u32::MAX]);
    b.to(TYPE_TAG, "rcu", u64_);
    let name = b.string("WIDE");
    b.add("wide", ENUM64 << 24 | 1, 8, &[name, 1, 2]);
    b.structure("rq", 16, &[("cpu", u64_, 0), ("clock", u64_, 64)]);
    b
}

#[test]
fn kinds_of_newer_kernels_are_stepped_over() {
    let l = layout(&all_kinds());
    assert_eq!(l.member("rq", "clock"), Ok(Place { offset: 8, size: 8 }));
}

#[test]
fn an_unknown_kind_is_named_with_its_place() {
    for kind in [0, 20, 31, 127] {
        let mut b = all_kinds();
        let id = b.next();
        b.add("new", kind << 24 | 2, 0, &[1, 2]);
        b.structure("late", 8, &[]);
        let error = Btf::parse(b.build()).unwrap_err();
        assert!(
            matches!(error, BtfError::UnknownKind { id: i, kind: k, .. } if i == id && k == kind)
        );
    }
    let mut b = Blob::new();
    b.int("u64", 8);
    b.add("new", 31 << 24, 0, &[]);
    assert_eq!(
        refusal(&b.build()),
        "BTF type 2 at byte 16 is of the unknown kind 31: it is from a newer kernel than this program \
         knows"
    );
}

#[test]
fn an_unknown_kind_whose_length_the_layout_section_tells_is_stepped_over() {
    let mut b = all_kinds();
    // Four bytes, and two for each of three elements.
    b.add("new", 31 << 24 | 3, 0, &[7, 8, 9 << 16 | 9]);
    let u32_ = b.int("u32", 4);
    b.structure("late", 4, &[("it", u32_, 0)]);
    let mut layout = vec![0; 32 * 4];
    layout[31 * 4] = 6;
    layout[31 * 4 + 1] = 2;
    let btf = Btf::parse(b.build_with(32, &layout)).unwrap();
    assert_eq!(BtfLayout::new(btf).member("late", "it"), Ok(Place { offset: 0, size: 4 }));
    // Without the section, or one too short, it is not.
    assert!(Btf::parse(b.build_with(32, &layout[..31 * 4])).is_err());
    assert!(Btf::parse(b.build()).is_err());
}

#[test]
fn a_header_with_fields_that_are_not_known_is_stepped_over() {
    for header_len in [24, 28, 32, 40, 4096] {
        let btf = Btf::parse(all_kinds().build_with(header_len, &[])).unwrap();
        let place = BtfLayout::new(btf).member("rq", "clock");
        assert_eq!(place, Ok(Place { offset: 8, size: 8 }), "{header_len}");
    }
}

#[test]
fn blobs_that_are_no_btf_are_refused_by_what_is_wrong() {
    assert_eq!(refusal(&[]), "the kernel has no BTF: build it with CONFIG_DEBUG_INFO_BTF");
    assert_eq!(refusal(&[0; 64]), "not BTF of an x86-64 kernel: expected magic 0xeb9f, got 0x0000");
    let swapped = [0xeb, 0x9f, 1, 0, 0, 0, 0, 24];
    assert_eq!(refusal(&swapped), "not BTF of an x86-64 kernel: expected magic 0xeb9f, got 0x9feb");
    let with = |at: usize, byte| {
        let mut data = all_kinds().build();
        data[at] = byte;
        refusal(&data)
    };
    assert_eq!(with(2, 2), "BTF has version 2, expected 1");
    assert_eq!(with(4, 23), "BTF has hdr_len 23, expected 24");
    assert!(with(15, 0xff).starts_with("BTF is truncated: the type section ends at byte"));
    assert!(with(23, 0xff).starts_with("BTF is truncated: the string section ends at byte"));
    let end = all_kinds().build().len() - 1;
    assert_eq!(with(end, b'x'), "BTF strings do not start and end with a zero byte");
}

#[test]
fn a_blob_cut_anywhere_is_refused() {
    let data = all_kinds().build();
    for len in 0..data.len() {
        assert!(Btf::parse(data[..len].to_vec()).is_err(), "cut to {len} bytes");
    }
}

#[test]
fn types_that_go_round_in_circles_are_left() {
    let mut b = Blob::new();
    let next = b.next();
    b.to(TYPEDEF, "a", next + 1);
    b.to(CONST, "", next);
    b.structure("chain", 8, &[("it", next, 0)]);
    let array = b.next();
    b.array(array, 2);
    b.structure("arrays", 8, &[("it", array, 0)]);
    let pointer = b.next();
    b.to(PTR, "", pointer);
    b.structure("pointers", 8, &[("it", pointer, 0)]);
    let own = b.next();
    b.structure("own", 8, &[("", own, 0), ("", own, 64)]);
    let l = layout(&b);
    let refusal = |s, member| {
        let error = l.member(s, member).unwrap_err();
        std::error::Error::source(&error).unwrap().to_string()
    };
    assert_eq!(
        refusal("chain", "it"),
        "BTF type 1 leads through more than 64 typedefs and qualifiers"
    );
    assert_eq!(refusal("arrays", "it"), "BTF type 4 leads through more than 16 arrays of arrays");
    assert_eq!(
        refusal("own", "it"),
        "BTF type 8 leads through more than 16 anonymous members in one another"
    );
    assert!(l.pointers("pointers", "it").unwrap_err().to_string().contains("pointers.it"));
}

/// Anonymous structures of 64 anonymous members each, 14 deep: 64^14 ways.
#[test]
fn a_search_through_very_many_anonymous_members_ends() {
    let mut b = Blob::new();
    let mut inner = b.structure("", 0, &[]);
    for _ in 0..14 {
        let members = [("", inner, 0); 64];
        inner = b.structure("", 0, &members);
    }
    b.structure("wide", 8, &[("", inner, 0)]);
    let error = layout(&b).member("wide", "it").unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.ends_with("leads through more than 131072 members"), "{source}");
}

#[test]
fn sizes_that_overflow_and_types_that_do_not_exist_are_refused() {
    let mut b = Blob::new();
    let u64_ = b.int("u64", 8);
    let mut array = u64_;
    for _ in 0..3 {
        array = b.array(array, u32::MAX);
    }
    b.structure("s", 8, &[("huge", array, 0), ("none", 77, 0), ("void", 0, 0)]);
    let l = layout(&b);
    let refusal = |member| {
        let error = l.member("s", member).unwrap_err();
        std::error::Error::source(&error).unwrap().to_string()
    };
    assert_eq!(refusal("huge"), "BTF type 4 is an array of more than 2^64 bytes");
    assert_eq!(refusal("none"), "BTF type 77 does not exist: there are 6");
    assert_eq!(refusal("void"), "BTF type 0 does not exist: there are 6");
}

/// An executable with a `.BTF` section of that type and content.
pub fn elf_with_section(kind: u32, content: &[u8]) -> Vec<u8> {
    let names = b"\0.BTF\0.shstrtab\0.symtab\0.strtab\0";
    let symtab = [[0u8; 24], {
        let mut symbol = [0u8; 24];
        symbol[4] = 0x12;
        symbol[6] = 1;
        symbol
    }]
    .concat();
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    let at = 64u64;
    let (btf_at, names_at) = (at, at + content.len() as u64);
    let symtab_at = names_at + names.len() as u64;
    let sections_at = symtab_at + symtab.len() as u64;
    [2u16, 62].iter().for_each(|half| file.extend(half.to_le_bytes()));
    file.extend(1u32.to_le_bytes());
    [0u64, 0, sections_at].iter().for_each(|word| file.extend(word.to_le_bytes()));
    file.extend(0u32.to_le_bytes());
    [64u16, 56, 0, 64, 5, 2].iter().for_each(|half| file.extend(half.to_le_bytes()));
    file.extend(content);
    file.extend(names);
    file.extend(&symtab);
    let mut section = |name: u32, kind: u32, at: u64, size: u64, link: u32, entry: u64| {
        [name, kind].iter().for_each(|word| file.extend(word.to_le_bytes()));
        [0, 0, at, size].iter().for_each(|word| file.extend(word.to_le_bytes()));
        [link, 1].iter().for_each(|word| file.extend(word.to_le_bytes()));
        [1, entry].iter().for_each(|word| file.extend(word.to_le_bytes()));
    };
    section(0, 0, 0, 0, 0, 0);
    section(1, kind, btf_at, content.len() as u64, 0, 0);
    section(6, 3, names_at, names.len() as u64, 0, 0);
    section(16, 2, symtab_at, symtab.len() as u64, 4, 24);
    section(24, 3, names_at, names.len() as u64, 0, 0);
    file
}

#[test]
fn a_kernel_files_types_are_those_of_its_section() {
    let (progbits, nobits) = (1, 8);
    let blob = all_kinds().build();
    let types = types_of_elf("vmlinux", &elf_with_section(progbits, &blob)).unwrap();
    assert_eq!(types, Btf::parse(blob.clone()).unwrap());
    let error = types_of_elf("vmlinux", &elf_with_section(nobits, &blob)).unwrap_err();
    assert_eq!(
        error,
        SetupError::Types(BtfError::NoBits { size: blob.len() as u64 }),
        "what a stripped file has"
    );
    // The section's name is all that is missing.
    let mut file = elf_with_section(progbits, &blob);
    let name = file.windows(4).position(|w| w == b".BTF").unwrap();
    file[name] = b'x';
    let error = types_of_elf("vmlinux", &file).unwrap_err().to_string();
    assert_eq!(error, "the kernel has no BTF: build it with CONFIG_DEBUG_INFO_BTF");
    assert!(matches!(
        types_of_elf("vmlinux", b"#!/bin/sh").unwrap_err(),
        SetupError::Symbol(SymbolError::NotElf { .. })
    ));
}

/// Every question there is.
fn ask(data: Vec<u8>) {
    let Ok(btf) = Btf::parse(data) else { return };
    let l = BtfLayout::new(btf);
    for structure in ["rq", "sched_avg", "late", ""] {
        let _ = (l.has_struct(structure), l.size(structure));
        for path in ["clock", "avg_irq.second", "", "a.b.c"] {
            let _ = (l.member(structure, path), l.pointers(structure, path));
        }
    }
    let _ = (l.enumerator("wide", "WIDE"), l.enumerator("", ""));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_blob_with_bytes_changed_panics_nowhere(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        deep in any::<bool>(),
    ) {
        let mut data = if deep { nested() } else { all_kinds() }.build();
        for (at, byte) in changes {
            let at = at.index(data.len());
            data[at] = byte;
        }
        ask(data);
    }

    #[test]
    fn random_words_after_a_sound_header_panic_nowhere(
        words in prop::collection::vec(any::<u32>(), 3..64),
    ) {
        let mut b = all_kinds();
        b.add("random", words[0], words[1], &words[2..]);
        ask(b.build());
    }
}
