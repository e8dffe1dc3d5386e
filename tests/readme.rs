//! The README shows what the program prints.

use crate::program::rqscope;

/// The guest and the host's KVM differ between the README's machine and this one; nothing else may.
fn without_the_machine(line: &str) -> String {
    let parts =
        line.split(" · ").filter(|p| !p.starts_with("guest ") && !p.starts_with("host kvm "));
    let line: Vec<&str> = parts.collect();
    line.join(" · ").replace("--guest model", "--guest firmware")
}

#[test]
fn the_comparison_in_the_readme_works_as_printed() {
    let readme = include_str!("../README.md");
    let section = readme.split("## Side by side").nth(1).unwrap();
    let command = section.split("```\n").nth(1).unwrap().trim_end();
    let words = command.split_whitespace().skip(1).map(|word| word.trim_matches('\''));
    let page = rqscope(words).ends_with(0).stdout;
    assert!(page.contains("pass  series.psi_irq_full.*: 12 keys are equal"), "{page}");
    assert!(page.contains("psi_account_irqtime.seqcount_writes"), "{page}");
}

#[test]
fn the_readme_shows_the_output_of_the_default_run() {
    let readme = include_str!("../README.md");
    let block = readme.split("<!-- output of `rqscope run`").nth(1).unwrap();
    let shown = block.split("```\n").nth(1).unwrap();
    let printed = rqscope(["run", "--guest", "model", "--color", "never"]).ends_with(0).stdout;
    let lines = |text: &str| text.lines().map(without_the_machine).collect::<Vec<_>>();
    assert_eq!(lines(shown), lines(&printed), "run scripts/update-readme");
}
