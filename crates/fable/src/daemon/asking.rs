//! Requests to the daemon, each with a timeout.

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use super::Daemon;
use super::backlog::Backlog;
use super::message::Message;
use super::state::{Asked, Link, RegisteredName, State};
use crate::agent::Agent;
use crate::error::Error;
use crate::identity::{Access, FlowId, Peer, Role, Trust};
use crate::kind::Kind;
use crate::name::Name;
use crate::protocol::{ToDaemon, ToProcess};

/// The daemon's answer to `Daemon::find`: where the endpoint with this name is.
pub(crate) enum Found {
    /// On this host.
    Here {
        /// The flow.
        flow: FlowId,
        /// The endpoint's full name.
        name: Name,
        /// The process that listens.
        peer: Peer,
        /// The control socket.
        link: OwnedFd,
        /// The flow page.
        page: OwnedFd,
        /// Becomes readable when the peer's process ends.
        process: Option<OwnedFd>,
    },
    /// On another host.
    Elsewhere {
        /// The flow.
        flow: FlowId,
        /// The endpoint's full name.
        name: Name,
        /// The process that listens.
        peer: Peer,
        /// The addresses at which the daemon of that host listens.
        addresses: Vec<SocketAddr>,
        /// The ticket to send to that daemon first.
        ticket: String,
        /// Whether only protected transports may be used.
        protected: bool,
        /// This end's flow page.
        page: OwnedFd,
    },
}

impl Daemon {
    /// Registers a name. Returns the full name and the number of the registration. A process that
    /// has lost a name can register it again, under another number.
    pub(crate) fn register(
        &'static self,
        name: &Name,
        access: &Access,
        trust: Trust,
        deadline: Instant,
    ) -> Result<(Name, u64), Error> {
        let question = |request| ToDaemon::Register {
            request,
            name: name.clone(),
            access: access.clone(),
            trust,
        };
        let held = RegisteredName { number: 0, access: access.clone(), trust, backlog: None };
        let asked = |sender| Asked::Registrar(sender, held);
        match self.ask(asked, question, deadline)?.body {
            ToProcess::Registered { name, request } => Ok((name, request)),
            other => Err(refusal(other)),
        }
    }

    /// Unregisters a name. Does nothing without a connection to a daemon.
    pub(crate) fn unregister(&'static self, name: &Name, number: u64) {
        let mut state = self.lock();
        if state.held(name, number).is_some() {
            state.names.remove(name);
            self.tell(&mut state, &ToDaemon::Unregister { name: name.clone() });
        }
    }

    /// Starts to listen: from now on, flows to the name arrive in the backlog.
    pub(crate) fn listen(
        &self,
        name: &Name,
        number: u64,
        backlog: Arc<Backlog>,
    ) -> Result<(), Error> {
        let refused = |reason| Err(Error::Refused { reason });
        match self.lock().held(name, number) {
            Some(RegisteredName { backlog: Some(_), .. }) => {
                refused(format!("{name} has a listener already: use that, or drop it first"))
            }
            Some(held) => {
                held.backlog = Some(backlog);
                Ok(())
            }
            None => refused(format!("{name} was lost to another process")),
        }
    }

    /// Stops listening: from now on, connections to the name are refused.
    pub(crate) fn stop_listening(&self, name: &Name, number: u64) {
        if let Some(held) = self.lock().held(name, number) {
            held.backlog = None;
        }
    }

    /// Requests a flow to a name, whose other end must run as `owner` if that is given.
    pub(crate) fn find(
        &'static self,
        name: &Name,
        trust: Trust,
        transport: Option<Kind>,
        owner: Option<u32>,
        deadline: Instant,
    ) -> Result<Found, Error> {
        let question = |request| ToDaemon::Connect {
            request,
            name: name.clone(),
            trust,
            transport: transport.map(|kind| kind.to_string()),
            owner,
        };
        let answer = self.ask(Asked::Caller, question, deadline)?;
        let Message { body, descriptors, has_lost_descriptors } = answer;
        if let (ToProcess::Connected { flow, .. } | ToProcess::Elsewhere { flow, .. }, true) =
            (&body, has_lost_descriptors)
        {
            let error = Error::lost_descriptors();
            self.ended((*flow, Role::Follower), &error.to_string());
            return Err(error);
        }
        if let (ToProcess::Connected { flow, name, peer, .. }, Some(expected))
        | (ToProcess::Elsewhere { flow, name, peer, .. }, Some(expected)) = (&body, owner)
            && peer.uid != expected
        {
            let error = Error::OtherOwner { name: name.to_string(), expected, found: peer.uid };
            self.ended((*flow, Role::Follower), &error.to_string());
            return Err(error);
        }
        let mut descriptors = descriptors.into_iter();
        match (body, descriptors.next(), descriptors.next()) {
            (ToProcess::OtherOwner { name, owner: found, .. }, ..) => Err(Error::OtherOwner {
                name: name.to_string(),
                expected: owner.unwrap_or(found),
                found,
            }),
            (ToProcess::Connected { flow, name, peer, .. }, Some(link), Some(page)) => {
                let process = descriptors.next();
                Ok(Found::Here { flow, name, peer, link, page, process })
            }
            (
                ToProcess::Elsewhere { flow, name, peer, addresses, ticket, protected, .. },
                Some(page),
                None,
            ) => Ok(Found::Elsewhere { flow, name, peer, addresses, ticket, protected, page }),
            (other, ..) => Err(refusal(other)),
        }
    }

    /// Sends one request and waits for its answer.
    pub(super) fn ask(
        &'static self,
        asked: impl FnOnce(SyncSender<Message>) -> Asked,
        question: impl FnOnce(u64) -> ToDaemon,
        deadline: Instant,
    ) -> Result<Message, Error> {
        if self.is_inherited() {
            return Err(Error::Forked);
        }
        let mut state = self.wait_until_up(deadline)?;
        let (sender, answer) = sync_channel(1);
        let request = state.ask(asked(sender));
        self.tell(&mut state, &question(request));
        drop(state);
        let message = match answer.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => {
                self.lock().asked.remove(&request);
                // The answer may have come after the time-out and before the withdrawal.
                answer.try_recv().map_err(|_| Error::TimedOut)?
            }
            Err(RecvTimeoutError::Disconnected) => {
                let trouble = self.lock().trouble.clone();
                return Err(self.absent(&format!("it went away before it answered: {trouble}")));
            }
        };
        Ok(message)
    }

    /// Sends a message. A failure ends the connection.
    pub(super) fn tell(&'static self, state: &mut State, message: &ToDaemon) {
        self.tell_with(state, message, &[]);
    }

    /// Sends a message with descriptors. A failure ends the connection.
    pub(super) fn tell_with(
        &'static self,
        state: &mut State,
        message: &ToDaemon,
        descriptors: &[BorrowedFd<'_>],
    ) {
        match state.say(message, descriptors) {
            Err(error) => self.lose(state, error.to_string()),
            // The agent must also wait until the daemon reads.
            Ok(()) if state.is_behind() => {
                if let (Ok(agent), Some(place)) = (Agent::get(), state.place) {
                    agent.look(place);
                }
            }
            Ok(()) => {}
        }
    }

    fn wait_until_up(
        &'static self,
        deadline: Instant,
    ) -> Result<MutexGuard<'static, State>, Error> {
        let mut state = self.lock();
        if matches!(state.link, Link::Down) {
            self.connect(&mut state)?;
        }
        loop {
            match &state.link {
                Link::Up(_) => return Ok(state),
                Link::Down => return Err(self.absent(&state.trouble)),
                Link::Greeting(_) => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::TimedOut);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn refusal(answer: ToProcess) -> Error {
    let reason = match answer {
        ToProcess::Refused { reason, .. } => reason.chars().take(1024).collect(),
        _ => "the daemon's answer does not fit the question".to_owned(),
    };
    Error::Refused { reason }
}
