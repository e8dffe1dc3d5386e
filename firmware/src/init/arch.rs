//! x86-64: entry, the doorbell, the buffer that the host writes, and what the compiler calls.
#![allow(unsafe_code)]

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::panic::PanicInfo;

use guest_model::wire::linux::{Plan, control, port as linux_port};
use guest_model::wire::port;
use zerocopy::FromBytes;

const PAGE_SIZE: usize = 4096;

global_asm!(
    ".pushsection .text",
    ".globl _start",
    // The stack holds the arguments, which nobody reads (System V ABI, AMD64, 3.4.1).
    "_start:",
    "xor ebp, ebp",
    "and rsp, -16",
    "call {start}",
    "ud2",
    ".popsection",
    start = sym start,
);

extern "C" fn start() -> ! {
    crate::main()
}

/// A control word with its arguments. [`crate::syscall::allow_ports`] comes first.
pub fn control_word(word: u32, args: [u64; 3]) {
    // SAFETY: the host only reads memory, but for `ready()`; the asm is a memory barrier for the compiler.
    unsafe {
        asm!("out {port}, eax", port = const port::CONTROL, in("eax") word,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2], options(nostack, preserves_flags));
    }
}

/// Burns up to `want_ns` of CPU time; answers the ns consumed.
pub fn burn(want_ns: u32) -> u32 {
    // SAFETY: the host notes a number and answers one.
    unsafe { doorbell_in::<{ port::BURN }>(want_ns.into()) }
}

/// What the host answers to the question whether the guest is settled.
pub fn settled() -> u32 {
    // SAFETY: as `burn`.
    unsafe { doorbell_in::<{ linux_port::SETTLE }>(0) }
}

/// Reads a port of the doorbell.
///
/// # Safety
/// Reading the port must change no memory.
unsafe fn doorbell_in<const PORT: u16>(argument: u64) -> u32 {
    let answer: u32;
    // SAFETY: by the caller.
    unsafe {
        asm!("in eax, {port}", port = const PORT, out("eax") answer, in("rdi") argument,
            options(nostack, preserves_flags));
    }
    answer
}

#[repr(C, align(4096))]
struct Buffer(UnsafeCell<[u8; size_of::<Plan>()]>);

// SAFETY: there is one thread, and `ready()` takes the only reference, when nobody writes any more.
unsafe impl Sync for Buffer {}

static BUFFER: Buffer = Buffer(UnsafeCell::new([0; size_of::<Plan>()]));

/// Says that the guest is ready, and takes the plan that the host has written by the time it goes on.
pub fn ready() -> Option<&'static Plan> {
    let buffer = BUFFER.0.get();
    for at in (0..size_of::<Plan>()).step_by(PAGE_SIZE) {
        // SAFETY: inside the buffer, to which there is no reference yet. The write makes the page
        // present.
        unsafe { buffer.cast::<u8>().add(at).write_volatile(0) };
    }
    control_word(control::HOLD, [0; 3]);
    // SAFETY: every x86-64 has it, and Linux lets user space use it unless told otherwise.
    let tsc = unsafe { core::arch::x86_64::_rdtsc() };
    control_word(control::READY_LINUX, [buffer as u64, size_of::<Plan>() as u64, tsc]);
    // SAFETY: the host has written the buffer and never will again, and nor does this program.
    let bytes = unsafe { &*buffer };
    Plan::ref_from_bytes(bytes).ok()
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    match info.location() {
        Some(at) => crate::report::fail(format_args!("panic at {}:{}", at.file(), at.line())),
        None => crate::report::fail(format_args!("panic")),
    }
}

// What the compiler calls for copies, fills and compares. Written in assembly: a Rust loop would be
// turned into a call of itself. No `rep`: emulators resume an interrupted one wrongly.
global_asm!(
    ".pushsection .text",
    ".globl memcpy",
    "memcpy:",
    "mov rax, rdi",
    "2: cmp rdx, 8",
    "jb 3f",
    "mov rcx, [rsi]",
    "mov [rdi], rcx",
    "add rsi, 8",
    "add rdi, 8",
    "sub rdx, 8",
    "jmp 2b",
    "3: test rdx, rdx",
    "jz 4f",
    "mov cl, [rsi]",
    "mov [rdi], cl",
    "inc rsi",
    "inc rdi",
    "dec rdx",
    "jmp 3b",
    "4: ret",
    ".globl memmove",
    "memmove:",
    "mov rax, rdi",
    "sub rax, rsi",
    "cmp rax, rdx",
    "jae memcpy",
    "mov rax, rdi",
    "2: test rdx, rdx",
    "jz 3f",
    "dec rdx",
    "mov cl, [rsi + rdx]",
    "mov [rdi + rdx], cl",
    "jmp 2b",
    "3: ret",
    ".globl memset",
    "memset:",
    "mov rax, rdi",
    "movzx ecx, sil",
    "mov r8, 0x0101010101010101",
    "imul rcx, r8",
    "2: cmp rdx, 8",
    "jb 3f",
    "mov [rdi], rcx",
    "add rdi, 8",
    "sub rdx, 8",
    "jmp 2b",
    "3: test rdx, rdx",
    "jz 4f",
    "mov [rdi], cl",
    "inc rdi",
    "dec rdx",
    "jmp 3b",
    "4: ret",
    ".globl memcmp",
    ".globl bcmp",
    "memcmp:",
    "bcmp:",
    "xor r8d, r8d",
    "2: cmp r8, rdx",
    "je 3f",
    "movzx eax, byte ptr [rdi + r8]",
    "movzx ecx, byte ptr [rsi + r8]",
    "inc r8",
    "sub eax, ecx",
    "jz 2b",
    "ret",
    "3: xor eax, eax",
    "ret",
    ".popsection",
);
