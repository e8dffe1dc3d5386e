//! scratch
use rqscope::*;
use std::sync::Arc;
fn main() {
    let name = std::env::args().nth(1).unwrap_or("default".into());
    let b = scenario::builtin(&name).unwrap();
    let sets: Vec<String> = std::env::args().skip(2).collect();
    let s = scenario::Scenario::load(b.text, b.name, &sets, check::NAMES).unwrap();
    let mut trace = match std::env::var("TR") {
        Ok(f) => trace::Trace::written(std::fs::File::create(f).unwrap()).unwrap(),
        _ => trace::Trace::hashed(),
    };
    let t = std::time::Instant::now();
    for c in run::pass_clocks(&s) {
        let (o, tr) = if std::env::var("FW").is_ok() {
            let kvm = kvm::Kvm::open().unwrap();
            run::pass_on_firmware(
                &kvm,
                machine::FIRMWARE,
                &s,
                c,
                Default::default(),
                trace,
                Arc::new(Default::default()),
            )
            .unwrap()
        } else {
            run::pass_on_model(&s, c, Default::default(), trace, Arc::new(Default::default()))
                .unwrap()
        };
        trace = tr;
        println!("{c:?} hits {} rq {:?}", o.hits, o.rq);
        println!(
            "{:?} {:?} {:?} {:?}",
            o.measured,
            o.costs,
            o.ledger.irq_count(),
            o.ledger.irq_ns()
        );
        for c in &o.checks {
            println!("{:32} {:?} {} {:?}", c.id.name(), c.status, c.evaluated, c.first);
        }
        println!("{:?}", o.stopped);
    }
    println!("{:?} {:?}", trace.finish(), t.elapsed());
}
