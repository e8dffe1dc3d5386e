//! Symbol tables of kernels, and where they put things in a guest.

use crate::introspect::linux::symbols::SymbolTable;
use crate::introspect::symbols::Symbol;

fn map(text: &str) -> SymbolTable {
    SymbolTable::of_system_map("System.map", text.as_bytes()).unwrap()
}

const MAP: &str = "\
0000000000000000 D __per_cpu_start
ffffffff81000000 T _text
ffffffff81000100 t helper
ffffffff81000200 T update_rq_clock
ffffffff81000300 t update_rq_clock.cold
ffffffff81000380 t sched_clock_cpu.part.0
ffffffff81000400 T sched_clock_cpu
ffffffff81000480 T alias_first
ffffffff81000480 T alias_second
ffffffff81000500 t helper
ffffffff81000600 D runqueues
";

#[test]
fn a_system_map_is_read_by_its_lines() {
    let map = map(MAP);
    assert_eq!(map.find("runqueues"), Ok(Symbol { address: 0xffff_ffff_8100_0600, size: 0 }));
    assert_eq!(map.find("__per_cpu_start").unwrap().address, 0);
    assert!(map.has("_text") && !map.has("_tex") && !map.has("text"));
    assert_eq!(map.find("psi_seq").unwrap_err().to_string(), "no symbol psi_seq in System.map");
    assert_eq!(
        map.find("helper").unwrap_err().to_string(),
        "symbol helper in System.map is ambiguous: it is at 0xffffffff81000100 and at \
         0xffffffff81000500"
    );
}

#[test]
fn a_malformed_line_is_named_by_its_number() {
    let refusal =
        |text: &[u8]| SymbolTable::of_system_map("System.map", text).unwrap_err().to_string();
    let long = format!("ffffffff81000000 T {}", "x".repeat(513));
    let address = "does not start with an address of 16 hexadecimal digits";
    let kind = "has no type of one letter after its address";
    let name = "does not end with a name of 1 to 512 bytes";
    for (line, why) in [
        (&b"ffffffff8100000 T short"[..], address),
        (b"ffffffff810000000 T long", address),
        (b"fffffffg81000000 T x", address),
        (b"+fffffff81000000 T x", address),
        (b"\x7fELF\x02\x01\x01", address),
        (b"ffffffff81000000", kind),
        (b"ffffffff81000000 TT x", kind),
        (b"ffffffff81000000  x", kind),
        (b"ffffffff81000000 T", name),
        (b"ffffffff81000000 T ", name),
        (b"ffffffff81000000 T x [module]", name),
        (long.as_bytes(), name),
        (b"ffffffff81000000 T \xff", "is not text"),
    ] {
        let text = [b"ffffffff81000000 T _text\n", line, b"\n"].concat();
        assert_eq!(refusal(&text), format!("cannot read symbols of System.map: line 2 {why}"));
    }
    assert_eq!(refusal(b""), "cannot read symbols of System.map: the file is empty");
}

#[test]
fn a_function_that_the_compiler_split_is_refused_by_the_part() {
    let map = map(MAP);
    assert_eq!(map.function("update_rq_clock").unwrap().address, 0xffff_ffff_8100_0200);
    let refusal = |name| map.function(name).unwrap_err().to_string();
    assert_eq!(
        refusal("sched_clock_cpu"),
        "cannot probe sched_clock_cpu of System.map: the compiler split it, and calls may go to \
         sched_clock_cpu.part.0"
    );
    assert_eq!(
        refusal("update_tg_load_avg"),
        "cannot probe update_tg_load_avg of System.map: it has no such function; was it inlined into \
         its callers?"
    );
    assert_eq!(
        refusal("runqueues"),
        "cannot probe runqueues of System.map: the symbol at 0xffffffff81000600 is no function"
    );
    assert!(refusal("helper").contains("ambiguous"));
    // Parts of parts, and copies.
    for (part, refused) in [
        ("f.cold", false),
        ("f.cold.1", false),
        ("f.isra.0", true),
        ("f.constprop.0.cold", true),
        ("f.part.0.isra.0", true),
        ("f.llvm.123", true),
        ("ff.part.0", false),
    ] {
        let text = format!("{MAP}ffffffff81000700 T f\nffffffff81000740 t {part}\n");
        let map = SymbolTable::of_system_map("m", text.as_bytes()).unwrap();
        assert_eq!(map.function("f").is_err(), refused, "{part}");
    }
}

#[test]
fn the_function_around_an_address_is_found_by_the_name_of_the_whole() {
    let map = map(MAP);
    let at = |offset: u64| map.function_at(0xffff_ffff_8100_0000 + offset);
    assert_eq!(at(0), Some("_text"));
    assert_eq!(at(0x1ff), Some("helper"));
    assert_eq!(at(0x200), Some("update_rq_clock"));
    assert_eq!(at(0x310), Some("update_rq_clock"));
    assert_eq!(at(0x3ff), Some("sched_clock_cpu"));
    assert_eq!(at(0x490), Some("alias_first"), "the file's first of two");
    assert_eq!(map.function_at(0), None);
}
