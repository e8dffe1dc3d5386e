//! PSI's IRQ time against the ledger, group by group.

use super::CheckId::*;
use super::{Board, Final};
use crate::observe::Step;
use crate::view::{Call, CostsView, TaskRef};
use guest_model::policy::PsiZeroDelta;

/// What became of each call of `psi_account_irqtime()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PsiTable {
    /// Calls.
    pub total: u64,
    /// Returned because `curr` is swapper.
    pub ret_curr_swapper: u64,
    /// Returned because `prev` is in the same PSI group.
    pub ret_samegrp: u64,
    /// Calls that computed the delta.
    pub reached_delta: u64,
    /// Of these, IRQ time had passed.
    pub delta_positive: u64,
    /// Of these, none had passed.
    pub delta_zero: u64,
    /// Of these, the delta was negative.
    pub delta_negative: u64,
    /// Calls that moved the seqcount, whatever the delta.
    pub writes: u64,
    /// Groups on their way to the root, the charged task's own counted.
    pub levels: u64,
}

#[derive(Debug)]
pub(super) struct PsiChecks {
    policy: PsiZeroDelta,
    parents: Vec<u16>,
    /// The ledger's IRQ time when the guest last accounted it, ns.
    irq_accounted_ns: u64,
    /// The part of it that has been charged, or skipped over, ns.
    charged_up_to_ns: u64,
    /// The call before this one.
    last_call: Option<Call>,
    /// A tick is being handled and has not called `psi_account_irqtime()` yet.
    tick_is_due: bool,
    pub(super) table: PsiTable,
    /// IRQ time charged to each group, its children's included, ns.
    pub(super) charged_ns: Vec<u64>,
}

impl PsiChecks {
    pub(super) fn new(policy: PsiZeroDelta, parents: Vec<u16>) -> Self {
        let charged_ns = vec![0; parents.len()];
        Self {
            policy,
            parents,
            irq_accounted_ns: 0,
            charged_up_to_ns: 0,
            last_call: None,
            tick_is_due: false,
            table: PsiTable::default(),
            charged_ns,
        }
    }

    #[inline]
    pub(super) fn step(&mut self, s: &Step<'_>, board: &mut Board) {
        let at = s.mark.at_ns;
        if let Some(Call::PsiAccountIrqtime { curr, prev: Some(next) }) = self.last_call
            && !matches!(s.call, Call::PsiTaskSwitch { .. })
        {
            board.expect(PsiCalled, false, at, || {
                format!(
                    "called as for a switch from pid {} to pid {}, and none follows",
                    curr.pid, next.pid
                )
            });
        }
        match s.call {
            Call::IrqtimeAccountIrq { offset } => {
                self.irq_accounted_ns = s.mark.irq_ns;
                if offset == 0 && std::mem::take(&mut self.tick_is_due) {
                    board.expect(PsiCalled, false, at, || "a tick left it out".into());
                }
            }
            Call::PsiAccountIrqtime { curr, prev } => {
                if prev.is_none() {
                    let due = std::mem::take(&mut self.tick_is_due);
                    board.expect(PsiCalled, due, at, || {
                        "called as from a tick, and none is due".into()
                    });
                }
                self.account(s, curr, prev, board);
            }
            Call::PsiTaskSwitch { prev, next, .. } => {
                let expected = Call::PsiAccountIrqtime { curr: prev, prev: Some(next) };
                board.expect(PsiCalled, self.last_call == Some(expected), at, || {
                    format!("the switch from pid {} to pid {} left it out", prev.pid, next.pid)
                });
            }
            _ => {}
        }
        self.last_call = Some(s.call);
    }

    /// A tick is handled.
    pub(super) fn tick_is_due(&mut self) {
        self.tick_is_due = true;
    }

    /// The guest's own counters of what was seen here.
    pub(super) fn compare_costs(&self, costs: &CostsView, at: u64, board: &mut Board) {
        for (what, guest, seen) in [
            ("seqcount writes", costs.psi_account_irqtime_seqcount_writes, self.table.writes),
            ("clock reads", costs.clock_reads_psi_account_irqtime, self.table.writes),
            ("cgroup levels", costs.psi_account_irqtime_levels, self.table.levels),
        ] {
            board.expect(Costs, guest == seen, at, || {
                format!("psi_account_irqtime(): the guest counts {guest} {what}, {seen} were seen")
            });
        }
    }

    fn account(&mut self, s: &Step<'_>, curr: TaskRef, prev: Option<TaskRef>, board: &mut Board) {
        let at = s.mark.at_ns;
        let wrote = s.after.psi_seq != s.before.psi_seq;
        if wrote {
            self.table.writes += 1;
            self.table.levels += s.psi.len() as u64;
        }
        let t = &mut self.table;
        t.total += 1;
        let reached = if curr.pid == 0 {
            t.ret_curr_swapper += 1;
            false
        } else if prev.is_some_and(|p| p.group == curr.group) {
            t.ret_samegrp += 1;
            false
        } else {
            t.reached_delta += 1;
            true
        };
        if !reached {
            board.expect(PsiWrites, !wrote, at, || {
                format!("psi_seq moved for pid {}, which is not to be charged", curr.pid)
            });
            return;
        }

        let seen = s.before.irqtime_total_ns.wrapping_sub(s.before.psi_irq_time_ns) as i64;
        match seen {
            1.. => t.delta_positive += 1,
            0 => t.delta_zero += 1,
            _ => t.delta_negative += 1,
        }
        board.expect(PsiDeltaNotNegative, seen >= 0, at, || {
            format!(
                "cpu_irqtime.total {} ns is behind psi_irq_time {} ns",
                s.before.irqtime_total_ns, s.before.psi_irq_time_ns
            )
        });

        let delta = self.irq_accounted_ns - self.charged_up_to_ns;
        if delta == 0 {
            let expected = self.policy == PsiZeroDelta::Account;
            board.expect(PsiZero, wrote == expected, at, || {
                let did = if wrote { "written" } else { "skipped" };
                format!("a zero delta of pid {} was {did} under {}", curr.pid, self.policy.name())
            });
        } else {
            board.expect(PsiWrites, wrote, at, || {
                format!(
                    "{delta} ns of IRQ time are due to pid {}, but psi_seq stood still",
                    curr.pid
                )
            });
            self.charged_up_to_ns = self.irq_accounted_ns;
            let mut group = curr.group as usize;
            while let Some(charged) = self.charged_ns.get_mut(group) {
                *charged += delta;
                let parent = self.parents[group] as usize;
                if parent >= group {
                    break;
                }
                group = parent;
            }
        }
        for group in s.psi {
            self.compare(group.group, group.irq_full_ns, at, board);
        }
    }

    /// The kernel keeps the time modulo 2^32, so that is what can be compared.
    fn compare(&self, group: u16, irq_full_ns: u32, at: u64, board: &mut Board) {
        let charged = self.charged_ns.get(group as usize).copied().unwrap_or(0);
        board.expect(PsiIrqLedger, irq_full_ns == charged as u32, at, || {
            format!(
                "group {group}: times[PSI_IRQ_FULL] is {irq_full_ns} ns, the ledger charges \
                 {charged} ns"
            )
        });
    }

    pub(super) fn finish(&mut self, end: &Final<'_>, board: &mut Board) {
        for (_, group) in end.groups.into_iter().flatten() {
            self.compare(group.group, group.irq_full_ns, end.at_ns, board);
        }
    }
}

#[cfg(test)]
mod tests;
