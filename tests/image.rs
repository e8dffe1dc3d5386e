//! ELF images that the tests make: a few instructions, a kernel for introspection to read.

use std::mem::offset_of;

use guest_model::fair::CfsRq;
use guest_model::kernel::{Kernel, Task};
use guest_model::rq::Rq;
use guest_model::wire::{control, port};
use rqscope::machine::layout::{IMAGE, KERNEL_BASE};

/// Where code begins, and what else the images have, physical.
pub const CODE: u64 = IMAGE.start;
/// The guest's clock page; its steal page follows.
const CLOCK_PAGE: u64 = IMAGE.start + 0x1_0000;
const STEAL_PAGE: u64 = CLOCK_PAGE + 0x1000;
/// `rqscope_kernel`.
const KERNEL: u64 = IMAGE.start + 0x4_0000;

const MSR_KVM_SYSTEM_TIME_NEW: u32 = 0x4b56_4d01;
const MSR_KVM_STEAL_TIME: u32 = 0x4b56_4d03;

/// Guest virtual address of a physical one, in the kernel half.
pub const fn virt(physical: u64) -> u64 {
    KERNEL_BASE + physical
}

/// x86-64 instructions, in the order of execution (SDM 2).
#[derive(Clone, Debug, Default)]
pub struct Code(Vec<u8>);

impl Code {
    /// No instruction yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Instructions as bytes.
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn imm32(self, opcode: u8, value: u32) -> Self {
        self.bytes(&[opcode]).bytes(&value.to_le_bytes())
    }

    fn imm64(self, opcode: [u8; 2], value: u64) -> Self {
        self.bytes(&opcode).bytes(&value.to_le_bytes())
    }

    /// The arguments of what follows: `rdi`, `rsi`, `rdx`.
    pub fn args(self, [rdi, rsi, rdx]: [u64; 3]) -> Self {
        self.imm64([0x48, 0xbf], rdi).imm64([0x48, 0xbe], rsi).imm64([0x48, 0xba], rdx)
    }

    /// `mov rax, value`.
    pub fn rax(self, value: u64) -> Self {
        self.imm64([0x48, 0xb8], value)
    }

    /// `out port, eax` with `eax` = `value`.
    pub fn out(self, port: u16, value: u32) -> Self {
        self.imm32(0xb8, value).bytes(&[0xe7, port as u8])
    }

    /// `in eax, port`.
    pub fn input(self, port: u16) -> Self {
        self.bytes(&[0xe5, port as u8])
    }

    /// `wrmsr`.
    pub fn wrmsr(self, index: u32, value: u64) -> Self {
        self.imm32(0xb9, index)
            .imm32(0xb8, value as u32)
            .imm32(0xba, (value >> 32) as u32)
            .bytes(&[0x0f, 0x30])
    }

    /// Hits a probe.
    pub fn probe(self, number: u8, args: [u64; 3]) -> Self {
        self.args(args).bytes(&[0xb0, number, 0xe6, port::PROBE as u8])
    }

    /// Writes a control word.
    pub fn control(self, word: u32, args: [u64; 3]) -> Self {
        self.args(args).out(port::CONTROL, word)
    }

    /// Registers the clock and steal pages and says that the guest is ready.
    pub fn boot(self) -> Self {
        self.clocks().control(control::READY, [0; 3])
    }

    /// Registers the clock and steal pages.
    pub fn clocks(self) -> Self {
        self.clock_page(CLOCK_PAGE).wrmsr(MSR_KVM_STEAL_TIME, STEAL_PAGE | 1)
    }

    /// Registers `address` as the clock page.
    pub fn clock_page(self, address: u64) -> Self {
        self.wrmsr(MSR_KVM_SYSTEM_TIME_NEW, address | 1)
    }

    /// The bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// `body` again and again.
    pub fn forever(mut self, body: Self) -> Self {
        self.0.extend_from_slice(&body.0);
        // jmp rel32, from behind itself.
        let back = -(body.0.len() as i32 + 5);
        self.bytes(&[0xe9]).bytes(&back.to_le_bytes())
    }
}

/// A kernel at rest, as far as introspection reads one: swapper runs, and there is a root group.
#[derive(Clone, Debug)]
pub struct FakeKernel(Vec<u8>);

impl FakeKernel {
    /// Guest virtual address of the byte at `offset`.
    pub const fn at(offset: usize) -> u64 {
        virt(KERNEL) + offset as u64
    }

    /// Guest virtual address of its run queue.
    pub const fn rq() -> u64 {
        Self::at(offset_of!(Kernel, rq))
    }

    /// Offset of a member of the run queue.
    pub const fn rq_member(member: usize) -> usize {
        offset_of!(Kernel, rq) + member
    }

    /// Guest virtual address of the list head of the root group's cfs_rq.
    pub const fn leaf() -> u64 {
        Self::at(offset_of!(Kernel, cfs_rqs) + offset_of!(CfsRq, leaf_cfs_rq_list))
    }

    /// A kernel that passes for one.
    pub fn at_rest() -> Self {
        let swapper = Self::at(offset_of!(Kernel, tasks));
        let root = Self::at(offset_of!(Kernel, task_groups));
        let leaf_list = Self::rq_member(offset_of!(Rq, leaf_cfs_rq_list));
        Self(vec![0; size_of::<Kernel>()])
            .with(Self::rq_member(offset_of!(Rq, curr)), swapper)
            .with(Self::rq_member(offset_of!(Rq, idle)), swapper)
            .with(leaf_list, Self::at(leaf_list))
            .with(leaf_list + 8, Self::at(leaf_list))
            .with(offset_of!(Kernel, tasks) + offset_of!(Task, sched_task_group), root)
            .with(offset_of!(Kernel, cfs_rqs) + offset_of!(CfsRq, tg), root)
    }

    /// The same with another word at `offset`.
    pub fn with(mut self, offset: usize, word: u64) -> Self {
        self.0[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
        self
    }
}

/// A segment to load.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Physical address; it is linked in the kernel half.
    pub physical: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// An ELF image (System V ABI, chapters 4 and 5).
#[derive(Clone, Debug)]
pub struct Image {
    /// Physical address of the entry; it is entered in the kernel half.
    pub entry: u64,
    /// What is loaded, in the order of the program headers.
    pub segments: Vec<Segment>,
    /// `p_align` of a note segment whose bytes make no sense, if there is one.
    pub note_align: Option<u64>,
    /// Size of the symbol `rqscope_kernel`.
    pub kernel_size: u64,
}

impl Image {
    /// An image that runs `code`, with a kernel at rest.
    pub fn of(code: Code) -> Self {
        Self::with_kernel(code, FakeKernel::at_rest())
    }

    /// An image that runs `code`, with this kernel.
    pub fn with_kernel(code: Code, kernel: FakeKernel) -> Self {
        Self {
            entry: CODE,
            segments: vec![
                Segment { physical: CODE, bytes: code.0 },
                Segment { physical: KERNEL, bytes: kernel.0 },
            ],
            note_align: None,
            kernel_size: size_of::<Kernel>() as u64,
        }
    }

    /// The same with another segment.
    pub fn with(mut self, physical: u64, bytes: Vec<u8>) -> Self {
        self.segments.push(Segment { physical, bytes });
        self
    }

    /// The file.
    pub fn to_elf(&self) -> Vec<u8> {
        const EHDR: usize = 64;
        const PHDR: usize = 56;
        let phnum = self.segments.len() + usize::from(self.note_align.is_some());
        let mut phdrs = Vec::new();
        let mut contents = Vec::new();
        let mut segment = |kind: u32, physical, bytes: &[u8], align| {
            phdrs.extend(kind.to_le_bytes());
            phdrs.extend(7u32.to_le_bytes());
            let (offset, size) = (EHDR + phnum * PHDR + contents.len(), bytes.len() as u64);
            for field in [offset as u64, virt(physical), physical, size, size, align] {
                phdrs.extend(field.to_le_bytes());
            }
            contents.extend_from_slice(bytes);
        };
        for s in &self.segments {
            segment(1, s.physical, &s.bytes, 1);
        }
        if let Some(align) = self.note_align {
            segment(4, 0, &[0xff; 24], align);
        }

        // A null symbol and the kernel's, absolute; the string table serves both tables' names.
        let names = b"\0rqscope_kernel\0";
        let mut symbols = vec![0; 24];
        symbols.extend(1u32.to_le_bytes());
        symbols.extend([0x11, 0]);
        symbols.extend(0xfff1u16.to_le_bytes());
        symbols.extend(FakeKernel::at(0).to_le_bytes());
        symbols.extend(self.kernel_size.to_le_bytes());
        let symtab = EHDR + phdrs.len() + contents.len();
        let strtab = symtab + symbols.len();
        let mut sections = vec![0; 64];
        let mut section = |kind: u32, at: usize, size: usize, link: u32, info: u32, entry: u64| {
            sections.extend(0u32.to_le_bytes());
            sections.extend(kind.to_le_bytes());
            for field in [0, 0, at as u64, size as u64] {
                sections.extend(field.to_le_bytes());
            }
            sections.extend(link.to_le_bytes());
            sections.extend(info.to_le_bytes());
            sections.extend(1u64.to_le_bytes());
            sections.extend(entry.to_le_bytes());
        };
        section(2, symtab, symbols.len(), 2, 1, 24);
        section(3, strtab, names.len(), 0, 0, 0);

        let mut header = vec![0; EHDR];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"\x7fELF\x02\x01\x01");
        put(16, &2u16.to_le_bytes());
        put(18, &62u16.to_le_bytes());
        put(20, &1u32.to_le_bytes());
        put(24, &virt(self.entry).to_le_bytes());
        put(32, &(EHDR as u64).to_le_bytes());
        put(40, &((strtab + names.len()) as u64).to_le_bytes());
        for (at, value) in [(52, EHDR), (54, PHDR), (56, phnum), (58, 64), (60, 3), (62, 2)] {
            put(at, &(value as u16).to_le_bytes());
        }
        [&header[..], &phdrs, &contents, &symbols, names, &sections].concat()
    }
}
