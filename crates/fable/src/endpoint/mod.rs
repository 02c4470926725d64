//! Endpoints: names, and flows between them (section 3.1.1 of the paper).

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
use crate::identity::{Role, Trust};
use crate::kind::{Form, Kind};
use crate::name::Name;
use foreign::Connection;
use registration::{Place, Registration};

/// One party of a conversation: a name under which others find it, and a place to connect from.
///
/// The name is this endpoint's until it and its [`Listener`] are dropped, or the process ends.
/// Names of the `fable` scheme need the name daemon ([`Error::NoDaemon`] says how to start it);
/// `tcp://` and `unix://` names are sockets, and reach programs that know nothing of us.
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

    /// Takes a name.
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

    /// An endpoint that can connect, and that nobody can connect to.
    pub fn anonymous() -> Endpoint {
        Endpoint::options().anonymous()
    }

    /// Everything that can be chosen.
    pub fn options() -> EndpointOptions {
        EndpointOptions::default()
    }

    /// The full name, with the instance or port that was chosen; `None` if it has none.
    pub fn name(&self) -> Option<&Name> {
        self.registration.as_ref().map(|registration| registration.name())
    }

    /// Begins to take in flows. One listener at a time.
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
            Place::Daemon(daemon, number) => {
                let settings = self.options.flow_settings(self.options.deadline());
                let backlog = Arc::new(Backlog::new(settings)?);
                daemon.listen(registration.name(), *number, Arc::clone(&backlog))?;
                Some(backlog)
            }
            Place::Socket(bound) => {
                bound.listen()?;
                None
            }
        };
        let settings = self.options.flow_settings(self.options.deadline());
        Ok(Listener::new(Arc::clone(registration), backlog, settings))
    }

    /// How many messages the endpoint's flows had committed and could not deliver before they were
    /// dropped or closed: a peer was gone, or took nothing for as long as
    /// [`EndpointOptions::linger`]. 0 is what a healthy program sees. What a message's delivery is
    /// says [`Flow::close`]. What a connection had taken and its peer never acknowledged is counted
    /// when that is known, which may be long after the flow's end.
    pub fn undelivered(&self) -> u64 {
        self.options.undelivered.load(Ordering::Relaxed)
    }

    /// Opens a flow to a name: returns when its first path stands.
    ///
    /// A `tcp://` or `unix://` name gives a flow of raw bytes: each buffer that is read is whatever
    /// has arrived, each that is committed is sent as its bytes.
    ///
    /// # Errors
    /// [`Error::BadName`]; [`Error::NoDaemon`]; [`Error::Refused`] with what the daemon or the
    /// other end says; [`Error::TimedOut`]; [`Error::Forked`]; [`Error::System`].
    pub fn connect(&self, name: &str) -> Result<Flow> {
        self.check_process()?;
        let name: Name = name.parse()?;
        let deadline = self.options.deadline();
        if matches!(name, Name::Fable { .. }) {
            return self.connect_by_daemon(&name, deadline);
        }
        let Connection { transport, peer } = Connection::to(&name, deadline)?;
        let FlowSettings { timeouts, undelivered, .. } = self.options.flow_settings(deadline);
        Flow::foreign(Box::new(transport), name, peer, timeouts, undelivered)
    }

    fn connect_by_daemon(&self, name: &Name, deadline: Instant) -> Result<Flow> {
        let EndpointOptions { trust, transport, .. } = self.options;
        let daemon = self.daemon();
        let (id, name, peer, link, page, protected, process) =
            match daemon.find(name, trust, transport, deadline)? {
                // Whether a path of this kernel must be protected is never a question.
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

    /// The daemon that has the endpoint's name, or that the options tell.
    fn daemon(&self) -> &'static Daemon {
        match self.registration.as_ref().map(|registration| registration.place()) {
            Some(Place::Daemon(daemon, _)) => daemon,
            _ => self.options.daemon(),
        }
    }

    fn check_process(&self) -> Result<()> {
        if self.process == std::process::id() { Ok(()) } else { Err(Error::Forked) }
    }
}
