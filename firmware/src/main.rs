//! The bundled guest: a bare-metal x86-64 kernel of a few tasks, whose scheduler clock accounting is
//! guest-model's.
//!
//! vmm/build.rs builds it with `--cfg rqscope_guest` and embeds the image. Built any other way, as
//! by `cargo build --workspace`, this is a program that says so.
#![cfg_attr(rqscope_guest, no_std, no_main)]

#[cfg(rqscope_guest)]
mod arch;
#[cfg(rqscope_guest)]
mod clock;
#[cfg(rqscope_guest)]
mod cpu;

/// From the entry stub: brings the kernel up and runs it. The clocks are registered before the kernel
/// first reads one, so that all it reads is frozen time.
#[cfg(rqscope_guest)]
fn start(off: arch::InterruptsOff, boot_page: &guest_model::wire::BootPage) -> ! {
    use guest_model::hardware::Cpu;
    use guest_model::wire::{NO_STEAL_CLOCK, control};

    cpu::register_clocks(boot_page.flags & NO_STEAL_CLOCK == 0);
    let mut cpu = cpu::ThisCpu::new(off);
    let (kernel, doorbell) = cpu.parts();
    if let Err(refusal) = kernel.boot(doorbell, boot_page) {
        arch::control_word(control::BAD_BOOT_PAGE, [refusal as u64, 0, 0]);
        arch::stop();
    }
    arch::control_word(control::READY, [0; 3]);
    loop {
        guest_model::kernel::step(&mut cpu);
    }
}

/// From the interrupt stubs.
#[cfg(rqscope_guest)]
fn interrupt(off: arch::InterruptsOff, line: u16) {
    guest_model::kernel::do_irq(&mut cpu::ThisCpu::new(off), line);
}

#[cfg(not(rqscope_guest))]
fn main() {
    println!(
        "the bundled guest runs in a virtual machine: `cargo run --release` builds and boots it"
    );
}
