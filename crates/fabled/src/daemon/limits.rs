//! How much there may be of everything.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Connections taken in one turn of the loop.
pub(super) const ACCEPTED_AT_ONCE: usize = 64;

/// Connections.
pub(super) const CLIENTS_MAX: usize = 8192;

/// Connections of one user who is no operator.
pub(super) const CLIENTS_OF_USER_MAX: usize = 2048;

/// Names of one connection.
pub(super) const NAMES_MAX: usize = 1024;

/// Entries of a list of users or groups who may connect.
pub(super) const ACCESS_MAX: usize = 1024;

/// Flows that one connection may make; those that others make to it are counted there.
pub(super) const FLOWS_OF_CLIENT_MAX: usize = 4096;

/// Flows; each costs one of the 65,530 mappings that a process may have.
pub(super) const FLOWS_MAX: usize = 32_768;

/// Packets taken from one connection before the others get their turn.
pub(super) const PACKETS_AT_ONCE: usize = 32;

/// Packets taken from one connection in one period of observation; the rest waits for the next.
pub(super) const PACKETS_PER_TICK: u32 = 2048;

/// Packets for a connection that make us stop to listen to it until it reads.
pub(super) const QUEUE_TO_PAUSE: usize = 16;

/// New flows that may wait for a listening process to read of them.
pub(super) const QUEUE_FOR_INCOMING: usize = 256;

/// Bytes that wait for all connections together, from which on no more lists are made.
pub(super) const QUEUED_BYTES_FOR_LISTS: usize = 64 << 20;

/// Packets for a connection that get it closed.
pub(super) const QUEUE_MAX: usize = 2048;

/// Descriptors are the first thing that a daemon with many clients runs out of.
pub(super) fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(errno) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!("the limit of descriptors stays at {:?}: {errno}", limit.current);
    }
}
