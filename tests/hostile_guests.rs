//! Guests that break off, spin or write garbage where the host reads: each ends with exit code 2, a
//! message that names the thing, and what was found until then.

use std::mem::offset_of;

use guest_model::rq::Rq;
use guest_model::wire::{control, port, probe};
use object::{Object, ObjectSymbol};
use rqscope::kvm::HostKvm;
use rqscope::machine::FIRMWARE;
use rqscope::machine::layout::{IMAGE, MEMORY_SIZE, PAGE_TABLES};
use serde_json::Value;

use crate::host::virtual_machines;
use crate::image::{CODE, Code, FakeKernel, Image, virt};
use crate::program::{Done, Running, Scratch, command, rqscope, text};

/// Runs the idle scenario on `elf`.
fn run_elf(elf: &[u8]) -> Done {
    let scratch = Scratch::new();
    let elf = scratch.file("guest", elf);
    let args = ["run", "idle", "--set=duration=20ms", "--set=policy.compare=[]", "--format=json"];
    rqscope(args.into_iter().chain(["--watchdog=1s", "--firmware", &elf]))
}

/// The guest breaks off for `why`, which the report tells too; the report.
#[track_caller]
fn breaks_off(elf: &[u8], why: &str) -> Value {
    let done = run_elf(elf).ends_with(2).says(why).in_one_line();
    let json = done.json();
    assert_eq!(json["verdict"], "incomplete");
    assert_eq!(json["stopped_by"], "error");
    assert_eq!(format!("rqscope: {}\n", text(&json, "/stopped")), done.stderr);
    json
}

/// The guest that runs `code` breaks off for `why`.
#[track_caller]
fn code_breaks_off(code: Code, why: &str) -> Value {
    breaks_off(&Image::of(code).to_elf(), why)
}

#[test]
fn a_guest_that_triple_faults_ends_the_run_with_its_registers() {
    let Some(()) = virtual_machines() else { return };
    // ud2, without an IDT.
    let json = code_breaks_off(Code::new().bytes(&[0x0f, 0x0b]), "guest triple-faulted");
    // On SVM a shutdown loses the processor's state: KVM leaves a vCPU as after INIT.
    let told = text(&json, "/stopped");
    let (rip, lost) = (format!("rip {:#x}", virt(CODE)), HostKvm::detect() == HostKvm::Svm);
    assert_eq!((told.contains(&rip), told.contains("rip")), (!lost, !lost), "{json:#}");
}

#[test]
fn a_guest_that_jumps_to_itself_is_stopped_by_the_watchdog() {
    let Some(()) = virtual_machines() else { return };
    let code = Code::new().boot().forever(Code::new());
    let json = code_breaks_off(code, "guest spins without asking for time: no exit for 1 s");
    assert_eq!(json["elapsed_ns"], 0);
}

#[test]
fn a_guest_that_rings_the_doorbell_and_lets_no_time_pass_runs_out_of_exits() {
    let Some(()) = virtual_machines() else { return };
    let timer = Code::new().boot().forever(Code::new().out(port::TIMER, 0));
    code_breaks_off(timer, "guest is stuck: 200001 exits at guest time 0 ns");
}

#[test]
fn a_guest_that_burns_nothing_over_and_over_runs_out_of_exits() {
    let Some(()) = virtual_machines() else { return };
    let burn = Code::new().boot().args([0; 3]).forever(Code::new().input(port::BURN));
    code_breaks_off(burn, "exits at guest time 0 ns without any time passing");
}

#[test]
fn a_guest_that_only_hits_probes_runs_out_of_exits_and_the_last_call_is_named() {
    let Some(()) = virtual_machines() else { return };
    let update = Code::new().probe(probe::UPDATE_RQ_CLOCK, [FakeKernel::rq(), 0, 0]);
    let json = code_breaks_off(Code::new().boot().forever(update), "(last call: UpdateRqClock)");
    assert!(json["trace_records"].as_u64() > Some(100_000), "{}", json["trace_records"]);
}

#[test]
fn ctrl_c_ends_a_guest_that_spins_long_before_the_watchdog_would() {
    let Some(()) = virtual_machines() else { return };
    const PROBES: u32 = 5_000;
    let update = Code::new().probe(probe::UPDATE_RQ_CLOCK, [FakeKernel::rq(), 0, 0]);
    let code = Code::new().boot().repeat(PROBES, update).forever(Code::new());
    let scratch = Scratch::new();
    let elf = scratch.file("guest", Image::of(code).to_elf());
    let out = scratch.arg("out");
    let args = ["run", "idle", "--watchdog=1000s", "--firmware", &elf, "--out", &out];
    let mut run = Running::start(&mut command(args));
    let trace = scratch.path("out/trace.jsonl");
    run.wait_until("the guest runs", || std::fs::metadata(&trace).is_ok_and(|f| f.len() > 0));
    run.signal("INT");
    let page = run.wait().ends_with(130).stdout;
    assert!(page.contains("INCOMPLETE"), "{page}");
}

#[test]
fn a_guest_that_halts_with_interrupts_off_is_not_waited_for() {
    let Some(()) = virtual_machines() else { return };
    code_breaks_off(Code::new().boot().bytes(&[0xfa, 0xf4]), "guest halted with interrupts off");
}

#[test]
fn a_current_task_that_is_nowhere_is_named_by_member_and_address() {
    let Some(()) = virtual_machines() else { return };
    let curr = FakeKernel::rq_member(offset_of!(Rq, curr));
    for wild in [0xdead_0000u64, 0x8000_0000_0000_0000, u64::MAX - 2] {
        let kernel = FakeKernel::at_rest().with(curr, wild);
        let elf = Image::with_kernel(Code::new().boot(), kernel).to_elf();
        breaks_off(&elf, &format!("cannot read task_struct.pid at {wild:#x}"));
    }
}

#[test]
fn a_list_of_leaves_that_never_ends_is_refused_where_it_turns_back() {
    let Some(()) = virtual_machines() else { return };
    let list = FakeKernel::rq_member(offset_of!(Rq, leaf_cfs_rq_list));
    let leaf = (FakeKernel::leaf() - FakeKernel::at(0)) as usize;
    // The head names the leaf, and the leaf names itself.
    let kernel = FakeKernel::at_rest()
        .with(list, FakeKernel::leaf())
        .with(leaf, FakeKernel::leaf())
        .with(leaf + 8, FakeKernel::at(list));
    let elf = Image::with_kernel(Code::new().boot(), kernel).to_elf();
    breaks_off(&elf, "rq.leaf_cfs_rq_list: prev of the list_head");
}

#[test]
fn a_kernel_that_wipes_its_run_queue_after_it_was_ready_keeps_the_last_good_view() {
    let Some(()) = virtual_machines() else { return };
    let update = |code: Code| code.probe(probe::UPDATE_RQ_CLOCK, [FakeKernel::rq(), 0, 0]);
    let curr = FakeKernel::at(FakeKernel::rq_member(offset_of!(Rq, curr)));
    // mov rdi, curr; mov qword [rdi], 0
    let code = update(Code::new().boot()).args([curr, 0, 0]).bytes(b"\x48\xc7\x07\0\0\0\0");
    let json = code_breaks_off(update(code), "rq.curr is a null pointer, expected a task_struct");
    assert_eq!(json["trace_records"], 2, "the pass and the first probe");
}

#[test]
fn page_tables_wiped_by_the_guest_are_no_trap_for_the_host() {
    let Some(()) = virtual_machines() else { return };
    // The guest maps everything for itself, then clears the table that the host walks from.
    let wipe = [&b"\x48\xb8"[..], &PAGE_TABLES.start.to_le_bytes()].concat();
    // mov rax, table; mov rdi, rax; xor eax, eax; mov ecx, 512; rep stosq
    let wipe = [&wipe, &b"\x48\x89\xc7\x31\xc0\xb9\0\x02\0\0\xf3\x48\xab"[..]].concat();
    let code = with_own_tables(Code::new().boot()).bytes(&wipe);
    let update = code.probe(probe::UPDATE_RQ_CLOCK, [FakeKernel::rq(), 0, 0]);
    breaks_off(&own_tables(update).to_elf(), "cannot read rq.curr at 0xffffffff802");
}

/// Where guests put tables of their own, physical.
const OWN_TABLES: u64 = IMAGE.start + 0x2_0000;
/// Physical memory that the machine does not have, mapped by these tables.
const BEYOND: u64 = 0x2000_0000;

/// Loads CR3.
fn with_own_tables(code: Code) -> Code {
    code.rax(OWN_TABLES).bytes(&[0x0f, 0x22, 0xd8])
}

/// An image that has tables of its own: 1 GiB of large pages, at 0 and in the kernel half.
fn own_tables(code: Code) -> Image {
    let (pdpt, pd) = (OWN_TABLES + 0x1000, OWN_TABLES + 0x2000);
    let mut tables = vec![0u64; 3 * 512];
    tables[0] = pdpt | 3;
    tables[511] = pdpt | 3;
    tables[512] = pd | 3;
    tables[512 + 510] = pd | 3;
    for i in 0..512 {
        tables[1024 + i] = (i as u64) << 21 | 0x83;
    }
    let bytes = tables.iter().flat_map(|entry| entry.to_le_bytes()).collect();
    Image::of(code).with(OWN_TABLES, bytes)
}

#[test]
fn an_access_to_memory_that_is_not_there_is_named_by_its_address() {
    let Some(()) = virtual_machines() else { return };
    const { assert!(BEYOND > MEMORY_SIZE) };
    let at = with_own_tables(Code::new().boot()).rax(BEYOND);
    // mov eax, [rax]; mov [rax], eax
    for (access, what) in [([0x8b, 0x00], "read"), ([0x89, 0x00], "write")] {
        let why = format!("guest {what} of 4 bytes at physical address {BEYOND:#x}");
        breaks_off(&own_tables(at.clone().bytes(&access)).to_elf(), &why);
    }
}

#[test]
fn the_status_of_a_line_that_was_not_raised_is_refused() {
    let Some(()) = virtual_machines() else { return };
    for line in [0u64, 5, 32, u64::MAX] {
        let code = Code::new().boot().args([line, 0, 0]).input(port::IRQ_STATUS);
        code_breaks_off(code, &format!("guest read the status of interrupt line {line}"));
    }
}

#[test]
fn a_port_that_the_machine_does_not_have_is_named_with_its_size() {
    let Some(()) = virtual_machines() else { return };
    code_breaks_off(Code::new().out(0x70, 0), "guest write of 4 bytes at port 0x70");
    // in al, BURN
    let narrow = Code::new().bytes(&[0xe4, port::BURN as u8]);
    code_breaks_off(narrow, "guest read of 1 bytes at port 0xe0");
    code_breaks_off(Code::new().control(99, [0; 3]), "guest wrote the unknown word 0x63");
    code_breaks_off(Code::new().boot().probe(77, [0; 3]), "unknown probe 77");
}

#[test]
fn a_clock_page_outside_of_memory_is_refused_and_a_doorbell_needs_one() {
    let Some(()) = virtual_machines() else { return };
    for address in [MEMORY_SIZE, MEMORY_SIZE - 16, 0x7fff_ffff_ffff_f000] {
        let why = format!("guest registered its clock page at {address:#x}");
        code_breaks_off(Code::new().clock_page(address), &why);
    }
    let early = Code::new().input(port::BURN);
    code_breaks_off(early, "guest used port 0xe0 before it registered its clock");
}

#[test]
fn a_vector_instruction_ends_the_run_with_the_reason_that_fits_the_host() {
    let Some(()) = virtual_machines() else { return };
    // vaddps xmm0, xmm0, xmm0: an emulator gives up, hardware without OSXSAVE raises #UD.
    let code = Code::new().bytes(&[0xc5, 0xf8, 0x58, 0xc0]);
    let why = match HostKvm::detect() {
        HostKvm::Pvm => "KVM cannot emulate the guest's instruction c5 f8 58 c0",
        _ => "guest triple-faulted",
    };
    code_breaks_off(code, why);
}

/// Makes the bundled image panic in its entry: Rust's own bounds check fails, at the place in
/// `file` that some panic of the image names. Returns the image and the line.
fn panicking_firmware(file: &str) -> (Vec<u8>, u32) {
    let elf = object::read::elf::ElfFile64::<object::Endianness>::parse(FIRMWARE).unwrap();
    let bounds_check = elf
        .symbols()
        .find(|s| s.name().is_ok_and(|name| name.ends_with("panic_bounds_check")))
        .expect("the guest indexes arrays")
        .address();
    let rodata = elf.section_by_name(".rodata").unwrap();
    let (base, data) = object::ObjectSection::data(&rodata)
        .map(|data| (object::ObjectSection::address(&rodata), data))
        .unwrap();
    let name = data.windows(file.len()).position(|w| w == file.as_bytes()).unwrap() as u64;
    // `core::panic::Location`: the file's address and length, line, column.
    let location = [base + name, file.len() as u64].map(u64::to_le_bytes).concat();
    let location = data.windows(16).position(|w| w == location).unwrap();
    let line = u32::from_le_bytes(data[location + 16..location + 20].try_into().unwrap());
    // mov rdi, 7; mov rsi, 3; mov rdx, location; mov rax, panic_bounds_check; call rax
    let code = Code::new().args([7, 3, base + location as u64]).rax(bounds_check);
    let code = code.bytes(&[0xff, 0xd0]).into_bytes();
    let mut image = FIRMWARE.to_vec();
    // The entry is the first byte of the first segment.
    let entry = u64::from_le_bytes(image[64 + 8..64 + 16].try_into().unwrap()) as usize;
    image[entry..entry + code.len()].copy_from_slice(&code);
    (image, line)
}

#[test]
fn a_panic_in_the_firmware_reaches_the_user_with_file_line_and_registers() {
    let Some(()) = virtual_machines() else { return };
    let file = "firmware/src/clock.rs";
    let (image, line) = panicking_firmware(file);
    let json = breaks_off(&image, &format!("guest panicked at {file}:{line}; registers: rip 0x"));
    assert!(text(&json, "/stopped").contains(&format!("rdx {line:#x}")), "{json:#}");
}

#[test]
fn a_guests_own_words_reach_the_terminal_without_its_escapes() {
    let Some(()) = virtual_machines() else { return };
    let name = b"\x1b[31mred\n";
    let at = IMAGE.start + 0x3_0000;
    let code = Code::new().control(control::PANIC, [virt(at), name.len() as u64, 7]);
    let elf = Image::of(code).with(at, name.to_vec()).to_elf();
    breaks_off(&elf, r"guest panicked at \u{1b}[31mred\n:7");
    // A name that is nowhere is no reason to lose the line.
    let code = Code::new().control(control::PANIC, [0x10, u64::MAX, 8]);
    code_breaks_off(code, "guest panicked at (file name unreadable:");
    let code = Code::new().control(control::EXCEPTION, [13, 0x18, 0x1234]);
    code_breaks_off(code, "guest took exception 13 (#GP), error code 0x18, at rip 0x1234");
    let code = Code::new().control(control::BAD_BOOT_PAGE, [200, 0, 0]);
    code_breaks_off(code, "guest refuses its boot page with the unknown reason 200");
}

#[test]
fn what_was_found_before_the_end_is_kept_in_the_output_directory() {
    let Some(()) = virtual_machines() else { return };
    let scratch = Scratch::new();
    let update = |code: Code| code.probe(probe::UPDATE_RQ_CLOCK, [FakeKernel::rq(), 0, 0]);
    let code = update(update(Code::new().boot())).bytes(&[0x0f, 0x0b]);
    let elf = scratch.file("guest", Image::of(code).to_elf());
    let out = scratch.arg("out");
    let args = ["run", "idle", "--firmware", &elf, "--out", &out];
    let page = rqscope(args).ends_with(2).says("guest triple-faulted").stdout;
    assert!(page.contains("INCOMPLETE"), "{page}");
    let read = |name| std::fs::read_to_string(scratch.path("out").join(name)).unwrap();
    assert_eq!(read("report.txt"), page);
    let json: Value = serde_json::from_str(&read("result.json")).unwrap();
    assert_eq!(json["verdict"], "incomplete");
    assert_eq!(read("trace.jsonl").matches(r#""ev":"update_rq_clock""#).count(), 2);
}
