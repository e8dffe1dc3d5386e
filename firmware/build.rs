//! Declares `rqscope_guest`, which vmm/build.rs sets when it builds this crate for the guest.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(rqscope_guest)");
    println!("cargo::rerun-if-changed=build.rs");
}
