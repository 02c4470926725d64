//! Implements counters of the cores: each core writes its own, and any thread may read them.

use crate::relay::Outcome;
use std::fmt;
use std::iter::Sum;
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

    pub(crate) fn read(&self) -> Totals {
        Totals {
            connections: self.connections.get(),
            handshakes: self.handshakes.get(),
            resumed: self.resumed.get(),
            failed_handshakes: self.failed_handshakes.get(),
            refused: self.refused.get(),
            whole: self.whole.get(),
            cut_by_client: self.cut_by_client.get(),
            cut_by_backend: self.cut_by_backend.get(),
            cut_by_proxy: self.cut_by_proxy.get(),
            bytes_to_backends: self.bytes_to_backends.get(),
            bytes_to_clients: self.bytes_to_clients.get(),
        }
    }
}

/// The sum of all cores' counters; formats as the line that is printed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    connections: u64,
    handshakes: u64,
    resumed: u64,
    failed_handshakes: u64,
    refused: u64,
    whole: u64,
    cut_by_client: u64,
    cut_by_backend: u64,
    cut_by_proxy: u64,
    bytes_to_backends: u64,
    bytes_to_clients: u64,
}

impl Sum for Totals {
    fn sum<I: Iterator<Item = Totals>>(parts: I) -> Totals {
        parts.fold(Totals::default(), |sum, part| Totals {
            connections: sum.connections.wrapping_add(part.connections),
            handshakes: sum.handshakes.wrapping_add(part.handshakes),
            resumed: sum.resumed.wrapping_add(part.resumed),
            failed_handshakes: sum.failed_handshakes.wrapping_add(part.failed_handshakes),
            refused: sum.refused.wrapping_add(part.refused),
            whole: sum.whole.wrapping_add(part.whole),
            cut_by_client: sum.cut_by_client.wrapping_add(part.cut_by_client),
            cut_by_backend: sum.cut_by_backend.wrapping_add(part.cut_by_backend),
            cut_by_proxy: sum.cut_by_proxy.wrapping_add(part.cut_by_proxy),
            bytes_to_backends: sum.bytes_to_backends.wrapping_add(part.bytes_to_backends),
            bytes_to_clients: sum.bytes_to_clients.wrapping_add(part.bytes_to_clients),
        })
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = self.cut_by_client + self.cut_by_backend + self.cut_by_proxy;
        let ended = self.whole + self.failed_handshakes + self.refused + cut;
        write!(
            out,
            "connections {} (open {}), handshakes {} (resumed {}, failed {}, refused {}), streams \
             whole {} (cut by client {}, backend {}, proxy {}), bytes to backends {}, to \
             clients {}",
            self.connections,
            // Cores continue to count while they are read.
            self.connections.saturating_sub(ended),
            self.handshakes,
            self.resumed,
            self.failed_handshakes,
            self.refused,
            self.whole,
            self.cut_by_client,
            self.cut_by_backend,
            self.cut_by_proxy,
            self.bytes_to_backends,
            self.bytes_to_clients
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
        let text = [first, second].iter().map(Tally::read).sum::<Totals>().to_string();
        assert_eq!(
            text,
            "connections 5 (open 2), handshakes 0 (resumed 0, failed 1, refused 0), streams whole \
             1 (cut by client 0, backend 1, proxy 0), bytes to backends 0, to clients 7"
        );
    }
}
