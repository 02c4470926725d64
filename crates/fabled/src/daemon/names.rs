//! Registering, giving up, and who may connect.

use fable::Name;
use fable::protocol::{Access, Peer, ToProcess, Trust};

use super::{Daemon, limits};
use crate::policy;
use crate::registry::{ClientId, RegisterError, Registration};

impl Daemon {
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
            return self.refuse(id, request, reason);
        }
        if access.users.len() > limits::ACCESS_MAX || access.groups.len() > limits::ACCESS_MAX {
            let reason = format!(
                "a name lists at most {} users and as many groups: use a group",
                limits::ACCESS_MAX
            );
            return self.refuse(id, request, reason);
        }
        if !self.policy.may_register(name, owner.uid) {
            let reason = format!("the policy reserves {name} for users other than {}", owner.uid);
            return self.refuse(id, request, reason);
        }
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
        };
        match self.names.register(name, &prefix, wanted) {
            Ok(name) => {
                if let Some(client) = self.clients.get_mut(&id) {
                    client.names += 1;
                }
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

    /// Forgets a name, if this client has it.
    pub(super) fn drop_name(&mut self, name: &Name, owner: ClientId, why: &str) {
        if !self.names.unregister(name, owner) {
            return;
        }
        if let Some(client) = self.clients.get_mut(&owner) {
            client.names -= 1;
        }
        self.cluster.withdraw(name);
        self.event(None, &format!("{name} is gone: {why}"));
    }
}

/// Whether somebody may connect to a name: root, the owner's user, those whom the owner listed,
/// and if there is no list those whom the policy allows.
pub(super) fn admits(
    registration: &Registration,
    peer: &Peer,
    groups: &[u32],
    by_default: policy::Access,
) -> Result<(), String> {
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

/// A process, for people.
pub(super) fn who(peer: &Peer) -> String {
    let program = if peer.program.is_empty() { "process" } else { &peer.program };
    format!("{program} ({}, user {})", peer.pid, peer.uid)
}

/// A host's name as part of an instance, which must stay within 64 bytes with a number behind it.
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
    fn an_instance_made_of_a_host_is_a_name() {
        let long = "x".repeat(200);
        for host in ["node0", "a b/c", long.as_str()] {
            let name = format!("fable://kv/{}-{}", instance_part(host), u64::MAX);
            assert!(name.parse::<Name>().is_ok(), "{name}");
        }
    }
}
