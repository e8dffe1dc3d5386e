//! Builds the bundled guest (../firmware) with the installed toolchain, for embedding.
//!
//! A nested cargo with a target directory of its own, so that it waits for no lock of the outer
//! one. It needs no network: the guest's crates are a subset of this crate's.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The guest is freestanding, but the target is the one whose `core` every Linux toolchain has.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The outer build's settings that must not reach the guest's: flags and wrappers (clippy, coverage),
/// profiles, target directory. The rest of `CARGO_*` (home, registries, network, job server) passes.
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
const DROPPED_PREFIXES: [&str; 8] = [
    "CARGO_BUILD_",
    "CARGO_CFG_",
    "CARGO_FEATURE_",
    "CARGO_MANIFEST_",
    "CARGO_PKG_",
    "CARGO_PROFILE_",
    "CARGO_TARGET_",
    "CARGO_UNSTABLE_",
];

fn main() {
    let env = |name: &str| std::env::var(name).unwrap_or_else(|e| panic!("{name}: {e}"));
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

    let target_dir = PathBuf::from(env("OUT_DIR")).join("firmware");
    let linker_script = workspace.join("firmware/link.ld");
    let flags = [
        "--cfg=rqscope_guest".to_owned(),
        "-Crelocation-model=static".to_owned(),
        "-Ccode-model=kernel".to_owned(),
        "-Cno-redzone=yes".to_owned(),
        "-Ctarget-feature=-sse,-sse2".to_owned(),
        "-Clink-arg=-nostdlib".to_owned(),
        "-Clink-arg=-static".to_owned(),
        "-Clink-arg=-Wl,--build-id=none".to_owned(),
        "-Clink-arg=-Wl,-zmax-page-size=4096".to_owned(),
        format!("-Clink-arg=-Wl,-T,{}", linker_script.display()),
    ];

    let mut cargo = Command::new(env("CARGO"));
    for (name, _) in std::env::vars_os() {
        let name_str = name.to_string_lossy();
        if DROPPED.contains(&&*name_str) || DROPPED_PREFIXES.iter().any(|p| name_str.starts_with(p))
        {
            cargo.env_remove(&name);
        }
    }
    cargo
        .current_dir(&workspace)
        .args(["build", "--frozen", "--package=rqscope-firmware", "--profile=firmware"])
        .arg(format!("--target={TARGET}"))
        .arg("--target-dir")
        .arg(&target_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    let status = cargo.status().unwrap_or_else(|e| panic!("start {cargo:?}: {e}"));
    assert!(status.success(), "building the bundled guest failed: {cargo:?}: {status}");

    let image = target_dir.join(TARGET).join("firmware/rqscope-firmware");
    println!("cargo::rustc-env=RQSCOPE_FIRMWARE={}", image.display());
}
