//! Programs to be PID 1, made of system calls alone, and the initramfs that each is in.

use guest_model::wire::port::BURN;
use rqscope::initramfs::pack;

/// Where a program is loaded, and where its texts are.
const BASE: u64 = 0x40_0000;
const TEXTS: u64 = 0x41_0000;
/// Bytes of the ELF header and the one program header.
const HEADERS: usize = 64 + 56;

/// System calls (arch/x86/entry/syscalls/syscall_64.tbl).
mod call {
    pub const WRITE: u64 = 1;
    pub const OPEN: u64 = 2;
    pub const NANOSLEEP: u64 = 35;
    pub const EXIT: u64 = 60;
    pub const MOUNT: u64 = 165;
    pub const PRCTL: u64 = 157;
    pub const IOPERM: u64 = 173;
}

/// What a new program's files are numbered from: the kernel opens the console three times.
const FIRST_FILE: u64 = 3;
/// `O_WRONLY`.
const WRITE_ONLY: u64 = 1;
/// `PR_SET_NAME`.
const SET_NAME: u64 = 15;

/// A program for PID 1.
#[derive(Debug, Default)]
pub struct Init {
    code: Vec<u8>,
    texts: Vec<u8>,
    files: u64,
}

impl Init {
    /// One that does nothing yet. It must not come to its end.
    pub fn new() -> Self {
        Self::default()
    }

    /// Prints a line on the console.
    pub fn says(mut self, line: &str) -> Self {
        let text = self.text(&format!("{line}\n"));
        self.call(call::WRITE, &[1, text, line.len() as u64 + 1])
    }

    /// Says that it is ready.
    pub fn ready(self) -> Self {
        self.says("rqscope: ready")
    }

    /// Is called `name` from here on.
    pub fn called(mut self, name: &str) -> Self {
        let name = self.text(name);
        self.call(call::PRCTL, &[SET_NAME, name])
    }

    /// Mounts sysfs on /sys.
    pub fn mounts_sys(mut self) -> Self {
        let [kind, place] = ["sysfs", "/sys"].map(|text| self.text(text));
        self.call(call::MOUNT, &[kind, place, kind, 0, 0])
    }

    /// Writes `text` to a file that is there.
    pub fn writes(mut self, text: &str, path: &str) -> Self {
        let [words, place] = [text, path].map(|text| self.text(text));
        let file = FIRST_FILE + self.files;
        self.files += 1;
        self.call(call::OPEN, &[place, WRITE_ONLY, 0])
            .call(call::WRITE, &[file, words, text.len() as u64])
    }

    /// Sleeps.
    pub fn sleeps(mut self, ns: u64) -> Self {
        let time = self.bytes(&[0u64.to_le_bytes(), ns.to_le_bytes()].concat());
        self.call(call::NANOSLEEP, &[time, 0])
    }

    /// Exits.
    pub fn exits(self, code: u64) -> Self {
        self.call(call::EXIT, &[code])
    }

    /// Runs for ever without a call.
    pub fn spins(mut self) -> Self {
        self.code.extend([0xeb, 0xfe]);
        self
    }

    /// Sleeps again and again.
    pub fn sleeps_for_ever(self) -> Self {
        let begin = self.code.len();
        let mut init = self.sleeps(2_000_000);
        // jmp rel32, from behind itself.
        let back = begin as i32 - (init.code.len() as i32 + 5);
        init.code.push(0xe9);
        init.code.extend(back.to_le_bytes());
        init
    }

    /// Burns so much of the CPU's time.
    pub fn burns(self, ns: u64) -> Self {
        let mut init = self.call(call::IOPERM, &[BURN.into(), 4, 1]);
        // mov rbx, ns; mov edi, 1000000; in eax, BURN; sub rbx, rax; ja back to the second mov.
        init.code.extend([0x48, 0xbb]);
        init.code.extend(ns.to_le_bytes());
        init.code.extend([0xbf, 0x40, 0x42, 0x0f, 0, 0xe5, BURN as u8]);
        init.code.extend([0x48, 0x29, 0xc3, 0x77, 0xf4]);
        init
    }

    /// Burns for ever.
    pub fn burns_for_ever(self) -> Self {
        self.burns(1 << 62)
    }

    /// An initramfs with this program as its /init.
    pub fn pack(self) -> Vec<u8> {
        let size = (TEXTS - BASE) as usize + self.texts.len();
        let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
        elf.resize(16, 0);
        // ET_EXEC, EM_X86_64, version, entry, program headers behind this header, no sections.
        elf.extend([2, 0, 62, 0, 1, 0, 0, 0]);
        for word in [BASE + HEADERS as u64, 64, 0] {
            elf.extend(word.to_le_bytes());
        }
        elf.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        // PT_LOAD of all of the file, readable, writable and executable.
        elf.extend([1, 0, 0, 0, 7, 0, 0, 0]);
        for word in [0, BASE, BASE, size as u64, size as u64, 0x1000] {
            elf.extend(word.to_le_bytes());
        }
        assert_eq!(elf.len(), HEADERS);
        elf.extend(self.code);
        assert!(elf.len() <= (TEXTS - BASE) as usize);
        elf.resize((TEXTS - BASE) as usize, 0);
        elf.extend(self.texts);
        pack(&elf)
    }

    /// A system call. Its registers: arch/x86/entry/entry_64.S.
    fn call(mut self, number: u64, args: &[u64]) -> Self {
        // mov reg, imm64: rdi, rsi, rdx, r10, r8; rax.
        let movs: [[u8; 2]; 5] =
            [[0x48, 0xbf], [0x48, 0xbe], [0x48, 0xba], [0x49, 0xba], [0x49, 0xb8]];
        for (mov, arg) in movs.iter().zip(args).chain([(&[0x48, 0xb8], &number)]) {
            self.code.extend(mov);
            self.code.extend(arg.to_le_bytes());
        }
        self.code.extend([0x0f, 0x05]);
        self
    }

    fn text(&mut self, text: &str) -> u64 {
        self.bytes(&[text.as_bytes(), &[0]].concat())
    }

    fn bytes(&mut self, bytes: &[u8]) -> u64 {
        let address = TEXTS + self.texts.len() as u64;
        self.texts.extend(bytes);
        address
    }
}
