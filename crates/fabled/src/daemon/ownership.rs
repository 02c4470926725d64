//! Decides to which user a service belongs, and whose instances are served.
//!
//! The first of these that is known counts: the section `[owner]` of the policy; the user who
//! registered the first instance on this host; the user of the oldest instance on other hosts.

use std::time::{Duration, Instant};

use fable::Name;

use super::Daemon;

/// The owner of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) uid: u32,
    why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Policy,
    First,
    /// It has no instance any more; how long it stays the owner.
    Kept(Duration),
    OtherHost,
}

impl Owner {
    /// Returns whether instances of this user are given to clients.
    pub(super) fn serves(self, uid: u32) -> bool {
        uid == 0 || uid == self.uid
    }

    /// Returns a sentence on whose the service is, and why.
    pub(super) fn describe(self, service: &str) -> String {
        let Owner { uid, why } = self;
        match why {
            Why::Policy => format!("the policy gives the service {service} to user {uid}"),
            Why::First => {
                format!("the service {service} belongs to user {uid}, who registered it first")
            }
            Why::Kept(left) => format!(
                "the service {service} belongs to user {uid}, who had it until lately, for another \
                 {} s",
                left.as_secs() + 1
            ),
            Why::OtherHost => format!(
                "the service {service} belongs to user {uid}, who registered it first, on another \
                 host"
            ),
        }
    }
}

impl Daemon {
    /// Returns the owner of a name's service, if it has one.
    pub(super) fn owner_of(&self, name: &Name) -> Option<Owner> {
        let Name::Fable { service, .. } = name else { return None };
        if let Some(uid) = self.policy.owner_of(service) {
            return Some(Owner { uid, why: Why::Policy });
        }
        if let Some((uid, kept)) = self.owners.owner(service, Instant::now()) {
            return Some(Owner { uid, why: kept.map_or(Why::First, Why::Kept) });
        }
        let any = Name::Fable { service: service.clone(), instance: None };
        let oldest = self.cluster.find(&any).into_iter().min_by_key(|found| found.epoch)?;
        Some(Owner { uid: oldest.owner.uid, why: Why::OtherHost })
    }

    /// Checks whether a user may register an instance of a service.
    pub(super) fn check_ownership(&self, name: &Name, uid: u32) -> Result<(), String> {
        let Name::Fable { service, .. } = name else { return Ok(()) };
        match self.owner_of(name) {
            Some(owner) if !owner.serves(uid) => Err(format!(
                "user {uid} may not register {name}: {}; choose another service, or write \
                 `{service} = {uid}` into the section [owner] of the daemon's policy if that is \
                 the user who is to have it",
                owner.describe(service)
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn add_instance(&mut self, name: &Name, uid: u32) {
        if let Name::Fable { service, .. } = name {
            let is_assigned = self.policy.owner_of(service) == Some(uid);
            self.owners.add(service, uid, is_assigned, Instant::now());
        }
    }

    pub(super) fn remove_instance(&mut self, name: &Name) {
        if let Name::Fable { service, .. } = name {
            self.owners.remove(service, self.policy.owner_kept(), Instant::now());
        }
    }
}
