//! The machine without its engine: boots the bundled guest, and images made to fail, and looks at
//! their exits.

use std::mem::offset_of;

use guest_model::kernel::Kernel;
use guest_model::policy::{Fault, Policy, PsiZeroDelta, RateLimitClock};
use guest_model::rq::Rq;
use guest_model::wire::{BootError, BootPage, TaskSpec, VECTOR_BASE, control, port, probe};
use rqscope::kvm::{Exit, Kvm};
use rqscope::machine::layout::{BOOT_PAGE, IMAGE, KERNEL_BASE};
use rqscope::machine::{FIRMWARE, Machine};
use vm_memory::{Bytes, GuestAddress};

use crate::host::kvm;
use crate::image::{Code, Image};

const TICK_NS: u64 = 4_000_000;
const POLICY: Policy = Policy {
    rate_limit_clock: RateLimitClock::RqClock,
    psi_zero_delta: PsiZeroDelta::Skip,
    fault: Fault::None,
};
/// More exits than any of these tests needs.
const EXIT_BUDGET: u32 = 20_000;

/// A page with one task that burns 1 ms at a time, and one interrupt line besides the timer.
fn boot_page() -> BootPage {
    let mut page = BootPage::new(TICK_NS, POLICY);
    page.nr_irqs = 2;
    page.nr_tasks = 1;
    page.tasks[0] = TaskSpec {
        burn_min_ns: 1_000_000,
        burn_max_ns: 1_000_000,
        sleep_min_ns: 500_000,
        sleep_max_ns: 500_000,
        start_ns: 0,
        seed: 1,
        weight: 1024,
        group: 0,
        wakes: guest_model::wire::NONE,
        flags: 0,
        reserved: [0; 3],
    };
    page
}

/// What the guest did at one exit, as far as these tests look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Control { word: u32, args: [u64; 3] },
    Probe { number: u8, args: [u64; 3] },
    IrqStatus { line: u64 },
    Idle,
    End(Exit),
    Nothing,
}

/// The least of a host: frozen clocks, a timer, one queued line, and answers to all exits.
struct Host {
    machine: Machine,
    now_ns: u64,
    pvclock: Option<u64>,
    steal: Option<u64>,
    timer_ns: u64,
    queued_line: Option<u8>,
}

impl Host {
    fn new(kvm: &Kvm, elf: &[u8], page: &BootPage) -> Self {
        let machine = Machine::new(kvm, elf, page).unwrap();
        Self { machine, now_ns: 1_000, pvclock: None, steal: None, timer_ns: 0, queued_line: None }
    }

    /// Moves guest time: an even version, and a multiplier of 0 so that the TSC does not count.
    fn set_time(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        let page = GuestAddress(self.pvclock.expect("the guest registers its clock first"));
        let mut info = [0u8; 32];
        info[16..24].copy_from_slice(&now_ns.to_le_bytes());
        info[29] = 1;
        self.machine.memory.write_slice(&info, page).unwrap();
    }

    fn args(&mut self) -> [u64; 3] {
        let regs = self.machine.vcpu.regs().unwrap();
        [regs.rdi, regs.rsi, regs.rdx]
    }

    /// Handles one exit.
    fn step(&mut self) -> Seen {
        let exit = self.machine.vcpu.run().unwrap();
        let seen = match exit {
            Exit::Wrmsr { index: 0x4b56_4d01, value } => {
                self.pvclock = Some(value & !1);
                self.set_time(self.now_ns);
                Seen::Nothing
            }
            Exit::Wrmsr { index: 0x4b56_4d03, value } => {
                self.steal = Some(value & !1);
                Seen::Nothing
            }
            Exit::In { port: port::BURN | port::SOFTIRQ, size: 4 } => {
                let want = self.args()[0];
                let left = self.timer_ns.saturating_sub(self.now_ns);
                let consumed = if self.queued_line.is_some() { 0 } else { want.min(left) };
                self.set_time(self.now_ns + consumed);
                self.machine.vcpu.answer_in(consumed as u32).unwrap();
                Seen::Nothing
            }
            Exit::In { port: port::IRQ_STATUS, size: 4 } => {
                let line = self.args()[0];
                self.set_time(self.now_ns + 10_000);
                self.machine.vcpu.answer_in(0).unwrap();
                Seen::IrqStatus { line }
            }
            Exit::Out { port: port::TIMER, size: 4, .. } => {
                self.timer_ns = self.args()[0];
                Seen::Nothing
            }
            Exit::Out { port: port::CONTROL, size: 4, value } => {
                Seen::Control { word: value, args: self.args() }
            }
            Exit::Out { port: port::PROBE, size: 1, value } => {
                Seen::Probe { number: value as u8, args: self.args() }
            }
            Exit::Hlt if self.machine.vcpu.can_inject() => {
                if self.queued_line.is_none() {
                    self.set_time(self.now_ns.max(self.timer_ns));
                }
                Seen::Idle
            }
            other => Seen::End(other),
        };
        if self.queued_line.is_none() && self.timer_ns != 0 && self.now_ns >= self.timer_ns {
            self.timer_ns = 0;
            self.queued_line = Some(0);
        }
        if let Some(line) = self.queued_line
            && self.machine.vcpu.can_inject()
        {
            self.machine.vcpu.interrupt(VECTOR_BASE + line).unwrap();
            self.queued_line = None;
        }
        seen
    }

    /// Handles exits until one that `wanted` is about.
    fn run_until(&mut self, wanted: impl Fn(Seen) -> bool) -> Seen {
        for _ in 0..EXIT_BUDGET {
            let seen = self.step();
            if wanted(seen) {
                return seen;
            }
            assert!(!matches!(seen, Seen::End(_)), "{seen:?}\n{:#x?}", self.machine.vcpu.regs());
            if let Seen::Control { word: control::PANIC | control::EXCEPTION, .. } = seen {
                panic!("{seen:x?}\n{:#x?}", self.machine.vcpu.regs());
            }
        }
        panic!("no such exit within {EXIT_BUDGET}");
    }

    /// Handles exits until the next control word.
    fn run_fatal(&mut self) -> Seen {
        for _ in 0..EXIT_BUDGET {
            match self.step() {
                seen @ Seen::Control { .. } => return seen,
                Seen::End(exit) => panic!("{exit:?}"),
                _ => {}
            }
        }
        panic!("no control word within {EXIT_BUDGET} exits");
    }

    fn read_u64(&self, virt: u64) -> u64 {
        self.machine.memory.read_obj(GuestAddress(virt.wrapping_sub(KERNEL_BASE))).unwrap()
    }
}

fn in_image(virt: u64) -> bool {
    (IMAGE.virt()..IMAGE.virt() + IMAGE.size).contains(&virt)
}

#[test]
fn the_guest_registers_its_clocks_and_says_that_it_is_ready() {
    let Some(kvm) = kvm() else { return };
    let mut host = Host::new(&kvm, FIRMWARE, &boot_page());
    let ready = host.run_until(|s| matches!(s, Seen::Control { .. }));
    assert!(matches!(ready, Seen::Control { word: control::READY, .. }), "{ready:?}");
    for page in [host.pvclock, host.steal] {
        assert!(page.is_some_and(|p| (IMAGE.start..IMAGE.end()).contains(&p)), "{page:x?}");
    }
}

#[test]
fn a_probe_names_structures_in_the_kernels_memory() {
    let Some(kvm) = kvm() else { return };
    let mut host = Host::new(&kvm, FIRMWARE, &boot_page());
    let is = |number| move |s| matches!(s, Seen::Probe { number: n, .. } if n == number);
    let Seen::Probe { args: [rq, ..], .. } = host.run_until(is(probe::UPDATE_RQ_CLOCK)) else {
        unreachable!()
    };
    assert!(in_image(rq) && in_image(rq + size_of::<Kernel>() as u64), "{rq:#x}");
    let Seen::Probe { args: [prev, next, _], .. } = host.run_until(is(probe::PSI_TASK_SWITCH))
    else {
        unreachable!()
    };
    assert!(in_image(prev) && in_image(next) && prev != next, "{prev:#x} {next:#x}");
    assert_eq!(host.read_u64(rq + offset_of!(Rq, clock) as u64), host.now_ns);
    assert_eq!(host.read_u64(rq + offset_of!(Rq, curr) as u64), next);
}

#[test]
fn an_interrupt_injected_into_a_burning_task_reaches_the_status_register_of_its_line() {
    let Some(kvm) = kvm() else { return };
    let mut host = Host::new(&kvm, FIRMWARE, &boot_page());
    host.run_until(|s| matches!(s, Seen::Probe { number: probe::PSI_TASK_SWITCH, .. }));
    for _ in 0..50 {
        host.queued_line = Some(1);
        host.run_until(|s| s == Seen::IrqStatus { line: 1 });
    }
}

#[test]
fn the_guest_ticks_burns_and_sleeps_for_a_second_of_its_time() {
    let Some(kvm) = kvm() else { return };
    let mut host = Host::new(&kvm, FIRMWARE, &boot_page());
    let mut idle = 0;
    let mut ticks = 0;
    while host.now_ns < 1_000_000_000 {
        match host.run_until(|s| matches!(s, Seen::Idle | Seen::IrqStatus { .. })) {
            Seen::Idle => idle += 1,
            _ => ticks += 1,
        }
    }
    assert!(idle > 100 && ticks > 250, "{idle} {ticks}");
}

#[test]
fn a_bad_boot_page_is_refused_with_its_reason() {
    let Some(kvm) = kvm() else { return };
    let mut page = boot_page();
    page.nr_tasks = u16::MAX;
    let mut host = Host::new(&kvm, FIRMWARE, &page);
    let refusal = |s| matches!(s, Seen::Control { word: control::BAD_BOOT_PAGE, .. });
    let Seen::Control { args, .. } = host.run_until(refusal) else { unreachable!() };
    assert_eq!(BootError::from_number(args[0]), Some(BootError::Count));
}

#[test]
fn a_panic_reaches_the_host_with_file_and_line() {
    let Some(kvm) = kvm() else { return };
    let mut host = Host::new(&kvm, FIRMWARE, &boot_page());
    host.run_until(|s| matches!(s, Seen::Control { word: control::READY, .. }));
    // A pvclock page whose version stays odd is one that the host never finishes.
    let page = GuestAddress(host.pvclock.unwrap());
    host.machine.memory.write_obj(1u32, page).unwrap();
    let seen = host.run_fatal();
    let Seen::Control { word: control::PANIC, args: [file, len, line] } = seen else {
        panic!("{seen:?}")
    };
    let mut name = vec![0; len as usize];
    let at = GuestAddress(file.wrapping_sub(KERNEL_BASE));
    host.machine.memory.read_slice(&mut name, at).unwrap();
    let name = String::from_utf8(name).unwrap();
    assert!(name.ends_with("firmware/src/clock.rs"), "{name}");
    assert!((1..200).contains(&line), "{line}");
}

#[test]
fn an_exception_reaches_the_host_with_vector_and_address() {
    let Some(kvm) = kvm() else { return };
    let mut host = Host::new(&kvm, FIRMWARE, &boot_page());
    host.run_until(|s| s == Seen::Idle);
    // Behind its hlt the guest now finds itself on the null page.
    let mut regs = host.machine.vcpu.regs().unwrap();
    regs.rip = 0x123;
    host.machine.vcpu.set_regs(&regs).unwrap();
    let seen = host.run_fatal();
    let Seen::Control { word: control::EXCEPTION, args: [vector, error_code, rip] } = seen else {
        panic!("{seen:?}")
    };
    assert_eq!((vector, error_code & 1, rip), (14, 0, 0x123));
    assert_eq!(host.machine.vcpu.read_sregs().unwrap().cr2, 0x123);
}

/// An image that runs `code`.
fn image_of(code: &[u8]) -> Vec<u8> {
    Image::of(Code::new().bytes(code)).to_elf()
}

#[test]
fn an_in_is_completed_before_an_interrupt_that_was_injected_at_its_exit() {
    let Some(kvm) = kvm() else { return };
    const HANDLER: usize = 0x40;
    const IDT_POINTER: usize = 0x60;
    const IDT: usize = 0x100;
    let mut code = vec![0u8; IDT + 0x21 * 16];
    let mut put = |at: usize, bytes: &[u8]| code[at..at + bytes.len()].copy_from_slice(bytes);
    // lidt [rip + 0x59]; sti; mov edi, 1; in eax, 0x10; cli; hlt
    put(0, b"\x0f\x01\x1d\x59\0\0\0\xfb\xbf\x01\0\0\0\xe5\x10\xfa\xf4");
    const BEHIND_IN: u64 = IMAGE.virt() + 0xf;
    // out 0x11, eax; iretq
    put(HANDLER, b"\xe7\x11\x48\xcf");
    put(IDT_POINTER, &(0x21u16 * 16 - 1).to_le_bytes());
    put(IDT_POINTER + 2, &(IMAGE.virt() + IDT as u64).to_le_bytes());
    // Vector 0x20: an interrupt gate at selector 8.
    let handler = IMAGE.virt() + HANDLER as u64;
    let gate = IDT + 0x20 * 16;
    put(gate, &(handler as u16).to_le_bytes());
    put(gate + 2, &[8, 0, 0, 0x8e]);
    put(gate + 6, &((handler >> 16) as u16).to_le_bytes());
    put(gate + 8, &((handler >> 32) as u32).to_le_bytes());

    let Machine { memory, mut vcpu, .. } =
        Machine::new(&kvm, &image_of(&code), &boot_page()).unwrap();
    assert_eq!(vcpu.run().unwrap(), Exit::In { port: 0x10, size: 4 });
    vcpu.answer_in(0xfeed_f00d).unwrap();
    assert!(vcpu.can_inject());
    vcpu.interrupt(0x20).unwrap();
    assert!(!vcpu.can_inject(), "one at a time");
    let out = Exit::Out { port: 0x11, size: 4, value: 0xfeed_f00d };
    assert_eq!(vcpu.run().unwrap(), out);
    let frame = GuestAddress(vcpu.regs().unwrap().rsp - KERNEL_BASE);
    assert_eq!(memory.read_obj::<u64>(frame).unwrap(), BEHIND_IN);
    assert_eq!(vcpu.run().unwrap(), Exit::Hlt);
    assert!(!vcpu.can_inject());
}

#[test]
fn a_triple_fault_is_a_shutdown() {
    let Some(kvm) = kvm() else { return };
    // ud2, without an IDT.
    let mut machine = Machine::new(&kvm, &image_of(&[0x0f, 0x0b]), &boot_page()).unwrap();
    assert_eq!(machine.vcpu.run().unwrap(), Exit::Shutdown);
}

#[test]
fn a_string_write_to_a_port_is_not_mistaken_for_a_doorbell() {
    let Some(kvm) = kvm() else { return };
    // mov rsi, rdi; mov edx, 0xf4; mov ecx, 4; rep outsb
    let code = b"\x48\x89\xfe\xba\xf4\0\0\0\xb9\x04\0\0\0\xf3\x6e\xf4";
    let mut machine = Machine::new(&kvm, &image_of(code), &boot_page()).unwrap();
    let exit = machine.vcpu.run().unwrap();
    assert!(
        matches!(exit, Exit::Other("string port I/O") | Exit::Out { port: 0xf4, size: 1, .. }),
        "{exit:?}"
    );
}

#[test]
fn port_sizes_and_values_are_what_the_guest_used() {
    let Some(kvm) = kvm() else { return };
    // mov eax, 0x12345678; out 0x10, eax; out 0x10, ax; out 0x10, al; in al, 0x11; in ax, 0x11; hlt
    let code = b"\xb8\x78\x56\x34\x12\xe7\x10\x66\xe7\x10\xe6\x10\xe4\x11\x66\xe5\x11\xf4";
    let mut vcpu = Machine::new(&kvm, &image_of(code), &boot_page()).unwrap().vcpu;
    for (size, value) in [(4, 0x1234_5678), (2, 0x5678), (1, 0x78)] {
        assert_eq!(vcpu.run().unwrap(), Exit::Out { port: 0x10, size, value });
    }
    assert!(vcpu.answer_in(0).is_err());
    assert_eq!(vcpu.run().unwrap(), Exit::In { port: 0x11, size: 1 });
    vcpu.answer_in(0xaaaa_aaff).unwrap();
    assert_eq!(vcpu.run().unwrap(), Exit::In { port: 0x11, size: 2 });
    assert_eq!(vcpu.regs().unwrap().rax, 0x1234_56ff);
    vcpu.answer_in(0xbbbb_cccc).unwrap();
    assert_eq!(vcpu.run().unwrap(), Exit::Hlt);
    assert_eq!(vcpu.regs().unwrap().rax, 0x1234_cccc);
    assert_eq!(vcpu.regs().unwrap().rdi, BOOT_PAGE.virt());
    assert_eq!(vcpu.regs().unwrap(), vcpu.read_regs().unwrap());
    assert!(!vcpu.can_inject(), "interrupts are off");
}

#[test]
fn an_access_outside_of_memory_and_page_zero_do_not_go_unnoticed() {
    let Some(kvm) = kvm() else { return };
    // mov al, [0]: not mapped, no IDT.
    let code = b"\x8a\x04\x25\0\0\0\0\xf4";
    let mut machine = Machine::new(&kvm, &image_of(code), &boot_page()).unwrap();
    assert_eq!(machine.vcpu.run().unwrap(), Exit::Shutdown);
}

#[test]
fn an_instruction_that_kvm_cannot_emulate_is_named_by_its_bytes() {
    let Some(kvm) = kvm() else { return };
    // vaddps xmm0, xmm0, xmm0; hlt: hardware without OSXSAVE raises #UD, an emulator gives up.
    let code = b"\xc5\xf8\x58\xc0\xf4";
    let mut machine = Machine::new(&kvm, &image_of(code), &boot_page()).unwrap();
    match machine.vcpu.run().unwrap() {
        Exit::Shutdown => assert_eq!(machine.vcpu.failed_instruction(), None),
        Exit::InternalError { suberror: 1, .. } => {
            let failed = machine.vcpu.failed_instruction().unwrap();
            assert!(failed.bytes().starts_with(&code[..4]), "{failed:x?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_kick_stops_a_guest_that_loops_for_ever() {
    let Some(kvm) = kvm() else { return };
    let mut machine = Machine::new(&kvm, &image_of(&[0xeb, 0xfe]), &boot_page()).unwrap();
    let kick = machine.vcpu.kick_handle().unwrap();
    // Before it runs: the run ends at once.
    kick.kick();
    assert_eq!(machine.vcpu.run().unwrap(), Exit::Interrupted);
    // From another thread, whether it runs by then or not.
    let other = kick.clone();
    let thread = std::thread::spawn(move || other.kick());
    assert_eq!(machine.vcpu.run().unwrap(), Exit::Interrupted);
    thread.join().unwrap();
    drop(machine);
    kick.kick();
}
