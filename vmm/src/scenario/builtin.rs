//! The scenarios that come with the program.

/// A scenario that comes with the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Builtin {
    /// Its name.
    pub name: &'static str,
    /// The question it answers, in a line; the `summary` in its text.
    pub summary: &'static str,
    /// Its TOML.
    pub text: &'static str,
}

macro_rules! builtins {
    ($($name:literal: $summary:literal,)*) => {
        &[$(Builtin {
            name: $name,
            summary: $summary,
            text: include_str!(concat!("../../scenarios/", $name, ".toml")),
        }),*]
    };
}

/// All of them, `default` first.
pub const BUILTIN: &[Builtin] = builtins! {
    "default": "does every nanosecond of an interrupt storm and 25% steal find its account?",
    "irq-storm": "what is left of clock_task, and who pays, when interrupts take 85% of the CPU?",
    "steal-storm": "does clock_task keep the right twentieth of wall time when 95% is stolen?",
    "rate-limit": "what does the rate limit's clock cost when idle interrupt exits walk 64 leaf cfs_rqs?",
    "load-grid": "what do interrupts and steal, from none to 95% each, do to the rate limit's clocks?",
    "psi-zero-delta": "how many psi_account_irqtime() calls see a zero delta when tasks switch fast and interrupts are rare?",
    "steal-backward": "what does clock_task do when the steal counter falls, by up to 1 s? (fails, as Linux does)",
    "steal-jump": "how long does clock_task stand still after the steal counter jumps by 2^40 ns?",
    "steal-over": "is steal dropped, and said to be, when the counter grows by wall time and 1 us?",
    "steal-in-irq": "is steal inside a handler kept apart from the handler's own time?",
    "busy-half-steal": "does a busy task's clock_task gain exactly half of wall time under 50% steal?",
    "ksoftirqd": "is softirq time charged to ksoftirqd, not to IRQ time, once it takes over?",
    "fork-storm": "does tg->load_avg follow its contributions while tasks come and go all the time?",
    "mutants": "does a short run with everything in it exercise every check, as `rqscope mutants` needs?",
    "idle": "do ticks and a slow interrupt line alone leave the idle CPU's clocks exact?",
};

/// The scenario called `name`.
pub fn builtin(name: &str) -> Option<&'static Builtin> {
    BUILTIN.iter().find(|b| b.name == name)
}
