//! Tracks the state of one neighbour (RFC 4861, section 7.3.2).

use super::Lookup;
use crate::time::Instant;
use crate::wire::ethernet::HardwareAddress;
use std::time::Duration;

/// How long a confirmation counts (RFC 4861, section 10: REACHABLE_TIME).
const REACHABLE: Duration = Duration::from_secs(30);

/// Interval between requests for one address (RETRANS_TIMER; RFC 1122, section 2.3.2.1).
const RETRY: Duration = Duration::from_secs(1);

/// Number of requests (MAX_MULTICAST_SOLICIT, MAX_UNICAST_SOLICIT).
const TRIES: u8 = 3;

/// How long an address without answers counts as unreachable before it is requested again.
const SILENCE: Duration = Duration::from_secs(3);

/// How long a confirmed entry cannot be replaced: if two hosts answer, the first answer counts.
const LOCKED: Duration = Duration::from_secs(1);

/// What a packet says about a neighbour.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence {
    /// Its hardware address; `None` if the packet does not change it.
    pub(super) hardware: Option<HardwareAddress>,
    /// Whether the packet answers a request of this cache.
    pub(super) answer: bool,
    /// Whether the packet may replace a known address.
    pub(super) replaces: bool,
}

/// The action at an entry's deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    /// Send a request: to all, or to one host.
    Ask(Option<HardwareAddress>),
    /// No host has answered.
    Unanswered,
    /// Remove the entry.
    Forget,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// `tries` requests to all hosts were sent; the next step follows at `next`.
    Incomplete { tries: u8, next: Instant },
    /// No request was answered.
    Silent { until: Instant },
    /// Confirmed at `since`.
    Reachable { hardware: HardwareAddress, since: Instant },
    /// Never confirmed, or too long ago.
    Stale { hardware: HardwareAddress },
    /// Stale and used since; `tries` requests to this host were sent.
    Probe { hardware: HardwareAddress, tries: u8, next: Instant },
    /// Set by the caller of the cache; does not expire.
    Permanent { hardware: HardwareAddress },
}

/// One neighbour.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    state: State,
    used: Instant,
}

impl Entry {
    /// An entry without a hardware address, which is requested at once.
    pub(super) fn incomplete(now: Instant) -> Entry {
        Entry { state: State::Incomplete { tries: 0, next: now }, used: now }
    }

    /// An entry that packets and time do not change.
    pub(super) fn permanent(hardware: HardwareAddress) -> Entry {
        Entry { state: State::Permanent { hardware }, used: Instant::ZERO }
    }

    /// When it was looked up last.
    pub(super) fn used(&self) -> Instant {
        self.used
    }

    /// Whether the entry was set by [`Entry::permanent`].
    pub(super) fn is_permanent(&self) -> bool {
        matches!(self.state, State::Permanent { .. })
    }

    /// Whether no hardware address is known.
    pub(super) fn is_unresolved(&self) -> bool {
        self.hardware().is_none()
    }

    /// The hardware address, if it is known.
    pub(super) fn hardware(&self) -> Option<HardwareAddress> {
        match self.state {
            State::Incomplete { .. } | State::Silent { .. } => None,
            State::Reachable { hardware, .. }
            | State::Stale { hardware }
            | State::Probe { hardware, .. }
            | State::Permanent { hardware } => Some(hardware),
        }
    }

    /// Returns the state of the entry; starts to probe if it was not confirmed for long.
    pub(super) fn lookup(&mut self, now: Instant) -> Lookup {
        self.used = now;
        match self.state {
            State::Incomplete { .. } => Lookup::Pending,
            State::Silent { .. } => Lookup::Unreachable,
            State::Reachable { hardware, since } if now.since(since) < REACHABLE => {
                Lookup::Known(hardware)
            }
            State::Reachable { hardware, .. } | State::Stale { hardware } => {
                self.state = State::Probe { hardware, tries: 0, next: now };
                Lookup::Known(hardware)
            }
            State::Probe { hardware, .. } | State::Permanent { hardware } => {
                Lookup::Known(hardware)
            }
        }
    }

    /// The time of the next [`Entry::expire`].
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Incomplete { next, .. } | State::Probe { next, .. } => Some(next),
            State::Silent { until } => Some(until),
            State::Reachable { .. } | State::Stale { .. } | State::Permanent { .. } => None,
        }
    }

    /// Performs the next step at the deadline. An entry that is no longer confirmed is not removed
    /// but requested from all hosts (RFC 7048).
    pub(super) fn expire(&mut self, now: Instant) -> Expiry {
        match self.state {
            State::Incomplete { tries: TRIES, .. } => {
                self.state = State::Silent { until: now + SILENCE };
                Expiry::Unanswered
            }
            State::Incomplete { tries, .. } => {
                self.state = State::Incomplete { tries: tries + 1, next: now + RETRY };
                Expiry::Ask(None)
            }
            State::Probe { tries: TRIES, .. } => {
                self.state = State::Incomplete { tries: 1, next: now + RETRY };
                Expiry::Ask(None)
            }
            State::Probe { hardware, tries, .. } => {
                self.state = State::Probe { hardware, tries: tries + 1, next: now + RETRY };
                Expiry::Ask(Some(hardware))
            }
            State::Silent { .. }
            | State::Reachable { .. }
            | State::Stale { .. }
            | State::Permanent { .. } => Expiry::Forget,
        }
    }

    /// Applies a packet's evidence (RFC 4861, section 7.2.5); false if it must not change anything.
    pub(super) fn learn(&mut self, now: Instant, evidence: Evidence) -> bool {
        if self.is_permanent() {
            return evidence.hardware.is_none() || evidence.hardware == self.hardware();
        }
        let Some(hardware) = evidence.hardware.or(self.hardware()) else { return false };
        let changes = self.hardware().is_some_and(|known| known != hardware);
        if changes {
            if let State::Reachable { since, .. } = self.state
                && now.since(since) < LOCKED
            {
                // The host may have moved: the cache probes the known address once and then
                // requests it from all hosts.
                if let Some(known) = self.hardware() {
                    self.state = State::Probe { hardware: known, tries: TRIES - 1, next: now };
                }
                return false;
            }
            if !evidence.replaces {
                if let State::Reachable { hardware, .. } = self.state {
                    self.state = State::Stale { hardware };
                }
                return false;
            }
        }
        let asked = matches!(self.state, State::Incomplete { .. } | State::Probe { .. });
        if evidence.answer && asked {
            self.state = State::Reachable { hardware, since: now };
        } else if changes || self.is_unresolved() {
            self.state = State::Stale { hardware };
        }
        true
    }
}
