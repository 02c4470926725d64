//! What to sleep on until a call on a path may succeed.

use std::os::fd::RawFd;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use crate::error::{TransportError, TransportResult};

/// A direction of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the peer to this end.
    Read,
    /// From this end to the peer.
    Write,
}

/// The kinds of sleep that the caller can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMethod {
    /// On a futex word, or on a descriptor where the transport has no such word.
    Futex,
    /// On a descriptor only, because it is waited for together with others.
    Descriptor,
}

/// What to sleep on.
#[derive(Clone, Copy, Debug)]
pub enum Wait {
    /// Nothing: try again now.
    Ready,
    /// Sleep until poll(2) reports one of these events on the descriptor, which the transport
    /// keeps.
    Descriptor {
        /// The descriptor.
        descriptor: RawFd,
        /// The events for poll(2): `POLLIN` or `POLLOUT`.
        events: i16,
    },
    /// Sleep while the word is `expected`, on a futex shared between processes (no
    /// `FUTEX_PRIVATE_FLAG`). The word lives as long as the transport.
    Futex {
        /// The word.
        word: *const AtomicU32,
        /// The value of the word while there is nothing to do.
        expected: u32,
    },
}

/// Sleeps on the descriptor of `wait`, for a transport that uses descriptors only. Returns false if
/// `timeout` has passed; `None` waits without limit.
pub(super) fn wait_by_poll(wait: Wait, timeout: Option<Duration>) -> TransportResult<bool> {
    let Wait::Descriptor { descriptor, events } = wait else {
        return Ok(true);
    };
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    crate::poll::wait_for(descriptor, events, deadline)
        .map_err(TransportError::system("poll of a path"))
}
