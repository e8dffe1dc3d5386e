//! What this host lets the tests do.

use std::process::{Command, Stdio};

use rqscope::kvm::Kvm;

/// Set to 1 where KVM must be there, so that no test is skipped unseen.
const REQUIRE_KVM: &str = "RQSCOPE_REQUIRE_KVM";

/// The host's KVM, or `None` after a line that says why the test is skipped.
pub fn kvm() -> Option<Kvm> {
    match Kvm::open() {
        Ok(kvm) => Some(kvm),
        Err(e) if std::env::var_os(REQUIRE_KVM).is_some_and(|v| v == "1") => {
            panic!("{REQUIRE_KVM}=1, but there is no KVM here: {e}")
        }
        Err(e) => skipped(&format!("no KVM: {e}")),
    }
}

/// `Some` if virtual machines run here; as [`kvm`].
pub fn virtual_machines() -> Option<()> {
    kvm().map(drop)
}

/// Says why a test does nothing.
pub fn skipped<T>(why: &str) -> Option<T> {
    println!("skipped: {why}");
    None
}

/// A command, as leading words, that runs a program in a mount namespace of its own once the shell
/// command `mount` has run there. `None` if this user may not make one, or there is no unshare(1); that
/// `mount` fails for another reason fails the test.
pub fn behind(mount: &str) -> Option<Vec<String>> {
    let script = format!("{mount} && exec \"$0\" \"$@\"");
    for namespace in [&["--mount"][..], &["--map-root-user", "--mount"]] {
        let mut wrapper = vec!["unshare".to_owned()];
        wrapper.extend(namespace.iter().map(|&s| s.to_owned()));
        wrapper.extend(["sh", "-c", &script].map(str::to_owned));
        let Ok(tried) = Command::new(&wrapper[0])
            .args(&wrapper[1..])
            .arg("true")
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
        else {
            return skipped("there is no unshare(1)");
        };
        if tried.status.success() {
            return Some(wrapper);
        }
        let why = String::from_utf8_lossy(&tried.stderr).to_lowercase();
        let may_not = ["unshare failed", "operation not permitted", "permission denied"];
        assert!(may_not.iter().any(|m| why.contains(m)), "{wrapper:?}: {why}");
    }
    skipped("this user may not make a mount namespace")
}
