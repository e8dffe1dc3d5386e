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
    "steal-jump": "how long does clock_task stand still after a steal jump of 2^40 ns? (fails, as Linux does)",
    "steal-over": "how much steal is dropped when the counter grows by wall time and 1 us? (fails, as Linux does)",
    "steal-in-irq": "is steal inside a handler taken from clock_task once? (fails, as Linux does)",
    "steal-after-irq": "is true steal dropped where an interrupt's time is still to be taken? (fails, as Linux does)",
    "steal-idle": "is steal while the CPU is halted taken from idle time, and from no task?",
    "softirq-update": "who is charged with an interrupt whose softirq updates the clock? (fails, as Linux does)",
    "irq-across-idle": "what is left of a task that runs for less than its interrupt takes? (fails, as Linux does)",
    "clock-task-exact": "is clock_task right to the nanosecond where nothing is known to make it wrong?",
    "busy-half-steal": "does a busy task's clock_task gain exactly half of wall time under 50% steal?",
    "ksoftirqd": "is softirq time charged to ksoftirqd, not to IRQ time, once it takes over?",
    "fork-storm": "does tg->load_avg follow its contributions while tasks come and go all the time?",
    "mutants": "does a short run with everything in it exercise the checks, as `rqscope mutants` needs?",
    "conformance": "does guest-model make every transition of a random run as the kernel did?",
    "idle": "do ticks and a slow interrupt line alone leave the idle CPU's clocks exact?",
};

/// The scenario called `name`.
pub fn builtin(name: &str) -> Option<&'static Builtin> {
    BUILTIN.iter().find(|b| b.name == name)
}
