//! x86-64: entry, interrupt descriptor table, port I/O, model-specific registers.
//!
//! The VMM enters at `_start` in long mode with interrupts off, its own page tables and GDT, a
//! stack, and the boot page's address in `rdi` (vmm/src/machine).
//!
//! Interrupts are on only inside [`burn`], [`softirq`] and [`halt`], between their `sti` and `cli`:
//! nothing else in the image ever sees one, so the run queue needs no lock.
#![allow(unsafe_code)]

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::panic::PanicInfo;

use guest_model::kernel::Kernel;
use guest_model::wire::{BootPage, VECTOR_BASE, control, port};

/// Start of the kernel half: guest virtual minus guest physical address (link.ld).
const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;
/// `MSR_KVM_SYSTEM_TIME_NEW` (Documentation/virt/kvm/x86/msr.rst).
pub const MSR_KVM_SYSTEM_TIME_NEW: u32 = 0x4b56_4d01;
/// `MSR_KVM_STEAL_TIME` (Documentation/virt/kvm/x86/msr.rst).
pub const MSR_KVM_STEAL_TIME: u32 = 0x4b56_4d03;
/// Exceptions and interrupt lines.
const VECTORS: usize = 64;
/// Distance of two vectors' stubs, bytes.
const STUB_SIZE: u64 = 16;

const _: () = assert!(VECTOR_BASE == 32, "lines follow the 32 exceptions (SDM 3A, 6.2)");

global_asm!(
    ".pushsection .text",
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "call {start}",
    "ud2",
    // One stub a vector, STUB_SIZE apart. Exceptions leave every register as it was, but for the
    // arguments of the control word; those without an error code push 0 in its place.
    ".balign 16",
    "vector_stubs:",
    ".set vector, 0",
    ".rept 32",
    ".balign 16",
    // Vectors that push an error code: SDM 3A, table 6-1; 29 and 30: APM 2, 8.2.
    ".if (0x60227d00 >> vector) & 1",
    ".else",
    "push 0",
    ".endif",
    "push vector",
    "jmp exception",
    ".set vector, vector + 1",
    ".endr",
    ".set line, 0",
    ".rept 32",
    ".balign 16",
    "push rdi",
    "mov edi, line",
    "jmp interrupt",
    ".set line, line + 1",
    ".endr",
    // The interrupted registers that do_irq may clobber (System V ABI). The CPU aligned the frame to
    // 16 bytes and pushed five words; with nine more the stack is aligned at the call.
    ".balign 16",
    "interrupt:",
    "push rax",
    "push rcx",
    "push rdx",
    "push rsi",
    "push r8",
    "push r9",
    "push r10",
    "push r11",
    "call {do_irq}",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rsi",
    "pop rdx",
    "pop rcx",
    "pop rax",
    "pop rdi",
    "iretq",
    // Ends in the host; rsp is left at the interrupt frame (rip, cs, rflags, rsp, ss).
    "exception:",
    "pop rdi",
    "pop rsi",
    "mov rdx, [rsp]",
    "mov eax, {exception_word}",
    "out {control}, eax",
    "2: cli",
    "hlt",
    "jmp 2b",
    ".popsection",
    start = sym start,
    do_irq = sym interrupt_entry,
    exception_word = const control::EXCEPTION,
    control = const port::CONTROL,
);

unsafe extern "C" {
    static vector_stubs: [u8; VECTORS * STUB_SIZE as usize];
}

extern "C" fn start(boot_page: *const BootPage) -> ! {
    let mut off = InterruptsOff(());
    load_idt(&mut off);
    // SAFETY: the VMM passes the address of a mapped, initialised boot page and never writes it
    // after entry; `BootPage` is valid for any bytes (zerocopy::FromBytes).
    let boot_page = unsafe { &*boot_page };
    crate::start(off, boot_page)
}

extern "C" fn interrupt_entry(line: u32) {
    crate::interrupt(InterruptsOff(()), line as u16);
}

/// A 64-bit interrupt gate (SDM 3A, 6.14.1).
#[derive(Clone, Copy)]
#[repr(C)]
struct Gate {
    offset_low: u16,
    selector: u16,
    ist: u8,
    type_attributes: u8,
    offset_middle: u16,
    offset_high: u32,
    reserved: u32,
}

impl Gate {
    const MISSING: Self = Self {
        offset_low: 0,
        selector: 0,
        ist: 0,
        type_attributes: 0,
        offset_middle: 0,
        offset_high: 0,
        reserved: 0,
    };
}

/// Proof that interrupts are off. The boot path owns one, and each interrupt another while what it
/// interrupted has lent its own to [`burn`], [`softirq`] or [`halt`].
pub struct InterruptsOff(());

/// Memory of the guest's one CPU, reachable with interrupts off.
#[repr(transparent)]
pub struct PerCpu<T>(UnsafeCell<T>);

// SAFETY: there is one CPU, and `get` lends the value to one holder at a time.
unsafe impl<T> Sync for PerCpu<T> {}

impl<T> PerCpu<T> {
    const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// The value, for as long as interrupts stay off.
    #[inline(always)]
    pub fn get<'a>(&'static self, _off: &'a mut InterruptsOff) -> &'a mut T {
        // SAFETY: whoever else holds an `InterruptsOff` waits inside `burn`, `softirq` or `halt` with
        // its own borrowed mutably, so no other reference is in use.
        unsafe { &mut *self.0.get() }
    }
}

/// The kernel, by the name that introspection looks up in the symbol table.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static rqscope_kernel: PerCpu<Kernel> = PerCpu::new(Kernel::new());

static IDT: PerCpu<[Gate; VECTORS]> = PerCpu::new([Gate::MISSING; VECTORS]);

/// `sidt`/`lidt` operand (SDM 3A, 2.4.3).
#[repr(C, packed)]
struct TablePointer {
    limit: u16,
    base: u64,
}

/// Fills the IDT with the stubs and loads it.
fn load_idt(off: &mut InterruptsOff) {
    let selector: u16;
    // SAFETY: reads a segment register.
    unsafe { asm!("mov {0:x}, cs", out(reg) selector, options(nomem, nostack, preserves_flags)) };
    let idt = IDT.get(off);
    let mut offset = &raw const vector_stubs as u64;
    for gate in idt.iter_mut() {
        *gate = Gate {
            offset_low: offset as u16,
            selector,
            ist: 0,
            // Present, DPL 0, 64-bit interrupt gate: the CPU clears IF on entry.
            type_attributes: 0x8e,
            offset_middle: (offset >> 16) as u16,
            offset_high: (offset >> 32) as u32,
            reserved: 0,
        };
        offset += STUB_SIZE;
    }
    let limit = (size_of::<[Gate; VECTORS]>() - 1) as u16;
    let pointer = TablePointer { limit, base: &raw mut *idt as u64 };
    // SAFETY: the table is complete, lives forever and is not written again.
    unsafe { asm!("lidt [{}]", in(reg) &raw const pointer, options(nostack, preserves_flags)) };
}

/// The physical address of a static of this image.
pub fn physical<T>(of: &'static T) -> u64 {
    (&raw const *of as u64).wrapping_sub(KERNEL_BASE)
}

/// Writes a model-specific register.
pub fn wrmsr(index: u32, value: u64) {
    // SAFETY: only used for the two paravirtual clock registers, whose pages are statics that the
    // program reads as atomics; the host writes nothing else.
    unsafe {
        asm!("wrmsr", in("ecx") index, in("eax") value as u32, in("edx") (value >> 32) as u32,
            options(nostack, preserves_flags));
    }
}

/// The time stamp counter.
#[inline(always)]
pub fn rdtsc() -> u64 {
    // SAFETY: RDTSC has no precondition in ring 0.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// A control word with its arguments.
pub fn control_word(word: u32, args: [u64; 3]) {
    // SAFETY: the host only reads memory; the asm is a memory barrier for the compiler.
    unsafe {
        asm!("out {port}, eax", port = const port::CONTROL, in("eax") word,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2], options(nostack, preserves_flags));
    }
}

/// Hits probe `N` with three arguments. `seen` is memory that the host may read meanwhile.
#[inline(always)]
pub fn probe<const N: u8, T>(seen: &mut T, args: [u64; 3]) {
    // SAFETY: the host only reads memory. `seen` goes in, so that the compiler has it written back.
    unsafe {
        asm!("out {port}, al", port = const port::PROBE, in("al") N, in("rdi") args[0],
            in("rsi") args[1], in("rdx") args[2], in("rcx") &raw mut *seen, options(nostack, preserves_flags));
    }
}

/// Arms the one-shot timer for guest time `deadline_ns`.
#[inline(always)]
pub fn set_timer(deadline_ns: u64) {
    // SAFETY: the host notes a number.
    unsafe {
        asm!("out {port}, eax", port = const port::TIMER, in("eax") 0, in("rdi") deadline_ns,
            options(nostack, preserves_flags));
    }
}

/// Reads the status register of an interrupt line. `seen` is memory that the host may read meanwhile.
#[inline(always)]
pub fn irq_status<T>(seen: &mut T, line: u16) -> u32 {
    let answer: u32;
    // SAFETY: the host only reads memory and advances the clock pages, which are atomics.
    unsafe {
        asm!("in eax, {port}", port = const port::IRQ_STATUS, out("eax") answer,
            in("rdi") u64::from(line), in("rcx") &raw mut *seen, options(nostack, preserves_flags));
    }
    answer
}

/// Burns up to `want_ns` with interrupts on; answers the ns consumed.
#[inline(always)]
pub fn burn(_off: &mut InterruptsOff, want_ns: u32) -> u32 {
    interruptible_in::<{ port::BURN }>(want_ns)
}

/// Does up to `want_ns` of softirq work with interrupts on; answers the ns consumed.
#[inline(always)]
pub fn softirq(_off: &mut InterruptsOff, want_ns: u32) -> u32 {
    interruptible_in::<{ port::SOFTIRQ }>(want_ns)
}

/// The `mov` stands between `sti` and `in` because the instruction after `sti` still runs with
/// interrupts blocked (SDM 2B, STI): the host finds the CPU at `in` ready for an interrupt.
#[inline(always)]
fn interruptible_in<const PORT: u16>(want_ns: u32) -> u32 {
    let answer: u32;
    // SAFETY: interrupt stubs restore the registers and the stack; the asm is a memory barrier for
    // the compiler, and without `nostack` it keeps nothing below the stack pointer.
    unsafe {
        asm!("sti", "mov edi, {want:e}", "in eax, {port}", "cli", want = in(reg) want_ns,
            port = const PORT, out("rdi") _, out("eax") answer);
    }
    answer
}

/// Halts with interrupts on until one has been handled.
#[inline(always)]
pub fn halt(_off: &mut InterruptsOff) {
    // SAFETY: as `interruptible_in`; interrupts stay blocked between `sti` and `hlt`.
    unsafe { asm!("sti", "hlt", "cli") };
}

/// Stops for good.
pub fn stop() -> ! {
    loop {
        // SAFETY: with interrupts off nothing runs any more.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    if let Some(at) = info.location() {
        let file = at.file();
        control_word(control::PANIC, [file.as_ptr() as u64, file.len() as u64, at.line().into()]);
    } else {
        control_word(control::PANIC, [0; 3]);
    }
    stop()
}

// What the compiler calls for copies, fills and compares. Written in assembly: a Rust loop would be
// turned into a call of itself. Forward copies of any size are one instruction to an emulator.
global_asm!(
    ".pushsection .text",
    ".globl memcpy",
    "memcpy:",
    "mov rax, rdi",
    "mov rcx, rdx",
    "rep movsb",
    "ret",
    ".globl memmove",
    "memmove:",
    "mov rax, rdi",
    "mov rcx, rdx",
    "sub rdi, rsi",
    "cmp rdi, rdx",
    "mov rdi, rax",
    "jb 2f",
    "rep movsb",
    "ret",
    "2: lea rdi, [rdi + rdx - 1]",
    "lea rsi, [rsi + rdx - 1]",
    "std",
    "rep movsb",
    "cld",
    "ret",
    ".globl memset",
    "memset:",
    "mov r8, rdi",
    "mov eax, esi",
    "mov rcx, rdx",
    "rep stosb",
    "mov rax, r8",
    "ret",
    ".globl memcmp",
    ".globl bcmp",
    "memcmp:",
    "bcmp:",
    "xor eax, eax",
    "mov rcx, rdx",
    "cmp rcx, rcx",
    "repe cmpsb",
    "je 2f",
    "movzx eax, byte ptr [rdi - 1]",
    "movzx ecx, byte ptr [rsi - 1]",
    "sub eax, ecx",
    "2: ret",
    ".popsection",
);
