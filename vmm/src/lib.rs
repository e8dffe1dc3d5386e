//! rqscope: owns a guest's time, injects interrupts and steal, reads the guest's run queue from
//! outside and judges its clock accounting.
pub mod scenario;
pub mod schedule;
pub mod view;
