//! A guest that lies: corrupt lists, wild pointers, torn counters, endless text.

use core::mem::offset_of;

use guest_model::fair::CfsRq;
use guest_model::kernel::{Kernel, Task};
use guest_model::rq::Rq;
use guest_model::wire::probe;
use vm_memory::Bytes;

use super::{Guest, Image};
use crate::introspect::{Introspector, ReadError};
use crate::view::GuestView;

fn after_20_ms() -> (Guest, Image, Introspector) {
    let guest = Guest::run(20_000_000);
    let image = Image::of(&guest.kernel);
    let introspector = image.introspector();
    (guest, image, introspector)
}

const NEXT: usize = 0;
const PREV: usize = 8;

fn head(image: &Image) -> u64 {
    image.rq(offset_of!(Rq, leaf_cfs_rq_list))
}

fn node(image: &Image, group: usize) -> u64 {
    image.cfs_rq(group, offset_of!(CfsRq, leaf_cfs_rq_list))
}

fn leaf_error(introspector: &Introspector) -> ReadError {
    introspector.leaf_cfs_rqs(&mut Vec::new()).unwrap_err()
}

#[test]
fn a_list_entry_that_points_at_itself_is_refused() {
    let (_guest, image, introspector) = after_20_ms();
    let first = image.read(head(&image));
    image.poke(first + NEXT as u64, first);
    let expected = format!(
        "rq.leaf_cfs_rq_list: prev of the list_head at {first:#x} is {:#x}, expected {first:#x}",
        head(&image)
    );
    assert_eq!(leaf_error(&introspector).to_string(), expected);
    // Pointing back at itself too does not help: then it does not point at the head.
    image.poke(first + PREV as u64, first);
    let expected = head(&image);
    assert!(matches!(
        leaf_error(&introspector),
        ReadError::ListBroken { node, expected: e, got, .. }
            if node == first && got == first && e == expected
    ));
}

#[test]
fn a_list_that_never_comes_back_to_its_head_is_refused() {
    let (_guest, image, introspector) = after_20_ms();
    let first = image.read(head(&image));
    let second = image.read(first);
    let third = image.read(second);
    image.poke(third + NEXT as u64, second);
    assert!(matches!(
        leaf_error(&introspector),
        ReadError::ListBroken { node, expected, got, .. }
            if node == second && expected == third && got == first
    ));
}

#[test]
fn a_list_head_that_points_at_itself_one_way_only_is_refused() {
    let (_guest, image, introspector) = after_20_ms();
    let head = head(&image);
    image.poke(head + NEXT as u64, head);
    assert!(matches!(
        leaf_error(&introspector),
        ReadError::ListBroken { node, expected, .. } if node == head && expected == head
    ));
    image.poke(head + PREV as u64, head);
    let mut leaves = vec![Default::default()];
    introspector.leaf_cfs_rqs(&mut leaves).unwrap();
    assert_eq!(leaves, [], "an empty list is a list");
}

#[test]
fn a_wrong_prev_pointer_is_reported_with_both_values() {
    let (_guest, image, introspector) = after_20_ms();
    let head = head(&image);
    let last = image.read(head + PREV as u64);
    image.poke(last + PREV as u64, 0x1234u64);
    assert!(matches!(
        leaf_error(&introspector),
        ReadError::ListBroken { node, got: 0x1234, .. } if node == last
    ));
}

#[test]
fn a_list_entry_of_no_known_group_is_refused() {
    let (_guest, image, introspector) = after_20_ms();
    let inside = node(&image, 1) + 8;
    let beyond = node(&image, super::NR_GROUPS);
    for wild in [0, 0xdead_beef, u64::MAX, 1 << 63, inside, beyond] {
        image.poke(head(&image) + NEXT as u64, wild);
        assert_eq!(
            leaf_error(&introspector).to_string(),
            format!(
                "list_head.next of rq.leaf_cfs_rq_list is {wild:#x}, expected one of the 5 known \
                 cfs_rqs"
            )
        );
    }
}

#[test]
fn a_cfs_rq_of_another_group_is_refused() {
    let (_guest, image, introspector) = after_20_ms();
    image.poke(image.cfs_rq(2, offset_of!(CfsRq, tg)), image.task_group(1));
    let error = introspector.cfs_rq(2).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "cfs_rq.tg of the cfs_rq at {:#x} is {:#x}, expected {:#x}",
            image.cfs_rq(2, 0),
            image.task_group(1),
            image.task_group(2)
        )
    );
}

#[test]
fn a_group_index_that_the_guest_has_not_is_refused() {
    let (_guest, _image, introspector) = after_20_ms();
    for group in [5, 320, u16::MAX] {
        let error = ReadError::NoGroup { group, known: 5 };
        assert_eq!(introspector.cfs_rq(group), Err(error));
        assert_eq!(introspector.psi_group(group), Err(error));
    }
}

#[test]
fn a_wild_current_task_is_refused_with_its_address() {
    let (_guest, image, introspector) = after_20_ms();
    let curr = image.rq(offset_of!(Rq, curr));
    image.poke(curr, 0u64);
    let error = introspector.rq().unwrap_err();
    assert_eq!(error.to_string(), "rq.curr is a null pointer, expected a task_struct");
    for wild in [8, 0x7fff_ffff_f000, 0x8000_0000_0000, u64::MAX - 1] {
        image.poke(curr, wild);
        let error = introspector.rq().unwrap_err();
        assert_eq!(error.to_string(), format!("cannot read task_struct.pid at {wild:#x}"));
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains(&format!("{wild:#x}")), "{source}");
    }
}

#[test]
fn a_pid_beyond_the_kernels_limit_is_refused() {
    let (guest, image, introspector) = after_20_ms();
    let curr = guest.kernel.rq.curr;
    image.poke(curr, 4_194_304u32);
    assert_eq!(
        introspector.rq().unwrap_err().to_string(),
        format!(
            "task_struct.pid of the task_struct at {curr:#x} is 4194304, expected at most 4194303"
        )
    );
    image.poke(curr, 4_194_303u32);
    assert_eq!(introspector.rq().unwrap().curr_pid, 4_194_303);
}

#[test]
fn psi_state_in_the_middle_of_a_write_is_reported_after_bounded_reads() {
    let (guest, image, introspector) = after_20_ms();
    let odd = guest.kernel.psi_seq | 1;
    image.poke(image.base + offset_of!(Kernel, psi_seq) as u64, odd);
    let error = introspector.psi_group(1).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("a PSI group stayed inconsistent over 8 reads: psi_seq went from {odd} to {odd}")
    );
    assert!(matches!(
        introspector.snapshot(&mut Default::default()),
        Err(ReadError::Torn { reads: 8, .. })
    ));
    assert_eq!(introspector.rq().unwrap().psi_seq, odd, "the run queue's view shows it");
}

#[test]
fn pages_that_the_guest_unmaps_are_reported_by_member() {
    let (_guest, mut image, introspector) = after_20_ms();
    let va = image.cfs_rq(4, offset_of!(CfsRq, tg));
    let entry = image.tables.entry(va, 0);
    image.tables.put(entry, 0);
    let error = introspector.cfs_rq(4).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot read cfs_rq.tg at {va:#x}"));
}

#[test]
fn probe_arguments_that_the_kernel_cannot_have_passed_are_refused() {
    let (_guest, image, introspector) = after_20_ms();
    let task = image.task(2, 0);
    let rq = image.rq(0);
    let refusal = |number, args| introspector.decode(number, args).unwrap_err().to_string();
    assert_eq!(refusal(0, [0; 3]), "unknown probe 0");
    assert_eq!(refusal(255, [0; 3]), "unknown probe 255");
    assert_eq!(
        refusal(probe::UPDATE_RQ_CLOCK, [rq + 8, 0, 0]),
        format!("update_rq_clock() was called with rq {:#x}, expected {rq:#x}", rq + 8)
    );
    assert_eq!(
        refusal(probe::PSI_ACCOUNT_IRQTIME, [rq, 0, task]),
        "curr of psi_account_irqtime() is a null pointer, expected a task_struct"
    );
    assert_eq!(
        refusal(probe::PSI_TASK_SWITCH, [task, task, 2]),
        "psi_task_switch() was called with sleep 0x2, expected 0x1"
    );
    let between = image.cfs_rq(2, 8);
    assert_eq!(
        refusal(probe::CLEAR_TG_LOAD_AVG, [between, 0, 0]),
        format!(
            "cfs_rq of clear_tg_load_avg() is {between:#x}, expected one of the 5 known cfs_rqs"
        )
    );
    image.poke(image.task(2, offset_of!(Task, sched_task_group)), 0x77u64);
    assert_eq!(
        refusal(probe::PSI_TASK_CHANGE, [task, 0, 4]),
        "task_struct.sched_task_group is 0x77, expected one of the 5 known task_groups"
    );
}

#[test]
fn a_guests_text_is_read_across_pages() {
    let (_guest, image, introspector) = after_20_ms();
    let boundary = (image.base | 0xfff) + 1;
    let text = "firmware/src/main.rs";
    for (i, byte) in text.bytes().enumerate() {
        image.poke(boundary - 5 + i as u64, byte);
    }
    assert_eq!(introspector.panic_message(boundary - 5, text.len() as u64).unwrap(), text);
}

#[test]
fn a_guests_text_is_bounded_and_made_fit_for_a_terminal() {
    let (_guest, image, introspector) = after_20_ms();
    let at = image.task(100, 0);
    let put = |bytes: &[u8]| {
        image.tables.mem.write_slice(bytes, image.gpa(at)).unwrap();
        introspector.panic_message(at, bytes.len() as u64).unwrap()
    };
    assert_eq!(put(b"a\x1b[31m\n\x07'\\"), "a\\u{1b}[31m\\n\\u{7}'\\");
    assert_eq!(put(b"\xff\xc3"), "\u{fffd}\u{fffd}");
    assert_eq!(put("a\u{202e}b".as_bytes()), "a\\u{202e}b");
    assert_eq!(put(b""), "");
    for len in [513, 1 << 40, u64::MAX] {
        let text = introspector.panic_message(at, len).unwrap();
        assert!(text.ends_with("...") && text.len() < 512 * 10);
    }
}

#[test]
fn a_guests_text_that_runs_into_an_unmapped_page_ends_there() {
    let (_guest, image, introspector) = after_20_ms();
    let last = image.base + size_of::<Kernel>() as u64 - 1;
    let end = (last | 0xfff) + 1;
    image.poke(end - 1, b'x');
    assert_eq!(introspector.panic_message(end - 1, 10).unwrap(), "x...");
    let error = introspector.panic_message(end, 10).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot read 10 bytes of text at {end:#x}"));
    assert!(introspector.panic_message(1 << 63, u64::MAX).is_err());
}

#[test]
fn a_period_that_is_longer_than_one_is_refused_since_sums_are_divided_by_it() {
    let (_guest, image, introspector) = after_20_ms();
    // util_sum is the other half.
    let at = image.rq(offset_of!(Rq, avg_irq.util_sum));
    image.poke(at, u64::from(u32::MAX - 46_717) << 32);
    let error = introspector.rq().unwrap_err().to_string();
    assert!(error.contains("rq.avg_irq.period_contrib"), "{error}");
    assert!(error.ends_with("is 4294920578, expected at most 1023"), "{error}");
}
