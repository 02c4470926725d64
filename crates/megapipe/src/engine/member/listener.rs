//! The state of a listener: what the application wants, and the queues that it is served from.

use crate::driver::Object;
use crate::partition::{Membership, Queue};
use crate::slab::Key;
use crate::source::Socket;
use std::collections::VecDeque;
use std::time::Duration;

/// The queue of a listener that shares nothing.
const OWN_QUEUE: u64 = 0;

/// How long accepting pauses at first after an error that passes, unless a descriptor comes free.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// One queue of connections that a listener is served from.
pub(crate) struct Leg {
    pub(crate) queue: u64,
    pub(crate) object: Object,
    pub(crate) request: Option<Key>,
}

/// What is particular to a member that listens.
pub(crate) struct Listener {
    pub(crate) wanted: u32,
    /// How many more the cancelled accepts may still bring, until the last queue's has ended, and
    /// how many of them have not had their last completion.
    pub(crate) ending: u32,
    pub(crate) ends: u32,
    pub(crate) lightweight: bool,
    /// Whether each connection is delivered with its peer's address.
    pub(crate) peer: bool,
    /// Whether it brings packet sockets.
    pub(crate) packets: bool,
    /// Whether accepting pauses after an error that passes, and for how long it will the next time.
    pub(crate) paused: bool,
    pub(crate) pause: Duration,
    pub(crate) legs: Vec<Leg>,
    /// Connections that came when none was wanted any more.
    pub(crate) stash: VecDeque<Socket>,
    /// Connections among the outcomes that are not settled yet.
    pub(crate) undelivered: u32,
    pub(crate) share: Option<Membership>,
    /// Queues of ended channels that could not be attached yet.
    pub(crate) unattached: Vec<Queue>,
}

impl Listener {
    /// A listener with a queue of its own.
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

    /// Tells those who share the listening socket whether this one accepts.
    pub(crate) fn tell_sharers(&mut self, accepts: bool) {
        if let Some(share) = &mut self.share {
            share.set_accepting(accepts);
        }
    }
}
