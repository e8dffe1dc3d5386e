//! Where members are in the kernel's structures.

use std::marker::PhantomData;

use thiserror::Error;

use super::linux::btf::BtfError;

/// Why a member cannot be read.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LayoutError {
    /// The kernel has no such structure.
    #[error("the guest's kernel has no struct {structure}")]
    NoStruct {
        /// The structure.
        structure: &'static str,
    },
    /// The structure has no such member.
    #[error("struct {structure} of the guest's kernel has no member {member}")]
    NoMember {
        /// The structure.
        structure: &'static str,
        /// The member's path.
        member: &'static str,
    },
    /// The structure has none of the members that kernels call one thing.
    #[error("struct {structure} of the guest's kernel has {}", neither(members))]
    NoMemberOf {
        /// The structure.
        structure: &'static str,
        /// The paths that were tried.
        members: &'static [&'static str],
    },
    /// Several types have the name and do not agree on what was asked.
    #[error(
        "{structure} of the guest's kernel is ambiguous: it has types of that name that differ"
    )]
    Ambiguous {
        /// The structure or enumeration.
        structure: &'static str,
    },
    /// The member is a bitfield, which is not read.
    #[error("{structure}.{member} is a bitfield of {bits} bits, expected whole bytes")]
    Bitfield {
        /// The structure.
        structure: &'static str,
        /// The member's path.
        member: &'static str,
        /// Its bits.
        bits: u32,
    },
    /// The kernel's types contradict themselves.
    #[error("cannot find {structure}.{member} in the types of the guest's kernel")]
    Broken {
        /// The structure or enumeration.
        structure: &'static str,
        /// The member's path, or the enumerator.
        member: &'static str,
        /// What is wrong.
        source: BtfError,
    },
    /// The kernel has no such enumerator.
    #[error("enum {enumeration} of the guest's kernel has no enumerator {name}")]
    NoEnumerator {
        /// The enumeration.
        enumeration: &'static str,
        /// The enumerator.
        name: &'static str,
    },
    /// The member does not have its type's size.
    #[error("{structure}.{member} has {got} bytes, expected {expected}")]
    WrongSize {
        /// The structure.
        structure: &'static str,
        /// The member's path.
        member: &'static str,
        /// Size of the type that is read.
        expected: u64,
        /// Size in the guest's kernel.
        got: u64,
    },
    /// The member reaches beyond its structure.
    #[error("{structure}.{member} ends at byte {end}, expected at most {size}")]
    Outside {
        /// The structure.
        structure: &'static str,
        /// The member's path.
        member: &'static str,
        /// Where the member ends.
        end: u64,
        /// Size of the structure.
        size: u64,
    },
    /// Two members share bytes.
    #[error("{structure}.{member} at byte {offset} overlaps {structure}.{other}")]
    Overlap {
        /// The structure.
        structure: &'static str,
        /// The member's path.
        member: &'static str,
        /// Its offset.
        offset: u64,
        /// The other member's path.
        other: &'static str,
    },
    /// An array is too short for the element that is read.
    #[error("{structure}.{member} has {got} elements, expected one with index {index}")]
    TooShort {
        /// The structure.
        structure: &'static str,
        /// The member's path.
        member: &'static str,
        /// The index.
        index: u64,
        /// Number of elements.
        got: u64,
    },
}

/// `neither a nor b`.
fn neither(members: &[&str]) -> String {
    match members {
        [] => "no member".to_owned(),
        [one] => format!("no member {one}"),
        [first, rest @ ..] => format!("neither {first} nor {}", rest.join(" nor ")),
    }
}

/// Place of a member in its structure, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where it starts.
    pub offset: u64,
    /// How long it is.
    pub size: u64,
}

/// Knows the kernel's types, by the kernel's names.
pub trait LayoutSource {
    /// Does the kernel have this structure?
    fn has_struct(&self, structure: &'static str) -> bool;
    /// Size of a structure, bytes.
    fn size(&self, structure: &'static str) -> Result<u64, LayoutError>;
    /// A member, by its path: `"clock"`, `"avg.load_avg"`.
    fn member(&self, structure: &'static str, path: &'static str) -> Result<Member, LayoutError>;
    /// Value of an enumerator.
    fn enumerator(&self, enumeration: &'static str, name: &'static str)
    -> Result<u64, LayoutError>;
}

/// A resolved member of type `T`, and its name for errors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field<T> {
    pub offset: u64,
    pub structure: &'static str,
    pub member: &'static str,
    pub value: PhantomData<T>,
}

/// Resolves members, and refuses a layout whose members contradict each other.
pub(super) struct Resolver<'l> {
    layout: &'l dyn LayoutSource,
    seen: Vec<(&'static str, &'static str, Member)>,
}

impl<'l> Resolver<'l> {
    pub fn new(layout: &'l dyn LayoutSource) -> Self {
        Self { layout, seen: Vec::new() }
    }

    fn place(
        &mut self,
        structure: &'static str,
        member: &'static str,
    ) -> Result<Member, LayoutError> {
        let place = self.layout.member(structure, member)?;
        let size = self.layout.size(structure)?;
        let end = place.offset.saturating_add(place.size);
        if end > size {
            return Err(LayoutError::Outside { structure, member, end, size });
        }
        for &(of, other, there) in &self.seen {
            let apart = end <= there.offset || there.offset + there.size <= place.offset;
            if of == structure && other != member && !apart {
                let offset = place.offset;
                return Err(LayoutError::Overlap { structure, member, offset, other });
            }
        }
        self.seen.push((structure, member, place));
        Ok(place)
    }

    /// A member that holds one `T`.
    pub fn field<T>(
        &mut self,
        structure: &'static str,
        member: &'static str,
    ) -> Result<Field<T>, LayoutError> {
        let place = self.place(structure, member)?;
        let expected = size_of::<T>() as u64;
        if place.size != expected {
            let got = place.size;
            return Err(LayoutError::WrongSize { structure, member, expected, got });
        }
        Ok(Field { offset: place.offset, structure, member, value: PhantomData })
    }

    /// As [`Resolver::field`], for a member that not every kernel has.
    pub fn optional<T>(
        &mut self,
        structure: &'static str,
        member: &'static str,
    ) -> Result<Option<Field<T>>, LayoutError> {
        match self.field(structure, member) {
            Ok(field) => Ok(Some(field)),
            Err(LayoutError::NoStruct { .. } | LayoutError::NoMember { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// As [`Resolver::field`], for a member that kernels have under one of several names.
    pub fn any_of<T>(
        &mut self,
        structure: &'static str,
        members: &'static [&'static str],
    ) -> Result<Field<T>, LayoutError> {
        for &member in members {
            if let Some(field) = self.optional(structure, member)? {
                return Ok(field);
            }
        }
        self.layout.size(structure)?;
        Err(LayoutError::NoMemberOf { structure, members })
    }

    /// The element of an array of `T` that an enumerator names.
    pub fn element<T>(
        &mut self,
        structure: &'static str,
        member: &'static str,
        (enumeration, name): (&'static str, &'static str),
    ) -> Result<Field<T>, LayoutError> {
        let place = self.place(structure, member)?;
        let index = self.layout.enumerator(enumeration, name)?;
        let got = place.size / size_of::<T>() as u64;
        if index >= got {
            return Err(LayoutError::TooShort { structure, member, index, got });
        }
        let offset = place.offset + index * size_of::<T>() as u64;
        Ok(Field { offset, structure, member, value: PhantomData })
    }

    /// Where a structure that not every kernel has in this one starts.
    pub fn start(
        &mut self,
        structure: &'static str,
        member: &'static str,
    ) -> Result<Option<u64>, LayoutError> {
        match self.place(structure, member) {
            Ok(place) => Ok(Some(place.offset)),
            Err(LayoutError::NoMember { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// A structure's own list head, of two pointers.
    pub fn list_head(
        &mut self,
        structure: &'static str,
        member: &'static str,
    ) -> Result<u64, LayoutError> {
        Ok(self.field::<[u64; 2]>(structure, member)?.offset)
    }
}
