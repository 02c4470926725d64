//! Implements one connection between its client and its backend, as a state machine without I/O and
//! without a clock.
//!
//! The owner of the sockets passes events to the relay ([`Relay::received`] and others), and then
//! executes its wishes ([`Relay::wish`]) until there are no more. The relay converts the bytes of
//! one side into bytes for the other, through TLS.
//!
//! # Back-pressure
//!
//! At most one receive and one write are in flight on each side. The relay receives from a side
//! only while less than [`BACKLOG_BYTES`] wait for the other. So a connection holds at most that,
//! and one buffer of the channel, in each direction.
//!
//! # How streams end
//!
//! - The client's close_notify (RFC 8446, section 6.1) becomes the end of the stream to the
//!   backend, whose answer continues. The backend's end of the stream becomes a close_notify and
//!   the end of the stream to the client, who may continue too.
//! - A stream that ends otherwise must not look complete. If the backend fails, the client's
//!   connection is reset. If the client's stream ends without a close_notify, or fails, the
//!   backend's connection is reset.
//! - If a backend reads no more but still answers (for example a request that is too long), its
//!   answer is forwarded to the end; data that the client sends in the meantime is dropped.
//! - After the last bytes to a client (an alert or the end of an answer) the connection is not
//!   closed while the client is sending: closing would cause a reset, which may overtake these
//!   bytes. The relay lingers until the client has ended, for a time that the owner limits.

mod pool;
mod port;
#[cfg(test)]
mod tests;

pub(crate) use self::pool::Pool;
pub(crate) use self::port::{Close, Side};

use self::port::{Output, Port};
use rustls::{HandshakeKind, ServerConnection};
use std::io::{BufRead, Write};

/// Bytes that may wait for one side before the relay stops receiving from the other.
pub(crate) const BACKLOG_BYTES: usize = 64 << 10;

/// An action that a relay requests from its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayRequest {
    /// Submit a receive.
    Receive(Side),
    /// Submit a write of the bytes that [`Relay::take`] returns.
    Write(Side),
    /// End the stream.
    Shut(Side),
    /// Connect to a backend.
    Connect,
    /// Close the socket. The client's is closed last, and the relay is then over.
    Close(Side, Close),
}

/// The stage of a relay, which determines how long it may last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The TLS handshake is not complete.
    Handshake,
    /// There is no backend yet.
    Connecting,
    /// Bytes are transferred in both directions.
    Relaying,
    /// Everything was sent to the client, and the client has not ended yet.
    Lingering,
}

/// The outcome of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Both directions were transferred to their end.
    Whole,
    /// The handshake failed, took too long, or the client ended it.
    NoHandshake,
    /// No backend could be reached.
    NoBackend,
    /// The backend's connection failed.
    BackendFailed,
    /// The client's connection failed, its stream ended without a close_notify, or it was not TLS.
    ClientFailed,
    /// No bytes were transferred for too long, or the proxy ends.
    Cut,
}

/// The state of a connection.
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
    /// Creates a relay for a client that has just connected.
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

    /// Returns whether the handshake has resumed an earlier session.
    pub(crate) fn is_resumed(&self) -> bool {
        self.tls.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Returns the outcome, once the relay is over.
    pub(crate) fn outcome(&self) -> Outcome {
        self.outcome.unwrap_or(Outcome::Cut)
    }

    fn port(&mut self, side: Side) -> &mut Port {
        match side {
            Side::Client => &mut self.client,
            Side::Backend => &mut self.backend,
        }
    }

    /// Returns the next wish; the owner calls [`Relay::granted`] when it is executed or in flight.
    pub(crate) fn wish(&self) -> Option<RelayRequest> {
        for (side, port) in [(Side::Backend, &self.backend), (Side::Client, &self.client)] {
            if port.is_absent {
                continue;
            }
            if let Some(how) = port.close {
                return Some(RelayRequest::Close(side, how));
            }
            if port.writing == 0 && !port.waiting.is_empty() {
                return Some(RelayRequest::Write(side));
            }
            if port.output == Output::Ending && port.is_flushed() {
                return Some(RelayRequest::Shut(side));
            }
            if !port.is_receiving && !port.input_ended && self.has_room_from(side) {
                return Some(RelayRequest::Receive(side));
            }
        }
        let connects = self.stage == Stage::Connecting && !self.is_connecting;
        connects.then_some(RelayRequest::Connect)
    }

    /// Returns whether there is room for the bytes that arrive from this side.
    fn has_room_from(&self, side: Side) -> bool {
        match (self.stage, side) {
            (Stage::Handshake, _) => self.client.backlog() < BACKLOG_BYTES,
            (Stage::Connecting, _) => false,
            (Stage::Relaying, Side::Client) => self.backend.backlog() < BACKLOG_BYTES,
            (Stage::Relaying, Side::Backend) => self.client.backlog() < BACKLOG_BYTES,
            (Stage::Lingering, _) => true,
        }
    }

    /// Records that a wish is being executed. For a write, [`Relay::take`] does that.
    pub(crate) fn granted(&mut self, wish: RelayRequest) {
        match wish {
            RelayRequest::Receive(side) => self.port(side).is_receiving = true,
            RelayRequest::Shut(side) => self.port(side).output = Output::Shutting,
            RelayRequest::Connect => self.is_connecting = true,
            RelayRequest::Close(side, _) => self.port(side).is_absent = true,
            RelayRequest::Write(_) => {}
        }
    }

    /// Returns the bytes to write to a side; [`Relay::written`] takes the buffer back.
    pub(crate) fn take(&mut self, side: Side) -> Vec<u8> {
        let port = self.port(side);
        let bytes = std::mem::take(&mut port.waiting);
        port.writing = bytes.len();
        bytes
    }

    /// Takes back bytes whose write could not be started.
    pub(crate) fn restore(&mut self, side: Side, bytes: Vec<u8>) {
        let port = self.port(side);
        port.writing = 0;
        port.waiting = bytes;
    }

    /// Handles bytes from a side; none means the end of its stream. Returns how many bytes of the
    /// application these were.
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
        self.check_completion();
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
                // A message longer than TLS permits.
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

    /// Moves decrypted bytes to the backend's side.
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

    /// Moves the bytes that TLS has to send to the client's side.
    fn take_ciphertext(&mut self, pool: &mut Pool) {
        while self.tls.wants_write() {
            if self.client.waiting.capacity() == 0 {
                self.client.waiting = pool.take();
            }
            // Writing to memory does not fail.
            if self.tls.write_tls(&mut self.client.waiting).is_err() {
                return;
            }
        }
    }

    /// Handles bytes from the client that are not valid TLS: queues an alert, and marks the
    /// client's stream as incomplete.
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

    /// Handles the end of the client's stream, if there was no close_notify.
    fn client_ended(&mut self) {
        self.client.input_ended = true;
        match self.stage {
            Stage::Handshake => self.end(Outcome::NoHandshake, Close::Orderly, Close::Reset),
            // The client has its answer and ends without a close_notify.
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
            // TLS accepts as many bytes as its buffer has room for.
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

    /// Handles a failed receive: the connection is broken.
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

    /// Handles the end of a write; `is_whole` is false if not all was written. Takes the buffer
    /// back.
    pub(crate) fn written(&mut self, side: Side, is_whole: bool, buffer: Vec<u8>, pool: &mut Pool) {
        pool.give(buffer);
        self.port(side).writing = 0;
        if !is_whole {
            self.takes_no_more(side);
        }
        self.check_completion();
    }

    /// Handles the result of a shutdown: the end of the stream was sent, or the connection is
    /// broken.
    pub(crate) fn shut(&mut self, side: Side, is_sent: bool) {
        if is_sent {
            self.port(side).output = Output::Shut;
        } else {
            self.takes_no_more(side);
        }
        self.check_completion();
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

    /// Puts a header before all bytes for the backend, which must not be connected yet.
    pub(crate) fn send_before(&mut self, header: &[u8]) {
        self.backend.waiting.splice(0..0, header.iter().copied());
    }

    /// Handles a connected backend.
    pub(crate) fn connected(&mut self) {
        self.is_connecting = false;
        self.backend.is_absent = false;
        if self.stage == Stage::Connecting {
            self.stage = Stage::Relaying;
        }
        self.check_completion();
    }

    /// Handles that no backend could be reached.
    pub(crate) fn no_backend(&mut self) {
        self.end(Outcome::NoBackend, Close::Reset, Close::Reset);
    }

    /// Handles the time limit of the present stage.
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

    /// Ends the relay at once, so that neither stream looks complete.
    pub(crate) fn cut(&mut self) {
        self.end(Outcome::Cut, Close::Reset, Close::Reset);
    }

    fn end(&mut self, outcome: Outcome, client: Close, backend: Close) {
        self.outcome.get_or_insert(outcome);
        self.client.close(client);
        self.backend.close(backend);
    }

    /// Checks whether everything was sent, and what has to be closed.
    fn check_completion(&mut self) {
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
