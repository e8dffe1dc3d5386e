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
mod standin {
    use guest_model::wire::{BootPage, MAGIC, control, probe};

    use crate::arch;
    use crate::clock::{Pvclock, Steal};

    static PVCLOCK: Pvclock = Pvclock::new();
    static STEAL: Steal = Steal::new();
    pub fn start(boot_page: &'static BootPage) -> ! {
        arch::wrmsr(arch::MSR_KVM_SYSTEM_TIME_NEW, arch::physical(&PVCLOCK) | 1);
        arch::wrmsr(arch::MSR_KVM_STEAL_TIME, arch::physical(&STEAL) | 1);
        assert!(boot_page.magic == MAGIC);
        arch::control_word(control::READY, [0; 3]);
        let mut x = 0u64;
        loop {
            x = PVCLOCK.read(arch::rdtsc) + STEAL.read() + x;
            let a = &raw const x as u64;
            arch::probe::<{ probe::UPDATE_RQ_CLOCK }, _>(&mut x, [a, 2, 3]);
            x += arch::burn(1000) as u64 + arch::softirq(100) as u64;
            arch::set_timer(x);
            arch::halt();
        }
    }
    pub fn interrupt(line: u16) {
        let mut x = 1;
        arch::irq_status(&mut x, line);
    }
}
#[cfg(rqscope_guest)]
use standin::{interrupt, start};

#[cfg(not(rqscope_guest))]
fn main() {
    println!("the bundled guest runs in a virtual machine: `cargo run --release` builds and boots it");
}
