//! How an endpoint is made.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use super::Endpoint;
use super::foreign::Bound;
use super::registration::{Place, Registration};
use crate::clock::deadline_after;
use crate::daemon::{Daemon, socket_path};
use crate::error::Result;
use crate::flow::{FlowSettings, Timeouts};
use crate::identity::{Access, Trust};
use crate::kind::Kind;
use crate::name::Name;
use crate::transport::PathOptions;

/// What an endpoint wants beyond its name; from [`Endpoint::options`].
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
    pub(super) timeout: Duration,
    pub(super) drain_timeout: Duration,
    pub(super) silence_timeout: Duration,
    pub(super) linger: Duration,
    /// What the endpoint's flows could not deliver; each endpoint counts for itself.
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
            timeout: Timeouts::default().offer,
            drain_timeout: Timeouts::default().drain,
            silence_timeout: Timeouts::default().silence,
            linger: Timeouts::default().linger,
            undelivered: Arc::default(),
            path: PathOptions::default(),
            socket: None,
        }
    }
}

impl EndpointOptions {
    /// Whether this end trusts its peers not to change a message after committing it
    /// (section 3.1.2 of the paper). Only if both ends do are messages read in place.
    /// [`Trust::Untrusted`] if not set.
    pub fn trust(mut self, trust: Trust) -> EndpointOptions {
        self.trust = trust;
        self
    }

    /// The transport that flows from this endpoint insist on at first. If not set, the daemon's
    /// policy chooses. Foreign names have the one of their sockets.
    pub fn transport(mut self, kind: Kind) -> EndpointOptions {
        self.transport = Some(kind);
        self
    }

    /// Who may connect to the name; the daemon's policy, if not set. Of no effect on foreign names.
    pub fn access(mut self, access: Access) -> EndpointOptions {
        self.access = access;
        self
    }

    /// How long registering, connecting and the opening of an incoming flow may take: 5 seconds if
    /// not set. Looking up a host name of `tcp://` comes on top.
    pub fn timeout(mut self, timeout: Duration) -> EndpointOptions {
        self.timeout = timeout;
        self
    }

    /// How long write buffers of an old epoch may stay uncommitted before they are copied over:
    /// 100 milliseconds if not set.
    pub fn drain_timeout(mut self, timeout: Duration) -> EndpointOptions {
        self.drain_timeout = timeout;
        self
    }

    /// How long a peer's host may be silent, as if cut off, before a flow to it ends with
    /// [`crate::Error::PeerDied`]: 10 seconds if not set, and one at least. The flow never ends
    /// before, and at most a tenth of that time, and two seconds, later. A peer that dies on a host
    /// that lives is noticed at once.
    pub fn silence_timeout(mut self, timeout: Duration) -> EndpointOptions {
        self.silence_timeout = timeout.clamp(Duration::from_secs(1), Duration::from_secs(86_400));
        self
    }

    /// How long dropping a flow may wait until the kernel or the peer has taken what was committed:
    /// 1 second if not set, zero not to wait. What has no room by then is lost, and counted by
    /// [`Endpoint::undelivered`]. [`Flow::close`](crate::Flow::close) has a time of its own.
    pub fn linger(mut self, timeout: Duration) -> EndpointOptions {
        self.linger = timeout;
        self
    }

    /// Bytes of each ring or shared heap: from 1 MiB, the default, to 1 GiB; rounded up to a power
    /// of two. Less could not take a flow's longest message.
    pub fn ring_bytes(mut self, bytes: usize) -> EndpointOptions {
        self.path.ring_bytes = bytes.max(PathOptions::default().ring_bytes);
        self
    }

    /// The daemon's socket; [`socket_path`] if not set.
    pub fn socket(mut self, path: impl Into<PathBuf>) -> EndpointOptions {
        self.socket = Some(path.into());
        self
    }

    /// Takes a name, as [`Endpoint::register`] does.
    ///
    /// # Errors
    /// As there.
    pub fn register(self, name: &str) -> Result<Endpoint> {
        let name: Name = name.parse()?;
        let (name, place) = match name {
            Name::Fable { .. } => {
                let daemon = self.daemon();
                let (full, number) =
                    daemon.register(&name, &self.access, self.trust, self.deadline())?;
                (full, Place::Daemon(daemon, number))
            }
            Name::Tcp { .. } | Name::Unix { .. } => {
                let (bound, full) = Bound::new(&name)?;
                (full, Place::Socket(bound))
            }
        };
        Ok(Endpoint::new(self, Some(Arc::new(Registration::new(name, place)))))
    }

    /// An endpoint without a name, as [`Endpoint::anonymous`] makes it.
    pub fn anonymous(self) -> Endpoint {
        Endpoint::new(self, None)
    }

    /// The connection to the daemon, which may not be there yet.
    pub(super) fn daemon(&self) -> &'static Daemon {
        match &self.socket {
            Some(path) => Daemon::at(path),
            None => Daemon::at(&socket_path()),
        }
    }

    /// When something that begins now has taken too long.
    pub(super) fn deadline(&self) -> Instant {
        deadline_after(self.timeout)
    }

    /// How flows are opened that have until `deadline`.
    pub(super) fn flow_settings(&self, deadline: Instant) -> FlowSettings {
        let offer = deadline.saturating_duration_since(Instant::now());
        let (drain, silence, linger) = (self.drain_timeout, self.silence_timeout, self.linger);
        let timeouts = Timeouts { offer, drain, silence, linger, ..Timeouts::default() };
        let undelivered = Arc::clone(&self.undelivered);
        FlowSettings { trust: self.trust, path: self.path, timeouts, undelivered }
    }
}
