//! The names of the transports.

use std::fmt;
use std::str::FromStr;

/// Whether a reader of shared memory looks at the writer's memory or at a copy of its own
/// (section 2.1.2 of the paper).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Form {
    /// The reader looks at the memory that the writer wrote, and still can change. For peers that
    /// are trusted.
    Unsafe,
    /// The reader copies first: a writer that changes a message after committing it gains nothing.
    Safe,
}

/// A way for bytes to travel between two ends: Table 1 of the paper, and what flows use beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// TCP with Nagle's algorithm.
    Tcp,
    /// TCP that sends at once (`TCP_NODELAY`).
    TcpNodelay,
    /// A UNIX stream socket.
    Unix,
    /// A pipe each way.
    Pipe,
    /// The sender's pages spliced into a pipe; a second pipe tells when they were read.
    VmspliceCoop,
    /// A heap in shared memory, 8-byte descriptors of it through pipes.
    ShmemPipe(Form),
    /// A ring in shared memory; who waits sleeps on a futex after a bounded spin.
    MempipeFutex(Form),
    /// A ring in shared memory; who waits spins.
    MempipeSpin(Form),
    /// One cache line: the lower bound, for measuring only.
    Cacheline,
    /// Multipath TCP (RFC 8684).
    Mptcp,
    /// TLS 1.3 over TCP.
    Tls,
}

impl Kind {
    /// Every kind, in the order of the paper's Table 1, then those that only flows use.
    pub const ALL: [Kind; 14] = [
        Kind::Tcp,
        Kind::TcpNodelay,
        Kind::Unix,
        Kind::Pipe,
        Kind::VmspliceCoop,
        Kind::ShmemPipe(Form::Unsafe),
        Kind::ShmemPipe(Form::Safe),
        Kind::MempipeFutex(Form::Unsafe),
        Kind::MempipeFutex(Form::Safe),
        Kind::MempipeSpin(Form::Unsafe),
        Kind::MempipeSpin(Form::Safe),
        Kind::Cacheline,
        Kind::Mptcp,
        Kind::Tls,
    ];

    /// The name without its form, as in the paper.
    pub fn base_name(self) -> &'static str {
        match self {
            Kind::Tcp => "tcp",
            Kind::TcpNodelay => "tcp-nodelay",
            Kind::Unix => "unix",
            Kind::Pipe => "pipe",
            Kind::VmspliceCoop => "vmsplice-coop",
            Kind::ShmemPipe(_) => "shmem-pipe",
            Kind::MempipeFutex(_) => "mempipe-futex",
            Kind::MempipeSpin(_) => "mempipe-spin",
            Kind::Cacheline => "cacheline",
            Kind::Mptcp => "mptcp",
            Kind::Tls => "tls",
        }
    }

    /// The form, where there are two.
    pub fn form(self) -> Option<Form> {
        match self {
            Kind::ShmemPipe(form) | Kind::MempipeFutex(form) | Kind::MempipeSpin(form) => {
                Some(form)
            }
            _ => None,
        }
    }

    /// Whether the ends share memory, and so must be on one host.
    pub fn shares_memory(self) -> bool {
        self.form().is_some() || self == Kind::Cacheline
    }

    /// Whether the ends may be on two hosts.
    pub fn crosses_hosts(self) -> bool {
        matches!(self, Kind::Tcp | Kind::TcpNodelay | Kind::Mptcp | Kind::Tls)
    }
}

impl Form {
    /// `unsafe` or `safe`.
    pub fn name(self) -> &'static str {
        match self {
            Form::Unsafe => "unsafe",
            Form::Safe => "safe",
        }
    }
}

/// The full name, `mempipe-spin-safe` for example, which parses back.
impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.form() {
            Some(form) => formatter.pad(&format!("{}-{}", self.base_name(), form.name())),
            None => formatter.pad(self.base_name()),
        }
    }
}

/// A transport's name that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no transport `{0}`: the transports are {names}", names = all_names())]
pub struct UnknownKind(pub String);

fn all_names() -> String {
    Kind::ALL.map(|kind| kind.to_string()).join(", ")
}

/// Without a form, the name means the safe one: nobody should have to trust a peer by accident.
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
        assert_eq!("mempipe-spin".parse(), Ok(Kind::MempipeSpin(Form::Safe)));
        let unknown = "carrier-pigeon".parse::<Kind>().unwrap_err();
        assert!(unknown.to_string().contains("vmsplice-coop"), "{unknown}");
    }
}
