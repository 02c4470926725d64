//! Implements counters of the cores: each core writes its own, and any thread may read them.

use crate::relay::Outcome;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of a core, which only that core changes.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    pub(crate) connections: Count,
    pub(crate) handshakes: Count,
    pub(crate) resumed: Count,
    pub(crate) failed_handshakes: Count,
    pub(crate) refused: Count,
    pub(crate) whole: Count,
    pub(crate) cut_by_client: Count,
    pub(crate) cut_by_backend: Count,
    pub(crate) cut_by_proxy: Count,
    pub(crate) bytes_to_backends: Count,
    pub(crate) bytes_to_clients: Count,
}

/// A counter with one writing thread.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds a number. With one writer, no atomic read-modify-write is needed.
    pub(crate) fn add(&self, number: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(number), Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Tally {
    /// Counts the outcome of a connection.
    pub(crate) fn ended(&self, outcome: Outcome) {
        let count = match outcome {
            Outcome::Whole => &self.whole,
            Outcome::NoHandshake => &self.failed_handshakes,
            Outcome::NoBackend | Outcome::BackendFailed => &self.cut_by_backend,
            Outcome::ClientFailed => &self.cut_by_client,
            Outcome::Cut => &self.cut_by_proxy,
        };
        count.add(1);
    }
}

/// The sum of all cores' counters; formats as the line that is printed.
#[derive(Debug)]
pub(crate) struct Totals<'a>(pub(crate) &'a [Tally]);

impl fmt::Display for Totals<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |counter: fn(&Tally) -> &Count| {
            self.0.iter().fold(0, |sum: u64, tally| sum.wrapping_add(counter(tally).get()))
        };
        let connections = sum(|tally| &tally.connections);
        let (failed, refused) =
            (sum(|tally| &tally.failed_handshakes), sum(|tally| &tally.refused));
        let (whole, by_client) = (sum(|tally| &tally.whole), sum(|tally| &tally.cut_by_client));
        let by_backend = sum(|tally| &tally.cut_by_backend);
        let by_proxy = sum(|tally| &tally.cut_by_proxy);
        // Cores continue to count while they are read.
        let open = connections
            .saturating_sub(whole + failed + refused + by_client + by_backend + by_proxy);
        write!(
            out,
            "connections {connections} (open {open}), handshakes {} (resumed {}, failed {failed}, \
             refused {refused}), streams whole {whole} (cut by client {by_client}, backend \
             {by_backend}, proxy {by_proxy}), bytes to backends {}, to clients {}",
            sum(|tally| &tally.handshakes),
            sum(|tally| &tally.resumed),
            sum(|tally| &tally.bytes_to_backends),
            sum(|tally| &tally.bytes_to_clients)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_cores_are_added_and_told() {
        let (first, second) = (Tally::default(), Tally::default());
        first.connections.add(3);
        second.connections.add(2);
        first.ended(Outcome::Whole);
        first.ended(Outcome::NoHandshake);
        second.ended(Outcome::NoBackend);
        second.bytes_to_clients.add(7);
        let text = Totals(&[first, second]).to_string();
        assert_eq!(
            text,
            "connections 5 (open 2), handshakes 0 (resumed 0, failed 1, refused 0), streams whole \
             1 (cut by client 0, backend 1, proxy 0), bytes to backends 0, to clients 7"
        );
    }
}
