//! The tasks' draws, the same in every guest.

/// A number from `min..=max`, by xorshift64* (Vigna 2016) on the task's own state, which begins as its
/// seed. Nothing is drawn where there is no choice. Times on the wire end far below 2^64 - 1, so the range's
/// size fits.
#[inline]
pub fn draw(state: &mut u64, min: u64, max: u64) -> u64 {
    if min >= max {
        return min;
    }
    let mut x = *state | 1;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    let range = max - min + 1;
    min + ((u128::from(x.wrapping_mul(0x2545_f491_4f6c_dd1d)) * u128::from(range)) >> 64) as u64
}
