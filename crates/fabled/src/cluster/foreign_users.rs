//! Maps users of other hosts to users of this host.
//!
//! A number of a user or group means something only on its own host. Without configuration, every
//! user of another host is therefore `nobody` here, for servers as well as for the policy.

use fable::protocol::Peer;

/// User and group of a process whose user has no number here.
pub const NOBODY: u32 = 65534;

/// A set of hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Hosts {
    /// No host.
    #[default]
    None,
    /// These hosts.
    Only(Vec<String>),
    /// Every host of the zone.
    All,
}

/// The hosts whose users are the same as this host's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignUsers {
    /// Hosts whose users and groups, except root, have the same numbers here.
    pub users: Hosts,
    /// Hosts whose root is root here.
    pub root: Hosts,
}

impl Hosts {
    /// Makes the set of these hosts; the word `all` means every host.
    pub fn named(names: &[String]) -> Hosts {
        match names {
            [] => Hosts::None,
            _ if names.iter().any(|name| name == "all") => Hosts::All,
            names => Hosts::Only(names.to_vec()),
        }
    }

    fn contains(&self, host: &str) -> bool {
        match self {
            Hosts::None => false,
            Hosts::Only(hosts) => hosts.iter().any(|listed| listed == host),
            Hosts::All => true,
        }
    }
}

impl ForeignUsers {
    /// Replaces user and group of a process on another host by those that it has here.
    pub(super) fn map(&self, mut peer: Peer) -> Peer {
        let host = peer.host.as_str();
        let (users, root) = (self.users.contains(host), self.root.contains(host));
        let known = |number| if number == 0 { root } else { users };
        if !known(peer.uid) {
            (peer.uid, peer.gid) = (NOBODY, NOBODY);
        } else if !known(peer.gid) {
            peer.gid = NOBODY;
        }
        peer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(users: Hosts, root: Hosts, uid: u32, gid: u32) -> (u32, u32) {
        let (host, program) = ("a".to_owned(), "kv".to_owned());
        let peer = Peer { host, pid: 1, uid, gid, program };
        let mapped = ForeignUsers { users, root }.map(peer.clone());
        assert_eq!((mapped.pid, &mapped.host), (peer.pid, &peer.host));
        (mapped.uid, mapped.gid)
    }

    #[test]
    fn a_user_is_nobody_unless_its_host_is_listed() {
        let only = |host: &str| Hosts::named(&[host.to_owned()]);
        let nobody = (NOBODY, NOBODY);
        assert_eq!(Hosts::named(&[]), Hosts::None);
        assert_eq!(only("all"), Hosts::All);
        for (users, root, process, expected) in [
            (Hosts::None, Hosts::None, (1000, 100), nobody),
            (Hosts::None, Hosts::None, (0, 0), nobody),
            (only("b"), only("b"), (0, 0), nobody),
            (only("a"), Hosts::None, (1000, 100), (1000, 100)),
            (Hosts::All, Hosts::None, (1000, 100), (1000, 100)),
            (Hosts::All, Hosts::None, (0, 0), nobody),
            (Hosts::All, Hosts::None, (0, 100), nobody),
            (Hosts::All, Hosts::None, (1000, 0), (1000, NOBODY)),
            (Hosts::All, only("a"), (1000, 0), (1000, 0)),
            (Hosts::None, only("a"), (0, 0), (0, 0)),
            (Hosts::None, only("a"), (0, 100), (0, NOBODY)),
            (Hosts::None, only("a"), (1000, 0), nobody),
        ] {
            let (uid, gid) = process;
            assert_eq!(mapped(users.clone(), root.clone(), uid, gid), expected, "{users:?}");
        }
    }
}
