//! A vCPU's whole state, to be saved with its machine and set in another one.
//!
//! The order in which it is set follows what depends on what: CPUID is the vCPU's already, special
//! registers decide what the others mean, MSRs before the events that may be pending on them.

use std::io;

use kvm_bindings::{
    Msrs, kvm_debugregs, kvm_fpu, kvm_mp_state, kvm_msr_entry, kvm_regs, kvm_sregs,
    kvm_vcpu_events, kvm_xcrs,
};
use kvm_ioctls::Cap;
use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{HostKvm, Kvm, KvmError, Vcpu, VcpuError};

/// The time-stamp counter's MSR (SDM 4, `IA32_TIME_STAMP_COUNTER`).
const MSR_IA32_TSC: u32 = 0x10;

/// Registers of KVM's own (the old clock's, then [`super::FILTERED_MSRS`] and behind) and Hyper-V's. What
/// the guest registered in the filtered ones is the clock pages' to know, and it is shown no other of
/// these features; some of Hyper-V's count host time.
fn is_paravirtual(index: u32) -> bool {
    matches!(index, 0x11 | 0x12 | 0x4b56_4d00..=0x4b56_4dff | 0x4000_0000..=0x4000_0fff)
}

/// Types of a 64-bit TSS in a segment register (APM 2, table 4-6).
const AVAILABLE_TSS: u8 = 9;
const BUSY_TSS: u8 = 11;

/// All of a vCPU that a guest can tell.
#[derive(Clone, Debug, PartialEq)]
pub struct VcpuState {
    /// General registers.
    pub regs: kvm_regs,
    /// Segment, control and table registers.
    pub sregs: kvm_sregs,
    /// x87 and SSE registers. The guest has no XSAVE, so there are no others.
    pub fpu: kvm_fpu,
    /// Model-specific registers, the TSC among them.
    pub msrs: Vec<kvm_msr_entry>,
    /// Pending and injected exceptions, interrupts and NMIs.
    pub events: kvm_vcpu_events,
    /// Debug registers.
    pub debugregs: kvm_debugregs,
    /// Extended control registers, where KVM has them (`KVM_CAP_XCRS`).
    pub xcrs: Option<kvm_xcrs>,
    /// Runnable or halted.
    pub mp_state: kvm_mp_state,
}

/// `kvm_fpu`, which has no view of its bytes.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct FpuBytes {
    fpr: [[u8; 16]; 8],
    fcw: u16,
    fsw: u16,
    ftwx: u8,
    pad1: u8,
    last_opcode: u16,
    last_ip: u64,
    last_dp: u64,
    xmm: [[u8; 16]; 16],
    mxcsr: u32,
    pad2: u32,
}

fn put<T: IntoBytes + Immutable>(bytes: &mut Vec<u8>, value: &T) {
    bytes.extend_from_slice(value.as_bytes());
}

fn take<T: FromBytes>(bytes: &mut &[u8]) -> Option<T> {
    let (value, rest) = T::read_from_prefix(bytes).ok()?;
    *bytes = rest;
    Some(value)
}

/// More MSRs than any KVM saves.
const MAX_MSRS: u64 = 4096;

impl VcpuState {
    /// Appends the state to `bytes`.
    pub fn put(&self, bytes: &mut Vec<u8>) {
        put(bytes, &self.regs);
        put(bytes, &self.sregs);
        let f = &self.fpu;
        put(
            bytes,
            &FpuBytes {
                fpr: f.fpr,
                fcw: f.fcw,
                fsw: f.fsw,
                ftwx: f.ftwx,
                pad1: 0,
                last_opcode: f.last_opcode,
                last_ip: f.last_ip,
                last_dp: f.last_dp,
                xmm: f.xmm,
                mxcsr: f.mxcsr,
                pad2: 0,
            },
        );
        put(bytes, &(self.msrs.len() as u64));
        for msr in &self.msrs {
            put(bytes, msr);
        }
        put(bytes, &self.events);
        put(bytes, &self.debugregs);
        put(bytes, &u64::from(self.xcrs.is_some()));
        if let Some(xcrs) = &self.xcrs {
            put(bytes, xcrs);
        }
        put(bytes, &self.mp_state);
    }

    /// Takes a state from the front of `bytes`; `None` if they are not one.
    pub fn take(bytes: &mut &[u8]) -> Option<Self> {
        let (regs, sregs) = (take(bytes)?, take(bytes)?);
        let f: FpuBytes = take(bytes)?;
        let fpu = kvm_fpu {
            fpr: f.fpr,
            fcw: f.fcw,
            fsw: f.fsw,
            ftwx: f.ftwx,
            last_opcode: f.last_opcode,
            last_ip: f.last_ip,
            last_dp: f.last_dp,
            xmm: f.xmm,
            mxcsr: f.mxcsr,
            ..kvm_fpu::default()
        };
        let count = take::<u64>(bytes).filter(|count| *count <= MAX_MSRS)?;
        let msrs = (0..count).map(|_| take(bytes)).collect::<Option<_>>()?;
        let (events, debugregs) = (take(bytes)?, take(bytes)?);
        let xcrs = match take::<u64>(bytes)? {
            0 => None,
            1 => Some(take(bytes)?),
            _ => return None,
        };
        Some(Self { regs, sregs, fpu, msrs, events, debugregs, xcrs, mp_state: take(bytes)? })
    }
}

/// A vCPU's state could not be read or set.
#[derive(Debug, Error)]
pub enum StateError {
    /// What the last exit began could not be completed, or the registers not be read.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
    /// KVM does not say which MSRs there are.
    #[error(transparent)]
    Kvm(#[from] KvmError),
    /// An ioctl failed.
    #[error("{operation}")]
    Ioctl {
        /// What was tried, with the ioctl's name.
        operation: &'static str,
        /// The ioctl's error.
        source: io::Error,
    },
    /// A register was refused.
    #[error(
        "set MSR {index:#x} to {value:#x} (KVM_SET_MSRS): refused: was it saved on another host?"
    )]
    Msr {
        /// The register.
        index: u32,
        /// The value.
        value: u64,
    },
    /// A register that must be there is not.
    #[error("read MSR {index:#x} (KVM_GET_MSRS): KVM has no such register")]
    NoMsr {
        /// The register.
        index: u32,
    },
}

fn ioctl<T>(
    operation: &'static str,
    result: Result<T, kvm_ioctls::Error>,
) -> Result<T, StateError> {
    result.map_err(|e| StateError::Ioctl { operation, source: e.into() })
}

impl Vcpu {
    /// Completes the last exit ([`Vcpu::complete`]) and reads the whole state. Call it on the thread
    /// that runs the vCPU.
    pub fn save(&mut self, kvm: &Kvm) -> Result<VcpuState, StateError> {
        self.complete()?;
        let msrs = self.readable_msrs(&kvm.msr_indices()?)?;
        let fd = &self.fd;
        Ok(VcpuState {
            regs: self.read_regs()?,
            sregs: self.read_sregs()?,
            fpu: ioctl("read the FPU (KVM_GET_FPU)", fd.get_fpu())?,
            msrs,
            events: ioctl("read pending events (KVM_GET_VCPU_EVENTS)", fd.get_vcpu_events())?,
            debugregs: ioctl("read debug registers (KVM_GET_DEBUGREGS)", fd.get_debug_regs())?,
            xcrs: match kvm.has(Cap::Xcrs) {
                true => Some(ioctl("read the XCRs (KVM_GET_XCRS)", fd.get_xcrs())?),
                false => None,
            },
            mp_state: ioctl("read the run state (KVM_GET_MP_STATE)", fd.get_mp_state())?,
        })
    }

    /// Sets the whole state of a vCPU that has not run yet and has the same CPUID.
    pub fn restore(&mut self, state: &VcpuState) -> Result<(), StateError> {
        let mut sregs = state.sregs;
        if HostKvm::detect() == HostKvm::Svm && sregs.tr.type_ == BUSY_TSS {
            // SVM's KVM_GET_SREGS shows a busy TSS whatever is loaded. What LTR loads is the descriptor
            // as it was before it became busy, and QEMU's SVM looks at its type when a task uses ports.
            sregs.tr.type_ = AVAILABLE_TSS;
        }
        self.set_sregs(&sregs)?;
        self.set_regs(&state.regs)?;
        ioctl("set the FPU (KVM_SET_FPU)", self.fd.set_fpu(&state.fpu))?;
        if let Some(xcrs) = &state.xcrs {
            ioctl("set the XCRs (KVM_SET_XCRS)", self.fd.set_xcrs(xcrs))?;
        }
        for batch in state.msrs.chunks(kvm_bindings::KVM_MAX_MSR_ENTRIES) {
            self.set_msrs(batch)?;
        }
        let (events, mp_state) = (&state.events, state.mp_state);
        ioctl("set pending events (KVM_SET_VCPU_EVENTS)", self.fd.set_vcpu_events(events))?;
        let debugregs = self.fd.set_debug_regs(&state.debugregs);
        ioctl("set debug registers (KVM_SET_DEBUGREGS)", debugregs)?;
        ioctl("set the run state (KVM_SET_MP_STATE)", self.fd.set_mp_state(mp_state))
    }

    /// The guest's time-stamp counter.
    pub fn tsc(&self) -> Result<u64, StateError> {
        let index = MSR_IA32_TSC;
        let read = self.readable_msrs(&[index])?;
        read.first().map(|msr| msr.data).ok_or(StateError::NoMsr { index })
    }

    /// Sets the guest's time-stamp counter. KVM takes a value within a second of what the counter
    /// would have had since it was last set for an attempt to set it to that, and does so.
    pub fn set_tsc(&mut self, value: u64) -> Result<(), StateError> {
        self.set_msrs(&[kvm_msr_entry { index: MSR_IA32_TSC, data: value, ..Default::default() }])
    }

    /// The frequency of the guest's time-stamp counter in kHz (KVM API 4.56).
    pub fn tsc_khz(&self) -> Result<u32, StateError> {
        ioctl("read the TSC's frequency (KVM_GET_TSC_KHZ)", self.fd.get_tsc_khz())
    }

    /// Those of `indices` that can be read. KVM stops at the first that cannot: it is left out, and
    /// reading goes on behind it.
    fn readable_msrs(&self, indices: &[u32]) -> Result<Vec<kvm_msr_entry>, StateError> {
        let wanted = indices.iter().filter(|index| !is_paravirtual(**index));
        let mut entries: Vec<_> =
            wanted.map(|index| kvm_msr_entry { index: *index, ..Default::default() }).collect();
        let mut done = 0;
        while done < entries.len() {
            let end = entries.len().min(done + kvm_bindings::KVM_MAX_MSR_ENTRIES);
            let mut batch = msrs(&entries[done..end])?;
            let read = ioctl("read MSRs (KVM_GET_MSRS)", self.fd.get_msrs(&mut batch))?;
            let read = read.min(end - done);
            entries[done..done + read].copy_from_slice(&batch.as_slice()[..read]);
            done += read;
            if done < end {
                entries.remove(done);
            }
        }
        Ok(entries)
    }

    /// Sets `entries`, at most `KVM_MAX_MSR_ENTRIES`.
    fn set_msrs(&self, entries: &[kvm_msr_entry]) -> Result<(), StateError> {
        let set = ioctl("set MSRs (KVM_SET_MSRS)", self.fd.set_msrs(&msrs(entries)?))?;
        match entries.get(set) {
            None => Ok(()),
            Some(refused) => Err(StateError::Msr { index: refused.index, value: refused.data }),
        }
    }
}

fn msrs(entries: &[kvm_msr_entry]) -> Result<Msrs, StateError> {
    Msrs::from_entries(entries).map_err(|_| StateError::Ioctl {
        operation: "allocate a list of MSRs",
        source: io::ErrorKind::OutOfMemory.into(),
    })
}
