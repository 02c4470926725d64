//! Handles announcements: flows that are older than the daemon, or than the connection of an end.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use fable::protocol::{Announcement, FlowId, Role, Trust, kind_of};
use fable::{Kind, page};

use super::connect::identity;
use super::{Daemon, limits};
use crate::flows::{End, Flow, Outcome};
use crate::process::Process;
use crate::quota;
use crate::registry::ClientId;

impl Daemon {
    /// Handles `Announce`.
    pub(super) fn announce(&mut self, id: ClientId, said: &Announcement, page: &OwnedFd) {
        let Ok(kind) = kind_of(&said.transport) else {
            return self.expel(id, "it announced a transport that does not exist");
        };
        let Some(client) = self.clients.get(&id) else { return };
        let process = Rc::clone(&client.process);
        let flow = said.flow;
        let result =
            self.check_page(flow, page).and_then(|()| match self.flows.contains_key(&flow) {
                true => self.complete(id, &process, said, kind, page),
                false => self.learn(id, &process, said, kind, page),
            });
        match result {
            Ok(()) => {
                let what = format!(
                    "flow {flow} is announced by {} as {:?} over {kind}",
                    super::names::who(&process.peer),
                    said.role
                );
                self.event(Some(flow), &what);
            }
            // The flow continues without the daemon, whose table does not have it.
            Err(why) => {
                let what = format!("the announcement of flow {flow} is not believed: {why}");
                tracing::warn!(client = id.0, pid = process.peer.pid, "{what}");
                self.refuse_and_count(id, 0, what);
            }
        }
    }

    /// Checks that a page is that of the flow. Only a daemon makes pages of this name that belong
    /// to root or to the daemon's user, and it gives them to the two ends only.
    fn check_page(&self, flow: FlowId, page: &OwnedFd) -> Result<(), String> {
        let made = page::made_for(page.as_fd()).map_err(|error| format!("its page: {error}"))?;
        match made {
            Some((of, maker)) if of == flow && (maker == 0 || maker == self.own_uid) => Ok(()),
            Some((of, _)) if of != flow => Err(format!("its page is that of flow {of}")),
            Some((_, maker)) => Err(format!("its page was made by user {maker}, not by a daemon")),
            None => Err("its page was not made by a daemon".to_owned()),
        }
    }

    /// Records the first end of an announced flow, or the only one on this host.
    fn learn(
        &mut self,
        id: ClientId,
        process: &Rc<Process>,
        said: &Announcement,
        kind: Kind,
        page: &OwnedFd,
    ) -> Result<(), String> {
        let time = self.policy.announced_within();
        if self.started.elapsed() > time {
            return Err(format!(
                "this daemon does not know it, and started more than {} s ago \
                 (`announced_within_s` in its policy)",
                time.as_secs()
            ));
        }
        let client = self.clients.get(&id).ok_or("its process is gone")?;
        if client.flows >= limits::FLOWS_OF_CLIENT_MAX {
            return Err("its process has too many flows".to_owned());
        }
        let charge = client.holder.charge(quota::flow())?;
        let own = End {
            peer: process.peer.clone(),
            client: Some(id),
            process: Some(Rc::clone(process)),
            trust: said.trust,
        };
        let mut peer = said.peer.clone();
        peer.host = crate::text::plain(&peer.host, 255);
        peer.program = crate::text::plain(&peer.program, 64);
        let other = End { peer, client: None, process: None, trust: Trust::Untrusted };
        let ends = match said.role {
            Role::Leader => [own, other],
            Role::Follower => [other, own],
        };
        let mut flow = self
            .flow_with(said.flow, &said.name, ends, page)
            .map_err(|error| format!("its page: {error}"))?;
        flow.local = said.local;
        flow.protected = said.protected;
        flow.current = Some(kind);
        flow.epoch = said.epoch;
        // The network that the flow crosses is no longer known; that it was allowed to be
        // unprotected is.
        flow.trusted_network = !said.protected;
        flow.decided(kind, "it was in use before this daemon knew the flow", Outcome::InUse);
        self.keep(flow, id, charge);
        Ok(())
    }

    /// Records the other end, or one that has reconnected. Its page proves that it belongs to the
    /// flow.
    fn complete(
        &mut self,
        id: ClientId,
        process: &Rc<Process>,
        said: &Announcement,
        kind: Kind,
        page: &OwnedFd,
    ) -> Result<(), String> {
        let page = identity(page).map_err(|error| error.to_string())?;
        let Some(flow) = self.flows.get_mut(&said.flow) else {
            return Err("it has ended".to_owned());
        };
        check(flow, process, said, page)?;
        let end = &mut flow.ends[said.role.index()];
        end.peer = process.peer.clone();
        end.client = Some(id);
        end.process = Some(Rc::clone(process));
        end.trust = said.trust;
        flow.protected |= said.protected;
        if said.epoch > flow.epoch {
            flow.epoch = said.epoch;
            flow.current = Some(kind);
        }
        Ok(())
    }
}

/// Checks that an announcement matches what is known of the flow.
fn check(
    flow: &Flow,
    process: &Process,
    said: &Announcement,
    page: (u64, u64),
) -> Result<(), String> {
    let end = &flow.ends[said.role.index()];
    let reason = if page != flow.page_identity {
        "its page is another one"
    } else if said.name != flow.name || said.local != flow.local {
        "the other end says otherwise"
    } else if end.client.is_some() {
        "that end is here already"
    } else if !flow.local && end.process.is_none() {
        "that end is on another host"
    } else if end.peer.uid != process.peer.uid {
        "that end belongs to another user"
    } else {
        return Ok(());
    };
    Err(reason.to_owned())
}
