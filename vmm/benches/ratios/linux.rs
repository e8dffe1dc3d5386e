//! A Linux guest: from the first instruction until it is ready, against QEMU's microvm with the same
//! kernel, initramfs and memory; and a start from a snapshot until the guest's first exit.
//!
//! Each boot is a process of its own, ours too, timed from its start to its end. QEMU ends when PID 1
//! says that it is ready: the port it does that with is QEMU's exit device. QEMU's CPU model has neither
//! XSAVE nor ERMS, which an emulated host gets wrong.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rqscope::boot::{self, cpuid};
use rqscope::initramfs::{INIT, pack};
use rqscope::kvm::Kvm;
use rqscope::linux::bring_up::{Ready, bring_up};
use rqscope::linux::bus;
use rqscope::linux::console::Console;
use rqscope::linux::machine::{Machine, cpu};
use rqscope::linux::snapshot::{Key, Store};
use rqscope::session::Control;

use super::paired::Spread;

/// Argument with which this program boots the kernel once and ends.
pub const BOOT_ONCE: &str = "boot-once";

const MEMORY_MIB: u64 = 128;

/// Boots `kernel` until it is ready.
pub fn boot(kvm: &Kvm, kernel: &Path) -> (Machine, Ready) {
    let bytes = std::fs::read(kernel).expect("read the kernel");
    let (initrd, devices) = (pack(INIT), bus::devices());
    let linux = boot::Linux {
        kernel: boot::File { name: "kernel", bytes: &bytes },
        initrd: Some(boot::File { name: "initrd", bytes: &initrd }),
        cmdline: "",
        quiet: true,
        devices: &devices,
        memory_size: MEMORY_MIB << 20,
    };
    let cpuid = cpu(kvm, cpuid::Options::default()).expect("a CPUID");
    let mut machine = Machine::new(kvm, &linux, &cpuid, Console::new(false)).expect("a machine");
    let control = Arc::new(Control::default());
    control.set_kick(Some(machine.vcpu.kick_handle().expect("a kick")));
    let ready = bring_up(&mut machine, &control, Duration::from_secs(120)).expect("a boot");
    control.set_kick(None);
    (machine, ready)
}

/// All of it.
pub fn run(kvm: &Kvm, kernel: &Path, rounds: usize) {
    let dir = std::env::temp_dir().join(format!("rqscope-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let initrd = dir.join("initrd");
    std::fs::write(&initrd, pack(INIT)).expect("write the initramfs");

    let this = std::env::current_exe().expect("this program");
    let ours = || timed(Command::new(&this).arg(BOOT_ONCE), 0);
    let qemu = Command::new("qemu-system-x86_64").arg("--version").output().is_ok();
    let theirs = || {
        let memory = MEMORY_MIB.to_string();
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(["-no-user-config", "-nodefaults", "-display", "none", "-no-reboot"])
            .args(["-M", "microvm,acpi=off,pic=on,pit=on,rtc=off,isa-serial=on"])
            .args(["-accel", "kvm", "-cpu", "qemu64", "-m", &memory])
            .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"])
            .arg("-kernel")
            .arg(kernel)
            .arg("-initrd")
            .arg(&initrd)
            .args(["-append", "quiet console=ttyS0 panic=-1 tsc=nowatchdog noautogroup"]);
        // What PID 1 writes, 16, doubled and made odd.
        timed(&mut qemu, 33)
    };
    let (mut own, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let time = ours();
        own.push(time);
        if qemu {
            ratios.push(time / theirs());
        }
    }
    let boot = Spread::of(own);
    println!("boot to ready, s                            {boot}");
    if qemu {
        println!("boot to ready / QEMU microvm                {}", Spread::of(ratios));
    } else {
        println!("boot to ready / QEMU microvm                skipped, no qemu-system-x86_64");
    }

    let (mut machine, ready) = self::boot(kvm, kernel);
    let store = Store::at(dir.clone());
    let cpuid = cpu(kvm, cpuid::Options::default()).expect("a CPUID");
    let key = Key::new(b"bench", b"", "", MEMORY_MIB << 20, &cpuid);
    store.save(kvm, &key, &mut machine, &ready).expect("a snapshot");
    drop(machine);
    let restores = (0..rounds * 5).map(|_| {
        let begin = Instant::now();
        let restored = store.restore(kvm, &key, &cpuid, Console::new(false));
        let (mut machine, _) = restored.expect("a restored machine");
        machine.vcpu.run().expect("a first exit");
        begin.elapsed().as_secs_f64()
    });
    let restore = Spread::of(restores.collect());
    println!("restore to first exit, ms                   {}", restore.times(1e3));
    println!("boot to ready / restore to first exit       {:8.0}", boot.median / restore.median);
    std::fs::remove_dir_all(&dir).expect("remove the directory");
}

/// Seconds that `command` takes.
fn timed(command: &mut Command, code: i32) -> f64 {
    let begin = Instant::now();
    let status = command.stdin(Stdio::null()).status().expect("start a process");
    assert_eq!(status.code(), Some(code), "{command:?}");
    begin.elapsed().as_secs_f64()
}
