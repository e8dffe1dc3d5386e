//! Runs the program and collects what it said.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Far longer than any run of these tests takes: one that is not over by then hangs.
const DEADLINE: Duration = Duration::from_secs(180);
/// Distance of two looks at a condition.
const LOOK: Duration = Duration::from_millis(2);

/// The program under test.
pub const RQSCOPE: &str = env!("CARGO_BIN_EXE_rqscope");

/// A program that ended.
#[derive(Debug)]
pub struct Done {
    /// Its exit code; `None` if a signal killed it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Done {
    /// Its exit code is `code` and it did not panic.
    #[track_caller]
    pub fn ends_with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.stdout, self.stderr);
        assert!(!self.stderr.contains("panicked at '"), "{}", self.stderr);
        assert!(!self.stderr.contains("thread '"), "{}", self.stderr);
        self
    }

    /// Standard error contains `text`.
    #[track_caller]
    pub fn says(self, text: &str) -> Self {
        assert!(self.stderr.contains(text), "{text:?} is not in {:?}", self.stderr);
        self
    }

    /// Standard error is one line.
    #[track_caller]
    pub fn in_one_line(self) -> Self {
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        self
    }

    /// Standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}\n{}", self.stdout, self.stderr))
    }
}

/// A program that runs.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: Receiver<Vec<u8>>,
    stderr: Receiver<Vec<u8>>,
}

/// Sends process `pid` a signal, by its name without `SIG`.
pub fn signal(pid: u32, name: &str) {
    let kill = format!("kill -{name} {pid}");
    let status = Command::new("sh").args(["-c", &kill]).status().expect("sh runs");
    assert!(status.success(), "{kill}: {status}");
}

/// Reads `pipe` to its end on a thread of its own.
fn collect(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // A pipe that breaks ends here too; what came is checked.
            let _ = pipe.read_to_end(&mut bytes);
        }
        let _ = send.send(bytes);
    });
    receive
}

impl Running {
    /// Starts `command` with pipes for its output.
    pub fn start(command: &mut Command) -> Self {
        Self::start_into(command, Stdio::piped())
    }

    /// Starts `command` with this standard output.
    pub fn start_into(command: &mut Command, stdout: impl Into<Stdio>) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let (stdout, stderr) = (collect(child.stdout.take()), collect(child.stderr.take()));
        Self { child, stdout, stderr }
    }

    /// Its process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal, by its name without `SIG`.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Has it ended?
    pub fn ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_some()
    }

    /// Waits until `condition` holds, which it must before the program ends.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, mut condition: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !condition() {
            if self.ended() || begin.elapsed() > DEADLINE {
                let _ = self.child.kill();
                panic!("ended or hung before {what}");
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits for its end.
    pub fn wait(mut self) -> Done {
        let mut text = |from: &Receiver<Vec<u8>>| match from.recv_timeout(DEADLINE) {
            Ok(bytes) => String::from_utf8(bytes).expect("the program writes UTF-8"),
            Err(_) => {
                let _ = self.child.kill();
                panic!("the program hangs");
            }
        };
        let (stdout, stderr) = (text(&self.stdout), text(&self.stderr));
        let code = self.child.wait().expect("a child can be waited for").code();
        Done { code, stdout, stderr }
    }
}

/// The program with arguments, free of what the environment says about colours.
pub fn command(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    command_after(&[], args)
}

/// As [`command`], behind the words of a wrapper.
pub fn command_after(
    wrapper: &[String],
    args: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Command {
    let mut words = wrapper.iter().map(String::as_str).chain([RQSCOPE]);
    let mut command = Command::new(words.next().unwrap_or(RQSCOPE));
    command.args(words).args(args).env_remove("NO_COLOR").env("TERM", "xterm");
    command
}

/// Runs the program to its end.
pub fn rqscope(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Done {
    Running::start(&mut command(args)).wait()
}

/// Runs `scenario` on `guest` with overrides, which must end with `code`; the JSON result.
#[track_caller]
pub fn run_json(scenario: &str, guest: &str, sets: &[&str], code: i32) -> Value {
    let mut args = vec!["run", scenario, "--guest", guest, "--format", "json"];
    args.extend(sets.iter().flat_map(|set| ["--set", set]));
    rqscope(args).ends_with(code).json()
}

/// Overrides for a short run with one pass.
pub const SHORT: [&str; 2] = ["duration=20ms", "policy.compare=[]"];

/// The text at `pointer` of a JSON value.
#[track_caller]
pub fn text<'a>(json: &'a Value, pointer: &str) -> &'a str {
    json.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("{pointer} in {json:#}"))
}

/// The number at `pointer` of a JSON value.
#[track_caller]
pub fn number(json: &Value, pointer: &str) -> i64 {
    json.pointer(pointer).and_then(Value::as_i64).unwrap_or_else(|| panic!("{pointer} in {json:#}"))
}

/// Names of the checks that failed.
pub fn failed_checks(json: &Value) -> Vec<&str> {
    let checks = json["checks"].as_array().expect("checks is an array");
    let failed = checks.iter().filter(|c| c["status"] == "fail");
    failed.map(|c| text(c, "/name")).collect()
}

/// A directory of one test's own, gone at its end.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new, empty directory.
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).expect("cargo gives tests a directory");
        Self(path)
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A path in it, as an argument.
    pub fn arg(&self, name: &str) -> String {
        let path = self.path(name).into_os_string();
        path.into_string().expect("the scratch directory's path is UTF-8")
    }

    /// A file in it with these bytes, as an argument.
    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        fs::write(self.path(name), bytes).expect("the scratch directory takes files");
        self.arg(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Left behind at worst.
        let _ = fs::remove_dir_all(&self.0);
    }
}
