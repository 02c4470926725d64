//! Defines the errors of the proxy, with their remedies.

use crate::backends::MOST as MOST_BACKENDS;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The reason why the proxy cannot start, or has ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ProxyError {
    /// A file with keys or certificates cannot be read.
    #[error("cannot read {}: {source}; name a file that this user may read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Other users can read the key.
    #[error(
        "the key in {0} is not private (mode {mode:o}, owner {owner}): other users can read or \
         change it; run `chmod 600 {0}` (640 if root owns it and its group shall read it), or add \
         --allow-readable-key",
        path.display()
    )]
    ReadableKey {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
        /// The number of its owner.
        owner: u32,
    },
    /// There is no such user.
    #[error("there is no user {0:?} (--user); name one that `getent passwd` shows")]
    NoUser(String),
    /// The process cannot become the user.
    #[error("cannot become the user {name}: {source}; start tls-proxy as root, or omit --user")]
    User {
        /// The user.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The header of the PROXY protocol needs the address that clients connect to.
    #[error(
        "--proxy-protocol tells backends the address that clients connect to, but {0} stands for \
         all addresses; repeat --listen for each of them"
    )]
    Wildcard(SocketAddr),
    /// A file is not PEM, or lacks the required items.
    #[error("cannot use {}: {what}; name a file with {wanted}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The error.
        what: String,
        /// The required items.
        wanted: &'static str,
    },
    /// Certificate and key are of different pairs.
    #[error(
        "the key in {} does not belong to the first certificate in {}; name the key of the \
         server's certificate, and put that certificate first in its file",
        key.display(), certificate.display()
    )]
    Mismatch {
        /// The file with the certificate.
        certificate: PathBuf,
        /// The file with the key.
        key: PathBuf,
    },
    /// TLS cannot use certificate and key.
    #[error(
        "cannot use the certificate {} with the key {}: {source}; use RSA, ECDSA or Ed25519",
        certificate.display(), key.display()
    )]
    Unusable {
        /// The file with the certificate.
        certificate: PathBuf,
        /// The file with the key.
        key: PathBuf,
        /// The reason.
        source: rustls::Error,
    },
    /// No tickets can be made.
    #[error(
        "cannot make keys for session tickets: {0}; the system provided no random numbers: permit \
         getrandom(2) in the seccomp filter of the container"
    )]
    Tickets(rustls::Error),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}; {remedy}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
        /// The remedy.
        remedy: &'static str,
    },
    /// There is no driver of this name.
    #[error("unknown driver {0:?} (--driver, MEGAPIPE_DRIVER); choose auto, uring, epoll or mtcp")]
    Driver(String),
    /// The number of backends, which exceeds the limit.
    #[error("{0} backends exceed the limit of {MOST_BACKENDS}; name fewer with --to")]
    Backends(usize),
    /// `--config` without the driver that reads it.
    #[error("--config does not apply to the driver {0}; add --driver mtcp, or omit --config")]
    ConfigWithoutStack(String),
    /// The stack's settings are invalid.
    #[error(transparent)]
    Config(#[from] mtcp::ConfigError),
    /// The stack cannot be installed.
    #[error(transparent)]
    Stack(#[from] mtcp::driver::InstallError),
    /// More threads than CPUs.
    #[error(
        "cannot start --cores {asked}: this process may use {available} CPUs; lower --cores, or \
         permit more CPUs (taskset(1), cpuset(7))"
    )]
    Cores {
        /// Requested threads.
        asked: usize,
        /// Available CPUs.
        available: usize,
    },
    /// The limit of descriptors is too low.
    #[error(
        "{connections} connections need {needed} descriptors, but the hard limit is {limit}; raise \
         it (ulimit -Hn){}",
        lower_connections(*connections, *needed, *limit)
    )]
    Descriptors {
        /// `--max-connections`.
        connections: u32,
        /// Descriptors that they need.
        needed: u64,
        /// The hard limit.
        limit: u64,
    },
    /// A channel cannot be created or has failed.
    #[error(transparent)]
    Channel(#[from] megapipe::Error),
    /// The capabilities cannot be dropped.
    #[error(
        "cannot drop capabilities: {0}; permit capset(2) in the sandbox around tls-proxy, or start \
         it as a user without capabilities"
    )]
    Capabilities(#[source] io::Error),
    /// The system calls cannot be restricted.
    #[error("{0}; --no-seccomp serves without the filter")]
    Seccomp(#[source] sys::seccomp::SeccompError),
    /// A system call has failed.
    #[error("cannot {what}: {source}; {remedy}")]
    System {
        /// The action that failed.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
        /// The remedy.
        remedy: &'static str,
    },
    /// The thread of this core has panicked.
    #[error(
        "the thread of core {0} panicked, a defect of tls-proxy; report it with the lines above"
    )]
    Panicked(usize),
}

/// Returns the second part of the remedy for a low limit of descriptors: the number of connections
/// for which it suffices, or what one connection needs.
fn lower_connections(connections: u32, needed: u64, limit: u64) -> String {
    let others = needed.saturating_sub(2 * u64::from(connections));
    match limit.saturating_sub(others) / 2 {
        0 => format!(" to {} or more", others + 2),
        possible => format!(", or lower --max-connections to {possible}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::seccomp::SeccompError;
    use testkit::assert_texts;

    fn refused() -> io::Error {
        io::ErrorKind::PermissionDenied.into()
    }

    #[test]
    fn every_error_names_cause_and_remedy() {
        let file = || PathBuf::from("a.pem");
        let unusable = || ProxyError::Unusable {
            certificate: file(),
            key: "b.pem".into(),
            source: rustls::Error::NoCertificatesPresented,
        };
        let listen = || {
            let address = SocketAddr::from(([10, 0, 0, 1], 443));
            ProxyError::Listen { address, source: refused(), remedy: "run as root" }
        };
        let config = || mtcp::ConfigError::NoFile;
        assert_texts!(ProxyError;
            ProxyError::Read { .. } => ProxyError::Read { path: file(), source: refused() },
                ["cannot read a.pem", "name a file"];
            ProxyError::ReadableKey { .. } =>
                ProxyError::ReadableKey { path: file(), mode: 0o644, owner: 7 },
                ["a.pem is not private (mode 644, owner 7)", "`chmod 600 a.pem`"];
            ProxyError::NoUser(_) => ProxyError::NoUser("www".into()),
                ["no user \"www\"", "getent passwd"];
            ProxyError::User { .. } => ProxyError::User { name: "www".into(), source: refused() },
                ["cannot become the user www", "as root, or omit --user"];
            ProxyError::Wildcard(_) => ProxyError::Wildcard(SocketAddr::from(([0; 4], 443))),
                ["0.0.0.0:443 stands for all addresses", "repeat --listen"];
            ProxyError::Pem { .. } =>
                ProxyError::Pem { path: file(), what: "it is cut off".into(), wanted: "a key" },
                ["cannot use a.pem: it is cut off", "name a file with a key"];
            ProxyError::Mismatch { .. } =>
                ProxyError::Mismatch { certificate: file(), key: "b.pem".into() },
                ["the key in b.pem does not belong", "a.pem", "name the key"];
            ProxyError::Unusable { .. } => unusable(), ["a.pem", "b.pem", "use RSA, ECDSA"];
            ProxyError::Tickets(_) => ProxyError::Tickets(rustls::Error::FailedToGetRandomBytes),
                ["cannot make keys for session tickets", "permit getrandom(2)"];
            ProxyError::Listen { .. } => listen(), ["cannot listen on 10.0.0.1:443", "as root"];
            ProxyError::Driver(_) => ProxyError::Driver("kqueue".into()),
                ["unknown driver \"kqueue\"", "choose auto, uring, epoll or mtcp"];
            ProxyError::Backends(_) => ProxyError::Backends(65),
                ["65 backends exceed the limit of 64", "name fewer with --to"];
            ProxyError::ConfigWithoutStack(_) => ProxyError::ConfigWithoutStack("epoll".into()),
                ["does not apply to the driver epoll", "add --driver mtcp"];
            ProxyError::Config(_) => config().into(), ["set MTCP_CONFIG"];
            ProxyError::Stack(_) => mtcp::driver::InstallError::from(config()).into(),
                ["set MTCP_CONFIG"];
            ProxyError::Cores { .. } => ProxyError::Cores { asked: 9, available: 2 },
                ["--cores 9", "may use 2 CPUs", "lower --cores"];
            ProxyError::Descriptors { .. } =>
                ProxyError::Descriptors { connections: 5, needed: 266, limit: 261 },
                ["5 connections", "hard limit is 261", "or lower --max-connections to 2"];
            ProxyError::Descriptors { .. } =>
                ProxyError::Descriptors { connections: 5, needed: 266, limit: 257 },
                ["hard limit is 257; raise it (ulimit -Hn) to 258 or more"];
            ProxyError::Channel(_) => megapipe::Error::Forked.into(), ["after the fork"];
            ProxyError::Capabilities(_) => ProxyError::Capabilities(refused()),
                ["cannot drop capabilities", "permit capset(2)"];
            ProxyError::Seccomp(_) => ProxyError::Seccomp(SeccompError::Thread(7)),
                ["thread 7 has a filter", "--no-seccomp"];
            ProxyError::System { .. } =>
                ProxyError::System { what: "start a thread", source: refused(), remedy: "raise" },
                ["cannot start a thread", "raise"];
            ProxyError::Panicked(_) => ProxyError::Panicked(3), ["core 3 panicked", "report it"];
        );
    }
}
