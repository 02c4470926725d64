//! Telling a forked child from the process that created a channel.
//!
//! A child inherits the channel's memory and its rings' descriptors; using them would disturb the
//! parent. `getpid` before every request would cost a system call, so a page is asked instead that
//! the kernel empties in a child (`MADV_WIPEONFORK`, Linux 4.14).

use crate::sys::Mapping;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

struct Page(Mapping);
// SAFETY: the mapping is only read and written through an atomic, and never unmapped.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

static PAGE: OnceLock<Page> = OnceLock::new();

/// The process in which something was created.
#[derive(Clone, Copy, Debug)]
pub struct Birth {
    process: u32,
    mark: &'static AtomicU32,
}

impl Birth {
    /// The calling process.
    ///
    /// # Errors
    /// The kernel's, if it has no page to give (`MADV_WIPEONFORK` needs Linux 4.14).
    pub fn here() -> io::Result<Birth> {
        let page = match PAGE.get() {
            Some(page) => page,
            None => {
                let mapping = Mapping::anonymous(std::mem::size_of::<AtomicU32>())?;
                mapping.advise(libc::MADV_WIPEONFORK)?;
                PAGE.get_or_init(|| Page(mapping))
            }
        };
        // SAFETY: the page is aligned, zeroed, never unmapped and only accessed atomically.
        let mark = unsafe { AtomicU32::from_ptr(page.0.address().cast()) };
        let process = std::process::id();
        mark.store(process, Ordering::Relaxed);
        Ok(Birth { process, mark })
    }

    /// Whether the caller is still the process that called `here`.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.mark.load(Ordering::Relaxed) == self.process
    }
}
