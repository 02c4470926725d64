//! Stores the deadlines of the sessions, in order.

use megapipe::Handle;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Instant;

/// Most stale entries before they are removed.
const MOST_STALE: usize = 1024;

/// Deadlines, the earliest first. A deadline that moves to a later time keeps its old entry, which
/// is taken at its time and put back. A session therefore has one valid entry, whose time it
/// stores.
#[derive(Debug, Default)]
pub(super) struct Deadlines(BinaryHeap<Reverse<Entry>>);

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Instant,
    session: Handle,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.at == other.at
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        self.at.cmp(&other.at)
    }
}

impl Deadlines {
    /// Adds a deadline of a session.
    pub(super) fn add(&mut self, at: Instant, session: Handle) {
        self.0.push(Reverse(Entry { at, session }));
    }

    /// Returns the earliest time.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse(entry)| entry.at)
    }

    /// Takes an entry whose time has come.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(Instant, Handle)> {
        self.next().filter(|at| *at <= now)?;
        self.0.pop().map(|Reverse(entry)| (entry.at, entry.session))
    }

    /// Removes the entries of sessions that are gone, once they are the majority. The amortised
    /// time per added entry is constant.
    pub(super) fn tidy(&mut self, sessions: usize, is_valid: impl Fn(Instant, Handle) -> bool) {
        if self.0.len() > 2 * sessions + MOST_STALE {
            self.0.retain(|Reverse(entry)| is_valid(entry.at, entry.session));
        }
    }
}
