//! Which address is which task group.

use thiserror::Error;

/// Where one group's structures are, guest virtual; of per-CPU structures, CPU 0's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupAddresses {
    /// Its `struct task_group`.
    pub task_group: u64,
    /// Its `struct cfs_rq`.
    pub cfs_rq: u64,
    /// Its `struct psi_group_cpu`.
    pub psi_group_cpu: u64,
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
    by_task_group: Vec<(u64, u16)>,
    by_cfs_rq: Vec<(u64, u16)>,
}

/// The largest index stands for "none" elsewhere.
const MAX: usize = u16::MAX as usize;

impl GroupTable {
    /// The groups in the order of their indices.
    pub fn new(groups: Vec<GroupAddresses>) -> Result<Self, GroupError> {
        if groups.is_empty() || groups.len() > MAX {
            return Err(GroupError::Count { got: groups.len(), max: MAX });
        }
        let by_task_group = by_address(&groups, "task_group", |g| g.task_group)?;
        let by_cfs_rq = by_address(&groups, "cfs_rq", |g| g.cfs_rq)?;
        by_address(&groups, "psi_group_cpu", |g| g.psi_group_cpu)?;
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
        find(&self.by_task_group, address)
    }

    /// Index of the group whose `cfs_rq` is at `address`.
    pub fn of_cfs_rq(&self, address: u64) -> Option<u16> {
        find(&self.by_cfs_rq, address)
    }
}

fn by_address(
    groups: &[GroupAddresses],
    structure: &'static str,
    address: impl Fn(&GroupAddresses) -> u64,
) -> Result<Vec<(u64, u16)>, GroupError> {
    let mut sorted: Vec<(u64, u16)> = groups.iter().map(address).zip(0..).collect();
    sorted.sort_unstable();
    for pair in sorted.windows(2) {
        let ((address, first), (next, second)) = (pair[0], pair[1]);
        if address == next {
            return Err(GroupError::Duplicate { structure, address, first, second });
        }
    }
    Ok(sorted)
}

fn find(sorted: &[(u64, u16)], address: u64) -> Option<u16> {
    let at = sorted.binary_search_by_key(&address, |&(a, _)| a).ok()?;
    Some(sorted[at].1)
}
