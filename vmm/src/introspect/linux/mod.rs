//! A Linux kernel as a source of symbols, layout and groups: any build from 6.12 to 7.3, with what its
//! own symbol table and BTF say of it. Nothing here asks for a version.
//!
//! [`Linux::find`] is given a guest that has booted; it undoes KASLR, finds CPU 0's variables and the
//! kernel's own page tables. [`Linux::groups`] walks the groups that exist at that instant;
//! [`Linux::introspector`] resolves everything that is read from then on. [`Linux::probe`] patches a
//! function's entry.

pub mod btf;
pub mod displace;
mod groups;
pub mod layout;
pub mod patch;
pub mod run_view;
pub mod symbols;
#[cfg(test)]
mod tests;

use object::elf::SHT_NOBITS;
use object::read::elf::SectionHeader;
use object::{Endianness, Object, ObjectSection};
use vm_memory::GuestMemoryMmap;

pub use groups::{FoundGroup, Groups};

use self::btf::{Btf, BtfError};
use self::layout::{BtfLayout, Shift};
use self::symbols::{LinuxSymbols, SymbolTable, find_slide};
use super::groups::GroupTable;
use super::introspector::Introspector;
use super::places::{Lacks, NO_GROUPS, SetupError, needs};
use super::read::{ReadError, Reader};
use super::symbols::{ElfSymbols, SymbolError};
use super::translate::{AddressSpace, Depth};

/// Most bytes of BTF that are taken from guest memory. A distribution's kernel has about 6 MiB.
const MAX_BTF: u64 = 64 << 20;

/// The types in the vmlinux in `data`; `file` names it in errors. `Missing` if it has none.
pub fn types_of_elf(file: &str, data: &[u8]) -> Result<Btf, SetupError> {
    let elf = ElfSymbols::parse_kernel(file, data)?;
    let section = elf.elf().section_by_name(".BTF").ok_or(BtfError::Missing)?;
    if section.elf_section_header().sh_type(Endianness::Little) == SHT_NOBITS {
        return Err(BtfError::NoBits { size: section.size() }.into());
    }
    let malformed = |source| SymbolError::Malformed { file: file.to_owned(), source };
    Ok(Btf::parse(section.data().map_err(malformed)?.to_owned())?)
}

/// A Linux kernel that runs in a guest.
#[derive(Clone, Debug)]
pub struct Linux {
    mem: GuestMemoryMmap,
    space: AddressSpace,
    symbols: LinuxSymbols,
    layout: BtfLayout,
}

impl Linux {
    /// Finds the kernel of `table` in a guest that has booted and stands still.
    ///
    /// `cr3`, `depth` and `idt_base` are the vCPU's, in whatever task it is. The types are those that
    /// the kernel carries in memory. `types` are the kernel file's, if it is at hand: they must be the
    /// same, or it is the file of another kernel, whose layout would tell the wrong fields.
    pub fn find(
        mem: GuestMemoryMmap,
        cr3: u64,
        depth: Depth,
        idt_base: u64,
        table: SymbolTable,
        types: Option<Btf>,
    ) -> Result<Self, SetupError> {
        let space = AddressSpace::new(cr3, depth);
        let slide = find_slide(&mem, space, idt_base, &table)?;
        let space = kernel_space(&mem, space, depth, &table, slide)?;
        let symbols = LinuxSymbols::new(table, slide, &mem, space)?;
        let layout = BtfLayout::new(match (types_in_guest(&mem, space, &symbols), types) {
            (Ok(running), Some(types)) if running != types => {
                return Err(SetupError::Foreign { file: symbols.table().file().to_owned() });
            }
            (Err(SetupError::Types(BtfError::Missing)), Some(types)) => types,
            (running, _) => running?,
        });
        Ok(Self { mem, space, symbols, layout })
    }

    /// Takes a member to be elsewhere than it is.
    pub fn shift(&mut self, shift: Shift) {
        self.layout.shift(shift);
    }

    fn reader(&self) -> Reader<'_> {
        Reader::new(&self.mem, self.space)
    }

    /// Its symbols.
    pub fn symbols(&self) -> &LinuxSymbols {
        &self.symbols
    }

    /// The kernel's own page tables: what no task's end takes away.
    pub fn space(&self) -> AddressSpace {
        self.space
    }

    /// The kernel's own line about itself (`linux_banner`), as far as it prints.
    pub fn banner(&self) -> Result<String, SetupError> {
        let address = self.symbols.find("linux_banner")?;
        let mut bytes = [0; 256];
        let at = &mut self.reader();
        at.bytes(address, &mut bytes).map_err(unreadable("linux_banner", "0", address))?;
        let line = bytes.split(|b| matches!(b, 0 | b'\n')).next().unwrap_or_default();
        let text = String::from_utf8_lossy(line);
        Ok(text.chars().filter(|c| !c.is_control()).collect())
    }

    /// Where the function returns to whose entry the vCPU is at, with this `rsp`. In
    /// [`LinuxSymbols::caller`] it is the caller's name.
    pub fn return_address(&self, rsp: u64) -> Result<u64, ReadError> {
        self.reader().pointer("stack", "return address", rsp)
    }

    /// All task groups that the guest has at this instant: the root first, parents before children.
    pub fn found_groups(&self) -> Result<Vec<FoundGroup>, SetupError> {
        let is_array = needs(NO_GROUPS, self.layout.pointers("task_group", "cfs_rq"))? == 2;
        groups::discover(&mut self.reader(), &self.symbols, &self.layout, is_array)
    }

    /// The groups that the guest has at this instant, those of the paths in `wanted` first.
    pub fn groups(&self, wanted: &[&str]) -> Result<Groups, SetupError> {
        Groups::new(&self.found_groups()?, wanted)
    }

    /// An introspector that knows these groups.
    pub fn introspector(&self, groups: GroupTable) -> Result<Introspector, SetupError> {
        let mem = self.mem.clone();
        let mut introspector =
            Introspector::new(mem, self.space, &self.symbols, &self.layout, groups)?;
        if introspector.places.ksoftirqd.is_none() {
            self.symbols.find("ksoftirqd")?;
        }
        if !self.enabled("sched_clock_irqtime")?.unwrap_or(true) {
            return Err(SetupError::Lacks {
                lacks: "accounts no IRQ time, since it does not trust its clock",
                missing: "sched_clock_irqtime is off".to_owned(),
            });
        }
        if self.enabled("psi_disabled")?.unwrap_or(false) {
            introspector.places.psi = None;
            introspector.places.lacks.psi.get_or_insert("has PSI turned off: boot it with psi=1");
        }
        if !self.enabled("paravirt_steal_rq_enabled")?.unwrap_or(true) {
            let off = "has steal accounting turned off: it found no steal clock at boot";
            introspector.places.lacks.steal.get_or_insert(off);
        }
        Ok(introspector)
    }

    /// What the kernel lacks: at ready, before a run's groups exist.
    pub fn lacks(&self) -> Result<Lacks, SetupError> {
        let groups = self.groups(&[])?;
        Ok(self.introspector(groups.table)?.lacks())
    }

    /// A static key, or a variable in its place: its count comes first. `None` without it.
    fn enabled(&self, name: &'static str) -> Result<Option<bool>, SetupError> {
        if !self.symbols.table().has(name) {
            return Ok(None);
        }
        let address = self.symbols.find(name)?;
        let count = self.reader().value::<i32>(address);
        let count = count.map_err(unreadable(name, "enabled", address))?;
        Ok(Some(count > 0))
    }

    /// What `sched_clock_cpu()` adds to the time of the pvclock page, ns, modulo 2^64.
    ///
    /// kernel/sched/clock.c and arch/x86/kernel/kvmclock.c, 6.12 to 7.3: a stable clock is the page's
    /// time since kvmclock was set up, plus an offset.
    pub fn sched_clock_offset_ns(&self) -> Result<u64, SetupError> {
        if !self.enabled("__sched_clock_stable")?.unwrap_or(true) {
            return Err(SetupError::Lacks {
                lacks: "does not take its clock for stable",
                missing: "__sched_clock_stable is off".to_owned(),
            });
        }
        let read = |name| -> Result<u64, SetupError> {
            let address = self.symbols.find(name)?;
            let value = self.reader().value(address);
            Ok(value.map_err(unreadable(name, "value", address))?)
        };
        let since = match read("kvm_sched_clock_offset") {
            Err(SetupError::Symbol(e @ SymbolError::Missing { .. })) => {
                let lacks = "is built without CONFIG_KVM_GUEST";
                return Err(SetupError::Lacks { lacks, missing: e.to_string() });
            }
            other => other?,
        };
        Ok(read("__sched_clock_offset")?.wrapping_sub(since))
    }
}

fn unreadable(
    structure: &'static str,
    member: &'static str,
    address: u64,
) -> impl Fn(super::translate::TranslateError) -> ReadError {
    move |source| ReadError::Unreadable { structure, member, address, source }
}

/// The page tables of the kernel itself, `init_top_pgt`.
///
/// `space` is the current task's. If that is the user half of a kernel that isolates its page tables,
/// where the kernel is not mapped, its own half is the page before (arch/x86/mm/pti.c).
fn kernel_space(
    mem: &GuestMemoryMmap,
    space: AddressSpace,
    depth: Depth,
    table: &SymbolTable,
    slide: u64,
) -> Result<AddressSpace, SetupError> {
    let name = "init_top_pgt";
    let address = table.find(name)?.address.wrapping_add(slide);
    let isolated = AddressSpace::new(space.root() & !super::translate::PAGE_SIZE, depth);
    let found =
        space.translate(mem, address).or_else(|e| isolated.translate(mem, address).map_err(|_| e));
    let found = found.map_err(unreadable(name, "0", address))?;
    let kernel = AddressSpace::new(found.gpa, depth);
    let again = kernel.translate(mem, address).map_err(unreadable(name, "0", address))?;
    if again.gpa != found.gpa {
        return Err(SetupError::Symbol(SymbolError::Contradiction {
            file: table.file().to_owned(),
            name: name.to_owned(),
            address,
            expected: found.gpa,
            got: again.gpa,
        }));
    }
    Ok(kernel)
}

/// The types that a kernel carries in its own memory.
fn types_in_guest(
    mem: &GuestMemoryMmap,
    space: AddressSpace,
    symbols: &LinuxSymbols,
) -> Result<Btf, SetupError> {
    let (start, stop) = ("__start_BTF", "__stop_BTF");
    if !symbols.table().has(start) {
        return Err(BtfError::Missing.into());
    }
    let address = symbols.find(start)?;
    let len = symbols.find(stop)?.wrapping_sub(address);
    if len > MAX_BTF {
        return Err(BtfError::TooLong { len, limit: MAX_BTF }.into());
    }
    let mut data = vec![0; len as usize];
    let read = Reader::new(mem, space).bytes(address, &mut data);
    read.map_err(unreadable(start, "0", address))?;
    Ok(Btf::parse(data)?)
}
