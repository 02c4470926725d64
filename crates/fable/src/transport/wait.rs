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
    let begin = Instant::now();
    let mut entry = libc::pollfd { fd: descriptor, events, revents: 0 };
    loop {
        let left = timeout.map(|all| all.saturating_sub(begin.elapsed()));
        let left = left.map(|left| libc::timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        let pointer = left.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: one entry, and a time that outlives the call; no signal mask.
        match unsafe { libc::ppoll(&raw mut entry, 1, pointer, std::ptr::null()) } {
            0 => return Ok(false),
            1.. => return Ok(true),
            _ => match TransportError::last("ppoll of a path") {
                TransportError::System { source, .. }
                    if source.kind() == std::io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}
