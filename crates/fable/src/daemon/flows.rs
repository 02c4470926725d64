//! The flows that the daemon has brokered: opened, ordered about, reported.
//!
//! Flows report on their own threads and on the agent's, holding locks of theirs. So whatever is
//! asked of a flow here is asked without the lock of the connection's state.

use std::collections::hash_map::Entry;
use std::os::fd::AsFd;

use super::Daemon;
use super::message::Message;
use super::state::{Asked, Known, State};
use crate::agent::Agent;
use crate::endpoint::FlowSettings;
use crate::error::{Error, Result};
use crate::flow::{Description, FlowHandle, FlowParts, KeysAnswer, Opening, Reporter};
use crate::kind::{Form, Kind};
use crate::protocol::{FlowId, Role, ToDaemon, ToProcess, kind_of};

impl Daemon {
    /// Begins to open a flow, which from now on is the daemon's to see and to move.
    pub(crate) fn open(&self, parts: FlowParts) -> Result<Opening> {
        let flow = parts.id;
        // The flow may report before it can be handled.
        match self.lock().flows.entry(flow) {
            Entry::Vacant(entry) => drop(entry.insert(Known::default())),
            Entry::Occupied(_) => {
                let reason = "the daemon has used the number of another flow".to_owned();
                return Err(Error::Refused { reason });
            }
        }
        match Opening::start(parts) {
            Ok(opening) => {
                if let Some(known) = self.lock().flows.get_mut(&flow) {
                    known.handle = Some(opening.handle());
                }
                Ok(opening)
            }
            Err(error) => {
                self.ended(flow, &error.to_string());
                Err(error)
            }
        }
    }

    /// Somebody has connected to a name of this process.
    pub(super) fn incoming(&self, message: Message) {
        let ToProcess::Incoming { flow, name, peer, trust, local, protected, transport, reason } =
            message.body
        else {
            return;
        };
        let mut descriptors = message.descriptors.into_iter();
        let (Some(link), Some(page)) = (descriptors.next(), descriptors.next()) else { return };
        let backlog = self.lock().names.get(&name).and_then(|held| held.backlog.clone());
        let (Some(backlog), Some(reporter)) = (backlog, self.own.upgrade()) else {
            return self.ended(flow, "nobody listens");
        };
        let FlowSettings { trust: own_trust, path, timeouts } = backlog.settings();
        let parts = FlowParts {
            id: flow,
            name,
            role: Role::Leader,
            peer,
            link,
            local,
            page,
            own_trust,
            peer_trust: trust,
            protected,
            first: kind_of(&transport).unwrap_or(fallback(local, protected)),
            reason,
            path,
            timeouts,
            reporter,
        };
        if backlog.is_full() {
            return self.ended(flow, "too many wait to be accepted");
        }
        if let Ok(opening) = self.open(parts) {
            backlog.add(opening);
        }
    }

    /// An order to move.
    pub(super) fn order_move(&self, flow: FlowId, transport: &str, reason: &str) {
        let handle = self.handle(flow);
        match (handle, kind_of(transport)) {
            (Some(handle), Ok(kind)) => handle.request_move(kind, reason),
            (Some(_), Err(unknown)) => {
                let reason = unknown.to_string();
                let transport = transport.to_owned();
                let mut state = self.lock();
                self.tell(&mut state, &ToDaemon::MoveFailed { flow, transport, reason });
            }
            // It ended while the order was on its way.
            (None, _) => {}
        }
    }

    pub(super) fn order_protection(&self, flow: FlowId, protected: bool) {
        if let Some(handle) = self.handle(flow) {
            handle.set_protected(protected);
        }
    }

    fn handle(&self, flow: FlowId) -> Option<FlowHandle> {
        self.lock().flows.get(&flow)?.handle.clone()
    }

    /// Tells a daemon that has come back of the flows that never noticed.
    pub(super) fn announce(&self) {
        let handles: Vec<_> =
            self.lock().flows.values().filter_map(|known| known.handle.clone()).collect();
        for handle in handles {
            let described = handle.describe();
            let mut state = self.lock();
            match described {
                Ok(Some(description)) => self.announce_one(&mut state, description),
                Ok(None) => drop(state.flows.remove(&handle.id())),
                // It stays unknown to the daemon, and works.
                Err(_) => {}
            }
        }
    }

    fn announce_one(&self, state: &mut State, description: Description) {
        let Description {
            flow,
            name,
            role,
            peer,
            mut epoch,
            mut transport,
            trust,
            protected,
            local,
            page,
        } = description;
        // It may have ended, or moved on, since it was asked.
        let Some(known) = state.flows.get(&flow) else { return };
        if let Some((later, kind)) = known.moved
            && later > epoch
        {
            (epoch, transport) = (later, kind);
        }
        let transport = transport.to_string();
        let message = ToDaemon::Announce {
            flow,
            name,
            role,
            peer,
            epoch,
            transport,
            trust,
            protected,
            local,
        };
        self.tell_with(state, &message, &[page.as_fd()]);
    }
}

/// What a leader offers if it does not know what the daemon has chosen.
fn fallback(local: bool, protected: bool) -> Kind {
    match (local, protected) {
        (true, _) => Kind::MempipeFutex(Form::Safe),
        (false, true) => Kind::Tls,
        (false, false) => Kind::TcpNodelay,
    }
}

impl Reporter for Daemon {
    fn moved(&self, flow: FlowId, epoch: u32, transport: Kind, pause_ns: u64) {
        let mut state = self.lock();
        if let Some(known) = state.flows.get_mut(&flow) {
            known.moved = Some((epoch, transport));
        }
        let transport = transport.to_string();
        self.tell(&mut state, &ToDaemon::Moved { flow, epoch, transport, pause_ns });
    }

    fn move_failed(&self, flow: FlowId, transport: Kind, reason: &str) {
        let (transport, reason) = (transport.to_string(), reason.to_owned());
        self.tell(&mut self.lock(), &ToDaemon::MoveFailed { flow, transport, reason });
    }

    fn ended(&self, flow: FlowId, reason: &str) {
        let mut state = self.lock();
        state.flows.remove(&flow);
        self.tell(&mut state, &ToDaemon::Ended { flow, reason: reason.to_owned() });
    }

    fn keys(&self, flow: FlowId, role: Role, answer: KeysAnswer) {
        let mut state = self.lock();
        if !state.is_up() {
            drop(state);
            return answer(Err("there is no daemon that would have the keys".to_owned()));
        }
        let request = state.ask(Asked::Keys(answer));
        self.tell(&mut state, &ToDaemon::GetKeys { request, flow, role });
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
