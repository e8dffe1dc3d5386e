//! BTF made by hand.

/// `BTF_KIND_*`.
pub const INT: u32 = 1;
pub const PTR: u32 = 2;
pub const ARRAY: u32 = 3;
pub const STRUCT: u32 = 4;
pub const UNION: u32 = 5;
pub const ENUM: u32 = 6;
pub const FWD: u32 = 7;
pub const TYPEDEF: u32 = 8;
pub const VOLATILE: u32 = 9;
pub const CONST: u32 = 10;
pub const FUNC: u32 = 12;
pub const FUNC_PROTO: u32 = 13;
pub const VAR: u32 = 14;
pub const DATASEC: u32 = 15;
pub const FLOAT: u32 = 16;
pub const DECL_TAG: u32 = 17;
pub const TYPE_TAG: u32 = 18;
pub const ENUM64: u32 = 19;

/// A member: name, type, and offset in bits.
pub type Member<'a> = (&'a str, u32, u32);

/// Types and strings of a blob.
#[derive(Clone)]
pub struct Blob {
    types: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
}

impl Blob {
    pub fn new() -> Self {
        Self { types: Vec::new(), strings: vec![0], count: 0 }
    }

    /// Offset of a string; of the empty one 0.
    pub fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend(text.as_bytes());
        self.strings.push(0);
        at
    }

    /// A type of any kind; its ID.
    pub fn add(&mut self, name: &str, info: u32, size_or_type: u32, more: &[u32]) -> u32 {
        let name = self.string(name);
        for word in [name, info, size_or_type].iter().chain(more) {
            self.types.extend(word.to_le_bytes());
        }
        self.count += 1;
        self.count
    }

    /// The ID that the next type gets.
    pub fn next(&self) -> u32 {
        self.count + 1
    }

    pub fn int(&mut self, name: &str, bytes: u32) -> u32 {
        self.add(name, INT << 24, bytes, &[bytes * 8])
    }

    /// A kind that leads to another type and has nothing else.
    pub fn to(&mut self, kind: u32, name: &str, to: u32) -> u32 {
        self.add(name, kind << 24, to, &[])
    }

    pub fn array(&mut self, element: u32, count: u32) -> u32 {
        self.add("", ARRAY << 24, 0, &[element, element, count])
    }

    /// A structure or union. With `flag`, offsets have the size of a bitfield in their upper 8 bits.
    pub fn composite(
        &mut self,
        kind: u32,
        flag: bool,
        name: &str,
        size: u32,
        members: &[Member<'_>],
    ) -> u32 {
        let mut words = Vec::new();
        for &(name, id, offset) in members {
            words.extend([self.string(name), id, offset]);
        }
        let info = u32::from(flag) << 31 | kind << 24 | members.len() as u32;
        self.add(name, info, size, &words)
    }

    pub fn structure(&mut self, name: &str, size: u32, members: &[Member<'_>]) -> u32 {
        self.composite(STRUCT, false, name, size, members)
    }

    pub fn enumeration(&mut self, name: &str, values: &[(&str, u32)]) -> u32 {
        let words: Vec<u32> =
            values.iter().flat_map(|&(name, value)| [self.string(name), value]).collect();
        self.add(name, ENUM << 24 | values.len() as u32, 4, &words)
    }

    /// The blob, with a header of `header_len` bytes: 24, or more with a layout section.
    pub fn build_with(&self, header_len: u32, layout: &[u8]) -> Vec<u8> {
        let mut data = vec![0x9f, 0xeb, 1, 0];
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        let words = [header_len, 0, types, types, strings, types + strings, layout.len() as u32];
        words.iter().for_each(|word| data.extend(word.to_le_bytes()));
        data.resize(header_len as usize, 0xee);
        data.extend(&self.types);
        data.extend(&self.strings);
        data.extend(layout);
        data
    }

    pub fn build(&self) -> Vec<u8> {
        self.build_with(24, &[])
    }
}
