//! What each descriptor is: one word each, so that those of the kernel cost one look.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use mtcp::Descriptor;
use preload::real;

/// Descriptors beyond these are never the stack's.
const DESCRIPTORS: usize = 1 << 20;
/// The word of a socket, and of an epoll with a shadow: below are 30 bits of the generation, and
/// the stack's number.
const SOCKET: u64 = 1 << 62;
const SHADOW: u64 = 1 << 63;
/// The words of a socket that may become the stack's: its options are those that the kernel gives,
/// or may have been set.
const FRESH: u64 = 1;
const FRESH_WITH_OPTIONS: u64 = 5;
const GENERATIONS: u32 = (1 << 30) - 1;

/// A socket or an epoll of the stack, which is never mistaken for a later one of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) descriptor: Descriptor,
    /// Counts the sockets and epolls that have had the number.
    pub(crate) generation: u32,
}

impl Handle {
    /// The next one of the same number.
    pub(crate) fn next_generation(generation: u32) -> u32 {
        generation.wrapping_add(1) & GENERATIONS
    }

    fn word(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.descriptor.0)
    }

    fn of_word(word: u64) -> Handle {
        let generation = (word >> 32) as u32 & GENERATIONS;
        Handle { descriptor: Descriptor(word as u32), generation }
    }
}

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The kernel's, and stays so.
    Plain,
    /// A socket of the kernel that may become the stack's.
    Fresh,
    /// This library's own; the application does not know of it.
    Internal,
    /// The stack's, but of the process that this one was forked from.
    Inherited,
    /// An epoll that watches none of the stack's sockets.
    Epoll,
    /// A socket of the stack.
    Socket(Handle),
    /// An epoll, and the stack's epoll that watches the stack's sockets for it.
    Shadowed(Handle),
}

static WORDS: [AtomicU64; DESCRIPTORS] = [const { AtomicU64::new(0) }; DESCRIPTORS];

fn word(fd: c_int) -> Option<&'static AtomicU64> {
    WORDS.get(usize::try_from(fd).ok()?)
}

/// What the descriptor is.
#[inline]
pub(crate) fn kind(fd: c_int) -> Kind {
    let Some(word) = word(fd) else { return Kind::Plain };
    decode(word.load(Ordering::Acquire))
}

fn decode(word: u64) -> Kind {
    match word {
        0 => Kind::Plain,
        FRESH | FRESH_WITH_OPTIONS => Kind::Fresh,
        2 => Kind::Internal,
        3 => Kind::Inherited,
        4 => Kind::Epoll,
        _ if word & SHADOW != 0 => Kind::Shadowed(Handle::of_word(word)),
        _ => Kind::Socket(Handle::of_word(word)),
    }
}

/// Whether the table has room for the descriptor.
pub(crate) fn covers(fd: c_int) -> bool {
    word(fd).is_some()
}

/// Changes what the descriptor is.
pub(crate) fn set(fd: c_int, kind: Kind) {
    let value = match kind {
        Kind::Plain => 0,
        Kind::Fresh => FRESH,
        Kind::Internal => 2,
        Kind::Inherited => 3,
        Kind::Epoll => 4,
        Kind::Socket(handle) => SOCKET | handle.word(),
        Kind::Shadowed(handle) => SHADOW | handle.word(),
    };
    let Some(word) = word(fd) else { return };
    if value != 0 {
        HIGHEST.fetch_max(fd as u32, Ordering::Relaxed);
    }
    word.store(value, Ordering::Release);
}

/// The options of a fresh socket may be others than the kernel gave it, from now on.
pub(crate) fn note_options(fd: c_int) {
    if let Some(word) = word(fd) {
        let _ =
            word.compare_exchange(FRESH, FRESH_WITH_OPTIONS, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Whether a fresh socket has the options that the kernel gave it.
pub(crate) fn has_default_options(fd: c_int) -> bool {
    word(fd).is_some_and(|word| word.load(Ordering::Acquire) == FRESH)
}

/// Threads that wait in the kernel for an epoll that has no shadow yet, by its number.
static WAITERS: [AtomicU16; DESCRIPTORS] = [const { AtomicU16::new(0) }; DESCRIPTORS];

/// A thread that waits in the kernel, for as long as this lives.
pub(crate) struct Waiter(c_int);

impl Waiter {
    /// None if the epoll has a shadow: then the thread waits for both. One of the two, who waits
    /// and who makes the shadow, sees the other.
    pub(crate) fn new(set: c_int) -> Option<Waiter> {
        if let Ok(index) = usize::try_from(set)
            && let Some(count) = WAITERS.get(index)
        {
            count.fetch_add(1, Ordering::SeqCst);
        }
        let waiter = Waiter(set);
        fence(Ordering::SeqCst);
        (!matches!(kind(set), Kind::Shadowed(_))).then_some(waiter)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Ok(index) = usize::try_from(self.0)
            && let Some(count) = WAITERS.get(index)
        {
            count.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Whether any thread waits in the kernel for the epoll of a shadow, by any of its numbers.
pub(crate) fn has_waiters(shadow: Handle) -> bool {
    fence(Ordering::SeqCst);
    known(0, c_int::MAX).any(|(fd, kind)| {
        kind == Kind::Shadowed(shadow) && WAITERS[fd as usize].load(Ordering::SeqCst) > 0
    })
}

/// Where this library's own descriptors begin, so that the application finds the lowest numbers
/// free that would be so without.
const HIDDEN: c_int = 900;

/// Takes a descriptor of this library's own out of the application's way; its number then.
pub(crate) fn hide(fd: c_int) -> c_int {
    // SAFETY: plain numbers. The limit on numbers may be lower; then it stays where it is.
    let hidden = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, HIDDEN as usize) };
    let fd = if hidden < 0 {
        fd
    } else {
        // SAFETY: the number is new and nobody else's.
        unsafe { real::close(fd) };
        hidden
    };
    set(fd, Kind::Internal);
    fd
}

/// Closes a descriptor of this library's own.
pub(crate) fn close_hidden(fd: c_int) {
    set(fd, Kind::Plain);
    // SAFETY: the descriptor is this library's own.
    unsafe { real::close(fd) };
}

/// The highest descriptor that ever was more than plain.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// All descriptors of a range that are more than plain.
pub(crate) fn known(first: c_int, last: c_int) -> impl Iterator<Item = (c_int, Kind)> {
    let last = last.min(HIGHEST.load(Ordering::Relaxed) as c_int);
    (first.max(0)..=last).map(|fd| (fd, kind(fd))).filter(|(_, kind)| *kind != Kind::Plain)
}
