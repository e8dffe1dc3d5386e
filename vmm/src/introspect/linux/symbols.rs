//! The symbols of a Linux kernel: as linked, and where they are in a guest.
//!
//! A kernel may run elsewhere than it was linked (KASLR): everything is `slide` bytes up. Its per-CPU
//! variables are linked once, and CPU 0 has its copy `__per_cpu_offset[0]` bytes from there. Until
//! 6.14 they were linked from address 0 on, outside the image, and the slide did not move them; since
//! 6.15 they are linked in the image (arch/x86/kernel/vmlinux.lds.S, arch/x86/kernel/setup_percpu.c).

use object::elf::{STT_FILE, STT_FUNC, STT_SECTION};
use object::{Object, ObjectSymbol, SymbolSection};
use vm_memory::GuestMemoryMmap;

use crate::introspect::read::Reader;
use crate::introspect::symbols::{ElfSymbols, Symbol, SymbolError, SymbolSource};
use crate::introspect::translate::AddressSpace;

/// Longest name of a symbol, bytes: `KSYM_NAME_LEN` (include/linux/kallsyms.h, 6.12 to 7.3).
const MAX_NAME: usize = 512;

#[derive(Clone, Copy, Debug)]
struct Entry {
    address: u64,
    /// Bytes; 0 if not known.
    size: u64,
    /// Where the name is in the table's names.
    name: (u32, u32),
    function: bool,
}

/// The symbols of a kernel file, as linked.
#[derive(Clone)]
pub struct SymbolTable {
    file: String,
    names: String,
    /// By address.
    entries: Vec<Entry>,
}

impl std::fmt::Debug for SymbolTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SymbolTable({}, {} symbols)", self.file, self.entries.len())
    }
}

impl SymbolTable {
    fn new(file: &str) -> Self {
        Self { file: file.to_owned(), names: String::new(), entries: Vec::new() }
    }

    fn push(&mut self, address: u64, size: u64, function: bool, name: &str) {
        let start = self.names.len() as u32;
        self.names.push_str(name);
        let name = (start, self.names.len() as u32);
        self.entries.push(Entry { address, size, name, function });
    }

    fn sort(&mut self) {
        // Stable, so that of two names for one address the file's order decides.
        self.entries.sort_by_key(|e| e.address);
    }

    /// The `.symtab` of the vmlinux in `data`; `file` names it in errors.
    pub fn of_elf(file: &str, data: &[u8]) -> Result<Self, SymbolError> {
        let elf = ElfSymbols::parse_kernel(file, data)?;
        let mut table = Self::new(file);
        for symbol in elf.elf().symbols() {
            let kind = symbol.elf_symbol().st_type();
            if symbol.section() == SymbolSection::Undefined
                || matches!(kind, STT_SECTION | STT_FILE)
            {
                continue;
            }
            // A name that is not text is none that would be looked for.
            if let Ok(name) = symbol.name()
                && !name.is_empty()
                && name.len() <= MAX_NAME
                && table.names.len() + name.len() <= u32::MAX as usize
            {
                let function = kind == STT_FUNC;
                table.push(symbol.address(), symbol.size(), function, name);
            }
        }
        table.sort();
        Ok(table)
    }

    /// The text of a `System.map`: lines of address, type and name, as nm(1) writes them.
    pub fn of_system_map(file: &str, text: &[u8]) -> Result<Self, SymbolError> {
        if text.is_empty() {
            return Err(SymbolError::Empty { file: file.to_owned() });
        }
        let mut table = Self::new(file);
        for (line, bytes) in (1..).zip(text.split(|&b| b == b'\n')) {
            // The text ends with a line's end.
            if bytes.is_empty() {
                continue;
            }
            let malformed = |why| SymbolError::Line { file: file.to_owned(), line, why };
            let words = std::str::from_utf8(bytes).map_err(|_| malformed("is not text"))?;
            let mut words = words.split(' ');
            let mut word = || words.next().unwrap_or_default();
            let (address, kind, name) = (word(), word(), word());
            if address.len() != 16 || !address.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(malformed("does not start with an address of 16 hexadecimal digits"));
            }
            let address = u64::from_str_radix(address, 16)
                .map_err(|_| malformed("does not start with an address"))?;
            let [kind] = kind.as_bytes() else {
                return Err(malformed("has no type of one letter after its address"));
            };
            if name.is_empty() || name.len() > MAX_NAME || words.next().is_some() {
                return Err(malformed("does not end with a name of 1 to 512 bytes"));
            }
            if table.names.len() + name.len() > u32::MAX as usize {
                return Err(malformed("is one too many"));
            }
            table.push(address, 0, matches!(kind, b't' | b'T' | b'w' | b'W'), name);
        }
        table.sort();
        Ok(table)
    }

    /// Name of the file, for errors.
    pub fn file(&self) -> &str {
        &self.file
    }

    fn name(&self, entry: &Entry) -> &str {
        self.names.get(entry.name.0 as usize..entry.name.1 as usize).unwrap_or_default()
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &Entry> {
        let len = name.len() as u32;
        self.entries.iter().filter(move |e| e.name.1 - e.name.0 == len && self.name(e) == name)
    }

    /// The symbol of that name, as linked. The same name twice at one address is one symbol; static
    /// ones of different files at different addresses are refused.
    pub fn find(&self, name: &str) -> Result<Symbol, SymbolError> {
        let (file, name_of) = (|| self.file.clone(), || name.to_owned());
        let mut all = self.all(name);
        let Some(first) = all.next() else {
            return Err(SymbolError::Missing { file: file(), name: name_of() });
        };
        if let Some(other) = all.find(|other| other.address != first.address) {
            let (first, second) = (first.address, other.address);
            return Err(SymbolError::Ambiguous { file: file(), name: name_of(), first, second });
        }
        Ok(Symbol { address: first.address, size: first.size })
    }

    /// Is there a symbol of that name?
    pub fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }

    /// The function of that name, as linked, if all its calls come to its entry.
    ///
    /// A compiler that splits a function leaves parts or copies named after it: `.constprop.0`,
    /// `.part.0`, `.isra.0`. Calls that go there would not be seen, so that is refused. `.cold` is
    /// what a function jumps to, and no entry.
    pub fn function(&self, name: &str) -> Result<Symbol, SymbolError> {
        let no =
            |why| SymbolError::NoFunction { file: self.file.clone(), name: name.to_owned(), why };
        let clone = self.entries.iter().map(|e| self.name(e)).find(|other| {
            let suffix = other.strip_prefix(name).and_then(|rest| rest.strip_prefix('.'));
            suffix.is_some_and(|suffix| suffix.split('.').next() != Some("cold"))
        });
        if let Some(clone) = clone {
            return Err(no(format!("the compiler split it, and calls may go to {clone}")));
        }
        match self.find(name) {
            Err(SymbolError::Missing { .. }) => {
                Err(no("it has no such function; was it inlined into its callers?".to_owned()))
            }
            Ok(symbol) if !self.all(name).any(|e| e.function) => {
                Err(no(format!("the symbol at {:#x} is no function", symbol.address)))
            }
            other => other,
        }
    }

    /// End of the last function before `address`.
    pub fn functions_end_before(&self, address: u64) -> Option<u64> {
        let before = self.entries.partition_point(|e| e.address < address);
        let last = self.entries[..before].iter().rev().find(|e| e.function)?;
        Some(last.address.saturating_add(last.size).min(address))
    }

    /// Bytes from `address` to the next symbol that is elsewhere: what a function has at most, for a table that
    /// does not say how long it is.
    pub fn room_at(&self, address: u64) -> Option<u64> {
        let after = self.entries.partition_point(|e| e.address <= address);
        self.entries.get(after).map(|next| next.address - address)
    }

    /// Name of the function around an address as linked, without the suffix of a split part.
    pub fn function_at(&self, address: u64) -> Option<&str> {
        let after = self.entries.partition_point(|e| e.address <= address);
        let entry = self.entries[..after].iter().rev().find(|e| e.function)?;
        if entry.size != 0 && address - entry.address >= entry.size {
            return None;
        }
        // Of several names for one address, the file's first.
        let same = self.entries[..after].iter().rev();
        let same = same.skip_while(|e| e.address > entry.address);
        let same = same.take_while(|e| e.address == entry.address);
        let first = same.filter(|e| e.function).last().unwrap_or(entry);
        self.name(first).split('.').next()
    }
}

/// Alignment of a kernel's address: the least `CONFIG_PHYSICAL_ALIGN` of x86-64 (arch/x86/Kconfig).
const SLIDE_ALIGN: u64 = 2 << 20;
/// Room for the kernel and its slide: `KERNEL_IMAGE_SIZE` (arch/x86/include/asm/page_64_types.h).
const SLIDE_MAX: u64 = 1 << 30;

/// Gates that lead to the same handlers from early boot on (arch/x86/kernel/idt.c, 6.12 to 7.3).
const GATES: [(u8, &str); 3] =
    [(0, "asm_exc_divide_error"), (6, "asm_exc_invalid_op"), (13, "asm_exc_general_protection")];

/// By how many bytes the kernel in `mem` runs above where `table` has it linked.
///
/// `idt_base` is the vCPU's IDT, mapped in `space`. Every gate looked at must tell the same slide, and
/// it must be one that the kernel can have chosen.
pub fn find_slide(
    mem: &GuestMemoryMmap,
    space: AddressSpace,
    idt_base: u64,
    table: &SymbolTable,
) -> Result<u64, SymbolError> {
    let at = &mut Reader::new(mem, space);
    let mut slide = None;
    for (vector, name) in GATES {
        let linked = table.find(name)?.address;
        let address = idt_base.wrapping_add(u64::from(vector) * 16);
        // SDM volume 3A, figure 6-8: offset 15:0, selector, IST and type, offset 31:16, 63:32.
        let [low, high] = at.value::<[u64; 2]>(address).map_err(|source| {
            let (file, name) = (table.file.clone(), format!("interrupt gate {vector}"));
            SymbolError::Unreadable { file, name, address, source }
        })?;
        let got = low & 0xffff | low >> 32 & 0xffff_0000 | high << 32;
        let this = got.wrapping_sub(linked);
        let why = match slide {
            _ if this % SLIDE_ALIGN != 0 => "the difference is no multiple of 2 MiB",
            _ if this >= SLIDE_MAX => "the difference is not between 0 and 1 GiB",
            Some(other) if other != this => "another gate gives another difference",
            _ => {
                slide = Some(this);
                continue;
            }
        };
        let (file, name) = (table.file.clone(), name.to_owned());
        return Err(SymbolError::Slide { file, vector, name, linked, got, why });
    }
    Ok(slide.unwrap_or_default())
}

/// The symbols of a kernel that runs in a guest.
#[derive(Clone, Debug)]
pub struct LinuxSymbols {
    table: SymbolTable,
    slide: u64,
    per_cpu: PerCpu,
}

/// Where CPU 0 has its per-CPU variables.
#[derive(Clone, Copy, Debug)]
struct PerCpu {
    /// The variables as linked.
    start: u64,
    end: u64,
    /// From a variable as linked to where the kernel takes its address to be.
    slide: u64,
    /// From there to CPU 0's instance: `__per_cpu_offset[0]`.
    offset: u64,
}

impl LinuxSymbols {
    /// The symbols of `table`, `slide` bytes up, in a guest that has set up its per-CPU variables.
    pub fn new(
        table: SymbolTable,
        slide: u64,
        mem: &GuestMemoryMmap,
        space: AddressSpace,
    ) -> Result<Self, SymbolError> {
        let per_cpu = PerCpu { start: 0, end: 0, slide: 0, offset: 0 };
        let mut symbols = Self { table, slide, per_cpu };
        // A kernel for one CPU has one copy of everything.
        if symbols.table.has("__per_cpu_offset") {
            symbols.per_cpu = symbols.find_per_cpu(&mut Reader::new(mem, space))?;
            symbols.check_per_cpu(&mut Reader::new(mem, space))?;
        }
        Ok(symbols)
    }

    fn read(&self, at: &mut Reader<'_>, name: &str, address: u64) -> Result<u64, SymbolError> {
        at.value(address).map_err(|source| {
            let (file, name) = (self.table.file.clone(), name.to_owned());
            SymbolError::Unreadable { file, name, address, source }
        })
    }

    fn find_per_cpu(&self, at: &mut Reader<'_>) -> Result<PerCpu, SymbolError> {
        let start = self.table.find("__per_cpu_start")?.address;
        let end = self.table.find("__per_cpu_end")?.address;
        let offsets = self.table.find("__per_cpu_offset")?.address.wrapping_add(self.slide);
        let offset = self.read(at, "__per_cpu_offset[0]", offsets)?;
        // What is linked in the image slides with it; what is linked from 0 on does not.
        let slide = if start == 0 { 0 } else { self.slide };
        Ok(PerCpu { start, end, slide, offset })
    }

    /// CPU 0's copy knows how far it is from the original.
    fn check_per_cpu(&self, at: &mut Reader<'_>) -> Result<(), SymbolError> {
        let name = "this_cpu_off";
        let address = self.find(name)?;
        let got = self.read(at, name, address)?;
        let expected = self.per_cpu.offset;
        if got == expected {
            return Ok(());
        }
        let (file, name) = (self.table.file.clone(), name.to_owned());
        Err(SymbolError::Contradiction { file, name, address, expected, got })
    }

    /// Guest virtual address of a symbol; of a per-CPU variable, of CPU 0's instance.
    pub fn find(&self, name: &str) -> Result<u64, SymbolError> {
        let address = self.table.find(name)?.address;
        let per_cpu = &self.per_cpu;
        let offset = match (per_cpu.start..per_cpu.end).contains(&address) {
            true => per_cpu.slide.wrapping_add(per_cpu.offset),
            false => self.slide,
        };
        Ok(address.wrapping_add(offset))
    }

    /// Guest virtual address of a function, if all its calls come to its entry: see
    /// [`SymbolTable::function`].
    pub fn function(&self, name: &str) -> Result<u64, SymbolError> {
        Ok(self.table.function(name)?.address.wrapping_add(self.slide))
    }

    /// Name of the function that a call returns to; `None` where no function is known.
    pub fn caller(&self, return_address: u64) -> Option<&str> {
        // A call that does not return may be a function's last instruction.
        self.table.function_at(return_address.wrapping_sub(self.slide).wrapping_sub(1))
    }

    /// The symbols as linked.
    pub fn table(&self) -> &SymbolTable {
        &self.table
    }

    /// By how many bytes the kernel runs above where it was linked.
    pub fn slide(&self) -> u64 {
        self.slide
    }

    /// From a per-CPU pointer of the kernel to CPU 0's instance.
    pub(super) fn per_cpu_instance(&self, pointer: u64) -> u64 {
        pointer.wrapping_add(self.per_cpu.offset)
    }
}

impl SymbolSource for LinuxSymbols {
    fn address(&self, name: &'static str) -> Result<u64, SymbolError> {
        self.find(name)
    }
}
