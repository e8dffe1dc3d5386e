//! Files given as guest images: those that are none, and valid ones of unusual shape.

use rqscope::machine::FIRMWARE;
use rqscope::machine::layout::PAGE;
use serde_json::Value;

use crate::host::virtual_machines;
use crate::image::{CODE, Code, Image};
use crate::program::{Done, SHORT, Scratch, rqscope, run_json};

/// A guest that says 0x77 where no such word is known: its first instructions ran.
fn says_0x77() -> Image {
    Image::of(Code::new().control(0x77, [0; 3]))
}

fn run_file(bytes: &[u8]) -> Done {
    let scratch = Scratch::new();
    let file = scratch.file("guest", bytes);
    rqscope(["run", "idle", "--set=duration=5ms", "--firmware", &file])
}

/// The trace's hash of the default scenario on `image`.
fn hash_on(image: &[u8]) -> Value {
    let scratch = Scratch::new();
    let file = scratch.file("guest", image);
    let sets = SHORT.iter().flat_map(|set| ["--set", set]);
    let args = ["run", "--format=json", "--firmware", &file].into_iter().chain(sets);
    rqscope(args).ends_with(0).json()["trace_sha256"].clone()
}

#[test]
fn files_that_are_no_guest_are_refused_by_what_is_wrong_with_them() {
    let Some(()) = virtual_machines() else { return };
    let good = says_0x77().to_elf();
    let with = |at: usize, byte: u8| {
        let mut elf = good.clone();
        elf[at] = byte;
        elf
    };
    for (file, why) in [
        (vec![], "load the guest image: the file is empty"),
        (b"#!/bin/sh\n".to_vec(), "load the guest image: not an ELF file"),
        (b"\x7fELF".to_vec(), "truncated: expected an ELF header of 64 bytes, got 4 bytes"),
        (good[..100].to_vec(), "truncated: 2 program headers at 0x40 are outside of the file"),
        (good[..400].to_vec(), "truncated: segment 1,"),
        (with(18, 183), "ELF machine: expected 62 (x86-64), got 183"),
        (with(4, 1), "ELF class: expected 2 (64-bit), got 1"),
        (with(16, 3), "ELF type: expected 2 (executable), got 3"),
        (with(56, 0), "no loadable segment"),
        (with(27, 0), "the entry point"),
        (vec![0x7f; (16 << 20) + 1], "larger than 16777216 bytes"),
    ] {
        run_file(&file).ends_with(2).says(why).in_one_line();
    }
}

#[test]
fn a_refused_image_leaves_no_output_directory() {
    let Some(()) = virtual_machines() else { return };
    let mut other = says_0x77();
    other.kernel_size -= 8;
    for image in [b"#!/bin/sh\n".to_vec(), other.to_elf()] {
        let scratch = Scratch::new();
        let (file, out) = (scratch.file("guest", image), scratch.arg("out"));
        rqscope(["run", "idle", "--firmware", &file, "--out", &out]).ends_with(2).in_one_line();
        assert!(!scratch.path("out").exists());
    }
}

#[test]
fn an_image_without_the_kernel_of_this_build_is_refused() {
    let Some(()) = virtual_machines() else { return };
    let mut other = says_0x77();
    other.kernel_size -= 8;
    let done = run_file(&other.to_elf()).ends_with(2).in_one_line();
    done.says("--firmware ").says("symbol rqscope_kernel in the guest image").says("expected");
    let mut stripped = says_0x77().to_elf();
    // No section headers.
    stripped[40..48].fill(0);
    stripped[60..64].fill(0);
    run_file(&stripped).ends_with(2).says("it has no .symtab, use the unstripped file");
}

#[test]
fn an_entry_above_the_lowest_segment_is_entered_there() {
    let Some(()) = virtual_machines() else { return };
    let mut image = says_0x77().with(CODE + PAGE, Code::new().control(0x55, [0; 3]).into_bytes());
    image.entry = CODE + PAGE;
    run_file(&image.to_elf()).ends_with(2).says("the unknown word 0x55");
}

#[test]
fn segments_in_descending_order_run_as_in_ascending_order() {
    let Some(()) = virtual_machines() else { return };
    let mut image = says_0x77();
    image.segments.reverse();
    run_file(&image.to_elf()).ends_with(2).says("the unknown word 0x77");

    // The bundled image itself, with its program headers the other way round.
    let mut elf = FIRMWARE.to_vec();
    let count = usize::from(u16::from_le_bytes([elf[56], elf[57]]));
    assert!(count > 1);
    let headers: Vec<u8> =
        FIRMWARE[64..64 + count * 56].chunks(56).rev().flatten().copied().collect();
    elf[64..64 + count * 56].copy_from_slice(&headers);
    let bundled = run_json("default", "firmware", &SHORT, 0);
    assert_eq!(hash_on(&elf), bundled["trace_sha256"]);
}

#[test]
fn a_note_of_alignment_8_that_makes_no_sense_is_not_looked_at() {
    let Some(()) = virtual_machines() else { return };
    let mut image = says_0x77();
    image.note_align = Some(8);
    run_file(&image.to_elf()).ends_with(2).says("the unknown word 0x77");
}
