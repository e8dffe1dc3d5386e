//! Builds what runs inside guests (../firmware) with the installed toolchain, for embedding: the bundled
//! guest, and PID 1 of Linux guests.
//!
//! Nested cargos with target directories of their own, so that they wait for no lock of the outer
//! one. Each needs no network: the guest's crates are a subset of this crate's.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The guest is freestanding, but the target is the one whose `core` every Linux toolchain has.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The outer build's settings that must not reach the guest's: flags and wrappers (clippy, coverage),
/// profiles, directories. The rest of `CARGO_*` (home, registries, network, job server) passes.
const DROPPED: [&str; 8] = [
    "RUSTFLAGS",
    "RUSTDOCFLAGS",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "CLIPPY_ARGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_TARGET_DIR",
    "CARGO_INCREMENTAL",
];
/// Likewise, by prefix.
const DROPPED_PREFIXES: [&str; 7] = [
    "CARGO_BUILD_",
    "CARGO_CFG_",
    "CARGO_FEATURE_",
    "CARGO_MANIFEST_",
    "CARGO_PKG_",
    "CARGO_PROFILE_",
    "CARGO_UNSTABLE_",
];

fn main() {
    let workspace = Path::new(&env("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("vmm/ is in the workspace")
        .to_path_buf();
    for input in [
        "Cargo.toml",
        "Cargo.lock",
        "firmware/Cargo.toml",
        "firmware/build.rs",
        "firmware/link.ld",
        "firmware/src",
        "guest-model/Cargo.toml",
        "guest-model/src",
    ] {
        println!("cargo::rerun-if-changed={}", workspace.join(input).display());
    }
    println!("cargo::rerun-if-changed=build.rs");

    let linker_script = workspace.join("firmware/link.ld");
    let guest = build(
        &workspace,
        "rqscope-firmware",
        &[
            "-Ccode-model=kernel",
            "-Cno-redzone=yes",
            "-Ctarget-feature=-sse,-sse2",
            "-Clink-arg=-T",
            &format!("-Clink-arg={}", linker_script.display()),
        ],
    );
    println!("cargo::rustc-env=RQSCOPE_FIRMWARE={}", guest.display());
    // A program that Linux loads: user space has a red zone and SSE.
    let init = build(&workspace, "rqscope-init", &["-Clink-arg=-nostartfiles"]);
    println!("cargo::rustc-env=RQSCOPE_INIT={}", init.display());
}

/// Builds the program `name` of firmware/ as a static, freestanding one; answers where it is.
fn build(workspace: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let target_dir = PathBuf::from(env("OUT_DIR")).join(name);
    let mut all_flags = vec![
        "--cfg=rqscope_guest",
        "-Crelocation-model=static",
        "-Clink-arg=-nostdlib",
        "-Clink-arg=-static",
        "-Clink-arg=-Wl,--build-id=none",
        "-Clink-arg=-Wl,-zmax-page-size=4096",
    ];
    all_flags.extend(flags);

    let mut cargo = Command::new(env("CARGO"));
    for (name, _) in std::env::vars_os() {
        let name_str = name.to_string_lossy();
        if DROPPED.contains(&&*name_str) || DROPPED_PREFIXES.iter().any(|p| name_str.starts_with(p))
        {
            cargo.env_remove(&name);
        }
    }
    cargo
        .current_dir(workspace)
        .args(["build", "--frozen", "--package=rqscope-firmware", "--profile=firmware"])
        .arg(format!("--bin={name}"))
        .arg(format!("--target={TARGET}"))
        .arg("--target-dir")
        .arg(&target_dir)
        // A configured build directory is the outer cargo's, which holds its lock.
        .env("CARGO_BUILD_BUILD_DIR", &target_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", all_flags.join("\x1f"));
    let status = cargo.status().unwrap_or_else(|e| panic!("start {cargo:?}: {e}"));
    assert!(status.success(), "building {name} failed: {cargo:?}: {status}");
    target_dir.join(TARGET).join("firmware").join(name)
}

/// A variable that cargo sets for build scripts.
fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|e| panic!("{name}: {e}"))
}
