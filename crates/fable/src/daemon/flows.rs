//! The flows that the daemon has connected: opens them, executes orders, and sends their reports.
//!
//! Flows report on their own threads and on the agent's, while they hold their own locks. Code here
//! therefore calls a flow only without the lock of the connection's state.

use std::collections::btree_map::Entry;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::Daemon;
use super::message::Message;
use super::state::{Asked, End, KnownFlow, State};
use crate::control::link::Link;
use crate::control::moves::Basis;
use crate::control::{FlowHandle, KeysAnswer, Reporter};
use crate::error::{Error, Result};
use crate::flow::{FlowParts, FlowSettings, Opening};
use crate::identity::{FlowId, Role};
use crate::kind::{Form, Kind};
use crate::orders::Orders;
use crate::protocol::{Announcement, ToDaemon, ToProcess, kind_of};

/// Reports one end of a flow to the daemon.
struct EndReporter {
    daemon: &'static Daemon,
    role: Role,
}

impl Daemon {
    /// Returns the reporter for the flows of which this process has that end.
    pub(crate) fn reporter(&'static self, role: Role) -> Arc<dyn Reporter> {
        Arc::new(EndReporter { daemon: self, role })
    }

    /// Starts to open a flow, which the daemon can see and move from now on. If the peer's process
    /// is on this host, the process's end counts as the peer's end.
    pub(crate) fn open(
        &'static self,
        parts: FlowParts,
        peer_process: Option<OwnedFd>,
    ) -> Result<Opening> {
        let end = (parts.id, parts.role);
        // The flow may report before its handle exists.
        match self.lock().flows.entry(end) {
            Entry::Vacant(entry) => drop(entry.insert(KnownFlow::default())),
            Entry::Occupied(_) => {
                let reason = "the daemon has used the number of another flow".to_owned();
                return Err(Error::Refused { reason });
            }
        }
        match Opening::start(parts) {
            Ok(opening) => {
                if let Some(process) = peer_process {
                    opening.watch_process(process)?;
                }
                if let Some(known) = self.lock().flows.get_mut(&end) {
                    known.handle = Some(opening.handle());
                }
                Ok(opening)
            }
            Err(error) => {
                self.ended(end, &error.to_string());
                Err(error)
            }
        }
    }

    /// Handles `Incoming`: another process has connected to a name of this process.
    pub(super) fn incoming(&'static self, message: Message) {
        let ToProcess::Incoming { flow, name, peer, trust, local, protected, transport, reason } =
            message.body
        else {
            return;
        };
        let first = kind_of(&transport).unwrap_or(fallback(local, protected));
        let refuse = |link: Option<OwnedFd>, reason: &str| {
            if let Some(link) = link {
                Link::decline(link, local, first, reason);
            }
            self.ended((flow, Role::Leader), reason);
        };
        let mut descriptors = message.descriptors.into_iter();
        let link = descriptors.next();
        if message.has_lost_descriptors {
            return refuse(link, &Error::lost_descriptors().to_string());
        }
        let (Some(link), Some(page)) = (link, descriptors.next()) else { return };
        let backlog = self.lock().names.get(&name).and_then(|held| held.backlog.clone());
        let Some(backlog) = backlog else {
            return refuse(Some(link), "the name's owner does not listen");
        };
        if backlog.is_full() {
            return refuse(Some(link), "too many wait to be accepted");
        }
        let FlowSettings { trust: own_trust, path, timeouts, undelivered } = backlog.settings();
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
            first,
            reason,
            path,
            timeouts,
            reporter: self.reporter(Role::Leader),
            undelivered,
        };
        if let Ok(opening) = self.open(parts, descriptors.next()) {
            backlog.add(opening);
        }
    }

    /// Executes the daemon's order to move a flow.
    pub(super) fn order_move(
        &'static self,
        flow: FlowId,
        transport: &str,
        reason: &str,
        basis: Basis,
    ) {
        // The leader's end first: it need not ask the other. There is no end if the flow ended
        // while the order was on its way.
        let Some(handle) = self.handles(flow).next() else { return };
        let requested = match kind_of(transport) {
            Ok(kind) => handle.order_move(kind, reason, basis).map_err(|error| error.to_string()),
            Err(unknown) => Err(unknown.to_string()),
        };
        if let Err(reason) = requested {
            let transport = transport.to_owned();
            let mut state = self.lock();
            self.tell(&mut state, &ToDaemon::MoveFailed { flow, transport, reason });
        }
    }

    /// Merges the orders that the daemon has sent for a flow.
    pub(super) fn adopt_orders(&'static self, flow: FlowId, orders: &Orders) {
        for handle in self.handles(flow) {
            // An end without an agent cannot move either.
            let _ = handle.adopt(orders.clone());
        }
    }

    /// Sets whether this process's ends of the flow may use protected transports only.
    pub(super) fn order_protection(&self, flow: FlowId, protected: bool) {
        self.handles(flow).for_each(|handle| handle.set_protected(protected));
    }

    fn handles(&self, flow: FlowId) -> impl Iterator<Item = FlowHandle> {
        let state = self.lock();
        let handle = |role| state.flows.get(&(flow, role)).and_then(|known| known.handle.clone());
        Role::BOTH.map(handle).into_iter().flatten()
    }

    /// Reports that this end is closed, or was never opened.
    pub(crate) fn ended(&'static self, end: End, reason: &str) {
        let mut state = self.lock();
        state.flows.remove(&end);
        self.tell(&mut state, &ToDaemon::Ended { flow: end.0, reason: reason.to_owned() });
    }

    /// Announces all flows to a new daemon after a reconnection.
    pub(super) fn announce(&'static self) {
        let ends = |(end, known): (&End, &KnownFlow)| Some((*end, known.handle.clone()?));
        let handles: Vec<_> = self.lock().flows.iter().filter_map(ends).collect();
        for (end, handle) in handles {
            match handle.describe() {
                Ok(Some((said, page))) => {
                    self.announce_one(&mut self.lock(), said, &page);
                    // Read after `describe`: the daemon accepts no orders for a flow that it does
                    // not know, and later changes are reported as they happen.
                    let orders = handle.orders().unwrap_or_default();
                    self.tell_orders(&mut self.lock(), end.0, orders);
                }
                // It has no path yet, or is closed and about to report that.
                Ok(None) => {
                    if let Some(known) = self.lock().flows.get_mut(&end) {
                        known.is_untold = true;
                    }
                }
                // The daemon does not learn of the flow, which continues to work.
                Err(_) => {}
            }
        }
    }

    /// Sends the flow's orders, if there are any.
    fn tell_orders(&'static self, state: &mut State, flow: FlowId, orders: Orders) {
        if orders != Orders::default() {
            self.tell(state, &ToDaemon::Orders { flow, orders });
        }
    }

    fn announce_one(&'static self, state: &mut State, mut said: Announcement, page: &OwnedFd) {
        // The flow may have ended or moved since the request.
        let Some(known) = state.flows.get(&(said.flow, said.role)) else { return };
        if let Some((later, kind)) = known.moved
            && later > said.epoch
        {
            (said.epoch, said.transport) = (later, kind.to_string());
        }
        self.tell_with(state, &ToDaemon::Announce(said), &[page.as_fd()]);
    }
}

/// Returns the transport that a leader offers if it does not know the daemon's choice.
fn fallback(local: bool, protected: bool) -> Kind {
    match (local, protected) {
        (true, _) => Kind::MempipeFutex(Form::Safe),
        (false, true) => Kind::Tls,
        (false, false) => Kind::TcpNodelay,
    }
}

impl Reporter for EndReporter {
    fn moved(&self, flow: FlowId, epoch: u32, transport: Kind, pause_ns: u64) {
        let mut state = self.daemon.lock();
        if let Some(known) = state.flows.get_mut(&(flow, self.role)) {
            known.moved = Some((epoch, transport));
            if std::mem::take(&mut known.is_untold)
                && let Some(handle) = &known.handle
                && let Ok(Some((said, page))) = handle.describe()
            {
                self.daemon.announce_one(&mut state, said, &page);
            }
        }
        let transport = transport.to_string();
        self.daemon.tell(&mut state, &ToDaemon::Moved { flow, epoch, transport, pause_ns });
    }

    fn move_failed(&self, flow: FlowId, transport: Kind, reason: &str) {
        let (transport, reason) = (transport.to_string(), reason.to_owned());
        let mut state = self.daemon.lock();
        self.daemon.tell(&mut state, &ToDaemon::MoveFailed { flow, transport, reason });
    }

    fn ordered(&self, flow: FlowId, orders: &Orders) {
        let mut state = self.daemon.lock();
        self.daemon.tell_orders(&mut state, flow, orders.clone());
    }

    fn ended(&self, flow: FlowId, reason: &str) {
        self.daemon.ended((flow, self.role), reason);
    }

    fn keys(&self, flow: FlowId, role: Role, answer: KeysAnswer) {
        let mut state = self.daemon.lock();
        if !state.is_up() {
            drop(state);
            return answer(Err("there is no daemon that would have the keys".to_owned()));
        }
        let request = state.ask(Asked::Keys(answer));
        self.daemon.tell(&mut state, &ToDaemon::GetKeys { request, flow, role });
    }
}
