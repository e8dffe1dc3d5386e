//! Whole-program tests: the `rqscope` program as a user runs it, the bundled guest on a real KVM, and
//! guests and files that mean no good.
//!
//! One binary, so that it links once. A test that needs a KVM, root or a terminal where there is none
//! prints `skipped` with the reason; with `RQSCOPE_REQUIRE_KVM=1` a test that needs KVM fails instead.
//! `linux` has the same for those that need a KVM that runs Linux and kernels to run there.

mod host;
mod image;
mod program;

mod broken_files;
mod bundled_guest;
mod compare;
mod exit_codes;
mod field_cases;
mod grid;
mod hostile_guests;
mod instructions;
mod interrupted;
mod linux;
mod memory;
mod mutants;
mod no_kvm;
mod out_directory;
mod readme;
mod repeatability;
mod scenarios;
mod terminal;
mod trace_format;
mod vcpu;
