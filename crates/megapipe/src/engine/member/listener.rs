//! Tracks the state of a listener: the wanted connections, and the accept queues that it uses.

use crate::driver::Object;
use crate::partition::{Membership, Queue};
use crate::slab::Key;
use crate::source::Socket;
use std::collections::VecDeque;
use std::time::Duration;

/// The queue number of a listener that is not partitioned.
const OWN_QUEUE: u64 = 0;

/// First pause after a transient error, unless a descriptor is closed earlier.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// One accept queue of a listener.
pub(crate) struct Leg {
    pub(crate) queue: u64,
    pub(crate) object: Object,
    pub(crate) request: Option<Key>,
}

/// The state of a member that listens.
pub(crate) struct Listener {
    pub(crate) wanted: u32,
    /// How many connections the cancelled accepts may still return, until the accept of the last
    /// queue has ended; and how many cancelled accepts have not had their last completion.
    pub(crate) ending: u32,
    pub(crate) ends: u32,
    pub(crate) lightweight: bool,
    /// Whether each connection is delivered with its peer's address.
    pub(crate) peer: bool,
    /// Whether its connections are packet sockets.
    pub(crate) packets: bool,
    /// Whether accepting is paused after a transient error, and the length of the next pause.
    pub(crate) paused: bool,
    pub(crate) pause: Duration,
    pub(crate) legs: Vec<Leg>,
    /// Connections that arrived when no more were wanted.
    pub(crate) stash: VecDeque<Socket>,
    /// Connections among the outcomes that are not processed yet.
    pub(crate) undelivered: u32,
    pub(crate) share: Option<Membership>,
    /// Adopted queues that could not be attached yet.
    pub(crate) unattached: Vec<Queue>,
}

impl Listener {
    /// Creates a listener with a queue of its own.
    pub(crate) fn alone(object: Object, packets: bool) -> Listener {
        Listener {
            wanted: 0,
            ending: 0,
            ends: 0,
            lightweight: false,
            peer: false,
            packets,
            paused: false,
            pause: FIRST_PAUSE,
            legs: vec![Leg { queue: OWN_QUEUE, object, request: None }],
            stash: VecDeque::new(),
            undelivered: 0,
            share: None,
            unattached: Vec::new(),
        }
    }

    /// Publishes to the other members of the partition whether this one accepts.
    pub(crate) fn notify_sharers(&mut self, accepts: bool) {
        if let Some(share) = &mut self.share {
            share.set_accepting(accepts);
        }
    }
}
