//! Options of an endpoint.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use super::Endpoint;
use super::foreign::Bound;
use super::registration::{Registration, Registry};
use crate::clock::deadline_after;
use crate::daemon::{Daemon, socket_path};
use crate::error::Result;
use crate::flow::{FlowSettings, Timeouts};
use crate::identity::{Access, Trust};
use crate::kind::Kind;
use crate::name::Name;
use crate::transport::PathOptions;

/// Options of an endpoint; made by [`Endpoint::options`].
///
/// ```no_run
/// use fable::{Endpoint, Trust};
/// use std::time::Duration;
///
/// let kv = Endpoint::options()
///     .trust(Trust::Trusted)
///     .timeout(Duration::from_secs(1))
///     .register("fable://kv")?;
/// # Ok::<(), fable::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct EndpointOptions {
    pub(super) trust: Trust,
    pub(super) transport: Option<Kind>,
    pub(super) access: Access,
    pub(super) owner: Option<u32>,
    pub(super) timeout: Duration,
    pub(super) silence_timeout: Duration,
    pub(super) linger: Duration,
    /// The number of messages that the endpoint's flows could not deliver; each endpoint has its
    /// own.
    pub(super) undelivered: Arc<AtomicU64>,
    pub(super) path: PathOptions,
    pub(super) socket: Option<PathBuf>,
}

impl Default for EndpointOptions {
    fn default() -> EndpointOptions {
        EndpointOptions {
            trust: Trust::default(),
            transport: None,
            access: Access::default(),
            owner: None,
            timeout: Timeouts::default().offer,
            silence_timeout: Timeouts::default().silence,
            linger: Timeouts::default().linger,
            undelivered: Arc::default(),
            path: PathOptions::default(),
            socket: None,
        }
    }
}

impl EndpointOptions {
    /// Sets whether this end trusts its peers not to change a message after committing it (section
    /// 3.1.2 of the paper). Messages are read in place only if both ends declare trust. The default
    /// is [`Trust::Untrusted`].
    pub fn trust(mut self, trust: Trust) -> EndpointOptions {
        self.trust = trust;
        self
    }

    /// Sets the transport that flows from this endpoint request when they are opened. By default
    /// the daemon's policy chooses. Flows to foreign names use the transport of their sockets.
    pub fn transport(mut self, kind: Kind) -> EndpointOptions {
        self.transport = Some(kind);
        self
    }

    /// Sets who may connect to the name. By default the daemon's policy decides. It has no effect
    /// on foreign names.
    pub fn access(mut self, access: Access) -> EndpointOptions {
        self.access = access;
        self
    }

    /// Sets the user (uid) that must run the other end of flows from this endpoint. Connecting
    /// fails with [`crate::Error::OtherOwner`] if the name belongs to another user. The kernel
    /// reports the user of processes on this host, the daemon of another host those there. By
    /// default connections accept the owner that the daemon knows. `tcp://` names have no owner: a
    /// connection to one is refused if an owner is required.
    pub fn owner(mut self, uid: u32) -> EndpointOptions {
        self.owner = Some(uid);
        self
    }

    /// Sets how long registering, connecting, and opening an incoming flow may take. The default is
    /// 5 seconds. The lookup of a `tcp://` host name takes additional time.
    pub fn timeout(mut self, timeout: Duration) -> EndpointOptions {
        self.timeout = timeout;
        self
    }

    /// Sets how long a peer's host may not answer before a flow to it ends with
    /// [`crate::Error::PeerDied`]. The default is 10 seconds, the minimum one second. The flow
    /// never ends earlier, and at most a tenth of that time plus two seconds later. The death of a
    /// process on a host that is up is noticed at once.
    pub fn silence_timeout(mut self, timeout: Duration) -> EndpointOptions {
        self.silence_timeout = timeout.clamp(Duration::from_secs(1), Duration::from_secs(86_400));
        self
    }

    /// Sets how long dropping a flow waits until the kernel or the peer has taken the committed
    /// messages. The default is 1 second; zero does not wait. Messages that have no room by then
    /// are lost, and counted by [`Endpoint::undelivered`]. [`Flow::close`](crate::Flow::close)
    /// takes its own timeout.
    pub fn linger(mut self, timeout: Duration) -> EndpointOptions {
        self.linger = timeout;
        self
    }

    /// Sets the size of each ring or shared heap, in bytes: from 1 MiB, the default, to 1 GiB,
    /// rounded up to a power of two. A smaller one would have no room for a flow's longest message.
    ///
    /// An end accepts rings of its peer of up to 16 MiB, or of this size if it is larger: set a
    /// larger one at both ends. Otherwise the transport fails, and the reason names the limit.
    pub fn ring_bytes(mut self, bytes: usize) -> EndpointOptions {
        self.path.ring_bytes = bytes.max(PathOptions::default().ring_bytes);
        self
    }

    /// Sets how long a call that waits on a ring spins before it sleeps. The default is 50
    /// microseconds; [`Duration::MAX`] never sleeps while the ends run on different CPUs.
    pub fn spin(mut self, time: Duration) -> EndpointOptions {
        self.path.spin = time;
        self
    }

    /// Sets the path of the daemon's socket. The default is [`socket_path`].
    pub fn socket(mut self, path: impl Into<PathBuf>) -> EndpointOptions {
        self.socket = Some(path.into());
        self
    }

    /// Registers a name, as [`Endpoint::register`] does.
    ///
    /// # Errors
    /// Those of [`Endpoint::register`].
    pub fn register(self, name: &str) -> Result<Endpoint> {
        let name: Name = name.parse()?;
        let (name, place) = match name {
            Name::Fable { .. } => {
                let daemon = self.daemon();
                let (full, number) =
                    daemon.register(&name, &self.access, self.trust, self.deadline())?;
                (full, Registry::Daemon(daemon, number))
            }
            Name::Tcp { .. } | Name::Unix { .. } => {
                let (bound, full) = Bound::new(&name)?;
                (full, Registry::Socket(bound))
            }
        };
        Ok(Endpoint::new(self, Some(Arc::new(Registration::new(name, place)))))
    }

    /// Makes an endpoint without a name, as [`Endpoint::anonymous`] does.
    pub fn anonymous(self) -> Endpoint {
        Endpoint::new(self, None)
    }

    /// Returns the connection to the daemon, which may not be open yet.
    pub(super) fn daemon(&self) -> &'static Daemon {
        match &self.socket {
            Some(path) => Daemon::at(path),
            None => Daemon::at(&socket_path()),
        }
    }

    /// Returns the deadline of an operation that begins now.
    pub(super) fn deadline(&self) -> Instant {
        deadline_after(self.timeout)
    }

    /// Returns the settings of flows that have to be open by `deadline`.
    pub(super) fn flow_settings(&self, deadline: Instant) -> FlowSettings {
        let offer = deadline.saturating_duration_since(Instant::now());
        let (silence, linger) = (self.silence_timeout, self.linger);
        let timeouts = Timeouts { offer, silence, linger, ..Timeouts::default() };
        let undelivered = Arc::clone(&self.undelivered);
        FlowSettings { trust: self.trust, path: self.path, timeouts, undelivered }
    }
}
