//! Shares names among the hosts of a zone, through etcd. No other module knows etcd. A daemon
//! without etcd uses [`Standalone`].
//!
//! A [`Member`] runs one thread. It keeps the host's lease, its keys and a copy of the zone up to
//! date (`session`), and accepts connections from processes of other hosts (`listener`). The
//! daemon's loop reads the copy, and never waits for that thread:
//!
//! ```text
//!  daemon's loop                      shared                     thread
//!  publish, withdraw  ──────────▶  what is wanted  ─── plan ──▶  transactions ──▶ etcd
//!  find, names, keys  ◀──────────  the view        ◀── apply ──  listing, watch ◀── etcd
//!  take_events        ◀──────────  the outbox      ◀───────────  listener ◀── other hosts
//! ```
//!
//! Trust: every host of a zone has the file with the zone's secret, and a process that has it can
//! act as any host (`zone_secret`). A process that reaches etcd without it can read names and
//! addresses, delete records and put older ones back, but it can sign no ticket and write no record
//! that the hosts believe. In a zone without a secret it can do both. TLS, and user and password
//! (`etcd_access`), keep such processes out. Users of other hosts are nobody here unless the
//! configuration lists their host (`foreign_users`).

mod etcd;
mod etcd_access;
mod etcd_error;
mod foreign_users;
#[doc(hidden)]
pub mod fuzzing;
mod interfaces;
mod listener;
mod outbox;
mod private_file;
mod records;
mod registry;
mod session;
#[doc(hidden)]
pub mod simulation;
mod standalone;
mod ticket;
mod view;
mod wire;
mod zone_secret;

use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use fable::Name;
use fable::protocol::{Access, FlowId, Peer, Role};
use fable::transport::TlsKeys;
use ring::digest;

pub use etcd_access::EtcdAccess;
pub use etcd_error::EtcdError;
pub use foreign_users::{ForeignUsers, Hosts, NOBODY};
pub use private_file::PrivateFileError;
pub use standalone::Standalone;
pub use zone_secret::make_secret;

use crate::cluster_link::{Cluster, ClusterError, ClusterEvent, RemoteName, Ticket};
use records::{HostRecord, SECRET_BYTES, hexadecimal, is_label};
use registry::{Shared, State};
use sys::capabilities;
use sys::signals::SignalSet;
use zone_secret::{ZoneKeys, flow_keys};

/// The accepted lease times, in seconds: etcd lengthens shorter ones by itself, and a host that is
/// gone for longer than the maximum should not be remembered.
const TTL_S: std::ops::RangeInclusive<u32> = 2..=3600;
const CALL_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// The parameters of a host's membership in a zone.
#[derive(Clone, Debug)]
pub struct Options {
    /// The zone: hosts of different zones may share an etcd without seeing each other. Like a
    /// host's name it has 1 to 64 letters, digits, dots, dashes and underscores.
    pub zone: String,
    /// This host's name, which no other host of the zone may have.
    pub host: String,
    /// The endpoints of etcd: URLs like `https://10.0.0.1:2379`. The next is tried when one fails.
    pub etcd: Vec<String>,
    /// The files that give access to etcd.
    pub etcd_access: EtcdAccess,
    /// The file with the zone's secret, which only this process's user can read. Without it every
    /// process that reaches etcd is trusted with everything in the zone.
    pub zone_secret: Option<PathBuf>,
    /// The hosts whose users are the same as this host's.
    pub foreign_users: ForeignUsers,
    /// How long the records of a silent host remain: 2 to 3600 seconds.
    pub lease_ttl_s: u32,
    /// The address at which processes of other hosts connect. Port 0 lets the kernel choose.
    pub listen: SocketAddr,
    /// The addresses that other hosts should connect to, in this order, at most 16. If there are
    /// none: `listen`, or if that is unspecified, its port on every address of this host.
    pub advertise: Vec<SocketAddr>,
    /// The directory of the file by which other daemons know this one again. With it a restarted
    /// daemon gets its names back at once; without it the daemon waits for the end of its
    /// predecessor's lease.
    pub state_directory: Option<PathBuf>,
}

/// Why a host cannot join a zone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The text cannot name a zone or host.
    #[error(
        "`{0}` cannot name a zone or host; use 1 to 64 letters, digits and ._- with --zone or \
         --host"
    )]
    BadLabel(String),
    /// The lease is too short or too long.
    #[error("a lease of {0} s is out of range; use --lease 2 to 3600")]
    BadLease(u32),
    /// A text is not an endpoint of etcd, or a file that gives access to it is not usable.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The file with the zone's secret, or that of the state directory, is not usable.
    #[error(transparent)]
    PrivateFile(#[from] PrivateFileError),
    /// The zone has no secret, and nobody has asked for such a zone.
    #[error(
        "zone {0} has no secret, so whoever reaches etcd could be any user of any host; make one \
         with `fabled --make-secret FILE`, copy it to every host, and name it with --zone-secret \
         (or accept that with --insecure-zone)"
    )]
    NoZoneSecret(String),
    /// The file of the state directory cannot be made.
    #[error(
        "cannot make {path}: {source}; use a --state-directory that belongs to the daemon's user"
    )]
    Identity {
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The host cannot listen for other hosts.
    #[error(
        "cannot listen on {address}: {source}; use --listen with a free port and an address that \
         `ip address` shows"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the system call.
        source: io::Error,
    },
    /// A system call failed.
    #[error(
        "cannot {what}: {source}; raise `ulimit -n` (descriptors) or `ulimit -u` (threads) if \
         reached"
    )]
    System {
        /// The failed operation.
        what: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
}

/// Membership of a host in a zone. Dropping it takes at most one second; then the host's names are
/// removed.
pub struct Member {
    host: String,
    foreign_users: ForeignUsers,
    shared: Arc<Shared>,
    listening: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Member {
    /// Starts to join. etcd may still be unreachable: [`ClusterEvent::Up`] reports that the host
    /// has joined.
    ///
    /// # Errors
    /// [`StartError`] for errors that a later attempt would not avoid.
    pub fn start(options: &Options) -> Result<Member, StartError> {
        for label in [&options.zone, &options.host] {
            if !is_label(label) {
                return Err(StartError::BadLabel(label.clone()));
            }
        }
        if !TTL_S.contains(&options.lease_ttl_s) {
            return Err(StartError::BadLease(options.lease_ttl_s));
        }
        let timeout = call_timeout(options);
        let client = etcd::Client::new(&options.etcd, &options.etcd_access, timeout)?;
        let keys = options.zone_secret.as_ref();
        let keys = keys.map(|path| ZoneKeys::read(path, &options.zone)).transpose()?;
        let identity = match &options.state_directory {
            Some(directory) => identity_in(directory)?,
            None => new_identity(),
        };
        let (listener, listening) = listen(options.listen)
            .map_err(|source| StartError::Listen { address: options.listen, source })?;
        let unspecified = options.advertise.is_empty() && listening.ip().is_unspecified();
        let addresses = match unspecified {
            true => interfaces::addresses(listening.port()),
            false if options.advertise.is_empty() => vec![listening],
            false => options.advertise.clone(),
        };
        let host_record = HostRecord::new(&addresses, &identity);
        warn_of_exposure(options, &client);
        let port = unspecified.then_some(listening.port());
        let session = new_session(options, client, keys, host_record, port)?;
        let shared = Arc::clone(&session.shared);
        let thread = start_thread(session, listener, options.host.clone())
            .map_err(|source| StartError::System { what: "start the cluster's thread", source })?;
        let (host, foreign_users) = (options.host.clone(), options.foreign_users.clone());
        Ok(Member { host, foreign_users, shared, listening, thread: Some(thread) })
    }

    /// Returns the address at which processes of other hosts connect.
    pub fn listening(&self) -> SocketAddr {
        self.listening
    }

    /// Returns the key that signs the zone's tickets.
    fn secret(&self) -> Result<[u8; SECRET_BYTES], ClusterError> {
        self.shared.lock().view.secret().copied().ok_or_else(|| {
            let reason = "this host has not joined its zone yet: check that etcd runs and --etcd \
                 names it"
                .to_owned();
            ClusterError { reason }
        })
    }

    /// Returns names of other hosts with the users that their owners are here.
    fn mapped(&self, names: Vec<RemoteName>) -> Vec<RemoteName> {
        let map =
            |name: RemoteName| RemoteName { owner: self.foreign_users.map(name.owner), ..name };
        names.into_iter().map(map).collect()
    }
}

impl Cluster for Member {
    fn host(&self) -> &str {
        &self.host
    }

    fn has_others(&self) -> bool {
        true
    }

    /// Publishes the name without its access list: the host of a name checks access when a process
    /// connects.
    fn publish(&mut self, name: &Name, owner: &Peer, _access: &Access) {
        self.shared.lock().publish(name, owner);
        self.shared.changed.notify_one();
    }

    fn withdraw(&mut self, name: &Name) {
        self.shared.lock().withdraw(name);
        self.shared.changed.notify_one();
    }

    fn find(&self, name: &Name) -> Vec<RemoteName> {
        let found = self.shared.lock().view.find(name);
        self.mapped(found)
    }

    fn names(&self) -> Vec<RemoteName> {
        let names = self.shared.lock().view.remote_names();
        self.mapped(names)
    }

    fn ticket(&mut self, ticket: &Ticket, host: &str) -> Result<String, ClusterError> {
        let sealed = ticket::seal(ticket, host, &self.secret()?, random(), SystemTime::now());
        sealed.ok_or_else(|| {
            let reason = "the ticket is too long: the program's name must be shorter".to_owned();
            ClusterError { reason }
        })
    }

    fn keys(&mut self, flow: FlowId, role: Role) -> Result<TlsKeys, ClusterError> {
        flow_keys(&self.secret()?, flow, role)
    }

    fn poll_descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.outbox.descriptor())
    }

    fn take_events(&mut self) -> Vec<ClusterEvent> {
        let mut events = self.shared.outbox.take();
        for event in &mut events {
            if let ClusterEvent::Connection { ticket, .. } = event {
                let mapped = self.foreign_users.map(ticket.peer.clone());
                if mapped.uid != ticket.peer.uid {
                    let (uid, host) = (ticket.peer.uid, &ticket.peer.host);
                    let option = if uid == 0 { "--same-root" } else { "--same-users" };
                    tracing::info!(
                        "flow {}: user {uid} of {host} is nobody here ({NOBODY}); {option} {host} \
                         lets it keep its number",
                        ticket.flow
                    );
                }
                ticket.peer = mapped;
            }
        }
        events
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

/// Makes a host's session, with the state that it shares with the daemon's loop. `port` is that to
/// advertise on all of the host's addresses.
fn new_session(
    options: &Options,
    client: etcd::Client,
    keys: Option<ZoneKeys>,
    host_record: HostRecord,
    port: Option<u16>,
) -> Result<session::Session, StartError> {
    let mut state = State::new(&options.zone, &options.host, host_record);
    if let Some(keys) = keys {
        state.view.protect(keys);
    }
    let outbox = outbox::Outbox::new()
        .map_err(|source| StartError::System { what: "make an event descriptor", source })?;
    Ok(session::Session {
        shared: Shared::new(state, outbox),
        client,
        zone: options.zone.clone(),
        ttl_s: options.lease_ttl_s,
        port,
        lease: None,
        told: Cell::new(None),
        is_copied: Cell::new(false),
    })
}

/// Limits a call to etcd to a third of the lease.
fn call_timeout(options: &Options) -> Duration {
    (Duration::from_secs(options.lease_ttl_s.into()) / 3).max(CALL_TIMEOUT_MIN)
}

/// Logs what an operator of a network that is not trusted should correct.
fn warn_of_exposure(options: &Options, client: &etcd::Client) {
    for endpoint in client.unprotected() {
        tracing::warn!(
            "etcd at {endpoint} is reached without TLS: whoever is on the way reads and changes \
             the zone's records; use https:// with --etcd-ca"
        );
    }
    if options.zone_secret.is_none() {
        tracing::warn!(
            "zone {} has no secret: whoever reads etcd can be any user of any host at {}; give \
             every host the same --zone-secret",
            options.zone,
            options.listen
        );
    }
}

/// Draws what distinguishes this daemon from others that use the same host name.
fn new_identity() -> String {
    hexadecimal(&random::<16>())
}

/// Returns the identity of a file in this directory, and makes the file if there is none.
fn identity_in(directory: &Path) -> Result<String, StartError> {
    let path = directory.join("identity");
    match make_secret(&path) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            return Err(StartError::Identity { path, source });
        }
        _ => {}
    }
    let content = zone_secret::read(&path, "--state-directory")?;
    Ok(hexadecimal(&digest::digest(&digest::SHA256, &content).as_ref()[..16]))
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
        // Only the daemon's loop handles signals.
        SignalSet::all().block();
        // All files were read, and the address is bound.
        if let Err(error) = capabilities::retain(capabilities::CHANGE_USER) {
            tracing::warn!("the cluster's thread keeps its capabilities: {error}");
        }
        runtime.block_on(async {
            tokio::spawn(listener::serve(listener, host, shared));
            session.run().await;
        });
        // Does not wait for name resolutions in progress.
        runtime.shutdown_background();
    })
}

/// # Panics
/// If the kernel has no random bytes, which the start has checked.
fn random<const N: usize>() -> [u8; N] {
    sys::random::bytes().unwrap_or_else(|error| panic!("no random bytes: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_directory_keeps_what_tells_a_daemon_from_others_of_its_name() {
        let [one, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let first = identity_in(one.path()).unwrap();
        assert!(is_label(&first) && is_label(&new_identity()));
        assert_eq!(identity_in(one.path()).unwrap(), first);
        assert_ne!(identity_in(other.path()).unwrap(), first);
        fs::write(one.path().join("identity"), "").unwrap();
        let damaged = identity_in(one.path()).unwrap_err().to_string();
        assert!(damaged.contains("for --state-directory: it has 0 bytes"), "{damaged}");
        let missing = identity_in(&one.path().join("missing")).unwrap_err().to_string();
        assert!(missing.starts_with("cannot make "), "{missing}");
    }
}
