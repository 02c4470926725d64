//! What we know of each descriptor: one word each, so that others cost one look.

use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use preload::real;

use crate::borrowed;
use crate::connection::Connection;
use crate::counted::{Counted, Held};
use crate::epoll::Set;
use crate::rendezvous::Listener;
use crate::statistics::Why;
use crate::sys;

/// More descriptors than this are not looked after, whatever the limit says.
const DESCRIPTORS_MAX: usize = 1 << 20;
const TAG: usize = 7;
const CONNECTION: usize = 1;
const LISTENER: usize = 2;
const SET: usize = 3;

/// Nothing is known, or nothing is to be done.
pub(crate) const PLAIN: usize = 0;
/// Must never be upgraded: an option was set, or a poller watches it, that we could not follow.
pub(crate) const NEVER: usize = 8;

/// A descriptor of this library, which the application does not know of.
const INTERNAL: usize = 16;

static ENTRIES: AtomicPtr<AtomicUsize> = AtomicPtr::new(core::ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Makes room for as many descriptors as the process may have.
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

/// Whether the descriptor is one that we look after at all.
pub(crate) fn covers(fd: c_int) -> bool {
    entry(fd).is_some()
}

fn held<T: Counted>(fd: c_int, tag: usize) -> Option<Held<T>> {
    let entry = entry(fd)?;
    loop {
        let word = entry.load(Ordering::Acquire);
        if word & TAG != tag || borrowed::has_closed(fd) {
            return None;
        }
        // SAFETY: a word with this tag is the address of such an object, and objects live for ever.
        let object: &'static T = unsafe { &*((word & !TAG) as *const T) };
        if let Some(held) = Held::try_new(object)
            && entry.load(Ordering::Acquire) == word
        {
            return Some(held);
        }
    }
}

/// The connection behind a descriptor that is, or may become, upgraded.
#[inline]
pub(crate) fn connection(fd: c_int) -> Option<Held<Connection>> {
    held(fd, CONNECTION)
}

/// The rendezvous behind a listening descriptor.
pub(crate) fn listener(fd: c_int) -> Option<Held<Listener>> {
    held(fd, LISTENER)
}

/// What we know of an epoll descriptor.
pub(crate) fn set(fd: c_int) -> Option<Held<Set>> {
    held(fd, SET)
}

fn put(fd: c_int, word: usize) {
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
    // SAFETY: the word left the table, with the one use that the table had.
    unsafe {
        match word & TAG {
            CONNECTION => {
                let connection = Held::<Connection>::from_address(word & !TAG);
                connection.descriptors.fetch_sub(1, Ordering::Relaxed);
            }
            LISTENER => drop(Held::<Listener>::from_address(word & !TAG)),
            SET => drop(Held::<Set>::from_address(word & !TAG)),
            _ => (),
        }
    }
}

/// The descriptor now is this connection.
pub(crate) fn put_connection(fd: c_int, connection: Held<Connection>) {
    connection.descriptors.fetch_add(1, Ordering::Relaxed);
    put(fd, connection.into_address() | CONNECTION);
}

/// The descriptor now is this listening socket.
pub(crate) fn put_listener(fd: c_int, listener: Held<Listener>) {
    put(fd, listener.into_address() | LISTENER);
}

/// The descriptor now is this epoll set.
pub(crate) fn put_set(fd: c_int, set: Held<Set>) {
    put(fd, set.into_address() | SET);
}

/// Nothing is known of the descriptor any more: it is new, closed, or plain.
pub(crate) fn forget(fd: c_int) {
    if let Some(entry) = entry(fd)
        && entry.load(Ordering::Relaxed) != PLAIN
    {
        put(fd, PLAIN);
    }
}

/// The descriptor must stay as it is, unless it is ours already.
pub(crate) fn refuse(fd: c_int) {
    if let Some(entry) = entry(fd)
        && !borrowed::is_here()
    {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let _ = entry.compare_exchange(PLAIN, NEVER, order.0, order.1);
    }
}

/// Marks a descriptor of this library.
pub(crate) fn reserve(fd: c_int) {
    put(fd, INTERNAL);
}

/// Whether the descriptor still is this library's: the application may close what it does not know.
pub(crate) fn is_reserved(fd: c_int) -> bool {
    entry(fd).is_some_and(|entry| entry.load(Ordering::Acquire) == INTERNAL)
        && !borrowed::has_closed(fd)
}

/// Whether nothing stands against upgrading this descriptor.
pub(crate) fn is_plain(fd: c_int) -> bool {
    entry(fd).is_some_and(|entry| entry.load(Ordering::Acquire) == PLAIN)
}

/// Whether the descriptor stands for nothing of ours: the look that every call begins with.
#[inline]
pub(crate) fn is_foreign(fd: c_int) -> bool {
    entry(fd).is_none_or(|entry| entry.load(Ordering::Relaxed) & TAG == 0)
}

/// A duplicate is what its original is.
pub(crate) fn duplicate(from: c_int, to: c_int) {
    if from == to || to < 0 {
        return;
    }
    let word = entry(from).map_or(PLAIN, |entry| entry.load(Ordering::Acquire));
    if borrowed::is_here() {
        // The program that is executed will have it.
        if let Some(connection) = connection(from) {
            connection.leave(from, Why::Execute);
        }
        return;
    }
    match word & TAG {
        CONNECTION => match connection(from) {
            Some(connection) if covers(to) => put_connection(to, connection),
            Some(connection) => connection.leave(from, Why::Descriptor),
            None => forget(to),
        },
        LISTENER => listener(from).map_or_else(|| forget(to), |it| put_listener(to, it)),
        SET => set(from).map_or_else(|| forget(to), |it| put_set(to, it)),
        _ => put(to, word),
    }
}

/// Every connection of ours in the range, with its descriptor.
pub(crate) fn connections(
    first: c_int,
    last: c_int,
) -> impl Iterator<Item = (c_int, Held<Connection>)> {
    let end = COUNT.load(Ordering::Acquire).min((last as usize).saturating_add(1));
    let end = end.min(highest() + 1);
    let descriptors = (first.max(0) as usize..end).map(|index| index as c_int);
    descriptors.filter_map(|fd| Some((fd, connection(fd)?)))
}

/// Every listening socket that has a rendezvous.
pub(crate) fn listeners() -> impl Iterator<Item = Held<Listener>> {
    (0..=highest()).filter_map(|index| listener(index as c_int))
}

/// The descriptors of an epoll set.
pub(crate) fn descriptors_of(set: &Held<Set>) -> impl Iterator<Item = c_int> {
    let word = set.object() as *const Set as usize | SET;
    (0..=highest())
        .map(|index| index as c_int)
        .filter(move |&fd| entry(fd).is_some_and(|entry| entry.load(Ordering::Relaxed) == word))
}

/// Forgets a whole range, as close_range(2) does.
pub(crate) fn forget_range(first: c_int, last: c_int) {
    let end = COUNT.load(Ordering::Acquire).min((last as usize).saturating_add(1));
    for fd in first.max(0) as usize..end.min(highest() + 1) {
        forget(fd as c_int);
    }
}

/// The highest descriptor that ever was one of ours.
fn highest() -> usize {
    HIGHEST.load(Ordering::Relaxed)
}

static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// Whether the descriptor has close-on-exec.
pub(crate) fn closes_on_exec(fd: c_int) -> bool {
    let _keep = sys::KeepErrno::new();
    // SAFETY: F_GETFD has no argument.
    unsafe { real::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC != 0 }
}
