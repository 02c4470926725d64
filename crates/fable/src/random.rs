//! Random bytes of the kernel's.

use std::io;

/// So many of them, 256 at most.
///
/// # Errors
/// That of getrandom(2).
pub(crate) fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= 256, "more may come in parts") };
    let mut bytes = [0; N];
    // SAFETY: the bytes are valid for their length. Up to 256 come all at once.
    if unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(bytes)
}
