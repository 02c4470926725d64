//! Keeps a host's session with etcd. A session is a lease, a listing of the zone, a watch that
//! starts at the listing's revision, and the host's own keys. If any of them fails, the session
//! starts again, under the same lease if that still exists. Every failure of etcd therefore has the
//! same recovery.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use super::etcd::{Client, Outcome, Watch};
use super::etcd_error::EtcdError;
use super::records::{Key, prefix};
use super::registry::{Shared, Step};
use super::view::NAMES_MAX;
use super::wire::{Compare, EventKind};
use super::{interfaces, random};
use crate::cluster_link::ClusterEvent;

const BACKOFF_FIRST: Duration = Duration::from_millis(100);
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
    pub(super) told: Option<bool>,
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
        loop {
            let Err(end) = self.live(&mut backoff).await;
            match &end {
                End::LeaseLost => self.lease = None,
                End::Etcd(error) if error.is_lease_lost() => self.lease = None,
                // A new listing is sufficient.
                End::Etcd(EtcdError::Compacted { .. }) => continue,
                End::Etcd(_) => {}
            }
            if self.told != Some(false) {
                self.told = Some(false);
                self.shared.outbox.push(ClusterEvent::Down { reason: end.to_string() });
            }
            tracing::debug!("the session with etcd is over: {end}");
            // Hosts that lost etcd at the same time should not return at the same time.
            let share = f64::from(u16::from_ne_bytes(random())) / f64::from(u16::MAX);
            sleep(backoff.mul_f64(0.5 + share / 2.0)).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
            let events = self.shared.lock().view.expire(Instant::now());
            self.shared.push_all(events);
        }
    }

    async fn live(&mut self, backoff: &mut Duration) -> Result<Never, End> {
        let lease = self.ensure_lease().await?;
        let revision = self.list().await?;
        self.ensure_secret().await?;
        let watch = self.client.watch(&prefix(&self.zone), revision + 1).await?;
        *backoff = BACKOFF_FIRST;
        let told = &mut self.told;
        let (client, shared, zone) = (&self.client, &*self.shared, self.zone.as_str());
        let beat = Duration::from_secs(self.ttl_s.into()) / 4;
        tokio::select! {
            end = keep_alive(client, shared, lease, beat) => end,
            end = follow(shared, watch) => end,
            end = reconcile(client, shared, zone, lease, told) => end,
        }
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

    async fn list(&self) -> Result<i64, EtcdError> {
        let listing = self.client.list(&prefix(&self.zone), 2 * NAMES_MAX).await?;
        let grace = Duration::from_secs(self.ttl_s.into()) * 2;
        let mut state = self.shared.lock();
        if let Some(port) = self.port {
            state.host_record = state.host_record.with_addresses(&interfaces::addresses(port));
        }
        state.unblock();
        let events = state.view.replace(&listing, Instant::now(), grace);
        drop(state);
        self.shared.push_all(events);
        Ok(listing.revision)
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
    beat: Duration,
) -> Result<Never, End> {
    loop {
        sleep(beat).await;
        if !client.keep_alive(lease).await? {
            return Err(End::LeaseLost);
        }
        let events = shared.lock().view.expire(Instant::now());
        shared.push_all(events);
    }
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
    told: &mut Option<bool>,
) -> Result<Never, End> {
    loop {
        let (joined, standing, steps) = {
            let mut state = shared.lock();
            (state.is_joined(lease), state.confirm(lease), state.plan(lease))
        };
        if joined && *told != Some(true) {
            *told = Some(true);
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
