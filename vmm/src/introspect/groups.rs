//! Which address is which task group.

use thiserror::Error;

/// Where one group's structures are, guest virtual; of per-CPU structures, CPU 0's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupAddresses {
    /// Its `struct task_group`.
    pub task_group: u64,
    /// Its `struct cfs_rq`.
    pub cfs_rq: u64,
    /// Its `struct psi_group_cpu`; `None` in a kernel without PSI.
    pub psi_group_cpu: Option<u64>,
}

/// Why the groups' addresses make no table.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum GroupError {
    /// No group, or more than a 16-bit index can name.
    #[error("cannot index {got} task groups, expected 1 to {max}")]
    Count {
        /// Number of groups.
        got: usize,
        /// Most groups.
        max: usize,
    },
    /// Two groups at one address.
    #[error("groups {first} and {second} have the same {structure} at {address:#x}")]
    Duplicate {
        /// The structure.
        structure: &'static str,
        /// Its address.
        address: u64,
        /// One group.
        first: u16,
        /// The other.
        second: u16,
    },
}

/// Every group that the guest is known to have, by index and by address. Index 0 is the root.
#[derive(Clone, Debug)]
pub struct GroupTable {
    groups: Vec<GroupAddresses>,
    by_task_group: Index,
    by_cfs_rq: Index,
}

/// The largest index stands for "none" elsewhere.
const MAX: usize = u16::MAX as usize;

impl GroupTable {
    /// The groups in the order of their indices.
    pub fn new(groups: Vec<GroupAddresses>) -> Result<Self, GroupError> {
        if groups.is_empty() || groups.len() > MAX {
            return Err(GroupError::Count { got: groups.len(), max: MAX });
        }
        let by_task_group = Index::new(&groups, "task_group", |g| Some(g.task_group))?;
        let by_cfs_rq = Index::new(&groups, "cfs_rq", |g| Some(g.cfs_rq))?;
        Index::new(&groups, "psi_group_cpu", |g| g.psi_group_cpu)?;
        Ok(Self { groups, by_task_group, by_cfs_rq })
    }

    /// Number of groups, the root included.
    #[expect(clippy::len_without_is_empty, reason = "a table always has the root")]
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// The addresses of the group with that index.
    pub fn get(&self, group: u16) -> Option<GroupAddresses> {
        self.groups.get(usize::from(group)).copied()
    }

    /// Index of the group whose `task_group` is at `address`.
    pub fn of_task_group(&self, address: u64) -> Option<u16> {
        self.by_task_group.find(address)
    }

    /// Index of the group whose `cfs_rq` is at `address`.
    pub fn of_cfs_rq(&self, address: u64) -> Option<u16> {
        self.by_cfs_rq.find(address)
    }
}

/// From address to group: open addressing, at most half full. A lookup stands in the path of each
/// probe hit and of each list entry, where a binary search costs more than the reads themselves.
#[derive(Clone, Debug)]
struct Index {
    slots: Vec<(u64, u16)>,
    shift: u32,
}

/// A free slot; no group has this index.
const FREE: u16 = u16::MAX;

impl Index {
    fn new(
        groups: &[GroupAddresses],
        structure: &'static str,
        address: impl Fn(&GroupAddresses) -> Option<u64>,
    ) -> Result<Self, GroupError> {
        let bits = (groups.len() * 2).next_power_of_two().ilog2();
        let mut index = Self { slots: vec![(0, FREE); 1 << bits], shift: 64 - bits };
        for (group, second) in groups.iter().zip(0..) {
            let Some(address) = address(group) else { continue };
            let slot = index.slot(address);
            match index.slots[slot] {
                (_, FREE) => index.slots[slot] = (address, second),
                (_, first) => {
                    return Err(GroupError::Duplicate { structure, address, first, second });
                }
            }
        }
        Ok(index)
    }

    /// The slot that holds `address`, or the free one where the search for it ends.
    #[inline]
    fn slot(&self, address: u64) -> usize {
        // Fibonacci hashing (Knuth, TAOCP volume 3, section 6.4): 2^64 over the golden ratio.
        let mut slot = (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize;
        while let (other, group) = self.slots[slot]
            && group != FREE
            && other != address
        {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        slot
    }

    #[inline]
    fn find(&self, address: u64) -> Option<u16> {
        match self.slots[self.slot(address)] {
            (_, FREE) => None,
            (_, group) => Some(group),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(addresses: impl IntoIterator<Item = u64>) -> Vec<GroupAddresses> {
        let group = |a| GroupAddresses { task_group: a, cfs_rq: !a, psi_group_cpu: Some(a) };
        addresses.into_iter().map(group).collect()
    }

    #[test]
    fn every_group_is_found_by_its_addresses_and_nothing_else_is() {
        for len in [1u64, 2, 3, 320, 65_535] {
            // Spaced as an array, as slab objects, and without order.
            for stride in [40, 4096, 0x9e37_79b9_7f4a_7c15] {
                let at = |i: u64| 0xffff_8880_0000_0000u64.wrapping_add(i.wrapping_mul(stride));
                let table = GroupTable::new(groups((0..len).map(at))).unwrap();
                assert_eq!(table.len() as u64, len);
                for i in 0..len {
                    assert_eq!(table.of_task_group(at(i)), Some(i as u16));
                    assert_eq!(table.of_cfs_rq(!at(i)), Some(i as u16));
                    assert_eq!(table.of_task_group(at(i) + 1), None);
                }
                for address in [0, 1, u64::MAX, at(len)] {
                    assert_eq!(table.of_task_group(address), None);
                }
            }
        }
    }

    #[test]
    fn a_group_at_address_zero_is_found_only_if_there_is_one() {
        assert_eq!(GroupTable::new(groups([8])).unwrap().of_task_group(0), None);
        assert_eq!(GroupTable::new(groups([8, 0])).unwrap().of_task_group(0), Some(1));
    }

    #[test]
    fn two_groups_at_one_address_are_refused_by_name() {
        let error = GroupTable::new(groups([8, 16, 8])).unwrap_err();
        assert_eq!(error.to_string(), "groups 0 and 2 have the same task_group at 0x8");
    }

    #[test]
    fn no_group_and_too_many_groups_are_refused() {
        let error = GroupTable::new(Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "cannot index 0 task groups, expected 1 to 65535");
        assert!(GroupTable::new(groups(0..65_536)).is_err());
    }
}
