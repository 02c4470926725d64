//! Detects that the caller is a forked child of the process that created a channel.
//!
//! A child inherits the channel's memory and its rings' descriptors; if it used them, it would
//! disturb the parent. Calling `getpid` before every request would cost a system call, so the
//! module reads a page that the kernel clears in a child (`MADV_WIPEONFORK`, Linux 4.14).
//!
//! The page contains a number that no ancestor has put into its own: a counter, which the child
//! inherits. The process id would not do: a child in a new pid namespace may have the id that its
//! parent has in its own.

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

/// The number of tokens that this process and its ancestors had drawn when each was forked.
static TOKENS: AtomicU64 = AtomicU64::new(0);

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
    /// The kernel's error, if the page is not available (`MADV_WIPEONFORK` needs Linux 4.14).
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
                let token = TOKENS.fetch_add(1, Ordering::Relaxed) + 1;
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
