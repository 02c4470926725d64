//! Tells a forked child from the process that created a channel.
//!
//! A child inherits the channel's memory and its rings' descriptors; using them would disturb the
//! parent. `getpid` before every request would cost a system call, so a page is asked instead that
//! the kernel empties in a child (`MADV_WIPEONFORK`, Linux 4.14).
//!
//! The page has a random number, not the process's id: a child in a new pid namespace may have the
//! id that its parent has in its own.

use crate::sys::Mapping;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

struct Page(Mapping);
// SAFETY: the mapping is only read and written through an atomic, and never unmapped.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

static PAGE: OnceLock<Page> = OnceLock::new();

/// The process in which something was created.
#[derive(Clone, Copy, Debug)]
pub struct Birth {
    /// Never 0, which is what a child finds.
    token: u64,
    mark: &'static AtomicU64,
}

impl Birth {
    /// The calling process.
    ///
    /// # Errors
    /// The kernel's, if it has no page (`MADV_WIPEONFORK` needs Linux 4.14) or no random number to
    /// give.
    pub fn here() -> io::Result<Birth> {
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
                // Another thread may be quicker.
                match mark.compare_exchange(0, token, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => token,
                    Err(theirs) => theirs,
                }
            }
            token => token,
        };
        Ok(Birth { token, mark })
    }

    /// Whether the caller is still the process that called `here`.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.mark.load(Ordering::Relaxed) == self.token
    }
}

/// A number that no other process has, above 0.
fn random_token() -> io::Result<u64> {
    let mut bytes = [0; 8];
    // SAFETY: `bytes` is valid for writing and its size is told.
    let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    // So few bytes come whole or not at all.
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok(u64::from_ne_bytes(bytes).max(1)) }
}
