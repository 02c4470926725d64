//! Defines the state of a connection in its core, beside the relay.

use super::handshakes::Permit;
use crate::backends::Tries;
use crate::relay::{Relay, Stage};
use megapipe::Handle;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long a client may take to end after the last bytes were sent to it.
const LINGER: Duration = Duration::from_secs(5);

/// The longest time of each stage of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) handshake: Duration,
    pub(crate) connect: Duration,
    pub(crate) idle: Duration,
}

/// A client's connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) relay: Relay,
    /// The index of the listener that accepted it.
    pub(super) gate: usize,
    /// The client's address, if it is needed.
    pub(super) peer: Option<SocketAddr>,
    /// Held until the handshake is complete or, if it fails, until the connection ends.
    pub(super) permit: Option<Permit>,
    pub(super) backend: Option<Handle>,
    /// The number of its present or last backend.
    pub(super) target: usize,
    pub(super) tries: Option<Tries>,
    /// When the present stage began or, while bytes are relayed, when bytes were last transferred.
    pub(super) since: Instant,
    /// The time of its entry among the deadlines.
    pub(super) armed: Option<Instant>,
}

impl Session {
    pub(super) fn new(relay: Relay, gate: usize, now: Instant) -> Session {
        let (peer, permit, backend, tries, armed) = (None, None, None, None, None);
        Session { relay, gate, peer, permit, backend, target: 0, tries, since: now, armed }
    }

    /// Returns the time at which the present stage has lasted too long.
    pub(super) fn deadline(&self, limits: &Limits) -> Instant {
        self.since
            + match self.relay.stage() {
                Stage::Handshake => limits.handshake,
                Stage::Connecting => limits.connect,
                Stage::Relaying => limits.idle,
                Stage::Lingering => LINGER,
            }
    }
}
