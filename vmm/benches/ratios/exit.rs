//! An exit handled by the engine against a bare KVM port exit of the same guest code.
//!
//! The guest is a bundled guest that has booted and halted, so that its clock pages are registered
//! and its run queue can be read, and is then put into a loop of three instructions around one `in`
//! or `out`. Its own code between two exits would be most of the time where KVM emulates (some
//! microseconds), and would make any handler look cheap; in the loop the exit is all there is.

use std::hint::black_box;

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
use crate::paired::{Spread, clock_cycles, pair, print};

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

/// `movabs rdi, argument`, and then `mov al, number; out PROBE, al; jmp` back.
fn probe_loop(number: u8, argument: u64) -> Vec<u8> {
    let mut code = vec![0x48, 0xbf];
    code.extend(argument.to_le_bytes());
    code.extend([0xb0, number, 0xe6, port::PROBE as u8, 0xeb, 0xfa]);
    code
}

/// A guest that halted.
fn halted(kvm: &Kvm) -> Guest {
    Guest::boot(kvm, SCENARIO, |exit, _| exit == Exit::Hlt)
}

/// Without its timer no interrupt comes due.
fn stop_timer<I: Injections>(handler: &mut Handler<I>) {
    handler.handle(Exit::Out { port: port::TIMER, size: 4, value: 0 }, [0; 3]).unwrap();
}

/// Cost of an exit that the engine handles, as a multiple of a bare one.
fn ratio(kvm: &Kvm, rounds: usize, code: &[u8]) -> Spread {
    let mut guest = halted(kvm);
    guest.machine.memory.write_slice(code, GuestAddress(CODE)).unwrap();
    let vcpu = &mut guest.machine.vcpu;
    let mut regs = vcpu.read_regs().unwrap();
    regs.rip = KERNEL_BASE + CODE;
    vcpu.set_regs(&regs).unwrap();
    let mut bare = Bare::copy_of(&guest.machine.memory, &regs, &vcpu.read_sregs().unwrap());

    let control = Control::default();
    let handler = &mut guest.handler;
    // The interrupt that ended the halt is handled first, and arms the timer once more.
    for _ in 0..EXITS {
        turn(vcpu, handler, &control).unwrap();
    }
    stop_timer(handler);
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

/// What the handler alone takes for `exit`, in clock cycles.
fn alone(kvm: &Kvm, rounds: usize, exit: Exit, rdi: u64) -> Spread {
    const CALLS: u32 = 100_000;
    let mut handler = halted(kvm).handler;
    stop_timer(&mut handler);
    let handled = || {
        for _ in 0..CALLS {
            handler.handle(black_box(exit), [rdi, 0, 0]).unwrap();
        }
        pass_time(&mut handler);
    };
    pair(rounds, handled, || clock_cycles(CALLS)).ratio
}

/// Prints the figures.
pub fn run(kvm: &Kvm, rounds: usize) {
    let rq = BundledSymbols::of_image(FIRMWARE).unwrap().address("runqueues").unwrap();
    let burn = "BURN";
    let probe = "probe of update_rq_clock(), with introspection";

    println!("doorbell: an exit handled by the engine / a bare KVM port exit");
    print(&format!("{burn} (goal: 1.15 or less)"), ratio(kvm, rounds, &burn_loop()));
    print(probe, ratio(kvm, rounds, &probe_loop(probe::UPDATE_RQ_CLOCK, rq)));

    println!("doorbell: the handler alone, without KVM_RUN / one clock cycle");
    let exit = Exit::In { port: port::BURN, size: 4 };
    print(burn, alone(kvm, rounds, exit, BURN_NS.into()));
    let exit = Exit::Out { port: port::PROBE, size: 1, value: probe::UPDATE_RQ_CLOCK.into() };
    print(probe, alone(kvm, rounds, exit, rq));
}
