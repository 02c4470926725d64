//! TLS connection as a stream of bytes.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::RawFd;

use rustls::Connection;

use crate::error::{TransportError, TransportResult};
use crate::transport::framing::{Link, LinkEnd, Need, Received};
use crate::transport::stream::SocketLink;

/// The most reads of the socket in a row: a peer that sends empty records must not keep this
/// thread.
const READS_MAX: usize = 64;

/// The most encrypted and unsent bytes of the connection: its own limit, 64 KiB, and a record.
const RECORD_BYTES_MAX: u64 = 96 << 10;

/// A TLS connection over a socket.
pub(super) struct TlsLink {
    socket: SocketLink,
    connection: Connection,
    /// The number of decrypted bytes that were not received yet.
    plain_bytes: usize,
}

impl TlsLink {
    /// Wraps a socket and the state of its connection.
    pub(super) fn new(socket: SocketLink, connection: Connection) -> TlsLink {
        TlsLink { socket, connection, plain_bytes: 0 }
    }

    /// Sends what the connection has encrypted. Returns false if the socket takes no more.
    fn push(&mut self) -> TransportResult<bool> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Nonblocking(&mut self.socket)) {
                Ok(_) => {}
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(false),
                    io::ErrorKind::BrokenPipe => return Err(TransportError::Closed),
                    _ => return Err(TransportError::System { call: "send", source: error }),
                },
            }
        }
        Ok(true)
    }

    /// Receives and decrypts once.
    fn pull(&mut self) -> TransportResult<Received> {
        let received = match self.connection.read_tls(&mut Nonblocking(&mut self.socket)) {
            Ok(0) => Received::End,
            Ok(bytes) => Received::Bytes(bytes),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Received::Nothing,
            Err(source) => return Err(TransportError::System { call: "recv", source }),
        };
        if received == Received::End && self.connection.is_handshaking() {
            let what = "the peer closed the connection during the handshake".to_owned();
            return Err(TransportError::Handshake(what));
        }
        let was_handshaking = self.connection.is_handshaking();
        match self.connection.process_new_packets() {
            Ok(state) => self.plain_bytes = state.plaintext_bytes_to_read(),
            Err(error) => {
                // Sends the alert that tells the peer the reason.
                let _ = self.push();
                return Err(refusal(error, was_handshaking));
            }
        }
        Ok(received)
    }

    /// Continues the handshake as far as possible. Returns true when it is complete.
    pub(super) fn shake_hands(&mut self) -> TransportResult<bool> {
        while self.connection.is_handshaking() {
            let pushed = self.push()?;
            if !pushed || self.pull()? == Received::Nothing {
                break;
            }
        }
        Ok(!self.connection.is_handshaking())
    }
}

/// Converts a TLS error: authentication failed on either side, or the peer broke the protocol.
fn refusal(error: rustls::Error, is_handshaking: bool) -> TransportError {
    match error {
        rustls::Error::AlertReceived(alert) => {
            TransportError::Handshake(format!("the peer refused: {alert:?}"))
        }
        error if is_handshaking => TransportError::Handshake(error.to_string()),
        _ => TransportError::Corrupt { transport: "tls", what: "a record that does not decrypt" },
    }
}

impl Link for TlsLink {
    fn send(&mut self, pieces: &[IoSlice<'_>]) -> TransportResult<usize> {
        if !self.shake_hands()? {
            return Ok(0);
        }
        let written = self.connection.writer().write_vectored(pieces);
        let bytes = written.map_err(TransportError::system("encryption"))?;
        self.push()?;
        Ok(bytes)
    }

    fn flush(&mut self) -> TransportResult<bool> {
        self.shake_hands()?;
        self.push()
    }

    fn receive(&mut self, room: &mut [u8]) -> TransportResult<Received> {
        for _ in 0..READS_MAX {
            match self.connection.reader().read(room) {
                Ok(0) => return Ok(Received::End),
                Ok(bytes) => {
                    self.plain_bytes = self.plain_bytes.saturating_sub(bytes);
                    return Ok(Received::Bytes(bytes));
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {}
                    io::ErrorKind::UnexpectedEof => return Ok(Received::End),
                    _ => return Err(TransportError::System { call: "decryption", source: error }),
                },
            }
            let is_handshaking = self.connection.is_handshaking();
            if is_handshaking {
                self.push()?;
            }
            let received = self.pull()?;
            if is_handshaking && !self.connection.is_handshaking() {
                self.push()?;
            }
            if received == Received::Nothing {
                break;
            }
        }
        Ok(Received::Nothing)
    }

    /// Counts encrypted bytes. They are more than the plaintext, so no message counts as delivered
    /// too early.
    fn unacknowledged(&self) -> u64 {
        let waiting = if self.connection.wants_write() { RECORD_BYTES_MAX } else { 0 };
        self.socket.unacknowledged() + waiting
    }

    fn end(&mut self) -> Option<LinkEnd<'_>> {
        // The socket reports that a peer is gone.
        let all_sent = self.push().unwrap_or(false);
        // No close_notify: the flow's end record tells the peer the end, with the same protection.
        // If the peer closed its socket with that alert unread, it would reset the connection
        // instead of acknowledging what it has read.
        let unsent_bytes = if all_sent { 0 } else { RECORD_BYTES_MAX };
        Some(LinkEnd { unsent_bytes, ..self.socket.end()? })
    }

    fn has_more(&self) -> bool {
        self.plain_bytes > 0
    }

    fn readiness(&self, need: Need) -> (RawFd, i16) {
        // The handshake decides what the connection waits for, not the caller.
        let need = match self.connection.is_handshaking() {
            true if self.connection.wants_write() => Need::Room,
            true => Need::Arrival,
            false => need,
        };
        self.socket.readiness(need)
    }
}

impl Drop for TlsLink {
    fn drop(&mut self) {
        self.connection.send_close_notify();
        // Without the alert the peer still sees that the connection ends.
        let _ = self.push();
    }
}

/// Adapts the socket to the standard library's traits `Read` and `Write`.
struct Nonblocking<'a>(&'a mut SocketLink);

impl Read for Nonblocking<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self.0.receive(room).map_err(to_io)? {
            Received::Bytes(bytes) => Ok(bytes),
            Received::Nothing => Err(io::ErrorKind::WouldBlock.into()),
            Received::End | Received::Failed => Ok(0),
        }
    }
}

impl Write for Nonblocking<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.0.send(pieces).map_err(to_io)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            bytes => Ok(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn to_io(error: TransportError) -> io::Error {
    match error {
        TransportError::System { source, .. } => source,
        _ => io::ErrorKind::BrokenPipe.into(),
    }
}
