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
pub(super) const HOSTS_MAX: usize = 4096;
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
    revision: i64,
    /// The revision up to which listing and watch have reported everything.
    pub(super) watched: i64,
}

impl View {
    /// Creates an empty copy.
    pub(super) fn new(zone: &str, host: &str) -> View {
        View { zone: zone.to_owned(), host: host.to_owned(), ..View::default() }
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
        if host.record.identity()? != entry.record.identity {
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
                if !known && *host != self.host && self.hosts.len() >= HOSTS_MAX {
                    return Err(BadRecord::Content("there are too many hosts"));
                }
                self.hosts.insert(host.clone(), Entry::new(HostRecord::parse(value)?, found));
                Ok(Vec::new())
            }
            Key::Name(name) => {
                let known = self.name(name).map(|entry| entry.record.owner.host.clone());
                if known.is_none() && self.names_count >= NAMES_MAX {
                    return Err(BadRecord::Content("there are too many names"));
                }
                let record = NameRecord::parse(value)?;
                let host = record.owner.host.clone();
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
mod tests {
    use super::*;
    use crate::cluster::wire::{Bytes, Number};
    use fable::protocol::Peer;

    const GRACE: Duration = Duration::from_secs(10);

    fn entry(key: &str, value: &impl serde::Serialize, revision: i64) -> KeyValue {
        KeyValue {
            key: Bytes(format!("/fable/z/{key}").into_bytes()),
            value: Bytes(serde_json::to_vec(value).unwrap()),
            mod_revision: Number(revision),
            lease: Number(1),
        }
    }

    fn host_record(host: &str) -> HostRecord {
        HostRecord::new(&["10.0.0.1:7000".parse().unwrap()], host.as_bytes())
    }

    fn host(host: &str, revision: i64) -> KeyValue {
        entry(&format!("hosts/{host}"), &host_record(host), revision)
    }

    fn name(instance: &str, host: &str, revision: i64) -> KeyValue {
        let program = "kv".to_owned();
        let owner = Peer { host: host.to_owned(), pid: 1, uid: 2, gid: 3, program };
        let record = NameRecord::new(&host_record(host).identity().unwrap(), &owner);
        entry(&format!("names/kv/{instance}"), &record, revision)
    }

    fn listing(revision: i64, entries: Vec<KeyValue>) -> Listing {
        Listing { revision, entries }
    }

    fn filled(now: Instant) -> View {
        let mut view = View::new("z", "own");
        let entries = vec![host("a", 3), host("b", 4), name("1", "a", 5), name("2", "b", 6)];
        let events = view.replace(&listing(8, entries), now, GRACE);
        assert_eq!(events.len(), 2, "{events:?}");
        view
    }

    fn found(view: &View, text: &str) -> Vec<(String, i64)> {
        let names = view.find(&text.parse().unwrap());
        names.into_iter().map(|name| (name.name.to_string(), name.epoch)).collect()
    }

    #[test]
    fn a_service_has_instances_on_other_hosts() {
        let now = Instant::now();
        let mut view = filled(now);
        let both = [("fable://kv/1".to_owned(), 5), ("fable://kv/2".to_owned(), 6)];
        assert_eq!(found(&view, "fable://kv"), both);
        assert_eq!(found(&view, "fable://kv/2"), both[1..]);
        assert!(found(&view, "fable://other").is_empty());
        // Own names are not in the results.
        view.apply(&EventKind::Put, &host("own", 9), now);
        assert!(view.apply(&EventKind::Put, &name("3", "own", 10), now).is_empty());
        assert_eq!(found(&view, "fable://kv").len(), 2);
    }

    #[test]
    fn a_name_counts_if_its_host_is_known_and_wrote_it() {
        let now = Instant::now();
        let mut view = filled(now);
        view.apply(&EventKind::Put, &name("3", "unknown", 9), now);
        assert_eq!(found(&view, "fable://kv").len(), 2);
        let impostor = entry("hosts/a", &host_record("other authority"), 10);
        view.apply(&EventKind::Put, &impostor, now);
        assert_eq!(found(&view, "fable://kv"), [("fable://kv/2".to_owned(), 6)]);
    }

    #[test]
    fn changes_may_come_twice_and_late() {
        let now = Instant::now();
        let mut view = filled(now);
        assert!(view.apply(&EventKind::Put, &name("1", "a", 5), now).is_empty());
        let events = view.apply(&EventKind::Put, &name("1", "b", 9), now);
        assert!(matches!(&events[..], [ClusterEvent::NameFound { host, .. }] if host == "b"));
        assert!(view.apply(&EventKind::Delete, &name("1", "a", 7), now).is_empty());
        assert_eq!(found(&view, "fable://kv/1"), [("fable://kv/1".to_owned(), 9)]);
        let events = view.apply(&EventKind::Delete, &name("1", "b", 10), now);
        assert!(matches!(&events[..], [ClusterEvent::NameGone { .. }]));
        assert!(view.apply(&EventKind::Delete, &name("1", "b", 10), now).is_empty());
        assert_eq!(view.names_count, 1);
    }

    #[test]
    fn a_value_that_is_no_record_takes_the_name_away() {
        let now = Instant::now();
        let mut view = filled(now);
        let garbage = KeyValue { value: Bytes::of("garbage"), ..name("1", "a", 9) };
        let events = view.apply(&EventKind::Put, &garbage, now);
        assert!(matches!(&events[..], [ClusterEvent::NameGone { .. }]));
        let foreign = KeyValue { key: Bytes::of("/fable/z/else"), ..name("1", "a", 10) };
        assert!(view.apply(&EventKind::Put, &foreign, now).is_empty());
        assert_eq!(found(&view, "fable://kv"), [("fable://kv/2".to_owned(), 6)]);
    }

    #[test]
    fn what_a_later_listing_lacks_is_gone() {
        let now = Instant::now();
        let mut view = filled(now);
        let entries = vec![host("b", 4), name("2", "b", 6)];
        let events = view.replace(&listing(9, entries), now, GRACE);
        assert!(matches!(&events[..], [ClusterEvent::NameGone { .. }]));
        assert_eq!(found(&view, "fable://kv"), [("fable://kv/2".to_owned(), 6)]);
    }

    #[test]
    fn what_the_store_has_lost_is_kept_for_a_while() {
        let now = Instant::now();
        let mut view = filled(now);
        assert!(view.replace(&listing(1, Vec::new()), now, GRACE).is_empty());
        assert_eq!(found(&view, "fable://kv").len(), 2);
        // One host writes its record again, with a revision of the new count.
        view.apply(&EventKind::Put, &host("a", 2), now);
        assert!(view.apply(&EventKind::Put, &name("1", "a", 3), now).is_empty());
        assert_eq!(found(&view, "fable://kv/1"), [("fable://kv/1".to_owned(), 3)]);
        assert!(view.expire(now + GRACE / 2).is_empty());
        let events = view.expire(now + GRACE);
        assert!(matches!(&events[..], [ClusterEvent::NameGone { .. }]), "{events:?}");
        assert_eq!(found(&view, "fable://kv"), [("fable://kv/1".to_owned(), 3)]);
        assert!(view.host("b").is_none());
    }

    #[test]
    fn another_store_is_noticed_however_far_it_has_come() {
        let now = Instant::now();
        let key = |store| entry("key", &KeyRecord::new(Some(&[1; SECRET_BYTES]), [store; 16]), 2);
        let mut view = filled(now);
        view.apply(&EventKind::Put, &key(1), now);
        assert!(view.replace(&listing(1000, vec![key(2)]), now, GRACE).is_empty());
        assert_eq!(found(&view, "fable://kv").len(), 2);
        // The same store again: records that it does not have are removed.
        let lost = listing(1001, vec![key(2), host("a", 900), name("1", "a", 901)]);
        let events = view.replace(&lost, now, GRACE);
        assert!(matches!(&events[..], [ClusterEvent::NameGone { .. }]), "{events:?}");
        assert_eq!(found(&view, "fable://kv"), [("fable://kv/1".to_owned(), 901)]);
    }

    #[test]
    fn a_replaced_secret_is_still_taken_for_a_while() {
        let now = Instant::now();
        let mut view = View::new("z", "own");
        assert!(view.secrets(now).is_empty());
        for secret in [[1; SECRET_BYTES], [2; SECRET_BYTES]] {
            view.apply(
                &EventKind::Put,
                &entry("key", &KeyRecord::new(Some(&secret), [0; 16]), 2),
                now,
            );
        }
        assert_eq!(view.secret(), Some(&[2; SECRET_BYTES]));
        assert_eq!(view.secrets(now).len(), 2);
        assert_eq!(view.secrets(now + FORMER_SECRET_LIFE), [[2; SECRET_BYTES]]);
        view.apply(&EventKind::Delete, &entry("key", &(), 3), now);
        assert_eq!(view.secret(), Some(&[2; SECRET_BYTES]));
    }

    #[test]
    fn with_a_secret_only_authenticated_records_are_believed() {
        let now = Instant::now();
        let keys = ZoneKeys::derive(&[1; 32], "z");
        let sealed = |found: KeyValue| {
            let path = String::from_utf8(found.key.0.clone()).unwrap();
            KeyValue { value: Bytes(keys.seal(&path, found.value.0).unwrap()), ..found }
        };
        let mut view = View::new("z", "own");
        view.protect(keys.clone());
        let good = [host("a", 3), name("1", "a", 4)].map(sealed);
        view.replace(&listing(5, good.to_vec()), now, GRACE);
        assert_eq!(found(&view, "fable://kv"), [("fable://kv/1".to_owned(), 4)]);
        let secret = entry("key", &KeyRecord::new(Some(&[9; SECRET_BYTES]), [1; 16]), 6);
        view.apply(&EventKind::Put, &secret, now);
        assert_eq!(view.secrets(now), [keys.tickets()], "etcd has no say in what signs tickets");
        // A name without authentication, and one that was copied from another key.
        view.apply(&EventKind::Put, &name("2", "a", 7), now);
        let copied = KeyValue { key: name("3", "a", 8).key, ..good[1].clone() };
        view.apply(&EventKind::Put, &copied, now);
        assert_eq!(found(&view, "fable://kv"), [("fable://kv/1".to_owned(), 4)]);
        // A replaced authority takes the host and its names away, and is not used.
        view.apply(&EventKind::Put, &entry("hosts/a", &host_record("impostor"), 9), now);
        assert!(view.host("a").is_none() && found(&view, "fable://kv").is_empty());
    }

    #[test]
    fn a_record_of_the_store_has_no_secret_if_a_file_has() {
        let mut view = View::new("z", "own");
        let text = |view: &View| {
            String::from_utf8(view.new_store([3; SECRET_BYTES], [4; 16]).unwrap()).unwrap()
        };
        assert!(text(&view).contains("secret"));
        view.protect(ZoneKeys::derive(&[1; 32], "z"));
        assert!(!text(&view).contains("secret"), "{}", text(&view));
    }

    #[test]
    fn the_number_of_names_is_bounded() {
        let now = Instant::now();
        let mut view = filled(now);
        for number in 2..NAMES_MAX {
            view.apply(&EventKind::Put, &name(&format!("x{number}"), "a", 9), now);
        }
        assert_eq!(view.names_count, NAMES_MAX);
        assert!(view.apply(&EventKind::Put, &name("more", "a", 9), now).is_empty());
        assert_eq!(view.names_count, NAMES_MAX);
    }
}
