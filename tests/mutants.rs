//! `rqscope mutants`.

use rqscope::mutants::MUTANTS;

use crate::host::virtual_machines;
use crate::program::rqscope;

#[test]
fn every_mutant_is_killed_on_the_model() {
    let done = rqscope(["mutants", "--guest", "model"]).ends_with(0).stdout;
    assert!(MUTANTS.len() >= 12);
    for m in MUTANTS {
        assert!(done.lines().any(|l| l.starts_with(m.name)), "{} in {done}", m.name);
    }
    assert_eq!(done.matches("killed by ").count(), MUTANTS.len(), "{done}");
    let n = MUTANTS.len();
    assert!(done.contains(&format!("{n} mutants, {n} killed, 0 survive")), "{done}");
    assert!(!done.contains("checks that catch no mutant"), "{done}");
}

#[test]
fn a_mutant_of_the_guest_and_one_of_the_host_are_killed_in_a_virtual_machine() {
    let Some(()) = virtual_machines() else { return };
    let args = ["mutants", "--guest=firmware", "steal_twice", "clock_page_torn"];
    let done = rqscope(args).ends_with(0).stdout;
    assert!(done.contains("2 mutants, 2 killed, 0 survive"), "{done}");
}
