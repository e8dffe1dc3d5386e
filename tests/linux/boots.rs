//! The ways to boot a kernel: what is read of the guest is the same.

use serde_json::Value;

use super::{NEWEST, boot_json_on, kernel};
use crate::program::{RQSCOPE, text};
use crate::repeatability::the_books_balance;

/// What a run has shown, apart from that which depends on when in its ticks' period a guest was when the
/// run began.
fn shown(json: &Value) -> Value {
    let part = |list: &Value, keys: &[&str]| -> Vec<Value> {
        let list = list.as_array().expect("a list");
        list.iter().map(|entry| keys.iter().map(|key| entry[*key].clone()).collect()).collect()
    };
    let lines = &json["injected"]["lines"];
    serde_json::json!([
        json["verdict"],
        json["elapsed_ns"],
        json["psi_account_irqtime"]["policy"],
        json["update_tg_load_avg"]["clock"],
        json["injected"]["steal_ns"],
        part(lines, &["name"]),
        part(lines, &["raised"])[1..],
        part(&json["psi_groups"], &["path"]),
        part(&json["tasks"], &["pid", "name", "group"]),
    ])
}

/// `other` has shown what `one` has. What a check is about may not be there for it to judge: a System.map
/// has no sizes of functions.
#[track_caller]
fn shown_alike(one: &Value, other: &Value) {
    assert_eq!(shown(one), shown(other));
    let checks = |json: &Value| json["checks"].as_array().expect("a list").clone();
    for (one, other) in checks(one).iter().zip(&checks(other)) {
        assert_eq!(one["name"], other["name"]);
        let status = &other["status"];
        assert!(*status == one["status"] || *status == "not-built-in", "{one} {other}");
    }
}

#[test]
fn a_bzimage_wherever_it_puts_itself_reads_as_its_vmlinux_does() {
    let Some(linux) = kernel(NEWEST) else { return };
    let on = |file: &str, more: &[&str]| {
        let json = boot_json_on(file, "default", &[&["--set=duration=40ms"], more].concat());
        the_books_balance(&json);
        json
    };
    let [vmlinux, bzimage, map] = ["vmlinux", "bzImage", "System.map"].map(|name| linux.file(name));
    let plain = on(&vmlinux, &[]);
    shown_alike(&plain, &on(&bzimage, &["--symbols", &map, "--cmdline", "nokaslr"]));
    for symbols in [&map, &vmlinux] {
        shown_alike(&plain, &on(&bzimage, &["--symbols", symbols]));
    }
}

#[test]
fn the_command_of_the_report_repeats_the_run() {
    let Some(linux) = kernel(NEWEST) else { return };
    let first = linux.json("default", &["duration=20ms"], 0);
    let repeat = text(&first, "/repeat").strip_prefix("rqscope ").unwrap();
    let script = format!("exec \"$0\" {repeat} --format json");
    let mut again = std::process::Command::new("sh");
    again.args(["-c", &script, RQSCOPE]);
    again.env("RQSCOPE_CACHE", &*super::CACHE);
    let again: Value = serde_json::from_slice(&again.output().unwrap().stdout).unwrap();
    assert_eq!(again["trace_sha256"], first["trace_sha256"]);
}
