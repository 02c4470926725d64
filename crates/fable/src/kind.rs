//! Names and properties of the transports.

use std::fmt;
use std::str::FromStr;

/// Whether a reader of shared memory reads the writer's memory or a copy of its own (section 2.1.2
/// of the paper).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Form {
    /// The reader reads the memory that the writer wrote and can still change. For trusted peers.
    Unsafe,
    /// The reader copies first: a change after the commit has no effect.
    Safe,
}

/// Identifies a transport: those of the paper's Table 1 that flows use, and further ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// TCP with Nagle's algorithm (RFC 896).
    Tcp,
    /// TCP without Nagle's algorithm (`TCP_NODELAY`).
    TcpNodelay,
    /// A UNIX stream socket.
    Unix,
    /// A ring in shared memory; a waiting end spins for a while ([`PathOptions::spin`]), and then
    /// sleeps on a futex.
    ///
    /// [`PathOptions::spin`]: crate::transport::PathOptions::spin
    MempipeFutex(Form),
    /// Multipath TCP (RFC 8684).
    Mptcp,
    /// TLS 1.3 over TCP.
    Tls,
}

impl Kind {
    /// Every kind, first those of the paper's Table 1 in its order.
    pub const ALL: [Kind; 7] = [
        Kind::Tcp,
        Kind::TcpNodelay,
        Kind::Unix,
        Kind::MempipeFutex(Form::Unsafe),
        Kind::MempipeFutex(Form::Safe),
        Kind::Mptcp,
        Kind::Tls,
    ];

    /// Returns the name without the form, as in the paper.
    pub fn base_name(self) -> &'static str {
        match self {
            Kind::Tcp => "tcp",
            Kind::TcpNodelay => "tcp-nodelay",
            Kind::Unix => "unix",
            Kind::MempipeFutex(_) => "mempipe-futex",
            Kind::Mptcp => "mptcp",
            Kind::Tls => "tls",
        }
    }

    /// Returns the form, if the transport has two.
    pub fn form(self) -> Option<Form> {
        match self {
            Kind::MempipeFutex(form) => Some(form),
            _ => None,
        }
    }

    /// Returns whether the ends share memory, and so must be on one host.
    pub fn shares_memory(self) -> bool {
        self.form().is_some()
    }

    /// Returns whether the ends may be on two hosts.
    pub fn crosses_hosts(self) -> bool {
        matches!(self, Kind::Tcp | Kind::TcpNodelay | Kind::Mptcp | Kind::Tls)
    }
}

impl Form {
    /// Returns `unsafe` or `safe`.
    pub fn name(self) -> &'static str {
        match self {
            Form::Unsafe => "unsafe",
            Form::Safe => "safe",
        }
    }
}

/// Formats the full name, `mempipe-futex-safe` for example. It can be parsed again.
impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.form() {
            Some(form) => formatter.pad(&format!("{}-{}", self.base_name(), form.name())),
            None => formatter.pad(self.base_name()),
        }
    }
}

/// The error for a text that is not the name of a transport.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown transport `{0}`; use one of {names}", names = all_names())]
pub struct UnknownKind(pub String);

fn all_names() -> String {
    Kind::ALL.map(|kind| kind.to_string()).join(", ")
}

/// Parses a name. Without a form the name means the safe one, so that trust in a peer is always
/// explicit.
impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Kind, UnknownKind> {
        let by_full_name = Kind::ALL.into_iter().find(|kind| kind.to_string() == name);
        let safe = || {
            Kind::ALL
                .into_iter()
                .find(|kind| kind.form() == Some(Form::Safe) && kind.base_name() == name)
        };
        by_full_name.or_else(safe).ok_or_else(|| UnknownKind(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for kind in Kind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert_eq!("mempipe-futex".parse(), Ok(Kind::MempipeFutex(Form::Safe)));
        let unknown = "carrier-pigeon".parse::<Kind>().unwrap_err();
        assert!(unknown.to_string().contains("mempipe-futex-safe"), "{unknown}");
    }
}
