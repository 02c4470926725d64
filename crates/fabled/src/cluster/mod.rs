//! The daemon's part in a cluster: the same names on all hosts of a zone, through etcd. Nothing
//! else in the project knows etcd. A daemon without one is [`Standalone`].
//!
//! A [`Member`] runs a thread of its own, which keeps the host's lease, its keys and a copy of the
//! zone up to date (`session`), and accepts connections from processes of other hosts
//! (`listener`). The daemon's loop asks the copy, and never waits for that thread:
//!
//! ```text
//!  daemon's loop                      shared                     thread
//!  publish, withdraw  ──────────▶  what is wanted  ─── plan ──▶  transactions ──▶ etcd
//!  find, names, keys  ◀──────────  the view        ◀── apply ──  listing, watch ◀── etcd
//!  take_events        ◀──────────  the outbox      ◀───────────  listener ◀── other hosts
//! ```
//!
//! Trust: whoever can read a zone's keys in etcd can speak for every host of the zone, and whoever
//! can write them can take every name. So etcd must only be open to the hosts themselves. It is
//! spoken to without TLS: over a network that is not trusted, put a tunnel or etcd's own
//! `grpc-proxy` in between.

mod authority;
mod etcd;
mod interfaces;
mod listener;
mod outbox;
mod records;
mod registry;
mod session;
mod standalone;
mod ticket;
mod view;
mod wire;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use fable::Name;
use fable::protocol::{Access, FlowId, Peer, Role};
use fable::transport::TlsKeys;

pub use authority::{Authority, AuthorityError};
pub use etcd::EtcdError;
pub use standalone::Standalone;

use crate::cluster_link::{Cluster, ClusterError, ClusterEvent, RemoteName, Ticket};
use records::{HostRecord, is_label};
use registry::{Shared, State};

/// What etcd accepts as a lease, in seconds: it lengthens shorter ones by itself, and a host that
/// is gone for longer than the maximum should not be remembered.
const TTL_S: std::ops::RangeInclusive<u32> = 2..=3600;
const CALL_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// What a host needs to be a member of a zone.
#[derive(Clone, Debug)]
pub struct Options {
    /// The zone: hosts of different zones may share an etcd without seeing each other. Like a
    /// host's name it has 1 to 64 letters, digits, dots, dashes and underscores.
    pub zone: String,
    /// This host's name, which no other host of the zone may have.
    pub host: String,
    /// Where etcd is: URLs like `http://10.0.0.1:2379`. The next is tried when one fails.
    pub etcd: Vec<String>,
    /// For how long the others believe in this host when it is silent: 2 to 3600 seconds.
    pub lease_ttl_s: u32,
    /// Where processes of other hosts connect. Port 0 takes any.
    pub listen: SocketAddr,
    /// Where the others are told to connect, to be tried in this order, at most 16. If there are
    /// none: `listen`, or if that is unspecified, its port on every address of this host.
    pub advertise: Vec<SocketAddr>,
    /// Keeps the host's authority over a restart of the daemon, which then has its names back at
    /// once; without one it has to wait for the end of its predecessor's lease.
    pub state_directory: Option<PathBuf>,
}

/// Why a host is no member.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A zone or host cannot be called that.
    #[error("`{0}` is no name for a zone or host: use 1 to 64 letters, digits and ._-")]
    BadLabel(String),
    /// The lease is too short or too long.
    #[error("a lease of {0} s is not possible: give 2 to 3600")]
    BadLease(u32),
    /// An endpoint of etcd is none.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// There is no authority.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// Others could not connect.
    #[error("cannot listen on {address}: {source}; choose another with --listen")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel lacks something.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// A host that is a member of a zone, for as long as this lives. Dropping it takes at most a
/// second; then its names are gone.
pub struct Member {
    host: String,
    authority: Authority,
    shared: Arc<Shared>,
    listening: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Member {
    /// Starts to join. etcd need not be there yet: [`ClusterEvent::Up`] tells when it is.
    ///
    /// # Errors
    /// [`StartError`] for what cannot get better by itself.
    pub fn start(options: &Options) -> Result<Member, StartError> {
        for label in [&options.zone, &options.host] {
            if !is_label(label) {
                return Err(StartError::BadLabel(label.clone()));
            }
        }
        if !TTL_S.contains(&options.lease_ttl_s) {
            return Err(StartError::BadLease(options.lease_ttl_s));
        }
        let ttl = Duration::from_secs(options.lease_ttl_s.into());
        let client = etcd::Client::new(&options.etcd, (ttl / 3).max(CALL_TIMEOUT_MIN))?;
        let authority = match &options.state_directory {
            Some(directory) => Authority::in_directory(&options.host, directory)?,
            None => Authority::in_memory(&options.host)?,
        };
        let (listener, listening) = listen(options.listen)
            .map_err(|source| StartError::Listen { address: options.listen, source })?;
        let unspecified = options.advertise.is_empty() && listening.ip().is_unspecified();
        let addresses = match unspecified {
            true => interfaces::addresses(listening.port()),
            false if options.advertise.is_empty() => vec![listening],
            false => options.advertise.clone(),
        };
        let host_record = HostRecord::new(&addresses, authority.certificate());
        let state = State::new(&options.zone, &options.host, host_record);
        let system = |what| move |source| StartError::System { what, source };
        let outbox = outbox::Outbox::new().map_err(system("make an event descriptor"))?;
        let shared = Shared::new(state, outbox);
        let session = session::Session {
            shared: Arc::clone(&shared),
            client,
            zone: options.zone.clone(),
            ttl_s: options.lease_ttl_s,
            port: unspecified.then_some(listening.port()),
            lease: None,
            told: None,
        };
        let thread = start_thread(session, listener, options.host.clone())
            .map_err(system("start the cluster's thread"))?;
        let host = options.host.clone();
        Ok(Member { host, authority, shared, listening, thread: Some(thread) })
    }

    /// Where processes of other hosts connect.
    pub fn listening(&self) -> SocketAddr {
        self.listening
    }
}

impl Cluster for Member {
    fn host(&self) -> &str {
        &self.host
    }

    fn has_others(&self) -> bool {
        true
    }

    /// Who may connect is not told to the others: it is checked here, when somebody does.
    fn publish(&mut self, name: &Name, owner: &Peer, _access: &Access) {
        self.shared.lock().publish(name, owner);
        self.shared.changed.notify_one();
    }

    fn withdraw(&mut self, name: &Name) {
        self.shared.lock().withdraw(name);
        self.shared.changed.notify_one();
    }

    fn find(&self, name: &Name) -> Vec<RemoteName> {
        self.shared.lock().view.find(name)
    }

    fn names(&self) -> Vec<RemoteName> {
        self.shared.lock().view.remote_names()
    }

    fn ticket(&mut self, ticket: &Ticket, host: &str) -> Result<String, ClusterError> {
        let secret = self.shared.lock().view.secret().copied().ok_or_else(|| {
            let reason = "this host has not joined its zone yet: is etcd running?".to_owned();
            ClusterError { reason }
        })?;
        let authority = self.authority.certificate();
        ticket::seal(ticket, host, authority, &secret, random(), SystemTime::now()).ok_or_else(
            || {
                let reason =
                    "the ticket is too long: the program's name must be shorter".to_owned();
                ClusterError { reason }
            },
        )
    }

    fn keys(&mut self, flow: FlowId, role: Role, peer_host: &str) -> Result<TlsKeys, ClusterError> {
        let authority = if peer_host == self.host {
            Some(self.authority.certificate().to_vec())
        } else {
            self.shared.lock().authority_of(peer_host)
        };
        let authority = authority.ok_or_else(|| {
            let reason = format!("host {peer_host} is not in the zone: is its daemon running?");
            ClusterError { reason }
        })?;
        self.authority
            .issue(flow, role, vec![authority])
            .map_err(|error| ClusterError { reason: error.to_string() })
    }

    fn poll_descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.outbox.descriptor())
    }

    fn take_events(&mut self) -> Vec<ClusterEvent> {
        self.shared.outbox.take()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.shared.stop.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the cluster's thread panicked; its names end with its lease");
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let listening = listener.local_addr()?;
    Ok((listener, listening))
}

fn start_thread(
    session: session::Session,
    listener: TcpListener,
    host: String,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    let shared = Arc::clone(&session.shared);
    thread::Builder::new().name("cluster".to_owned()).spawn(move || {
        block_signals();
        runtime.block_on(async {
            tokio::spawn(listener::serve(listener, host, shared));
            session.run().await;
        });
        // A name being resolved is not waited for.
        runtime.shutdown_background();
    })
}

/// Signals are the daemon's loop's.
fn block_signals() {
    // SAFETY: the set is filled before it is used; only the calling thread's mask changes.
    unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut signals);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut());
    }
}

/// # Panics
/// If the kernel has no random bytes, which it always has once it is up.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if let Err(error) = getrandom::fill(&mut bytes) {
        panic!("the kernel gives no random bytes: {error}");
    }
    bytes
}
