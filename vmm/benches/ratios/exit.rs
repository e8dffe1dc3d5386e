//! An exit handled by the engine against a bare KVM port exit of the same guest code.
//!
//! The guest is a bundled guest that has booted and halted, so that its clock pages are registered
//! and its run queue can be read, and is then put into a loop of three instructions around one `in`
//! or `out`. Its own code between two exits would be most of the time where KVM emulates (some
//! microseconds), and would make any handler look cheap; in the loop the exit is all there is.

use guest_model::wire::{port, probe};
use rqscope::engine::Injections;
use rqscope::firmware::{Handler, turn};
use rqscope::introspect::bundled::BundledSymbols;
use rqscope::introspect::symbols::SymbolSource;
use rqscope::kvm::{Exit, Kvm};
use rqscope::machine::FIRMWARE;
use rqscope::machine::layout::{IMAGE, KERNEL_BASE, PAGE};
use rqscope::session::Control;
use vm_memory::{Bytes, GuestAddress};

use crate::bare::Bare;
use crate::guest::Guest;
use crate::paired::{Spread, pair};

/// One task that halts the CPU at times. The sources are there, as in a real run the engine asks
/// them at each exit, but nothing is due while the loop runs.
const SCENARIO: &str = r#"
    duration = "86400s"
    policy.compare = []
    [[task]]
    name = "a"
    burn = "100us"
    sleep = "1ms"
    [[irq]]
    name = "nic"
    rate = "1kHz"
    cost = "1us"
    from = "80000s"
    [[steal]]
    at = "80000s"
    slice = "1ms"
"#;

/// Exits of one batch: far fewer than a session takes for a guest that is stuck.
const EXITS: u32 = 2_000;
/// Guest time that one `in` burns, ns.
const BURN_NS: u32 = 100;

/// Where the loop goes: the last page of guest memory.
const CODE: u64 = IMAGE.start + IMAGE.size - PAGE;

/// `mov edi, BURN_NS; in eax, BURN; jmp` back.
fn burn_loop() -> Vec<u8> {
    let mut code = vec![0xbf];
    code.extend(BURN_NS.to_le_bytes());
    code.extend([0xe5, port::BURN as u8, 0xeb, 0xf7]);
    code
}

/// `mov al, number; out PROBE, al; jmp` back.
fn probe_loop(number: u8) -> Vec<u8> {
    vec![0xb0, number, 0xe6, port::PROBE as u8, 0xeb, 0xfa]
}

/// Cost of an exit that the engine handles, as a multiple of a bare one.
fn ratio(kvm: &Kvm, rounds: usize, code: &[u8], rdi: u64) -> Spread {
    let mut guest = Guest::boot(kvm, SCENARIO, |exit, _| exit == Exit::Hlt);
    guest.machine.memory.write_slice(code, GuestAddress(CODE)).unwrap();
    let vcpu = &mut guest.machine.vcpu;
    let mut regs = vcpu.read_regs().unwrap();
    (regs.rip, regs.rdi) = (KERNEL_BASE + CODE, rdi);
    vcpu.set_regs(&regs).unwrap();
    // Without a timer no interrupt comes due.
    guest.handler.handle(Exit::Out { port: port::TIMER, size: 4, value: 0 }, [0; 3]).unwrap();
    let mut bare = Bare::copy_of(&guest.machine.memory, &regs, &vcpu.read_sregs().unwrap());

    let control = Control::default();
    let handler = &mut guest.handler;
    pair(
        rounds,
        || {
            for _ in 0..EXITS {
                turn(vcpu, handler, &control).unwrap();
            }
            pass_time(handler);
        },
        || bare.run(EXITS, BURN_NS),
    )
    .ratio
}

/// Probes alone would let no time pass, and the guest would count as stuck.
fn pass_time<I: Injections>(handler: &mut Handler<I>) {
    let burn = Exit::In { port: port::BURN, size: 4 };
    handler.handle(burn, [u64::from(BURN_NS), 0, 0]).unwrap();
}

/// Prints the figures.
pub fn run(kvm: &Kvm, rounds: usize) {
    println!("doorbell: an exit handled by the engine / a bare KVM port exit");
    let burn = ratio(kvm, rounds, &burn_loop(), 0);
    println!("  BURN (goal 1.15 or less)                     {burn}");
    let rq = BundledSymbols::of_image(FIRMWARE).unwrap().address("runqueues").unwrap();
    let update = ratio(kvm, rounds, &probe_loop(probe::UPDATE_RQ_CLOCK), rq);
    println!("  probe of update_rq_clock, with introspection {update}");
}
