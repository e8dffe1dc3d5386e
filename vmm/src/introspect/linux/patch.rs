//! Probes: a port write in place of the no-op that a function begins with.
//!
//! Kernels built for indirect-branch tracking begin functions with `endbr64`, which boot may rewrite to
//! a no-op; kernels built for ftrace begin them with five bytes for a call, which is a no-op while
//! nobody traces. Both are done by no one else and jumped into by no one, so `out imm8, al` and no-ops
//! can stand there. Whatever else a function begins with is its own code, and refused.

use thiserror::Error;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::Linux;
use crate::introspect::places::SetupError;
use crate::introspect::read::Reader;
use crate::introspect::translate::{AddressSpace, PAGE_SIZE, TranslateError};

/// Bytes looked at: the longest no-op that is known.
const LOOK: usize = 8;

/// What a function may begin with and lose. SDM volume 2B, "NOP", table 4-12, and "ENDBR64"; the last
/// form of each length is what assemblers and boot-time patching write (arch/x86/include/asm/nops.h,
/// arch/x86/include/asm/ibt.h `gen_endbr_poison`). `None` stands for any byte: a displacement.
const NO_OPS: [&[Option<u8>]; 12] = {
    const fn b(byte: u8) -> Option<u8> {
        Some(byte)
    }
    [
        &[b(0xf3), b(0x0f), b(0x1e), b(0xfa)],
        &[b(0x66), b(0x90)],
        &[b(0x66), b(0x66), b(0x90)],
        &[b(0x66), b(0x66), b(0x66), b(0x90)],
        &[b(0x66), b(0x66), b(0x66), b(0x66), b(0x90)],
        &[b(0x0f), b(0x1f), b(0x00)],
        &[b(0x0f), b(0x1f), b(0x40), None],
        &[b(0x0f), b(0x1f), b(0x44), b(0x00), None],
        // What 6.12 makes of an endbr64 that nobody branches to (arch/x86/include/asm/ibt.h).
        &[b(0x66), b(0x0f), b(0x1f), b(0x00)],
        &[b(0x66), b(0x0f), b(0x1f), b(0x44), b(0x00), None],
        &[b(0x0f), b(0x1f), b(0x80), None, None, None, None],
        &[b(0x0f), b(0x1f), b(0x84), b(0x00), None, None, None, None],
    ]
};

/// Why a function cannot have a probe.
#[derive(Debug, Error)]
pub enum PatchError {
    /// The function is not in the kernel, or in parts.
    #[error(transparent)]
    Symbol(#[from] SetupError),
    /// Its entry cannot be read or written.
    #[error("cannot reach the entry of {function} at {address:#x}")]
    Unreachable {
        /// The function.
        function: String,
        /// Guest virtual address of its entry.
        address: u64,
        /// What the walk met.
        source: TranslateError,
    },
    /// The function is being traced.
    #[error(
        "cannot probe {function} at {address:#x}: its entry {bytes} is a call, so ftrace or a kprobe \
         is active on it; turn that off in the guest"
    )]
    Traced {
        /// The function.
        function: String,
        /// Guest virtual address of its entry.
        address: u64,
        /// Its first bytes.
        bytes: String,
    },
    /// The entry's code cannot be moved.
    #[error("cannot probe {function} at {address:#x}: {why}")]
    NotDisplaced {
        /// The function.
        function: String,
        /// Guest virtual address of its entry.
        address: u64,
        /// Why not.
        why: String,
    },
    /// The entry is code that would be lost.
    #[error(
        "cannot probe {function} at {address:#x}: its entry {bytes} is not a known no-op; build the \
         kernel with CONFIG_X86_KERNEL_IBT or CONFIG_FUNCTION_TRACER"
    )]
    NotANoOp {
        /// The function.
        function: String,
        /// Guest virtual address of its entry.
        address: u64,
        /// Its first bytes.
        bytes: String,
    },
}

/// A probe that was planted, and what it stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planted {
    /// The function's symbol.
    pub function: String,
    /// Guest virtual address of its entry.
    pub address: u64,
    /// The port that an entry writes to.
    pub port: u8,
    /// Guest physical address of the entry.
    gpa: u64,
    before: Vec<u8>,
    after: Vec<u8>,
}

/// Length of the no-op that `bytes` begins with.
fn no_op(bytes: &[u8]) -> Option<usize> {
    let fits = |form: &&&[Option<u8>]| {
        bytes.len() >= form.len()
            && form.iter().zip(bytes).all(|(want, got)| want.is_none_or(|want| want == *got))
    };
    NO_OPS.iter().find(fits).map(|form| form.len())
}

/// Bytes of [`out`].
pub const OUT_BYTES: usize = 2;

/// `out imm8, al`.
pub fn out(port: u8) -> [u8; OUT_BYTES] {
    [0xe6, port]
}

/// `out imm8, al` to `port`, and no-ops up to `len` bytes.
fn replacement(port: u8, len: usize) -> Vec<u8> {
    let fill: &[u8] = match len {
        2 => &[],
        3 => &[0x90],
        4 => &[0x66, 0x90],
        5 => &[0x0f, 0x1f, 0x00],
        6 => &[0x0f, 0x1f, 0x40, 0x00],
        7 => &[0x0f, 0x1f, 0x44, 0x00, 0x00],
        _ => &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
    };
    [&out(port), fill].concat()
}

impl Planted {
    /// Takes the probe away. Nothing else has written there, or it is left as it is.
    pub fn remove(&self, mem: &GuestMemoryMmap) {
        let mut now = vec![0; self.after.len()];
        if mem.read_slice(&mut now, GuestAddress(self.gpa)).is_ok() && now == self.after {
            // What could be read can be written: it is memory.
            let _ = mem.write_slice(&self.before, GuestAddress(self.gpa));
        }
    }
}

impl Linux {
    /// Plants a probe at the entry of `function`: each call writes `al` to `port`, with the arguments
    /// in `rdi`, `rsi`, `rdx`, `rcx`, `r8` and `r9` and the return address at `rsp`.
    ///
    /// The vCPU must not be in the bytes of the entry. A function whose calls need not come to its
    /// entry is refused, see [`super::symbols::SymbolTable::function`].
    pub fn probe(&self, function: &str, port: u8) -> Result<Planted, PatchError> {
        let address = self.symbols.function(function).map_err(SetupError::from)?;
        plant(&self.mem, self.space, function, address, port)
    }

    /// As [`Linux::probe`], also for a function that the compiler has split: the calls that go to its
    /// parts are not seen.
    pub fn probe_entry(&self, function: &str, port: u8) -> Result<Planted, PatchError> {
        let address = self.symbols.find(function).map_err(SetupError::from)?;
        plant(&self.mem, self.space, function, address, port)
    }
}

/// Plants a probe at `address`, the entry of `function`.
pub fn plant(
    mem: &GuestMemoryMmap,
    space: AddressSpace,
    function: &str,
    address: u64,
    port: u8,
) -> Result<Planted, PatchError> {
    let function = || function.to_owned();
    let unreachable = |source| PatchError::Unreachable { function: function(), address, source };
    let to = space.translate(mem, address).map_err(unreachable)?;
    // Functions are aligned to 16 bytes; one that is not may end at a page's end.
    let len = LOOK.min((PAGE_SIZE - address % PAGE_SIZE) as usize);
    let mut bytes = [0; LOOK];
    Reader::new(mem, space).bytes(address, &mut bytes[..len]).map_err(unreachable)?;
    let bytes = &bytes[..len];
    let Some(len) = no_op(bytes) else {
        let shown: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let (function, shown) = (function(), shown.join(" "));
        return Err(match bytes {
            // call rel32, int3
            [0xe8 | 0xcc, ..] => PatchError::Traced { function, address, bytes: shown },
            _ => PatchError::NotANoOp { function, address, bytes: shown },
        });
    };
    let planted = Planted {
        function: function(),
        address,
        port,
        gpa: to.gpa,
        before: bytes[..len].to_owned(),
        after: replacement(port, len),
    };
    // The bytes were read from there, within one page.
    let (level, entry, gpa) = (to.level, to.entry, to.gpa);
    mem.write_slice(&planted.after, GuestAddress(gpa))
        .map_err(|_| unreachable(TranslateError::PageOutside { va: address, level, entry, gpa }))?;
    Ok(planted)
}
