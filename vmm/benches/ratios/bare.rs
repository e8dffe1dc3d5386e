//! The least that a program can do with a port exit: KVM_RUN in a loop, by kvm-ioctls alone.
#![allow(unsafe_code)]

use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_regs, kvm_sregs, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use vm_memory::{
    Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    MemoryRegionAddress,
};

/// A virtual machine of one memory slot and one vCPU, without any of rqscope.
pub struct Bare {
    vcpu: VcpuFd,
    _vm: VmFd,
    _memory: GuestMemoryMmap,
}

impl Bare {
    /// A machine with a copy of `memory` and these registers.
    pub fn copy_of(memory: &GuestMemoryMmap, regs: &kvm_regs, sregs: &kvm_sregs) -> Self {
        let size = memory.iter().map(|r| r.len()).sum::<u64>();
        let own = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), size as usize)]).unwrap();
        let mut bytes = vec![0; size as usize];
        memory.read_slice(&mut bytes, GuestAddress(0)).unwrap();
        own.write_slice(&bytes, GuestAddress(0)).unwrap();

        let kvm = Kvm::new().unwrap();
        let vm = kvm.create_vm().unwrap();
        let region = own.iter().next().unwrap();
        let slot = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: size,
            userspace_addr: region.get_host_address(MemoryRegionAddress(0)).unwrap() as u64,
        };
        // SAFETY: the region is a mapping of `size` bytes owned by `own`, which lives as long as the
        // virtual machine and its vCPU; it is the only slot.
        unsafe { vm.set_user_memory_region(slot) }.unwrap();
        let vcpu = vm.create_vcpu(0).unwrap();
        vcpu.set_cpuid2(&kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).unwrap()).unwrap();
        vcpu.set_sregs(sregs).unwrap();
        vcpu.set_regs(regs).unwrap();
        Self { vcpu, _vm: vm, _memory: own }
    }

    /// `exits` port exits; each `in` is answered with `answer`.
    pub fn run(&mut self, exits: u32, answer: u32) {
        for _ in 0..exits {
            match self.vcpu.run().unwrap() {
                VcpuExit::IoIn(_, data) => data.copy_from_slice(&answer.to_le_bytes()),
                VcpuExit::IoOut(..) => {}
                other => panic!("unexpected exit {other:?}"),
            }
        }
    }
}
