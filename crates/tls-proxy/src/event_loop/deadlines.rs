//! When to look at which session next.

use megapipe::Handle;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Instant;

/// Entries that may be out of date before they are looked for.
const MOST_STALE: usize = 1024;

/// Times, the nearest first. A deadline that moves away is not moved here: its old entry is looked
/// at when its time has come, and put back. So a session has one valid entry, which it knows.
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
    pub(super) fn add(&mut self, at: Instant, session: Handle) {
        self.0.push(Reverse(Entry { at, session }));
    }

    /// The nearest time.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse(entry)| entry.at)
    }

    /// Takes an entry whose time has come.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(Instant, Handle)> {
        self.next().filter(|at| *at <= now)?;
        self.0.pop().map(|Reverse(entry)| (entry.at, entry.session))
    }

    /// Takes all of them.
    pub(super) fn drain(&mut self) -> Vec<Handle> {
        self.0.drain().map(|Reverse(entry)| entry.session).collect()
    }

    /// Forgets those of sessions that are gone, once they are most of all. Time per entry added is
    /// constant on average.
    pub(super) fn tidy(&mut self, sessions: usize, is_valid: impl Fn(Instant, Handle) -> bool) {
        if self.0.len() > 2 * sessions + MOST_STALE {
            self.0.retain(|Reverse(entry)| is_valid(entry.at, entry.session));
        }
    }
}
