//! Random guests: no read panics, and each ends.

use std::sync::LazyLock;

use guest_model::kernel::Kernel;
use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::{DATA, Guest, Image, NR_GROUPS, PageTables};
use crate::introspect::bundled::{BundledLayout, BundledSymbols};
use crate::introspect::translate::{AddressSpace, Depth};
use crate::introspect::{Introspector, Snapshot};
use crate::view::GuestView;

/// Every read there is. What comes back does not matter; that it comes back does.
fn read_all(introspector: &Introspector, args: [u64; 3]) {
    let _ = introspector.rq();
    let mut leaves = Vec::new();
    let _ = introspector.leaf_cfs_rqs(&mut leaves);
    assert!(leaves.len() <= NR_GROUPS);
    for group in 0..=NR_GROUPS as u16 {
        let _ = introspector.cfs_rq(group);
        let _ = introspector.psi_group(group);
    }
    let _ = introspector.costs();
    let _ = introspector.snapshot(&mut Snapshot::default());
    let _ = introspector.sanity(args[0]);
    for number in 0..=8 {
        let _ = introspector.decode(number, args);
    }
    let _ = introspector.panic_message(args[0], args[1]);
}

static GUEST: LazyLock<Guest> = LazyLock::new(|| Guest::run(20_000_000));

/// Values that mean something to a walk, and any value.
fn word() -> impl Strategy<Value = u64> {
    let base = core::ptr::from_ref::<Kernel>(&GUEST.kernel) as u64;
    prop_oneof![
        any::<u64>(),
        (0..size_of::<Kernel>() as u64).prop_map(move |offset| base + offset / 8 * 8),
        (0u64..0x400, any::<u16>()).prop_map(|(frame, flags)| {
            frame << 12 | u64::from(flags & 0xfff) | u64::from(flags >> 15) << 63 | 1
        }),
        Just(0),
        Just(u64::MAX),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_memory_is_read_without_a_panic(
        words in prop::collection::vec(word(), 512 * 2),
        cr3 in word(),
        base in word(),
        five in any::<bool>(),
        args in prop::array::uniform3(word()),
    ) {
        let tables = PageTables::new(2 << 12);
        for (i, word) in words.iter().enumerate() {
            tables.mem.write_obj(word & 0xffff_ffff_ffff_1fff, GuestAddress(i as u64 * 8)).unwrap();
        }
        let depth = if five { Depth::Five } else { Depth::Four };
        let symbols = BundledSymbols::at(base);
        let groups = symbols.groups(NR_GROUPS).unwrap();
        let space = AddressSpace::new(cr3 & 0x1fff, depth);
        let introspector =
            Introspector::new(tables.mem, space, &symbols, &BundledLayout, groups).unwrap();
        read_all(&introspector, args);
    }

    #[test]
    fn a_guest_with_random_words_overwritten_is_read_without_a_panic(
        kernel_words in prop::collection::vec((0..size_of::<Kernel>() as u64 / 8, word()), 0..64),
        table_words in prop::collection::vec((0x1000 / 8..0x8000 / 8u64, word()), 0..16),
        args in prop::array::uniform3(word()),
    ) {
        let image = Image::of(&GUEST.kernel);
        for (index, word) in kernel_words {
            image.poke(image.base + index * 8, word);
        }
        for (index, word) in table_words {
            image.tables.put(index * 8, word);
        }
        // The frames of the kernel are elsewhere, so the tables were what was overwritten.
        prop_assert!(image.tables.next_free <= DATA);
        read_all(&image.introspector(), args);
    }
}
