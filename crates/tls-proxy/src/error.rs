//! What can go wrong, with its remedy.

use crate::backends::MOST as MOST_BACKENDS;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why the proxy cannot start, or has ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ProxyError {
    /// A file with keys or certificates cannot be read.
    #[error("{}: {source}; name a file that this user may read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is no PEM, or contains nothing of what is looked for.
    #[error("{}: {what}; it should have {wanted}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
        /// What belongs there.
        wanted: &'static str,
    },
    /// Certificate and key are of different pairs.
    #[error(
        "the key in {} does not belong to the first certificate in {}; name the key that the \
         certificate was made for, and put the server's own certificate first",
        key.display(), certificate.display()
    )]
    Mismatch {
        /// The file with the certificate.
        certificate: PathBuf,
        /// The file with the key.
        key: PathBuf,
    },
    /// TLS cannot use certificate and key.
    #[error("{} with {}: {source}; use a certificate for RSA, ECDSA or Ed25519",
            certificate.display(), key.display())]
    Unusable {
        /// The file with the certificate.
        certificate: PathBuf,
        /// The file with the key.
        key: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// No tickets can be made.
    #[error("cannot make keys for session tickets: {0}; the system gives no random numbers")]
    Tickets(rustls::Error),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}; {remedy}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
        /// What would help.
        remedy: &'static str,
    },
    /// A driver that there is not.
    #[error("there is no driver {0:?}; choose auto, uring, epoll or mtcp")]
    Driver(String),
    /// More backends than can be tried.
    #[error("{0} backends, and {MOST_BACKENDS} are the most; name fewer with --to")]
    Backends(usize),
    /// `--config` without the driver that reads it.
    #[error("--config is for the driver mtcp, and this is {0}; add --driver mtcp")]
    ConfigWithoutStack(String),
    /// The stack's settings.
    #[error(transparent)]
    Config(#[from] mtcp::ConfigError),
    /// The stack.
    #[error(transparent)]
    Stack(#[from] mtcp::driver::InstallError),
    /// More threads than CPUs.
    #[error("--cores {asked}, but this process may use {available} CPUs; ask for fewer")]
    Cores {
        /// Threads asked for.
        asked: usize,
        /// CPUs.
        available: usize,
    },
    /// The limit of descriptors.
    #[error(
        "{connections} connections need {needed} descriptors, and the limit is {limit}; raise it \
         (ulimit -Hn) or lower --max-connections"
    )]
    Descriptors {
        /// `--max-connections`.
        connections: u32,
        /// What they need.
        needed: u64,
        /// The hard limit.
        limit: u64,
    },
    /// A channel cannot be made or has failed.
    #[error(transparent)]
    Channel(#[from] megapipe::Error),
    /// A call of the system has failed.
    #[error("{what}: {source}; {remedy}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
        /// What would help.
        remedy: &'static str,
    },
    /// A thread has panicked.
    #[error("core {0} has panicked; this is a fault of tls-proxy, please report it")]
    Panicked(usize),
}
