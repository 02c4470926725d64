//! What a core keeps of each connection beside its relay.

use crate::backends::Tries;
use crate::relay::{Relay, Stage};
use megapipe::Handle;
use std::time::{Duration, Instant};

/// How long a client may take to end after the last word to it.
const LINGER: Duration = Duration::from_secs(5);

/// How long each stage may last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) handshake: Duration,
    pub(crate) connect: Duration,
    pub(crate) idle: Duration,
}

/// A connection of a client.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) relay: Relay,
    /// The listener that it came from.
    pub(super) gate: usize,
    pub(super) backend: Option<Handle>,
    /// The number of the backend that it is, or was last, with.
    pub(super) target: usize,
    pub(super) tries: Option<Tries>,
    /// When the present stage began, or when something moved last while bytes are relayed.
    pub(super) since: Instant,
    /// The time of its valid entry among the deadlines.
    pub(super) armed: Option<Instant>,
}

impl Session {
    pub(super) fn new(relay: Relay, gate: usize, now: Instant) -> Session {
        let (backend, target, tries, armed) = (None, 0, None, None);
        Session { relay, gate, backend, target, tries, since: now, armed }
    }

    /// When the present stage has lasted too long.
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
