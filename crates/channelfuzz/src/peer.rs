//! Implements the other side of a link, by plain calls that never block.

use crate::link::Link;
use crate::script::LinkKind;
use crate::setup::prepare_peer;
use fuzzkit::pattern;
use rustix::io::Errno;
use socket2::SockRef;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Bytes that the peer reads in one call.
const ROOM_BYTES: usize = 64 << 10;

/// The result of reading.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Got {
    Bytes(Vec<u8>),
    Nothing,
    End,
    Broken(Errno),
}

/// Reads once, without blocking.
pub(crate) fn read_once(from: impl AsFd, limit: usize) -> Got {
    let mut room = vec![0; limit.clamp(1, ROOM_BYTES)];
    loop {
        return match rustix::io::read(from.as_fd(), &mut room) {
            Ok(0) => Got::End,
            Ok(bytes) => {
                room.truncate(bytes);
                Got::Bytes(room)
            }
            Err(Errno::AGAIN) => Got::Nothing,
            Err(Errno::INTR) => continue,
            Err(error) => Got::Broken(error),
        };
    }
}

impl Link {
    /// Writes up to `count` bytes, or one message of that length; returns how many were taken.
    pub(crate) fn peer_write(&mut self, count: usize) -> usize {
        self.peer_accept();
        let Some(peer) = &self.peer else { return 0 };
        // A UNIX datagram socket whose send finds the receiver closed drops its received data.
        let drops = self.kind == LinkKind::UnixDatagram && self.state.channel_gone;
        if self.kind == LinkKind::PipeOut || self.state.peer_ended || drops {
            return 0;
        }
        if self.kind.is_messages() {
            let number = self.inbound.messages.len() as u32;
            let message = pattern::message(self.inbound.stream, number, count);
            // A connected UDP socket first reports that an earlier datagram was refused.
            let sent = (0..2).find_map(|_| send(peer, &message));
            let sent = sent.unwrap_or(0);
            if sent > 0 {
                self.sent_message(sent);
            }
            return sent;
        }
        let bytes = pattern::bytes(self.inbound.stream, self.inbound.written, count);
        let mut taken = 0;
        while taken < count {
            match send(peer, &bytes[taken..]) {
                Some(more @ 1..) => taken += more,
                _ => break,
            }
        }
        self.inbound.written += taken as u64;
        self.state.closed_unread |= taken > 0 && self.state.channel_gone && self.kind.is_tcp();
        taken
    }

    /// Reads up to `limit` bytes, or one message; returns the number of bytes.
    pub(crate) fn peer_read(&mut self, limit: usize) -> usize {
        self.peer_accept();
        let Some(peer) = &self.peer else { return 0 };
        if self.kind == LinkKind::PipeIn {
            return 0;
        }
        if self.kind.is_messages() {
            // The socket's error is reported before the messages behind it.
            let tried = (0..4).map(|_| read_once(peer, ROOM_BYTES));
            let mut told = tried.skip_while(|got| matches!(got, Got::Broken(_)));
            let Some(Got::Bytes(message)) = told.next() else { return 0 };
            self.outbound.got_messages.push(message);
            return 1;
        }
        let mut count = 0;
        while count < limit {
            let end = match read_once(peer, limit - count) {
                Got::Bytes(bytes) => {
                    count += bytes.len();
                    self.outbound.got.extend_from_slice(&bytes);
                    continue;
                }
                Got::Nothing => break,
                Got::End => Ok(0),
                Got::Broken(error) => Err(error.raw_os_error()),
            };
            self.peer_end.get_or_insert(end);
            break;
        }
        count
    }

    /// Reads all bytes; returns their number.
    pub(crate) fn peer_drain(&mut self) -> usize {
        let mut total = 0;
        loop {
            match self.peer_read(1 << 20) {
                0 => return total,
                count => total += count,
            }
        }
    }

    /// Accepts the connection that the channel has made.
    pub(crate) fn peer_accept(&mut self) {
        if let Some((_, Some(listener))) = &self.target
            && let Ok((stream, _)) = listener.accept()
            && stream.set_nonblocking(true).is_ok()
        {
            // The peer serves one connection and closes a later one. But the user-level stack ends
            // a connect that is cancelled, and the connection of the next one replaces it.
            let is_left = self.addresses.is_for_stack && self.peer.is_some();
            if (self.peer.is_some() && !is_left) || self.state.peer_closed {
                return;
            }
            if is_left {
                self.inbound.written = self.inbound.received;
                self.peer_end = None;
            }
            let _ = prepare_peer(&stream);
            self.peer = Some(stream.into());
        }
    }

    /// Ends the peer's direction.
    pub(crate) fn peer_end(&mut self) {
        self.peer_accept();
        let Some(peer) = &self.peer else { return };
        let is_stream = self.kind.is_tcp() || self.kind == LinkKind::Unix;
        if (is_stream || self.kind == LinkKind::Seqpacket)
            && SockRef::from(peer).shutdown(Shutdown::Write).is_ok()
        {
            self.state.peer_ended = true;
        }
    }

    /// Closes the peer's end; TCP resets the connection if the peer has not read everything.
    pub(crate) fn peer_close(&mut self) {
        self.peer_accept();
        if let Some(peer) = self.peer.take() {
            if self.kind.is_tcp() && !matches!(peek(&peer), Got::Nothing | Got::End) {
                self.state.peer_reset = true;
            }
            self.state.peer_closed = true;
        }
    }

    /// Closes a TCP connection with a reset.
    pub(crate) fn peer_reset(&mut self) {
        self.peer_accept();
        if !self.kind.is_tcp() {
            return self.peer_close();
        }
        if let Some(peer) = self.peer.take()
            && SockRef::from(&peer).set_linger(Some(Duration::ZERO)).is_ok()
        {
            self.state.peer_reset = true;
            self.state.peer_closed = true;
        }
    }

    /// Reads what has arrived for the clients.
    pub(crate) fn read_clients(&mut self) {
        for client in self.clients.iter_mut().filter(|client| client.end.is_none()) {
            loop {
                client.end = match read_once(&client.socket, ROOM_BYTES) {
                    Got::Bytes(bytes) => {
                        client.got.extend_from_slice(&bytes);
                        continue;
                    }
                    Got::Nothing => None,
                    Got::End => Some(Ok(0)),
                    Got::Broken(error) => Some(Err(error.raw_os_error())),
                };
                break;
            }
        }
    }
}

/// Peeks at the next bytes.
fn peek(socket: &OwnedFd) -> Got {
    let mut room = [std::mem::MaybeUninit::uninit(); 1];
    match SockRef::from(socket).peek(&mut room) {
        Ok(0) => Got::End,
        Ok(_) => Got::Bytes(Vec::new()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Got::Nothing,
        Err(_) => Got::Broken(Errno::IO),
    }
}

/// Writes once; `None` if it failed.
fn send(to: &OwnedFd, bytes: &[u8]) -> Option<usize> {
    loop {
        match rustix::io::write(to, bytes) {
            Ok(count) => return Some(count),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}
