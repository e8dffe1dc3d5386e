//! Saved devices as bytes.
//!
//! A device is saved by appending to what was saved before it, and restored from the front of what is
//! left, so that a machine's devices are saved one behind the other without a frame around each.

use thiserror::Error;
use zerocopy::{Immutable, IntoBytes, TryFromBytes};

/// Bytes that are not what a device saved.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StateError {
    /// Too few bytes are left.
    #[error("restore {device}: expected {expected} bytes, got {got}")]
    Short {
        /// The device.
        device: &'static str,
        /// Bytes that it saves.
        expected: usize,
        /// Bytes that are left.
        got: usize,
    },
    /// A boolean, an enumeration or an unused byte holds another value.
    #[error("restore {device}: a field holds a value that is not one of its own")]
    Value {
        /// The device.
        device: &'static str,
    },
    /// A field is out of its bounds.
    #[error("restore {device}: {field} is {got:#x}, expected {expected}")]
    Field {
        /// The device.
        device: &'static str,
        /// The field.
        field: &'static str,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        got: u64,
    },
}

/// A device that can be saved and restored.
pub trait State: Sized {
    /// Appends the device to `bytes`.
    fn save(&self, bytes: &mut Vec<u8>);

    /// Takes the device from the front of `bytes`. These may be anything: what is restored is
    /// something that a device can have become by what a guest does to it, or it is refused.
    fn restore(bytes: &mut &[u8]) -> Result<Self, StateError>;
}

/// A byte between fields, or after them, so that there is no padding. Another value is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, TryFromBytes, Immutable)]
#[repr(u8)]
pub(super) enum Unused {
    Zero = 0,
}

/// Takes a `T` from the front of `bytes`.
pub(super) fn take<T: TryFromBytes>(
    device: &'static str,
    bytes: &mut &[u8],
) -> Result<T, StateError> {
    let expected = size_of::<T>();
    let Some((front, rest)) = bytes.split_at_checked(expected) else {
        return Err(StateError::Short { device, expected, got: bytes.len() });
    };
    let value = T::try_read_from_bytes(front).map_err(|_| StateError::Value { device })?;
    *bytes = rest;
    Ok(value)
}
