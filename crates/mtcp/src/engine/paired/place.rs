//! What the application's side knows of a socket.

use super::chunk::{CHUNK_BYTES, Chunk};
use super::{Known, WINDOW_BYTES};
use mtcp_proto::{Error, Readiness, SocketId, Urgent};
use std::collections::VecDeque;

/// What is known of one of the stack's sockets.
#[derive(Default)]
pub(super) struct Place {
    pub(super) generation: u32,
    /// It was told of, and neither closed nor aborted.
    pub(super) open: bool,
    pub(super) known: Option<Box<Known>>,
    pub(super) connections: VecDeque<SocketId>,
    pub(super) data: VecDeque<Chunk>,
    pub(super) data_bytes: usize,
    /// Bytes that were received.
    pub(super) taken_bytes: u64,
    pub(super) urgent: Option<Urgent>,
    pub(super) low_water: usize,
    /// What the chunks count for that the stack has not taken yet.
    pub(super) unsent: usize,
    /// The bytes in them.
    pub(super) unsent_bytes: usize,
    /// The stack's readiness: whether it is connected, and what the peer has done.
    pub(super) readiness: Readiness,
    pub(super) connected: bool,
    /// No more data will come.
    pub(super) ended: bool,
    /// Because the peer has ended its direction: receivers are told of that, and of no error.
    pub(super) ended_by_peer: bool,
    /// The application has ended the directions.
    pub(super) receive_ended: bool,
    pub(super) send_ended: bool,
    pub(super) error: Option<Error>,
    /// What has come since the last news: data or a connection, the end, an error.
    pub(super) arrived: Readiness,
    /// Is in the queue of news.
    pub(super) queued: bool,
}

/// What the end of a connection's data, or of the connection, may bring.
const STATE: Readiness =
    Readiness(Readiness::PEER_CLOSED.0 | Readiness::CLOSED.0 | Readiness::ERROR.0);

impl Place {
    /// Data can be read, or a connection taken, that could not before.
    pub(super) fn data_arrived(&mut self) {
        self.arrived = self.arrived.with(Readiness::READABLE);
    }

    /// No more data will come. It is news also to a program that was told of the peer's end when
    /// there was data to read, and has read all of that.
    pub(super) fn end_arrived(&mut self, by_peer: bool) {
        self.ended = true;
        self.ended_by_peer = by_peer;
        self.arrived = self.arrived.with(Readiness::READABLE).with(STATE);
    }

    pub(super) fn error_arrived(&mut self, error: Error) {
        self.error = Some(error);
        self.arrived = self.arrived.with(STATE);
    }

    /// What it is ready for, and what of that has come since the last time.
    pub(super) fn take_news(&mut self) -> (Readiness, Readiness) {
        let ready = self.ready();
        (ready, Readiness(std::mem::take(&mut self.arrived).0 & ready.0))
    }

    pub(super) fn may_send(&self) -> bool {
        self.connected && self.unsent + CHUNK_BYTES <= WINDOW_BYTES
    }

    /// Small chunks are in the way of further ones: the engine need only take them.
    pub(super) fn is_cluttered(&self) -> bool {
        self.connected && !self.may_send() && self.unsent_bytes < WINDOW_BYTES / 2
    }

    pub(super) fn over(&self) -> bool {
        self.readiness.intersects(Readiness::CLOSED.with(Readiness::ERROR)) || self.error.is_some()
    }

    pub(super) fn ready(&self) -> Readiness {
        let state = STATE.with(Readiness::SEND_FINISHED).without(Readiness::ERROR);
        let mut ready = Readiness(self.readiness.0 & state.0);
        let enough = self.data_bytes >= self.low_water.max(1);
        if enough || self.ended || self.receive_ended || !self.connections.is_empty() {
            ready = ready.with(Readiness::READABLE);
        }
        if self.may_send() || self.over() {
            ready = ready.with(Readiness::WRITABLE);
        }
        if self.error.is_some() {
            ready = ready.with(Readiness::ERROR);
        }
        // An end that cannot be read yet is not told.
        let readable = self.data_bytes > 0 || self.ended || self.receive_ended;
        if readable { ready } else { ready.without(STATE) }
    }
}
