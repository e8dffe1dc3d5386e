//! Probes at the entries of functions.

use vm_memory::{Bytes, GuestAddress};

use crate::introspect::linux::patch::{PatchError, Planted, plant};
use crate::introspect::linux::tests::fake::{Fake, LINKED};
use crate::introspect::linux::tests::shapes::Build;
use crate::introspect::tests::PageTables;
use crate::introspect::translate::{AddressSpace, Depth};

const TEXT: u64 = 0xffff_ffff_8100_0000;
const AT: u64 = 0x10_0000;
const PORT: u8 = 0xa9;

/// Guest memory with one page of text.
struct Text(PageTables);

impl Text {
    fn new(offset: u64, bytes: &[u8]) -> Self {
        let mut tables = PageTables::new(2 << 20);
        tables.map(TEXT, AT);
        tables.mem.write_slice(&[0xcc; 4096], GuestAddress(AT)).unwrap();
        tables.mem.write_slice(bytes, GuestAddress(AT + offset)).unwrap();
        Self(tables)
    }

    fn plant(&self, offset: u64) -> Result<Planted, PatchError> {
        let space = AddressSpace::new(self.0.root, Depth::Four);
        plant(&self.0.mem, space, "f", TEXT + offset, PORT)
    }

    fn bytes(&self, offset: u64) -> [u8; 12] {
        let mut bytes = [0; 12];
        self.0.mem.read_slice(&mut bytes, GuestAddress(AT + offset)).unwrap();
        bytes
    }
}

/// What follows an entry: `push %r12`, `push %rbp`, ...
const BODY: [u8; 8] = [0x41, 0x54, 0x55, 0x53, 0x48, 0x89, 0xfb, 0xc3];

#[test]
fn every_known_no_op_gives_way_to_the_port_write_and_nothing_else_does() {
    for (entry, planted) in [
        // endbr64, and what boot makes of it
        (&[0xf3, 0x0f, 0x1e, 0xfa][..], &[0xe6, PORT, 0x66, 0x90][..]),
        (&[0x0f, 0x1f, 0x40, 0xd6], &[0xe6, PORT, 0x66, 0x90]),
        (&[0x0f, 0x1f, 0x40, 0x00], &[0xe6, PORT, 0x66, 0x90]),
        (&[0x66, 0x90], &[0xe6, PORT]),
        (&[0x66, 0x66, 0x90], &[0xe6, PORT, 0x90]),
        (&[0x66, 0x66, 0x66, 0x90], &[0xe6, PORT, 0x66, 0x90]),
        (&[0x66, 0x66, 0x66, 0x66, 0x90], &[0xe6, PORT, 0x0f, 0x1f, 0x00]),
        (&[0x0f, 0x1f, 0x00], &[0xe6, PORT, 0x90]),
        // ftrace's
        (&[0x0f, 0x1f, 0x44, 0x00, 0x00], &[0xe6, PORT, 0x0f, 0x1f, 0x00]),
        (&[0x0f, 0x1f, 0x44, 0x00, 0x08], &[0xe6, PORT, 0x0f, 0x1f, 0x00]),
        (&[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00], &[0xe6, PORT, 0x0f, 0x1f, 0x40, 0x00]),
        (&[0x0f, 0x1f, 0x80, 1, 2, 3, 4], &[0xe6, PORT, 0x0f, 0x1f, 0x44, 0x00, 0x00]),
        (&[0x0f, 0x1f, 0x84, 0, 1, 2, 3, 4], &[0xe6, PORT, 0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00]),
    ] {
        let before = [entry, &BODY].concat();
        let text = Text::new(0x40, &before);
        let probe = text.plant(0x40).unwrap();
        let after = [planted, &BODY].concat();
        let len = before.len().min(12);
        assert_eq!(text.bytes(0x40)[..len], after[..len], "{entry:02x?}");
        assert_eq!((probe.function.as_str(), probe.address), ("f", TEXT + 0x40));
        probe.remove(&text.0.mem);
        assert_eq!(text.bytes(0x40)[..len], before[..len], "{entry:02x?}");
    }
}

#[test]
fn of_endbr64_and_a_call_that_is_off_only_the_first_is_taken() {
    let text = Text::new(0, &[0xf3, 0x0f, 0x1e, 0xfa, 0x0f, 0x1f, 0x44, 0x00, 0x00, 0x55]);
    text.plant(0).unwrap();
    let expected = [0xe6, PORT, 0x66, 0x90, 0x0f, 0x1f, 0x44, 0x00, 0x00, 0x55];
    assert_eq!(text.bytes(0)[..10], expected);
}

#[test]
fn a_function_that_begins_with_its_own_code_is_refused_with_its_bytes() {
    let refusal = |bytes: &[u8]| {
        let text = Text::new(0, bytes);
        let before = text.bytes(0);
        let error = text.plant(0).unwrap_err().to_string();
        assert_eq!(text.bytes(0), before, "nothing was written");
        error
    };
    assert_eq!(
        refusal(&[0x41, 0x57, 0x41, 0x56, 0x55, 0x53, 0x48, 0x83]),
        "cannot probe f at 0xffffffff81000000: its entry 41 57 41 56 55 53 48 83 is not a known no-op; \
         build the kernel with CONFIG_X86_KERNEL_IBT or CONFIG_FUNCTION_TRACER"
    );
    assert_eq!(
        refusal(&[0xe8, 0x12, 0x34, 0x56, 0x78, 0x55, 0x53, 0xc3]),
        "cannot probe f at 0xffffffff81000000: its entry e8 12 34 56 78 55 53 c3 is a call, so ftrace \
         or a kprobe is active on it; turn that off in the guest"
    );
    assert!(refusal(&[0xcc; 8]).contains("a kprobe is active"));
    // A no-op of one byte, a jump, endbr32, and an own probe.
    for bytes in
        [&[0x90, 0x90][..], &[0xeb, 0x02], &[0xf3, 0x0f, 0x1e, 0xfb], &[0xe6, PORT, 0x66, 0x90]]
    {
        assert!(refusal(bytes).contains("is not a known no-op"), "{bytes:02x?}");
    }
}

#[test]
fn an_entry_at_the_end_of_a_page_is_taken_only_if_it_fits() {
    let text = Text::new(4092, &[0xf3, 0x0f, 0x1e, 0xfa]);
    assert!(text.plant(4092).is_ok());
    let text = Text::new(4094, &[0x66, 0x90]);
    assert!(text.plant(4094).is_ok());
    let text = Text::new(4093, &[0x0f, 0x1f, 0x40]);
    assert!(text.plant(4093).unwrap_err().to_string().contains("0f 1f 40 is not a known no-op"));
    let error = text.plant(4096).unwrap_err().to_string();
    assert_eq!(error, "cannot reach the entry of f at 0xffffffff81001000");
}

#[test]
fn a_probe_that_the_guest_has_overwritten_is_left_as_it_is() {
    let text = Text::new(0, &[0xf3, 0x0f, 0x1e, 0xfa]);
    let probe = text.plant(0).unwrap();
    text.0.mem.write_slice(&[0xe8], GuestAddress(AT)).unwrap();
    probe.remove(&text.0.mem);
    assert_eq!(text.bytes(0)[..4], [0xe8, PORT, 0x66, 0x90]);
}

#[test]
fn functions_are_probed_by_name_wherever_the_kernel_is() {
    let fake = Fake::new(Build::New, 8 << 20);
    let linux = fake.find();
    for (name, offset) in [("update_rq_clock", 0x2000), ("psi_account_irqtime", 0x2100)] {
        let probe = linux.probe(name, PORT).unwrap();
        assert_eq!(probe.address, LINKED + fake.slide + offset);
    }
    let error = linux.probe("update_tg_load_avg", PORT).unwrap_err().to_string();
    assert!(
        error.starts_with("cannot probe update_tg_load_avg of System.map: it has no"),
        "{error}"
    );
    let error = linux.probe("runqueues", PORT).unwrap_err().to_string();
    assert!(error.contains("is no function"), "{error}");
    let caller = linux.symbols().caller(LINKED + fake.slide + 0x2105);
    assert_eq!(caller, Some("psi_account_irqtime"));
    // The call may be the last instruction of its function.
    let caller = linux.symbols().caller(LINKED + fake.slide + 0x2100);
    assert_eq!(caller, Some("update_rq_clock"));
}
