//! Stores the state of each descriptor in one word, so that descriptors of the kernel cost one
//! read.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use mtcp::Descriptor;
use preload::real;

/// Number of entries; larger descriptors are never the stack's.
const DESCRIPTORS: usize = 1 << 20;
/// The bit for a socket, and for an epoll with a shadow. The lower bits are 30 bits of the
/// generation, and the stack's number.
const SOCKET: u64 = 1 << 62;
const SHADOW: u64 = 1 << 63;
/// The words of a socket that may become the stack's: with the kernel's default options, or with
/// options that may have been set.
const FRESH: u64 = 1;
const FRESH_WITH_OPTIONS: u64 = 5;
const GENERATIONS: u32 = (1 << 30) - 1;

/// Identifies a socket or an epoll instance of the stack; a later one of the same number has
/// another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) descriptor: Descriptor,
    /// Counts the sockets and epolls that have had this number.
    pub(crate) generation: u32,
}

impl Handle {
    /// Returns the next generation for the same number.
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

/// The kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file of the kernel, which stays so.
    Plain,
    /// A socket of the kernel that may become the stack's.
    Fresh,
    /// A descriptor of this library, which the application does not know.
    Internal,
    /// A socket of the stack of the process from which this one was forked.
    Inherited,
    /// An epoll that watches none of the stack's sockets.
    Epoll,
    /// A socket of the stack.
    Socket(Handle),
    /// An epoll with a shadow, the stack's epoll that watches the stack's sockets for it.
    Shadowed(Handle),
}

static WORDS: [AtomicU64; DESCRIPTORS] = [const { AtomicU64::new(0) }; DESCRIPTORS];

fn word(fd: c_int) -> Option<&'static AtomicU64> {
    WORDS.get(usize::try_from(fd).ok()?)
}

/// Returns the kind of the descriptor.
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

/// Returns whether the table has an entry for the descriptor.
pub(crate) fn covers(fd: c_int) -> bool {
    word(fd).is_some()
}

/// Sets the kind of the descriptor.
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

/// Records that a new socket may have other options than the kernel's defaults.
pub(crate) fn note_options(fd: c_int) {
    if let Some(word) = word(fd) {
        let _ =
            word.compare_exchange(FRESH, FRESH_WITH_OPTIONS, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Returns whether a new socket has the kernel's default options.
pub(crate) fn has_default_options(fd: c_int) -> bool {
    word(fd).is_some_and(|word| word.load(Ordering::Acquire) == FRESH)
}

/// The number of threads that wait in the kernel for an epoll without a shadow, by its number.
static WAITERS: [AtomicU16; DESCRIPTORS] = [const { AtomicU16::new(0) }; DESCRIPTORS];

/// Counts a thread that waits in the kernel, as long as it exists.
pub(crate) struct Waiter(c_int);

impl Waiter {
    /// Returns `None` if the epoll instance has a shadow: the thread then waits for both parts. The
    /// fence ensures that the waiting thread sees the shadow, or that the thread that creates the
    /// shadow sees the waiter.
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

/// Returns whether any thread waits in the kernel for the epoll instance of a shadow, by any of its
/// numbers.
pub(crate) fn has_waiters(shadow: Handle) -> bool {
    fence(Ordering::SeqCst);
    known(0, c_int::MAX).any(|(fd, kind)| {
        kind == Kind::Shadowed(shadow) && WAITERS[fd as usize].load(Ordering::SeqCst) > 0
    })
}

/// The least number of the library's own descriptors, so that the application gets the same lowest
/// numbers as without the library.
const HIDDEN: c_int = 900;

/// Moves a descriptor of the library to a high number, and returns that.
pub(crate) fn hide(fd: c_int) -> c_int {
    // SAFETY: the call takes only numbers. If the limit on numbers is lower, the descriptor keeps
    // its number.
    let hidden = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, HIDDEN as usize) };
    let fd = if hidden < 0 {
        fd
    } else {
        // SAFETY: the number is new and has no other owner.
        unsafe { real::close(fd) };
        hidden
    };
    set(fd, Kind::Internal);
    fd
}

/// Closes a descriptor of the library.
pub(crate) fn close_hidden(fd: c_int) {
    set(fd, Kind::Plain);
    // SAFETY: the descriptor belongs to this library.
    unsafe { real::close(fd) };
}

/// The highest descriptor that ever had another kind than plain.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// Iterates over the descriptors of a range that are not plain.
pub(crate) fn known(first: c_int, last: c_int) -> impl Iterator<Item = (c_int, Kind)> {
    let last = last.min(HIGHEST.load(Ordering::Relaxed) as c_int);
    (first.max(0)..=last).map(|fd| (fd, kind(fd))).filter(|(_, kind)| *kind != Kind::Plain)
}
