//! A bundled guest in a virtual machine, brought to where it can be measured.

use std::sync::Arc;

use rqscope::check::NAMES;
use rqscope::firmware::{Handler, turn};
use rqscope::introspect::{Introspector, Snapshot, bundled};
use rqscope::kvm::{Exit, Kvm};
use rqscope::machine::clock_pages::ClockPages;
use rqscope::machine::{FIRMWARE, Machine, paging};
use rqscope::run::{Planted, session};
use rqscope::scenario::Scenario;
use rqscope::schedule::Schedule;
use rqscope::session::Control;
use rqscope::trace::Trace;

/// More exits than any guest here needs to get where it is wanted.
const EXITS: u32 = 100_000;

/// A guest between two of its exits.
pub struct Guest {
    /// Memory and vCPU.
    pub machine: Machine,
    /// The host's side.
    pub handler: Handler<Schedule>,
    /// A second view of the same guest.
    pub view: Introspector,
}

impl Guest {
    /// The scenario `text`'s guest, run until `ready` likes an exit and what is seen then.
    pub fn boot(kvm: &Kvm, text: &str, ready: impl Fn(Exit, &Snapshot) -> bool) -> Self {
        let scenario = Scenario::load(text, "bench", &[], NAMES).unwrap();
        let clock = scenario.policy.rate_limit_clock;
        let (policy, session) =
            session(&scenario, clock, Planted::default(), Trace::hashed(), Arc::default());
        let page = scenario.boot_page(policy);
        let mut machine = Machine::new(kvm, FIRMWARE, &page).unwrap();
        let view = || {
            let memory = machine.memory.clone();
            bundled::introspector(memory, paging::CR3, FIRMWARE, page.nr_groups.into()).unwrap()
        };
        let mut handler = Handler::new(session, view(), ClockPages::new(machine.memory.clone()));
        let view = view();
        let control = Control::default();
        let mut seen = Snapshot::default();
        for _ in 0..EXITS {
            let exit = turn(&mut machine.vcpu, &mut handler, &control).unwrap();
            // Before it has booted there is nothing to be seen.
            if view.snapshot(&mut seen).is_ok() && ready(exit, &seen) {
                return Self { machine, handler, view };
            }
        }
        panic!("the guest is not ready after {EXITS} exits; last seen: {seen:?}");
    }
}
