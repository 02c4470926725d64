//! Parses the messages of clients and calls their handlers.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use fable::packet::Packet;
use fable::protocol::{ToDaemon, ToProcess, VERSION};
use rustix::event::epoll::EventFlags;

use super::connect::Wanted;
use super::{Daemon, limits};
use crate::log_quota;
use crate::registry::ClientId;

impl Daemon {
    /// Handles readiness or an error of a client's socket.
    pub(super) fn serve(&mut self, id: ClientId, flags: EventFlags) {
        let account = self.clients.get(&id).map(|client| Rc::clone(&client.holder));
        let _acting = log_quota::acting(account);
        if let Some(client) = self.clients.get_mut(&id) {
            if flags.contains(EventFlags::OUT) {
                client.flush();
            }
            // A client that is not read at present may still have closed.
            if flags.intersects(EventFlags::HUP | EventFlags::ERR)
                && !flags.contains(EventFlags::IN)
            {
                client.end("it has closed the connection");
            }
        }
        if !flags.contains(EventFlags::IN) {
            return;
        }
        for _ in 0..limits::PACKETS_AT_ONCE {
            let Some(packet) = self.clients.get_mut(&id).and_then(|client| client.receive()) else {
                return;
            };
            self.take(id, packet);
        }
    }

    fn take(&mut self, id: ClientId, packet: Packet) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let message: ToDaemon = match serde_json::from_slice(&packet.bytes) {
            Ok(message) => message,
            Err(error) => return client.expel(&format!("a packet is no message: {error}")),
        };
        let is_hello = matches!(message, ToDaemon::Hello { .. });
        if is_hello == client.greeted {
            return client.expel("the first message, and only that, is a hello");
        }
        let expected = usize::from(matches!(message, ToDaemon::Announce(_)));
        if packet.descriptors.len() != expected {
            return client.expel(&format!(
                "a message came with {} descriptors instead of {expected}",
                packet.descriptors.len()
            ));
        }
        self.dispatch(id, message, packet.descriptors.into_iter().next());
    }

    fn dispatch(&mut self, id: ClientId, message: ToDaemon, descriptor: Option<OwnedFd>) {
        match message {
            ToDaemon::Hello { version, .. } => self.greet(id, version),
            ToDaemon::Register { request, name, access, trust } => {
                self.register(id, request, &name, access, trust);
            }
            ToDaemon::Unregister { name } => self.drop_name(&name, id, "it was given up"),
            ToDaemon::Connect { request, name, trust, transport, owner } => {
                let wanted = Wanted { request, trust, insisted: None, owner };
                self.connect(id, &name, wanted, transport.as_deref());
            }
            ToDaemon::Moved { flow, epoch, transport, pause_ns } => {
                self.moved(id, flow, epoch, &transport, pause_ns);
            }
            ToDaemon::Orders { flow, orders } => self.told_orders(id, flow, orders),
            ToDaemon::MoveFailed { flow, transport, reason } => {
                self.move_failed(id, flow, &transport, &reason);
            }
            ToDaemon::GetKeys { request, flow, role } => self.get_keys(id, request, flow, role),
            ToDaemon::Ended { flow, reason } => self.ended(id, flow, &reason),
            ToDaemon::Announce(said) => {
                if let Some(page) = descriptor {
                    self.announce(id, &said, &page);
                }
            }
            ToDaemon::Operate { request, operation } => self.operate(id, request, operation),
            _ => self.expel(id, "this daemon does not know a message of that kind"),
        }
    }

    fn greet(&mut self, id: ClientId, version: u32) {
        if version != VERSION {
            let why = format!("it speaks version {version} of the protocol, and I {VERSION}");
            return self.expel(id, &why);
        }
        let host = self.cluster.host().to_owned();
        if let Some(client) = self.clients.get_mut(&id) {
            client.greeted = true;
            client.send(&ToProcess::Welcome { version: VERSION, host }, &[]);
        }
    }

    /// Disconnects a client that broke the rules.
    pub(super) fn expel(&mut self, id: ClientId, why: &str) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.expel(why);
        }
    }
}
