//! A guest that is ready, on disk: runs start from it, all from the same bytes, and cost no boot.
//!
//! A snapshot is a directory with two files: `memory`, the guest's memory byte for byte (pages of zeros are
//! holes), and `state`, everything else and what the snapshot is of. A restored guest's memory maps the
//! file privately, so pages come when they are touched and the file never changes.
//!
//! `state` ends with a hash of itself and holds the memory file's length and time of last change: what is cut
//! off, written to, or made for another kernel, initramfs, command line, CPU or program is refused as a
//! whole. Memory itself is not hashed, since that would read all of it: a disk that returns other bytes than
//! it was given goes unnoticed here.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvm_bindings::CpuId;
use sha2::{Digest, Sha256};
use thiserror::Error;
use vm_memory::mmap::MmapRegionError;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::bring_up::{Buffer, Ready};
use super::bus::Bus;
use super::console::Console;
use super::machine::{Machine, MachineError};
use crate::kvm::{Kvm, StateError, VcpuState};
use crate::machine::clock_pages::{ClockPages, ClockPagesState};

/// First bytes of `state`; the digits are the version of the format.
const MAGIC: [u8; 8] = *b"RQSNAP01";
/// Largest `state` that is read, bytes.
const MAX_STATE: u64 = 1 << 20;
/// A page of memory.
const PAGE: usize = 4096;
/// Age of a directory that nobody is at work on any more.
const UNFINISHED: Duration = Duration::from_secs(3600);
/// Snapshots that are kept; the ones longest not used go first.
const KEPT: usize = 12;

/// Why there is no snapshot to start from.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// It is not there.
    #[error("no snapshot")]
    Missing,
    /// It cannot be used.
    #[error("snapshot {}: {why}", path.display())]
    Refused {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A file cannot be written or read.
    #[error("snapshot: {what} {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The vCPU's state cannot be read or set.
    #[error(transparent)]
    State(#[from] StateError),
    /// No machine for it.
    #[error(transparent)]
    Machine(#[from] MachineError),
}

/// What a snapshot is of: a hash of everything that decides what a guest is like when it is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of a guest that boots `kernel` with `initrd` and `cmdline` on a CPU with `cpuid`.
    pub fn new(
        kernel: &[u8],
        initrd: &[u8],
        cmdline: &str,
        memory_size: u64,
        cpuid: &CpuId,
    ) -> Self {
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(&MAGIC);
        part(env!("CARGO_PKG_VERSION").as_bytes());
        // Another build of one version may boot its guests otherwise.
        if let Ok(program) = std::env::current_exe().and_then(fs::metadata) {
            part(&program.len().to_le_bytes());
            part(&program.mtime().to_le_bytes());
            part(&program.mtime_nsec().to_le_bytes());
        }
        part(kernel);
        part(initrd);
        part(cmdline.as_bytes());
        part(&memory_size.to_le_bytes());
        for entry in cpuid.as_slice() {
            part(entry.as_bytes());
        }
        Self(hash.finalize().into())
    }

    /// The directory's name.
    fn name(&self) -> String {
        self.0[..10].iter().map(|b| format!("{b:02x}")).collect()
    }
}

/// Where snapshots are kept.
#[derive(Clone, Debug)]
pub struct Store(PathBuf);

/// The fixed part of `state`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    key: [u8; 32],
    memory_size: u64,
    memory_changed_s: i64,
    memory_changed_ns: i64,
    buffer_address: u64,
    /// 0 for an initrd that takes no plan.
    buffer_size: u64,
    pvclock: u64,
    has_pvclock: u64,
    steal: u64,
    has_steal: u64,
    clock_version: u64,
    origin_ns: u64,
    steal_origin_ns: u64,
}

impl Store {
    /// `snapshots` in the program's cache directory: `RQSCOPE_CACHE`, else `XDG_CACHE_HOME/rqscope`, else
    /// `HOME/.cache/rqscope`. `None` without any of them.
    pub fn default_place() -> Option<Self> {
        let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let cache = var("RQSCOPE_CACHE")
            .or_else(|| var("XDG_CACHE_HOME").map(|dir| dir.join("rqscope")))
            .or_else(|| var("HOME").map(|dir| dir.join(".cache/rqscope")))?;
        Some(Self(cache.join("snapshots")))
    }

    /// Snapshots in this directory.
    pub fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// The directory of the snapshot with that key.
    pub fn path(&self, key: &Key) -> PathBuf {
        self.0.join(key.name())
    }

    /// Keeps a guest that is ready. Whoever reads sees the whole snapshot or none.
    pub fn save(
        &self,
        kvm: &Kvm,
        key: &Key,
        machine: &mut Machine,
        ready: &Ready,
    ) -> Result<(), SnapshotError> {
        let vcpu = machine.vcpu.save(kvm)?;
        let path = self.path(key);
        // Two processes may have one number, where two machines share the directory.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let new = self.0.join(format!(".{}.{}.{now}", key.name(), std::process::id()));
        let kept = self.write(&new, &path, key, machine, &vcpu, ready);
        if kept.is_err() {
            // Half a snapshot is of no use.
            let _ = fs::remove_dir_all(&new);
        }
        self.forget_old(&path);
        kept
    }

    fn write(
        &self,
        new: &Path,
        path: &Path,
        key: &Key,
        machine: &Machine,
        vcpu: &VcpuState,
        ready: &Ready,
    ) -> Result<(), SnapshotError> {
        fs::create_dir_all(new).map_err(io_error("make directory", new))?;
        let memory = new.join("memory");
        let changed = write_memory(&memory, &machine.memory)
            .map_err(io_error("write the guest's memory to", &memory))?;
        let pages = machine.pages.state();
        let header = Header {
            magic: MAGIC,
            key: key.0,
            memory_size: changed.len(),
            memory_changed_s: changed.mtime(),
            memory_changed_ns: changed.mtime_nsec(),
            buffer_address: ready.buffer.map_or(0, |b| b.address),
            buffer_size: ready.buffer.map_or(0, |b| b.size),
            pvclock: pages.pvclock.unwrap_or(0),
            has_pvclock: pages.pvclock.is_some().into(),
            steal: pages.steal.unwrap_or(0),
            has_steal: pages.steal.is_some().into(),
            clock_version: pages.version.into(),
            origin_ns: pages.origin_ns,
            steal_origin_ns: pages.steal_origin_ns,
        };
        let mut bytes = header.as_bytes().to_vec();
        vcpu.put(&mut bytes);
        machine.bus.put(&mut bytes);
        let hash = Sha256::digest(&bytes);
        bytes.extend_from_slice(&hash);
        let state = new.join("state");
        let written = File::create(&state).and_then(|mut f| {
            f.write_all(&bytes)?;
            f.sync_all()
        });
        written.map_err(io_error("write", &state))?;
        // One that is there was refused, or somebody else was faster: it makes room.
        let old = new.with_extension("old");
        let _ = fs::rename(path, &old);
        let moved = fs::rename(new, path).map_err(io_error("move into place", path));
        let _ = fs::remove_dir_all(old);
        moved
    }

    /// Starts a machine from the snapshot with that key.
    pub fn restore(
        &self,
        kvm: &Kvm,
        key: &Key,
        cpuid: &CpuId,
        console: Console,
    ) -> Result<(Machine, Ready), SnapshotError> {
        let path = self.path(key);
        let refused = |why: String| SnapshotError::Refused { path: path.clone(), why };
        let (header, vcpu, bus) = read_state(&path.join("state"), key, &refused)?;

        let memory_path = path.join("memory");
        let file = File::open(&memory_path).map_err(io_error("open", &memory_path))?;
        let found = file.metadata().map_err(io_error("look at", &memory_path))?;
        let expected = (header.memory_size, header.memory_changed_s, header.memory_changed_ns);
        if (found.len(), found.mtime(), found.mtime_nsec()) != expected {
            return Err(refused("its memory has changed since it was made".into()));
        }
        let memory = map(file, header.memory_size)
            .map_err(|e| refused(format!("its memory cannot be mapped: {e}")))?;
        let mut machine = Machine::with_memory(kvm, memory.clone(), cpuid, console)?;
        machine.vcpu.restore(&vcpu)?;
        machine.bus = bus;
        let pages = ClockPagesState {
            pvclock: (header.has_pvclock != 0).then_some(header.pvclock),
            steal: (header.has_steal != 0).then_some(header.steal),
            version: header.clock_version as u32,
            origin_ns: header.origin_ns,
            steal_origin_ns: header.steal_origin_ns,
        };
        machine.pages = ClockPages::restore(memory, pages);
        let buffer = Buffer { address: header.buffer_address, size: header.buffer_size };
        // So that it is not among the oldest. If that fails, it is.
        let _ = File::open(&path).and_then(|dir| dir.set_modified(std::time::SystemTime::now()));
        Ok((machine, Ready { buffer: (buffer.size != 0).then_some(buffer) }))
    }

    /// Removes all but the newest snapshots.
    fn forget_old(&self, keep: &Path) {
        let Ok(entries) = fs::read_dir(&self.0) else { return };
        let dated = |e: fs::DirEntry| Some((e.metadata().ok()?.modified().ok()?, e.path()));
        let hidden =
            |path: &Path| path.file_name().is_some_and(|n| n.as_encoded_bytes()[0] == b'.');
        let (unfinished, mut dirs): (Vec<_>, Vec<_>) =
            entries.flatten().filter_map(dated).partition(|(_, path)| hidden(path));
        // What a process that was killed has left; others may be at work on theirs.
        for (changed, path) in unfinished {
            if changed.elapsed().is_ok_and(|age| age > UNFINISHED) {
                let _ = fs::remove_dir_all(path);
            }
        }
        dirs.retain(|(_, path)| path != keep);
        dirs.sort();
        let surplus = (dirs.len() + 1).saturating_sub(KEPT);
        for (_, dir) in dirs.into_iter().take(surplus) {
            let _ = fs::remove_dir_all(dir);
        }
    }
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SnapshotError {
    move |source| SnapshotError::Io { what, path: path.to_owned(), source }
}

fn read_state(
    path: &Path,
    key: &Key,
    refused: &dyn Fn(String) -> SnapshotError,
) -> Result<(Header, VcpuState, Bus), SnapshotError> {
    let file = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(SnapshotError::Missing),
        other => other.map_err(io_error("open", path))?,
    };
    let mut bytes = Vec::new();
    file.take(MAX_STATE).read_to_end(&mut bytes).map_err(io_error("read", path))?;
    let damaged = || refused("its state is damaged or cut off".into());
    let (body, hash) =
        bytes.len().checked_sub(32).map(|n| bytes.split_at(n)).ok_or_else(damaged)?;
    if Sha256::digest(body).as_slice() != hash {
        return Err(damaged());
    }
    let (header, mut rest) = Header::read_from_prefix(body).map_err(|_| damaged())?;
    if header.magic != MAGIC {
        return Err(refused("it is from another version of this program".into()));
    }
    if header.key != key.0 {
        return Err(refused("it is of another guest".into()));
    }
    let vcpu = VcpuState::take(&mut rest).ok_or_else(damaged)?;
    let bus = Bus::take(&mut rest).map_err(|e| refused(format!("its devices: {e}")))?;
    if rest.is_empty() { Ok((header, vcpu, bus)) } else { Err(damaged()) }
}

/// Writes the memory, pages of zeros as holes.
fn write_memory(path: &Path, memory: &GuestMemoryMmap) -> io::Result<fs::Metadata> {
    use vm_memory::GuestMemoryBackend;
    let file = File::create(path)?;
    let size = memory.last_addr().0 + 1;
    file.set_len(size)?;
    let mut run = Vec::with_capacity(1 << 20);
    let mut run_at = 0;
    let mut page = [0u8; PAGE];
    for at in (0..size).step_by(PAGE) {
        let len = PAGE.min((size - at) as usize);
        memory.read_slice(&mut page[..len], GuestAddress(at)).map_err(io::Error::other)?;
        let zeros = page[..len].iter().all(|b| *b == 0);
        if (zeros || run.len() + len > run.capacity()) && !run.is_empty() {
            file.write_all_at(&run, run_at)?;
            run.clear();
        }
        if !zeros {
            if run.is_empty() {
                run_at = at;
            }
            run.extend_from_slice(&page[..len]);
        }
    }
    if !run.is_empty() {
        file.write_all_at(&run, run_at)?;
    }
    file.sync_all()?;
    file.metadata()
}

/// Guest memory that is `file` until the guest writes to it.
fn map(file: File, size: u64) -> Result<GuestMemoryMmap, Box<dyn std::error::Error>> {
    let size = usize::try_from(size)?;
    let offset = FileOffset::new(file, 0);
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_NORESERVE);
    let region: Result<MmapRegion, MmapRegionError> =
        MmapRegion::build(Some(offset), size, protection, flags);
    let region = GuestRegionMmap::new(region?, GuestAddress(0))
        .ok_or("a region that ends beyond all addresses")?;
    Ok(GuestMemoryMmap::from_regions(vec![region])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_as_it_was_and_a_guest_never_writes_to_the_file() {
        let dir = std::env::temp_dir().join(format!("rqscope-snapshot-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("memory");
        let size = 4u64 << 20;
        let memory =
            GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), size as usize)]).unwrap();
        let words = [(0u64, 1u64), (4096, 2), (3 << 20, 3), (size - 8, 4)];
        for (at, value) in words {
            memory.write_obj(value, GuestAddress(at)).unwrap();
        }
        assert_eq!(write_memory(&path, &memory).unwrap().len(), size);
        for _ in 0..2 {
            let again = map(File::open(&path).unwrap(), size).unwrap();
            for (at, value) in words {
                assert_eq!(again.read_obj::<u64>(GuestAddress(at)).unwrap(), value);
                again.write_obj(99u64, GuestAddress(at)).unwrap();
            }
            assert_eq!(again.read_obj::<u64>(GuestAddress(2 << 20)).unwrap(), 0);
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_key_changes_with_every_part_and_not_with_where_one_ends() {
        let cpuid = CpuId::from_entries(&[Default::default()]).unwrap();
        let none = CpuId::from_entries(&[]).unwrap();
        let keys = [
            Key::new(b"k", b"i", "c", 1, &cpuid),
            Key::new(b"ki", b"", "c", 1, &cpuid),
            Key::new(b"k", b"ic", "", 1, &cpuid),
            Key::new(b"k", b"i", "c", 2, &cpuid),
            Key::new(b"k", b"i", "c", 1, &none),
        ];
        for (i, a) in keys.iter().enumerate() {
            assert!(keys[i + 1..].iter().all(|b| a != b));
        }
        assert_eq!(keys[0], Key::new(b"k", b"i", "c", 1, &cpuid));
    }

    #[test]
    fn a_state_that_is_cut_off_flipped_or_of_another_guest_is_refused() {
        let dir = std::env::temp_dir().join(format!("rqscope-state-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("state");
        let key = Key([7; 32]);
        let refused = |why: String| SnapshotError::Refused { path: dir.clone(), why };
        let read = || read_state(&path, &key, &refused).map(drop).unwrap_err().to_string();
        assert_eq!(read(), "no snapshot");
        let mut header = Header::read_from_bytes(&[0; size_of::<Header>()]).unwrap();
        let write = |header: &Header| {
            let hash = Sha256::digest(header.as_bytes());
            fs::write(&path, [header.as_bytes(), &hash].concat()).unwrap();
        };
        write(&header);
        assert!(read().contains("another version"));
        header.magic = MAGIC;
        write(&header);
        assert!(read().contains("another guest"));
        header.key = key.0;
        write(&header);
        assert!(read().contains("damaged or cut off"), "there is no vCPU in it");
        let whole = fs::read(&path).unwrap();
        for cut in [0, 31, 32, whole.len() - 1] {
            fs::write(&path, &whole[..cut]).unwrap();
            assert!(read().contains("damaged or cut off"));
        }
        let mut flipped = whole;
        flipped[40] ^= 1;
        fs::write(&path, flipped).unwrap();
        assert!(read().contains("damaged or cut off"));
        fs::remove_dir_all(&dir).unwrap();
    }
}
