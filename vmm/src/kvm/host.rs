//! Which KVM this host has.

use std::path::Path;

/// The kind of KVM behind `/dev/kvm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKvm {
    /// Intel VT-x (kvm_intel).
    Vmx,
    /// AMD-V (kvm_amd).
    Svm,
    /// Pagetable-based virtual machine (kvm_pvm): software; guests without PVM support are emulated.
    Pvm,
    /// A `/dev/kvm` of a kind not known here.
    Unknown,
    /// No `/dev/kvm`.
    None,
}

impl HostKvm {
    /// The name in reports: `vmx`, `svm`, `pvm`, `unknown` or `none`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vmx => "vmx",
            Self::Svm => "svm",
            Self::Pvm => "pvm",
            Self::Unknown => "unknown",
            Self::None => "none",
        }
    }

    /// Looks at the device, the loaded modules and the CPU. Says nothing about whether KVM works:
    /// that is [`super::Kvm::open`]'s to find out.
    pub fn detect() -> Self {
        if !Path::new("/dev/kvm").exists() {
            return Self::None;
        }
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self::from_facts(|module| Path::new("/sys/module").join(module).exists(), &cpuinfo)
    }

    /// The kind by which vendor modules are there, and by the CPU's flags if more than one is (a
    /// kernel may have both hardware vendors built in, but only one of them is active).
    fn from_facts(has_module: impl Fn(&str) -> bool, cpuinfo: &str) -> Self {
        let has_flag = |flag: &str| {
            cpuinfo
                .lines()
                .find(|line| line.starts_with("flags"))
                .is_some_and(|line| line.split_whitespace().any(|word| word == flag))
        };
        if has_module("kvm_pvm") {
            return Self::Pvm;
        }
        match (has_module("kvm_intel"), has_module("kvm_amd")) {
            (true, false) => Self::Vmx,
            (false, true) => Self::Svm,
            (true, true) if has_flag("vmx") => Self::Vmx,
            (true, true) if has_flag("svm") => Self::Svm,
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(modules: &[&str], cpuinfo: &str) -> HostKvm {
        HostKvm::from_facts(|m| modules.contains(&m), cpuinfo)
    }

    #[test]
    fn the_only_vendor_module_names_the_kind() {
        assert_eq!(kind(&["kvm_intel"], ""), HostKvm::Vmx);
        assert_eq!(kind(&["kvm_amd"], ""), HostKvm::Svm);
        assert_eq!(kind(&["kvm_pvm"], "flags\t\t: vmx svm\n"), HostKvm::Pvm);
        assert_eq!(kind(&[], "flags\t\t: vmx\n"), HostKvm::Unknown);
    }

    #[test]
    fn with_both_vendors_built_in_the_cpu_decides() {
        let both = ["kvm_intel", "kvm_amd"];
        assert_eq!(kind(&both, "model\t: 1\nflags\t\t: fpu vmx\n"), HostKvm::Vmx);
        assert_eq!(kind(&both, "flags\t\t: fpu svm\n"), HostKvm::Svm);
        assert_eq!(kind(&both, "flags\t\t: fpu vmxish\n"), HostKvm::Unknown);
    }
}
