//! Where the kernel's variables are.

use object::elf::{EM_X86_64, ET_DYN, ET_EXEC, FileHeader64};
use object::read::elf::{ElfFile64, FileHeader};
use object::{Endianness, Object, ObjectSymbol, SymbolSection};
use thiserror::Error;

use super::translate::TranslateError;

/// Why a variable's address is not known.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SymbolError {
    /// The file has no bytes.
    #[error("cannot read symbols of {file}: the file is empty")]
    Empty {
        /// The file.
        file: String,
    },
    /// The file does not start like an ELF file.
    #[error("cannot read symbols of {file}: expected the ELF magic 7f454c46, got {got}")]
    NotElf {
        /// The file.
        file: String,
        /// Its first bytes, in hexadecimal.
        got: String,
    },
    /// A table of the ELF file lies outside of it or contradicts itself.
    #[error("cannot read symbols of {file}: malformed or truncated ELF file")]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong.
        source: object::Error,
    },
    /// The ELF file is for another machine.
    #[error("cannot read symbols of {file}: expected {field} {expected}, got {got}")]
    Foreign {
        /// The file.
        file: String,
        /// The header's field.
        field: &'static str,
        /// What an x86-64 kernel has there.
        expected: u16,
        /// What is there.
        got: u16,
    },
    /// The ELF file was stripped.
    #[error("cannot read symbols of {file}: it has no .symtab, use the unstripped file")]
    Stripped {
        /// The file.
        file: String,
    },
    /// A line of a System.map is not one.
    #[error("cannot read symbols of {file}: line {line} {why}")]
    Line {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The variable that says where per-CPU variables are cannot be read.
    #[error("cannot read {name} at {address:#x}, where {file} has it")]
    Unreadable {
        /// The file.
        file: String,
        /// The variable.
        name: String,
        /// Its guest virtual address.
        address: u64,
        /// What the walk met.
        source: TranslateError,
    },
    /// What is in memory at a symbol is not what must be there.
    #[error(
        "{name} at {address:#x} is {got:#x}, expected {expected:#x}: is {file} the kernel that runs, \
         and has it booted?"
    )]
    Contradiction {
        /// The file.
        file: String,
        /// The variable.
        name: String,
        /// Its guest virtual address.
        address: u64,
        /// What it must be.
        expected: u64,
        /// What it is.
        got: u64,
    },
    /// An interrupt gate does not lead to its handler.
    #[error(
        "interrupt gate {vector} leads to {got:#x}, but {name} is linked at {linked:#x} in {file}, and \
         {why}: is that the kernel that runs?"
    )]
    Slide {
        /// The file.
        file: String,
        /// The gate.
        vector: u8,
        /// Its handler.
        name: String,
        /// The handler's address as linked.
        linked: u64,
        /// The address in the gate.
        got: u64,
        /// What contradicts.
        why: &'static str,
    },
    /// The function is in the kernel in parts, or not at all.
    #[error("cannot probe {name} of {file}: {why}")]
    NoFunction {
        /// The file.
        file: String,
        /// The function.
        name: String,
        /// Why not.
        why: String,
    },
    /// No symbol has the name.
    #[error("no symbol {name} in {file}")]
    Missing {
        /// The file.
        file: String,
        /// The name.
        name: String,
    },
    /// Several symbols have the name and different addresses.
    #[error("symbol {name} in {file} is ambiguous: it is at {first:#x} and at {second:#x}")]
    Ambiguous {
        /// The file.
        file: String,
        /// The name.
        name: String,
        /// One address.
        first: u64,
        /// Another.
        second: u64,
    },
    /// The variable is not as large as its type.
    #[error("symbol {name} in {file} has {got} bytes, expected {expected}")]
    WrongSize {
        /// The file.
        file: String,
        /// The name.
        name: String,
        /// Size of the type.
        expected: u64,
        /// Size of the symbol.
        got: u64,
    },
}

/// Knows the addresses of kernel variables, by the kernel's names.
pub trait SymbolSource {
    /// Guest virtual address of the variable; of a per-CPU variable, of CPU 0's instance.
    fn address(&self, name: &'static str) -> Result<u64, SymbolError>;
}

/// A symbol as linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its address.
    pub address: u64,
    /// Its size, bytes; 0 if the linker was not told.
    pub size: u64,
}

/// The `.symtab` of an x86-64 executable.
pub struct ElfSymbols<'d> {
    file: String,
    elf: ElfFile64<'d, Endianness>,
}

impl<'d> ElfSymbols<'d> {
    /// Opens the symbol table of the executable in `data`; `file` names it in errors.
    pub fn parse(file: &str, data: &'d [u8]) -> Result<Self, SymbolError> {
        Self::open(file, data, false)
    }

    /// As [`ElfSymbols::parse`], for a kernel, which may be position-independent as well.
    pub(super) fn parse_kernel(file: &str, data: &'d [u8]) -> Result<Self, SymbolError> {
        Self::open(file, data, true)
    }

    /// The file as `object` has it.
    pub(super) fn elf(&self) -> &ElfFile64<'d, Endianness> {
        &self.elf
    }

    fn open(file: &str, data: &'d [u8], or_dyn: bool) -> Result<Self, SymbolError> {
        let name = || file.to_owned();
        if data.is_empty() {
            return Err(SymbolError::Empty { file: name() });
        }
        let magic = &data[..data.len().min(4)];
        if magic != b"\x7fELF" {
            let got = magic.iter().map(|b| format!("{b:02x}")).collect();
            return Err(SymbolError::NotElf { file: name(), got });
        }
        let foreign = |field, expected, got| {
            if expected == got {
                return Ok(());
            }
            Err(SymbolError::Foreign { file: name(), field, expected, got })
        };
        // EI_CLASS and EI_DATA come before anything whose place depends on them.
        let ident = |i: usize| data.get(i).copied().unwrap_or_default().into();
        foreign("EI_CLASS", 2, ident(4))?;
        foreign("EI_DATA", 1, ident(5))?;
        let malformed = |source| SymbolError::Malformed { file: name(), source };
        let header = FileHeader64::<Endianness>::parse(data).map_err(malformed)?;
        foreign("e_machine", EM_X86_64.0, header.e_machine(Endianness::Little).0)?;
        let kind = header.e_type(Endianness::Little).0;
        if !(or_dyn && kind == ET_DYN.0) {
            foreign("e_type", ET_EXEC.0, kind)?;
        }
        let elf = ElfFile64::parse(data).map_err(malformed)?;
        if elf.elf_symbol_table().is_empty() {
            return Err(SymbolError::Stripped { file: name() });
        }
        Ok(Self { file: name(), elf })
    }

    /// The defined symbol of that name. The same name twice at one address is one symbol; static
    /// variables of different files at different addresses are refused.
    pub fn find(&self, name: &str) -> Result<Symbol, SymbolError> {
        let mut found: Option<Symbol> = None;
        for symbol in self.elf.symbols() {
            if symbol.name_bytes() != Ok(name.as_bytes())
                || symbol.section() == SymbolSection::Undefined
            {
                continue;
            }
            let this = Symbol { address: symbol.address(), size: symbol.size() };
            match found {
                Some(first) if first.address != this.address => {
                    return Err(SymbolError::Ambiguous {
                        file: self.file.clone(),
                        name: name.to_owned(),
                        first: first.address,
                        second: this.address,
                    });
                }
                _ => found = Some(this),
            }
        }
        found.ok_or_else(|| SymbolError::Missing { file: self.file.clone(), name: name.to_owned() })
    }

    /// As [`ElfSymbols::find`], and the symbol must have `size` bytes.
    pub fn find_sized(&self, name: &str, size: u64) -> Result<Symbol, SymbolError> {
        let symbol = self.find(name)?;
        if symbol.size != size {
            return Err(SymbolError::WrongSize {
                file: self.file.clone(),
                name: name.to_owned(),
                expected: size,
                got: symbol.size,
            });
        }
        Ok(symbol)
    }
}
