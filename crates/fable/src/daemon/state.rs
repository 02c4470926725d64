//! What this process has told the daemon, and asked it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use super::backlog::Backlog;
use super::message::Message;
use crate::agent::{Agent, Place};
use crate::control::{FlowHandle, KeysAnswer};
use crate::event::event_descriptor;
use crate::fork::NotInherited;
use crate::identity::{Access, FlowId, Role, Trust};
use crate::kind::Kind;
use crate::name::Name;
use crate::packet;
use crate::protocol::{ToDaemon, ToProcess};

/// How many packets wait for a daemon that does not read.
const OUTBOX_MAX: usize = 1024;

/// The first pause before connecting again, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_LAST: Duration = Duration::from_secs(2);

/// Which end of which flow: a process may hold both.
pub(super) type End = (FlowId, Role);

/// The connection.
#[derive(Default)]
pub(super) enum Link {
    /// There is none.
    #[default]
    Down,
    /// Hello was said.
    Greeting(Arc<NotInherited>),
    /// The daemon has said welcome.
    Up(Arc<NotInherited>),
}

/// Who waits for an answer.
pub(super) enum Asked {
    /// A thread.
    Caller(SyncSender<Message>),
    /// A thread that registers a name.
    Registrar(SyncSender<Message>, Held),
    /// A flow that needs keys.
    Keys(KeysAnswer),
    /// Nobody: the name had been registered with an earlier daemon.
    Again(Name),
}

/// A name of this process.
pub(super) struct Held {
    /// The number of the question by which it was registered.
    pub(super) number: u64,
    pub(super) access: Access,
    pub(super) trust: Trust,
    /// Takes incoming flows while somebody listens.
    pub(super) backlog: Option<Arc<Backlog>>,
}

/// A flow of this process.
#[derive(Default)]
pub(super) struct Known {
    /// There is none yet while the flow begins to open.
    pub(super) handle: Option<FlowHandle>,
    /// The last epoch that the flow has reported, and its transport.
    pub(super) moved: Option<(u32, Kind)>,
    /// The present daemon came while the flow had no path that it could be told.
    pub(super) is_untold: bool,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) link: Link,
    /// Where the agent watches the latest link.
    pub(super) place: Option<Place>,
    /// What the daemon understands, while the link is up.
    pub(super) revision: u32,
    /// Why the last connection ended.
    pub(super) trouble: String,
    pub(super) asked: HashMap<u64, Asked>,
    pub(super) names: HashMap<Name, Held>,
    pub(super) flows: HashMap<End, Known>,
    last_request: u64,
    outbox: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    failures: u32,
    /// A descriptor that keeps room for another one.
    reserve: Option<OwnedFd>,
}

impl State {
    pub(super) fn release_reserve(&mut self) {
        self.reserve = None;
    }

    /// As long as there is none, a later call tries again.
    pub(super) fn take_reserve(&mut self) {
        self.reserve = self.reserve.take().or_else(|| event_descriptor().ok());
    }

    pub(super) fn socket(&self) -> Option<&Arc<NotInherited>> {
        match &self.link {
            Link::Down => None,
            Link::Greeting(socket) | Link::Up(socket) => Some(socket),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }

    /// The name, if it is still held by this registration.
    pub(super) fn held(&mut self, name: &Name, number: u64) -> Option<&mut Held> {
        self.names.get_mut(name).filter(|held| held.number == number)
    }

    /// The number of a new question.
    pub(super) fn ask(&mut self, asked: Asked) -> u64 {
        self.last_request += 1;
        self.asked.insert(self.last_request, asked);
        self.last_request
    }

    /// Sends a message, or keeps it until the daemon reads on.
    ///
    /// # Errors
    /// The connection is of no use any more.
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

    /// Sends what waits, as far as the daemon reads.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let Link::Up(socket) = &self.link else {
            // What is told to nobody is told again, where it matters, to the next daemon.
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

    /// Whether something waits for the daemon to read on.
    pub(super) fn is_behind(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// The connection has ended: whoever waits for an answer learns that by its channel's end.
    pub(super) fn lose(&mut self, trouble: String) {
        self.link = Link::Down;
        self.reserve = None;
        self.trouble = trouble;
        for (_, asked) in self.asked.drain() {
            if let Asked::Keys(answer) = asked {
                answer_keys(answer, Err("the daemon went away".to_owned()));
            }
        }
        self.outbox.clear();
    }

    /// Whether there is something to tell the next daemon.
    pub(super) fn has_something_to_keep(&self) -> bool {
        !self.names.is_empty() || !self.flows.is_empty()
    }

    /// How long to wait before the next attempt to connect. Processes of one daemon do not come
    /// back all at once.
    pub(super) fn next_pause(&mut self) -> Duration {
        let doubled = PAUSE_FIRST * 2_u32.pow(self.failures.min(10));
        self.failures = self.failures.saturating_add(1);
        let spread = std::process::id() % 32;
        doubled.min(PAUSE_LAST) * (32 + spread) / 64
    }

    /// The daemon is there.
    pub(super) fn forget_failures(&mut self) {
        self.failures = 0;
    }
}

/// Gives somebody keys, or the reason why not, when no lock is held.
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
