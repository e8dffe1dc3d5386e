//! Files that are no kernels, and kernels that are not whole.

use std::fs;

use super::{NEWEST, command_on, kernel};
use crate::program::{RQSCOPE, Running, Scratch};

#[test]
fn files_that_are_no_kernels_are_refused_by_what_they_are() {
    let Some(linux) = kernel(NEWEST) else { return };
    let scratch = Scratch::new();
    let vmlinux = fs::read(linux.file("vmlinux")).unwrap();
    let mut arm = vmlinux[..1 << 20].to_vec();
    arm[18] = 183;
    let files = [
        (scratch.file("empty", b""), "the file is empty"),
        (scratch.file("text", b"#!/bin/sh\nexit 0\n"), "neither an ELF file"),
        (scratch.file("cut", &vmlinux[..1 << 20]), "truncated"),
        (scratch.file("arm", arm), "183"),
        (RQSCOPE.to_owned(), "expected a kernel"),
        (scratch.arg("missing"), "No such file"),
        (scratch.arg(""), "Is a directory"),
    ];
    for (file, why) in files {
        let out = scratch.arg("out");
        let done = Running::start(&mut command_on(&file, "idle", &["--out", &out])).wait();
        done.ends_with(2).in_one_line().says(&file).says(why);
        assert!(!scratch.path("out").exists(), "{why}");
    }
}

#[test]
fn a_bzimage_without_symbols_is_answered_with_where_they_are() {
    let Some(linux) = kernel(NEWEST) else { return };
    let done = Running::start(&mut command_on(&linux.file("bzImage"), "idle", &[])).wait();
    done.ends_with(2).in_one_line().says("vmlinux or System.map with --symbols");
}

#[test]
fn symbols_of_another_kernel_are_noticed() {
    let (Some(linux), Some(other)) = (kernel(NEWEST), kernel("7.2")) else { return };
    let args = ["--no-snapshot", "--set=duration=10ms", "--symbols"];
    for file in ["vmlinux", "System.map"] {
        let symbols = other.file(file);
        let done = linux.run("idle", &[&args[..], &[&symbols]].concat()).ends_with(2);
        assert!(done.stdout.is_empty(), "{}", done.stdout);
    }
}

#[test]
fn what_does_not_fit_into_the_guest_is_an_error_before_it_starts() {
    let Some(linux) = kernel(NEWEST) else { return };
    let scratch = Scratch::new();
    let initrd = scratch.file("initrd", vec![0u8; 120 << 20]);
    let long = "x".repeat(2048);
    for (args, why) in [
        (&["--initrd", &initrd][..], "do not fit"),
        (&["--memory", "1"], "guest memory"),
        (&["--cmdline", &long], "shorten it by"),
        (&["--guest", "model"], "leave out --guest"),
    ] {
        linux.run("idle", args).ends_with(2).in_one_line().says(why);
    }
}
