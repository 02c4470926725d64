//! The state of each descriptor: one word each, so that a descriptor without an object costs one
//! read.

use core::ffi::c_int;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use preload::real;
use std::sync::OnceLock;

use crate::counted::{Counted, CountedRef};
use crate::{borrowed, sys};

/// The most descriptors of the table, whatever the process's limit is.
const DESCRIPTORS_MAX: usize = 1 << 20;
/// The bits of a word with the type of the object whose address it contains; zero if there is none.
const TAG: usize = 7;
/// The tag of connections.
pub(crate) const CONNECTION: usize = 1;
/// The tag of listeners.
pub(crate) const LISTENER: usize = 2;
/// The tag of epoll sets.
pub(crate) const SET: usize = 3;

/// Nothing is known about the descriptor, or it needs nothing.
const PLAIN: usize = 0;
/// The descriptor must never be upgraded: an option was set, or it is watched in a way, that the
/// library cannot support.
const NEVER: usize = 8;
/// The descriptor belongs to this library; the application does not know it.
const INTERNAL: usize = 16;

static ENTRIES: AtomicPtr<AtomicUsize> = AtomicPtr::new(core::ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The highest descriptor that ever had an object or belonged to the library.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
/// The functions that drop an object which leaves the table, by its tag.
static DROPS: [OnceLock<unsafe fn(usize)>; TAG + 1] = [const { OnceLock::new() }; TAG + 1];

/// Allows objects of a type in the table. Call it before [`start`].
pub(crate) fn admit<T: Counted>() {
    let _ = DROPS[T::TAG].set(drop_object::<T>);
}

/// # Safety
/// Those of [`CountedRef::from_address`].
unsafe fn drop_object<T: Counted>(address: usize) {
    // SAFETY: the caller guarantees that the address comes from the table.
    let object = unsafe { CountedRef::<T>::from_address(address) };
    object.removed();
}

/// Allocates the table for as many descriptors as the process may have.
pub(crate) fn start() {
    let limit = sys::descriptors_max().rlim_max;
    let count = usize::try_from(limit).unwrap_or(usize::MAX).min(DESCRIPTORS_MAX);
    if let Ok(at) = sys::map_private(count * size_of::<AtomicUsize>()) {
        ENTRIES.store(at.cast(), Ordering::Release);
        COUNT.store(count, Ordering::Release);
    }
}

fn entry(fd: c_int) -> Option<&'static AtomicUsize> {
    let index = usize::try_from(fd).ok()?;
    if index >= COUNT.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: the table has COUNT entries, is zeroed, and is never unmapped.
    Some(unsafe { &*ENTRIES.load(Ordering::Relaxed).add(index) })
}

/// Returns whether the table has an entry for the descriptor.
pub(crate) fn covers(fd: c_int) -> bool {
    entry(fd).is_some()
}

/// Returns the object of a descriptor, if it is of this type.
#[inline]
pub(crate) fn get<T: Counted>(fd: c_int) -> Option<CountedRef<T>> {
    let entry = entry(fd)?;
    loop {
        let word = entry.load(Ordering::Acquire);
        if word & TAG != T::TAG || borrowed::has_closed(fd) {
            return None;
        }
        // SAFETY: a word with this tag is the address of an object of this type, and objects live
        // for ever.
        let object: &'static T = unsafe { &*((word & !TAG) as *const T) };
        if let Some(held) = CountedRef::try_new(object)
            && entry.load(Ordering::Acquire) == word
        {
            return Some(held);
        }
    }
}

/// Sets the object of a descriptor.
pub(crate) fn put<T: Counted>(fd: c_int, object: CountedRef<T>) {
    object.added();
    put_word(fd, object.into_address() | T::TAG);
}

fn put_word(fd: c_int, word: usize) {
    if borrowed::is_here() {
        borrowed::note_closed(fd);
        return release(word);
    }
    if word != PLAIN {
        HIGHEST.fetch_max(fd.max(0) as usize, Ordering::Relaxed);
    }
    let Some(entry) = entry(fd) else {
        release(word);
        return;
    };
    release(entry.swap(word, Ordering::AcqRel));
}

fn release(word: usize) {
    if let Some(drop_object) = DROPS[word & TAG].get() {
        // SAFETY: the word left the table, and with it the one use that the table had.
        unsafe { drop_object(word & !TAG) };
    }
}

/// Clears a descriptor's entry: it is new, closed, or plain.
pub(crate) fn forget(fd: c_int) {
    if let Some(entry) = entry(fd)
        && entry.load(Ordering::Relaxed) != PLAIN
    {
        put_word(fd, PLAIN);
    }
}

/// Marks the descriptor as never to be upgraded, unless it already has an object.
pub(crate) fn refuse(fd: c_int) {
    if let Some(entry) = entry(fd)
        && !borrowed::is_here()
    {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let _ = entry.compare_exchange(PLAIN, NEVER, order.0, order.1);
    }
}

/// Marks a descriptor as the library's own.
pub(crate) fn reserve(fd: c_int) {
    put_word(fd, INTERNAL);
}

/// Returns whether the descriptor still belongs to the library: the application may close
/// descriptors that it does not know.
pub(crate) fn is_reserved(fd: c_int) -> bool {
    entry(fd).is_some_and(|entry| entry.load(Ordering::Acquire) == INTERNAL)
        && !borrowed::has_closed(fd)
}

/// Returns whether this descriptor may be upgraded.
pub(crate) fn is_plain(fd: c_int) -> bool {
    entry(fd).is_some_and(|entry| entry.load(Ordering::Acquire) == PLAIN)
}

/// Returns whether the descriptor has no object: the check with which every call begins.
#[inline]
pub(crate) fn is_foreign(fd: c_int) -> bool {
    entry(fd).is_none_or(|entry| entry.load(Ordering::Relaxed) & TAG == 0)
}

/// Copies the entry of a descriptor without an object to its duplicate: the duplicate may be
/// upgraded if its original may.
pub(crate) fn duplicate_plain(from: c_int, to: c_int) {
    let word = entry(from).map_or(PLAIN, |entry| entry.load(Ordering::Acquire));
    // If it has a tag, another thread has just closed or changed it.
    put_word(to, if word & TAG == 0 { word } else { PLAIN });
}

/// Returns the descriptors in a range that may have an object.
fn known(first: c_int, last: c_int) -> Range<c_int> {
    let end = (last as usize).min(HIGHEST.load(Ordering::Relaxed)).saturating_add(1);
    first.max(0)..end.min(COUNT.load(Ordering::Acquire)) as c_int
}

/// Iterates over all objects of a type in the range, each with its descriptor.
pub(crate) fn entries<T: Counted>(
    first: c_int,
    last: c_int,
) -> impl Iterator<Item = (c_int, CountedRef<T>)> {
    known(first, last).filter_map(|fd| Some((fd, get(fd)?)))
}

/// Returns the descriptors of an object.
pub(crate) fn descriptors_of<T: Counted>(object: &CountedRef<T>) -> impl Iterator<Item = c_int> {
    let word = object.object() as *const T as usize | T::TAG;
    known(0, c_int::MAX)
        .filter(move |&fd| entry(fd).is_some_and(|entry| entry.load(Ordering::Relaxed) == word))
}

/// Clears a whole range, as close_range(2) does.
pub(crate) fn forget_range(first: c_int, last: c_int) {
    known(first, last).for_each(forget);
}

/// Returns whether the descriptor has close-on-exec.
pub(crate) fn closes_on_exec(fd: c_int) -> bool {
    let _keep = sys::KeepErrno::new();
    // SAFETY: F_GETFD has no argument.
    unsafe { real::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC != 0 }
}
