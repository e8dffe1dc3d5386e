use super::*;
use proptest::prelude::*;

fn scenario(text: &str) -> Scenario {
    Scenario::load(text, "test", &[], &[]).unwrap_or_else(|e| panic!("{e}"))
}

fn events(text: &str) -> Vec<Event> {
    Schedule::new(&scenario(text), 1).collect()
}

fn instants(text: &str) -> Vec<u64> {
    events(text).iter().map(|e| e.at_ns).collect()
}

#[test]
fn a_scenario_without_sources_has_no_events() {
    let mut schedule = Schedule::new(&scenario(""), 1);
    assert_eq!((schedule.peek(), schedule.next(), schedule.next()), (None, None, None));
    assert_eq!(schedule.steal_in_irq(0, 5), None);
}

#[test]
fn the_kth_periodic_interrupt_is_at_the_exact_instant_rounded_down() {
    let at = instants("duration='2s'\n[[irq]]\nname='a'\nrate='1.5Hz'\ncost='1us'\nfrom='7ns'");
    assert_eq!(at, [7, 666_666_673, 1_333_333_340]);
    let at = instants("duration='1s'\n[[irq]]\nname='a'\nrate='300Hz'\ncost='1us'");
    assert_eq!(at.len(), 300);
    for (k, at) in at.iter().enumerate() {
        assert_eq!(*at, k as u64 * 1_000_000_000 / 300);
    }
}

#[test]
fn a_quarter_of_a_second_is_stolen_to_the_nanosecond() {
    for (fraction, quantum, total) in [
        ("0.25", "1ms", 250_000_000),
        ("0.3", "700us", 300_300_000),
        ("0.999", "999us", 999_000_000),
    ] {
        let stolen: u64 = events(&format!("[[steal]]\nfraction={fraction}\nquantum='{quantum}'"))
            .iter()
            .map(|e| match e.injection {
                Injection::Steal { wall_ns, .. } => wall_ns,
                Injection::Irq { .. } => 0,
            })
            .sum();
        assert_eq!(stolen, total, "{fraction}");
    }
}

#[test]
fn bursts_keep_the_rate_and_the_gap() {
    let at = instants(
        "duration='2ms'\n[[irq]]\nname='a'\nrate='3kHz'\narrival='burst'\nburst=3\ngap='10us'\ncost='1us'",
    );
    assert_eq!(at, [0, 10_000, 20_000, 1_000_000, 1_010_000, 1_020_000]);
}

#[test]
fn at_one_instant_steal_comes_first_and_then_the_earlier_declared() {
    let text = "duration='1ns'\n\
        [[irq]]\nname='a'\nrate='1Hz'\ncost='1us'\n[[irq]]\nname='b'\nrate='1Hz'\ncost='2us'\nsoftirq=0.5\n\
        [[steal]]\nperiod='1s'\nslice='1us'\n[[steal]]\nat='0'\ncounter='-1s'\nwhen='busy'";
    let injections: Vec<_> = events(text).iter().map(|e| (e.at_ns, e.injection)).collect();
    let steal =
        |source, wall_ns, counter_ns, when| Injection::Steal { source, wall_ns, counter_ns, when };
    let irq = |line, cost_ns, softirq_ns| Injection::Irq { line, cost_ns, softirq_ns };
    assert_eq!(
        injections,
        [
            (0, steal(0, 1_000, 1_000, When::Any)),
            (0, steal(1, 0, -1_000_000_000, When::Busy)),
            (0, irq(1, 1_000, 0)),
            (0, irq(2, 1_000, 1_000)),
        ]
    );
}

#[test]
fn sources_keep_to_their_windows() {
    let at = instants(
        "duration='10ms'\n[[irq]]\nname='a'\nrate='1kHz'\ncost='1us'\nfrom='2ms'\nuntil='4ms'",
    );
    assert_eq!(at, [2_000_000, 3_000_000]);
    for source in [
        "[[steal]]\nat='1ms'\nslice='1us'",
        "[[irq]]\nname='a'\nrate='1kHz'\ncost='1us'\nfrom='2ms'",
    ] {
        assert_eq!(events(&format!("duration='1ms'\n{source}")).len(), 0, "{source}");
    }
}

#[test]
fn steal_inside_handlers_counts_the_handlers_of_its_line_and_window() {
    let mut schedule = Schedule::new(
        &scenario(
            "[[irq]]\nname='a'\nrate='1Hz'\ncost='1us'\n\
             [[steal]]\nevery=2\nline='a'\nslice='3us'\n\
             [[steal]]\nevery=3\nslice='5us'\ncounter='-1us'\nfrom='10ns'\nuntil='20ns'",
        ),
        1,
    );
    assert_eq!(schedule.peek(), Some(0));
    let mut handle = |line, now_ns| schedule.steal_in_irq(line, now_ns);
    assert_eq!(handle(1, 9), None);
    assert_eq!(handle(0, 10), None);
    assert_eq!(handle(0, 11), None);
    assert_eq!(handle(1, 12), Some((8_000, 2_000)));
    assert_eq!(handle(1, 13), None);
    assert_eq!(handle(1, 20), Some((3_000, 3_000)));
}

#[test]
fn random_arrivals_keep_the_mean_rate_and_cost() {
    let text = "duration='10s'\n[[irq]]\nname='a'\nrate='20kHz'\narrival='poisson'\ncost={mean='10us',max='160us'}\nsoftirq=0.25";
    let (mut count, mut cost, mut softirq) = (0_u64, 0_u64, 0_u64);
    for event in events(text) {
        let Injection::Irq { cost_ns, softirq_ns, .. } = event.injection else { continue };
        count += 1;
        cost += u64::from(cost_ns + softirq_ns);
        softirq += u64::from(softirq_ns);
    }
    // Standard deviations: 447 of 200,000, and 22 ns of 10,000.
    assert!(count.abs_diff(200_000) < 2_000, "{count}");
    assert!((cost / count).abs_diff(10_000) < 100, "{}", cost / count);
    assert!((softirq * 4).abs_diff(cost) <= count * 4);
}

#[test]
fn jittered_slices_keep_the_share_and_do_not_overlap() {
    let slices = instants("duration='100s'\n[[steal]]\nfraction=0.25\nquantum='1ms'\njitter=true");
    assert!(slices.windows(2).all(|w| w[1] - w[0] >= 1_000_000));
    assert!(slices.len().abs_diff(25_000) < 600, "{}", slices.len());
}

#[test]
fn another_source_does_not_change_the_draws_of_the_first() {
    let first = "[[irq]]\nname='a'\nrate='1kHz'\narrival='poisson'\ncost={min='1us',max='9us'}\n";
    let more = "[[irq]]\nname='b'\nrate='1kHz'\narrival='poisson'\ncost={mean='1us'}\n[[steal]]\nfraction=0.1\njitter=true";
    let both: Vec<_> = events(&format!("{first}{more}"))
        .into_iter()
        .filter(|e| matches!(e.injection, Injection::Irq { line: 1, .. }))
        .collect();
    assert_eq!(events(first), both);
    let fixed = first.replace("{min='1us',max='9us'}", "'1us'");
    assert_eq!(instants(first), instants(&fixed));
}

#[test]
fn the_draws_are_these_on_every_machine() {
    let text = "[[irq]]\nname='a'\nrate='1kHz'\narrival='poisson'\ncost={mean='5us'}\n\
                [[irq]]\nname='b'\nrate='1kHz'\narrival='poisson'\ncost={min='1us',max='9us'}";
    let schedule = Schedule::new(&scenario(text), 42);
    let hash = schedule.fold(0_u64, |hash, e| {
        let Injection::Irq { line, cost_ns, .. } = e.injection else { return hash };
        splitmix64(hash ^ e.at_ns ^ u64::from(cost_ns) << 32 ^ u64::from(line) << 63)
    });
    assert_eq!(hash, 17_470_497_955_758_111_976);
}

#[test]
fn a_uniform_draw_takes_every_value_about_equally_often() {
    let mut draws = Draws::new(7, Stream::Cost, 0);
    let mut counts = [0_u32; 3];
    for _ in 0..30_000 {
        counts[draws.uniform(5, 7) as usize - 5] += 1;
    }
    assert!(counts.iter().all(|n| n.abs_diff(10_000) < 400), "{counts:?}");
    assert_eq!(draws.uniform(9, 9), 9);
    let _ = draws.uniform(0, u32::MAX);
}

proptest! {
    #[test]
    fn exact_steps_never_drift(num in 1..=u128::from(u64::MAX), den in 1..=Rate::GHZ, k in 1..500_u64) {
        let mut steps = Steps::new(num, den);
        let sum: u128 = (0..k).map(|_| u128::from(steps.next())).sum();
        prop_assert!(num / u128::from(den) >= 1 << 63 || sum == u128::from(k) * num / u128::from(den));
    }

    #[test]
    fn a_schedule_is_ordered_repeatable_and_its_seeds_differ(seed in any::<u64>(), other in any::<u64>(), khz in 1..40_u32, share in 1..60_u32) {
        prop_assume!(seed != other);
        let s = scenario(&format!(
            "duration='20ms'\n\
             [[irq]]\nname='a'\nrate='{khz}kHz'\narrival='poisson'\ncost={{mean='5us'}}\n\
             [[irq]]\nname='b'\nrate='{khz}kHz'\narrival='burst'\ngap='1us'\ncost={{min='1us',max='4us'}}\n\
             [[steal]]\nfraction=0.{share:02}\nquantum='100us'\n[[steal]]\nfraction=0.01\njitter=true\nwhen='idle'"
        ));
        let events: Vec<_> = Schedule::new(&s, seed).collect();
        prop_assert!(events.windows(2).all(|w| w[0].at_ns <= w[1].at_ns));
        prop_assert!(events.iter().all(|e| e.at_ns < s.duration_ns));
        prop_assert!(events.iter().copied().eq(Schedule::new(&s, seed)));
        prop_assert!(!events.iter().copied().eq(Schedule::new(&s, other)));
    }

    #[test]
    fn slices_of_one_source_never_overlap_and_their_share_is_exact(parts in 1..1_000_u64, quantum_us in 1..3_000_u64) {
        let s = scenario(&format!("duration='600s'\n[[steal]]\nfraction={}\nquantum='{quantum_us}us'", parts as f64 / 1_000.0));
        let quantum = quantum_us * 1_000;
        let at: Vec<_> = Schedule::new(&s, 1).take(2 * parts as usize + 1).map(|e| e.at_ns).collect();
        prop_assert!(at.windows(2).all(|w| w[1] - w[0] >= quantum));
        // After `parts` slices exactly 1,000 quanta have passed, if the run is that long.
        if at.len() > parts as usize {
            prop_assert_eq!(at[parts as usize], 1_000 * quantum);
        }
    }
}
