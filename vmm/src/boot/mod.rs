//! Starting Linux: a kernel file, an initrd and a command line become guest memory and registers.
//!
//! [`Linux::load`] checks and copies; nothing here knows a file descriptor. A kernel is started by its
//! 64-bit entry whichever kind of file it is in, so boot has one path.

pub mod bzimage;
pub mod cmdline;
pub mod cpuid;
pub mod entry;
pub mod kernel;
pub mod layout;
pub mod vmlinux;
pub mod zero_page;

use thiserror::Error;
use vm_memory::mmap::FromRangesError;
use vm_memory::{ByteValued, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, MmapRegion};
use zerocopy::IntoBytes;

use crate::machine::layout::{LARGE_PAGE, PAGE};
use cmdline::{CmdlineError, VirtioMmio};
use kernel::{KernelError, Kind};

/// A file's name, for errors, and its contents.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// As the user gave it.
    pub name: &'a str,
    /// All of it.
    pub bytes: &'a [u8],
}

/// A Linux machine to be started.
#[derive(Clone, Copy, Debug)]
pub struct Linux<'a> {
    /// vmlinux or bzImage.
    pub kernel: File<'a>,
    /// Initial file system.
    pub initrd: Option<File<'a>>,
    /// The user's part of the command line.
    pub cmdline: &'a str,
    /// Only warnings and worse reach the console, unless the command line says otherwise. Each character
    /// is an exit or two, so that a boot that says everything takes twice as long.
    pub quiet: bool,
    /// Devices that the kernel learns of from its command line.
    pub devices: &'a [VirtioMmio],
    /// Bytes of memory, from 0 on; [`layout::MEMORY_MIN`] to [`layout::MEMORY_MAX`], whole pages.
    pub memory_size: u64,
}

/// Guest memory with a kernel ready to start. [`entry::regs`] and [`entry::sregs`] are the registers,
/// [`cpuid::filter`] the processor.
#[derive(Debug)]
pub struct Loaded {
    /// Guest physical memory: hostile once the guest has run.
    pub memory: GuestMemoryMmap,
    /// What the kernel file is. A bzImage's kernel moves itself if KASLR is on.
    pub kind: Kind,
    /// Physical address of the first instruction.
    pub entry: u64,
    /// The whole command line.
    pub cmdline: String,
}

/// Why a Linux machine cannot be started.
#[derive(Debug, Error)]
pub enum BootError {
    /// Memory of an impossible size.
    #[error(
        "guest memory of {got:#x} bytes: expected {:#x} ({} MiB) to {:#x} ({} MiB), a multiple of {PAGE:#x}",
        layout::MEMORY_MIN, layout::MEMORY_MIN >> 20, layout::MEMORY_MAX, layout::MEMORY_MAX >> 20
    )]
    MemorySize {
        /// Bytes asked for.
        got: u64,
    },
    /// No host memory for the guest.
    #[error("allocate {size:#x} bytes of guest memory")]
    Memory {
        /// Bytes asked for.
        size: u64,
        /// What vm-memory says.
        source: FromRangesError,
    },
    /// The kernel cannot be loaded.
    #[error("load kernel {name} (expected an x86-64 Linux vmlinux or bzImage)")]
    Kernel {
        /// The file.
        name: String,
        /// What is wrong with it.
        source: KernelError,
    },
    /// An initrd of no bytes.
    #[error("load initrd {name}: the file is empty")]
    EmptyInitrd {
        /// The file.
        name: String,
    },
    /// No room for the initrd.
    #[error(
        "load initrd {name}: its {size:#x} bytes do not fit between the kernel's end, {start:#x}, and \
         {end:#x}, in {memory_size:#x} bytes of guest memory: give the guest more memory"
    )]
    InitrdSize {
        /// The file.
        name: String,
        /// Its bytes.
        size: u64,
        /// First address that it could have.
        start: u64,
        /// End of memory, or of what the kernel can reach.
        end: u64,
        /// Bytes of guest memory.
        memory_size: u64,
    },
    /// The command line cannot be given to the kernel.
    #[error(transparent)]
    CommandLine(#[from] CmdlineError),
    /// A structure does not fit where the layout puts it.
    #[error("write the {what} at guest physical {address:#x}")]
    Write {
        /// What was written.
        what: &'static str,
        /// Guest physical address.
        address: u64,
        /// What vm-memory says.
        source: vm_memory::GuestMemoryError,
    },
}

impl Linux<'_> {
    /// Fresh memory with the kernel, its initrd and all that its 64-bit entry wants to find.
    pub fn load(&self) -> Result<Loaded, BootError> {
        let size = self.memory_size;
        let sizes = layout::MEMORY_MIN..=layout::MEMORY_MAX;
        if !sizes.contains(&size) || !size.is_multiple_of(PAGE) {
            return Err(BootError::MemorySize { got: size });
        }
        let memory = allocate(size).map_err(|source| BootError::Memory { size, source })?;
        let write = |what, address, bytes: &[u8]| {
            let written = memory.write_slice(bytes, GuestAddress(address));
            written.map_err(|source| BootError::Write { what, address, source })
        };

        let (kind, kernel) = kernel::load(&memory, self.kernel.bytes, size)
            .map_err(|source| BootError::Kernel { name: self.kernel.name.to_owned(), source })?;
        let header = kernel.header;
        let most = header.cmdline_size as usize;
        let cmdline = cmdline::build(self.cmdline, self.quiet, self.devices, most)?;
        write("command line", layout::COMMAND_LINE.start, &[cmdline.as_bytes(), &[0]].concat())?;

        let mut place = None;
        if let Some(initrd) = self.initrd {
            let address = self.place_initrd(initrd, kernel.end, header.initrd_addr_max.into())?;
            write("initrd", address, initrd.bytes)?;
            place = Some((address as u32, initrd.bytes.len() as u32));
        }
        let params = zero_page::build(header, place, size);
        write("zero page", layout::ZERO_PAGE.start, params.as_slice())?;
        for (address, table) in entry::page_tables() {
            write("page table", address, table.as_bytes())?;
        }
        write("GDT", layout::GDT.start, entry::DESCRIPTORS.as_bytes())?;
        Ok(Loaded { memory, kind, entry: kernel.entry, cmdline })
    }

    /// The highest whole page from which `initrd` fits below the end of memory and `last`, the last
    /// address that the kernel can reach (`initrd_addr_max`).
    fn place_initrd(&self, initrd: File, start: u64, last: u64) -> Result<u64, BootError> {
        let name = || initrd.name.to_owned();
        let (size, memory_size) = (initrd.bytes.len() as u64, self.memory_size);
        if size == 0 {
            return Err(BootError::EmptyInitrd { name: name() });
        }
        let end = memory_size.min(last + 1);
        end.checked_sub(size)
            .map(|address| address & !(PAGE - 1))
            .filter(|address| *address >= start)
            .ok_or_else(|| BootError::InitrdSize { name: name(), size, start, end, memory_size })
    }
}

/// Memory that begins at a large page of the host's if it can be had, so that a large page of the guest's
/// is one of the host's. Mappings are placed below each other: with one of the right size before it, the
/// next is aligned. Where they are not, it is memory all the same.
fn allocate(size: u64) -> Result<GuestMemoryMmap, FromRangesError> {
    let new = || GuestMemoryMmap::from_ranges(&[(GuestAddress(0), size as usize)]);
    let memory = new()?;
    let begin = memory.get_host_address(GuestAddress(0)).map_or(0, |host| host as u64);
    let beyond = begin % LARGE_PAGE;
    if beyond == 0 {
        return Ok(memory);
    }
    drop(memory);
    let before: Option<MmapRegion> = MmapRegion::new(beyond as usize).ok();
    let memory = new();
    drop(before);
    memory
}

#[cfg(test)]
mod tests;
