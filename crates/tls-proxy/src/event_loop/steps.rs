//! Passes completions to relays, and converts the wishes of relays into requests.

use super::session::Session;
use super::{Cookie, Core};
use crate::relay::{Close, RelayRequest, Side, Stage};
use megapipe::{Buffer, Event, Handle};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};

/// The result of executing a wish.
enum Granted {
    Yes,
    /// The channel has no room now.
    Later,
    /// The client's session has ended.
    Over,
}

impl Core<'_> {
    fn session(&mut self, client: Handle) -> Option<&mut Session> {
        match self.channel.cookie_mut(client) {
            Some(Cookie::Client(session)) => Some(session),
            _ => None,
        }
    }

    pub(super) fn client_event(&mut self, client: Handle, event: Event) {
        self.tell(client, Side::Client, event);
        self.advance(client);
    }

    pub(super) fn backend_event(&mut self, client: Handle, backend: Handle, event: Event) {
        match event {
            Event::Connect(outcome) => self.connected(client, backend, outcome),
            event => self.tell(client, Side::Backend, event),
        }
        self.advance(client);
    }

    /// Passes an event on one of its sides to a relay.
    fn tell(&mut self, client: Handle, side: Side, event: Event) {
        let (now, tally) = (self.now, self.tally);
        let Some(Cookie::Client(session)) = self.channel.cookie_mut(client) else { return };
        let before = session.relay.stage();
        let mut moved = true;
        match event {
            Event::Receive(Ok(bytes)) => {
                let relayed = session.relay.received(side, &bytes, &mut self.pool) as u64;
                match side {
                    Side::Client => tally.bytes_to_backends.add(relayed),
                    Side::Backend => tally.bytes_to_clients.add(relayed),
                }
            }
            Event::Receive(Err(_)) => session.relay.receive_failed(side),
            Event::Write(outcome, buffer) => {
                let is_whole = outcome.is_ok_and(|written| written == buffer.len());
                let buffer = match buffer {
                    Buffer::Owned(bytes) => bytes,
                    _ => Vec::new(),
                };
                session.relay.written(side, is_whole, buffer, &mut self.pool);
            }
            Event::Disconnect(outcome) => session.relay.shut(side, outcome.is_ok()),
            _ => moved = false,
        }
        let after = session.relay.stage();
        if before == Stage::Handshake && matches!(after, Stage::Connecting) {
            tally.handshakes.add(1);
            tally.resumed.add(u64::from(session.relay.is_resumed()));
        }
        if before != after && after != Stage::Lingering {
            session.permit.take().into_iter().for_each(|permit| self.handshakes.end(permit));
        }
        // A handshake must be complete in time, whatever the amount of data.
        if before != after || moved && after == Stage::Relaying {
            session.since = now;
        }
    }

    fn connected(&mut self, client: Handle, backend: Handle, outcome: io::Result<()>) {
        let (now, version) = (self.now, self.plan.header);
        let Some(Cookie::Client(session)) = self.channel.cookie_mut(client) else { return };
        let target = session.target;
        match outcome {
            Ok(()) => {
                let proxy = self.addresses.get(session.gate).copied().flatten();
                if let (Some(version), Some(proxy)) = (version, proxy) {
                    session.relay.send_before(&version.header(session.peer, proxy));
                }
                session.relay.connected();
                session.since = now;
                self.backends.answered(target);
            }
            Err(error) => {
                session.backend = None;
                // The completion was its last one, so the handle still exists and closing succeeds.
                let _ = self.channel.close(backend);
                self.backends.failed(target, &error, now);
                self.connect(client);
            }
        }
    }

    /// Starts to connect to the next backend, or reports that there is none.
    fn connect(&mut self, client: Handle) {
        let now = self.now;
        loop {
            let Some(Cookie::Client(session)) = self.channel.cookie_mut(client) else { return };
            let tries = session.tries.get_or_insert_with(|| self.backends.begin());
            let Some(target) = self.backends.next(tries, now) else {
                return session.relay.no_backend();
            };
            (session.target, session.since) = (target, now);
            let address = self.backends.address(target);
            match self.begin_connect(client, address) {
                Ok(backend) => {
                    if let Some(session) = self.session(client) {
                        session.backend = Some(backend);
                    }
                    return;
                }
                Err(error) => self.backends.failed(target, &error, now),
            }
        }
    }

    fn begin_connect(&mut self, client: Handle, address: SocketAddr) -> io::Result<Handle> {
        let kind = Type::STREAM.cloexec();
        let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        let backend = self.channel.register(TcpStream::from(socket), Cookie::Backend(client))?;
        if let Err(error) = self.channel.connect(backend, address) {
            let _ = self.channel.close(backend);
            return Err(error.into());
        }
        Ok(backend)
    }

    /// Handles a stage of a client's session that has lasted too long.
    pub(super) fn expire(&mut self, client: Handle) {
        let now = self.now;
        let Some(session) = self.session(client) else { return };
        if session.relay.stage() != Stage::Connecting {
            return session.relay.expired();
        }
        let target = session.target;
        if let Some(backend) = session.backend.take() {
            // Closing cancels a connect in flight; no completion follows.
            let _ = self.channel.close(backend);
            let error = io::Error::from(io::ErrorKind::TimedOut);
            self.backends.failed(target, &error, now);
        }
        self.connect(client);
    }

    /// Ends a session at once.
    pub(super) fn cut(&mut self, client: Handle) {
        if let Some(session) = self.session(client) {
            session.relay.cut();
            self.advance(client);
        }
    }

    /// Executes the wishes of a relay, and updates its deadline.
    pub(super) fn advance(&mut self, client: Handle) {
        loop {
            let Some(session) = self.session(client) else { return };
            let Some(wish) = session.relay.wish() else { break };
            match self.grant(client, wish) {
                Granted::Yes => {}
                Granted::Over => return,
                Granted::Later => {
                    self.stalled.push(client);
                    break;
                }
            }
        }
        let limits = self.plan.limits;
        let Some(Cookie::Client(session)) = self.channel.cookie_mut(client) else { return };
        let deadline = session.deadline(&limits);
        if session.armed.is_none_or(|armed| deadline < armed) {
            if let Some(later) = session.armed.replace(deadline) {
                self.deadlines.remove(&(later, client.index()));
            }
            self.deadlines.insert((deadline, client.index()), client);
        }
    }

    fn grant(&mut self, client: Handle, wish: RelayRequest) -> Granted {
        let Some(session) = self.session(client) else { return Granted::Over };
        let handle_of = |side| match side {
            Side::Client => client,
            // A side that is absent has no wishes, so the fallback is never used.
            Side::Backend => session.backend.unwrap_or(client),
        };
        let outcome = match wish {
            RelayRequest::Receive(side) => {
                let handle = handle_of(side);
                self.channel.receive(handle, megapipe::Repeat::Once)
            }
            RelayRequest::Shut(side) => {
                let handle = handle_of(side);
                self.channel.disconnect(handle, Shutdown::Write)
            }
            RelayRequest::Write(side) => {
                let handle = handle_of(side);
                let bytes = session.relay.take(side);
                let filed = self.channel.write(handle, bytes);
                filed.map_err(|rejected| {
                    if let (Some(session), Buffer::Owned(bytes)) =
                        (self.session(client), rejected.buffer)
                    {
                        session.relay.restore(side, bytes);
                    }
                    rejected.error
                })
            }
            RelayRequest::Connect => {
                session.relay.granted(wish);
                self.connect(client);
                return Granted::Yes;
            }
            RelayRequest::Close(Side::Backend, how) => {
                let backend = session.backend.take();
                session.relay.granted(wish);
                backend.into_iter().for_each(|backend| self.close(backend, how));
                return Granted::Yes;
            }
            RelayRequest::Close(Side::Client, how) => {
                self.finish(client, how);
                return Granted::Over;
            }
        };
        let Some(session) = self.session(client) else { return Granted::Over };
        match outcome {
            Ok(()) => {
                session.relay.granted(wish);
                Granted::Yes
            }
            Err(megapipe::Error::QueueFull | megapipe::Error::TooManyRequests { .. }) => {
                Granted::Later
            }
            Err(_) => {
                session.relay.cut();
                Granted::Yes
            }
        }
    }

    fn close(&mut self, handle: Handle, how: Close) {
        // This fails only for a handle that is gone already.
        let _ = match how {
            Close::Reset => self.channel.abort(handle).map(drop),
            Close::Orderly => self.channel.close(handle).map(drop),
        };
    }

    /// Closes a client's connection and removes its session.
    fn finish(&mut self, client: Handle, how: Close) {
        let Some(session) = self.session(client) else { return };
        let (outcome, gate) = (session.relay.outcome(), session.gate);
        let (permit, backend) = (session.permit.take(), session.backend.take());
        if let Some(at) = session.armed {
            self.deadlines.remove(&(at, client.index()));
        }
        permit.into_iter().for_each(|permit| self.handshakes.end(permit));
        // The backend to which a connect may still be in flight.
        if let Some(backend) = backend {
            self.close(backend, Close::Orderly);
        }
        self.close(client, how);
        self.sessions -= 1;
        self.tally.ended(outcome);
        self.reopen(gate);
    }
}
