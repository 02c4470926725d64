//! Random bytes from the kernel.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Returns `N` random bytes, 256 at most.
///
/// # Errors
/// Those of getrandom(2).
pub(crate) fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= 256, "more may come in parts") };
    let mut bytes = [0; N];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes)
}
