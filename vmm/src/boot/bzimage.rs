//! A bzImage, by its 64-bit entry (Documentation/arch/x86/boot.rst, Linux 7.3): 512 bytes behind the
//! start of the protected-mode code, which goes to the address that the kernel prefers. The decompressor
//! moves the kernel on from there if KASLR is on.
//!
//! linux-loader copies the code and the header; it checks the magic alone, so all else is checked here.

use std::io::Cursor;

use linux_loader::loader::KernelLoader;
use linux_loader::loader::bootparam::{LOADED_HIGH, XLF_KERNEL_64, setup_header};
use linux_loader::loader::bzimage::BzImage;
use thiserror::Error;
use vm_memory::{ByteValued, GuestAddress, GuestMemoryMmap};

use super::kernel::Kernel;
use super::layout::HIGH_MEMORY;

/// Where the setup header is in the file.
const HEADER: usize = 0x1f1;
const SECTOR: usize = 512;
/// The 64-bit entry, from the start of the protected-mode code.
const ENTRY_64: u64 = 0x200;
/// Boot protocol 2.12 (Linux 3.8) introduced `xloadflags`.
const VERSION_MIN: u16 = 0x020c;

/// Offset and value of the magic number that every bzImage has.
pub const MAGIC: (usize, &[u8; 4]) = (0x202, b"HdrS");

/// Why a file is not a bzImage that fits.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BzImageError {
    /// Something that its header says is not in the file.
    #[error("truncated: {what} needs {needed} bytes, the file has {len}")]
    Truncated {
        /// What is cut off.
        what: &'static str,
        /// Bytes that the file should have at least.
        needed: u64,
        /// The file's length.
        len: usize,
    },
    /// A field of the setup header does not have a value that runs.
    #[error("setup header: {field}: expected {expected}, got {got:#x}")]
    Header {
        /// The field, as the boot protocol names it.
        field: &'static str,
        /// What runs.
        expected: &'static str,
        /// Its value.
        got: u64,
    },
    /// Too little memory at the address that the kernel prefers.
    #[error(
        "the kernel needs {size:#x} bytes at physical {address:#x} to unpack itself (init_size, \
         pref_address); memory ends at {memory_end:#x}: give the guest more memory"
    )]
    NoRoom {
        /// The address.
        address: u64,
        /// Bytes.
        size: u64,
        /// End of guest memory.
        memory_end: u64,
    },
    /// linux-loader refuses what passed the checks above.
    #[error("copy the protected-mode code into guest memory")]
    Loader(#[source] linux_loader::loader::Error),
}

/// Copies the bzImage `file` into fresh `memory`, which ends at `memory_end`.
pub(super) fn load(
    memory: &GuestMemoryMmap,
    file: &[u8],
    memory_end: u64,
) -> Result<Kernel, BzImageError> {
    let header = check(file)?;
    let (address, size) = (header.pref_address, u64::from(header.init_size));
    let end = address.checked_add(size).filter(|end| *end <= memory_end);
    let Some(end) = end else {
        return Err(BzImageError::NoRoom { address, size, memory_end });
    };
    BzImage::load(memory, Some(GuestAddress(address)), &mut Cursor::new(file), None)
        .map_err(BzImageError::Loader)?;
    Ok(Kernel { entry: address + ENTRY_64, end, header })
}

/// Checks that all of the file is there and can be started in 64-bit mode; returns its setup header.
fn check(file: &[u8]) -> Result<setup_header, BzImageError> {
    let len = file.len();
    let truncated = |what, needed| BzImageError::Truncated { what, needed, len };
    let has = |what, needed: u64| {
        if len as u64 >= needed { Ok(()) } else { Err(truncated(what, needed)) }
    };
    let header_end = HEADER + size_of::<setup_header>();
    let header = file
        .get(HEADER..header_end)
        .map(|bytes| {
            let mut header = setup_header::default();
            header.as_mut_slice().copy_from_slice(bytes);
            header
        })
        .ok_or(truncated("the setup header", header_end as u64))?;

    let refuse = |field, expected, got| Err(BzImageError::Header { field, expected, got });
    let (boot_flag, magic, version) = (header.boot_flag, header.header, header.version);
    if boot_flag != 0xaa55 {
        return refuse("boot_flag", "0xaa55", boot_flag.into());
    }
    if magic != u32::from_le_bytes(*MAGIC.1) {
        return refuse("header", "0x53726448 (HdrS)", magic.into());
    }
    if version < VERSION_MIN {
        return refuse("version", "0x20c or later (Linux 3.8)", version.into());
    }
    if header.loadflags & LOADED_HIGH == 0 {
        return refuse("loadflags", "LOADED_HIGH (bit 0)", header.loadflags.into());
    }
    let xloadflags = header.xloadflags;
    if xloadflags & XLF_KERNEL_64 == 0 {
        return refuse("xloadflags", "XLF_KERNEL_64 (bit 0), a 64-bit kernel", xloadflags.into());
    }

    // 0 stands for 4, for the sake of very old loaders.
    let sectors = if header.setup_sects == 0 { 4 } else { usize::from(header.setup_sects) };
    let setup = ((sectors + 1) * SECTOR) as u64;
    let (code, payload_offset, payload) =
        (u64::from(header.syssize) * 16, header.payload_offset, header.payload_length);
    has("the 64-bit entry", setup + ENTRY_64 + 1)?;
    has("the protected-mode code (syssize)", setup + code)?;
    has("the compressed kernel (payload)", setup + u64::from(payload_offset) + u64::from(payload))?;

    let (address, align) = (header.pref_address, u64::from(header.kernel_alignment));
    if address < HIGH_MEMORY {
        return refuse("pref_address", "0x100000 or above", address);
    }
    if align != 0 && !address.is_multiple_of(align) {
        return refuse("pref_address", "a multiple of kernel_alignment", address);
    }
    if u64::from(header.init_size) < len as u64 - setup {
        return refuse("init_size", "at least the protected-mode code", header.init_size.into());
    }
    Ok(header)
}

/// bzImages for tests, here and of the whole loader.
#[cfg(test)]
pub mod crafted {
    use super::*;

    /// A file by what its header says and its protected-mode code.
    pub struct BzImageFile {
        /// `setup_sects`.
        pub setup_sects: u8,
        /// `boot_flag`.
        pub boot_flag: u16,
        /// `version`.
        pub version: u16,
        /// `loadflags`.
        pub loadflags: u8,
        /// `xloadflags`.
        pub xloadflags: u16,
        /// `cmdline_size`.
        pub cmdline_size: u32,
        /// `initrd_addr_max`.
        pub initrd_addr_max: u32,
        /// `kernel_alignment`.
        pub kernel_alignment: u32,
        /// `pref_address`.
        pub pref_address: u64,
        /// `init_size`.
        pub init_size: u32,
        /// `payload_offset`.
        pub payload_offset: u32,
        /// `payload_length`.
        pub payload_length: u32,
        /// What is behind the setup sectors.
        pub code: Vec<u8>,
    }

    impl Default for BzImageFile {
        fn default() -> Self {
            Self {
                setup_sects: 1,
                boot_flag: 0xaa55,
                version: 0x20f,
                loadflags: LOADED_HIGH,
                xloadflags: XLF_KERNEL_64,
                cmdline_size: 2047,
                initrd_addr_max: 0x7fff_ffff,
                kernel_alignment: 0x20_0000,
                pref_address: 0x100_0000,
                init_size: 0x80_0000,
                payload_offset: 0x210,
                payload_length: 0x100,
                code: (1..=0x600u32).map(|i| i as u8).collect(),
            }
        }
    }

    impl BzImageFile {
        /// The file.
        pub fn bytes(&self) -> Vec<u8> {
            let header = setup_header {
                setup_sects: self.setup_sects,
                syssize: (self.code.len() / 16) as u32,
                boot_flag: self.boot_flag,
                header: u32::from_le_bytes(*MAGIC.1),
                version: self.version,
                loadflags: self.loadflags,
                initrd_addr_max: self.initrd_addr_max,
                kernel_alignment: self.kernel_alignment,
                relocatable_kernel: 1,
                xloadflags: self.xloadflags,
                cmdline_size: self.cmdline_size,
                payload_offset: self.payload_offset,
                payload_length: self.payload_length,
                pref_address: self.pref_address,
                init_size: self.init_size,
                ..Default::default()
            };
            let sectors = if self.setup_sects == 0 { 4 } else { usize::from(self.setup_sects) };
            let mut file = vec![0; (sectors + 1) * SECTOR];
            file[HEADER..HEADER + size_of_val(&header)].copy_from_slice(header.as_slice());
            file.extend(&self.code);
            file
        }
    }
}

#[cfg(test)]
mod tests;
