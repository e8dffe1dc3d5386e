//! Groups of a guest that is what it says, and of one that lies.

use crate::introspect::linux::tests::fake::Fake;
use crate::introspect::linux::tests::shapes::Build;
use crate::introspect::linux::{FoundGroup, Linux};

const BUILDS: [Build; 2] = [Build::Old, Build::New];

fn paths(linux: &Linux) -> Vec<String> {
    linux.found_groups().unwrap().into_iter().map(|group| group.path).collect()
}

fn refusal(fake: &Fake) -> String {
    fake.find().found_groups().unwrap_err().to_string()
}

/// Offset of the `list_head` by which a group is on the list.
fn list(fake: &Fake) -> u64 {
    fake.offset("task_group", "list")
}

#[test]
fn groups_are_found_with_the_root_first_and_parents_before_children() {
    for build in BUILDS {
        let fake = Fake::new(build, 6 << 20);
        let found = fake.find().found_groups().unwrap();
        let paths: Vec<_> = found.iter().map(|g| g.path.as_str()).collect();
        assert_eq!(paths, ["/", "/a", "/c", "/a/b"]);
        for (FoundGroup { addresses, .. }, group) in found.iter().zip([0, 1, 3, 2]) {
            let group = fake.groups[group];
            assert_eq!(addresses.task_group, group.task_group);
            assert_eq!(addresses.cfs_rq, group.cfs_rq);
            assert_eq!(addresses.psi_group_cpu, Some(group.psi_group_cpu));
        }
    }
}

#[test]
fn wanted_groups_come_in_the_order_in_which_they_are_wanted_and_others_after_them() {
    let fake = Fake::new(Build::New, 0);
    let linux = fake.find();
    let groups = linux.groups(&["/c", "/a"]).unwrap();
    assert_eq!(groups.paths, ["/", "/c", "/a", "/a/b"]);
    assert_eq!(groups.parents, [0, 0, 0, 2]);
    assert_eq!(groups.table.of_cfs_rq(fake.groups[3].cfs_rq), Some(1));
    let groups = linux.groups(&[]).unwrap();
    assert_eq!(groups.paths, ["/", "/a", "/c", "/a/b"]);
}

#[test]
fn a_wanted_group_that_is_not_there_is_named_with_those_that_are() {
    let fake = Fake::new(Build::New, 0);
    let linux = fake.find();
    let refusal = |wanted: &[&str]| linux.groups(wanted).unwrap_err().to_string();
    let all = "it has /, /a, /c, /a/b";
    assert_eq!(refusal(&["/a", "/d"]), format!("the guest has no task group /d: {all}"));
    assert_eq!(refusal(&["/"]), format!("the guest has no task group /: {all}"));
    assert_eq!(
        refusal(&["/a/b", "/a"]),
        "the guest has no task group /a/b: its parent does not come before it"
    );
}

#[test]
fn of_two_groups_of_one_path_the_newer_is_wanted() {
    let fake = Fake::new(Build::New, 0);
    fake.poke(fake.groups[3].name, b"a\0");
    let groups = fake.find().groups(&["/a"]).unwrap();
    assert_eq!(groups.paths, ["/", "/a", "/a", "/a/b"]);
    assert_eq!(groups.table.of_task_group(fake.groups[3].task_group), Some(1));
    assert_eq!(groups.parents, [0, 0, 0, 2]);
}

#[test]
fn a_group_without_a_cgroup_has_no_name_and_no_psi() {
    let fake = Fake::new(Build::New, 0);
    fake.set("task_group", "css.cgroup", fake.groups[3].task_group, 0);
    let linux = fake.find();
    assert_eq!(paths(&linux), ["/", "/(no cgroup)", "/a", "/a/b"]);
    let groups = linux.groups(&["/a", "/a/b"]).unwrap();
    let introspector = linux.introspector(groups.table).unwrap();
    introspector.sanity_at_rest(super::fake::NOW_NS).unwrap();
}

#[test]
fn names_are_hostile_text() {
    let fake = Fake::new(Build::New, 0);
    let text = fake.groups[3].name;
    fake.poke(text, b"\x1b[31m\n\xff\0");
    assert_eq!(paths(&fake.find())[1], "/\\u{1b}[31m\\n\u{fffd}");
    fake.poke(text, &[b'x'; 256]);
    assert_eq!(
        refusal(&fake),
        format!("kernfs_node.name at {text:#x} does not end after 255 bytes")
    );
    fake.poke(text + 255, b"\0");
    assert_eq!(paths(&fake.find())[2].len(), 256);
    for wild in [0x10, 1 << 63, u64::MAX - 3] {
        fake.set("kernfs_node", "name", fake.groups[3].kn, wild);
        assert_eq!(refusal(&fake), format!("cannot read 255 bytes of text at {wild:#x}"));
    }
}

#[test]
fn pointers_that_lead_nowhere_are_named() {
    for build in BUILDS {
        let fake = Fake::new(build, 0);
        let group = fake.groups[2];
        fake.set("cgroup", "kn", group.cgroup, 0);
        assert_eq!(refusal(&fake), "cgroup.kn is a null pointer, expected a kernfs_node");
        fake.set("cgroup", "kn", group.cgroup, 0x1000);
        assert!(refusal(&fake).starts_with("cannot read kernfs_node.name at 0x"));
        fake.set("cgroup", "kn", group.cgroup, group.kn);
        fake.set("cgroup", "psi", group.cgroup, 0x1000);
        assert!(refusal(&fake).starts_with("cannot read psi_group.pcpu at 0x"));
        fake.set("task_group", "css.cgroup", group.task_group, 0x2000);
        assert!(refusal(&fake).starts_with("cannot read cgroup.kn at 0x"));
    }
    let fake = Fake::new(Build::Old, 0);
    fake.set("task_group", "cfs_rq", fake.groups[1].task_group, 0);
    assert_eq!(refusal(&fake), "cannot read task_group.cfs_rq[0] at 0x0");
}

#[test]
fn parents_that_go_round_or_are_unknown_are_refused() {
    let fake = Fake::new(Build::New, 0);
    let (a, b) = (fake.groups[1].task_group, fake.groups[2].task_group);
    fake.set("task_group", "parent", a, b);
    let error = refusal(&fake);
    assert!(error.starts_with("task_group.parent does not end after 4 entries"), "{error}");
    fake.set("task_group", "parent", a, 0xdead);
    assert_eq!(
        refusal(&fake),
        "task_group.parent is 0xdead, expected one of the 4 known task_groups"
    );
}

#[test]
fn a_list_of_groups_that_is_broken_or_has_no_root_is_refused() {
    let fake = Fake::new(Build::New, 0);
    let head = fake.variable("task_groups");
    let node = |i: usize| fake.groups[i].task_group + list(&fake);
    fake.poke_u64(node(1), node(3));
    let error = refusal(&fake);
    assert!(error.starts_with("task_groups: prev of the list_head at 0x"), "{error}");
    fake.link(head, &[node(3), node(1)]);
    let error = refusal(&fake);
    assert!(error.starts_with("task_group.parent is 0x") || error.starts_with("root_task_group"));
    fake.link(head, &[]);
    assert!(refusal(&fake).starts_with("root_task_group is 0x"));
    fake.poke_u64(head, 0);
    assert_eq!(refusal(&fake), "cannot read list_head.prev at 0x8");
}

#[test]
fn a_list_of_more_groups_than_are_looked_at_ends() {
    let fake = Fake::new(Build::New, 0);
    let head = fake.variable("task_groups");
    // Every 16 bytes a node; what they are the lists of does not matter yet.
    let start = fake.groups[3].name + 0x1000;
    let nodes: Vec<u64> = (0..4097).map(|i| start + i * 16).collect();
    fake.link(head, &nodes);
    assert_eq!(
        refusal(&fake),
        format!("task_groups does not end after 4096 entries, expected its head at {head:#x}")
    );
}
