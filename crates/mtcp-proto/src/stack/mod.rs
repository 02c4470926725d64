//! The stack of one core: who a packet is for, what is due, and what applications are told.

mod config;
mod types;

pub use self::config::{Config, Keepalive, ListenOptions, Options, Secret, Steering, SynCookies};
pub use self::types::{
    Checksum, ConnectionInfo, Counters, Error, Packet, PartialChecksum, Readiness, Shutdown, Sink,
    SinkCapabilities, SocketId,
};

pub(crate) use self::config::FourTuple;

use crate::time::Instant;
use std::net::{IpAddr, SocketAddr};

/// TCP over IPv4 and IPv6 for one core.
///
/// All calls take the time; it must not go back between them. A call never blocks: what is not
/// possible now is [`Error::WouldBlock`], and [`Stack::next_event`] tells when it is.
#[derive(Debug)]
pub struct Stack {}

impl Stack {
    /// A stack without addresses, so that it answers nothing yet.
    ///
    /// # Errors
    /// [`Error::Config`] names the setting that is out of range.
    pub fn new(config: Config, secret: Secret, now: Instant) -> Result<Stack, Error> {
        let _ = (config, secret, now);
        todo!()
    }

    /// Sets the addresses that are the stack's own; packets for others are dropped and counted.
    /// Connections from an address that goes away are aborted.
    pub fn set_addresses(&mut self, now: Instant, addresses: &[IpAddr]) {
        let _ = (now, addresses);
        todo!()
    }

    /// Takes one IP packet. What it changes goes out at the next [`Stack::output`], so that one
    /// acknowledgement answers a whole batch.
    pub fn input(&mut self, now: Instant, packet: &[u8], checksum: Checksum) {
        let _ = (now, packet, checksum);
        todo!()
    }

    /// Runs the timers that are due and writes the packets that are due into the sink: control
    /// first, then acknowledgements, then data. True if the sink was full before everything was
    /// out; call again when it has room.
    pub fn output(&mut self, now: Instant, sink: &mut dyn Sink) -> bool {
        let _ = (now, sink);
        todo!()
    }

    /// When [`Stack::output`] must be called even if nothing else happens; in the past if something
    /// is due. `None`: not before the next call.
    pub fn deadline(&self) -> Option<Instant> {
        todo!()
    }

    /// Listens on an address, or on all of them if it is unspecified (`::` takes IPv6 only).
    ///
    /// # Errors
    /// [`Error::AddressInUse`], [`Error::AddressNotAvailable`] if the address is not the stack's,
    /// [`Error::TooMany`].
    pub fn listen(
        &mut self,
        local: SocketAddr,
        options: &ListenOptions,
    ) -> Result<SocketId, Error> {
        let _ = (local, options);
        todo!()
    }

    /// Takes an established connection from a listener's queue.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is none, [`Error::UnknownSocket`], [`Error::NotListening`].
    pub fn accept(&mut self, listener: SocketId) -> Result<SocketId, Error> {
        let _ = listener;
        todo!()
    }

    /// Begins to connect. [`Readiness::WRITABLE`] tells success, [`Readiness::ERROR`] failure, whose
    /// cause [`Stack::take_error`] has. Without a local address, or with port 0, the stack chooses:
    /// its first address of the family, and a port that steers the answers to this core.
    ///
    /// # Errors
    /// [`Error::AddressInUse`], [`Error::AddressNotAvailable`], [`Error::NoPorts`],
    /// [`Error::TooMany`].
    pub fn connect(
        &mut self,
        now: Instant,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        options: &Options,
    ) -> Result<SocketId, Error> {
        let _ = (now, local, remote, options);
        todo!()
    }

    /// Copies data into the send buffer and gives the number of bytes taken, at least 1 unless
    /// `data` is empty.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is no room, [`Error::NotConnected`], [`Error::Shutdown`] after
    /// a shutdown of this direction, [`Error::Reset`] and [`Error::TimedOut`] once the connection
    /// has failed.
    pub fn send(&mut self, now: Instant, socket: SocketId, data: &[u8]) -> Result<usize, Error> {
        let _ = (now, socket, data);
        todo!()
    }

    /// Takes received data; 0 is the end of the stream (or `room` is empty). Data that came before a
    /// failure can still be received.
    ///
    /// # Errors
    /// As [`Stack::send`].
    pub fn receive(
        &mut self,
        now: Instant,
        socket: SocketId,
        room: &mut [u8],
    ) -> Result<usize, Error> {
        let _ = (now, socket, room);
        todo!()
    }

    /// Like [`Stack::receive`], from `offset` bytes on, and leaves the data where it is.
    ///
    /// # Errors
    /// As [`Stack::receive`].
    pub fn peek(&self, socket: SocketId, offset: usize, room: &mut [u8]) -> Result<usize, Error> {
        let _ = (socket, offset, room);
        todo!()
    }

    /// Ends one or both directions: the peer sees our end after all data; what comes after a
    /// shutdown of receiving is dropped and acknowledged.
    ///
    /// # Errors
    /// [`Error::UnknownSocket`], [`Error::NotConnected`].
    pub fn shutdown(&mut self, now: Instant, socket: SocketId, how: Shutdown) -> Result<(), Error> {
        let _ = (now, socket, how);
        todo!()
    }

    /// Gives the socket up. Data that was sent still goes out, then the end. If received data was
    /// not taken, or comes later, or [`Options::linger_reset`] is set, the peer sees a reset (RFC
    /// 2525, section 2.17). A listener's waiting connections are reset. Unknown sockets are ignored.
    pub fn close(&mut self, now: Instant, socket: SocketId) {
        let _ = (now, socket);
        todo!()
    }

    /// Gives the socket up with a reset.
    pub fn abort(&mut self, now: Instant, socket: SocketId) {
        let _ = (now, socket);
        todo!()
    }

    /// What can be done with the socket now.
    ///
    /// # Errors
    /// [`Error::UnknownSocket`].
    pub fn readiness(&self, socket: SocketId) -> Result<Readiness, Error> {
        let _ = socket;
        todo!()
    }

    /// Why the connection failed; told once.
    pub fn take_error(&mut self, socket: SocketId) -> Option<Error> {
        let _ = socket;
        todo!()
    }

    /// The next socket whose readiness has grown, with all that it is ready for now: told when a
    /// bit comes, when further data or connections come, and not again before.
    pub fn next_event(&mut self) -> Option<(SocketId, Readiness)> {
        todo!()
    }

    /// The options of a connection, or those that a listener's connections will have.
    ///
    /// # Errors
    /// [`Error::UnknownSocket`].
    pub fn options(&self, socket: SocketId) -> Result<Options, Error> {
        let _ = socket;
        todo!()
    }

    /// Changes the options; buffers do not shrink below what they hold.
    ///
    /// # Errors
    /// [`Error::UnknownSocket`], [`Error::Config`].
    pub fn set_options(
        &mut self,
        now: Instant,
        socket: SocketId,
        options: &Options,
    ) -> Result<(), Error> {
        let _ = (now, socket, options);
        todo!()
    }

    /// State, addresses and measurements of a connection or listener.
    ///
    /// # Errors
    /// [`Error::UnknownSocket`].
    pub fn info(&self, socket: SocketId) -> Result<ConnectionInfo, Error> {
        let _ = socket;
        todo!()
    }

    /// All sockets, also those that the application has closed and that still send; without those
    /// in TIME_WAIT.
    pub fn sockets(&self) -> impl Iterator<Item = ConnectionInfo> + '_ {
        std::iter::empty()
    }

    /// What has been counted since the beginning.
    pub fn counters(&self) -> &Counters {
        todo!()
    }
}
