//! From the registers at a probe to the call that was made.

use guest_model::wire::probe;

use super::introspector::Introspector;
use super::read::{ReadError, Reader};
use crate::view::{Call, LoadCall, TaskRef};

/// A function that has a probe at its entry, and a [`Call`] to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `update_rq_clock()`.
    UpdateRqClock,
    /// `irqtime_account_irq()`.
    IrqtimeAccountIrq,
    /// `psi_account_irqtime()`.
    PsiAccountIrqtime,
    /// `psi_task_switch()`.
    PsiTaskSwitch,
    /// `psi_task_change()`.
    PsiTaskChange,
    /// `update_irq_load_avg()`.
    UpdateIrqLoadAvg,
    /// `update_tg_load_avg()`.
    UpdateTgLoadAvg,
    /// `clear_tg_load_avg()`.
    ClearTgLoadAvg,
}

impl Function {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::UpdateRqClock,
        Self::IrqtimeAccountIrq,
        Self::PsiAccountIrqtime,
        Self::PsiTaskSwitch,
        Self::PsiTaskChange,
        Self::UpdateIrqLoadAvg,
        Self::UpdateTgLoadAvg,
        Self::ClearTgLoadAvg,
    ];

    /// Its name in the kernel.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::UpdateRqClock => "update_rq_clock",
            Self::IrqtimeAccountIrq => "irqtime_account_irq",
            Self::PsiAccountIrqtime => "psi_account_irqtime",
            Self::PsiTaskSwitch => "psi_task_switch",
            Self::PsiTaskChange => "psi_task_change",
            Self::UpdateIrqLoadAvg => "update_irq_load_avg",
            Self::UpdateTgLoadAvg => "update_tg_load_avg",
            Self::ClearTgLoadAvg => "clear_tg_load_avg",
        }
    }

    /// The function behind the bundled guest's probe number.
    fn of_number(number: u8) -> Option<Self> {
        Some(match number {
            probe::UPDATE_RQ_CLOCK => Self::UpdateRqClock,
            probe::IRQTIME_ACCOUNT_IRQ => Self::IrqtimeAccountIrq,
            probe::PSI_ACCOUNT_IRQTIME => Self::PsiAccountIrqtime,
            probe::PSI_TASK_SWITCH => Self::PsiTaskSwitch,
            probe::PSI_TASK_CHANGE => Self::PsiTaskChange,
            probe::UPDATE_TG_LOAD_AVG => Self::UpdateTgLoadAvg,
            probe::CLEAR_TG_LOAD_AVG => Self::ClearTgLoadAvg,
            _ => return None,
        })
    }
}

/// A function that moves the load of a cfs_rq, and has a probe at its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadFunction {
    /// `update_load_avg()`.
    UpdateLoadAvg,
    /// `update_cfs_rq_load_avg()`.
    UpdateCfsRqLoadAvg,
    /// `attach_entity_load_avg()`.
    Attach,
    /// `detach_entity_load_avg()`.
    Detach,
    /// `reweight_entity()`.
    Reweight,
}

impl LoadFunction {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::UpdateLoadAvg, Self::UpdateCfsRqLoadAvg, Self::Attach, Self::Detach, Self::Reweight];

    /// Its name in the kernel.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::UpdateLoadAvg => "update_load_avg",
            Self::UpdateCfsRqLoadAvg => "update_cfs_rq_load_avg",
            Self::Attach => "attach_entity_load_avg",
            Self::Detach => "detach_entity_load_avg",
            Self::Reweight => "reweight_entity",
        }
    }
}

impl Introspector {
    /// The call behind the bundled guest's probe number `number`: see [`Introspector::call`].
    pub fn decode(&self, number: u8, args: [u64; 3]) -> Result<Call, ReadError> {
        let function = Function::of_number(number).ok_or(ReadError::UnknownProbe { number })?;
        self.call(function, args)
    }

    /// The call of `function` that was entered with `args` in `rdi`, `rsi`, `rdx`.
    ///
    /// An argument narrower than its register is taken from the low bits: the x86-64 psABI, section
    /// 3.2.3, leaves the others undefined.
    pub fn call(&self, function: Function, args: [u64; 3]) -> Result<Call, ReadError> {
        let [a, b, c] = args;
        let at = &mut self.reader();
        Ok(match function {
            Function::UpdateRqClock => {
                self.check_rq("update_rq_clock", a)?;
                Call::UpdateRqClock
            }
            Function::IrqtimeAccountIrq => Call::IrqtimeAccountIrq { offset: b as u32 },
            Function::PsiAccountIrqtime => {
                self.check_rq("psi_account_irqtime", a)?;
                Call::PsiAccountIrqtime {
                    curr: self.task(at, "curr of psi_account_irqtime()", b)?,
                    prev: self.task_or_null(at, "prev of psi_account_irqtime()", c)?,
                }
            }
            Function::PsiTaskSwitch => Call::PsiTaskSwitch {
                prev: self.task(at, "prev of psi_task_switch()", a)?,
                next: self.task(at, "next of psi_task_switch()", b)?,
                sleep: flag("psi_task_switch", "sleep", c)?,
            },
            Function::PsiTaskChange => Call::PsiTaskChange {
                task: self.task(at, "task of psi_task_change()", a)?,
                clear: b as u32,
                set: c as u32,
            },
            Function::UpdateIrqLoadAvg => {
                self.check_rq("update_irq_load_avg", a)?;
                Call::UpdateIrqLoadAvg { running: b }
            }
            Function::UpdateTgLoadAvg => Call::UpdateTgLoadAvg {
                group: self.cfs_rq_group("cfs_rq of update_tg_load_avg()", a)?,
            },
            Function::ClearTgLoadAvg => Call::ClearTgLoadAvg {
                group: self.cfs_rq_group("cfs_rq of clear_tg_load_avg()", a)?,
            },
        })
    }

    /// The call of `function` that was entered with `args` in `rdi`, `rsi`, `rdx`.
    pub fn load_call(&self, function: LoadFunction, args: [u64; 3]) -> Result<LoadCall, ReadError> {
        let [a, b, c] = args;
        Ok(match function {
            LoadFunction::UpdateLoadAvg => LoadCall::UpdateLoadAvg {
                group: self.cfs_rq_group("cfs_rq of update_load_avg()", a)?,
                se: b,
            },
            LoadFunction::UpdateCfsRqLoadAvg => LoadCall::UpdateCfsRqLoadAvg {
                group: self.cfs_rq_group("cfs_rq of update_cfs_rq_load_avg()", b)?,
                now_ns: a,
            },
            LoadFunction::Attach => LoadCall::Attach {
                group: self.cfs_rq_group("cfs_rq of attach_entity_load_avg()", a)?,
                se: b,
            },
            LoadFunction::Detach => LoadCall::Detach {
                group: self.cfs_rq_group("cfs_rq of detach_entity_load_avg()", a)?,
                se: b,
            },
            LoadFunction::Reweight => LoadCall::Reweight {
                group: self.cfs_rq_group("cfs_rq of reweight_entity()", a)?,
                se: b,
                weight: c,
            },
        })
    }

    fn check_rq(&self, function: &'static str, got: u64) -> Result<(), ReadError> {
        let expected = self.places.runqueues;
        if got == expected {
            return Ok(());
        }
        Err(ReadError::ProbeArgument { function, argument: "rq", expected, got })
    }

    fn task_or_null(
        &self,
        at: &mut Reader<'_>,
        holder: &'static str,
        task: u64,
    ) -> Result<Option<TaskRef>, ReadError> {
        if task == 0 { Ok(None) } else { self.task(at, holder, task).map(Some) }
    }

    fn cfs_rq_group(&self, holder: &'static str, address: u64) -> Result<u16, ReadError> {
        self.groups.of_cfs_rq(address).ok_or(ReadError::UnknownAddress {
            holder,
            target: "cfs_rq",
            address,
            known: self.groups.len(),
        })
    }
}

/// A `bool`: the low byte is 0 or 1.
fn flag(function: &'static str, argument: &'static str, got: u64) -> Result<bool, ReadError> {
    match got as u8 {
        0 => Ok(false),
        1 => Ok(true),
        got => Err(ReadError::ProbeArgument { function, argument, expected: 1, got: got.into() }),
    }
}
