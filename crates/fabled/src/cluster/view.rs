//! Copy of the zone's records in etcd. Names are looked up here, so that lookups work while etcd is
//! slow or unreachable.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fable::Name;

use super::etcd::Listing;
use super::records::{
    BadRecord, HostRecord, Key, KeyRecord, NameRecord, SEALED_BYTES_MAX, SECRET_BYTES,
};
use super::wire::{EventKind, KeyValue};
use super::zone_secret::ZoneKeys;
use crate::cluster_link::{ClusterEvent, RemoteName};

/// The most names of a zone; further ones are ignored.
pub(super) const NAMES_MAX: usize = 64 * 1024;
/// The most hosts of a zone; further ones are ignored.
pub(super) const HOSTS_MAX: usize = 16 * 1024;
/// How long tickets under a replaced secret are accepted: longer than a ticket is valid.
const FORMER_SECRET_LIFE: Duration = Duration::from_secs(90);

/// A record as it is in etcd.
#[derive(Clone, Debug)]
pub(super) struct Entry<R> {
    pub(super) record: R,
    /// The revision of its latest change: the registration's epoch.
    pub(super) revision: i64,
    pub(super) lease: i64,
    /// Set if the store has lost the record: until then its owner can write it again.
    unconfirmed_until: Option<Instant>,
}

impl<R> Entry<R> {
    /// Returns whether the record is in the present store.
    pub(super) fn is_confirmed(&self) -> bool {
        self.unconfirmed_until.is_none()
    }
}

/// The copy of a zone's records.
#[derive(Default)]
pub(super) struct View {
    zone: String,
    host: String,
    /// The most hosts and names of others that are kept.
    hosts_max: usize,
    names_max: usize,
    /// The names, by service and instance.
    names: BTreeMap<String, BTreeMap<String, Entry<NameRecord>>>,
    names_count: usize,
    hosts: BTreeMap<String, Entry<HostRecord>>,
    /// Authenticate the records, if the zone has a secret file.
    keys: Option<ZoneKeys>,
    secret: Option<[u8; SECRET_BYTES]>,
    former_secret: Option<([u8; SECRET_BYTES], Instant)>,
    /// Identifies the store that the secret came from.
    store: Option<String>,
    /// etcd's cluster that the copy came from.
    cluster: String,
    revision: i64,
    /// The revision up to which listing and watch have reported everything.
    pub(super) watched: i64,
}

impl View {
    /// Creates an empty copy.
    pub(super) fn new(zone: &str, host: &str) -> View {
        let (zone, host) = (zone.to_owned(), host.to_owned());
        View { zone, host, hosts_max: HOSTS_MAX, names_max: NAMES_MAX, ..View::default() }
    }

    /// Keeps the records of at most this many hosts and names.
    pub(super) fn limit(&mut self, records_max: usize) {
        (self.hosts_max, self.names_max) = (records_max, records_max);
    }

    /// Believes only records that were authenticated with these keys, and signs tickets with them.
    pub(super) fn protect(&mut self, keys: ZoneKeys) {
        self.secret = Some(keys.tickets());
        self.keys = Some(keys);
    }

    /// Returns the value with which etcd gets this record.
    pub(super) fn seal(&self, key: &Key, record: &impl serde::Serialize) -> Option<Vec<u8>> {
        let record = serde_json::to_vec(record).ok()?;
        match &self.keys {
            Some(keys) => keys.seal(&key.path(&self.zone)?, record),
            None => Some(record),
        }
    }

    /// Returns the value of a new record of the store. In a zone without a secret file it contains
    /// the known secret, or else a new one.
    pub(super) fn new_store(&self, secret: [u8; SECRET_BYTES], store: [u8; 16]) -> Option<Vec<u8>> {
        let secret = self.secret.unwrap_or(secret);
        let secret = self.keys.is_none().then_some(&secret);
        self.seal(&Key::Secret, &KeyRecord::new(secret, store))
    }

    /// Replaces the copy by a listing of the whole zone. If etcd has another store, or its revision
    /// has gone back, missing records are kept for `grace`, because their owners still run.
    pub(super) fn replace(
        &mut self,
        listing: &Listing,
        now: Instant,
        grace: Duration,
    ) -> Vec<ClusterEvent> {
        let was_lost = listing.revision < self.revision || self.is_other_store(listing);
        self.cluster.clone_from(&listing.cluster);
        self.revision = listing.revision;
        self.watched = listing.revision;
        let found: BTreeSet<Key> = listing
            .entries
            .iter()
            .filter_map(|entry| Key::parse(&self.zone, &entry.key.0).ok())
            .collect();
        let missing: Vec<Key> = self.keys().filter(|key| !found.contains(key)).collect();
        let mut events = Vec::new();
        for key in missing {
            if was_lost && !self.is_own(&key) {
                self.doubt(&key, now + grace);
            } else {
                events.extend(self.remove(&key));
            }
        }
        if was_lost {
            self.forget_revisions();
        }
        for entry in &listing.entries {
            events.extend(self.apply(&EventKind::Put, entry, now));
        }
        events
    }

    /// Returns whether the copy is an earlier state of the store with this listing, which contains
    /// at least the record of the store. A restored snapshot is another state: its revisions may
    /// have other contents.
    pub(super) fn continues_in(&self, listing: &Listing) -> bool {
        let is_later = listing.revision >= self.revision && listing.cluster == self.cluster;
        is_later && self.store.is_some() && !self.is_other_store(listing)
    }

    /// Applies one change. Changes may arrive twice; those of this host's own transactions do.
    pub(super) fn apply(
        &mut self,
        kind: &EventKind,
        entry: &KeyValue,
        now: Instant,
    ) -> Vec<ClusterEvent> {
        let revision = entry.mod_revision.0;
        self.revision = self.revision.max(revision);
        let ignored = |reason: BadRecord| {
            let key = String::from_utf8_lossy(&entry.key.0).escape_debug().to_string();
            tracing::warn!("etcd's key {key} is ignored: {reason}");
        };
        let key = match Key::parse(&self.zone, &entry.key.0) {
            Ok(key) => key,
            Err(reason) => {
                ignored(reason);
                return Vec::new();
            }
        };
        match kind {
            _ if self.revision_of(&key).is_some_and(|known| revision < known) => Vec::new(),
            EventKind::Delete => self.remove(&key).into_iter().collect(),
            EventKind::Put => self.put(&key, entry, now).unwrap_or_else(|reason| {
                ignored(reason);
                self.remove(&key).into_iter().collect()
            }),
        }
    }

    /// Removes records that the store has lost and that their owner did not write again.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<ClusterEvent> {
        let doubtful = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        let hosts = self.hosts.iter().filter(|(_, entry)| doubtful(entry.unconfirmed_until));
        let mut gone: Vec<Key> = hosts.map(|(host, _)| Key::Host(host.clone())).collect();
        let names = self.each_name().filter(|(_, entry)| doubtful(entry.unconfirmed_until));
        gone.extend(names.map(|(name, _)| Key::Name(name)));
        gone.iter().flat_map(|key| self.remove(key)).collect()
    }

    /// Returns the record of this name.
    pub(super) fn name(&self, name: &Name) -> Option<&Entry<NameRecord>> {
        let Name::Fable { service, instance: Some(instance) } = name else { return None };
        self.names.get(service)?.get(instance)
    }

    /// Returns the record of this host.
    pub(super) fn host(&self, host: &str) -> Option<&Entry<HostRecord>> {
        self.hosts.get(host)
    }

    /// Returns how many hosts there are.
    pub(super) fn host_count(&self) -> usize {
        self.hosts.len()
    }

    /// Returns how many names there are.
    pub(super) fn name_count(&self) -> usize {
        self.names_count
    }

    /// Iterates over all names with their records.
    pub(super) fn each_name(&self) -> impl Iterator<Item = (Name, &Entry<NameRecord>)> {
        self.names.iter().flat_map(|(service, instances)| {
            instances.iter().map(|(instance, entry)| (full_name(service, instance), entry))
        })
    }

    /// Returns the matching names of other hosts, see [`crate::cluster_link::Cluster::find`].
    pub(super) fn find(&self, name: &Name) -> Vec<RemoteName> {
        let Name::Fable { service, instance } = name else { return Vec::new() };
        let Some(instances) = self.names.get(service) else { return Vec::new() };
        let fits = |found: &String| instance.as_ref().is_none_or(|instance| instance == found);
        let fitting = instances.iter().filter(|(instance, _)| fits(instance));
        fitting
            .filter_map(|(instance, entry)| self.remote(full_name(service, instance), entry))
            .collect()
    }

    /// Returns all names of other hosts.
    pub(super) fn remote_names(&self) -> Vec<RemoteName> {
        self.each_name().filter_map(|(name, entry)| self.remote(name, entry)).collect()
    }

    /// Returns the secret with which tickets are signed.
    pub(super) fn secret(&self) -> Option<&[u8; SECRET_BYTES]> {
        self.secret.as_ref()
    }

    /// Returns the secrets with which a valid ticket may be signed.
    pub(super) fn secrets(&self, now: Instant) -> Vec<[u8; SECRET_BYTES]> {
        let former = self.former_secret.filter(|(_, until)| now < *until);
        self.secret.into_iter().chain(former.map(|(secret, _)| secret)).collect()
    }

    fn is_other_store(&self, listing: &Listing) -> bool {
        let found = listing.entries.iter().find_map(|entry| {
            let key = Key::parse(&self.zone, &entry.key.0).ok().filter(|key| *key == Key::Secret);
            key.and_then(|key| KeyRecord::parse(&self.open(&key, &entry.value.0).ok()?).ok())
        });
        self.store.is_some() && self.store != found.map(|record| record.store)
    }

    /// Returns the record in a value, see [`View::seal`].
    fn open<'a>(&self, key: &Key, value: &'a [u8]) -> Result<Cow<'a, [u8]>, BadRecord> {
        match &self.keys {
            Some(_) if value.len() > SEALED_BYTES_MAX => Err(BadRecord::TooLong),
            Some(keys) => {
                let path = key.path(&self.zone).ok_or(BadRecord::Key)?;
                keys.open(&path, value).map(Cow::Owned)
            }
            None => Ok(Cow::Borrowed(value)),
        }
    }

    /// Returns a name of another host, if that host is known and wrote the record itself.
    fn remote(&self, name: Name, entry: &Entry<NameRecord>) -> Option<RemoteName> {
        let owner = &entry.record.owner;
        let host = self.hosts.get(&owner.host).filter(|_| owner.host != self.host)?;
        if host.record.identity != entry.record.identity {
            return None;
        }
        let addresses: Vec<SocketAddr> = host.record.addresses.clone();
        Some(RemoteName { name, owner: owner.clone(), addresses, epoch: entry.revision })
    }

    fn keys(&self) -> impl Iterator<Item = Key> {
        let hosts = self.hosts.keys().cloned().map(Key::Host);
        hosts.chain(self.each_name().map(|(name, _)| Key::Name(name)))
    }

    fn is_own(&self, key: &Key) -> bool {
        match key {
            Key::Host(host) => *host == self.host,
            Key::Name(name) => {
                self.name(name).is_some_and(|entry| entry.record.owner.host == self.host)
            }
            Key::Secret => false,
        }
    }

    fn revision_of(&self, key: &Key) -> Option<i64> {
        match key {
            Key::Host(host) => self.hosts.get(host).map(|entry| entry.revision),
            Key::Name(name) => self.name(name).map(|entry| entry.revision),
            Key::Secret => None,
        }
    }

    fn put(
        &mut self,
        key: &Key,
        found: &KeyValue,
        now: Instant,
    ) -> Result<Vec<ClusterEvent>, BadRecord> {
        let value = &*self.open(key, &found.value.0)?;
        match key {
            Key::Secret => {
                let record = KeyRecord::parse(value)?;
                let secret = match &self.keys {
                    Some(keys) => Some(keys.tickets()),
                    None => record.secret(),
                };
                let secret = secret.ok_or(BadRecord::Content("it has no secret"))?;
                self.store = Some(record.store);
                if let Some(former) = self.secret.replace(secret).filter(|old| *old != secret) {
                    self.former_secret = Some((former, now + FORMER_SECRET_LIFE));
                }
                Ok(Vec::new())
            }
            Key::Host(host) => {
                let known = self.hosts.contains_key(host);
                if !known && *host != self.host && self.hosts.len() >= self.hosts_max {
                    return Err(BadRecord::Content("there are too many hosts"));
                }
                self.hosts.insert(host.clone(), Entry::new(HostRecord::parse(value)?, found));
                Ok(Vec::new())
            }
            Key::Name(name) => {
                let known = self.name(name).map(|entry| entry.record.owner.host.clone());
                let record = NameRecord::parse(value)?;
                let host = record.owner.host.clone();
                if known.is_none() && host != self.host && self.names_count >= self.names_max {
                    return Err(BadRecord::Content("there are too many names"));
                }
                let is_news = host != self.host && known.as_ref() != Some(&host);
                self.insert_name(name, Entry::new(record, found));
                let news = || ClusterEvent::NameFound { name: name.clone(), host };
                Ok(is_news.then(news).into_iter().collect())
            }
        }
    }

    fn insert_name(&mut self, name: &Name, entry: Entry<NameRecord>) {
        let Name::Fable { service, instance: Some(instance) } = name else { return };
        let instances = self.names.entry(service.clone()).or_default();
        if instances.insert(instance.clone(), entry).is_none() {
            self.names_count += 1;
        }
    }

    fn remove(&mut self, key: &Key) -> Option<ClusterEvent> {
        match key {
            Key::Host(host) => {
                self.hosts.remove(host);
                None
            }
            Key::Name(name @ Name::Fable { service, instance: Some(instance) }) => {
                let instances = self.names.get_mut(service)?;
                let entry = instances.remove(instance)?;
                if instances.is_empty() {
                    self.names.remove(service);
                }
                self.names_count -= 1;
                let is_news = entry.record.owner.host != self.host;
                is_news.then(|| ClusterEvent::NameGone { name: name.clone() })
            }
            // The secret is kept: the next host that joins writes it again.
            Key::Name(_) | Key::Secret => None,
        }
    }

    fn doubt(&mut self, key: &Key, until: Instant) {
        let doubted = match key {
            Key::Host(host) => self.hosts.get_mut(host).map(|entry| &mut entry.unconfirmed_until),
            Key::Name(name) => self.name_mut(name).map(|entry| &mut entry.unconfirmed_until),
            Key::Secret => None,
        };
        if let Some(unconfirmed_until) = doubted {
            unconfirmed_until.get_or_insert(until);
        }
    }

    fn name_mut(&mut self, name: &Name) -> Option<&mut Entry<NameRecord>> {
        let Name::Fable { service, instance: Some(instance) } = name else { return None };
        self.names.get_mut(service)?.get_mut(instance)
    }

    /// Clears all revisions, because the new store counts from the beginning: its records are
    /// always newer.
    fn forget_revisions(&mut self) {
        self.hosts.values_mut().for_each(|entry| entry.revision = 0);
        let names = self.names.values_mut().flat_map(BTreeMap::values_mut);
        names.for_each(|entry| entry.revision = 0);
    }
}

impl<R> Entry<R> {
    fn new(record: R, found: &KeyValue) -> Entry<R> {
        let (revision, lease) = (found.mod_revision.0, found.lease.0);
        Entry { record, revision, lease, unconfirmed_until: None }
    }
}

fn full_name(service: &str, instance: &str) -> Name {
    Name::Fable { service: service.to_owned(), instance: Some(instance.to_owned()) }
}

#[cfg(test)]
mod tests;
