//! What the application's side knows of a socket.

use super::WINDOW_BYTES;
use super::chunk::{CHUNK_BYTES, Chunk};
use crate::engine::Names;
use mtcp_proto::{Error, Readiness, SocketId, Urgent};
use std::collections::VecDeque;

/// What is known of one of the stack's sockets.
#[derive(Default)]
pub(super) struct Place {
    pub(super) generation: u32,
    /// It was told of, and neither closed nor aborted.
    pub(super) open: bool,
    pub(super) names: Option<Box<Names>>,
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
    /// Data, or a connection, has come since the last news.
    pub(super) arrived: bool,
    /// Is in the queue of news.
    pub(super) queued: bool,
}

impl Place {
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
        let mut ready =
            Readiness(self.readiness.0 & (Readiness::PEER_CLOSED.0 | Readiness::CLOSED.0));
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
        let over = Readiness::PEER_CLOSED.with(Readiness::CLOSED).with(Readiness::ERROR);
        let readable = self.data_bytes > 0 || self.ended || self.receive_ended;
        if readable { ready } else { ready.without(over) }
    }
}
