//! One neighbour (RFC 4861, section 7.3.2).

use super::Lookup;
use crate::time::Instant;
use crate::wire::ethernet::HardwareAddress;
use std::time::Duration;

/// How long a confirmation counts (RFC 4861, section 10: REACHABLE_TIME).
const REACHABLE: Duration = Duration::from_secs(30);

/// The distance of questions about one address (RETRANS_TIMER; RFC 1122, section 2.3.2.1).
const RETRY: Duration = Duration::from_secs(1);

/// How often is asked (MAX_MULTICAST_SOLICIT, MAX_UNICAST_SOLICIT).
const TRIES: u8 = 3;

/// For how long a silent address is taken for unreachable before it is asked for again.
const SILENCE: Duration = Duration::from_secs(3);

/// For how long what was confirmed is not replaced: of two that answer, the first one counts.
const LOCKED: Duration = Duration::from_secs(1);

/// What a packet says about a neighbour.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence {
    /// Its hardware address; `None`: it is as it was.
    pub(super) hardware: Option<HardwareAddress>,
    /// It answers a question to us.
    pub(super) answer: bool,
    /// It may replace what is known.
    pub(super) replaces: bool,
}

/// What becomes of an entry whose time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    /// A question is to be sent: to all, or to one station.
    Ask(Option<HardwareAddress>),
    /// Nobody has answered.
    Unanswered,
    /// The entry is of no use.
    Forget,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// `tries` questions to all were sent; the next step is due at `next`.
    Incomplete { tries: u8, next: Instant },
    /// All questions were in vain.
    Silent { until: Instant },
    /// Confirmed at `since`.
    Reachable { hardware: HardwareAddress, since: Instant },
    /// Not confirmed, or long ago.
    Stale { hardware: HardwareAddress },
    /// As stale, but used since; `tries` questions to the station were sent.
    Probe { hardware: HardwareAddress, tries: u8, next: Instant },
    /// Set from outside.
    Permanent { hardware: HardwareAddress },
}

/// One neighbour.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    state: State,
    used: Instant,
}

impl Entry {
    /// One that is to be asked for now.
    pub(super) fn incomplete(now: Instant) -> Entry {
        Entry { state: State::Incomplete { tries: 0, next: now }, used: now }
    }

    /// One that stays as it is.
    pub(super) fn permanent(hardware: HardwareAddress) -> Entry {
        Entry { state: State::Permanent { hardware }, used: Instant::ZERO }
    }

    /// When it was looked up last.
    pub(super) fn used(&self) -> Instant {
        self.used
    }

    pub(super) fn is_permanent(&self) -> bool {
        matches!(self.state, State::Permanent { .. })
    }

    /// Whether no hardware address is known.
    pub(super) fn is_unresolved(&self) -> bool {
        self.hardware().is_none()
    }

    pub(super) fn hardware(&self) -> Option<HardwareAddress> {
        match self.state {
            State::Incomplete { .. } | State::Silent { .. } => None,
            State::Reachable { hardware, .. }
            | State::Stale { hardware }
            | State::Probe { hardware, .. }
            | State::Permanent { hardware } => Some(hardware),
        }
    }

    /// What is known; begins to probe what was not confirmed for long.
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

    /// When [`Entry::expire`] is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Incomplete { next, .. } | State::Probe { next, .. } => Some(next),
            State::Silent { until } => Some(until),
            State::Reachable { .. } | State::Stale { .. } | State::Permanent { .. } => None,
        }
    }

    /// Takes the next step, which must be due. A station that no longer answers is not given up,
    /// but looked for (RFC 7048).
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

    /// Takes what a packet says (RFC 4861, section 7.2.5); false if that must not change anything.
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
                // It may have moved all the same: asked once, then looked for.
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
