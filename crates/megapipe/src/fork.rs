//! Detects that the caller is a forked child of the process that created a channel.
//!
//! A child inherits the channel's memory and its rings' descriptors; if it used them, it would
//! disturb the parent. Calling `getpid` before every request would cost a system call, so the
//! module reads a page that the kernel clears in a child (`MADV_WIPEONFORK`, Linux 4.14).
//!
//! The page contains a random number, not the process id: a child in a new pid namespace may have
//! the id that its parent has in its own.

use crate::sys::Mapping;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

struct Page(Mapping);
// SAFETY: the mapping is only read and written through an atomic, and never unmapped.
unsafe impl Send for Page {}
// SAFETY: the mapping is only read and written through an atomic, and never unmapped.
unsafe impl Sync for Page {}

static PAGE: OnceLock<Page> = OnceLock::new();

/// Identifies the process that created an object.
#[derive(Clone, Copy, Debug)]
pub struct CreatorProcess {
    /// The content of the page in the creator's process. Never 0, which a child reads.
    token: u64,
    mark: &'static AtomicU64,
}

impl CreatorProcess {
    /// Identifies the calling process.
    ///
    /// # Errors
    /// The kernel's error, if the page is not available (`MADV_WIPEONFORK` needs Linux 4.14) or
    /// there is no random number.
    pub fn here() -> io::Result<CreatorProcess> {
        let page = match PAGE.get() {
            Some(page) => page,
            None => {
                let mapping = Mapping::anonymous(std::mem::size_of::<AtomicU64>())?;
                mapping.advise(libc::MADV_WIPEONFORK)?;
                PAGE.get_or_init(|| Page(mapping))
            }
        };
        // SAFETY: the page is aligned, zeroed, never unmapped and only accessed atomically.
        let mark = unsafe { AtomicU64::from_ptr(page.0.address().cast()) };
        let token = match mark.load(Ordering::Relaxed) {
            0 => {
                let token = random_token()?;
                // Another thread may have stored its number first.
                match mark.compare_exchange(0, token, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => token,
                    Err(theirs) => theirs,
                }
            }
            token => token,
        };
        Ok(CreatorProcess { token, mark })
    }

    /// Returns whether the caller is still the process that called `here`.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.mark.load(Ordering::Relaxed) == self.token
    }
}

/// Returns a random number above 0, unique to the process.
fn random_token() -> io::Result<u64> {
    let mut bytes = [0; 8];
    // SAFETY: `bytes` is valid for writing, and the length is its size.
    let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    // The kernel returns so few bytes completely or not at all.
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok(u64::from_ne_bytes(bytes).max(1)) }
}
