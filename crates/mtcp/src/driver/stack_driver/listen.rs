//! Implements listeners, which accept connections both from the stack and from the kernel.
//!
//! An operation on a listener is submitted to the kernel driver with its own tag, and the stack
//! serves it as well. A repeating operation gets the outcomes of both. Any other must have a single
//! outcome. When the stack has a connection for it, the kernel's half is cancelled first. Only if
//! that ends without a result does the stack's result replace it. So neither side accepts a
//! connection that no operation takes.

use super::{MtcpDriver, own};
use crate::driver::address;
use crate::driver::entry::{Entry, Phase};
use crate::engine::Port;
use crate::socket::errors::failure;
use crate::socket::events::of_readiness;
use megapipe::driver_api::{Endpoint, Full, Object, Operation, Outcome, Output, Unattached};
use megapipe::{Kind, Socket};
use mtcp_proto::{Error, ListenOptions, Readiness, SocketId};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

/// An operation that both the stack and the kernel serve.
pub(super) struct Shared {
    pub(super) tag: u64,
    /// The number of its endpoint.
    pub(super) number: u32,
    operation: Operation,
    /// Whether the stack has a result for it, and the kernel's half is being cancelled.
    yielding: bool,
    /// Whether the channel has cancelled it.
    pub(super) cancelled: bool,
}

impl Shared {
    fn repeats(&self) -> bool {
        matches!(
            self.operation,
            Operation::Accept { repeat: true, .. } | Operation::Poll { repeat: true, .. }
        )
    }
}

/// Offset in TCP_INFO of a listener: the number of waiting connections, and their limit.
const WAITING_AT: usize = 24;
const BACKLOG_AT: usize = 28;

impl<P: Port> MtcpDriver<P> {
    /// Takes over a listening socket. The kernel alone keeps a socket on which the stack cannot
    /// listen: other families and protocols, addresses that are not the stack's, and a port on
    /// which the channel listens already.
    pub(super) fn attach_listener(&mut self, descriptor: OwnedFd) -> Result<Object, Unattached> {
        let local = address::tcp_name(descriptor.as_fd());
        let both_families = !address::is_ipv6_only(descriptor.as_fd());
        let kernel = self.kernel.attach(Endpoint::Descriptor(descriptor), Kind::Listener)?;
        let Some(local) = local.filter(|local| self.is_of_stack(*local, both_families)) else {
            return Ok(kernel);
        };
        let mut entry = Entry::new(Some(kernel), Phase::Fresh);
        entry.speaks_v6 = local.is_ipv6();
        let mut options =
            ListenOptions { connection: self.defaults, both_families, ..ListenOptions::default() };
        options.backlog = self.backlog(kernel).unwrap_or(options.backlog);
        options.connection = self.copy_options(kernel, options.connection, &mut entry);
        let socket = match self.port.listen(local, &options) {
            Ok(socket) => socket,
            Err(Error::AddressInUse) => return Ok(kernel),
            Err(error) => {
                let endpoint = self.kernel.detach(kernel, &[]).map(Endpoint::Descriptor);
                return Err(Unattached { error: failure(error), endpoint });
            }
        };
        entry.phase = Phase::Listening(socket);
        let number = self.entries.insert(entry);
        self.entries.place(socket, number);
        Ok(Object(Object::INSTALLED + number))
    }

    /// Whether a listener on that address accepts connections of the stack.
    fn is_of_stack(&self, local: SocketAddr, both_families: bool) -> bool {
        let own = self.port.addresses();
        if !local.ip().is_unspecified() {
            return own.contains(&local.ip());
        }
        let both = local.is_ipv6() && both_families;
        own.iter().any(|own| both || own.is_ipv6() == local.is_ipv6())
    }

    fn backlog(&mut self, kernel: Object) -> Option<u32> {
        let mut info = [0; BACKLOG_AT + 4];
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        let told = self.kernel.get_option(kernel, level, name, &mut info).ok()?;
        let backlog = u32::from_ne_bytes(info[BACKLOG_AT..].try_into().ok()?);
        (told == info.len() && backlog > 0).then_some(backlog)
    }

    /// The number of connections that wait in the stack.
    fn waiting(&mut self, number: u32) -> u32 {
        let Some(entry) = self.entries.get_mut(number) else { return 0 };
        let Phase::Listening(socket) = entry.phase else { return 0 };
        self.port.info(socket).map_or(0, |info| info.receive_queue)
    }

    /// Adds the connections that wait in the stack to the number that the kernel returns.
    pub(super) fn add_waiting(&mut self, object: Object, level: i32, name: i32, value: &mut [u8]) {
        let Some(number) = own(object) else { return };
        if (level, name) != (libc::IPPROTO_TCP, libc::TCP_INFO) {
            return;
        }
        let ours = self.waiting(number);
        if let Some(field) = value.get_mut(WAITING_AT..WAITING_AT + 4) {
            let theirs = u32::from_ne_bytes([field[0], field[1], field[2], field[3]]);
            field.copy_from_slice(&theirs.saturating_add(ours).to_ne_bytes());
        }
    }

    /// Accepts a connection from the stack's queues.
    fn take_connection(&mut self, number: u32) -> Option<SocketId> {
        let Phase::Listening(socket) = self.entries.get_mut(number)?.phase else { return None };
        self.port.accept(socket).ok()
    }

    fn accepted(&mut self, number: u32, socket: SocketId) -> Option<Output> {
        let mut entry = Entry::new(None, Phase::Connected(socket));
        let listener = self.entries.get_mut(number)?;
        entry.extras = listener.extras.clone();
        entry.speaks_v6 = listener.speaks_v6;
        let socket = self.give_out(socket, entry);
        Some(Output::Socket { socket, queue_nonempty: false })
    }

    /// Takes all waiting connections out of the stack's queues.
    pub(super) fn take_all_waiting(&mut self, number: u32) -> Vec<Socket> {
        let mut connections = Vec::new();
        while let Some(socket) = self.take_connection(number) {
            let Some(Output::Socket { socket: connection, .. }) = self.accepted(number, socket)
            else {
                continue;
            };
            if let Some(entry) =
                self.entries.whose(socket).and_then(|own| self.entries.get_mut(own))
            {
                entry.unaccepted = true;
            }
            connections.push(connection);
        }
        connections
    }

    /// Begins an operation on a listener.
    pub(super) fn begin_shared(
        &mut self,
        number: u32,
        kernel: Object,
        tag: u64,
        operation: Operation,
    ) -> Result<(), Full> {
        self.hand_down(tag, kernel, operation)?;
        if matches!(operation, Operation::Accept { .. } | Operation::Poll { .. }) {
            let (yielding, cancelled) = (false, false);
            self.shared.push(Shared { tag, number, operation, yielding, cancelled });
            self.serve_listener(number);
        }
        Ok(())
    }

    /// Completes the operations of a listener with the stack's connections.
    pub(super) fn serve_listener(&mut self, number: u32) {
        let Some(entry) = self.entries.get_mut(number) else { return };
        let (Phase::Listening(socket), Some(kernel)) = (entry.phase, entry.kernel) else { return };
        for at in 0..self.shared.len() {
            let shared = &self.shared[at];
            if shared.number != number || shared.yielding || shared.cancelled {
                continue;
            }
            let (tag, operation, repeats) = (shared.tag, shared.operation, shared.repeats());
            let ready = self.port.readiness(socket);
            if !ready.intersects(Readiness::READABLE) {
                return;
            }
            match operation {
                _ if !repeats => {
                    self.shared[at].yielding = true;
                    self.handed = true;
                    self.kernel.cancel(tag, kernel);
                }
                Operation::Poll { events, .. } => self.report_listener_poll(tag, events, ready),
                _ => self.accept_all(number, tag),
            }
        }
    }

    fn report_listener_poll(&mut self, tag: u64, asked: u32, ready: Readiness) {
        let events = of_readiness(ready).0 & asked;
        if events != 0 {
            let outcome = Outcome::plain(tag, events as i32);
            self.outcomes.push_back(Outcome { more: true, ..outcome });
        }
    }

    fn accept_all(&mut self, number: u32, tag: u64) {
        while self.outcomes.len() < self.limit {
            let Some(socket) = self.take_connection(number) else { return };
            let Some(output) = self.accepted(number, socket) else { return };
            self.outcomes.push_back(Outcome { tag, result: 0, more: true, output });
        }
        self.queue(number);
    }

    /// Processes an outcome of the kernel driver; completes it if it is the kernel's half of an
    /// operation on a listener.
    pub(super) fn complete_shared(&mut self, outcome: &mut Outcome) {
        if outcome.more {
            return;
        }
        let Some(at) = self.shared.iter().position(|shared| shared.tag == outcome.tag) else {
            return;
        };
        let shared = self.shared.swap_remove(at);
        if !shared.yielding || shared.cancelled || outcome.result != -libc::ECANCELED {
            return;
        }
        let number = shared.number;
        if let Operation::Poll { events, .. } = shared.operation {
            let Some(entry) = self.entries.get_mut(number) else { return };
            let Phase::Listening(socket) = entry.phase else { return };
            let ready = of_readiness(self.port.readiness(socket)).0 & events;
            // The connection was there and is gone: the caller's accept finds none.
            outcome.result = if ready == 0 { libc::POLLIN as i32 } else { ready as i32 };
            return;
        }
        let Some(socket) = self.take_connection(number) else {
            // The peer has reset the connection in the meantime: the channel submits the accept
            // again.
            outcome.result = -libc::EAGAIN;
            return;
        };
        let nonempty = self.waiting(number) > 0;
        if let Some(Output::Socket { socket, .. }) = self.accepted(number, socket) {
            outcome.result = 0;
            outcome.output = Output::Socket { socket, queue_nonempty: nonempty };
        }
    }
}
