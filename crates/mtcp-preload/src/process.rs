//! Whose memory this is: the process's own, its parent's, or a copy of that; and what a process has
//! open.

use core::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// The process that this memory belongs to.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// A page that the kernel clears in every child with a memory of its own (MADV_WIPEONFORK): such a
/// child finds itself out, whatever call it was made by. True: not wiped.
static PAGE: AtomicPtr<AtomicBool> = AtomicPtr::new(ptr::null_mut());

/// Runs before the program's own code.
pub(crate) fn start() {
    OWNER.store(std::process::id(), Ordering::Relaxed);
    // SAFETY: sysconf takes a plain number.
    let bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, wherever the kernel likes; without it only fork(3) is known of.
    let page = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    // SAFETY: the page is ours.
    if page != libc::MAP_FAILED && unsafe { libc::madvise(page, bytes, libc::MADV_WIPEONFORK) } == 0
    {
        PAGE.store(page.cast(), Ordering::Release);
        mark();
    }
}

fn page() -> Option<&'static AtomicBool> {
    // SAFETY: null, or the page, which stays mapped; any byte of it is 0 or 1.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

fn mark() {
    if let Some(page) = page() {
        page.store(true, Ordering::Relaxed);
    }
}

/// Whether this is a child whose memory is a copy, and it has not called [`claim`]: it was made
/// without fork(3), by clone(2), by number.
pub(crate) fn is_unclaimed() -> bool {
    page().is_some_and(|page| !page.load(Ordering::Relaxed))
}

/// The memory is this process's own from now on.
pub(crate) fn claim() {
    OWNER.store(std::process::id(), Ordering::Relaxed);
    mark();
}

/// Whether the memory is this process's own.
pub(crate) fn is_owner() -> bool {
    OWNER.load(Ordering::Relaxed) == std::process::id()
}

/// The descriptors of this process that are of the kinds that a stack opens.
pub(crate) fn open_descriptors() -> Vec<c_int> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let entries = entries.flatten().filter_map(|entry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        let target = target.to_str()?;
        let ours = ["socket:", "anon_inode:", "/dev/net/tun"];
        let is_one = ours.iter().any(|start| target.starts_with(start));
        if is_one { entry.file_name().to_str()?.parse().ok() } else { None }
    });
    entries.collect()
}

/// Mapped rings of the device hold it open, too; children shall not have them (madvise(2),
/// MADV_DONTFORK).
pub(crate) fn keep_from_children() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for line in maps.lines().filter(|line| line.contains("socket:[")) {
        let range = line.split_whitespace().next().and_then(|range| range.split_once('-'));
        let Some((start, end)) = range else { continue };
        let number = |text| usize::from_str_radix(text, 16);
        let (Ok(start), Ok(end)) = (number(start), number(end)) else { continue };
        // SAFETY: the range is mapped, and only what a child sees of it changes.
        unsafe { libc::madvise(start as *mut _, end - start, libc::MADV_DONTFORK) };
    }
}
