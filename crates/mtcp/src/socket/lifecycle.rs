//! Creates, binds, connects, accepts and closes sockets.

use super::errors::{errno, failure, from};
use super::events::Events;
use super::naming::{Reuse, plain};
use super::pipe::PipeEnd;
use super::settings::Extras;
use super::{Context, Descriptor, Ended, FRUITLESS_CALLS, Family, Object, Phase, Socket};
use mtcp_proto::{Error, ListenOptions, Readiness, Shutdown, SocketId, State};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

impl Context {
    /// Creates a stream socket that is neither bound nor connected. See socket(2).
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn socket(&mut self, family: Family) -> io::Result<Descriptor> {
        self.install(Object::Socket(Socket {
            phase: Phase::Fresh,
            family,
            nonblocking: false,
            seen: Readiness::default(),
            ended: Ended::default(),
            shutdowns: 0,
            error: 0,
            id: None,
            extras: None,
        }))
    }

    /// Binds the socket to a local address; port 0 selects a free one. See bind(2).
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`, `EINVAL` (bound or connected already; an IPv4 address with
    /// `IPV6_V6ONLY`), `EAFNOSUPPORT`, `EADDRNOTAVAIL` (none of the stack's), `EADDRINUSE`.
    pub fn bind(&mut self, descriptor: Descriptor, local: SocketAddr) -> io::Result<()> {
        let socket = self.socket_of(descriptor)?;
        let family = socket.family;
        let bound = socket.extras.as_ref().is_some_and(|extras| extras.local.is_some());
        let reuse = Reuse::of(socket.extras.as_deref());
        let local = plain(local, family, socket.extras.as_deref());
        // As in the kernel, a connection that has ended no longer has a port.
        let is_fresh = socket.phase == Phase::Fresh;
        let is_free = match socket.id {
            Some(id) if !is_fresh => {
                self.port.readiness(id).intersects(Readiness::CLOSED) && self.is_over(id)
            }
            _ => is_fresh,
        };
        if bound || !is_free {
            return Err(from(libc::EINVAL));
        }
        let local = local?;
        if !local.ip().is_unspecified() && !self.port.addresses().contains(&local.ip()) {
            return Err(from(libc::EADDRNOTAVAIL));
        }
        let local = match local.port() {
            0 => self.free_port(local.ip())?,
            _ if self.is_bound(local, reuse) => return Err(from(libc::EADDRINUSE)),
            _ => local,
        };
        self.extras(descriptor)?.local = Some(local);
        self.note_bound(descriptor, local, reuse);
        Ok(())
    }

    /// Starts to listen. Unbound sockets get a free port on all addresses. A socket that listens
    /// already is not changed. Every core has its own listeners: connections that belong to a core
    /// without a listener are refused. See listen(2).
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`, `EINVAL` (connected), `EADDRINUSE`, `EADDRNOTAVAIL`, `ENFILE`.
    pub fn listen(&mut self, descriptor: Descriptor, backlog: u32) -> io::Result<()> {
        let socket = self.socket_of(descriptor)?;
        match socket.phase {
            Phase::Listening => return Ok(()),
            Phase::Fresh => {}
            _ => return Err(from(libc::EINVAL)),
        }
        if self.extras(descriptor)?.local.is_none() {
            let all: IpAddr = match self.socket_of(descriptor)?.family {
                Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
                Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
            };
            let local = self.free_port(all)?;
            self.bind(descriptor, local)?;
        }
        let extras = self.extras(descriptor)?;
        let Some(local) = extras.local else { return Err(from(libc::EINVAL)) };
        let options = ListenOptions {
            backlog: backlog.max(1),
            connection: extras.options,
            defer_accept: extras.defer_accept,
            both_families: !extras.ipv6_only,
            reuse_port: extras.reuse_port,
        };
        let id = self.port.listen(local, &options).map_err(|error| self.reason(error))?;
        let socket = self.socket_of(descriptor)?;
        socket.id = Some(id);
        socket.phase = Phase::Listening;
        self.place(id, descriptor);
        Ok(())
    }

    /// Accepts an established connection. It is blocking and has the listener's options;
    /// [`Context::getpeername`] returns its peer's address. See accept(2).
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`, `EINVAL` (does not listen), `EAGAIN`, `EMFILE` (the connection stays
    /// in the queue).
    pub fn accept(&mut self, listener: Descriptor) -> io::Result<Descriptor> {
        let socket = self.socket_of(listener)?;
        if socket.phase != Phase::Listening {
            return Err(from(libc::EINVAL));
        }
        let (family, nonblocking) = (socket.family, socket.nonblocking);
        let extras = socket
            .extras
            .as_ref()
            .filter(|extras| extras.concern_calls())
            .map(|extras| Box::new(Extras { local: None, ..(**extras).clone() }));
        let timeout = extras.as_ref().and_then(|extras| extras.receive_timeout);
        let accepted = self.install(Object::Socket(Socket {
            phase: Phase::Connected,
            family,
            nonblocking: false,
            seen: Readiness::default(),
            ended: Ended::default(),
            shutdowns: 0,
            error: 0,
            id: None,
            extras,
        }))?;
        match self.accept_into(listener, nonblocking, timeout) {
            Ok(id) => {
                self.socket_of(accepted)?.id = Some(id);
                self.place(id, accepted);
                Ok(accepted)
            }
            Err(error) => {
                self.table.remove(accepted)?;
                Err(error)
            }
        }
    }

    fn accept_into(
        &mut self,
        listener: Descriptor,
        nonblocking: bool,
        timeout: Option<Duration>,
    ) -> io::Result<SocketId> {
        let Some(listener) = self.socket_of(listener)?.id else {
            return Err(from(libc::EINVAL));
        };
        match self.port.accept(listener) {
            Err(Error::WouldBlock) if nonblocking => {
                self.spend(FRUITLESS_CALLS)?;
                Err(from(libc::EAGAIN))
            }
            Err(Error::WouldBlock) => {
                self.block(timeout, |context| match context.port.accept(listener) {
                    Err(Error::WouldBlock) => Ok(None),
                    other => other.map(Some).map_err(failure),
                })
            }
            other => {
                self.spend(1)?;
                other.map_err(failure)
            }
        }
    }

    /// Connects. A blocking socket waits until this has succeeded or failed, at most its
    /// SO_SNDTIMEO. See connect(2).
    ///
    /// # Errors
    /// `EINPROGRESS` (not blocking, or the time is over), `EALREADY`, `EISCONN`, `ECONNREFUSED`,
    /// `ETIMEDOUT`, `EHOSTUNREACH`, `ECONNABORTED` (failed; SO_ERROR has reported why),
    /// `EADDRNOTAVAIL` (no free port), `EADDRINUSE`, `EAFNOSUPPORT`, `EBADF`, `ENOTSOCK`, `EINVAL`
    /// (an IPv4 address with `IPV6_V6ONLY`), `ENFILE`.
    pub fn connect(&mut self, descriptor: Descriptor, remote: SocketAddr) -> io::Result<()> {
        let socket = self.socket_of(descriptor)?;
        let (nonblocking, phase) = (socket.nonblocking, socket.phase);
        let remote = plain(remote, socket.family, socket.extras.as_deref())?;
        match phase {
            Phase::Disconnecting => return Err(from(libc::EINVAL)),
            Phase::Connected | Phase::Listening => return Err(from(libc::EISCONN)),
            Phase::Connecting if nonblocking => {
                return self.connected(descriptor)?.ok_or_else(|| from(libc::EALREADY));
            }
            Phase::Connecting => {}
            Phase::Fresh => self.begin_to_connect(descriptor, remote)?,
        }
        if nonblocking {
            self.spend(1)?;
            return Err(from(libc::EINPROGRESS));
        }
        let extras = self.socket_of(descriptor)?.extras.as_ref();
        let timeout = extras.and_then(|extras| extras.send_timeout);
        self.block(timeout, |context| context.connected(descriptor)).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::EAGAIN) => from(libc::EINPROGRESS),
                _ => error,
            }
        })
    }

    fn begin_to_connect(&mut self, descriptor: Descriptor, remote: SocketAddr) -> io::Result<()> {
        let default = self.defaults.options;
        let socket = self.socket_of(descriptor)?;
        let extras = socket.extras.as_ref();
        let options = extras.map_or(default, |extras| extras.options);
        let bound = extras.and_then(|extras| extras.local);
        let id = match bound {
            None => self.connect_from_sources(remote, &options),
            // With an unspecified address the engine chooses one.
            Some(local) => self.port.connect(Some(local), remote, &options),
        };
        let id = id.map_err(|error| self.reason(error))?;
        let socket = self.socket_of(descriptor)?;
        socket.id = Some(id);
        socket.phase = Phase::Connecting;
        socket.seen = Readiness::default();
        // As in the kernel, earlier shutdowns remain in effect.
        socket.error = 0;
        self.place(id, descriptor);
        Ok(())
    }

    /// The reason why a socket cannot be made: a stack that has failed refuses each one.
    fn reason(&self, error: Error) -> io::Error {
        self.failure().map_or_else(|| failure(error), io::Error::from)
    }

    /// Checks for `connect` whether the attempt has succeeded; `None` if that is not known yet.
    ///
    /// # Errors
    /// The reason of the failure; the socket can then be used for another attempt.
    fn connected(&mut self, descriptor: Descriptor) -> io::Result<Option<()>> {
        let socket = self.socket_of(descriptor)?;
        let Some(id) = socket.id else { return Err(from(libc::ENOTCONN)) };
        let ready = self.port.readiness(id);
        let over = Readiness::ERROR.with(Readiness::CLOSED);
        if ready.intersects(over) && self.is_over(id) {
            let error = self.port.take_error(id).unwrap_or(Error::Aborted);
            self.forget_connection(descriptor, id)?;
            return Err(failure(error));
        }
        if !self.port.was_established(id) {
            return Ok(None);
        }
        self.socket_of(descriptor)?.phase = Phase::Connected;
        Ok(Some(()))
    }

    /// Whether no state is left of a connection, which the kernel calls CLOSE.
    pub(super) fn is_over(&mut self, id: SocketId) -> bool {
        let state = self.port.info(id).map(|info| info.state);
        matches!(state, Ok(State::Closed | State::TimeWait) | Err(_))
    }

    /// Ends an attempt to connect: the socket is as new, except for its settings.
    pub(super) fn forget_connection(
        &mut self,
        descriptor: Descriptor,
        id: SocketId,
    ) -> io::Result<()> {
        self.port.close(id);
        let socket = self.socket_of(descriptor)?;
        socket.id = None;
        socket.phase = Phase::Fresh;
        socket.seen = Readiness::default();
        socket.ended = Ended::default();
        Ok(())
    }

    /// Ends a socket's connection, or an attempt to connect, with a reset. The socket is then as
    /// new, except for its settings, and `ECONNRESET` is reported once (connect(2) with
    /// `AF_UNSPEC`).
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`, `EOPNOTSUPP` (listens).
    pub fn disconnect(&mut self, descriptor: Descriptor) -> io::Result<()> {
        let socket = self.socket_of(descriptor)?;
        if socket.phase == Phase::Listening {
            return Err(from(libc::EOPNOTSUPP));
        }
        let Some(id) = socket.id else {
            socket.ended = Ended::default();
            return Ok(());
        };
        let over = self.port.readiness(id).intersects(Readiness::CLOSED) && self.is_over(id);
        let error = self.port.take_error(id).map_or(0, errno);
        self.port.abort(id);
        self.places[id.index as usize] = super::epoll::NONE;
        let socket = self.socket_of(descriptor)?;
        socket.id = None;
        socket.phase = Phase::Fresh;
        socket.seen = Readiness::default();
        socket.ended = Ended::default();
        socket.error = if over { error } else { libc::ECONNRESET };
        self.notify(descriptor, Events(u32::MAX));
        self.spend(1)
    }

    /// Ends one or both directions. See shutdown(2).
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`, `ENOTCONN`.
    pub fn shutdown(&mut self, descriptor: Descriptor, how: std::net::Shutdown) -> io::Result<()> {
        let how = match how {
            std::net::Shutdown::Read => Shutdown::Receive,
            std::net::Shutdown::Write => Shutdown::Send,
            std::net::Shutdown::Both => Shutdown::Both,
        };
        let socket = self.socket_of(descriptor)?;
        socket.shutdowns = socket.shutdowns.wrapping_add(1);
        let id = match (socket.phase, socket.id) {
            (Phase::Connected | Phase::Connecting, Some(id)) => id,
            (Phase::Listening, Some(id)) => return self.shut_listener(descriptor, id, how),
            _ => {
                socket.ended.note(how);
                self.notify(descriptor, Events(u32::MAX));
                return Err(from(libc::ENOTCONN));
            }
        };
        let begun = self.port.was_established(id);
        let over = self.port.readiness(id).intersects(Readiness::CLOSED) && self.is_over(id);
        if self.socket_of(descriptor)?.phase == Phase::Connecting {
            if !begun && !over {
                // As in the kernel: the attempt ends.
                return self.disconnect(descriptor);
            }
            let phase = if over { Phase::Disconnecting } else { Phase::Connected };
            self.socket_of(descriptor)?.phase = phase;
        }
        if over {
            // The kernel wakes watching epolls nevertheless.
            self.notify(descriptor, Events(u32::MAX));
            return Err(from(libc::ENOTCONN));
        }
        self.port.shutdown(id, how).map_err(failure)?;
        self.socket_of(descriptor)?.ended.note(how);
        // As in the kernel, watching epolls see the ended directions as an event.
        self.notify(descriptor, Events(u32::MAX));
        self.spend(1)
    }

    /// Closes a descriptor. Written data is still sent, unless received data was not read (the peer
    /// then sees a reset). With SO_LINGER the call waits for that time, whether or not the socket
    /// is blocking. See close(2), socket(7).
    ///
    /// # Errors
    /// `EBADF`; `EWOULDBLOCK` if the time of SO_LINGER was not enough (the descriptor is closed
    /// nevertheless).
    pub fn close(&mut self, descriptor: Descriptor) -> io::Result<()> {
        let lingered = match self.begin_to_linger(descriptor)? {
            Some(time) => self.linger(descriptor, time),
            None => Ok(()),
        };
        self.discard(descriptor, Context::close_socket)?;
        lingered.and(self.spend(1))
    }

    /// Closes a socket with a reset (`mtcp_abort`).
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`.
    pub fn abort(&mut self, descriptor: Descriptor) -> io::Result<()> {
        self.socket_of(descriptor)?;
        self.discard(descriptor, |context, id| context.port.abort(id))?;
        self.spend(1)
    }

    fn close_socket(&mut self, id: SocketId) {
        self.port.close(id);
    }

    fn discard(
        &mut self,
        descriptor: Descriptor,
        give_up: impl FnOnce(&mut Context, SocketId),
    ) -> io::Result<()> {
        self.forget(descriptor)?;
        match self.table.remove(descriptor)?.object {
            Object::Socket(socket) => {
                self.forget_bound(descriptor, socket.extras.as_deref());
                if let Some(id) = socket.id {
                    self.places[id.index as usize] = super::epoll::NONE;
                    give_up(self, id);
                }
            }
            Object::Pipe(pipe, end) => {
                self.pipes.retain(|other| *other != descriptor);
                if let Some(other) = pipe.close(end) {
                    let ready = pipe.ready(if end == PipeEnd::Read {
                        PipeEnd::Write
                    } else {
                        PipeEnd::Read
                    });
                    self.notify(other, ready);
                }
            }
            Object::Epoll(_) => {}
        }
        Ok(())
    }
}
