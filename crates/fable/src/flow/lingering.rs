//! Lingering connections of closed flows, whose peers have not acknowledged everything that was
//! committed. The agent keeps a limited number of them for each peer, each for a limited time.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::agent::{Agent, Share, WatchOutcome, Watched};
use crate::identity::Peer;
use crate::transport::{Remainder, Undelivered};

/// The interval at which the agent checks lingering connections.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The most connections that are kept for one user of one host. A further one is closed at once:
/// the kernel still delivers what it has taken, unless the peer sends something more.
const CONNECTIONS_PER_PEER_MAX: usize = 256;

/// The most grace times for which a connection is kept, however slowly its peer acknowledges.
const GRACES_MAX: u32 = 6;

/// Counts connections that were closed before their peers had acknowledged everything.
static GIVEN_UP: AtomicU64 = AtomicU64::new(0);

/// Connections of closed flows in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lingering {
    /// The connections that are kept at present until their peers have acknowledged everything: at
    /// most 256 for each user of a host, each for up to six times
    /// [`Timeouts::grace`](super::Timeouts::grace).
    pub connections: u64,
    /// The connections that were closed before that, since the process began.
    pub given_up: u64,
}

/// Returns how many connections of closed flows this process keeps, and how many it has given up.
pub fn lingering() -> Lingering {
    let connections = Agent::get().map_or(0, |agent| agent.quota().total() as u64);
    Lingering { connections, given_up: GIVEN_UP.load(Ordering::Relaxed) }
}

/// Hands a connection that must not be closed yet to the agent, which counts the messages that are
/// finally not delivered.
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
    if linger.look() == WatchOutcome::Not {
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

/// The agent's entry for a lingering connection.
struct Linger {
    remainder: Remainder,
    /// What was not delivered at the last check.
    undelivered: Undelivered,
    /// The longest time without an acknowledgement.
    grace: Duration,
    deadline: Instant,
    /// The end of waiting, even if the peer still acknowledges.
    last_deadline: Instant,
    next_look: Instant,
    counter: Arc<AtomicU64>,
    share: Option<Share>,
}

impl Linger {
    fn look(&mut self) -> WatchOutcome {
        self.remainder.discard();
        let undelivered = self.remainder.undelivered();
        let now = Instant::now();
        self.next_look = now + LOOK_EVERY;
        if undelivered != self.undelivered {
            self.undelivered = undelivered;
            self.deadline = (now + self.grace).min(self.last_deadline);
        }
        if undelivered == Undelivered::default() {
            return WatchOutcome::Not;
        }
        if self.remainder.is_over() || self.deadline <= now {
            self.give_up();
            return WatchOutcome::Not;
        }
        WatchOutcome::Watching
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

    fn ready(&mut self, _events: i16) -> WatchOutcome {
        self.look()
    }
}
