//! State of the daemon connection: registered names, known flows, open requests, queued packets.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use super::backlog::Backlog;
use super::message::Message;
use crate::agent::{Agent, WatchId};
use crate::control::{FlowHandle, KeysAnswer};
use crate::event::event_descriptor;
use crate::fork::NotInherited;
use crate::identity::{Access, FlowId, Role, Trust};
use crate::kind::Kind;
use crate::name::Name;
use crate::packet;
use crate::protocol::{ToDaemon, ToProcess};

/// The most packets that are queued for a daemon that does not read.
const OUTBOX_MAX: usize = 1024;

/// The first pause before connecting again, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_LAST: Duration = Duration::from_secs(2);

/// One end of one flow. A process can have both.
pub(super) type End = (FlowId, Role);

/// The state of the connection.
#[derive(Default)]
pub(super) enum Link {
    /// There is no connection.
    #[default]
    Down,
    /// `Hello` was sent; `Welcome` has not arrived.
    Greeting(Arc<NotInherited>),
    /// `Welcome` has arrived.
    Up(Arc<NotInherited>),
}

/// Who gets the answer to a request.
pub(super) enum Asked {
    /// A thread.
    Caller(SyncSender<Message>),
    /// A thread that registers a name.
    Registrar(SyncSender<Message>, RegisteredName),
    /// A flow that requests keys.
    Keys(KeysAnswer),
    /// Nothing: the agent registers again a name that an earlier daemon knew.
    Again(Name),
}

/// A name of this process.
pub(super) struct RegisteredName {
    /// The number of the request that registered it.
    pub(super) number: u64,
    pub(super) access: Access,
    pub(super) trust: Trust,
    /// Takes incoming flows while there is a listener.
    pub(super) backlog: Option<Arc<Backlog>>,
}

/// A flow of this process.
#[derive(Default)]
pub(super) struct KnownFlow {
    /// `None` while the flow begins to open.
    pub(super) handle: Option<FlowHandle>,
    /// The last epoch that the flow has reported, and its transport.
    pub(super) moved: Option<(u32, Kind)>,
    /// Whether the flow had no path to announce when the present connection to the daemon began.
    pub(super) is_untold: bool,
}

/// The state of the connection, behind the lock of `Daemon`.
#[derive(Default)]
pub(super) struct State {
    pub(super) link: Link,
    /// The agent's entry for the latest link.
    pub(super) place: Option<WatchId>,
    /// Why the last connection ended.
    pub(super) trouble: String,
    pub(super) asked: BTreeMap<u64, Asked>,
    pub(super) names: BTreeMap<Name, RegisteredName>,
    pub(super) flows: BTreeMap<End, KnownFlow>,
    last_request: u64,
    outbox: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    failures: u32,
    /// An open descriptor; closing it makes room for a received one.
    reserve: Option<OwnedFd>,
}

impl State {
    /// Closes the reserve descriptor, so that one received descriptor has room.
    pub(super) fn release_reserve(&mut self) {
        self.reserve = None;
    }

    /// Opens the reserve descriptor if there is none; a later call tries again if that fails.
    pub(super) fn take_reserve(&mut self) {
        self.reserve = self.reserve.take().or_else(|| event_descriptor().ok());
    }

    /// Returns the socket of the connection, if there is one.
    pub(super) fn socket(&self) -> Option<&Arc<NotInherited>> {
        match &self.link {
            Link::Down => None,
            Link::Greeting(socket) | Link::Up(socket) => Some(socket),
        }
    }

    /// Returns whether the daemon has answered `Hello`.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }

    /// Returns the name's entry, if this registration still holds the name.
    pub(super) fn held(&mut self, name: &Name, number: u64) -> Option<&mut RegisteredName> {
        self.names.get_mut(name).filter(|held| held.number == number)
    }

    /// Records a new request and returns its number.
    pub(super) fn ask(&mut self, asked: Asked) -> u64 {
        self.last_request += 1;
        self.asked.insert(self.last_request, asked);
        self.last_request
    }

    /// Sends a message, or queues it while the daemon does not read.
    ///
    /// # Errors
    /// The kernel's, if the connection cannot be used any more.
    pub(super) fn say(
        &mut self,
        message: &ToDaemon,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        if self.outbox.len() >= OUTBOX_MAX {
            return Err(io::Error::other("it does not read what it is told"));
        }
        let owned = descriptors.iter().map(BorrowedFd::try_clone_to_owned);
        self.outbox.push_back((bytes, owned.collect::<io::Result<_>>()?));
        self.flush()
    }

    /// Sends queued packets, as many as the daemon reads.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let Link::Up(socket) = &self.link else {
            // The next daemon gets what still matters again.
            self.outbox.clear();
            return Ok(());
        };
        while let Some((bytes, descriptors)) = self.outbox.front() {
            let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            match packet::send(socket.as_fd(), bytes, &descriptors) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns whether packets are queued.
    pub(super) fn is_behind(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Records that the connection has ended. Callers that wait for an answer see that their
    /// channel is closed.
    pub(super) fn lose(&mut self, trouble: String) {
        self.link = Link::Down;
        self.reserve = None;
        self.trouble = trouble;
        for asked in std::mem::take(&mut self.asked).into_values() {
            if let Asked::Keys(answer) = asked {
                answer_keys(answer, Err("the daemon went away".to_owned()));
            }
        }
        self.outbox.clear();
    }

    /// Returns whether there are names or flows to report to the next daemon.
    pub(super) fn has_something_to_keep(&self) -> bool {
        !self.names.is_empty() || !self.flows.is_empty()
    }

    /// Returns the pause before the next attempt to connect. It depends on the process id, so that
    /// the processes of one daemon do not reconnect all at once.
    pub(super) fn next_pause(&mut self) -> Duration {
        let doubled = PAUSE_FIRST * 2_u32.pow(self.failures.min(10));
        self.failures = self.failures.saturating_add(1);
        let spread = std::process::id() % 32;
        doubled.min(PAUSE_LAST) * (32 + spread) / 64
    }

    /// Resets the pause after a successful connection.
    pub(super) fn forget_failures(&mut self) {
        self.failures = 0;
    }
}

/// Passes keys, or the reason why there are none, to the flow that asked. Call it without locks
/// held.
pub(super) fn answer_keys(answer: KeysAnswer, result: std::result::Result<Box<ToProcess>, String>) {
    let keys = result.and_then(|body| match *body {
        ToProcess::Keys { keys, .. } => Ok(keys),
        ToProcess::Refused { reason, .. } => Err(reason),
        _ => Err("the daemon's answer does not fit the question".to_owned()),
    });
    if let Ok(agent) = Agent::get() {
        agent.run(move || answer(keys));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_stay_bounded() {
        let mut state = State::default();
        let pauses: Vec<_> = (0..40).map(|_| state.next_pause()).collect();
        assert!(pauses.is_sorted());
        assert!(pauses[0] <= PAUSE_FIRST && pauses[39] <= PAUSE_LAST, "{pauses:?}");
        assert!(pauses[39] >= PAUSE_LAST / 2, "{pauses:?}");
    }
}
