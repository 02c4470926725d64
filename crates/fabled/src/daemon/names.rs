//! Registers and unregisters names, and checks who may connect to them.

use std::rc::Rc;

use fable::Name;
use fable::protocol::{Access, Peer, ToProcess, Trust};

use super::ownership::Owner;
use super::{Daemon, limits};
use crate::policy;
use crate::quota;
use crate::registry::{ClientId, RegisterError, Registration};

impl Daemon {
    /// Handles `Register`.
    pub(super) fn register(
        &mut self,
        id: ClientId,
        request: u64,
        name: &Name,
        access: Access,
        trust: Trust,
    ) {
        let Some(client) = self.clients.get(&id) else { return };
        let owner = client.process.peer.clone();
        if client.names >= limits::NAMES_MAX {
            let reason = format!("one process has at most {} names", limits::NAMES_MAX);
            return self.refuse_and_count(id, request, reason);
        }
        if access.users.len() > limits::ACCESS_MAX || access.groups.len() > limits::ACCESS_MAX {
            let reason = format!(
                "a name lists at most {} users and as many groups: use a group",
                limits::ACCESS_MAX
            );
            return self.refuse_and_count(id, request, reason);
        }
        if !self.policy.may_register(name, owner.uid) {
            let reason = format!("the policy reserves {name} for users other than {}", owner.uid);
            return self.refuse_and_count(id, request, reason);
        }
        if let Err(reason) = self.check_ownership(name, owner.uid) {
            return self.refuse_and_count(id, request, reason);
        }
        let cost = quota::name(access.users.len() + access.groups.len());
        let charge = match self.clients.get(&id).map(|client| client.holder.charge(cost)) {
            Some(Ok(charge)) => charge,
            Some(Err(reason)) => return self.refuse(id, request, reason),
            None => return,
        };
        let prefix = match self.cluster.has_others() {
            true => format!("{}-", instance_part(self.cluster.host())),
            false => String::new(),
        };
        let wanted = Registration {
            name: name.clone(),
            owner: id,
            owner_uid: owner.uid,
            access: access.clone(),
            trust,
            epoch: None,
            _charge: Some(Rc::new(charge)),
        };
        match self.names.register(name, &prefix, wanted) {
            Ok(name) => {
                if let Some(client) = self.clients.get_mut(&id) {
                    client.names += 1;
                }
                self.add_instance(&name, owner.uid);
                self.cluster.publish(&name, &owner, &access);
                self.send(id, &ToProcess::Registered { request, name: name.clone() }, &[]);
                let what = format!("{name} is registered by {}", who(&owner));
                self.event(None, &what);
                self.retry_connects();
            }
            Err(RegisterError::Taken(holder)) => {
                let holder = self.clients.get(&holder).map(|client| who(&client.process.peer));
                let holder = holder.unwrap_or_else(|| "another process".to_owned());
                let reason = format!("{name} is taken by {holder}: choose another instance");
                self.refuse(id, request, reason);
            }
            Err(error) => self.refuse(id, request, format!("{name}: {error}")),
        }
    }

    /// Removes a name, if this client holds it.
    pub(super) fn drop_name(&mut self, name: &Name, owner: ClientId, why: &str) {
        if !self.names.unregister(name, owner) {
            return;
        }
        if let Some(client) = self.clients.get_mut(&owner) {
            client.names -= 1;
        }
        self.remove_instance(name);
        self.cluster.withdraw(name);
        self.event(None, &format!("{name} is gone: {why}"));
    }
}

/// Whoever connects, with the rules that apply.
#[derive(Clone, Copy)]
pub(super) struct Caller<'a> {
    pub(super) peer: &'a Peer,
    /// Its supplementary groups.
    pub(super) groups: &'a [u32],
    /// Who may connect where no list says so.
    pub(super) by_default: policy::Access,
    /// To whom the service belongs.
    pub(super) owner: Option<Owner>,
    /// As whom the other end must run.
    pub(super) expected: Option<u32>,
}

/// Why a connection is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// Cause and remedy.
    pub(super) reason: String,
    /// Set if the caller requires another user than this one.
    pub(super) other_owner: Option<u32>,
}

impl From<String> for Refusal {
    fn from(reason: String) -> Refusal {
        Refusal { reason, other_owner: None }
    }
}

impl Caller<'_> {
    /// Checks whether an instance of this user, on whichever host, is one to connect to.
    pub(super) fn check_owner(&self, name: &Name, uid: u32) -> Result<(), Refusal> {
        if let Some(owner) = self.owner.filter(|owner| !owner.serves(uid)) {
            let service = match name {
                Name::Fable { service, .. } => service.as_str(),
                _ => "",
            };
            let reason = format!(
                "{name} is an instance of user {uid}, but {}: it gets no connections",
                owner.describe(service)
            );
            let other_owner = self.expected.map(|_| owner.uid);
            return Err(Refusal { reason, other_owner });
        }
        match self.expected {
            Some(expected) if expected != uid => {
                let reason = format!("{name} belongs to user {uid}, not to user {expected}");
                Err(Refusal { reason, other_owner: Some(uid) })
            }
            _ => Ok(()),
        }
    }
}

/// Checks whether a process may connect to a name: root, the owner's user, those whom the owner
/// listed, and, if there is no list, those whom the policy allows.
pub(super) fn admits(registration: &Registration, caller: &Caller<'_>) -> Result<(), Refusal> {
    caller.check_owner(&registration.name, registration.owner_uid)?;
    Ok(is_allowed(registration, caller)?)
}

fn is_allowed(registration: &Registration, caller: &Caller<'_>) -> Result<(), String> {
    let Caller { peer, groups, by_default, .. } = *caller;
    let access = &registration.access;
    if peer.uid == 0 || peer.uid == registration.owner_uid || access.users.contains(&peer.uid) {
        return Ok(());
    }
    if access.groups.iter().any(|group| *group == peer.gid || groups.contains(group)) {
        return Ok(());
    }
    let name = &registration.name;
    let unlisted = access.users.is_empty() && access.groups.is_empty();
    match by_default {
        policy::Access::Everyone if unlisted => Ok(()),
        _ if unlisted => Err(format!(
            "user {} may not connect to {name} of user {}: its owner can list users and groups \
             when registering it, or the policy's `access` can be widened",
            peer.uid, registration.owner_uid
        )),
        _ => Err(format!(
            "neither user {} nor one of its groups is among those that the owner of {name} listed",
            peer.uid
        )),
    }
}

/// Formats a process for messages to users.
pub(super) fn who(peer: &Peer) -> String {
    let program = if peer.program.is_empty() { "process" } else { &peer.program };
    format!("{program} ({}, user {})", peer.pid, peer.uid)
}

/// Returns a host's name as part of an instance, short enough for a number after it to stay within
/// 64 bytes.
fn instance_part(host: &str) -> String {
    let allowed = |byte: char| byte.is_ascii_alphanumeric() || "._-".contains(byte);
    host.chars().filter(|&byte| allowed(byte)).take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_policy_decide_who_is_admitted() {
        let peer =
            |uid, gid| Peer { host: "here".to_owned(), pid: 1, uid, gid, program: String::new() };
        let mut registration = Registration {
            name: "fable://kv/1".parse().unwrap(),
            owner: ClientId(1),
            owner_uid: 1000,
            access: Access::default(),
            trust: Trust::Untrusted,
            epoch: None,
            _charge: None,
        };
        let admits = |registration: &Registration, peer: &Peer, groups: &[u32], by_default| {
            let caller = Caller { peer, groups, by_default, owner: None, expected: None };
            super::admits(registration, &caller).map_err(|refusal| refusal.reason)
        };
        let (same, everyone) = (policy::Access::SameUser, policy::Access::Everyone);
        assert!(admits(&registration, &peer(1000, 1), &[], same).is_ok());
        assert!(admits(&registration, &peer(0, 0), &[], same).is_ok());
        let reason = admits(&registration, &peer(1001, 1), &[], same).unwrap_err();
        assert!(reason.contains("1001") && reason.contains("fable://kv/1"), "{reason}");
        assert!(admits(&registration, &peer(1001, 1), &[], everyone).is_ok());
        registration.access = Access { users: vec![1002], groups: vec![50] };
        assert!(admits(&registration, &peer(1002, 1), &[], same).is_ok());
        assert!(admits(&registration, &peer(1001, 50), &[], same).is_ok());
        assert!(admits(&registration, &peer(1001, 1), &[4, 50], same).is_ok());
        assert!(admits(&registration, &peer(1001, 1), &[4], everyone).is_err());
    }

    #[test]
    fn the_required_owner_is_compared() {
        let peer = Peer { host: "here".to_owned(), pid: 1, uid: 0, gid: 0, program: String::new() };
        let by_default = policy::Access::Everyone;
        let caller =
            |expected| Caller { peer: &peer, groups: &[], by_default, owner: None, expected };
        let name: Name = "fable://bank/1".parse().unwrap();
        assert!(caller(None).check_owner(&name, 7).is_ok());
        assert!(caller(Some(7)).check_owner(&name, 7).is_ok());
        let refusal = caller(Some(8)).check_owner(&name, 7).unwrap_err();
        assert_eq!(refusal.other_owner, Some(7));
    }

    #[test]
    fn an_instance_made_of_a_host_is_a_name() {
        let long = "x".repeat(200);
        for host in ["node0", "a b/c", long.as_str()] {
            let name = format!("fable://kv/{}-{}", instance_part(host), u64::MAX);
            assert!(name.parse::<Name>().is_ok(), "{name}");
        }
    }
}
