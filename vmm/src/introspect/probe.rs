//! From the registers at a probe to the call that was made.

use guest_model::wire::probe;

use super::introspector::Introspector;
use super::read::{ReadError, Reader};
use crate::view::{Call, TaskRef};

impl Introspector {
    /// The call behind probe number `number`, hit with `args` in `rdi`, `rsi`, `rdx`.
    ///
    /// An argument narrower than its register is taken from the low bits: the x86-64 psABI, section
    /// 3.2.3, leaves the others undefined.
    pub fn decode(&self, number: u8, args: [u64; 3]) -> Result<Call, ReadError> {
        let [a, b, c] = args;
        let at = &mut self.reader();
        Ok(match number {
            probe::UPDATE_RQ_CLOCK => {
                self.check_rq("update_rq_clock", a)?;
                Call::UpdateRqClock
            }
            probe::IRQTIME_ACCOUNT_IRQ => Call::IrqtimeAccountIrq { offset: b as u32 },
            probe::PSI_ACCOUNT_IRQTIME => {
                self.check_rq("psi_account_irqtime", a)?;
                Call::PsiAccountIrqtime {
                    curr: self.task(at, "curr of psi_account_irqtime()", b)?,
                    prev: self.task_or_null(at, "prev of psi_account_irqtime()", c)?,
                }
            }
            probe::PSI_TASK_SWITCH => Call::PsiTaskSwitch {
                prev: self.task(at, "prev of psi_task_switch()", a)?,
                next: self.task(at, "next of psi_task_switch()", b)?,
                sleep: flag("psi_task_switch", "sleep", c)?,
            },
            probe::PSI_TASK_CHANGE => Call::PsiTaskChange {
                task: self.task(at, "task of psi_task_change()", a)?,
                clear: b as u32,
                set: c as u32,
            },
            probe::UPDATE_TG_LOAD_AVG => Call::UpdateTgLoadAvg {
                group: self.cfs_rq_group("cfs_rq of update_tg_load_avg()", a)?,
            },
            probe::CLEAR_TG_LOAD_AVG => Call::ClearTgLoadAvg {
                group: self.cfs_rq_group("cfs_rq of clear_tg_load_avg()", a)?,
            },
            number => return Err(ReadError::UnknownProbe { number }),
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
