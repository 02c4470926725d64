//! Delays connections to unknown names after a restart of the daemon.
//!
//! The processes of an earlier daemon reconnect within two seconds of the next one's start, at
//! different times, and names of other hosts are known when the cluster is reached. Until then a
//! connection to an unknown name waits instead of being refused.

use std::time::{Duration, Instant};

use fable::Name;

use super::Daemon;
use super::connect::Wanted;
use crate::registry::ClientId;

/// How long after its start a daemon waits for processes to reconnect: longer than the longest
/// pause of the library between two attempts.
const RETURN_TIME: Duration = Duration::from_millis(2500);

/// The most waiting connections, in total and of one client.
const WAITING_MAX: usize = 1024;
const WAITING_OF_CLIENT_MAX: usize = 64;

struct Waiting {
    client: ClientId,
    uid: u32,
    name: Name,
    wanted: Wanted,
}

/// The waiting connections.
pub(super) struct Returning {
    until: Option<Instant>,
    waiting: Vec<Waiting>,
}

impl Returning {
    /// Starts waiting at this time; `None` if no process will reconnect.
    pub(super) fn new(started: Option<Instant>) -> Returning {
        Returning { until: started.map(|at| at + RETURN_TIME), waiting: Vec::new() }
    }

    fn is_over(&self) -> bool {
        self.until.is_none_or(|until| until <= Instant::now())
    }

    /// Keeps a connection until the name is known. Returns false if the connection should be
    /// refused now.
    pub(super) fn keep(
        &mut self,
        client: ClientId,
        uid: u32,
        name: &Name,
        wanted: &Wanted,
    ) -> bool {
        let own = self.waiting.iter().filter(|waiting| waiting.client == client).count();
        let of_user = self.waiting.iter().filter(|waiting| waiting.uid == uid).count();
        // A user has no more than what is left for the others.
        let left = WAITING_MAX - self.waiting.len();
        if self.is_over() || own >= WAITING_OF_CLIENT_MAX || of_user >= left {
            return false;
        }
        self.waiting.push(Waiting { client, uid, name: name.clone(), wanted: wanted.clone() });
        true
    }
}

impl Daemon {
    /// Retries the waiting connections, after a name was registered or at a tick. After
    /// `RETURN_TIME` the remaining ones are refused.
    pub(super) fn retry_connects(&mut self) {
        if self.returning.waiting.is_empty() {
            return;
        }
        for Waiting { client, name, wanted, .. } in std::mem::take(&mut self.returning.waiting) {
            self.connect_wanted(client, &name, wanted);
        }
    }
}
