//! Text that came from a user: made safe for a terminal, cut to fit, quoted for a shell.

/// Does `c` print as itself, taking one place or more and changing nothing else? Control
/// characters, direction marks and combining characters do not.
fn prints(c: char) -> bool {
    matches!(c, '"' | '\'' | '\\') || c.escape_debug().len() == 1
}

/// `text` with everything that is not plain print written as an escape.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if prints(c) { out.push(c) } else { out.extend(c.escape_debug()) }
    }
    out
}

/// At most `max` characters of `text`, escaped; a `…` tells that it was longer.
pub(super) fn clipped(text: &str, max: usize) -> String {
    let text = escaped(text);
    match text.char_indices().nth(max) {
        None => text,
        Some(_) => text.chars().take(max.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// `text` in lines of at most `width` characters, broken at spaces where there are any.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split(' ').filter(|w| !w.is_empty()) {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            lines.push(String::new());
            used = 0;
        }
        if used > 0 {
            lines.last_mut().into_iter().for_each(|l| l.push(' '));
            used += 1;
        }
        for c in word.chars() {
            if used == width {
                lines.push(String::new());
                used = 0;
            }
            lines.last_mut().into_iter().for_each(|l| l.push(c));
            used += 1;
        }
    }
    lines
}

/// `argument` so that a POSIX shell reads it back as it is. Characters that do not print become
/// escapes in `$'...'` (POSIX.1-2024; bash, zsh and ksh have had it for long).
pub(super) fn quoted(argument: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || "-_./:,+@%=".contains(c);
    // zsh takes a leading `=` for the path of a command.
    if !argument.is_empty() && !argument.starts_with('=') && argument.chars().all(bare) {
        return argument.to_owned();
    }
    if argument.chars().all(prints) {
        return format!("'{}'", argument.replace('\'', r"'\''"));
    }
    let mut out = String::from("$'");
    for c in argument.chars() {
        match c {
            '\'' | '\\' => out.extend(['\\', c]),
            c if prints(c) => out.push(c),
            // Always three digits, so that a digit after it is not taken for one of its own.
            c => {
                c.encode_utf8(&mut [0; 4]).bytes().for_each(|b| out.push_str(&format!("\\{b:03o}")))
            }
        }
    }
    out.push('\'');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    /// What a shell makes of one quoted word, written naively.
    fn unquoted(word: &str) -> String {
        let mut bytes = Vec::new();
        let mut rest = word.chars().peekable();
        let push = |bytes: &mut Vec<u8>, c: char| {
            bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        };
        while let Some(c) = rest.next() {
            match c {
                '$' if rest.peek() == Some(&'\'') => {
                    rest.next();
                    while let Some(c) = rest.next().filter(|c| *c != '\'') {
                        match c {
                            '\\' if rest.peek().is_some_and(char::is_ascii_digit) => {
                                let octal: String = rest.by_ref().take(3).collect();
                                bytes.push(u8::from_str_radix(&octal, 8).unwrap());
                            }
                            '\\' => push(&mut bytes, rest.next().unwrap()),
                            c => push(&mut bytes, c),
                        }
                    }
                }
                '\'' => {
                    while let Some(c) = rest.next().filter(|c| *c != '\'') {
                        push(&mut bytes, c);
                    }
                }
                '\\' => push(&mut bytes, rest.next().unwrap()),
                c => push(&mut bytes, c),
            }
        }
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn plain_arguments_stay_bare_and_others_are_quoted() {
        assert_eq!(quoted("irq.nic.rate=20kHz"), "irq.nic.rate=20kHz");
        assert_eq!(quoted("irq[0].rate=20kHz"), "'irq[0].rate=20kHz'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted("a\x1b[31m1"), r"$'a\033[31m1'");
        assert_eq!(quoted("~/$HOME `x` \"y\" \\"), "'~/$HOME `x` \"y\" \\'");
    }

    #[test]
    fn a_real_shell_reads_the_arguments_back() {
        let odd = ["", "a b", "it's", "$HOME", "`id`", "a\\nb", "\"", "*", "é", "#x", "!1", "-n"];
        let words: Vec<String> = odd.iter().map(|a| quoted(a)).collect();
        let script = format!("printf '<%s>' {}", words.join(" "));
        let out = Command::new("sh").arg("-c").arg(script).output().unwrap();
        let expected: String = odd.iter().map(|a| format!("<{a}>")).collect();
        assert_eq!(String::from_utf8(out.stdout).unwrap(), expected);
    }

    #[test]
    fn text_that_would_steer_the_terminal_is_escaped() {
        assert_eq!(escaped("a\x1b[2Jb\n\u{202e}c\u{9b}"), r"a\u{1b}[2Jb\n\u{202e}c\u{9b}");
        assert_eq!(escaped(r#"it's "é" \ 猫"#), r#"it's "é" \ 猫"#);
        assert_eq!(clipped("abcdef", 6), "abcdef");
        assert_eq!(clipped("abcdefg", 6), "abcde…");
    }

    #[test]
    fn lines_break_at_spaces_and_inside_words_that_are_too_long() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(wrapped("", 10), [""]);
    }

    proptest! {
        #[test]
        fn quoting_round_trips(argument in any::<String>(), ascii in "[ -~\t\n\x1b'\\\\]{0,20}") {
            for argument in [&argument, &ascii] {
                prop_assert_eq!(&unquoted(&quoted(argument)), argument);
                prop_assert!(quoted(argument).chars().all(prints));
            }
        }

        #[test]
        fn no_line_is_wider_than_asked_and_no_word_is_lost(text in "[a-z ]{0,200}", width in 1_usize..40) {
            let lines = wrapped(&text, width);
            prop_assert!(lines.iter().all(|l| l.chars().count() <= width));
            let letters = |t: &str| t.chars().filter(|c| *c != ' ').collect::<String>();
            prop_assert_eq!(letters(&lines.concat()), letters(&text));
        }
    }
}
