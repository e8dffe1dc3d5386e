use std::vec::Vec;

use proptest::prelude::*;

use crate::kernel::Kernel;
use crate::machine::{booted, broken_leaf_list};

fn leaves(k: &Kernel) -> Vec<usize> {
    std::iter::successors(k.leaf_first(), |cfs| k.leaf_next(*cfs)).collect()
}

/// Lists `cfs` and its ancestors bottom-up, as an enqueue does.
fn add(k: &mut Kernel, cfs: usize) {
    let mut cfs = Some(cfs as u16);
    while let Some(c) = cfs {
        k.list_add_leaf_cfs_rq(c as usize);
        cfs = k.parent_group(c);
    }
}

#[test]
fn an_empty_list_points_to_itself() {
    let (k, _) = booted(&[0], &[]);
    let head = super::addr(&k.rq.leaf_cfs_rq_list);
    assert_eq!((k.rq.leaf_cfs_rq_list.next, k.rq.leaf_cfs_rq_list.prev), (head, head));
    assert_eq!(leaves(&k), [0usize; 0]);
}

#[test]
fn a_first_branch_is_listed_from_the_leaf_to_the_root() {
    let (mut k, _) = booted(&[0, 1, 2], &[]);
    add(&mut k, 3);
    assert_eq!(leaves(&k), [3, 2, 1, 0]);
}

#[test]
fn a_child_of_a_listed_parent_goes_right_before_it() {
    let (mut k, _) = booted(&[0, 1, 1], &[]);
    add(&mut k, 2);
    add(&mut k, 3);
    assert_eq!(leaves(&k), [2, 3, 1, 0]);
}

#[test]
fn a_branch_starts_at_the_front_until_it_meets_a_listed_ancestor() {
    // Group 1 is listed with its child 2; 5 is below 4 below 3 below 1.
    let (mut k, _) = booted(&[0, 1, 1, 3, 4], &[]);
    add(&mut k, 2);
    add(&mut k, 5);
    assert_eq!(leaves(&k), [5, 4, 2, 3, 1, 0]);
}

#[test]
fn listing_and_removing_twice_changes_nothing() {
    let (mut k, _) = booted(&[0, 0], &[]);
    add(&mut k, 1);
    add(&mut k, 2);
    add(&mut k, 1);
    assert_eq!(leaves(&k), [1, 2, 0]);
    k.list_del_leaf_cfs_rq(1);
    k.list_del_leaf_cfs_rq(1);
    assert_eq!(leaves(&k), [2, 0]);
}

#[test]
fn a_branch_that_loses_its_end_goes_on_from_what_is_left() {
    let (mut k, _) = booted(&[0, 1], &[]);
    k.list_add_leaf_cfs_rq(2);
    k.list_del_leaf_cfs_rq(2);
    add(&mut k, 1);
    assert_eq!(leaves(&k), [1, 0]);
    assert_eq!(broken_leaf_list(&k), None);
}

proptest! {
    #[test]
    fn the_list_stays_whole_whatever_is_listed_and_decays(
        parents in proptest::collection::vec(any::<u16>(), 1..20),
        actions in proptest::collection::vec(any::<(u16, bool)>(), 1..100),
    ) {
        let parents: Vec<u16> = parents.iter().enumerate().map(|(i, p)| p % (i as u16 + 1)).collect();
        let (mut k, _) = booted(&parents, &[]);
        for (which, adds) in actions {
            let cfs = which as usize % (parents.len() + 1);
            // Only a cfs_rq without a listed child decays away.
            let holds = (0..k.nr_groups as usize)
                .any(|c| k.cfs_rqs[c].on_list != 0 && k.ses[c].cfs_rq as usize == cfs);
            if adds {
                add(&mut k, cfs);
            } else if !holds {
                k.list_del_leaf_cfs_rq(cfs);
            }
            prop_assert_eq!(broken_leaf_list(&k), None);
        }
    }
}
