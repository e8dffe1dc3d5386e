//! The Linux scheduler's accounting rules, under the kernel's own names.
#![no_std]
#![forbid(unsafe_code)]
#[cfg(test)]
extern crate std;
pub mod policy;
pub mod wire;
