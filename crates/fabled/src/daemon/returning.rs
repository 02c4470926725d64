//! Connections to names that are not there yet because the daemon has just come back.
//!
//! The processes of an earlier daemon come back within two seconds of the next one's start, each at
//! its own time, and the names of other hosts are known when the cluster is reached. Until then a
//! connection to an unknown name waits instead of being refused.

use std::time::{Duration, Instant};

use fable::Name;

use super::Daemon;
use super::connect::Wanted;
use crate::registry::ClientId;

/// How long after its start a daemon waits for those who come back: longer than the longest pause
/// of the library between two attempts to connect.
const RETURN_TIME: Duration = Duration::from_millis(2500);

/// Connections that wait at most, and of one client.
const WAITING_MAX: usize = 1024;
const WAITING_OF_CLIENT_MAX: usize = 64;

struct Waiting {
    client: ClientId,
    name: Name,
    wanted: Wanted,
}

/// What waits.
pub(super) struct Returning {
    until: Option<Instant>,
    waiting: Vec<Waiting>,
}

impl Returning {
    /// For a daemon that started then; `None` if no process is to come back.
    pub(super) fn new(started: Option<Instant>) -> Returning {
        Returning { until: started.map(|at| at + RETURN_TIME), waiting: Vec::new() }
    }

    fn is_over(&self) -> bool {
        self.until.is_none_or(|until| until <= Instant::now())
    }

    /// Keeps a connection until the name is there; false if it is to be refused now.
    pub(super) fn keep(&mut self, client: ClientId, name: &Name, wanted: &Wanted) -> bool {
        let own = self.waiting.iter().filter(|waiting| waiting.client == client).count();
        if self.is_over() || own >= WAITING_OF_CLIENT_MAX || self.waiting.len() >= WAITING_MAX {
            return false;
        }
        self.waiting.push(Waiting { client, name: name.clone(), wanted: wanted.clone() });
        true
    }
}

impl Daemon {
    /// A name is there, or some time has passed: tries what waits again. When the time is over, all
    /// that is left is refused.
    pub(super) fn retry_connects(&mut self) {
        if self.returning.waiting.is_empty() {
            return;
        }
        for Waiting { client, name, wanted } in std::mem::take(&mut self.returning.waiting) {
            self.connect_wanted(client, &name, wanted);
        }
    }
}
