//! The kernel's types: BPF Type Format, as a kernel carries it in `.BTF`.
//!
//! Format: Documentation/bpf/btf.rst and include/uapi/linux/btf.h, 6.12 to 7.3. Written here and not
//! taken from a library: `btf-rs` is LGPL and this is one static program; `btf` and `btfdump` compute
//! sizes without overflow checks and in time exponential in the nesting, and let a later type hide an
//! earlier one of the same name; `aya-obj` keeps members to itself. All of them are given a file that
//! is believed; here it may be guest memory. What is needed is small: where is a member, how large is
//! it, what is an enumerator's value.
//!
//! Nothing here recurses without a bound: chains of typedefs and qualifiers, arrays of arrays,
//! anonymous members in one another, and the members looked at for one path are all limited.

use std::ops::Range;

use thiserror::Error;

/// Why a blob is not BTF, or a type in it is none.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BtfError {
    /// There is no BTF.
    #[error("the kernel has no BTF: build it with CONFIG_DEBUG_INFO_BTF")]
    Missing,
    /// The section has a size and no bytes.
    #[error(
        ".BTF is NOBITS: its {size} bytes were stripped, use the vmlinux that the build left, or let \
         the types be read from guest memory"
    )]
    NoBits {
        /// Size of the section.
        size: u64,
    },
    /// The blob ends early.
    #[error("BTF is truncated: {what} ends at byte {end}, the blob has {len}")]
    Truncated {
        /// What reaches beyond the end.
        what: &'static str,
        /// Where it ends.
        end: u64,
        /// Bytes there are.
        len: u64,
    },
    /// More than any kernel has.
    #[error("the guest's BTF has {len} bytes, expected at most {limit}")]
    TooLong {
        /// Its length.
        len: u64,
        /// Most that is read.
        limit: u64,
    },
    /// It does not start as BTF does.
    #[error("not BTF of an x86-64 kernel: expected magic 0xeb9f, got {0:#06x}")]
    Magic(u16),
    /// A format that is not known.
    #[error("BTF has {field} {got}, expected {expected}")]
    Header {
        /// The header's field.
        field: &'static str,
        /// What it can be.
        expected: u32,
        /// What it is.
        got: u32,
    },
    /// The strings do not start and end with a zero byte.
    #[error("BTF strings do not start and end with a zero byte")]
    Strings,
    /// A kind whose length is not known, so that nothing after it can be read.
    #[error(
        "BTF type {id} at byte {at} is of the unknown kind {kind}: it is from a newer kernel than \
         this program knows"
    )]
    UnknownKind {
        /// Type ID.
        id: u32,
        /// Offset in the type section.
        at: u32,
        /// The kind.
        kind: u32,
    },
    /// A type refers to one that does not exist.
    #[error("BTF type {id} does not exist: there are {count}")]
    NoType {
        /// Type ID.
        id: u32,
        /// Number of types, `void` included.
        count: u32,
    },
    /// Types lead to one another too often, or in a circle.
    #[error("BTF type {id} leads through more than {limit} {what}")]
    Endless {
        /// Where the walk began.
        id: u32,
        /// What there is too much of.
        what: &'static str,
        /// Most of them.
        limit: u32,
    },
    /// A type has no size.
    #[error("BTF type {id} of kind {kind} has no size")]
    NoSize {
        /// Type ID.
        id: u32,
        /// Its kind.
        kind: u32,
    },
    /// An array is larger than an address space.
    #[error("BTF type {id} is an array of more than 2^64 bytes")]
    Huge {
        /// Type ID.
        id: u32,
    },
}

/// `BTF_KIND_*`.
mod kind {
    pub const INT: u32 = 1;
    pub const PTR: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const TYPEDEF: u32 = 8;
    pub const VOLATILE: u32 = 9;
    pub const CONST: u32 = 10;
    pub const RESTRICT: u32 = 11;
    pub const FLOAT: u32 = 16;
    pub const TYPE_TAG: u32 = 18;
    pub const ENUM64: u32 = 19;
}

/// Bytes after `struct btf_type`, and for each of its `vlen` elements, by kind.
const LENGTHS: [(u32, u32); 20] = [
    (0, 0),  // void; never in the section
    (4, 0),  // INT
    (0, 0),  // PTR
    (12, 0), // ARRAY
    (0, 12), // STRUCT
    (0, 12), // UNION
    (0, 8),  // ENUM
    (0, 0),  // FWD
    (0, 0),  // TYPEDEF
    (0, 0),  // VOLATILE
    (0, 0),  // CONST
    (0, 0),  // RESTRICT
    (0, 0),  // FUNC
    (0, 8),  // FUNC_PROTO
    (4, 0),  // VAR
    (0, 12), // DATASEC
    (0, 0),  // FLOAT
    (4, 0),  // DECL_TAG
    (0, 0),  // TYPE_TAG
    (0, 12), // ENUM64
];

/// Size of `struct btf_type`.
const TYPE_SIZE: usize = 12;
/// Size of the first `struct btf_header`; later ones have more fields.
const HEADER_SIZE: u32 = 24;
/// Longest chain of typedefs and qualifiers.
const MAX_CHAIN: u32 = 64;
/// Deepest nesting of arrays, and of anonymous members.
const MAX_DEPTH: u32 = 16;
/// Members looked at for one path.
const MAX_MEMBERS: u32 = 1 << 17;

/// A member that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Where it starts, bits from the structure's start.
    pub bit_offset: u64,
    /// Its type.
    pub type_id: u32,
    /// Its bits, if it is a bitfield.
    pub bitfield: Option<u32>,
}

/// One `struct btf_type` and what follows it.
#[derive(Clone, Copy)]
struct Type<'b> {
    id: u32,
    kind: u32,
    kind_flag: bool,
    /// `size` or `type`, by kind.
    size_or_type: u32,
    more: &'b [u8],
}

/// The types of one kernel.
#[derive(Clone, PartialEq, Eq)]
pub struct Btf {
    data: Vec<u8>,
    strings: Range<usize>,
    /// Where each type is in `data`, by ID less one: 0 is `void`.
    types: Vec<u32>,
    /// IDs of the structures, unions and enumerations that have a name.
    named: Vec<u32>,
}

impl std::fmt::Debug for Btf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Btf({} types)", self.types.len())
    }
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    let bytes = data.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

impl Btf {
    /// Takes `data` as BTF. Each type is looked at once, for its length.
    pub fn parse(data: Vec<u8>) -> Result<Self, BtfError> {
        let len = data.len() as u64;
        let truncated = |what, end: u64| BtfError::Truncated { what, end, len };
        let header =
            |i: usize| u32_at(&data, i * 4).ok_or(truncated("the header", HEADER_SIZE.into()));
        if data.is_empty() {
            return Err(BtfError::Missing);
        }
        let start = header(0)?;
        if start as u16 != 0xeb9f {
            return Err(BtfError::Magic(start as u16));
        }
        let version = start >> 16 & 0xff;
        if version != 1 {
            return Err(BtfError::Header { field: "version", expected: 1, got: version });
        }
        let header_len = header(1)?;
        if header_len < HEADER_SIZE {
            let (field, expected, got) = ("hdr_len", HEADER_SIZE, header_len);
            return Err(BtfError::Header { field, expected, got });
        }
        // Offsets count from the end of the header, however long it is.
        let section = |what, first: usize| {
            let start = u64::from(header_len) + u64::from(header(first)?);
            let end = start + u64::from(header(first + 1)?);
            if end > len { Err(truncated(what, end)) } else { Ok(start as usize..end as usize) }
        };
        let types = section("the type section", 2)?;
        let strings = section("the string section", 4)?;
        if data[strings.clone()].first() != Some(&0) || data[strings.clone()].last() != Some(&0) {
            return Err(BtfError::Strings);
        }
        // Since 7.1 a header may name a section that gives the lengths of kinds unknown here.
        let layout = if header_len >= 32 { section("the layout section", 6)? } else { 0..0 };
        let types = Self::index(&data, types, &data[layout])?;
        let mut btf = Self { data, strings, types, named: Vec::new() };
        btf.named = (1..=btf.types.len() as u32).filter(|&id| btf.has_name(id)).collect();
        Ok(btf)
    }

    /// Where each type starts.
    fn index(data: &[u8], section: Range<usize>, layout: &[u8]) -> Result<Vec<u32>, BtfError> {
        let mut types = Vec::with_capacity(section.len() / 24);
        let mut at = section.start;
        while at < section.end {
            let id = types.len() as u32 + 1;
            let end = (at + TYPE_SIZE) as u64;
            let truncated =
                |end| BtfError::Truncated { what: "a type", end, len: section.end as u64 };
            let info = u32_at(&data[..section.end], at + 4).ok_or(truncated(end))?;
            // 7.3 widened both: 24 bits of length and 7 of kind, where before 16 and 5 were used
            // and the bits between were 0.
            let (kind, elements) = (info >> 24 & 0x7f, info & 0xff_ffff);
            let lengths = match LENGTHS.get(kind as usize) {
                Some(lengths) if kind != 0 => Some(*lengths),
                // struct btf_layout: info_sz, elem_sz, flags.
                _ => layout
                    .get(kind as usize * 4..kind as usize * 4 + 4)
                    .map(|l| (l[0].into(), l[1].into()))
                    .filter(|_| kind != 0),
            };
            let Some((fixed, each)) = lengths else {
                let at = (at - section.start) as u32;
                return Err(BtfError::UnknownKind { id, at, kind });
            };
            let end = end + u64::from(fixed) + u64::from(each) * u64::from(elements);
            if end > section.end as u64 {
                return Err(truncated(end));
            }
            types.push(at as u32);
            at = end as usize;
        }
        Ok(types)
    }

    fn get(&self, id: u32) -> Result<Type<'_>, BtfError> {
        let count = self.types.len() as u32 + 1;
        let none = BtfError::NoType { id, count };
        let index = id.checked_sub(1).ok_or(none)? as usize;
        let at = *self.types.get(index).ok_or(none)? as usize;
        let end = self.types.get(index + 1).map_or(self.data.len(), |&next| next as usize);
        // Three words were there when the types were indexed.
        let word = |i: usize| u32_at(&self.data, at + i * 4).ok_or(none);
        let (info, size_or_type) = (word(1)?, word(2)?);
        let kind = info >> 24 & 0x7f;
        let (fixed, each) = LENGTHS.get(kind as usize).copied().unwrap_or_default();
        let len = fixed as usize + each as usize * (info & 0xff_ffff) as usize;
        let more = self.data.get(at + TYPE_SIZE..end).and_then(|d| d.get(..len)).ok_or(none)?;
        Ok(Type { id, kind, kind_flag: info >> 31 == 1, size_or_type, more })
    }

    /// Is the string at `offset` this one?
    fn named(&self, offset: u32, name: &str) -> bool {
        let strings = &self.data[self.strings.clone()];
        let rest = strings.get(offset as usize..).unwrap_or_default();
        rest.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    }

    /// The type itself, behind typedefs, qualifiers and tags.
    fn bare(&self, id: u32) -> Result<Type<'_>, BtfError> {
        let mut this = self.get(id)?;
        for _ in 0..MAX_CHAIN {
            match this.kind {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    this = self.get(this.size_or_type)?;
                }
                _ => return Ok(this),
            }
        }
        Err(BtfError::Endless { id, what: "typedefs and qualifiers", limit: MAX_CHAIN })
    }

    /// Size of a type, bytes.
    pub(super) fn size(&self, id: u32) -> Result<u64, BtfError> {
        let (mut at, mut elements) = (id, 1u64);
        for _ in 0..MAX_DEPTH {
            let this = self.bare(at)?;
            let size = match this.kind {
                kind::INT
                | kind::STRUCT
                | kind::UNION
                | kind::ENUM
                | kind::ENUM64
                | kind::FLOAT => this.size_or_type.into(),
                kind::PTR => 8,
                kind::ARRAY => {
                    // struct btf_array: type, index_type, nelems.
                    let word = |i| u32_at(this.more, i).unwrap_or_default();
                    at = word(0);
                    elements = elements.checked_mul(word(8).into()).ok_or(BtfError::Huge { id })?;
                    continue;
                }
                kind => return Err(BtfError::NoSize { id: this.id, kind }),
            };
            return elements.checked_mul(size).ok_or(BtfError::Huge { id });
        }
        Err(BtfError::Endless { id, what: "arrays of arrays", limit: MAX_DEPTH })
    }

    /// IDs of the structures and unions of that name, those that are only declared left out.
    pub(super) fn structures(&self, name: &str) -> Vec<u32> {
        self.of_kind(name, [kind::STRUCT, kind::UNION])
    }

    /// IDs of the enumerations of that name.
    pub(super) fn enumerations(&self, name: &str) -> Vec<u32> {
        self.of_kind(name, [kind::ENUM, kind::ENUM64])
    }

    fn of_kind(&self, name: &str, kinds: [u32; 2]) -> Vec<u32> {
        let one_of = |id: &u32| {
            let (name_at, kind) = self.name_and_kind(*id);
            kinds.contains(&kind) && self.named(name_at, name)
        };
        self.named.iter().copied().filter(one_of).collect()
    }

    /// Is it of a kind that is looked for by name, and has it one?
    fn has_name(&self, id: u32) -> bool {
        let (name, kind) = self.name_and_kind(id);
        let kinds = [kind::STRUCT, kind::UNION, kind::ENUM, kind::ENUM64];
        name != 0 && kinds.contains(&kind)
    }

    fn name_and_kind(&self, id: u32) -> (u32, u32) {
        let at = self.types.get(id as usize - 1).map_or(usize::MAX, |at| *at as usize);
        let word = |i| u32_at(&self.data, at.saturating_add(i)).unwrap_or_default();
        (word(0), word(4) >> 24 & 0x7f)
    }

    /// Value of an enumerator. In an enumeration that is only declared there is none.
    pub(super) fn enumerator(&self, enumeration: u32, name: &str) -> Result<Option<u64>, BtfError> {
        let this = self.bare(enumeration)?;
        // struct btf_enum: name, value; struct btf_enum64: name, low, high.
        let step = if this.kind == kind::ENUM64 { 12 } else { 8 };
        for one in this.more.chunks_exact(step) {
            let word = |i| u32_at(one, i).unwrap_or_default();
            if self.named(word(0), name) {
                return Ok(Some(match step {
                    12 => u64::from(word(8)) << 32 | u64::from(word(4)),
                    // The kind flag says that the values are signed.
                    _ if this.kind_flag => word(4) as i32 as u64,
                    _ => word(4).into(),
                }));
            }
        }
        Ok(None)
    }

    /// The member of that path, also where it is a member of an anonymous member.
    pub(super) fn member(&self, structure: u32, path: &str) -> Result<Option<Found>, BtfError> {
        let mut budget = MAX_MEMBERS;
        let mut found = Found { bit_offset: 0, type_id: structure, bitfield: None };
        for name in path.split('.') {
            let Some(next) = self.direct(found.type_id, name, 0, &mut budget)? else {
                return Ok(None);
            };
            found = Found { bit_offset: found.bit_offset.saturating_add(next.bit_offset), ..next };
        }
        Ok(Some(found))
    }

    /// One step of a path; offsets are from the start of `structure`.
    fn direct(
        &self,
        structure: u32,
        name: &str,
        depth: u32,
        budget: &mut u32,
    ) -> Result<Option<Found>, BtfError> {
        let this = self.bare(structure)?;
        // An empty name is none: it would be that of every anonymous member.
        if !matches!(this.kind, kind::STRUCT | kind::UNION) || name.is_empty() {
            return Ok(None);
        }
        if depth == MAX_DEPTH {
            let (what, limit) = ("anonymous members in one another", MAX_DEPTH);
            return Err(BtfError::Endless { id: this.id, what, limit });
        }
        // struct btf_member: name, type, offset.
        for member in this.more.chunks_exact(12) {
            *budget = budget.checked_sub(1).ok_or(BtfError::Endless {
                id: this.id,
                what: "members",
                limit: MAX_MEMBERS,
            })?;
            let word = |i| u32_at(member, i).unwrap_or_default();
            let (type_id, offset) = (word(4), word(8));
            // With the kind flag, 8 bits of size above 24 of offset; a size of 0 is no bitfield.
            let (bits, offset) = match this.kind_flag {
                true => (offset >> 24, offset & 0xff_ffff),
                false => (0, offset),
            };
            let bit_offset = u64::from(offset);
            if self.named(word(0), name) {
                let bitfield = if bits != 0 { Some(bits) } else { self.int_bits(type_id)? };
                return Ok(Some(Found { bit_offset, type_id, bitfield }));
            }
            if self.named(word(0), "") {
                // An anonymous member may be a bitfield of padding: then there is nothing in it.
                let inner = self.direct(type_id, name, depth + 1, budget)?;
                if let Some(inner) = inner {
                    let bit_offset = bit_offset + inner.bit_offset;
                    return Ok(Some(Found { bit_offset, ..inner }));
                }
            }
        }
        Ok(None)
    }

    /// The bits of an integer that fills its bytes only in part: a bitfield without the kind flag.
    fn int_bits(&self, id: u32) -> Result<Option<u32>, BtfError> {
        let this = self.bare(id)?;
        if this.kind != kind::INT {
            return Ok(None);
        }
        let encoding = u32_at(this.more, 0).unwrap_or_default();
        let (bits, offset) = (encoding & 0xff, encoding >> 16 & 0xff);
        Ok((offset != 0 || u64::from(bits) != u64::from(this.size_or_type) * 8).then_some(bits))
    }

    /// How many pointers lead from a type to one that is none.
    pub(super) fn pointers(&self, id: u32) -> Result<u32, BtfError> {
        let mut this = self.bare(id)?;
        for count in 0..MAX_DEPTH {
            // A pointer to void points to type 0, which there is not.
            if this.kind != kind::PTR {
                return Ok(count);
            }
            if this.size_or_type == 0 {
                return Ok(count + 1);
            }
            this = self.bare(this.size_or_type)?;
        }
        Err(BtfError::Endless { id, what: "pointers", limit: MAX_DEPTH })
    }
}
