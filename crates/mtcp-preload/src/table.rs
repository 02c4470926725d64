//! What each descriptor is: one word each, so that those of the kernel cost one look.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use mtcp::Descriptor;

/// Descriptors beyond these are never the stack's.
const DESCRIPTORS: usize = 1 << 20;
/// The number below these bits is one of the stack's.
const SOCKET: u32 = 1 << 30;
const SHADOW: u32 = 1 << 31;
const NUMBER: u32 = SOCKET - 1;

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
    Socket(Descriptor),
    /// An epoll, and the stack's epoll that watches the stack's sockets for it.
    Shadowed(Descriptor),
}

static WORDS: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];

fn word(fd: c_int) -> Option<&'static AtomicU32> {
    WORDS.get(usize::try_from(fd).ok()?)
}

/// What the descriptor is.
#[inline]
pub(crate) fn kind(fd: c_int) -> Kind {
    let Some(word) = word(fd) else { return Kind::Plain };
    decode(word.load(Ordering::Acquire))
}

fn decode(word: u32) -> Kind {
    match word {
        0 => Kind::Plain,
        1 => Kind::Fresh,
        2 => Kind::Internal,
        3 => Kind::Inherited,
        4 => Kind::Epoll,
        _ if word & SHADOW != 0 => Kind::Shadowed(Descriptor(word & NUMBER)),
        _ => Kind::Socket(Descriptor(word & NUMBER)),
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
        Kind::Fresh => 1,
        Kind::Internal => 2,
        Kind::Inherited => 3,
        Kind::Epoll => 4,
        Kind::Socket(descriptor) => SOCKET | descriptor.0,
        Kind::Shadowed(descriptor) => SHADOW | descriptor.0,
    };
    let Some(word) = word(fd) else { return };
    if value != 0 {
        HIGHEST.fetch_max(fd as u32, Ordering::Relaxed);
    }
    word.store(value, Ordering::Release);
}

/// The highest descriptor that ever was more than plain.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// All descriptors of a range that are more than plain.
pub(crate) fn known(first: c_int, last: c_int) -> impl Iterator<Item = (c_int, Kind)> {
    let last = last.min(HIGHEST.load(Ordering::Relaxed) as c_int);
    (first.max(0)..=last).map(|fd| (fd, kind(fd))).filter(|(_, kind)| *kind != Kind::Plain)
}
