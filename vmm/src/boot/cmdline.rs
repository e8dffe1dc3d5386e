//! The kernel's command line: the user's, with what this machine needs put behind it, but before a
//! `--`, behind which parameters are init's.
//!
//! The kernel splits the line in `next_arg` (lib/cmdline.c, Linux 7.3) and stops at the first
//! parameter without a value that is `--` once its quotes are off (kernel/params.c, `parse_args`).
//! linux-loader's `Cmdline` looks for ` -- ` whatever the quotes, so the line is read here as the kernel
//! reads it.

use std::fmt;

use thiserror::Error;

use super::layout::VIRTIO_MMIO_SIZE;

/// The longest line, bytes without the NUL: `COMMAND_LINE_SIZE` - 1 (arch/x86/include/asm/setup.h).
pub const LENGTH_MAX: usize = 2047;

/// What the machine cannot do without. It has no APIC, and its TSC runs on while the guest's time stands
/// still: the watchdog must not compare the two. The last of two values wins, so these go last and a
/// user's line cannot take them back.
const NEEDED: [&str; 3] = ["noapic", "nolapic", "tsc=nowatchdog"];

/// What the user's line decides if it has a parameter of the same name: output from the first message
/// on, one serial port probed and not four; an oops ends the guest as a panic does, and a panic resets
/// the machine at once through the keyboard controller, which is an exit of its own (a triple fault,
/// `reboot=t`, would look like a crash).
const PREFERRED: [&str; 6] =
    ["console=ttyS0", "earlyprintk=ttyS0", "8250.nr_uarts=1", "oops=panic", "panic=-1", "reboot=k"];

/// What keeps the console to warnings and worse, and the parameters by which a user says how loud it is
/// to be.
const QUIET: &str = "quiet";
const LOUDNESS: [&str; 4] = [QUIET, "loglevel", "debug", "ignore_loglevel"];

/// Why a command line cannot be given to a kernel.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CmdlineError {
    /// A NUL would end the line, and 0xa0, which is in the UTF-8 of many letters, is a space to the
    /// kernel (lib/ctype.c).
    #[error("kernel command line: byte {at} is {byte:#04x}: expected printable ASCII only")]
    NotPrintable {
        /// Where, from 0.
        at: usize,
        /// The byte.
        byte: u8,
    },
    /// A quote without its end would swallow what follows.
    #[error("kernel command line: the quote at byte {at} has no end")]
    OpenQuote {
        /// Where, from 0.
        at: usize,
    },
    /// Kernels cut longer lines off without a word.
    #[error(
        "kernel command line: {len} bytes with the {own} that rqscope adds, the kernel takes {max}: \
         shorten it by {}",
        len - max
    )]
    TooLong {
        /// Bytes in all.
        len: usize,
        /// Bytes that are not the user's.
        own: usize,
        /// The kernel's limit, without the NUL.
        max: usize,
    },
}

/// A virtio-mmio device that the kernel learns of from its command line
/// (drivers/virtio/virtio_mmio.c, `virtio_mmio.device=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtioMmio {
    /// Guest physical address of its registers, [`VIRTIO_MMIO_SIZE`] bytes.
    pub address: u64,
    /// Its interrupt line.
    pub irq: u8,
}

impl fmt::Display for VirtioMmio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, irq } = self;
        write!(f, "virtio_mmio.device={}K@{address:#x}:{irq}", VIRTIO_MMIO_SIZE >> 10)
    }
}

/// The whole line for a kernel that takes at most `max` bytes without the NUL. With `quiet` only warnings
/// and worse reach the console, unless the user's line says how loud it is to be.
pub fn build(
    user: &str,
    quiet: bool,
    devices: &[VirtioMmio],
    max: usize,
) -> Result<String, CmdlineError> {
    let strange = user.bytes().zip(0..).find(|(byte, _)| !matches!(byte, b' '..=b'~'));
    if let Some((byte, at)) = strange {
        return Err(CmdlineError::NotPrintable { at, byte });
    }
    let (theirs, inits) = split(user)?;
    let given =
        |ours: &str| parameters(theirs).any(|p| name(&theirs[p.start..p.end]) == name(ours));
    let quiet = quiet && !LOUDNESS.iter().any(|p| given(p));
    let preferred = PREFERRED.iter().filter(|p| !given(p)).chain(quiet.then_some(&QUIET));
    let ours = preferred.chain(&NEEDED).map(|p| p.to_string());
    let ours = ours.chain(devices.iter().map(|d| d.to_string()));

    let mut line = theirs.trim_end_matches(' ').to_owned();
    for parameter in ours {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&parameter);
    }
    if !inits.is_empty() {
        line.push(' ');
        line.push_str(inits);
    }
    let max = max.min(LENGTH_MAX);
    if line.len() > max {
        let own = line.len().saturating_sub(user.len());
        return Err(CmdlineError::TooLong { len: line.len(), own, max });
    }
    Ok(line)
}

/// The kernel's part of a line, and init's, which begins with `--` if there is one.
fn split(line: &str) -> Result<(&str, &str), CmdlineError> {
    for p in parameters(line) {
        if let Some(at) = p.open_quote {
            return Err(CmdlineError::OpenQuote { at });
        }
        if matches!(&line[p.start..p.end], "--" | "\"--\"") {
            return Ok(line.split_at(p.start));
        }
    }
    Ok((line, ""))
}

/// A parameter's name, in which `-` and `_` are the same (kernel/params.c, `parameq`).
fn name(parameter: &str) -> String {
    let name = parameter.trim_start_matches('"').split('=').next().unwrap_or_default();
    name.trim_end_matches('"').replace('-', "_")
}

/// Where a parameter is in its line, quotes and all.
struct Parameter {
    start: usize,
    end: usize,
    /// Its last quote has no end.
    open_quote: Option<usize>,
}

/// Parameters are what spaces outside of quotes separate.
fn parameters(line: &str) -> impl Iterator<Item = Parameter> {
    let bytes = line.as_bytes();
    let mut next = 0;
    std::iter::from_fn(move || {
        let start = next + bytes.get(next..)?.iter().position(|b| *b != b' ')?;
        let mut open_quote = None;
        let mut end = start;
        while end < bytes.len() && (open_quote.is_some() || bytes[end] != b' ') {
            if bytes[end] == b'"' {
                open_quote = if open_quote.is_some() { None } else { Some(end) };
            }
            end += 1;
        }
        next = end;
        Some(Parameter { start, end, open_quote })
    })
}

#[cfg(test)]
mod tests;
