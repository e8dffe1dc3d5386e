//! The rqscope library.

pub mod scenario;
pub mod schedule;
