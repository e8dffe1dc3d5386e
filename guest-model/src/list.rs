//! An intrusive circular list of guest addresses, shaped like the kernel's `struct list_head`, so
//! that the host walks it in this guest as it does in Linux.

/// `struct list_head`: guest virtual addresses of the neighbours' list heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ListHead {
    /// The next list head.
    pub next: u64,
    /// The previous list head.
    pub prev: u64,
}
