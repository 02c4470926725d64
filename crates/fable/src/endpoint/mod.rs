//! Endpoints: register names, listen, and connect flows (section 3.1.1 of the paper).

mod foreign;
mod listener;
mod options;
mod registration;
mod remote;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

pub use listener::Listener;
pub use options::EndpointOptions;

use crate::daemon::{Backlog, Daemon, Found};
use crate::error::{Error, Result};
use crate::flow::{Flow, FlowParts, FlowSettings};
use crate::identity::{Peer, Role, Trust};
use crate::kind::{Form, Kind};
use crate::name::Name;
use foreign::Connection;
use registration::{Registration, Registry};

/// A party that opens flows: it has a name under which others find it, or is anonymous and only
/// connects.
///
/// The endpoint holds the name until it and its [`Listener`] are dropped, or the process ends.
/// Names of the `fable` scheme need the name daemon ([`Error::NoDaemon`] says how to start it);
/// `tcp://` and `unix://` names are sockets, and reach foreign programs.
///
/// An endpoint can be used by several threads; the flows that it makes belong to one thread each.
#[derive(Debug)]
pub struct Endpoint {
    options: EndpointOptions,
    registration: Option<Arc<Registration>>,
    process: u32,
}

impl Endpoint {
    fn new(options: EndpointOptions, registration: Option<Arc<Registration>>) -> Endpoint {
        let options = EndpointOptions { undelivered: Arc::default(), ..options };
        Endpoint { options, registration, process: std::process::id() }
    }

    /// Registers a name.
    ///
    /// `fable://service` gets an instance of its own (see [`Endpoint::name`]) and shares the load
    /// with the other instances; `fable://service/instance` must be free. `tcp://host:0` gets a
    /// free port. The file of a `unix:///path` is removed with the endpoint.
    ///
    /// # Errors
    /// [`Error::BadName`]; [`Error::NoDaemon`]; [`Error::Refused`] by the daemon, or because the
    /// path of a `unix://` name is taken; [`Error::TimedOut`]; [`Error::System`].
    pub fn register(name: &str) -> Result<Endpoint> {
        Endpoint::options().register(name)
    }

    /// Makes an endpoint without a name: it can connect, and no other endpoint can connect to it.
    pub fn anonymous() -> Endpoint {
        Endpoint::options().anonymous()
    }

    /// Returns the options of a new endpoint.
    pub fn options() -> EndpointOptions {
        EndpointOptions::default()
    }

    /// Returns the full name, with the instance or port that was chosen; `None` if there is none.
    pub fn name(&self) -> Option<&Name> {
        self.registration.as_ref().map(|registration| registration.name())
    }

    /// Starts to accept flows. There is one listener at a time.
    ///
    /// # Errors
    /// [`Error::Refused`] without a name, with a listener already there, or if the name was lost to
    /// another process while there was no daemon; [`Error::Forked`]; [`Error::System`].
    pub fn listen(&self) -> Result<Listener> {
        self.check_process()?;
        let Some(registration) = &self.registration else {
            let reason = "an endpoint without a name cannot listen: register one".to_owned();
            return Err(Error::Refused { reason });
        };
        let backlog = match registration.place() {
            Registry::Daemon(daemon, number) => {
                let settings = self.options.flow_settings(self.options.deadline());
                let backlog = Arc::new(Backlog::new(settings)?);
                daemon.listen(registration.name(), *number, Arc::clone(&backlog))?;
                Some(backlog)
            }
            Registry::Socket(bound) => {
                bound.listen()?;
                None
            }
        };
        let settings = self.options.flow_settings(self.options.deadline());
        Ok(Listener::new(Arc::clone(registration), backlog, settings))
    }

    /// Returns how many messages the endpoint's flows had committed and could not deliver before
    /// they were dropped or closed, because a peer was gone or took nothing for as long as
    /// [`EndpointOptions::linger`]. It is 0 in normal operation. [`Flow::close`] defines delivery.
    /// A message that a connection had taken and its peer never acknowledged is counted when that
    /// is known, which may be long after the flow's end.
    pub fn undelivered(&self) -> u64 {
        self.options.undelivered.load(Ordering::Relaxed)
    }

    /// Opens a flow to a name. Returns when its first path is open.
    ///
    /// A `tcp://` or `unix://` name gives a flow of raw bytes: a buffer that is read contains the
    /// bytes that have arrived, and a committed buffer is sent as bytes.
    ///
    /// # Errors
    /// [`Error::BadName`]; [`Error::NoDaemon`]; [`Error::Refused`] with the reason that the daemon
    /// or the other end gave; [`Error::OtherOwner`] if [`EndpointOptions::owner`] requires another
    /// user; [`Error::TimedOut`]; [`Error::Forked`]; [`Error::System`].
    pub fn connect(&self, name: &str) -> Result<Flow> {
        self.check_process()?;
        let name: Name = name.parse()?;
        let deadline = self.options.deadline();
        if matches!(name, Name::Fable { .. }) {
            return self.connect_by_daemon(&name, deadline);
        }
        let Connection { transport, peer } = Connection::to(&name, deadline)?;
        self.check_owner(&name, &peer)?;
        Flow::foreign(transport, name, peer, self.options.flow_settings(deadline))
    }

    fn connect_by_daemon(&self, name: &Name, deadline: Instant) -> Result<Flow> {
        let EndpointOptions { trust, transport, owner, .. } = self.options;
        let daemon = self.daemon();
        let (id, name, peer, link, page, protected, process) =
            match daemon.find(name, trust, transport, owner, deadline)? {
                // A path within one kernel never needs protection.
                Found::Here { flow, name, peer, link, page, process } => {
                    (flow, name, peer, link, page, false, Some(process))
                }
                Found::Elsewhere { flow, name, peer, addresses, ticket, protected, page } => {
                    let link = remote::open_link(&name, &addresses, &ticket, deadline);
                    let link = link.inspect_err(|error| {
                        daemon.ended((flow, Role::Follower), &error.to_string());
                    })?;
                    (flow, name, peer, link, page, protected, None)
                }
            };
        let FlowSettings { trust: own_trust, path, timeouts, undelivered } =
            self.options.flow_settings(deadline);
        let full_name = name.to_string();
        let parts = FlowParts {
            id,
            name,
            role: Role::Follower,
            peer,
            link,
            local: process.is_some(),
            page,
            own_trust,
            peer_trust: Trust::Trusted,
            protected,
            first: Kind::MempipeFutex(Form::Safe),
            reason: String::new(),
            path,
            timeouts,
            reporter: daemon.reporter(Role::Follower),
            undelivered,
        };
        daemon.open(parts, process.flatten())?.finish().map_err(|error| match error {
            Error::PeerDied => Error::Refused {
                reason: format!("{full_name}: nobody accepts there; is its owner listening?"),
            },
            other => other,
        })
    }

    /// Checks the user of a foreign program, as far as the kernel knows it.
    fn check_owner(&self, name: &Name, peer: &Peer) -> Result<()> {
        match (self.options.owner, name) {
            (None, _) => Ok(()),
            (Some(expected), Name::Unix { .. }) if peer.uid == expected => Ok(()),
            (Some(expected), Name::Unix { .. }) => {
                Err(Error::OtherOwner { name: name.to_string(), expected, found: peer.uid })
            }
            (Some(_), _) => {
                let reason = format!(
                    "{name} has no owner that the kernel could vouch for: use a fable:// or \
                     unix:// name, or require no owner"
                );
                Err(Error::Refused { reason })
            }
        }
    }

    /// Returns the daemon that holds the endpoint's name, or else the one that the options select.
    fn daemon(&self) -> &'static Daemon {
        match self.registration.as_ref().map(|registration| registration.place()) {
            Some(Registry::Daemon(daemon, _)) => daemon,
            _ => self.options.daemon(),
        }
    }

    fn check_process(&self) -> Result<()> {
        if self.process == std::process::id() { Ok(()) } else { Err(Error::Forked) }
    }
}
