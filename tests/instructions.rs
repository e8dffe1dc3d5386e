//! What instructions the guest programs are made of. The bundled image holds none that needs vector or
//! floating-point registers: where KVM emulates a guest, those end the run. PID 1 of Linux guests holds no
//! repeated string instruction: emulated machines resume an interrupted one wrongly.

use iced_x86::{Decoder, DecoderOptions, Instruction, Register};
use rqscope::initramfs::INIT;
use rqscope::machine::FIRMWARE;

const PF_X: u32 = 1;

/// The instructions of an ELF image's executable segments.
fn instructions(elf: &'static [u8]) -> impl Iterator<Item = Instruction> {
    fn field<const N: usize>(elf: &[u8], at: usize) -> [u8; N] {
        elf[at..at + N].try_into().unwrap()
    }
    let table = u64::from_le_bytes(field(elf, 32)) as usize;
    let count = u16::from_le_bytes(field(elf, 56)) as usize;
    let headers = (0..count).map(move |i| table + i * 56);
    let code = headers.filter(move |at| u32::from_le_bytes(field(elf, at + 4)) & PF_X != 0);
    code.flat_map(move |at| {
        let offset = u64::from_le_bytes(field(elf, at + 8)) as usize;
        let virt = u64::from_le_bytes(field(elf, at + 16));
        let size = u64::from_le_bytes(field(elf, at + 32)) as usize;
        Decoder::with_ip(64, &elf[offset..offset + size], virt, DecoderOptions::NONE).into_iter()
    })
}

fn is_vector_or_float(register: Register) -> bool {
    let files = [
        (Register::XMM0, Register::ZMM31),
        (Register::ST0, Register::ST7),
        (Register::MM0, Register::MM7),
    ];
    files.iter().any(|&(first, last)| (first..=last).contains(&register))
}

#[test]
fn no_instruction_of_the_image_uses_a_vector_or_floating_point_register() {
    let mut decoded = 0;
    for instruction in instructions(FIRMWARE) {
        let at = instruction.ip();
        assert!(!instruction.is_invalid(), "at {at:#x} there is no instruction");
        for operand in 0..instruction.op_count() {
            let register = instruction.op_register(operand);
            assert!(!is_vector_or_float(register), "at {at:#x}: {register:?}");
        }
        decoded += 1;
    }
    assert!(decoded > 1000, "{decoded}");
}

#[test]
fn pid_1_of_linux_guests_has_no_repeated_string_instruction() {
    let mut decoded = 0;
    for instruction in instructions(INIT) {
        let at = instruction.ip();
        assert!(!instruction.is_invalid(), "at {at:#x} there is no instruction");
        let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
        assert!(!repeats, "at {at:#x}: {instruction:?}");
        decoded += 1;
    }
    assert!(decoded > 1000, "{decoded}");
}
