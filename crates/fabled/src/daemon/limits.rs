//! Limits of one connection. [`crate::quota`] has those of the tables and of each user.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The most connections that one turn of the loop accepts.
pub(super) const ACCEPTED_AT_ONCE: usize = 64;

/// The most names of one connection.
pub(super) const NAMES_MAX: usize = 1024;

/// The most entries of a list of users or groups that may connect.
pub(super) const ACCESS_MAX: usize = 1024;

/// The most flows that one connection may make; flows that others make to it count for them.
pub(super) const FLOWS_OF_CLIENT_MAX: usize = 4096;

/// The most packets that are read from one connection before the others get their turn.
pub(super) const PACKETS_AT_ONCE: usize = 32;

/// The most packets that are read from one connection in one period of observation; the rest waits
/// for the next.
pub(super) const PACKETS_PER_TICK: u32 = 2048;

/// The queue length, in packets, at which a connection is not read any more until it reads.
pub(super) const QUEUE_TO_PAUSE: usize = 16;

/// The most new flows that wait for a listening process to read their messages.
pub(super) const QUEUE_FOR_INCOMING: usize = 256;

/// Bytes that wait for all connections of a user together, from which on no more lists are made
/// for it.
pub(super) const QUEUED_BYTES_FOR_LISTS: usize = 16 << 20;

/// Bytes that wait for a connection that has subscribed to events, before it is closed. What the
/// socket has taken, about 200 KiB, does not count.
pub(super) const SUBSCRIBER_UNSENT_BYTES_MAX: usize = 8 << 10;

/// The queue length, in packets, at which a connection is closed.
pub(super) const QUEUE_MAX: usize = 2048;

/// Descriptors that are enough for full tables. Only root raises the hard limit to that.
const DESCRIPTORS_WANTED: u64 = 65_536;

/// Raises the limit of descriptors, the first resource that a daemon with many clients exhausts.
/// Returns what it is then.
pub(super) fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(u64::MAX);
    for wanted in [hard.max(DESCRIPTORS_WANTED), hard] {
        let raised = Rlimit { current: Some(wanted), maximum: Some(wanted) };
        match setrlimit(Resource::Nofile, raised) {
            Ok(()) => return wanted,
            Err(errno) => {
                tracing::debug!("the limit of descriptors cannot be set to {wanted}: {errno}");
            }
        }
    }
    limit.current.unwrap_or(u64::MAX)
}
