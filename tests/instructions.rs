//! The bundled image holds no instruction that needs vector or floating-point registers: where KVM
//! emulates a guest, those end the run.

use iced_x86::{Decoder, DecoderOptions, Instruction, Register};
use rqscope::machine::FIRMWARE;

const PF_X: u32 = 1;

fn field<const N: usize>(at: usize) -> [u8; N] {
    FIRMWARE[at..at + N].try_into().unwrap()
}

/// The executable segments, as (virtual address, bytes).
fn code() -> impl Iterator<Item = (u64, &'static [u8])> {
    let table = u64::from_le_bytes(field(32)) as usize;
    let count = u16::from_le_bytes(field(56)) as usize;
    (0..count).map(move |i| table + i * 56).filter_map(|phdr| {
        let executable = u32::from_le_bytes(field(phdr + 4)) & PF_X != 0;
        let offset = u64::from_le_bytes(field(phdr + 8)) as usize;
        let size = u64::from_le_bytes(field(phdr + 32)) as usize;
        executable.then(|| (u64::from_le_bytes(field(phdr + 16)), &FIRMWARE[offset..offset + size]))
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
    for (virt, bytes) in code() {
        let mut decoder = Decoder::with_ip(64, bytes, virt, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            let at = instruction.ip();
            assert!(!instruction.is_invalid(), "at {at:#x} there is no instruction");
            for operand in 0..instruction.op_count() {
                let register = instruction.op_register(operand);
                assert!(!is_vector_or_float(register), "at {at:#x}: {register:?}");
            }
            decoded += 1;
        }
    }
    assert!(decoded > 1000, "{decoded}");
}
