//! What is refused, and how that is said.

use super::*;

#[test]
fn an_error_in_an_override_names_the_override() {
    let text = "[[irq]]\nname='nic'\nrate='1kHz'\ncost='1us'\n";
    for (set, want) in [
        (
            "irq.0.rate=0",
            "--set irq.0.rate=0: irq[0].rate: 0 is out of range; it must be above 0Hz and at most 1000MHz",
        ),
        ("irq.nic.rats=1", "--set irq.nic.rats=1: irq[0].rats: unknown key; did you mean `rate`?"),
        ("tick.hertz=1", "--set tick.hertz=1: tick.hertz: unknown key; known are rate, cost"),
        (
            "irq.0.cost=5ms",
            "--set irq.0.cost=5ms: irq[0].cost: this line's handlers take 500% of the CPU for ever; less than 100% must be taken: lower the rate or this value",
        ),
        (
            "extra.table.deep=1",
            "--set extra.table.deep=1: extra: unknown key; known are name, summary, duration, seed, tick, cpu, policy, group, task, irq, steal, checks",
        ),
        (
            "task=[{name='a',burn='1us',group='g'}]",
            "--set task=[{name='a',burn='1us',group='g'}]: task[0].group: no group is named `g`; there is none: declare it with [[group]] and its path, or leave this key out",
        ),
        (
            "irq=7",
            "--set irq=7: irq: expected an array of tables, each headed by its name in [[ ]], got the number 7",
        ),
    ] {
        assert_eq!(load_with(text, &[set]).unwrap_err().to_string(), want);
    }
}

#[test]
fn what_an_override_took_away_is_said_where_it_is_missed() {
    let irq = "[[irq]]\nname='nic'\nrate='1kHz'\ncost='1us'\n";
    let missed = |text: &str| load_with(text, &["irq=[]"]).unwrap_err().to_string();
    assert_eq!(
        missed(&format!("{irq}[[steal]]\nevery=2\nslice='1us'\nline='nic'")),
        "f.toml:8: steal[0].line: no interrupt line is named `nic`; known are timer; --set irq=[] replaced all of [[irq]]"
    );
    let text = format!("{irq}wakes='a'\n[[task]]\nname='a'\nburn='1us'\nblocked=true");
    let message = missed(&text);
    assert!(message.ends_with("before the end; --set irq=[] replaced all of [[irq]]"), "{message}");
}

/// Text, key, line and a part of the message.
const REFUSED: &[(&str, &str, u32, &str)] = &[
    ("\nname = ", "", 2, "not TOML"),
    ("seed = 1\nseed = 2", "", 2, "not TOML: duplicate key"),
    ("\nsede = 1", "sede", 2, "did you mean `seed`?"),
    ("seed = -1", "seed", 1, "the number -1 is out of range; it must be 0 to 18446744073709551615"),
    (
        "seed = 99999999999999999999999999999999999999999999",
        "seed",
        1,
        "a number too large to read",
    ),
    ("seed = 1.0", "seed", 1, "expected a whole number without quotes, got the number 1.0"),
    (
        "name = 2026-01-01",
        "name",
        1,
        "expected a string in quotes, got the date or time 2026-01-01",
    ),
    ("duration = 5", "duration", 1, "`5` has no unit"),
    ("duration = 0.5", "duration", 1, "`0.5` has no unit"),
    ("duration = 0", "duration", 1, "0ns is out of range; it must be 1ns to 86400s"),
    ("duration = '-1s'", "duration", 1, "-1s is out of range"),
    ("duration = '25000h'", "duration", 1, "90000000s is out of range; it must be 1ns to 86400s"),
    ("duration = '1d'", "duration", 1, "`d` is not a unit here; use one of ns, us, ms, s, m, h"),
    ("duration = nan", "duration", 1, "`nan` has no unit"),
    (
        "duration = true",
        "duration",
        1,
        "expected a duration with its unit, such as \"250us\", got true",
    ),
    ("[tick]\nrate = '0Hz'", "tick.rate", 2, "0Hz is out of range"),
    ("[tick]\nrate = 250", "tick.rate", 2, "write for example \"20kHz\""),
    (
        "[tick]\nrate = '100.0001kHz'",
        "tick.rate",
        2,
        "100000.1Hz is out of range; it must be 0.25Hz to 100kHz",
    ),
    ("[tick]\nrate = '0.249999Hz'", "tick.rate", 2, "out of range"),
    ("[tick]\nrate = '1MHz'", "tick.rate", 2, "it must be 0.25Hz to 100kHz"),
    ("[tick]\nrate = '1kHz'\ncost = '1ms'", "tick.cost", 3, "this line's handlers take 100%"),
    ("tick = 5", "tick", 1, "expected a table, got the number 5"),
    ("[cpu]\noffline_at = '0s'", "cpu.offline_at", 2, "out of range"),
    (
        "[policy]\nrate_limit_clock = 'tsc'",
        "policy.rate_limit_clock",
        2,
        "`tsc` is not one of sched_clock_cpu, rq_clock, rq_clock_task",
    ),
    ("[policy]\npsi = true", "policy.psi", 2, "expected a string"),
    ("[policy]\ncompare = ['rq_clock',\n 'rq_clock']", "policy.compare[1]", 3, "already taken"),
    ("[[group]]\nweight = 5", "group[0].path", 1, "missing; add for example path"),
    ("[[group]]\npath = ''", "group[0].path", 2, "empty"),
    ("[[group]]\npath = '/a'", "group[0].path", 2, "relative"),
    ("[[group]]\npath = 'a//b'", "group[0].path", 2, "a part of it is empty"),
    ("[[group]]\npath = 'a/../b'", "group[0].path", 2, "are not groups"),
    ("[[group]]\npath = 'a b'", "group[0].path", 2, "letters"),
    ("[[group]]\npath = 'a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a'", "group[0].path", 2, "16 groups deep"),
    ("[[group]]\npath = 'a'\nweight = 0", "group[0].weight", 3, "it must be 1 to 10000"),
    (
        "[[group]]\npath = 'a'\n[[group]]\npath = 'a'",
        "group[1].path",
        4,
        "already taken by f.toml:2",
    ),
    ("[[group]]\npath='a'\ncount=4000\n[[group]]\npath='b'\ncount=300", "group", 1, "at most 4160"),
    ("[[task]]\nburn = '1us'", "task[0].name", 1, "missing"),
    ("[[task]]\nname = 'a.b'\nburn = '1us'", "task[0].name", 2, "`a.b` is not a name"),
    ("[[task]]\nname = 'a'", "task[0].burn", 1, "missing; add for example burn = \"300us\""),
    ("[[task]]\nname = 'a'\nburn = '0'", "task[0].burn", 3, "it must be 1ns to 86400s"),
    (
        "[[task]]\nname = 'a'\nburn = { min = '2us', max = '1us' }",
        "task[0].burn.max",
        3,
        "min 2us is above max 1us",
    ),
    ("[[task]]\nname = 'a'\nburn = { min = '2us' }", "task[0].burn.max", 3, "missing"),
    ("[[task]]\nname = 'a'\nburn = { mid = '2us' }", "task[0].burn.mid", 3, "did you mean `min`?"),
    (
        "[[task]]\nname='a'\nburn='1us'\ngroup='web'",
        "task[0].group",
        4,
        "no group is named `web`; there is none: declare it with [[group]] and its path, or leave this key out",
    ),
    (
        "[[group]]\npath='p'\ncount=3\n[[task]]\nname='a'\nburn='1us'\ncount=2\ngroup='p'",
        "task[0].group",
        8,
        "no group is named `p`; it stands for 3 groups: give this task count = 3, or name one of them, such as p.0",
    ),
    (
        "[[group]]\npath='p'\ncount=3\n[[task]]\nname='a'\nburn='1us'\ngroup='p'",
        "task[0].group",
        7,
        "it stands for 3 groups",
    ),
    ("[[task]]\nname='a'\nburn='1us'\ngroup=''", "task[0].group", 4, "no group is named"),
    ("[[task]]\nname='a'\nburn='1us'\nnice=20", "task[0].nice", 4, "it must be -20 to 19"),
    ("[[task]]\nname='a'\nburn='1us'\nweight=2", "task[0].weight", 4, "it must be 3 to 262144"),
    (
        "[[task]]\nname='a'\nburn='1us'\nnice=1\nweight=5",
        "task[0].weight",
        5,
        "together with `nice`",
    ),
    ("[[task]]\nname='a'\nburn='1us'\nwakes='b'", "task[0].wakes", 4, "no task is named `b`"),
    ("[[task]]\nname='a'\nburn='1us'\nwakes='a'", "task[0].wakes", 4, "wake itself"),
    (
        "[[task]]\nname='a'\nburn='1us'\nwakes='b'\n[[task]]\nname='b'\nburn='1us'\ncount=3",
        "task[0].wakes",
        4,
        "write one of b.0 to b.2",
    ),
    (
        "[[task]]\nname='a'\nburn='1us'\nwakes='b.3'\n[[task]]\nname='b'\nburn='1us'\ncount=3",
        "task[0].wakes",
        4,
        "no task is named `b.3`",
    ),
    (
        "[[task]]\nname='a'\nburn='1us'\nblocked=true",
        "task[0].blocked",
        4,
        "nothing that runs ever wakes it",
    ),
    (
        "[[task]]\nname='a'\nburn='1us'\nwakes='b'\nblocked=true\n[[task]]\nname='b'\nburn='1us'\nwakes='a'\nblocked=true",
        "task[0].blocked",
        5,
        "`a` starts blocked",
    ),
    (
        "[[task]]\nname='a'\nburn='1us'\nblocked=true\n[[irq]]\nname='n'\nrate='1Hz'\ncost='1us'\nfrom='1s'\nwakes='a'",
        "task[0].blocked",
        4,
        "that runs before the end",
    ),
    (
        "[[task]]\nname='a'\nburn='1us'\nblocked=true\n[[task]]\nname='b'\nburn='1us'\nstart='1s'\nwakes='a'",
        "task[0].blocked",
        4,
        "that runs before the end",
    ),
    ("[[task]]\nname='a'\nburn='1us'\nfork=true", "task[0].fork", 4, "give it a `sleep`"),
    ("[[task]]\nname='a'\nburn='1us'\ncount=4159", "task[0].count", 4, "it must be 1 to 4158"),
    (
        "[[task]]\nname='a'\nburn='1us'\ncount=4158\n[[task]]\nname='b'\nburn='1us'",
        "task",
        1,
        "4159 tasks",
    ),
    (
        "[[task]]\nname='a'\nburn='1us'\n[[task]]\nname='a'\nburn='1us'",
        "task[1].name",
        5,
        "already taken by f.toml:2",
    ),
    ("[[irq]]\nname='timer'\nrate='1Hz'\ncost='1us'", "irq[0].name", 2, "the timer, line 0"),
    ("[[irq]]\nname='a'\ncost='1us'", "irq[0].rate", 1, "missing"),
    ("[[irq]]\nname='a'\nrate='1Hz'", "irq[0].cost", 1, "missing"),
    (
        "[[irq]]\nname='a'\nrate='1Hz'\ncost='5s'",
        "irq[0].cost",
        4,
        "it must be 0ns to 4294967.295us",
    ),
    (
        "[[irq]]\nname='a'\nrate='1Hz'\ncost='1s'",
        "irq[0].cost",
        4,
        "this line's handlers take 100% of the CPU for ever",
    ),
    (
        "[[irq]]\nname='a'\nrate='1Hz'\ncost={mean='1us',min='1us'}",
        "irq[0].cost.min",
        4,
        "together with `mean`",
    ),
    (
        "[[irq]]\nname='a'\nrate='1Hz'\ncost={mean='2us',max='1us'}",
        "irq[0].cost.max",
        4,
        "out of range",
    ),
    (
        "[[irq]]\nname='a'\nrate='1Hz'\ncost='1us'\nsoftirq='half'",
        "irq[0].softirq",
        5,
        "expected a share",
    ),
    (
        "[[irq]]\nname='a'\nrate='1Hz'\ncost='1us'\nsoftirq=1.5",
        "irq[0].softirq",
        5,
        "1.5 is out of range; it must be 0 to 1",
    ),
    (
        "[[irq]]\nname='a'\nrate='1Hz'\ncost='1us'\nsoftirq=-0.5",
        "irq[0].softirq",
        5,
        "out of range",
    ),
    (
        "[[irq]]\nname='a'\nrate='1Hz'\ncost='1us'\nburst=2",
        "irq[0].burst",
        5,
        "needs arrival = \"burst\"",
    ),
    (
        "[[irq]]\nname='a'\nrate='8kHz'\ncost='1us'\narrival='burst'\ngap='1ms'",
        "irq[0].gap",
        6,
        "a burst of 8 lasts 7ms, longer than the 1ms",
    ),
    (
        "[[irq]]\nname='a'\nrate='1Hz'\ncost='1us'\nfrom='1ms'\nuntil='1ms'",
        "irq[0].until",
        6,
        "until 1ms is not after from 1ms",
    ),
    (
        "[[irq]]\nname='a'\nrate='1Hz'\ncost='1us'\nbalance=1",
        "irq[0].balance",
        5,
        "expected true or false",
    ),
    (
        "[[irq]]\nname='a'\nrate='6kHz'\ncost='100us'\n[[irq]]\nname='b'\nrate='4kHz'\ncost='100us'",
        "irq[0].cost",
        4,
        "all lines' handlers together take 100%",
    ),
    (
        "[[irq]]\nname='a'\nrate='6kHz'\ncost='100us'\n[[steal]]\nfraction=0.4\nquantum='100us'",
        "irq[0].cost",
        4,
        "all handlers and slices together take 100%",
    ),
    (
        "duration='2000s'\n[[irq]]\nname='a'\nrate='1MHz'\ncost='0'",
        "irq[0].rate",
        4,
        "interrupts and slices in one run are too many",
    ),
    ("[[steal]]", "steal[0]", 1, "add one of `fraction`, `period`, `at` and `every`"),
    ("[[steal]]\nfraction=0.5\nat='1ms'", "steal[0].at", 3, "given together with `fraction`"),
    ("[[steal]]\nfraction=1", "steal[0].fraction", 2, "out of range"),
    (
        "[[steal]]\nfraction=-1.0",
        "steal[0].fraction",
        2,
        "-1.0 is out of range; it must be 0 (for none) or more and below 1",
    ),
    (
        "[[steal]]\nfraction=1.5",
        "steal[0].fraction",
        2,
        "it must be 0 (for none) or more and below 1",
    ),
    ("[[steal]]\nfraction=inf", "steal[0].fraction", 2, "not a number"),
    ("[[steal]]\nfraction=0.5\nslice='1ms'", "steal[0].slice", 3, "does not go with `fraction`"),
    (
        "[[steal]]\nfraction=0.5\nperiod='1ms'\nquantum='1ms'",
        "steal[0].quantum",
        4,
        "does not go with `fraction` and `period`",
    ),
    (
        "[[steal]]\nfraction=0.5\nperiod='1ms'\nat='1ms'",
        "steal[0].at",
        4,
        "given together with `fraction`",
    ),
    (
        "[[steal]]\nfraction=0.000000001\nperiod='1ms'",
        "steal[0].fraction",
        2,
        "less than 1 ns; raise `period`",
    ),
    ("[[irq]]\nname='a'\nload=1\ncost='1us'", "irq[0].load", 3, "it must be 0 (for none) or more"),
    ("[[irq]]\nname='a'\nload='50%'\ncost='1us'", "irq[0].load", 3, "a share between 0 and 1"),
    (
        "[[irq]]\nname='a'\nload=0.5\nrate='1kHz'\ncost='1us'",
        "irq[0].rate",
        4,
        "given together with `load`",
    ),
    ("[[irq]]\nname='a'\nload=0.5\ncost='0'", "irq[0].load", 3, "raise `cost`"),
    (
        "[[irq]]\nname='a'\nload=0.6\ncost='1us'\n[[irq]]\nname='b'\nload=0.4\ncost='1us'",
        "irq[0].load",
        3,
        "all lines' handlers together take 100%",
    ),
    ("[[steal]]\nperiod='1ms'", "steal[0].slice", 1, "missing"),
    ("[[steal]]\nperiod='1ms'\nslice='1ms'", "steal[0].slice", 3, "it must be 0ns to 999.999us"),
    ("[[steal]]\nperiod='1ms'\nslice='0'", "steal[0]", 1, "steals nothing"),
    ("[[steal]]\nperiod='1ms'\nslice='10us'\nwhen='irq'", "steal[0].when", 4, "needs `every`"),
    ("[[steal]]\nat='1ms'\ncounter='1s'\nuntil='1s'", "steal[0].until", 4, "does not go with `at`"),
    ("[[steal]]\nevery=0\nslice='1us'", "steal[0].every", 2, "out of range"),
    (
        "[[steal]]\nevery=2\nslice='1us'\nline='nic'",
        "steal[0].line",
        4,
        "no interrupt line is named `nic`; known are timer",
    ),
    ("[[steal]]\nevery=2\nslice='1us'\nwhen='busy'", "steal[0].when", 4, "so it is \"irq\""),
    ("[[steal]]\nevery=1\nslice='4ms'", "steal[0].slice", 3, "this source's slices take 100%"),
    (
        "[[steal]]\nat='1ms'\ncounter='4611686018427387905ns'",
        "steal[0].counter",
        3,
        "beyond 2^62 ns",
    ),
    (
        "[[steal]]\nperiod='1ms'\nslice='0'\ncounter='-4611686018427387904ns'",
        "steal[0].counter",
        4,
        " ns in one run; at most 2^62 ns either way",
    ),
    (
        "[checks]\nonly=['conservatoin']",
        "checks.only[0]",
        2,
        "no check is named `conservatoin`; did you mean `conservation`?",
    ),
    ("[checks]\nonly=[]", "checks.only", 2, "names no check"),
    (
        "[checks]\nonly=['conservation']\nskip=['irq_ledger']",
        "checks.skip",
        3,
        "together with `only`",
    ),
    (
        "[checks]\nonly=['conservation']\nalso=['irq_ledger']",
        "checks.also",
        3,
        "together with `only`",
    ),
    ("[checks]\nskip='conservation'", "checks.skip", 2, "expected an array of names"),
];

#[test]
fn every_fault_names_its_key_its_line_and_the_fix() {
    for (text, key, line, part) in REFUSED {
        let e = load(text).expect_err(text);
        assert_eq!(e.key, *key, "{text}: {e}");
        let place = Place::Line { source: "f.toml".to_owned(), line: *line };
        assert_eq!(e.place, place, "{text}: {e}");
        assert!(e.to_string().contains(part), "{text}: {e}");
    }
}

#[test]
fn a_hundred_percent_for_a_while_is_allowed() {
    load("[[irq]]\nname='a'\nrate='1kHz'\ncost='2ms'\nuntil='100ms'").unwrap();
    assert!(message("[[irq]]\nname='a'\nrate='1kHz'\ncost='2ms'\nuntil='1s'").contains("for ever"));
    load("[[irq]]\nname='a'\nrate='1kHz'\ncost='900us'\n[[steal]]\nfraction=0.5\nwhen='idle'")
        .unwrap();
}

#[test]
fn oversized_input_is_refused_with_a_short_message() {
    let long = "x".repeat(900_000);
    for text in [
        format!("#{}", " ".repeat(1 << 20)),
        format!("name='{long}'"),
        format!("{long}=1"),
        format!("duration='{long}'"),
        format!("[[task]]\nname='{long}'\nburn='1us'"),
        format!("[[group]]\npath='{long}'"),
        format!("[[task]]\nname='a'\nburn='1us'\ngroup='{long}'\ncount=318"),
        format!("[checks]\nonly=['{long}']"),
        format!("a={}1{}", "[".repeat(400_000), "]".repeat(400_000)),
        format!("[{}]", vec!["a"; 400_000].join(".")),
    ] {
        let m = message(&text);
        assert!(m.len() < 400, "{m}");
    }
    let m = load_with("", &[&format!("{long}={long}")]).unwrap_err().to_string();
    assert!(m.len() < 400, "{m}");
    let irqs = "[[irq]]\nname='a'\nrate='1Hz'\ncost='1us'\n".repeat(32);
    assert!(message(&irqs).contains("32 interrupt sources are too many; at most 31"));
}
