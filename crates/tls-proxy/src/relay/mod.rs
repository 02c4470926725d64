//! One connection between its client and its backend, without I/O and without a clock.
//!
//! The owner of the sockets tells the relay what has happened ([`Relay::received`] and its like)
//! and then does what it wishes ([`Relay::wish`]) until it wishes nothing more. Bytes of one side
//! become bytes for the other one here, through TLS.
//!
//! # Back-pressure
//!
//! One receive and one write are under way on each side at most. A side is received from only while
//! less than [`BACKLOG_BYTES`] wait for the other one, so that is, with one buffer of the channel
//! more, what a connection holds in each direction.
//!
//! # How streams end
//!
//! - The client's close_notify (RFC 8446, section 6.1) becomes the end of the stream to the
//!   backend, whose answer goes on; the backend's end of the stream becomes a close_notify and the
//!   end of the stream to the client, who may go on, too.
//! - What ends otherwise must not look whole. If the backend fails, the client is reset. If the
//!   client's stream ends without a close_notify, or it fails, the backend is reset.
//! - A backend that takes no more but still answers (as to a request that is too long) is heard to
//!   the end; what the client sends meanwhile is dropped.
//! - The last word to a client, an alert or the end of an answer, is not followed by a close while
//!   the client is sending: that would become a reset, which may overtake it. The relay lingers
//!   until the client has ended, and the owner says how long.

mod pool;
mod port;
#[cfg(test)]
mod tests;

pub(crate) use self::pool::Pool;
pub(crate) use self::port::{Close, Side};

use self::port::{Output, Port};
use rustls::{HandshakeKind, ServerConnection};
use std::io::{BufRead, Write};

/// Bytes that may wait for one side before the other one is not received from any more.
pub(crate) const BACKLOG_BYTES: usize = 64 << 10;

/// What a relay would like to have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// A receive.
    Receive(Side),
    /// A write of what [`Relay::take`] gives.
    Write(Side),
    /// An end of the stream.
    Shut(Side),
    /// A connection to a backend.
    Connect,
    /// The socket closed. The client's comes last, and with it the relay is over.
    Close(Side, Close),
}

/// Where a relay is, which decides how long it may stay there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The TLS handshake is not complete.
    Handshake,
    /// There is no backend yet.
    Connecting,
    /// Bytes go both ways.
    Relaying,
    /// Everything is said, and the client has not ended yet.
    Lingering,
}

/// Why a relay is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Both directions came to their end.
    Whole,
    /// The handshake failed, took too long, or the client gave it up.
    NoHandshake,
    /// No backend could be reached.
    NoBackend,
    /// The backend's connection failed.
    BackendFailed,
    /// The client's connection failed, or its stream ended without a close_notify, or was no TLS.
    ClientFailed,
    /// Nothing moved for too long, or the proxy ends.
    Cut,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Relay {
    tls: ServerConnection,
    stage: Stage,
    is_connecting: bool,
    client: Port,
    backend: Port,
    outcome: Option<Outcome>,
}

impl Relay {
    /// A relay for a client that has just connected.
    pub(crate) fn new(tls: ServerConnection) -> Relay {
        Relay {
            tls,
            stage: Stage::Handshake,
            is_connecting: false,
            client: Port::new(false),
            backend: Port::new(true),
            outcome: None,
        }
    }

    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    /// Whether the handshake took up an earlier session.
    pub(crate) fn is_resumed(&self) -> bool {
        self.tls.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Why it is over, once it is.
    pub(crate) fn outcome(&self) -> Outcome {
        self.outcome.unwrap_or(Outcome::Cut)
    }

    fn port(&mut self, side: Side) -> &mut Port {
        match side {
            Side::Client => &mut self.client,
            Side::Backend => &mut self.backend,
        }
    }

    /// The next thing to do; [`Relay::granted`] says that it is done or under way.
    pub(crate) fn wish(&self) -> Option<Wish> {
        for (side, port) in [(Side::Backend, &self.backend), (Side::Client, &self.client)] {
            if port.is_absent {
                continue;
            }
            if let Some(how) = port.close {
                return Some(Wish::Close(side, how));
            }
            if port.writing == 0 && !port.waiting.is_empty() {
                return Some(Wish::Write(side));
            }
            if port.output == Output::Ending && port.is_flushed() {
                return Some(Wish::Shut(side));
            }
            if !port.is_receiving && !port.input_ended && self.has_room_from(side) {
                return Some(Wish::Receive(side));
            }
        }
        let connects = self.stage == Stage::Connecting && !self.is_connecting;
        connects.then_some(Wish::Connect)
    }

    /// Whether what comes from this side could be kept.
    fn has_room_from(&self, side: Side) -> bool {
        match (self.stage, side) {
            (Stage::Handshake, _) => self.client.backlog() < BACKLOG_BYTES,
            (Stage::Connecting, _) => false,
            (Stage::Relaying, Side::Client) => self.backend.backlog() < BACKLOG_BYTES,
            (Stage::Relaying, Side::Backend) => self.client.backlog() < BACKLOG_BYTES,
            (Stage::Lingering, _) => true,
        }
    }

    /// A wish is being fulfilled. For a write, [`Relay::take`] says so.
    pub(crate) fn granted(&mut self, wish: Wish) {
        match wish {
            Wish::Receive(side) => self.port(side).is_receiving = true,
            Wish::Shut(side) => self.port(side).output = Output::Shutting,
            Wish::Connect => self.is_connecting = true,
            Wish::Close(side, _) => self.port(side).is_absent = true,
            Wish::Write(_) => {}
        }
    }

    /// The bytes that are to be written to a side; [`Relay::written`] gives the buffer back.
    pub(crate) fn take(&mut self, side: Side) -> Vec<u8> {
        let port = self.port(side);
        let bytes = std::mem::take(&mut port.waiting);
        port.writing = bytes.len();
        bytes
    }

    /// Takes back bytes whose write could not begin.
    pub(crate) fn restore(&mut self, side: Side, bytes: Vec<u8>) {
        let port = self.port(side);
        port.writing = 0;
        port.waiting = bytes;
    }

    /// Bytes came from a side, none at the end of its stream; how many bytes of the application's
    /// that were.
    pub(crate) fn received(&mut self, side: Side, bytes: &[u8], pool: &mut Pool) -> usize {
        self.port(side).is_receiving = false;
        let relayed = match (side, bytes.is_empty()) {
            (Side::Client, true) => {
                self.client_ended();
                0
            }
            (Side::Client, false) => self.take_from_client(bytes, pool),
            (Side::Backend, true) => {
                self.backend_ended(pool);
                0
            }
            (Side::Backend, false) => self.take_from_backend(bytes, pool),
        };
        self.settle();
        relayed
    }

    fn take_from_client(&mut self, mut bytes: &[u8], pool: &mut Pool) -> usize {
        if self.stage == Stage::Lingering {
            return 0;
        }
        let mut relayed = 0;
        while !bytes.is_empty() && !self.client.input_ended {
            let state = match self.tls.read_tls(&mut bytes) {
                Ok(_) => self.tls.process_new_packets(),
                // A message longer than TLS allows.
                Err(_) => Err(rustls::Error::General("a message is too long".into())),
            };
            let Ok(state) = state else {
                self.take_ciphertext(pool);
                self.refuse_client();
                return relayed;
            };
            relayed += self.take_plaintext(state.plaintext_bytes_to_read(), pool);
            if state.peer_has_closed() {
                self.client.input_ended = true;
                self.backend.end_output();
            }
        }
        self.take_ciphertext(pool);
        if self.stage == Stage::Handshake && !self.tls.is_handshaking() {
            self.stage = Stage::Connecting;
        }
        relayed
    }

    /// Moves what was decrypted to the backend's side.
    fn take_plaintext(&mut self, bytes: usize, pool: &mut Pool) -> usize {
        let mut left = bytes;
        if left > 0 && self.backend.waiting.capacity() == 0 {
            self.backend.waiting = pool.take();
        }
        let mut reader = self.tls.reader();
        while left > 0 {
            let Ok(chunk) = reader.fill_buf() else { break };
            let count = chunk.len().min(left);
            if self.backend.output != Output::Broken {
                self.backend.waiting.extend_from_slice(&chunk[..count]);
            }
            reader.consume(count);
            left -= count;
            if count == 0 {
                break;
            }
        }
        bytes - left
    }

    /// Moves what TLS has to say to the client's side.
    fn take_ciphertext(&mut self, pool: &mut Pool) {
        while self.tls.wants_write() {
            if self.client.waiting.capacity() == 0 {
                self.client.waiting = pool.take();
            }
            // Memory takes everything.
            if self.tls.write_tls(&mut self.client.waiting).is_err() {
                return;
            }
        }
    }

    /// What the client sends is no TLS, or not what it may send: it has its alert, and what it sent
    /// is not whole.
    fn refuse_client(&mut self) {
        let outcome = match self.stage {
            Stage::Handshake => Outcome::NoHandshake,
            _ => Outcome::ClientFailed,
        };
        self.outcome.get_or_insert(outcome);
        self.stage = Stage::Lingering;
        self.client.end_output();
        self.backend.close(Close::Reset);
    }

    /// The client's stream has ended, and not by a close_notify.
    fn client_ended(&mut self) {
        self.client.input_ended = true;
        match self.stage {
            Stage::Handshake => self.end(Outcome::NoHandshake, Close::Orderly, Close::Reset),
            // It has had its answer, and has nothing more to say.
            Stage::Relaying if self.client.output == Output::Shut => {
                self.end(Outcome::Whole, Close::Orderly, Close::Reset);
            }
            Stage::Connecting | Stage::Relaying => {
                self.end(Outcome::ClientFailed, Close::Orderly, Close::Reset);
            }
            Stage::Lingering => {}
        }
    }

    fn take_from_backend(&mut self, mut bytes: &[u8], pool: &mut Pool) -> usize {
        let relayed = bytes.len();
        while !bytes.is_empty() {
            // Takes what its buffer has room for.
            match self.tls.writer().write(bytes) {
                Ok(count) if count > 0 => bytes = &bytes[count..],
                _ => {
                    self.end(Outcome::ClientFailed, Close::Reset, Close::Reset);
                    return 0;
                }
            }
            self.take_ciphertext(pool);
        }
        relayed
    }

    fn backend_ended(&mut self, pool: &mut Pool) {
        self.backend.input_ended = true;
        self.tls.send_close_notify();
        self.take_ciphertext(pool);
        self.client.end_output();
    }

    /// A receive has failed: the connection is broken.
    pub(crate) fn receive_failed(&mut self, side: Side) {
        self.port(side).is_receiving = false;
        self.port(side).input_ended = true;
        match (side, self.stage) {
            (Side::Backend, _) => self.end(Outcome::BackendFailed, Close::Reset, Close::Orderly),
            (Side::Client, Stage::Handshake) => {
                self.end(Outcome::NoHandshake, Close::Orderly, Close::Orderly);
            }
            (Side::Client, _) => self.end(Outcome::ClientFailed, Close::Orderly, Close::Reset),
        }
    }

    /// A write has ended, and all was written or not; gives its buffer back.
    pub(crate) fn written(&mut self, side: Side, is_whole: bool, buffer: Vec<u8>, pool: &mut Pool) {
        pool.give(buffer);
        self.port(side).writing = 0;
        if !is_whole {
            self.takes_no_more(side);
        }
        self.settle();
    }

    /// The end of the stream was sent, or the connection is broken.
    pub(crate) fn shut(&mut self, side: Side, is_sent: bool) {
        if is_sent {
            self.port(side).output = Output::Shut;
        } else {
            self.takes_no_more(side);
        }
        self.settle();
    }

    fn takes_no_more(&mut self, side: Side) {
        self.port(side).break_output();
        if side == Side::Client {
            let outcome = match self.stage {
                Stage::Handshake => Outcome::NoHandshake,
                _ => Outcome::ClientFailed,
            };
            self.end(outcome, Close::Orderly, Close::Reset);
        }
    }

    /// A backend is connected.
    pub(crate) fn connected(&mut self) {
        self.is_connecting = false;
        self.backend.is_absent = false;
        if self.stage == Stage::Connecting {
            self.stage = Stage::Relaying;
        }
        self.settle();
    }

    /// No backend can be reached.
    pub(crate) fn no_backend(&mut self) {
        self.end(Outcome::NoBackend, Close::Reset, Close::Reset);
    }

    /// The time for the present stage is over.
    pub(crate) fn expired(&mut self) {
        match self.stage {
            Stage::Handshake => self.end(Outcome::NoHandshake, Close::Reset, Close::Reset),
            Stage::Connecting => self.no_backend(),
            Stage::Relaying => self.cut(),
            Stage::Lingering if self.client.output == Output::Shut => {
                self.end(Outcome::Whole, Close::Orderly, Close::Orderly);
            }
            Stage::Lingering => self.cut(),
        }
    }

    /// Ends the relay at once; nothing of it will look whole.
    pub(crate) fn cut(&mut self) {
        self.end(Outcome::Cut, Close::Reset, Close::Reset);
    }

    fn end(&mut self, outcome: Outcome, client: Close, backend: Close) {
        self.outcome.get_or_insert(outcome);
        self.client.close(client);
        self.backend.close(backend);
    }

    /// Looks whether everything has been said.
    fn settle(&mut self) {
        if self.stage == Stage::Relaying && self.client.output == Output::Shut {
            match self.backend.output {
                Output::Shut => self.end(Outcome::Whole, Close::Orderly, Close::Orderly),
                Output::Broken => {
                    self.backend.close(Close::Orderly);
                    self.stage = Stage::Lingering;
                }
                _ => {}
            }
        }
        if self.stage == Stage::Lingering
            && self.client.input_ended
            && self.client.output == Output::Shut
        {
            self.end(Outcome::Whole, Close::Orderly, Close::Orderly);
        }
    }
}
