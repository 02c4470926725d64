//! Implements run to completion: the application's own thread calls the engine.

use super::alarm::Alarm;
use super::port::Port;
use super::{Engine, EngineFailure, clock};
use crate::shared_connections::SharedConnections;
use mtcp_proto::{
    ConnectionInfo, Counters, Error, ListenOptions, Options, Readiness, SendFlags, Shutdown,
    SocketId, Urgent,
};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

/// How long a call that does not wait relies on the last turn. Otherwise a program that reads until
/// `EAGAIN` would cause a turn for each connection.
const AGE_MAX: Duration = Duration::from_micros(100);

impl Port for Engine {
    fn turn(&mut self) -> io::Result<bool> {
        self.step()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        Engine::wait(self, timeout)
    }

    fn failure(&self) -> Option<EngineFailure> {
        Engine::failure(self)
    }

    fn descriptors(&self) -> Vec<RawFd> {
        Engine::descriptors(self)
    }

    fn prepare_to_sleep(&mut self, timeout: Option<Duration>) -> Option<Duration> {
        Engine::prepare_to_sleep(self, timeout)
    }

    fn refresh(&mut self) -> io::Result<bool> {
        if clock().since(self.now) < AGE_MAX { Ok(false) } else { self.step() }
    }

    fn is_disturbed(&self) -> bool {
        !self.lying
    }

    fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    fn addresses(&self) -> &[IpAddr] {
        self.interface.addresses()
    }

    fn listen(&mut self, local: SocketAddr, options: &ListenOptions) -> Result<SocketId, Error> {
        self.stack.listen(local, options)
    }

    fn accept(&mut self, listener: SocketId) -> Result<SocketId, Error> {
        self.stack.accept(listener)
    }

    fn connect(
        &mut self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        options: &Options,
    ) -> Result<SocketId, Error> {
        Engine::connect(self, local, remote, options)
    }

    fn send_as(
        &mut self,
        socket: SocketId,
        data: &[u8],
        send_flags: SendFlags,
    ) -> Result<usize, Error> {
        self.stack.send_as(self.now, socket, data, send_flags)
    }

    fn receive(&mut self, socket: SocketId, room: &mut [u8]) -> Result<usize, Error> {
        self.stack.receive(self.now, socket, room)
    }

    fn peek(&mut self, socket: SocketId, offset: usize, room: &mut [u8]) -> Result<usize, Error> {
        self.stack.peek(socket, offset, room)
    }

    fn receivable(&mut self, socket: SocketId) -> usize {
        self.stack.info(socket).map_or(0, |info| info.receive_queue as usize)
    }

    fn shutdown(&mut self, socket: SocketId, how: Shutdown) -> Result<(), Error> {
        self.stack.shutdown(self.now, socket, how)
    }

    fn close(&mut self, socket: SocketId) {
        Engine::close(self, socket);
    }

    fn abort(&mut self, socket: SocketId) {
        Engine::abort(self, socket);
    }

    fn readiness(&self, socket: SocketId) -> Readiness {
        self.stack.readiness(socket).unwrap_or(Readiness::CLOSED)
    }

    fn urgent(&self, socket: SocketId) -> Option<(Urgent, u64)> {
        self.stack.urgent(socket)
    }

    fn was_established(&self, socket: SocketId) -> bool {
        self.stack.was_established(socket)
    }

    fn take_error(&mut self, socket: SocketId) -> Option<Error> {
        self.stack.take_error(socket)
    }

    fn next_news(&mut self) -> Option<(SocketId, Readiness, Readiness)> {
        let (socket, readiness, news) = self.stack.next_news()?;
        Some((socket, readiness, Readiness(news.0 & Readiness::READABLE.0)))
    }

    fn options(&mut self, socket: SocketId) -> Result<Options, Error> {
        self.stack.options(socket)
    }

    fn set_options(&mut self, socket: SocketId, options: &Options) -> Result<(), Error> {
        self.stack.set_options(self.now, socket, options)
    }

    fn info(&mut self, socket: SocketId) -> Result<ConnectionInfo, Error> {
        self.stack.info(socket)
    }

    fn unfinished(&mut self) -> usize {
        self.stack.sockets().count()
    }

    fn abort_all(&mut self) {
        self.now = clock();
        let all: Vec<SocketId> = self.stack.sockets().map(|info| info.socket).collect();
        for socket in all {
            self.stack.abort(self.now, socket);
        }
        // A stack without addresses has no connections: each one was reset.
        self.stack.set_addresses(self.now, &[]);
    }

    fn record_connections(&mut self, shared: Arc<SharedConnections>) {
        Engine::record_connections(self, shared);
    }

    fn counters(&mut self) -> Counters {
        self.stack.counters().clone()
    }
}
