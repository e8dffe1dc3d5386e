use super::*;
use proptest::prelude::*;

const DEVICES: [VirtioMmio; 2] =
    [VirtioMmio { address: 0xd000_0000, irq: 9 }, VirtioMmio { address: 0xd000_1000, irq: 10 }];
const ALL: &str = "console=ttyS0 earlyprintk=ttyS0 8250.nr_uarts=1 oops=panic panic=-1 reboot=k";
const LAST: &str = "noapic nolapic tsc=nowatchdog virtio_mmio.device=4K@0xd0000000:9 \
                    virtio_mmio.device=4K@0xd0001000:10";

fn line(user: &str) -> String {
    build(user, false, &DEVICES, LENGTH_MAX).unwrap()
}

#[test]
fn ours_follow_the_users() {
    assert_eq!(line(""), format!("{ALL} {LAST}"));
    assert_eq!(line("nokaslr"), format!("nokaslr {ALL} {LAST}"));
    assert_eq!(line("  a  b "), format!("  a  b {ALL} {LAST}"));
}

/// firecracker#2709, #3023.
#[test]
fn ours_land_before_the_dashes_that_stand_alone() {
    assert_eq!(line("a -- b"), format!("a {ALL} {LAST} -- b"));
    assert_eq!(line("foo --bar"), format!("foo --bar {ALL} {LAST}"));
    assert_eq!(line("foo -- --bar"), format!("foo {ALL} {LAST} -- --bar"));
    assert_eq!(line("--"), format!("{ALL} {LAST} --"));
    assert_eq!(line("-- b -- c"), format!("{ALL} {LAST} -- b -- c"));
    assert_eq!(line("a --"), format!("a {ALL} {LAST} --"));
    assert_eq!(line("a --- -b"), format!("a --- -b {ALL} {LAST}"));
    assert_eq!(line("a --=1"), format!("a --=1 {ALL} {LAST}"));
}

#[test]
fn dashes_inside_quotes_are_a_value_and_dashes_that_are_quoted_stand_alone() {
    assert_eq!(line(r#"a="x -- y" b"#), format!(r#"a="x -- y" b {ALL} {LAST}"#));
    assert_eq!(line(r#""a=x -- y" -- z"#), format!(r#""a=x -- y" {ALL} {LAST} -- z"#));
    assert_eq!(line(r#"a "--" b"#), format!(r#"a {ALL} {LAST} "--" b"#));
    assert_eq!(line(r#"a --"" b"#), format!(r#"a --"" b {ALL} {LAST}"#));
}

#[test]
fn the_user_decides_about_console_and_panics_but_not_about_what_the_machine_needs() {
    let quiet_console = line("console=hvc0");
    assert!(!quiet_console.contains("console=ttyS0"), "{quiet_console}");
    assert!(!line("panic=0").contains("panic=-1"));
    assert!(!line(r#""oops=panic""#).contains(" oops=panic"));
    assert!(!line("8250.nr-uarts=4").contains("nr_uarts=1"));
    assert!(line("-- console=hvc0").contains("console=ttyS0"), "init's, not the kernel's");
    assert!(line("apic=debug tsc=watchdog").ends_with(LAST));
}

#[test]
fn the_console_is_kept_quiet_unless_the_user_says_how_loud() {
    let quiet = |user| build(user, true, &[], LENGTH_MAX).unwrap();
    assert_eq!(quiet("a -- b"), format!("a {ALL} quiet noapic nolapic tsc=nowatchdog -- b"));
    for loud in ["loglevel=8", "debug", "ignore_loglevel", "quiet"] {
        assert_eq!(quiet(loud), format!("{loud} {ALL} noapic nolapic tsc=nowatchdog"));
    }
}

#[test]
fn the_longest_line_is_2047_bytes_and_a_longer_one_is_an_error() {
    let own = line("").len() + 1;
    for (len, fits) in [(2046, true), (2047, true), (2048, false), (2049, false)] {
        let user = "x".repeat(len - own);
        match build(&user, false, &DEVICES, LENGTH_MAX) {
            Ok(line) => assert!(fits && line.len() == len, "{len}"),
            Err(e) => {
                assert!(!fits, "{len}");
                assert_eq!(e, CmdlineError::TooLong { len, own, max: 2047 });
            }
        }
    }
    let refused = build(&"x".repeat(2048), false, &[], LENGTH_MAX).unwrap_err().to_string();
    assert!(refused.contains("shorten it by "), "{refused}");
    assert!(build("abc", false, &[], 100).is_err(), "a kernel that takes less");
    assert!(build("", false, &[], usize::MAX).is_ok());
    let claimed = build(&"x".repeat(2040), false, &[], usize::MAX);
    assert!(claimed.is_err(), "a kernel that claims more than there is room for");
}

#[test]
fn bytes_that_the_kernel_would_not_read_as_written_are_refused() {
    for (user, at, byte) in [("a\0b", 1, 0), ("a b\n", 3, 10), ("\tx", 0, 9), ("x\u{e0}", 1, 0xc3)]
    {
        let refused = build(user, false, &[], LENGTH_MAX);
        assert_eq!(refused, Err(CmdlineError::NotPrintable { at, byte }));
    }
    assert_eq!(
        build(r#"a b="c d"#, false, &[], LENGTH_MAX),
        Err(CmdlineError::OpenQuote { at: 4 })
    );
    assert!(build(r#"a -- "b"#, false, &[], LENGTH_MAX).is_ok(), "init's, and last");
}

/// What the kernel makes of a line, written after lib/cmdline.c and kernel/params.c as prose has it:
/// parameters with their outer quotes off, up to the one that is `--`; then the rest.
fn kernel_reads(line: &str) -> (Vec<String>, Option<String>) {
    let mut rest = line.trim_start_matches(' ');
    let mut parameters = Vec::new();
    while !rest.is_empty() {
        let mut in_quote = false;
        let end = rest.find(|c| {
            in_quote ^= c == '"';
            c == ' ' && !in_quote
        });
        let (token, behind) = rest.split_at(end.unwrap_or(rest.len()));
        rest = behind.trim_start_matches(' ');
        let bare = match token.strip_prefix('"') {
            Some(inner) => inner.strip_suffix('"').unwrap_or(inner),
            None => token,
        };
        if bare == "--" {
            return (parameters, Some(rest.to_owned()));
        }
        parameters.push(bare.to_owned());
    }
    (parameters, None)
}

proptest! {
    #[test]
    fn the_kernel_reads_the_users_parameters_then_ours_and_init_gets_what_it_would_have_got(
        user in r#"([a-c"= -]|--| -- |console=){0,24}"#,
    ) {
        let Ok(line) = build(&user, false, &DEVICES, LENGTH_MAX) else {
            prop_assert!(user.matches('"').count() > 0, "only an open quote is refused");
            return Ok(());
        };
        let (before, init_before) = kernel_reads(&user);
        let (after, init_after) = kernel_reads(&line);
        prop_assert_eq!(init_before, init_after);
        let (theirs, ours) = after.split_at(before.len());
        prop_assert_eq!(theirs, before);
        prop_assert!(ours.join(" ").ends_with(LAST));
    }
}
