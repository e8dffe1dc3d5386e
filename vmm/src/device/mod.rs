//! A PC's devices as pure state machines: what a Linux guest needs to boot, and what injects into it.
//!
//! No descriptor, no thread, no host clock: each is handed the time and the guest's memory, and says
//! by what it returns which interrupt or event follows. So a unit test drives them as the kernel's
//! drivers do, and each is plain data that [`State`] saves.
pub mod legacy;
pub mod pic;
pub mod pit;
pub mod serial;
pub mod state;
pub mod virtio;

pub use state::{State, StateError};
