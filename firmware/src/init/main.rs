//! PID 1 of a Linux guest: sets the guest up, builds the plan's groups, runs its tasks.
//!
//! vmm/build.rs builds it with `--cfg rqscope_guest`, as a static program that needs no library and no
//! file beside it, and embeds it. `guest_model::wire::linux` is the protocol. Built any other way, as by
//! `cargo build --workspace`, this is a program that says so.
//!
//! It reads no clock but at the start of the run, waits by sleeping, and consumes CPU time only by asking
//! the host for it: what it does depends on the plan and on virtual time alone.
#![cfg_attr(rqscope_guest, no_std, no_main)]

#[cfg(rqscope_guest)]
mod arch;
#[cfg(rqscope_guest)]
mod report;
#[cfg(rqscope_guest)]
mod setup;
#[cfg(rqscope_guest)]
mod syscall;
#[cfg(rqscope_guest)]
mod task;
#[cfg(rqscope_guest)]
mod tasks;
#[cfg(rqscope_guest)]
mod tree;

#[cfg(rqscope_guest)]
fn main() -> ! {
    use guest_model::wire::linux::{SETTLE_BURN_NS, control};

    let interfaces = setup::run();
    let Some(plan) = arch::ready() else {
        report::fail(format_args!("the plan's buffer has the wrong size"));
    };
    if let Err(error) = plan.validate() {
        report::fail(format_args!("the host's plan cannot be used: {error}"));
    }
    if usize::from(plan.nr_nets) > interfaces {
        report::fail(format_args!(
            "the plan uses {} network devices, and the guest has {interfaces} (are CONFIG_VIRTIO_NET and \
             CONFIG_VIRTIO_MMIO_CMDLINE_DEVICES on?)",
            plan.nr_nets
        ));
    }
    let tasks = tasks::Tasks::create(plan, &tree::build(plan));
    arch::control_word(control::STARTED, [0; 3]);
    while arch::settled() == 0 {
        task::burn(SETTLE_BURN_NS.into());
    }
    tasks.run()
}

#[cfg(not(rqscope_guest))]
fn main() {
    println!("PID 1 of Linux guests runs in a virtual machine: `cargo run --release` builds it");
}
