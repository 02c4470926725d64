//! Table of the names of this host.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::rc::Rc;

use fable::Name;
use fable::protocol::{Access, Trust};

use crate::quota::Charge;

/// Identifies a connection to the daemon. Numbers are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClientId(pub u64);

/// A registered name.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    /// The full name.
    pub(crate) name: Name,
    /// The connection that has it.
    pub(crate) owner: ClientId,
    /// The user id of the owner's process.
    pub(crate) owner_uid: u32,
    /// The processes that may connect.
    pub(crate) access: Access,
    /// Whether the owner trusts processes that connect.
    pub(crate) trust: Trust,
    /// The registration's epoch in the cluster.
    pub(crate) epoch: Option<i64>,
    /// What its user is charged; held for its drop.
    pub(crate) _charge: Option<Rc<Charge>>,
}

/// Why a name cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum RegisterError {
    /// Another endpoint has the name.
    #[error("another endpoint has this name")]
    Taken(ClientId),
    /// There are too many names or instances.
    #[error("there are {INSTANCES_MAX} instances of this service already")]
    Full,
    /// The name is not of the `fable` scheme.
    #[error("only fable:// names are registered; tcp:// and unix:// names need no daemon")]
    Foreign,
}

/// The most instances of a service: a connection tries all of them at worst.
const INSTANCES_MAX: usize = 1024;

/// All names of this host, by service and instance.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// The registrations, by service and instance.
    names: BTreeMap<(String, String), Registration>,
    /// The state of services that have instances.
    services: HashMap<String, Service>,
}

#[derive(Debug, Default)]
struct Service {
    instances: usize,
    /// The last picked instance.
    picked: String,
    /// The last number that was used.
    counted: u64,
}

impl Registry {
    /// Registers a name. A name without an instance gets the next free number, after `prefix`;
    /// numbers are not reused while the service has instances.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub(crate) fn register(
        &mut self,
        name: &Name,
        prefix: &str,
        wanted: Registration,
    ) -> Result<Name, RegisterError> {
        let Name::Fable { service, instance } = name else { return Err(RegisterError::Foreign) };
        if self.services.get(service).is_some_and(|of| of.instances >= INSTANCES_MAX) {
            return Err(RegisterError::Full);
        }
        let instance = match instance {
            Some(instance) => instance.clone(),
            None => self.next_instance(service, prefix),
        };
        let key = (service.clone(), instance.clone());
        if let Some(other) = self.names.get(&key) {
            return Err(RegisterError::Taken(other.owner));
        }
        let name = Name::Fable { service: service.clone(), instance: Some(instance) };
        self.names.insert(key, Registration { name: name.clone(), ..wanted });
        self.services.entry(service.clone()).or_default().instances += 1;
        Ok(name)
    }

    fn next_instance(&mut self, service: &str, prefix: &str) -> String {
        let of = self.services.entry(service.to_owned()).or_default();
        loop {
            of.counted += 1;
            let instance = format!("{prefix}{}", of.counted);
            if !self.names.contains_key(&(service.to_owned(), instance.clone())) {
                return instance;
            }
        }
    }

    /// Unregisters a name, if this client holds it.
    pub(crate) fn unregister(&mut self, name: &Name, owner: ClientId) -> bool {
        let Some(key) = full_key(name) else { return false };
        if self.names.get(&key).is_none_or(|registration| registration.owner != owner) {
            return false;
        }
        self.names.remove(&key);
        if let Some(of) = self.services.get_mut(&key.0) {
            of.instances -= 1;
            if of.instances == 0 {
                self.services.remove(&key.0);
            }
        }
        true
    }

    /// Returns the names of a client.
    pub(crate) fn of_owner(&self, owner: ClientId) -> Vec<Name> {
        let own = self.names.values().filter(|registration| registration.owner == owner);
        own.map(|registration| registration.name.clone()).collect()
    }

    /// Returns the registration of a full name.
    pub(crate) fn get_mut(&mut self, name: &Name) -> Option<&mut Registration> {
        self.names.get_mut(&full_key(name)?)
    }

    /// Iterates over all names, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Registration> {
        self.names.values()
    }

    /// Picks the registration for a connection to this name: exactly this instance, or one of the
    /// instances that would admit the client, in round-robin order.
    ///
    /// # Errors
    /// The reason why the requested instance, or the last one that was tried, does not admit the
    /// client; `None` if there is no such name.
    pub(crate) fn pick<E>(
        &mut self,
        name: &Name,
        admits: impl Fn(&Registration) -> Result<(), E>,
    ) -> Result<Registration, Option<E>> {
        let Name::Fable { service, instance } = name else { return Err(None) };
        if let Some(instance) = instance {
            let key = (service.clone(), instance.clone());
            let registration = self.names.get(&key).ok_or(None)?;
            return admits(registration).map(|()| registration.clone()).map_err(Some);
        }
        let Some(of) = self.services.get_mut(service) else { return Err(None) };
        let last = (service.clone(), of.picked.clone());
        let first = (service.clone(), String::new());
        // The instances after the last picked one, then those from the start up to it.
        let behind = self.names.range((Excluded(last.clone()), Unbounded));
        let behind = behind.take_while(|((name, _), _)| name == service);
        let before = self.names.range((Included(first), Included(last)));
        let mut refused = None;
        for ((_, instance), registration) in behind.chain(before) {
            match admits(registration) {
                Ok(()) => {
                    of.picked.clone_from(instance);
                    return Ok(registration.clone());
                }
                Err(why) => refused = Some(why),
            }
        }
        Err(refused)
    }
}

fn full_key(name: &Name) -> Option<(String, String)> {
    match name {
        Name::Fable { service, instance: Some(instance) } => {
            Some((service.clone(), instance.clone()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn register(names: &mut Registry, text: &str, owner: u64) -> Result<Name, RegisterError> {
        let wanted = Registration {
            name: name(text),
            owner: ClientId(owner),
            owner_uid: 0,
            access: Access::default(),
            trust: Trust::Untrusted,
            epoch: None,
            _charge: None,
        };
        names.register(&name(text), "", wanted)
    }

    #[test]
    fn instances_are_chosen_and_freed() {
        let mut names = Registry::default();
        assert_eq!(register(&mut names, "fable://kv", 1), Ok(name("fable://kv/1")));
        assert_eq!(register(&mut names, "fable://kv", 2), Ok(name("fable://kv/2")));
        assert_eq!(register(&mut names, "fable://kv/2", 3), Err(RegisterError::Taken(ClientId(2))));
        assert!(!names.unregister(&name("fable://kv/1"), ClientId(2)));
        assert!(names.unregister(&name("fable://kv/1"), ClientId(1)));
        assert_eq!(register(&mut names, "fable://kv/3", 3), Ok(name("fable://kv/3")));
        assert_eq!(register(&mut names, "fable://kv", 3), Ok(name("fable://kv/4")));
        assert_eq!(register(&mut names, "tcp://kv:1", 3), Err(RegisterError::Foreign));
        assert_eq!(names.of_owner(ClientId(3)), [name("fable://kv/3"), name("fable://kv/4")]);
        for (instance, owner) in [("2", 2), ("3", 3), ("4", 3)] {
            assert!(names.unregister(&name(&format!("fable://kv/{instance}")), ClientId(owner)));
        }
        assert_eq!(register(&mut names, "fable://kv", 3), Ok(name("fable://kv/1")));
    }

    #[test]
    fn a_service_has_so_many_instances_and_no_more() {
        let mut names = Registry::default();
        for _ in 0..INSTANCES_MAX {
            register(&mut names, "fable://kv", 1).unwrap();
        }
        assert_eq!(register(&mut names, "fable://kv", 1), Err(RegisterError::Full));
        register(&mut names, "fable://kw", 1).unwrap();
        assert!(names.unregister(&name("fable://kv/7"), ClientId(1)));
        assert_eq!(register(&mut names, "fable://kv", 1), Ok(name("fable://kv/1025")));
    }

    #[test]
    fn a_service_without_instance_is_picked_in_turn_among_those_that_admit() {
        let mut names = Registry::default();
        for instance in ["fable://kv/a", "fable://kv/b", "fable://kv/c", "fable://kw/a"] {
            register(&mut names, instance, 1).unwrap();
        }
        let not_b = |registration: &Registration| {
            if registration.name.to_string().ends_with('b') { Err("no".to_owned()) } else { Ok(()) }
        };
        let mut picked = |text| names.pick(&name(text), not_b).map(|found| found.name.to_string());
        for expected in ["fable://kv/a", "fable://kv/c", "fable://kv/a", "fable://kv/c"] {
            assert_eq!(picked("fable://kv").unwrap(), expected);
        }
        assert_eq!(picked("fable://kv/b"), Err(Some("no".to_owned())));
        assert_eq!(picked("fable://kx"), Err(None));
        assert_eq!(picked("fable://kv/d"), Err(None));
    }
}
