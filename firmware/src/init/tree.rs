//! The plan's groups as cgroups.
//!
//! Every group is *threaded* (Documentation/admin-guide/cgroup-v2.rst): in such a subtree, inner groups
//! may hold tasks beside their child groups, as scenarios have it. To the scheduler a group is the same
//! either way.

use core::ffi::CStr;
use core::fmt;

use guest_model::wire::linux::MAX_GROUPS;
use guest_model::wire::linux::{Group, Plan};

use crate::report::{Message, OrFail};
use crate::setup::CGROUP;
use crate::syscall::{self, CWD, Errno, Fd, O_DIRECTORY, O_RDONLY, O_WRONLY};

/// Builds the groups of a valid plan; answers their directories, the root's first.
pub fn build(plan: &Plan) -> [Fd; MAX_GROUPS] {
    let mut dirs = [Fd(-1); MAX_GROUPS];
    let mut has_children = [false; MAX_GROUPS];
    dirs[0] = syscall::open(CWD, CGROUP, O_RDONLY | O_DIRECTORY)
        .or_fail(format_args!("open /sys/fs/cgroup"), "");
    for (i, group) in plan.groups[..plan.nr_groups.into()].iter().enumerate().skip(1) {
        let parent = usize::from(group.parent);
        if !core::mem::replace(&mut has_children[parent], true) {
            set(dirs[parent], c"cgroup.subtree_control", b"+cpu").or_fail(
                format_args!("give the children of group {parent} the cpu controller"),
                "are CONFIG_CGROUP_SCHED and CONFIG_FAIR_GROUP_SCHED on?",
            );
        }
        let name = CStr::from_bytes_until_nul(&group.name).unwrap_or(c"");
        syscall::mkdir(dirs[parent], name).or_fail(
            format_args!("make group {i}, `{}`", Name(group)),
            "cgroup v2 has files with names such as `cpu.weight`, which no group can have",
        );
        dirs[i] = syscall::open(dirs[parent], name, O_RDONLY | O_DIRECTORY)
            .or_fail(format_args!("open group {i}, `{}`", Name(group)), "");
        set(dirs[i], c"cgroup.type", b"threaded")
            .or_fail(format_args!("make group {i}, `{}`, threaded", Name(group)), "");
        let weight = Message::new(format_args!("{}", group.weight));
        set(dirs[i], c"cpu.weight", weight.bytes()).or_fail(
            format_args!("give group {i}, `{}`, its weight", Name(group)),
            "is CONFIG_FAIR_GROUP_SCHED on?",
        );
    }
    dirs
}

/// Writes a file of a group.
fn set(group: Fd, file: &CStr, value: &[u8]) -> Result<(), Errno> {
    let file = syscall::open(group, file, O_WRONLY)?;
    let written = syscall::write(file, value);
    syscall::close(file);
    written.map(drop)
}

/// A group's name.
struct Name<'a>(&'a Group);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.name().and_then(|n| core::str::from_utf8(n).ok());
        f.write_str(name.unwrap_or("?"))
    }
}
