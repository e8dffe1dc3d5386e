//! What a Linux guest needs of a vCPU, on a real KVM, with a few instructions for a kernel.

use kvm_bindings::CpuId;
use rqscope::boot::{File, Linux, Loaded, cpuid, entry, layout};
use rqscope::kvm::{Exit, HostKvm, Kvm, Vcpu, VcpuError, Vm};

use crate::host::{kvm, skipped};
use crate::image::{CODE, Code, Image};

/// A machine about to execute `code` as a kernel's first instructions.
struct Machine {
    loaded: Loaded,
    vcpu: Vcpu,
    cpuid: CpuId,
    _vm: Vm,
}

impl Machine {
    fn new(kvm: &Kvm, code: Code) -> Self {
        let mut vmlinux = Image::of(code).to_elf();
        // The entry point of a vmlinux is a physical address.
        vmlinux[24..32].copy_from_slice(&CODE.to_le_bytes());
        let linux = Linux {
            kernel: File { name: "code", bytes: &vmlinux },
            initrd: None,
            cmdline: "abcd",
            quiet: false,
            devices: &[],
            memory_size: layout::MEMORY_MIN,
        };
        let loaded = linux.load().unwrap();
        let options = cpuid::Options::default();
        let cpuid = cpuid::filter(kvm.supported_cpuid().as_slice(), options);
        let cpuid = CpuId::from_entries(&cpuid).unwrap();
        let vm = Vm::new(kvm, loaded.memory.clone()).unwrap();
        let mut vcpu = vm.create_vcpu_with(kvm, &cpuid).unwrap();
        vcpu.set_sregs(&entry::sregs(vcpu.read_sregs().unwrap())).unwrap();
        vcpu.set_regs(&entry::regs(loaded.entry)).unwrap();
        Self { loaded, vcpu, cpuid, _vm: vm }
    }

    /// Runs to the next exit, which must be a write to port 0x11, and says what was written.
    fn written(&mut self) -> u32 {
        match self.vcpu.run().unwrap() {
            Exit::Out { port: 0x11, size: 4, value } => value,
            exit => panic!("expected a write to port 0x11, got {exit:x?}"),
        }
    }
}

/// The host's KVM if a processor runs its guests. KVM-PVM emulates them: several instructions between
/// two looks for an interrupt window, on the host's TSC as it is.
fn hardware_kvm() -> Option<Kvm> {
    match HostKvm::detect() {
        HostKvm::Pvm => skipped("this KVM emulates its guests"),
        _ => kvm(),
    }
}

/// `out 0x11, eax`.
const OUT_EAX: &[u8] = b"\xe7\x11";

#[test]
fn a_kernel_is_entered_with_the_zero_page_in_rsi_and_finds_its_command_line() {
    let Some(kvm) = kvm() else { return };
    // mov eax, [rsi + 0x228]; out; mov eax, [rax]; out; hlt
    let code = Code::new().bytes(b"\x8b\x86\x28\x02\0\0").bytes(OUT_EAX);
    let code = code.bytes(b"\x8b\x00").bytes(OUT_EAX).bytes(b"\xf4");
    let mut machine = Machine::new(&kvm, code);
    assert_eq!(machine.written(), 0x2_0000, "cmd_line_ptr");
    assert!(!machine.vcpu.interrupts_on());
    assert_eq!(machine.written(), u32::from_le_bytes(*b"abcd"));
    assert_eq!(machine.vcpu.run().unwrap(), Exit::Hlt);
}

#[test]
fn reads_outside_of_memory_are_answered_with_as_many_bytes_as_they_have() {
    let Some(kvm) = kvm() else { return };
    // mov ebx, 0xd0000000; mov rax, [rbx + 8]; out; shr rax, 32; out; movzx eax, byte [rbx + 3]; out;
    // mov [rbx], eax; mov eax, [rbx]; out; hlt
    let code = Code::new()
        .bytes(b"\xbb\0\0\0\xd0\x48\x8b\x43\x08")
        .bytes(OUT_EAX)
        .bytes(b"\x48\xc1\xe8\x20")
        .bytes(OUT_EAX)
        .bytes(b"\x0f\xb6\x43\x03")
        .bytes(OUT_EAX)
        .bytes(b"\x89\x03\x8b\x03")
        .bytes(OUT_EAX)
        .bytes(b"\xf4");
    let mut machine = Machine::new(&kvm, code);
    let read = |address, size| Exit::Mmio { address, size, written: None };
    let value = 0x1122_3344_5566_7788;

    assert_eq!(machine.vcpu.run().unwrap(), read(0xd000_0008, 8));
    machine.vcpu.answer_mmio(value).unwrap();
    assert_eq!((machine.written(), machine.written()), (0x5566_7788, 0x1122_3344));
    assert_eq!(machine.vcpu.run().unwrap(), read(0xd000_0003, 1));
    machine.vcpu.answer_mmio(value).unwrap();
    assert_eq!(machine.written(), 0x88);
    let write = Exit::Mmio { address: 0xd000_0000, size: 4, written: Some(0x88) };
    assert_eq!(machine.vcpu.run().unwrap(), write);
    let refused = machine.vcpu.answer_mmio(1);
    assert!(matches!(refused, Err(VcpuError::NothingToAnswer { .. })), "a write");
    assert_eq!(machine.vcpu.run().unwrap(), read(0xd000_0000, 4));
    assert_eq!(machine.written(), 0, "unanswered");
}

#[test]
fn a_read_of_a_clock_register_is_answered() {
    let Some(kvm) = kvm() else { return };
    // mov ecx, 0x4b564d01; rdmsr; out; mov eax, edx; out; rdmsr; out; hlt
    let code = Code::new().bytes(b"\xb9\x01\x4d\x56\x4b\x0f\x32").bytes(OUT_EAX);
    let code = code.bytes(b"\x89\xd0").bytes(OUT_EAX).bytes(b"\x0f\x32").bytes(OUT_EAX);
    let mut machine = Machine::new(&kvm, code.bytes(b"\xf4"));
    let read = Exit::Rdmsr { index: 0x4b56_4d01 };
    assert_eq!(machine.vcpu.run().unwrap(), read);
    machine.vcpu.answer_rdmsr(0x1234_5678_9abc_def1).unwrap();
    assert!(matches!(machine.vcpu.answer_in(1), Err(VcpuError::NothingToAnswer { .. })));
    assert_eq!((machine.written(), machine.written()), (0x9abc_def1, 0x1234_5678));
    assert_eq!(machine.vcpu.run().unwrap(), read);
    assert_eq!(machine.written(), 0, "unanswered");
}

#[test]
fn an_interrupt_window_opens_behind_sti_where_it_was_asked_for() {
    let Some(kvm) = hardware_kvm() else { return };
    // out; sti; nop; nop; out; cli; nop; sti; nop; nop; out; hlt
    let (open, shut) = (b"\xfb\x90\x90", b"\xfa\x90");
    let code = Code::new().bytes(OUT_EAX).bytes(open).bytes(OUT_EAX).bytes(shut);
    let mut machine = Machine::new(&kvm, code.bytes(open).bytes(OUT_EAX).bytes(b"\xf4"));
    machine.written();
    machine.vcpu.request_interrupt_window(true);
    assert_eq!(machine.vcpu.run().unwrap(), Exit::InterruptWindow);
    assert!(machine.vcpu.can_inject());
    machine.vcpu.request_interrupt_window(false);
    machine.written();
    machine.written();
    assert_eq!(machine.vcpu.run().unwrap(), Exit::Hlt);
}

#[test]
fn a_state_saved_half_way_through_an_in_goes_on_behind_it_in_another_machine() {
    let Some(kvm) = kvm() else { return };
    // mov ebx, 7; in eax, 0x11; add eax, ebx; out; hlt
    let code = Code::new().bytes(b"\xbb\x07\0\0\0\xe5\x11\x01\xd8").bytes(OUT_EAX).bytes(b"\xf4");
    let mut first = Machine::new(&kvm, code);
    assert_eq!(first.vcpu.run().unwrap(), Exit::In { port: 0x11, size: 4 });
    first.vcpu.answer_in(35).unwrap();
    let state = first.vcpu.save(&kvm).unwrap();
    assert_eq!(state.regs.rip, CODE + 7, "behind the in");
    assert!(state.msrs.iter().any(|msr| msr.index == 0x10), "the TSC is part of the state");

    let vm = Vm::new(&kvm, first.loaded.memory.clone()).unwrap();
    let mut vcpu = vm.create_vcpu_with(&kvm, &first.cpuid).unwrap();
    vcpu.restore(&state).unwrap();
    assert_eq!(vcpu.regs().unwrap(), state.regs);
    assert_eq!(vcpu.run().unwrap(), Exit::Out { port: 0x11, size: 4, value: 42 });
    assert_eq!(vcpu.run().unwrap(), Exit::Hlt);
    assert_eq!(first.written(), 42, "saving has changed nothing");
}

#[test]
fn a_state_that_is_restored_and_saved_again_is_the_same_but_for_its_counters() {
    let Some(kvm) = kvm() else { return };
    let mut machine = Machine::new(&kvm, Code::new().bytes(OUT_EAX).bytes(b"\xf4"));
    machine.written();
    let state = machine.vcpu.save(&kvm).unwrap();
    let vm = Vm::new(&kvm, machine.loaded.memory.clone()).unwrap();
    let mut vcpu = vm.create_vcpu_with(&kvm, &machine.cpuid).unwrap();
    vcpu.restore(&state).unwrap();
    let mut again = vcpu.save(&kvm).unwrap();
    let indices = |msrs: &[kvm_bindings::kvm_msr_entry]| -> Vec<u32> {
        msrs.iter().map(|msr| msr.index).collect()
    };
    assert_eq!(indices(&again.msrs), indices(&state.msrs));
    for (was, is) in state.msrs.iter().zip(&mut again.msrs) {
        if was.index == 0x10 {
            is.data = was.data;
        }
    }
    assert_eq!(again, state);
}

#[test]
fn the_tsc_counts_from_where_it_was_set() {
    let Some(kvm) = hardware_kvm() else { return };
    let mut machine = Machine::new(&kvm, Code::new().bytes(b"\xf4"));
    assert!(machine.vcpu.tsc_khz().unwrap() > 100_000);
    // Far from what it would have been: KVM would take a value near it for an attempt at that.
    let value = 1 << 50;
    machine.vcpu.set_tsc(value).unwrap();
    assert!(machine.vcpu.tsc().unwrap() >= value);
}
