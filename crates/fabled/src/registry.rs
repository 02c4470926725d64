//! The names of this host.

use std::collections::{BTreeMap, HashMap};

use fable::Name;
use fable::protocol::{Access, Trust};

/// A connection to the daemon. Never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClientId(pub u64);

/// A registered name.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    /// The full name.
    pub(crate) name: Name,
    /// Who has it.
    pub(crate) owner: ClientId,
    /// The owner's user.
    pub(crate) owner_uid: u32,
    /// Who may connect.
    pub(crate) access: Access,
    /// Whether the owner trusts those who connect.
    pub(crate) trust: Trust,
    /// The registration's epoch in the cluster.
    pub(crate) epoch: Option<i64>,
}

/// Why a name cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum RegisterError {
    /// Another endpoint has it.
    #[error("another endpoint has this name")]
    Taken(ClientId),
    /// It is not of the `fable` scheme.
    #[error("only fable:// names are registered; tcp:// and unix:// names need no daemon")]
    Foreign,
}

/// All names of this host.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// By service and instance.
    names: BTreeMap<(String, String), Registration>,
    /// For each service, the instance that was picked last.
    turns: HashMap<String, String>,
}

impl Registry {
    /// Registers a name. Without an instance it gets the smallest number that is free, behind
    /// `prefix`.
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
        let instance = match instance {
            Some(instance) => instance.clone(),
            None => self.free_instance(service, prefix),
        };
        let key = (service.clone(), instance.clone());
        if let Some(other) = self.names.get(&key) {
            return Err(RegisterError::Taken(other.owner));
        }
        let name = Name::Fable { service: service.clone(), instance: Some(instance) };
        self.names.insert(key, Registration { name: name.clone(), ..wanted });
        Ok(name)
    }

    fn free_instance(&self, service: &str, prefix: &str) -> String {
        let mut number = 1_u64;
        loop {
            let instance = format!("{prefix}{number}");
            if !self.names.contains_key(&(service.to_owned(), instance.clone())) {
                return instance;
            }
            number += 1;
        }
    }

    /// Gives a name up, if this client has it.
    pub(crate) fn unregister(&mut self, name: &Name, owner: ClientId) -> bool {
        let Some(key) = full_key(name) else { return false };
        if self.names.get(&key).is_none_or(|registration| registration.owner != owner) {
            return false;
        }
        self.names.remove(&key);
        if self.instances(&key.0).next().is_none() {
            self.turns.remove(&key.0);
        }
        true
    }

    /// The names of a client.
    pub(crate) fn of_owner(&self, owner: ClientId) -> Vec<Name> {
        let own = self.names.values().filter(|registration| registration.owner == owner);
        own.map(|registration| registration.name.clone()).collect()
    }

    /// The registration of a full name.
    pub(crate) fn get_mut(&mut self, name: &Name) -> Option<&mut Registration> {
        self.names.get_mut(&full_key(name)?)
    }

    /// All names, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Registration> {
        self.names.values()
    }

    /// Whom a client that asks for this name gets: exactly this instance, or one instance after
    /// the other of those that would admit it.
    ///
    /// # Errors
    /// Why the one that was asked for, or the last that was tried, does not admit the client;
    /// `None` if there is no such name.
    pub(crate) fn pick(
        &mut self,
        name: &Name,
        admits: impl Fn(&Registration) -> Result<(), String>,
    ) -> Result<Registration, Option<String>> {
        let Name::Fable { service, instance } = name else { return Err(None) };
        if let Some(instance) = instance {
            let key = (service.clone(), instance.clone());
            let registration = self.names.get(&key).ok_or(None)?;
            return admits(registration).map(|()| registration.clone()).map_err(Some);
        }
        let last = self.turns.get(service).map_or("", String::as_str);
        let (after, before): (Vec<_>, Vec<_>) =
            self.instances(service).partition(|(instance, _)| instance.as_str() > last);
        let mut refused = None;
        for (instance, registration) in after.into_iter().chain(before) {
            match admits(registration) {
                Ok(()) => {
                    let (instance, registration) = (instance.clone(), registration.clone());
                    self.turns.insert(service.clone(), instance);
                    return Ok(registration);
                }
                Err(why) => refused = Some(why),
            }
        }
        Err(refused)
    }

    fn instances(&self, service: &str) -> impl Iterator<Item = (&String, &Registration)> {
        let first = (service.to_owned(), String::new());
        let of_service = self.names.range(first..);
        let of_service = of_service.take_while(move |((name, _), _)| name == service);
        of_service.map(|((_, instance), registration)| (instance, registration))
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
        assert_eq!(register(&mut names, "fable://kv", 3), Ok(name("fable://kv/1")));
        assert_eq!(register(&mut names, "tcp://kv:1", 3), Err(RegisterError::Foreign));
        assert_eq!(names.of_owner(ClientId(3)), [name("fable://kv/1")]);
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
