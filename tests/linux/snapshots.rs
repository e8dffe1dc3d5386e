//! Guests that are ready, on disk.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Kernel, NEWEST, command_in, kernel};
use crate::program::{Done, Running, Scratch};

/// Runs from whatever is in `cache`.
fn run(linux: &Kernel, cache: &Path) -> Done {
    let vmlinux = linux.file("vmlinux");
    let args = ["run", "default", "--set=duration=20ms", "--format=json", "--kernel", &vmlinux];
    Running::start(&mut command_in(cache, args)).wait().ends_with(0)
}

/// The one snapshot of `cache`.
fn only(cache: &Path) -> PathBuf {
    let found = fs::read_dir(cache.join("snapshots")).unwrap();
    let found: Vec<PathBuf> = found.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

fn hash(done: &Done) -> Value {
    done.json()["trace_sha256"].clone()
}

#[test]
fn a_damaged_snapshot_is_refused_and_made_anew() {
    let Some(linux) = kernel(NEWEST) else { return };
    let scratch = Scratch::new();
    let cache = scratch.path("cache");
    let first = run(&linux, &cache);
    assert_eq!(first.stderr, "");
    let [state, memory] = ["state", "memory"].map(|name| only(&cache).join(name));

    let flip = |at: usize| {
        let mut bytes = fs::read(&state).unwrap();
        bytes[at] ^= 1;
        fs::write(&state, bytes).unwrap();
    };
    let cut = || {
        let file = fs::OpenOptions::new().write(true).open(&memory).unwrap();
        file.set_len(64 << 20).unwrap();
    };
    let damages: [&dyn Fn(); 3] = [&|| flip(200), &|| fs::write(&state, b"").unwrap(), &cut];
    for damage in damages {
        damage();
        let rebuilt = run(&linux, &cache).in_one_line().says("booting anew");
        // And the one that was made now is good.
        let again = run(&linux, &cache);
        assert_eq!(again.stderr, "");
        assert_eq!(hash(&again), hash(&rebuilt));
    }
}

#[test]
fn a_snapshot_made_by_hand_is_the_one_that_runs_start_from() {
    let Some(linux) = kernel(NEWEST) else { return };
    let scratch = Scratch::new();
    let cache = scratch.path("cache");
    let vmlinux = linux.file("vmlinux");
    let snapshot = || {
        let args = ["snapshot", "--kernel", &vmlinux];
        Running::start(&mut command_in(&cache, args)).wait().ends_with(0).stdout
    };
    let made = snapshot();
    let path = only(&cache);
    let [was_made, was_kept] = ["made", "kept"].map(|w| format!("{w} {}", path.display()));
    assert!(made.starts_with(&was_made), "{made}");
    let again = snapshot();
    assert!(again.starts_with(&was_kept), "{again}");
    let hashes = [(); 2].map(|()| hash(&run(&linux, &cache)));
    assert_eq!(hashes[0], hashes[1]);
    assert_eq!(only(&cache), path);
    // A guest that is booted anew is at another point of its ticks, and as right.
    let args = ["run", "default", "--set=duration=20ms", "--format=json", "--no-snapshot"];
    let anew = args.iter().copied().chain(["--kernel", &vmlinux]);
    let anew = Running::start(&mut command_in(&cache, anew)).wait().ends_with(0);
    assert_eq!(anew.json()["verdict"], "pass");
}
