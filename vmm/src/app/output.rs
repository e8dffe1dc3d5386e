//! `--out DIR`: the scenario as run, the trace, the result.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use thiserror::Error;

use crate::run::RunOutcome;
use crate::scenario::Scenario;
use crate::trace::Trace;

/// The output directory cannot be used.
#[derive(Debug, Error)]
pub enum OutputError {
    /// Something lies in it already.
    #[error("--out {}: not empty; name a new directory or empty this one", .0.display())]
    NotEmpty(PathBuf),
    /// It is a file.
    #[error("--out {}: is not a directory; name a new one", .0.display())]
    NotADirectory(PathBuf),
    /// A file or the directory cannot be made, read or written.
    #[error("--out: {what} {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// An output directory.
#[derive(Clone, Debug)]
pub struct Output {
    dir: PathBuf,
}

impl Output {
    /// Makes the directory, or takes an empty one, and writes `scenario.toml`.
    pub fn create(dir: &Path, scenario: &Scenario) -> Result<Self, OutputError> {
        let output = Self::empty(dir)?;
        output.write("scenario.toml", scenario.to_toml().as_bytes())?;
        Ok(output)
    }

    /// Makes the directory, or takes an empty one.
    pub fn empty(dir: &Path) -> Result<Self, OutputError> {
        let fail = |what| move |source| OutputError::Io { what, path: dir.to_path_buf(), source };
        if fs::metadata(dir).is_ok_and(|found| !found.is_dir()) {
            return Err(OutputError::NotADirectory(dir.to_path_buf()));
        }
        fs::create_dir_all(dir).map_err(fail("make directory"))?;
        let mut entries = fs::read_dir(dir).map_err(fail("list directory"))?;
        if entries.next().is_some() {
            return Err(OutputError::NotEmpty(dir.to_path_buf()));
        }
        Ok(Self { dir: dir.to_path_buf() })
    }

    /// The file `name`, which is not there yet.
    pub fn file(&self, name: &str) -> Result<File, OutputError> {
        let path = self.dir.join(name);
        let fail = |source| OutputError::Io { what: "write", path: path.clone(), source };
        File::create_new(&path).map_err(fail)
    }

    /// A trace into `trace.jsonl`, for a run that `stop` ends.
    pub fn trace(&self, stop: Arc<AtomicBool>) -> Result<Trace, OutputError> {
        let path = self.dir.join("trace.jsonl");
        let fail = |source| OutputError::Io { what: "write", path: path.clone(), source };
        Trace::written(File::create_new(&path).map_err(fail)?, stop).map_err(fail)
    }

    /// Writes `result.json` and `report.txt`, replacing those of an earlier pass.
    pub fn finish(&self, outcome: &RunOutcome) -> Result<(), OutputError> {
        let mut json = crate::report::json(outcome).to_string();
        json.push('\n');
        self.write("result.json", json.as_bytes())?;
        let mut page = Vec::new();
        // Writing to memory does not fail.
        let _ = crate::report::page(&mut page, outcome, false);
        self.write("report.txt", &page)
    }

    /// Writes a file whole: a reader sees the old one or the new one.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), OutputError> {
        let path = self.dir.join(name);
        let new = self.dir.join(format!(".{name}.new"));
        let fail = |source| OutputError::Io { what: "write", path: path.clone(), source };
        let written = File::create(&new)
            .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&new, &path));
        written.map_err(|source| {
            // Half a file is of no use, and an older one would contradict what is printed.
            let _ = fs::remove_file(&new);
            let _ = fs::remove_file(&path);
            fail(source)
        })
    }
}
