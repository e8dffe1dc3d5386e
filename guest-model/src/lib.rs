//! The Linux scheduler's clock, IRQ, steal, PELT and PSI accounting rules, under the kernel's own
//! names, and the small kernel around them that the bundled guest runs.
//!
//! Pure: no unsafe, no I/O, no floating point, no allocation. Time and everything else of the
//! machine comes through [`hardware::Hardware`]. Rules follow Linux 6.12 to 7.3; where versions
//! differ, the difference is a [`policy::Policy`].
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod cputime;
pub mod draw;
pub mod fair;
pub mod hardware;
pub mod kernel;
pub mod list;
pub mod load_avg;
pub mod pelt;
pub mod policy;
pub mod psi;
pub mod rq;
pub mod softirq;
pub mod tg;
pub mod timer;
pub mod wire;

#[cfg(test)]
mod machine;
