//! Computes the transactions that bring etcd from its known state to what this host wants to
//! publish.
//!
//! There is no queue of changes that could be lost or reordered. The daemon's loop changes the
//! wanted state, etcd's watch changes the known state, and the difference gives the next steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use fable::Name;
use fable::protocol::Peer;
use tokio::sync::Notify;

use super::etcd::Outcome;
use super::outbox::Outbox;
use super::records::{HostRecord, Key, NameRecord};
use super::view::View;
use super::wire::{Bytes, EventKind, KeyValue, Number};
use crate::cluster_link::ClusterEvent;

/// State that the daemon's loop and the cluster's thread share.
pub(super) struct Shared {
    state: Mutex<State>,
    /// Notified after every change that steps may follow from.
    pub(super) changed: Notify,
    pub(super) stop: Notify,
    pub(super) outbox: Outbox,
}

/// The wanted state, the known state, and what the daemon was informed of.
pub(super) struct State {
    zone: String,
    host: String,
    identity: String,
    pub(super) view: View,
    pub(super) host_record: HostRecord,
    wanted: BTreeMap<Name, Peer>,
    /// Lease and epoch of each name that was reported to the daemon as published.
    published: BTreeMap<Name, (i64, i64)>,
    /// Keys with records that only their owners can remove.
    blocked: BTreeSet<Key>,
}

/// One transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Creates a key that does not exist, as far as this host knows.
    Create { key: Key, value: Vec<u8> },
    /// Replaces a record of this host that has another lease or another value.
    Replace { key: Key, value: Vec<u8>, revision: i64 },
    /// Deletes a record of this host that is no longer wanted.
    Delete { key: Key, revision: i64 },
}

impl Shared {
    /// Creates the shared state.
    pub(super) fn new(state: State, outbox: Outbox) -> Arc<Shared> {
        let (changed, stop) = (Notify::new(), Notify::new());
        Arc::new(Shared { state: Mutex::new(state), changed, stop, outbox })
    }

    /// Locks the state. The lock is held for a few lines only, never while waiting.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues these events for the daemon's loop.
    pub(super) fn push_all(&self, events: Vec<ClusterEvent>) {
        events.into_iter().for_each(|event| self.outbox.push(event));
    }
}

impl State {
    /// Creates the state of a host that wants to publish its own record only.
    pub(super) fn new(zone: &str, host: &str, host_record: HostRecord) -> State {
        State {
            zone: zone.to_owned(),
            host: host.to_owned(),
            identity: host_record.identity.clone(),
            view: View::new(zone, host),
            host_record,
            wanted: BTreeMap::new(),
            published: BTreeMap::new(),
            blocked: BTreeSet::new(),
        }
    }

    /// Adds a name to the wanted state.
    pub(super) fn publish(&mut self, name: &Name, owner: &Peer) {
        let owner = Peer { host: self.host.clone(), ..owner.clone() };
        self.wanted.insert(name.clone(), owner);
        self.blocked.remove(&Key::Name(name.clone()));
    }

    /// Removes a name from the wanted state.
    pub(super) fn withdraw(&mut self, name: &Name) {
        self.wanted.remove(name);
        self.published.remove(name);
        self.blocked.remove(&Key::Name(name.clone()));
    }

    /// Retries every key that was blocked by another record.
    pub(super) fn unblock(&mut self) {
        self.blocked.clear();
    }

    /// Applies a change from etcd. Returns true if steps may follow from it.
    pub(super) fn apply(
        &mut self,
        kind: &EventKind,
        entry: &KeyValue,
        now: Instant,
    ) -> (bool, Vec<ClusterEvent>) {
        self.view.watched = self.view.watched.max(entry.mod_revision.0);
        let events = self.view.apply(kind, entry, now);
        let Ok(key) = Key::parse(&self.zone, &entry.key.0) else { return (false, events) };
        let concerns_us = match &key {
            Key::Host(host) => *host == self.host,
            Key::Name(name) => {
                self.wanted.contains_key(name)
                    || self.view.name(name).is_some_and(|entry| self.wrote(&entry.record))
            }
            Key::Secret => false,
        };
        self.blocked.remove(&key);
        (concerns_us, events)
    }

    /// Returns whether this host's own record is in etcd under this lease.
    pub(super) fn is_joined(&self, lease: i64) -> bool {
        let entry = self.view.host(&self.host);
        entry.is_some_and(|entry| entry.lease == lease && entry.record == self.host_record)
    }

    /// Returns the next steps, in order. Until the host's own record exists there are no others,
    /// because the names would have no addresses.
    pub(super) fn plan(&self, lease: i64) -> Vec<Step> {
        if !self.is_joined(lease) {
            let known = self
                .view
                .host(&self.host)
                .filter(|entry| entry.is_confirmed() && entry.record.identity == self.identity);
            let revision = known.map(|entry| entry.revision);
            let key = Key::Host(self.host.clone());
            return self.write(key, &self.host_record, revision).into_iter().collect();
        }
        let unwanted = self.view.each_name().filter(|(name, entry)| {
            // Records of an earlier lease end with it, unless they are wanted again.
            entry.lease == lease && self.wrote(&entry.record) && !self.wanted.contains_key(name)
        });
        let deletions = unwanted
            .map(|(name, entry)| Step::Delete { key: Key::Name(name), revision: entry.revision });
        let wanted = self.wanted.iter().filter_map(|(name, owner)| {
            if self.standing(name, owner, lease).is_some() {
                return None;
            }
            let record = NameRecord::new(&self.identity, owner);
            let known = self.view.name(name).filter(|entry| self.wrote(&entry.record));
            let revision = known.map(|entry| entry.revision);
            self.write(Key::Name(name.clone()), &record, revision)
        });
        deletions.chain(wanted).collect()
    }

    /// Returns events for the published names that were not reported to the daemon yet. It compares
    /// with the view, because a step may have succeeded although its answer was lost.
    pub(super) fn confirm(&mut self, lease: i64) -> Vec<ClusterEvent> {
        let standing = self.wanted.iter().filter_map(|(name, owner)| {
            let epoch = self.standing(name, owner, lease)?;
            (self.published.get(name) != Some(&(lease, epoch))).then(|| (name.clone(), epoch))
        });
        let news: Vec<(Name, i64)> = standing.collect();
        self.published.extend(news.iter().map(|(name, epoch)| (name.clone(), (lease, *epoch))));
        news.into_iter().map(|(name, epoch)| ClusterEvent::Published { name, epoch }).collect()
    }

    /// Returns the epoch of a name whose record is as wanted.
    fn standing(&self, name: &Name, owner: &Peer, lease: i64) -> Option<i64> {
        let wanted = NameRecord::new(&self.identity, owner);
        let entry = self.view.name(name)?;
        (entry.lease == lease && entry.record == wanted).then_some(entry.revision)
    }

    /// Applies the result of a step.
    pub(super) fn conclude(
        &mut self,
        step: Step,
        outcome: Outcome,
        lease: i64,
        now: Instant,
    ) -> Vec<ClusterEvent> {
        let mut events = Vec::new();
        let (Outcome::Done(revision) | Outcome::Differs(revision, _)) = &outcome;
        if self.view.watched > *revision {
            // The watch was faster, and has reported later changes too.
            return events;
        }
        let (key, value) = match step {
            Step::Create { key, value } | Step::Replace { key, value, .. } => (key, Some(value)),
            Step::Delete { key, .. } => (key, None),
        };
        let path = Bytes(key.path(&self.zone).unwrap_or_default().into_bytes());
        let found = |revision, value, lease| {
            let (mod_revision, lease) = (Number(revision), Number(lease));
            KeyValue { key: path.clone(), value: Bytes(value), mod_revision, lease }
        };
        match (outcome, value) {
            (Outcome::Done(revision), Some(value)) => {
                let entry = found(revision, value, lease);
                events.extend(self.view.apply(&EventKind::Put, &entry, now));
            }
            (Outcome::Done(revision) | Outcome::Differs(revision, None), _) => {
                let entry = found(revision, Vec::new(), 0);
                events.extend(self.view.apply(&EventKind::Delete, &entry, now));
            }
            (Outcome::Differs(_, Some(entry)), value) => {
                events.extend(self.view.apply(&EventKind::Put, &entry, now));
                if value.is_some() && !self.is_ours(&key) {
                    events.push(self.block(key));
                }
            }
        }
        events
    }

    fn write(&self, key: Key, record: &impl serde::Serialize, known: Option<i64>) -> Option<Step> {
        if self.blocked.contains(&key) {
            return None;
        }
        let value = self.view.seal(&key, record)?;
        Some(match known {
            Some(revision) => Step::Replace { key, value, revision },
            None => Step::Create { key, value },
        })
    }

    fn block(&mut self, key: Key) -> ClusterEvent {
        self.blocked.insert(key.clone());
        match key {
            Key::Name(name) => {
                let holder = self.view.name(&name).map(|entry| entry.record.owner.host.clone());
                let holder = holder.unwrap_or_else(|| "unknown".to_owned());
                ClusterEvent::NameConflict { name, holder }
            }
            Key::Host(_) | Key::Secret => {
                let reason = format!(
                    "another daemon is registered as host {}; if it was this one's predecessor, \
                     its lease ends soon, else give one of them another name",
                    self.host
                );
                ClusterEvent::Down { reason }
            }
        }
    }

    fn is_ours(&self, key: &Key) -> bool {
        match key {
            Key::Host(host) => {
                self.view.host(host).is_some_and(|entry| entry.record.identity == self.identity)
            }
            Key::Name(name) => self.view.name(name).is_some_and(|entry| self.wrote(&entry.record)),
            Key::Secret => false,
        }
    }

    fn wrote(&self, record: &NameRecord) -> bool {
        record.identity == self.identity && record.owner.host == self.host
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: i64 = 7;

    fn state(host: &str, identity: &str) -> State {
        let address = "10.0.0.1:7000".parse().unwrap();
        State::new("z", host, HostRecord::new(&[address], identity))
    }

    fn owner(pid: i32) -> Peer {
        let (host, program) = (String::new(), "kv".to_owned());
        Peer { host, pid, uid: 2, gid: 3, program }
    }

    fn kv() -> Name {
        "fable://kv/1".parse().unwrap()
    }

    /// Executes all steps, as an etcd without other keys would.
    fn run_until_registered(
        state: &mut State,
        lease: i64,
        first_revision: i64,
    ) -> Vec<ClusterEvent> {
        let mut events = Vec::new();
        let mut revision = first_revision;
        while let Some(step) = state.plan(lease).into_iter().next() {
            assert!(revision < first_revision + 10, "it never settles: {step:?}");
            events.extend(state.conclude(step, Outcome::Done(revision), lease, Instant::now()));
            revision += 1;
        }
        events.extend(state.confirm(lease));
        assert!(state.confirm(lease).is_empty());
        events
    }

    /// Returns the record that another host's step would leave in etcd.
    fn left_by(host: &str, identity: &str, revision: i64) -> KeyValue {
        let mut other = state(host, identity);
        run_until_registered(&mut other, 99, 1);
        other.publish(&kv(), &owner(50));
        let Some(Step::Create { key, value }) = other.plan(99).into_iter().next() else {
            panic!("nothing is created")
        };
        let key = Bytes(key.path("z").unwrap().into_bytes());
        let (mod_revision, lease) = (Number(revision), Number(99));
        KeyValue { key, value: Bytes(value), mod_revision, lease }
    }

    #[test]
    fn the_host_comes_before_its_names_and_names_are_taken_back() {
        let mut state = state("a", "identity");
        state.publish(&kv(), &owner(1));
        assert!(matches!(&state.plan(LEASE)[..], [Step::Create { key: Key::Host(_), .. }]));
        let events = run_until_registered(&mut state, LEASE, 10);
        assert!(matches!(&events[..], [ClusterEvent::Published { epoch: 11, .. }]), "{events:?}");
        assert!(state.is_joined(LEASE));
        state.withdraw(&kv());
        let expected = Step::Delete { key: Key::Name(kv()), revision: 11 };
        assert_eq!(state.plan(LEASE), [expected]);
        assert!(run_until_registered(&mut state, LEASE, 12).is_empty());
        assert!(state.view.name(&kv()).is_none());
    }

    #[test]
    fn everything_is_written_again_under_a_new_lease() {
        let mut state = state("a", "identity");
        state.publish(&kv(), &owner(1));
        run_until_registered(&mut state, LEASE, 10);
        let steps = state.plan(LEASE + 1);
        assert!(matches!(&steps[..], [Step::Replace { key: Key::Host(_), revision: 10, .. }]));
        let events = run_until_registered(&mut state, LEASE + 1, 20);
        assert!(matches!(&events[..], [ClusterEvent::Published { epoch: 21, .. }]));
        // Another process now has the name.
        state.publish(&kv(), &owner(2));
        let steps = state.plan(LEASE + 1);
        assert!(matches!(&steps[..], [Step::Replace { revision: 21, .. }]), "{steps:?}");
    }

    #[test]
    fn a_name_that_another_host_has_is_a_conflict_until_it_is_gone() {
        let mut state = state("a", "identity");
        run_until_registered(&mut state, LEASE, 1);
        state.publish(&kv(), &owner(1));
        let now = Instant::now();
        let theirs = left_by("b", "of-b", 5);
        let step = state.plan(LEASE).remove(0);
        let outcome = Outcome::Differs(5, Some(theirs.clone()));
        let events = state.conclude(step, outcome, LEASE, now);
        let [ClusterEvent::NameFound { .. }, ClusterEvent::NameConflict { holder, .. }] =
            &events[..]
        else {
            panic!("{events:?}")
        };
        assert_eq!(holder, "b");
        assert!(state.plan(LEASE).is_empty());
        let gone = KeyValue { mod_revision: Number(6), ..theirs };
        assert!(state.apply(&EventKind::Delete, &gone, now).0);
        assert!(matches!(&state.plan(LEASE)[..], [Step::Create { .. }]));
    }

    #[test]
    fn an_answer_that_the_watch_has_overtaken_blocks_nothing() {
        let mut state = state("a", "identity");
        run_until_registered(&mut state, LEASE, 1);
        state.publish(&kv(), &owner(1));
        let now = Instant::now();
        let theirs = left_by("b", "of-b", 5);
        let gone = KeyValue { mod_revision: Number(6), ..theirs.clone() };
        let step = state.plan(LEASE).remove(0);
        state.apply(&EventKind::Put, &theirs, now);
        state.apply(&EventKind::Delete, &gone, now);
        let events = state.conclude(step, Outcome::Differs(5, Some(theirs)), LEASE, now);
        assert!(events.is_empty(), "{events:?}");
        assert!(matches!(&state.plan(LEASE)[..], [Step::Create { .. }]));
    }

    #[test]
    fn a_value_that_nobody_understands_blocks_its_name_without_a_loop() {
        let mut state = state("a", "identity");
        run_until_registered(&mut state, LEASE, 1);
        state.publish(&kv(), &owner(1));
        let garbage = KeyValue { value: Bytes::of("?"), ..left_by("b", "b", 5) };
        let step = state.plan(LEASE).remove(0);
        let outcome = Outcome::Differs(5, Some(garbage));
        let events = state.conclude(step, outcome, LEASE, Instant::now());
        assert!(matches!(&events[..], [ClusterEvent::NameConflict { .. }]), "{events:?}");
        assert!(state.plan(LEASE).is_empty());
    }

    #[test]
    fn a_predecessor_with_the_same_identity_is_succeeded_and_another_is_waited_for() {
        let now = Instant::now();
        let mut successor = state("a", "identity");
        successor.publish(&kv(), &owner(1));
        run_until_registered(&mut successor, LEASE, 10);
        successor.apply(&EventKind::Put, &left_by("a", "identity", 20), now);
        let steps = successor.plan(LEASE);
        assert!(matches!(&steps[..], [Step::Replace { revision: 20, .. }]), "{steps:?}");

        let mut namesake = state("a", "another");
        let record = state("a", "identity").host_record;
        let entry = KeyValue {
            key: Bytes::of("/fable/z/hosts/a"),
            value: Bytes(serde_json::to_vec(&record).unwrap()),
            mod_revision: Number(3),
            lease: Number(99),
        };
        let step = namesake.plan(LEASE).remove(0);
        let outcome = Outcome::Differs(3, Some(entry.clone()));
        let events = namesake.conclude(step, outcome, LEASE, now);
        assert!(matches!(&events[..], [ClusterEvent::Down { .. }]));
        assert!(namesake.plan(LEASE).is_empty());
        let gone = KeyValue { mod_revision: Number(4), ..entry };
        assert!(namesake.apply(&EventKind::Delete, &gone, now).0);
        run_until_registered(&mut namesake, LEASE, 5);
        assert!(namesake.is_joined(LEASE));
    }
}
