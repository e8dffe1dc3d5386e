//! A layout in which one member lies elsewhere (bcc#4602): noticed, or named here as one that cannot
//! be at once.

use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::introspect::layout::{LayoutError, LayoutSource, Member};
use crate::introspect::linux::groups::{Groups, discover};
use crate::introspect::linux::{Linux, SetupError};
use crate::introspect::{Introspector, Snapshot};

type Name = (&'static str, &'static str);

/// A layout that remembers what it was asked for, and moves one member.
struct Shifted<'l> {
    layout: &'l dyn LayoutSource,
    moved: Option<Name>,
    by: i64,
    asked: RefCell<BTreeSet<Name>>,
}

impl LayoutSource for Shifted<'_> {
    fn has_struct(&self, structure: &'static str) -> bool {
        self.layout.has_struct(structure)
    }

    fn size(&self, structure: &'static str) -> Result<u64, LayoutError> {
        self.layout.size(structure)
    }

    fn member(&self, structure: &'static str, path: &'static str) -> Result<Member, LayoutError> {
        let member = self.layout.member(structure, path)?;
        self.asked.borrow_mut().insert((structure, path));
        let by = if self.moved == Some((structure, path)) { self.by } else { 0 };
        Ok(Member { offset: member.offset.wrapping_add_signed(by), ..member })
    }

    fn enumerator(
        &self,
        enumeration: &'static str,
        name: &'static str,
    ) -> Result<u64, LayoutError> {
        self.layout.enumerator(enumeration, name)
    }
}

/// What a run does before it begins, with this layout.
fn ready(linux: &Linux, layout: &dyn LayoutSource, now_ns: u64) -> Result<(), SetupError> {
    let is_array = linux.layout.pointers("task_group", "cfs_rq")? == 2;
    let found = discover(&mut linux.reader(), &linux.symbols, layout, is_array)?;
    let groups = Groups::new(&found, &["/a", "/a/b", "/c"])?;
    let mem = linux.mem.clone();
    let introspector = Introspector::new(mem, linux.space, &linux.symbols, layout, groups.table)?;
    introspector.sanity_at_rest(now_ns)?;
    introspector.snapshot(&mut Snapshot::default())?;
    Ok(())
}

/// The members of which a shift by 8 bytes, one way or the other, goes unnoticed.
pub fn missed(linux: &Linux, now_ns: u64) -> Vec<(Name, i64)> {
    let shifted =
        |moved, by| Shifted { layout: &linux.layout, moved, by, asked: RefCell::default() };
    let right = shifted(None, 0);
    ready(linux, &right, now_ns).unwrap();
    let asked = right.asked.into_inner();
    let tries = asked.iter().flat_map(|name| [(*name, 8), (*name, -8)]);
    tries.filter(|(name, by)| ready(linux, &shifted(Some(*name), *by), now_ns).is_ok()).collect()
}
