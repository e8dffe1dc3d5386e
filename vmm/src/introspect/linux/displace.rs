//! Probes on functions that do not begin with a no-op, such as the kernel's own `inline` functions that
//! the compiler made functions of their own: those have no entry for ftrace.
//!
//! The first instruction moves to a slot behind the kernel's text, followed by a jump to the second; its
//! place is taken by the `out`. Whoever runs the guest sets `rip` to the slot after a hit, so the call
//! goes on as if nothing had happened. What is between the last function and the end of the text's last page
//! is executable and unused (arch/x86/kernel/vmlinux.lds.S, and `mark_rodata_ro()` in
//! arch/x86/mm/init_64.c, 6.12 to 7.3).

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, Decoder, DecoderOptions, FlowControl, Instruction,
    InstructionBlock,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::Linux;
use super::patch::{OUT_BYTES, PatchError, out};
use crate::introspect::SetupError;
use crate::introspect::read::Reader;
use crate::introspect::translate::{AddressSpace, PAGE_SIZE};

/// Bytes of a slot: two instructions of at most 15 bytes, and a jump.
const SLOT: u64 = 48;
/// Longest function that is looked through, bytes.
const MAX_FUNCTION: u64 = 1 << 14;

/// Room behind the kernel's text.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    next: u64,
    end: u64,
}

/// A probe whose displaced instruction runs in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Displaced {
    /// Guest virtual address of the function's entry.
    pub address: u64,
    /// Where the guest goes on after a hit.
    pub resume: u64,
}

impl Linux {
    /// The room between this kernel's last function and the end of its text's last page.
    pub fn slots(&self) -> Result<Slots, SetupError> {
        let end = self.symbols.find("_etext")?;
        let slide = self.symbols.slide();
        let linked = end.wrapping_sub(slide);
        let last = self.symbols.table().functions_end_before(linked).unwrap_or(linked);
        let next = last.wrapping_add(slide).checked_next_multiple_of(16);
        // A table may say anything: what ends beyond all addresses leaves no room.
        let end = end.checked_next_multiple_of(PAGE_SIZE).unwrap_or(0);
        Ok(Slots { next: next.unwrap_or(u64::MAX - SLOT), end })
    }

    /// Plants a probe at the entry of `function`, whatever it begins with.
    pub fn displace(
        &self,
        function: &str,
        port: u8,
        slots: &mut Slots,
    ) -> Result<Displaced, PatchError> {
        let address = self.symbols.function(function).map_err(SetupError::from)?;
        let table = self.symbols.table();
        let symbol = table.function(function).map_err(SetupError::from)?;
        let size = match symbol.size {
            0 => table.room_at(symbol.address).unwrap_or(0),
            size => size,
        };
        let refuse = |why: &str| PatchError::NotDisplaced {
            function: function.to_owned(),
            address,
            why: why.to_owned(),
        };
        if size == 0 || size > MAX_FUNCTION {
            return Err(refuse("its size is not known"));
        }
        let slot = slots.next;
        if slot + SLOT > slots.end {
            return Err(refuse("there is no room left behind the kernel's text"));
        }
        let unreachable =
            |source| PatchError::Unreachable { function: function.to_owned(), address, source };
        let mut free = [0; SLOT as usize];
        let mut body = vec![0; size as usize];
        let at = &mut Reader::new(&self.mem, self.space);
        at.bytes(slot, &mut free).map_err(unreachable)?;
        at.bytes(address, &mut body).map_err(unreachable)?;
        if !free.iter().all(|b| matches!(b, 0 | 0x90 | 0xcc)) {
            return Err(refuse("what is behind the kernel's text is not free"));
        }
        let code = relocated(&body, address, slot).map_err(refuse)?;
        write(&self.mem, self.space, slot, &code).map_err(unreachable)?;
        write(&self.mem, self.space, address, &out(port)).map_err(unreachable)?;
        slots.next += SLOT;
        Ok(Displaced { address, resume: slot })
    }
}

/// The first instructions of the function `body` at `address`, as many as the `out` takes the place of,
/// moved to `slot`, and a jump to what follows them.
fn relocated(body: &[u8], address: u64, slot: u64) -> Result<Vec<u8>, &'static str> {
    let mut first = Vec::new();
    let (mut len, mut targets) = (0, Vec::new());
    for instruction in &mut Decoder::with_ip(64, body, address, DecoderOptions::NONE) {
        if instruction.is_invalid() {
            return Err("it holds an instruction that is not known");
        }
        match instruction.flow_control() {
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                targets.push(instruction.near_branch_target());
            }
            _ => {}
        }
        if len < OUT_BYTES {
            if instruction.flow_control() != FlowControl::Next {
                return Err("it begins with a branch");
            }
            len += instruction.len();
            first.push(instruction);
        }
    }
    if len < OUT_BYTES {
        return Err("it is shorter than the probe");
    }
    let rest = address + len as u64;
    if targets.iter().any(|target| (address + 1..rest).contains(target)) {
        return Err("it jumps back to its second instruction");
    }
    let back = Instruction::with_branch(Code::Jmp_rel32_64, rest);
    first.push(back.map_err(|_| "no jump leads back")?);
    let block = InstructionBlock::new(&first, slot);
    let moved = BlockEncoder::encode(64, block, BlockEncoderOptions::NONE);
    let code = moved.map_err(|_| "its first instruction cannot be moved")?.code_buffer;
    if code.len() as u64 > SLOT {
        return Err("its first instruction is too long when moved");
    }
    Ok(code)
}

/// Writes within one page, which has been read before.
fn write(
    mem: &GuestMemoryMmap,
    space: AddressSpace,
    address: u64,
    bytes: &[u8],
) -> Result<(), crate::introspect::translate::TranslateError> {
    for (i, byte) in (0..).zip(bytes) {
        let to = space.translate(mem, address + i)?;
        // What could be read is memory.
        let _ = mem.write_obj(*byte, GuestAddress(to.gpa));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: u64 = 0xffff_ffff_8107_2810;
    const SLOT_AT: u64 = 0xffff_ffff_813b_c5a0;

    fn decoded(code: &[u8], at: u64) -> Vec<String> {
        Decoder::with_ip(64, code, at, DecoderOptions::NONE)
            .into_iter()
            .map(|i| {
                format!(
                    "{:?} {:#x}",
                    i.code(),
                    i.near_branch_target().max(i.memory_displacement64())
                )
            })
            .collect()
    }

    #[test]
    fn a_first_instruction_moves_and_a_jump_leads_behind_it() {
        // cmpq imm32, 0x160(%rdi); ret
        let body = [0x48, 0x81, 0xbf, 0x60, 1, 0, 0, 0x40, 0x9f, 0xb5, 0x81, 0xc3];
        let code = relocated(&body, ENTRY, SLOT_AT).unwrap();
        assert_eq!(code[..11], body[..11]);
        assert_eq!(decoded(&code[11..], SLOT_AT + 11), [format!("Jmp_rel32_64 {:#x}", ENTRY + 11)]);
    }

    #[test]
    fn short_instructions_move_together_and_one_that_counts_from_rip_still_finds_its_place() {
        // push %rbp; mov 0x100(%rip), %rax; ret
        let body = [0x55, 0x48, 0x8b, 0x05, 0, 1, 0, 0, 0xc3];
        let code = relocated(&body, ENTRY, SLOT_AT).unwrap();
        let moved = decoded(&code, SLOT_AT);
        assert_eq!(moved[0], "Push_r64 0x0");
        assert_eq!(moved[1], format!("Mov_r64_rm64 {:#x}", ENTRY + 8 + 0x100));
        assert_eq!(moved[2], format!("Jmp_rel32_64 {:#x}", ENTRY + 8));
    }

    #[test]
    fn what_cannot_be_moved_is_refused_with_its_reason() {
        let refused = |body: &[u8]| relocated(body, ENTRY, SLOT_AT).unwrap_err();
        assert_eq!(refused(&[0xc3]), "it begins with a branch");
        assert_eq!(refused(&[0xe9, 0, 0, 0, 0]), "it begins with a branch");
        assert_eq!(refused(&[0x90]), "it is shorter than the probe");
        assert_eq!(refused(&[0x06, 0x06]), "it holds an instruction that is not known");
        // push %rbp; dec %eax; jmp to the dec
        assert_eq!(
            refused(&[0x55, 0xff, 0xc8, 0xeb, 0xfc]),
            "it jumps back to its second instruction"
        );
    }
}
