//! `rq->leaf_cfs_rq_list`: an intrusive circular list of guest addresses, shaped like the kernel's
//! `struct list_head`, so that the host walks it in this guest as it does in Linux.

use core::mem::offset_of;

use zerocopy::FromZeros;

use crate::fair::CfsRq;
use crate::kernel::{Kernel, addr};
use crate::policy::Fault;
use crate::wire::NONE;

/// `struct list_head`: guest virtual addresses of the neighbours' list heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(C)]
pub struct ListHead {
    /// The next list head.
    pub next: u64,
    /// The previous list head.
    pub prev: u64,
}

impl Kernel {
    pub(crate) fn init_leaf_list(&mut self) {
        let head = addr(&self.rq.leaf_cfs_rq_list);
        self.rq.leaf_cfs_rq_list = ListHead { next: head, prev: head };
        self.rq.tmp_alone_branch = head;
    }

    /// The cfs_rq whose list head is at `node`, or `None` at the end of the list.
    fn leaf_at(&self, node: u64) -> Option<usize> {
        if node == addr(&self.rq.leaf_cfs_rq_list) {
            return None;
        }
        let first = addr(&self.cfs_rqs) + offset_of!(CfsRq, leaf_cfs_rq_list) as u64;
        Some((node.wrapping_sub(first) / size_of::<CfsRq>() as u64) as usize)
    }

    fn leaf_mut(&mut self, node: u64) -> &mut ListHead {
        match self.leaf_at(node) {
            None => &mut self.rq.leaf_cfs_rq_list,
            Some(cfs) => &mut self.cfs_rqs[cfs].leaf_cfs_rq_list,
        }
    }

    /// The first leaf cfs_rq.
    pub fn leaf_first(&self) -> Option<usize> {
        self.leaf_at(self.rq.leaf_cfs_rq_list.next)
    }

    /// The leaf cfs_rq after `cfs`.
    pub fn leaf_next(&self, cfs: usize) -> Option<usize> {
        self.leaf_at(self.cfs_rqs[cfs].leaf_cfs_rq_list.next)
    }

    /// The leaf cfs_rq before `cfs`.
    pub(crate) fn leaf_prev(&self, cfs: usize) -> Option<usize> {
        self.leaf_at(self.cfs_rqs[cfs].leaf_cfs_rq_list.prev)
    }

    /// `list_add_leaf_cfs_rq()`: lists `cfs`, children before parents.
    ///
    /// Called bottom-up, as entities are enqueued. A cfs_rq goes right before its parent, and the
    /// root to the end. A branch whose parent is not listed yet grows at the front, from
    /// `tmp_alone_branch`, until it meets a listed parent.
    pub(crate) fn list_add_leaf_cfs_rq(&mut self, cfs: usize) {
        if self.cfs_rqs[cfs].on_list != 0 {
            return;
        }
        let head = addr(&self.rq.leaf_cfs_rq_list);
        let before = match self.ses[cfs].cfs_rq {
            NONE => head,
            _ if self.planted(Fault::LeafListOrder) => head,
            p if self.cfs_rqs[p as usize].on_list != 0 => {
                addr(&self.cfs_rqs[p as usize].leaf_cfs_rq_list)
            }
            _ => {
                let after = self.rq.tmp_alone_branch;
                let next = self.leaf_mut(after).next;
                self.insert_before(next, cfs);
                self.rq.tmp_alone_branch = addr(&self.cfs_rqs[cfs].leaf_cfs_rq_list);
                return;
            }
        };
        self.insert_before(before, cfs);
        self.rq.tmp_alone_branch = head;
    }

    fn insert_before(&mut self, before: u64, cfs: usize) {
        let node = addr(&self.cfs_rqs[cfs].leaf_cfs_rq_list);
        let prev = core::mem::replace(&mut self.leaf_mut(before).prev, node);
        self.leaf_mut(prev).next = node;
        self.cfs_rqs[cfs].leaf_cfs_rq_list = ListHead { next: before, prev };
        self.cfs_rqs[cfs].on_list = 1;
    }

    /// `list_del_leaf_cfs_rq()`.
    pub(crate) fn list_del_leaf_cfs_rq(&mut self, cfs: usize) {
        if self.cfs_rqs[cfs].on_list == 0 {
            return;
        }
        let ListHead { next, prev } = self.cfs_rqs[cfs].leaf_cfs_rq_list;
        if self.rq.tmp_alone_branch == addr(&self.cfs_rqs[cfs].leaf_cfs_rq_list) {
            self.rq.tmp_alone_branch = prev;
        }
        self.leaf_mut(prev).next = next;
        self.leaf_mut(next).prev = prev;
        self.cfs_rqs[cfs].on_list = 0;
    }
}

#[cfg(test)]
mod tests;
