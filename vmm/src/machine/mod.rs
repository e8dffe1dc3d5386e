//! The machine that the bundled guest runs on: memory, page tables, registers, the image.

pub mod clock_pages;
pub mod image;
pub mod layout;
pub mod long_mode;
pub mod paging;

use guest_model::wire::BootPage;
use kvm_bindings::kvm_regs;
use thiserror::Error;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use zerocopy::IntoBytes;

use crate::kvm::{Kvm, Vcpu, VcpuError, Vm, VmError};
use image::ImageError;
use long_mode::Tables;

/// The bundled guest, as vmm/build.rs built it.
pub const FIRMWARE: &[u8] = include_bytes!(env!("RQSCOPE_FIRMWARE"));

/// The image's descriptor table: null, code, data. Interrupt returns reload from it.
pub const GDT: [u64; 3] = [0, long_mode::CODE, long_mode::DATA];
/// Where and what it starts with.
const TABLES: Tables = Tables {
    gdt: layout::GDT.virt(),
    gdt_size: size_of_val(&GDT),
    code: 8,
    data: 16,
    cr3: paging::CR3,
};

/// Why a machine could not be built.
#[derive(Debug, Error)]
pub enum MachineError {
    /// No host memory for the guest.
    #[error("allocate {:#x} bytes of guest memory", layout::MEMORY_SIZE)]
    Memory(#[source] vm_memory::mmap::FromRangesError),
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
    /// The image is not one that this machine runs.
    #[error("load the guest image")]
    Image(#[from] ImageError),
    /// KVM refuses the virtual machine.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// KVM refuses the vCPU or its registers.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
}

/// A machine about to execute the first instruction of its image.
#[derive(Debug)]
pub struct Machine {
    /// Guest physical memory, shared with the guest: hostile once it has run.
    pub memory: GuestMemoryMmap,
    /// The processor.
    pub vcpu: Vcpu,
    _vm: Vm,
}

impl Machine {
    /// Loads the ELF image `elf` and `boot_page` into fresh memory and puts the vCPU at its entry, in
    /// long mode, with `rdi` the boot page's virtual address.
    pub fn new(kvm: &Kvm, elf: &[u8], boot_page: &BootPage) -> Result<Self, MachineError> {
        let (memory, entry) = load(elf)?;
        for (address, table) in paging::tables() {
            write(&memory, "page table", address, table.as_bytes())?;
        }
        write(&memory, "GDT", layout::GDT.start, GDT.as_bytes())?;
        write(&memory, "boot page", layout::BOOT_PAGE.start, boot_page.as_bytes())?;

        let vm = Vm::new(kvm, memory.clone())?;
        let mut vcpu = vm.create_vcpu(kvm)?;
        vcpu.set_sregs(&long_mode::sregs(vcpu.read_sregs()?, &TABLES))?;
        vcpu.set_regs(&entry_regs(entry))?;
        Ok(Self { memory, vcpu, _vm: vm })
    }
}

/// At `entry`, on an empty stack, with `rdi` the boot page's virtual address.
fn entry_regs(entry: u64) -> kvm_regs {
    kvm_regs {
        rip: entry,
        rsp: layout::STACK.virt() + layout::STACK.size,
        rdi: layout::BOOT_PAGE.virt(),
        rflags: long_mode::RFLAGS,
        ..Default::default()
    }
}

/// Fresh guest memory with the ELF image `elf` in it, and the image's entry.
pub fn load(elf: &[u8]) -> Result<(GuestMemoryMmap, u64), MachineError> {
    let ranges = [(GuestAddress(0), layout::MEMORY_SIZE as usize)];
    let memory = GuestMemoryMmap::from_ranges(&ranges).map_err(MachineError::Memory)?;
    let entry = image::load(&memory, elf)?;
    Ok((memory, entry))
}

fn write(
    memory: &GuestMemoryMmap,
    what: &'static str,
    address: u64,
    bytes: &[u8],
) -> Result<(), MachineError> {
    memory.write_slice(bytes, GuestAddress(address)).map_err(|source| MachineError::Write {
        what,
        address,
        source,
    })
}
