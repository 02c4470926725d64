//! Detects whether the memory belongs to this process, to its parent, or is a copy of the parent's.
//! Lists the descriptors of the process.

use core::ffi::c_int;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// The process that this memory belongs to.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// A page that the kernel clears in every child with its own memory (MADV_WIPEONFORK), so that such
/// a child detects itself, whatever call created it. True: not cleared.
static PAGE: AtomicPtr<AtomicBool> = AtomicPtr::new(ptr::null_mut());

/// Runs before the program's own code.
pub(crate) fn start() {
    OWNER.store(std::process::id(), Ordering::Relaxed);
    // SAFETY: sysconf takes only a number.
    let bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, at an address that the kernel chooses. Without it only fork(3) is
    // detected.
    let page = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    // SAFETY: the page belongs to this library.
    if page != libc::MAP_FAILED && unsafe { libc::madvise(page, bytes, libc::MADV_WIPEONFORK) } == 0
    {
        PAGE.store(page.cast(), Ordering::Release);
        mark();
    }
}

fn page() -> Option<&'static AtomicBool> {
    // SAFETY: the pointer is null or to the page, which stays mapped; each byte of it is 0 or 1.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

fn mark() {
    if let Some(page) = page() {
        page.store(true, Ordering::Relaxed);
    }
}

/// Returns whether this is a child with a copy of the memory that has not called [`claim`]: a
/// direct clone(2) created it, not fork(3).
pub(crate) fn is_unclaimed() -> bool {
    page().is_some_and(|page| !page.load(Ordering::Relaxed))
}

/// Records this process as the owner of the memory.
pub(crate) fn claim() {
    OWNER.store(std::process::id(), Ordering::Relaxed);
    mark();
}

/// Returns whether this process owns the memory.
pub(crate) fn is_owner() -> bool {
    OWNER.load(Ordering::Relaxed) == std::process::id()
}

/// Returns the descriptors of this process that are of the kinds that a stack opens.
///
/// # Errors
/// `EMFILE`, `ENOMEM`. A part of the list would make the library take the program's descriptors for
/// its own.
pub(crate) fn open_descriptors() -> io::Result<Vec<c_int>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let target = match std::fs::read_link(entry.path()) {
            // Another thread has closed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        let Some(target) = target.to_str() else { continue };
        let ours = ["socket:", "anon_inode:", "/dev/net/tun"];
        if ours.iter().any(|start| target.starts_with(start)) {
            found.extend(entry.file_name().to_str().and_then(|name| name.parse::<c_int>().ok()));
        }
    }
    Ok(found)
}

/// Excludes the device's mapped rings from children (madvise(2), MADV_DONTFORK), because a mapping
/// keeps the device open too.
///
/// # Errors
/// `EMFILE`, `ENOMEM`.
pub(crate) fn keep_from_children() -> io::Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    for line in maps.lines().filter(|line| line.contains("socket:[")) {
        let range = line.split_whitespace().next().and_then(|range| range.split_once('-'));
        let Some((start, end)) = range else { continue };
        let number = |text| usize::from_str_radix(text, 16);
        let (Ok(start), Ok(end)) = (number(start), number(end)) else { continue };
        // SAFETY: the range is mapped, and the call changes only what a child sees of it.
        let done = unsafe { libc::madvise(start as *mut _, end - start, libc::MADV_DONTFORK) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
