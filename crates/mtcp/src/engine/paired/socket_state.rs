//! Tracks the state of a socket on the application's side.

use super::chunk::{CHUNK_BYTES, Chunk};
use super::{CachedAnswers, WINDOW_BYTES};
use mtcp_proto::{Error, Readiness, SocketId, Urgent};
use std::collections::VecDeque;

/// The application's state of one of the stack's sockets.
#[derive(Default)]
pub(super) struct SocketState {
    pub(super) generation: u32,
    /// Whether an event has reported it, and it was neither closed nor aborted.
    pub(super) open: bool,
    pub(super) known: Option<Box<CachedAnswers>>,
    pub(super) connections: VecDeque<SocketId>,
    pub(super) data: VecDeque<Chunk>,
    pub(super) data_bytes: usize,
    /// Bytes that were received.
    pub(super) taken_bytes: u64,
    pub(super) urgent: Option<Urgent>,
    pub(super) low_water: usize,
    /// The charge of the chunks that the stack has not taken yet.
    pub(super) unsent: usize,
    /// Bytes of data in these chunks.
    pub(super) unsent_bytes: usize,
    /// The stack's readiness: whether it is connected, and what the peer has done.
    pub(super) readiness: Readiness,
    pub(super) connected: bool,
    /// Whether no more data will arrive.
    pub(super) ended: bool,
    /// Whether that is because the peer has ended its direction: receivers then see the end, and no
    /// error.
    pub(super) ended_by_peer: bool,
    /// Whether the application has ended each direction.
    pub(super) receive_ended: bool,
    pub(super) send_ended: bool,
    pub(super) error: Option<Error>,
    /// What has arrived since the last event: data or a connection, the end, an error.
    pub(super) arrived: Readiness,
    /// Whether it is in the queue of new events.
    pub(super) queued: bool,
}

/// The readiness that the end of a connection's data, or of the connection, may cause.
const STATE: Readiness =
    Readiness(Readiness::PEER_CLOSED.0 | Readiness::CLOSED.0 | Readiness::ERROR.0);

impl SocketState {
    /// Records that data, or a connection, has arrived.
    pub(super) fn data_arrived(&mut self) {
        self.arrived = self.arrived.with(Readiness::READABLE);
    }

    /// Records that no more data will arrive. This is a new event also for a program that saw the
    /// peer's end while there was data to read, and has read all of it.
    pub(super) fn end_arrived(&mut self, by_peer: bool) {
        self.ended = true;
        self.ended_by_peer = by_peer;
        self.arrived = self.arrived.with(Readiness::READABLE).with(STATE);
    }

    pub(super) fn error_arrived(&mut self, error: Error) {
        self.error = Some(error);
        self.arrived = self.arrived.with(STATE);
    }

    /// The readiness, and the part of it that is new since the last time.
    pub(super) fn take_news(&mut self) -> (Readiness, Readiness) {
        let ready = self.ready();
        (ready, Readiness(std::mem::take(&mut self.arrived).0 & ready.0))
    }

    /// Whether another chunk may be sent to the engine.
    pub(super) fn may_send(&self) -> bool {
        self.connected && self.unsent + CHUNK_BYTES <= WINDOW_BYTES
    }

    /// Whether small chunks delay further ones; the engine only has to take them.
    pub(super) fn is_cluttered(&self) -> bool {
        self.connected && !self.may_send() && self.unsent_bytes < WINDOW_BYTES / 2
    }

    /// Whether the connection has ended or failed.
    pub(super) fn over(&self) -> bool {
        self.readiness.intersects(Readiness::CLOSED.with(Readiness::ERROR)) || self.error.is_some()
    }

    /// The present readiness.
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
        // The end is not reported before it can be read.
        let readable = self.data_bytes > 0 || self.ended || self.receive_ended;
        if readable { ready } else { ready.without(STATE) }
    }
}
