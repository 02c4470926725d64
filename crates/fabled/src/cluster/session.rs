//! The life of a host in etcd. A session is a lease, a listing of the zone, a watch from there on,
//! and the host's own keys; when any of it fails, the whole is made anew, under the same lease if
//! that still lives. So whatever happens to etcd, there is one way back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use super::etcd::{Client, EtcdError, Outcome, Watch};
use super::records::{Key, KeyRecord, SECRET_BYTES, prefix};
use super::registry::{Shared, Step};
use super::view::NAMES_MAX;
use super::wire::{Compare, EventKind};
use super::{interfaces, random};
use crate::cluster_link::ClusterEvent;

const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// How long the orderly end may take.
const FAREWELL: Duration = Duration::from_secs(1);

pub(super) struct Session {
    pub(super) shared: Arc<Shared>,
    pub(super) client: Client,
    pub(super) zone: String,
    pub(super) ttl_s: u32,
    /// The port to advertise on all of the host's addresses, if none were given.
    pub(super) port: Option<u16>,
    pub(super) lease: Option<i64>,
    /// Whether the daemon was told that the cluster is up, or that it is down.
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
    /// Until it is stopped. Then the lease is given back, so that the names are gone at once.
    pub(super) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        tokio::select! {
            () = shared.stop.notified() => {}
            () = self.keep_going() => {}
        }
        if let Some(lease) = self.lease {
            // Without it the lease ends by itself.
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
                // Listing again is all that it takes.
                End::Etcd(EtcdError::Compacted { .. }) => continue,
                End::Etcd(_) => {}
            }
            if self.told != Some(false) {
                self.told = Some(false);
                self.shared.outbox.push(ClusterEvent::Down { reason: end.to_string() });
            }
            tracing::debug!("the session with etcd is over: {end}");
            // Hosts that have lost the same etcd shall not return in the same instant.
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

    /// The first host of a zone draws its secret. If etcd has lost it, whoever comes first brings
    /// it again, so that tickets stay good.
    async fn ensure_secret(&self) -> Result<(), EtcdError> {
        let known = self.shared.lock().view.secret().copied();
        let secret = known.unwrap_or_else(random::<SECRET_BYTES>);
        let Some(path) = Key::Secret.path(&self.zone) else { return Ok(()) };
        let Ok(value) = serde_json::to_vec(&KeyRecord::new(&secret, random())) else {
            return Ok(());
        };
        let outcome = self.client.put_if(Compare::absent(&path), &path, &value, 0).await?;
        let mut state = self.shared.lock();
        let events = match outcome {
            // Not left to the watch: a ticket that is signed with it may be there sooner.
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
