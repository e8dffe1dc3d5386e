//! Reads a guest's run queue from outside, while the guest stands still.
//!
//! A [`symbols::SymbolSource`] says where the kernel's variables are, a [`layout::LayoutSource`] where
//! members are in its structures, a [`groups::GroupTable`] which address is which task group. All
//! names are resolved once, by [`Introspector::new`]; after that, a read is a page-table walk and a
//! load. Everything read is the guest's to forge: each walk is bounded, each pointer is checked
//! against what is known, and a failure says what was read, where, what was expected and what came.
//!
//! Introspection knows the names of the kernel's structures, never the rules that change them: only
//! [`bundled`] imports the guest model, for its types' layout.

pub mod bundled;
pub mod groups;
mod introspector;
pub mod layout;
pub mod linux;
mod places;
mod probe;
mod read;
mod sanity;
pub mod symbols;
#[cfg(test)]
mod tests;
pub mod translate;
pub mod user;

pub use introspector::{Introspector, Snapshot};
pub use places::{Lacks, SetupError};
pub use probe::{Function, LoadFunction};
pub use read::ReadError;
