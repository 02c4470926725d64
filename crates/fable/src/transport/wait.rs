//! Sleeping until a path can go on.

use std::os::fd::RawFd;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use crate::error::{TransportError, TransportResult};

/// Which way of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the peer to this end.
    Read,
    /// From this end to the peer.
    Write,
}

/// What kind of sleep the caller can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// On a futex word, or on a descriptor where the transport has no such word.
    Futex,
    /// On a descriptor only, because others are waited for with it.
    Descriptor,
}

/// What to sleep on.
#[derive(Clone, Copy, Debug)]
pub enum Wait {
    /// Not at all: try again now.
    Ready,
    /// Until `poll` reports one of these events on the descriptor, which the transport keeps.
    Descriptor {
        /// The descriptor.
        descriptor: RawFd,
        /// The events for `poll`: `POLLIN` or `POLLOUT`.
        events: i16,
    },
    /// As long as the word is `expected`: a futex shared between processes (no
    /// `FUTEX_PRIVATE_FLAG`). The word lives as long as the transport.
    Futex {
        /// The word.
        word: *const AtomicU32,
        /// What it holds while there is nothing to do.
        expected: u32,
    },
    /// The peer will not tell: look again and again.
    Spin,
}

/// Sleeps as `wait` says, for a transport that knows no other sleep than on descriptors. False if
/// `timeout` has passed; `None` is without end.
pub(super) fn wait_by_poll(wait: Wait, timeout: Option<Duration>) -> TransportResult<bool> {
    let Wait::Descriptor { descriptor, events } = wait else {
        return Ok(true);
    };
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    crate::poll::wait_for(descriptor, events, deadline)
        .map_err(TransportError::system("poll of a path"))
}
