//! rqscope: owns a guest's time, injects interrupts and steal, reads the guest's run queue from
//! outside and judges its clock accounting.
pub mod app;
pub mod boot;
pub mod check;
pub mod cli;
pub mod clock;
pub mod device;
pub mod elf;
pub mod engine;
pub mod firmware;
pub mod guest;
pub mod initramfs;
pub mod introspect;
pub mod kvm;
pub mod ledger;
pub mod machine;
pub mod model;
pub mod mutants;
pub mod observe;
pub mod report;
pub mod run;
pub mod scenario;
pub mod schedule;
pub mod session;
pub mod supervise;
pub mod trace;
pub mod view;
