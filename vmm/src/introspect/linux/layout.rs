//! The layout of a Linux kernel's structures, from its BTF.

use std::cell::RefCell;
use std::collections::HashMap;

use super::btf::{Btf, BtfError, Found};
use crate::introspect::layout::{LayoutError, LayoutSource, Member};

/// A kernel's types as a source of layout.
///
/// A name that several structures have is taken if they agree on what is asked, and refused
/// otherwise.
#[derive(Clone, Debug)]
pub struct BtfLayout {
    btf: Btf,
    /// Structures looked for before: to find one is to look at every type.
    structures: RefCell<HashMap<&'static str, Vec<u32>>>,
    shift: Option<Shift>,
}

/// A fault: a member that is taken to be elsewhere than it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift {
    /// Its structure.
    pub structure: &'static str,
    /// Its path.
    pub member: &'static str,
    /// How far off, bytes.
    pub by: i64,
}

impl BtfLayout {
    /// The layout that `btf` tells.
    pub fn new(btf: Btf) -> Self {
        Self { btf, structures: RefCell::default(), shift: None }
    }

    /// Takes a member to be elsewhere than it is.
    pub fn shift(&mut self, shift: Shift) {
        self.shift = Some(shift);
    }

    /// How far off a member is taken to be, bytes.
    fn shifted(&self, structure: &str, member: &str) -> i64 {
        let here = |s: &Shift| s.structure == structure && s.member == member;
        self.shift.filter(here).map_or(0, |s| s.by)
    }

    fn structures(&self, structure: &'static str) -> Vec<u32> {
        let mut known = self.structures.borrow_mut();
        known.entry(structure).or_insert_with(|| self.btf.structures(structure)).clone()
    }

    /// Asks every structure of that name; they must agree.
    fn ask<T: PartialEq>(
        &self,
        structure: &'static str,
        ask: impl Fn(u32) -> Result<T, LayoutError>,
    ) -> Result<T, LayoutError> {
        let mut answers = self.structures(structure).into_iter().map(ask);
        let first = answers.next().ok_or(LayoutError::NoStruct { structure })?;
        if answers.all(|other| other == first) {
            first
        } else {
            Err(LayoutError::Ambiguous { structure })
        }
    }

    fn found(
        &self,
        id: u32,
        structure: &'static str,
        member: &'static str,
    ) -> Result<Found, LayoutError> {
        let found = self.btf.member(id, member).map_err(broken(structure, member))?;
        found.ok_or(LayoutError::NoMember { structure, member })
    }

    /// How many pointers a member is away from what is no pointer: 2 for `struct cfs_rq **`.
    pub(super) fn pointers(
        &self,
        structure: &'static str,
        member: &'static str,
    ) -> Result<u32, LayoutError> {
        self.ask(structure, |id| {
            let found = self.found(id, structure, member)?;
            self.btf.pointers(found.type_id).map_err(broken(structure, member))
        })
    }
}

fn broken(structure: &'static str, member: &'static str) -> impl Fn(BtfError) -> LayoutError {
    move |source| LayoutError::Broken { structure, member, source }
}

impl LayoutSource for BtfLayout {
    fn has_struct(&self, structure: &'static str) -> bool {
        !self.structures(structure).is_empty()
    }

    fn size(&self, structure: &'static str) -> Result<u64, LayoutError> {
        self.ask(structure, |id| self.btf.size(id).map_err(broken(structure, "")))
    }

    fn member(&self, structure: &'static str, member: &'static str) -> Result<Member, LayoutError> {
        self.ask(structure, |id| {
            let found = self.found(id, structure, member)?;
            if let Some(bits) = found.bitfield {
                return Err(LayoutError::Bitfield { structure, member, bits });
            }
            let size = self.btf.size(found.type_id).map_err(broken(structure, member))?;
            // What is no bitfield starts at a byte.
            let offset = found.bit_offset / 8;
            let by = self.shifted(structure, member);
            Ok(Member { offset: offset.wrapping_add_signed(by), size })
        })
    }

    fn enumerator(
        &self,
        enumeration: &'static str,
        name: &'static str,
    ) -> Result<u64, LayoutError> {
        let none = LayoutError::NoEnumerator { enumeration, name };
        let mut value = None;
        for id in self.btf.enumerations(enumeration) {
            match self.btf.enumerator(id, name).map_err(broken(enumeration, name))? {
                Some(this) if value.is_some_and(|value| value != this) => {
                    return Err(LayoutError::Ambiguous { structure: enumeration });
                }
                Some(this) => value = Some(this),
                None => {}
            }
        }
        value.ok_or(none)
    }
}
