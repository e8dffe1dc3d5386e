//! The task groups that a Linux kernel has: its list `task_groups`, and the cgroups behind it.

use std::collections::HashMap;

use super::symbols::LinuxSymbols;
use crate::introspect::groups::{GroupAddresses, GroupTable};
use crate::introspect::introspector::printable;
use crate::introspect::layout::{Field, LayoutSource, Resolver};
use crate::introspect::places::{NO_GROUPS, PsiPlaces, SetupError, needs};
use crate::introspect::read::{ReadError, Reader};

/// Most groups that are looked at.
const MAX_GROUPS: usize = 4096;
/// Longest name of a cgroup, bytes: `NAME_MAX` of its directory.
const MAX_NAME: usize = 255;

/// Name of the list in errors.
const LIST: &str = "task_groups";

/// One task group of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundGroup {
    /// Path of its cgroup, `/` for the root; `/(no cgroup)` for one that has none, as autogroups have.
    pub path: String,
    /// Its parent's `struct task_group`; 0 for the root.
    pub parent: u64,
    /// Where it is.
    pub addresses: GroupAddresses,
}

/// The groups of a run: those that are wanted, then all others.
#[derive(Clone, Debug)]
pub struct Groups {
    /// Which address is which group.
    pub table: GroupTable,
    /// Path of each group's cgroup, by index.
    pub paths: Vec<String>,
    /// Index of each group's parent, which is less than its own; the root is its own.
    pub parents: Vec<u16>,
}

/// Where members are that lead from group to group.
struct Places {
    list: u64,
    next: Field<u64>,
    prev: Field<u64>,
    parent: Field<u64>,
    cfs_rq: Field<u64>,
    /// `cfs_rq` is an array of pointers by CPU; otherwise a per-CPU pointer.
    cfs_rq_is_array: bool,
    cgroup: Field<u64>,
    kn: Field<u64>,
    name: Field<u64>,
    psi: Option<PsiMembers>,
}

/// From a cgroup to its PSI state.
struct PsiMembers {
    psi: Field<u64>,
    pcpu: Field<u64>,
    system: u64,
}

impl Places {
    fn resolve(
        symbols: &LinuxSymbols,
        layout: &dyn LayoutSource,
        cfs_rq_is_array: bool,
    ) -> Result<Self, SetupError> {
        let r = &mut Resolver::new(layout);
        let psi = match PsiPlaces::resolve(symbols, layout, r)? {
            Ok(_) => Some(PsiMembers {
                psi: r.field("cgroup", "psi")?,
                pcpu: r.field("psi_group", "pcpu")?,
                system: symbols.find("psi_system")?,
            }),
            Err(_) => None,
        };
        Ok(Self {
            list: needs(NO_GROUPS, r.list_head("task_group", "list"))?,
            next: r.field("list_head", "next")?,
            prev: r.field("list_head", "prev")?,
            parent: r.field("task_group", "parent")?,
            cfs_rq: needs(NO_GROUPS, r.field("task_group", "cfs_rq"))?,
            cfs_rq_is_array,
            cgroup: r.field("task_group", "css.cgroup")?,
            kn: r.field("cgroup", "kn")?,
            name: r.field("kernfs_node", "name")?,
            psi,
        })
    }
}

/// Walks the guest's groups.
struct Walk<'a, 'm> {
    at: &'a mut Reader<'m>,
    places: Places,
    symbols: &'a LinuxSymbols,
}

/// All task groups that the guest has at this instant: the root first, parents before children.
///
/// `cfs_rq_is_array` says what `task_group.cfs_rq` is: an array of pointers by CPU, as until 7.1, or a
/// per-CPU pointer.
pub(super) fn discover(
    at: &mut Reader<'_>,
    symbols: &LinuxSymbols,
    layout: &dyn LayoutSource,
    cfs_rq_is_array: bool,
) -> Result<Vec<FoundGroup>, SetupError> {
    let places = Places::resolve(symbols, layout, cfs_rq_is_array)?;
    let (head, root) = (symbols.find(LIST)?, symbols.find("root_task_group")?);
    let mut walk = Walk { at, places, symbols };
    let listed = walk.list(head)?;

    // A group without a parent is the root; any other's parent is listed too.
    let mut known: HashMap<u64, (u64, String)> = HashMap::new();
    for &group in &listed {
        let parent = walk.at.get(group, &walk.places.parent)?;
        let name = if group == root { String::new() } else { walk.name(group)? };
        known.insert(group, (parent, name));
    }
    if !known.contains_key(&root) {
        let (holder, target) = ("root_task_group", "task_group");
        let known = known.len();
        return Err(ReadError::UnknownAddress { holder, target, address: root, known }.into());
    }
    let mut found = Vec::with_capacity(listed.len());
    for &group in &listed {
        let (path, depth) = path(&known, group, root)?;
        let parent = known.get(&group).map_or(0, |(parent, _)| *parent);
        let addresses = walk.addresses(group, group == root)?;
        found.push((depth, FoundGroup { path, parent, addresses }));
    }
    // The list has the newest first, which is what counts of two with one path.
    found.sort_by(|(a, x), (b, y)| (a, &x.path).cmp(&(b, &y.path)));
    Ok(found.into_iter().map(|(_, group)| group).collect())
}

/// The path of a group and its depth.
fn path(
    known: &HashMap<u64, (u64, String)>,
    group: u64,
    root: u64,
) -> Result<(String, usize), ReadError> {
    let mut names = Vec::new();
    let mut this = group;
    while this != root {
        let unknown = ReadError::UnknownAddress {
            holder: "task_group.parent",
            target: "task_group",
            address: this,
            known: known.len(),
        };
        let (parent, name) = known.get(&this).ok_or(unknown)?;
        names.push(name.as_str());
        // A chain longer than there are groups goes round in a circle.
        if names.len() > known.len() {
            return Err(ReadError::ListEndless {
                list: "task_group.parent",
                head: group,
                bound: known.len(),
            });
        }
        this = *parent;
    }
    let depth = names.len();
    names.push("");
    names.reverse();
    let path = names.join("/");
    Ok((if depth == 0 { "/".to_owned() } else { path }, depth))
}

impl Walk<'_, '_> {
    /// The addresses of the groups on the list.
    fn list(&mut self, head: u64) -> Result<Vec<u64>, ReadError> {
        let mut groups = Vec::new();
        let mut before = head;
        loop {
            let node = self.at.get(before, &self.places.next)?;
            let prev = self.at.get(node, &self.places.prev)?;
            if prev != before {
                let (list, expected) = (LIST, before);
                return Err(ReadError::ListBroken { list, node, expected, got: prev });
            }
            if node == head {
                return Ok(groups);
            }
            if groups.len() == MAX_GROUPS {
                return Err(ReadError::ListEndless { list: LIST, head, bound: MAX_GROUPS });
            }
            groups.push(node.wrapping_sub(self.places.list));
            before = node;
        }
    }

    /// Name of a group's cgroup.
    fn name(&mut self, group: u64) -> Result<String, ReadError> {
        let p = &self.places;
        let cgroup = self.at.get(group, &p.cgroup)?;
        if cgroup == 0 {
            return Ok("(no cgroup)".to_owned());
        }
        let kn = self.at.get(cgroup, &p.kn)?;
        let text = match kn {
            0 => return Err(ReadError::NullPointer { holder: "cgroup.kn", target: "kernfs_node" }),
            kn => self.at.get(kn, &p.name)?,
        };
        let mut name = Vec::new();
        while name.len() <= MAX_NAME {
            let address = text.wrapping_add(name.len() as u64);
            let byte: u8 = self.at.value(address).map_err(|source| ReadError::UnreadableText {
                address,
                len: MAX_NAME as u64,
                source,
            })?;
            if byte == 0 {
                return Ok(printable(&name));
            }
            name.push(byte);
        }
        Err(ReadError::TextEndless { what: "kernfs_node.name", address: text, limit: MAX_NAME })
    }

    /// Where CPU 0's structures of a group are.
    fn addresses(&mut self, group: u64, is_root: bool) -> Result<GroupAddresses, ReadError> {
        let p = &self.places;
        let pointer = self.at.get(group, &p.cfs_rq)?;
        let cfs_rq = match p.cfs_rq_is_array {
            true => self.at.pointer("task_group", "cfs_rq[0]", pointer)?,
            false => self.symbols.per_cpu_instance(pointer),
        };
        let psi_group_cpu = match &p.psi {
            None => None,
            Some(psi) => {
                let psi_group = match is_root {
                    true => psi.system,
                    false => {
                        let cgroup = self.at.get(group, &p.cgroup)?;
                        // A group without a cgroup of its own is in the root's.
                        if cgroup == 0 { 0 } else { self.at.get(cgroup, &psi.psi)? }
                    }
                };
                match psi_group {
                    0 => None,
                    psi_group => {
                        let pcpu = self.at.get(psi_group, &psi.pcpu)?;
                        Some(self.symbols.per_cpu_instance(pcpu))
                    }
                }
            }
        };
        Ok(GroupAddresses { task_group: group, cfs_rq, psi_group_cpu })
    }
}

impl Groups {
    /// Takes the root as index 0, then the groups of the paths in `wanted`, in that order, then
    /// whatever else was found. A wanted group's parent must come before it.
    pub fn new(found: &[FoundGroup], wanted: &[&str]) -> Result<Self, SetupError> {
        let no = |path: &str, known: String| SetupError::NoGroup { path: path.to_owned(), known };
        let root = found.first().ok_or(no("/", "it has none at all".to_owned()))?;
        let mut order = vec![root];
        for &path in wanted {
            let group =
                found.iter().find(|g| g.path == path && g.parent != 0).ok_or_else(|| {
                    let all: Vec<&str> = found.iter().take(16).map(|g| g.path.as_str()).collect();
                    let more = if found.len() > 16 { ", ..." } else { "" };
                    no(path, format!("it has {}{more}", all.join(", ")))
                })?;
            if !order.iter().any(|g| g.addresses.task_group == group.parent) {
                let why = "its parent does not come before it".to_owned();
                return Err(no(path, why));
            }
            order.push(group);
        }
        for group in found {
            if !order.iter().any(|g| g.addresses == group.addresses) {
                order.push(group);
            }
        }
        let index = |address| order.iter().position(|g| g.addresses.task_group == address);
        let parents = order.iter().map(|g| index(g.parent).unwrap_or(0) as u16).collect();
        let table = GroupTable::new(order.iter().map(|g| g.addresses).collect())?;
        let paths = order.iter().map(|g| g.path.clone()).collect();
        Ok(Self { table, paths, parents })
    }
}
