//! Keeps a host's session with etcd. A session is a lease, a copy of the zone, a watch that starts
//! at the copy's revision, and the host's own keys. If any of them fails, the session starts again,
//! under the same lease if that still exists. Every failure of etcd therefore has the same
//! recovery.
//!
//! In a large zone all hosts lose etcd at the same moment. So they come back at different ones,
//! renew their leases at different ones, and list the zone again only if the watch cannot continue:
//! 10,000 listings of 10,000 hosts are more than 100 GB.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use super::etcd::{Client, Outcome, Watch};
use super::etcd_error::EtcdError;
use super::records::{Key, prefix};
use super::registry::{Shared, State, Step};
use super::view::NAMES_MAX;
use super::wire::{Compare, EventKind};
use super::{interfaces, random};
use crate::cluster_link::ClusterEvent;

const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// The longest backoff is at least this, and at most half of the lease.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// The most time for revoking the lease at the end.
const FAREWELL: Duration = Duration::from_secs(1);

/// A host's session: its client, its options, and the state shared with the daemon's loop.
pub(super) struct Session {
    pub(super) shared: Arc<Shared>,
    pub(super) client: Client,
    pub(super) zone: String,
    pub(super) ttl_s: u32,
    /// The port to advertise on all of the host's addresses, if none were given.
    pub(super) port: Option<u16>,
    pub(super) lease: Option<i64>,
    /// The state of the cluster that was reported to the daemon: up or down.
    pub(super) told: Cell<Option<bool>>,
    /// Set if the copy of the zone is that of the revision up to which it was watched.
    pub(super) is_copied: Cell<bool>,
}

/// Why a session is over.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    #[error("this host's lease has ended before it was renewed")]
    LeaseLost,
}

enum Never {}

impl Session {
    /// Runs sessions until it is stopped. Then revokes the lease, so that the names are removed at
    /// once.
    pub(super) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        tokio::select! {
            () = shared.stop.notified() => {}
            () = self.keep_going() => {}
        }
        if let Some(lease) = self.lease {
            // If this fails, the lease expires.
            let _ = timeout(FAREWELL, self.client.revoke(lease)).await;
        }
    }

    async fn keep_going(&mut self) {
        let mut backoff = BACKOFF_FIRST;
        let backoff_max = BACKOFF_MAX.max(self.ttl() / 2);
        loop {
            let Err(end) = self.live(&mut backoff).await;
            match &end {
                End::LeaseLost => self.lease = None,
                End::Etcd(error) if error.is_lease_lost() => self.lease = None,
                End::Etcd(error) if error.is_absence() => {}
                // What the watch cannot report, a listing may contain.
                End::Etcd(_) => self.is_copied.set(false),
            }
            if matches!(end, End::Etcd(EtcdError::Compacted { .. })) {
                continue;
            }
            if self.told.get() != Some(false) {
                self.told.set(Some(false));
                self.shared.outbox.push(ClusterEvent::Down { reason: end.to_string() });
            }
            tracing::debug!("the session with etcd is over: {end}");
            // Hosts that lost etcd at the same time should not return at the same time.
            sleep(backoff.mul_f64(0.5 + random_share() / 2.0)).await;
            backoff = (backoff * 2).min(backoff_max);
            let events = self.shared.lock().view.expire(Instant::now());
            self.shared.push_all(events);
        }
    }

    async fn live(&mut self, backoff: &mut Duration) -> Result<Never, End> {
        let lease = self.ensure_lease().await?;
        // The listing of a large zone may take longer than a lease lasts.
        tokio::select! {
            end = keep_alive(&self.client, &self.shared, lease, self.ttl()) => end,
            end = self.take_part(lease, backoff) => end,
        }
    }

    /// Brings the copy of the zone up to date, and keeps it and the host's own keys so.
    async fn take_part(&self, lease: i64, backoff: &mut Duration) -> Result<Never, End> {
        let revision = match self.resume().await? {
            // The store has been found to have its record.
            Some(revision) => revision,
            None => {
                let revision = self.list().await?;
                self.ensure_secret().await?;
                revision
            }
        };
        let watch = self.client.watch(&prefix(&self.zone), revision + 1).await?;
        *backoff = BACKOFF_FIRST;
        tokio::select! {
            end = follow(&self.shared, watch) => end,
            end = reconcile(&self.client, &self.shared, &self.zone, lease, &self.told) => end,
        }
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(self.ttl_s.into())
    }

    async fn ensure_lease(&mut self) -> Result<i64, EtcdError> {
        if let Some(lease) = self.lease
            && self.client.keep_alive(lease).await?
        {
            return Ok(lease);
        }
        let lease = self.client.grant(self.ttl_s).await?;
        self.lease = Some(lease);
        Ok(lease)
    }

    /// Returns the revision up to which the copy of the zone is complete, if the store is the same
    /// and a watch can continue there.
    async fn resume(&self) -> Result<Option<i64>, EtcdError> {
        let Some(path) = Key::Secret.path(&self.zone).filter(|_| self.is_copied.get()) else {
            return Ok(None);
        };
        let store = self.client.list(&path, 1).await?;
        let mut state = self.shared.lock();
        self.renew_addresses(&mut state);
        Ok(state.view.continues_in(&store).then_some(state.view.watched))
    }

    async fn list(&self) -> Result<i64, EtcdError> {
        let listing = self.client.list(&prefix(&self.zone), 2 * NAMES_MAX).await?;
        let mut state = self.shared.lock();
        self.renew_addresses(&mut state);
        let events = state.view.replace(&listing, Instant::now(), self.ttl() * 2);
        drop(state);
        self.is_copied.set(true);
        self.shared.push_all(events);
        Ok(listing.revision)
    }

    /// Prepares the state for writing this host's keys again.
    fn renew_addresses(&self, state: &mut State) {
        if let Some(port) = self.port {
            state.host_record = state.host_record.with_addresses(&interfaces::addresses(port));
        }
        state.unblock();
    }

    /// Creates the record of the store if there is none. If etcd has lost it, the first host that
    /// reconnects writes the known secret again, so that tickets stay valid.
    async fn ensure_secret(&self) -> Result<(), EtcdError> {
        let Some(path) = Key::Secret.path(&self.zone) else { return Ok(()) };
        let value = self.shared.lock().view.new_store(random(), random());
        let Some(value) = value else { return Ok(()) };
        let outcome = self.client.put_if(Compare::absent(&path), &path, &value, 0).await?;
        let mut state = self.shared.lock();
        let events = match outcome {
            // Applied now, because a ticket that is signed with it may arrive before the watch's
            // report.
            Outcome::Differs(_, Some(entry)) => {
                state.view.apply(&EventKind::Put, &entry, Instant::now())
            }
            other => {
                let step = Step::Create { key: Key::Secret, value };
                state.conclude(step, other, 0, Instant::now())
            }
        };
        drop(state);
        self.shared.push_all(events);
        Ok(())
    }
}

async fn keep_alive(
    client: &Client,
    shared: &Shared,
    lease: i64,
    ttl: Duration,
) -> Result<Never, End> {
    let mut pause = first_pause(ttl, random_share());
    loop {
        sleep(pause).await;
        pause = next_pause(ttl, random_share());
        if !client.keep_alive(lease).await? {
            return Err(End::LeaseLost);
        }
        let events = shared.lock().view.expire(Instant::now());
        shared.push_all(events);
    }
}

/// Returns the time until the first renewal of a lease; `share` is a random number of 0 to 1. Hosts
/// that joined at the same moment renew at different ones from the beginning.
fn first_pause(ttl: Duration, share: f64) -> Duration {
    (ttl / 3).mul_f64(share)
}

/// Returns the time until the next renewal: a quarter to a third of the lease, so that a renewal
/// that fails can be repeated in time.
fn next_pause(ttl: Duration, share: f64) -> Duration {
    ttl / 4 + (ttl / 12).mul_f64(share)
}

/// Returns a random number of 0 to 1.
fn random_share() -> f64 {
    f64::from(u16::from_ne_bytes(random())) / f64::from(u16::MAX)
}

async fn follow(shared: &Shared, mut watch: Watch) -> Result<Never, End> {
    loop {
        let changes = watch.next().await?;
        let now = Instant::now();
        for change in &changes.events {
            let (concerns_us, events) = shared.lock().apply(&change.kind, &change.kv, now);
            shared.push_all(events);
            if concerns_us {
                shared.changed.notify_one();
            }
        }
    }
}

async fn reconcile(
    client: &Client,
    shared: &Shared,
    zone: &str,
    lease: i64,
    told: &Cell<Option<bool>>,
) -> Result<Never, End> {
    loop {
        let (joined, standing, steps) = {
            let mut state = shared.lock();
            (state.is_joined(lease), state.confirm(lease), state.plan(lease))
        };
        if joined && told.get() != Some(true) {
            told.set(Some(true));
            shared.outbox.push(ClusterEvent::Up);
        }
        shared.push_all(standing);
        if steps.is_empty() {
            shared.changed.notified().await;
        }
        for step in steps {
            let outcome = perform(client, zone, &step, lease).await?;
            let events = shared.lock().conclude(step, outcome, lease, Instant::now());
            shared.push_all(events);
        }
    }
}

async fn perform(
    client: &Client,
    zone: &str,
    step: &Step,
    lease: i64,
) -> Result<Outcome, EtcdError> {
    let path = |key: &Key| key.path(zone).unwrap_or_default();
    match step {
        Step::Create { key, value } => {
            let path = path(key);
            client.put_if(Compare::absent(&path), &path, value, lease).await
        }
        Step::Replace { key, value, revision } => {
            let path = path(key);
            client.put_if(Compare::unchanged(&path, *revision), &path, value, lease).await
        }
        Step::Delete { key, revision } => {
            let path = path(key);
            client.delete_if(Compare::unchanged(&path, *revision), &path).await
        }
    }
}

#[cfg(test)]
mod tests;
