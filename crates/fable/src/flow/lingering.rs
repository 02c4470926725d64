//! What lives on of flows that are closed: connections whose peers have not acknowledged all that
//! was committed. The agent keeps them, so many for each peer, and each for so long.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::agent::{Agent, Keep, Share, Watched};
use crate::identity::Peer;
use crate::transport::{Remainder, Undelivered};

/// How often the agent looks at what is still under way.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Connections that are kept for one user of one host. A connection beyond that is closed at once:
/// the kernel still delivers what it has taken, unless the peer sends something more.
const CONNECTIONS_PER_PEER_MAX: usize = 256;

/// Up to so many times the grace a connection is kept, however slowly its peer acknowledges.
const GRACES_MAX: u32 = 6;

/// Connections that were closed before their peers had acknowledged everything.
static GIVEN_UP: AtomicU64 = AtomicU64::new(0);

/// Connections of closed flows in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lingering {
    /// Those that are kept now until their peers have acknowledged everything: at most 256 for each
    /// user of a host, each for up to six times [`Timeouts::grace`](super::Timeouts::grace).
    pub connections: u64,
    /// Those that were closed before, since the process began.
    pub given_up: u64,
}

/// What this process keeps of flows that are closed.
pub fn lingering() -> Lingering {
    let connections = Agent::get().map_or(0, |agent| agent.quota().total() as u64);
    Lingering { connections, given_up: GIVEN_UP.load(Ordering::Relaxed) }
}

/// Lets the agent look after a connection that must not be closed yet, and count the messages that
/// are not delivered in the end.
pub(super) fn keep(
    mut remainder: Remainder,
    peer: &Peer,
    grace: Duration,
    counter: Arc<AtomicU64>,
) {
    let undelivered = remainder.undelivered();
    let now = Instant::now();
    let (deadline, last_deadline) = (now + grace, now + GRACES_MAX * grace);
    let (share, next_look) = (None, now + LOOK_EVERY);
    let mut linger = Linger {
        remainder,
        undelivered,
        grace,
        deadline,
        last_deadline,
        next_look,
        counter,
        share,
    };
    if linger.look() == Keep::Not {
        return;
    }
    let Ok(agent) = Agent::get() else { return linger.give_up() };
    let peer = format!("{} on {}", peer.uid, peer.host);
    linger.share = agent.quota().take(&peer, CONNECTIONS_PER_PEER_MAX);
    match linger.share {
        Some(_) => drop(agent.watch(Box::new(linger))),
        None => linger.give_up(),
    }
}

/// The agent's entry for a connection whose flow is closed.
struct Linger {
    remainder: Remainder,
    /// What was not delivered at the last look.
    undelivered: Undelivered,
    /// How long the peer may acknowledge nothing.
    grace: Duration,
    deadline: Instant,
    /// However much it acknowledges.
    last_deadline: Instant,
    next_look: Instant,
    counter: Arc<AtomicU64>,
    share: Option<Share>,
}

impl Linger {
    fn look(&mut self) -> Keep {
        self.remainder.discard();
        let undelivered = self.remainder.undelivered();
        let now = Instant::now();
        self.next_look = now + LOOK_EVERY;
        if undelivered != self.undelivered {
            self.undelivered = undelivered;
            self.deadline = (now + self.grace).min(self.last_deadline);
        }
        if undelivered == Undelivered::default() {
            return Keep::Not;
        }
        if self.remainder.is_over() || self.deadline <= now {
            self.give_up();
            return Keep::Not;
        }
        Keep::Watching
    }

    fn give_up(&mut self) {
        GIVEN_UP.fetch_add(1, Ordering::Relaxed);
        self.counter.fetch_add(self.undelivered.messages, Ordering::Relaxed);
    }
}

impl Watched for Linger {
    fn descriptor(&self) -> RawFd {
        self.remainder.descriptor()
    }

    fn events(&self) -> i16 {
        libc::POLLIN
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.deadline.min(self.next_look))
    }

    fn ready(&mut self, _events: i16) -> Keep {
        self.look()
    }
}
