//! Sends and receives messages over a control link's socket, without blocking.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use super::message::{MESSAGE_BYTES_MAX, Message, bounded};
use crate::fork::NotInherited;
use crate::kind::Kind;
use crate::{packet, socket};

/// The most messages that are queued for a peer that does not read.
const WAITING_MAX: usize = 64;

/// The interval between probes to a host that does not answer, and the least idle time before one.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// The first probe follows after this part of the time after which a silent host counts as lost.
const ASK_PART: u32 = 10;

/// The result of receiving from the link.
#[derive(Debug)]
pub(crate) enum Received {
    Message(Message, Descriptors),
    Nothing,
    /// The peer has closed.
    End,
    /// The peer's host no longer answers.
    Silence,
}

/// The descriptors that came with a message.
#[derive(Debug)]
pub(crate) enum Descriptors {
    All(Vec<OwnedFd>),
    /// This process had no room for them, or there were too many.
    Lost,
}

impl Descriptors {
    /// No descriptors.
    pub(crate) const NONE: Descriptors = Descriptors::All(Vec::new());
}

/// A control link. On one host messages are packets, which can carry descriptors. Between hosts
/// they are a byte stream, in which each message follows its length (four bytes, big endian).
#[derive(Debug)]
pub(crate) struct Link {
    socket: NotInherited,
    local: bool,
    waiting: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    /// The bytes of a stream that have arrived and are no whole message yet.
    arrived: Vec<u8>,
}

impl Link {
    /// Makes a link. If the peer is on another host, the link reports [`Received::Silence`] when
    /// that host has not answered for `silence`.
    pub(crate) fn new(socket: OwnedFd, local: bool, silence: Duration) -> Link {
        if !local {
            ask_now_and_then(socket.as_fd(), silence);
        }
        Link {
            socket: NotInherited::new(socket),
            local,
            waiting: VecDeque::new(),
            arrived: Vec::new(),
        }
    }

    /// Sends a follower that waits for its first path the reason why there is none, and closes.
    pub(crate) fn decline(socket: OwnedFd, local: bool, kind: Kind, reason: &str) {
        let (waiting, arrived) = (VecDeque::new(), Vec::new());
        let mut link = Link { socket: NotInherited::new(socket), local, waiting, arrived };
        let (transport, reason) = (kind.to_string(), bounded(reason));
        // A follower that does not get the message sees the end of the link.
        let _ = link.send(&Message::Decline { transport, reason }, Vec::new());
        link.shut_down();
    }

    /// Returns the link's socket.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Shuts the socket down, so that the peer sees the end even if another process has the socket
    /// open.
    pub(crate) fn shut_down(self) {
        // Fails only if the peer is gone.
        let _ = SockRef::from(&self.socket).shutdown(Shutdown::Both);
    }

    /// Returns whether something has arrived that was not received yet. The end of the link does
    /// not count.
    pub(crate) fn has_something(&self) -> bool {
        crate::poll::look(self.socket.as_raw_fd(), libc::POLLIN) & libc::POLLIN != 0
    }

    /// Returns how many bytes are held of messages that have not arrived completely.
    pub(crate) fn arrived_bytes(&self) -> usize {
        self.arrived.len()
    }

    /// Returns whether messages are queued.
    pub(crate) fn wants_to_send(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends a message, or queues it until the peer reads.
    ///
    /// # Errors
    /// The kernel's, or `OutOfMemory` for a peer that reads nothing. A peer that is gone is no
    /// error here: `receive` reports it.
    pub(crate) fn send(&mut self, message: &Message, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let body = serde_json::to_vec(message)?;
        let mut bytes = Vec::with_capacity(4 + body.len());
        if !self.local {
            bytes.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes());
        }
        bytes.extend_from_slice(&body);
        if self.waiting.len() >= WAITING_MAX {
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, "the peer reads nothing"));
        }
        self.waiting.push_back((bytes, descriptors));
        self.send_waiting()
    }

    /// Sends the queued messages.
    ///
    /// # Errors
    /// Those of `send`.
    pub(crate) fn send_waiting(&mut self) -> io::Result<()> {
        while let Some((bytes, descriptors)) = self.waiting.front_mut() {
            let sent = if self.local {
                let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                packet::send(self.socket.as_fd(), bytes, &borrowed).map(|()| bytes.len())
            } else {
                socket::send(&self.socket, bytes)
            };
            match sent {
                Ok(count) if count == bytes.len() => drop(self.waiting.pop_front()),
                Ok(count) => drop(bytes.drain(..count)),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(()),
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::BrokenPipe
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::NotConnected
                    | io::ErrorKind::TimedOut
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkUnreachable => self.waiting.clear(),
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Receives the next message.
    ///
    /// # Errors
    /// `InvalidData` for input that no correct peer sends, or the kernel's error.
    pub(crate) fn receive(&mut self) -> io::Result<Received> {
        if self.local { self.receive_packet() } else { self.receive_from_stream() }
    }

    fn receive_packet(&mut self) -> io::Result<Received> {
        loop {
            match packet::receive(self.socket.as_fd()) {
                Ok(None) => return Ok(Received::End),
                Ok(Some(packet)) => {
                    let descriptors = match packet.has_lost_descriptors {
                        true => Descriptors::Lost,
                        false => Descriptors::All(packet.descriptors),
                    };
                    return Ok(Received::Message(parse(&packet.bytes)?, descriptors));
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(Received::Nothing),
                    // If a peer dies with unread messages, the kernel resets the pair: it reports
                    // that once, and then returns what the peer had sent.
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionReset => {}
                    _ => return Err(error),
                },
            }
        }
    }

    fn receive_from_stream(&mut self) -> io::Result<Received> {
        loop {
            if let Some(length) = self.arrived.first_chunk::<4>() {
                let length = u32::from_be_bytes(*length) as usize;
                if length > MESSAGE_BYTES_MAX {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "a message is too long",
                    ));
                }
                if self.arrived.len() >= 4 + length {
                    let message = parse(&self.arrived[4..4 + length])?;
                    self.arrived.drain(..4 + length);
                    return Ok(Received::Message(message, Descriptors::NONE));
                }
            }
            let mut room = [0_u8; 4096];
            match socket::receive(&self.socket, &mut room) {
                Ok(0) => return Ok(Received::End),
                Ok(count) => self.arrived.extend_from_slice(&room[..count]),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(Received::Nothing),
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::ConnectionReset => return Ok(Received::End),
                    // Which error it is depends on the last ICMP message or time-out.
                    io::ErrorKind::TimedOut
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkUnreachable => return Ok(Received::Silence),
                    _ => return Err(error),
                },
            }
        }
    }
}

/// Makes the kernel detect a host that has become unreachable, by TCP keep-alive: without it
/// nothing ends the connection, see tcp(7). The kernel counts its limit from the last packet that
/// arrived, not from the first unanswered probe. The time before that probe is therefore added;
/// otherwise an idle host would be given up too early.
fn ask_now_and_then(socket: BorrowedFd<'_>, silence: Duration) {
    let socket = SockRef::from(&socket);
    let ask_after = (silence / ASK_PART).max(ASK_EVERY);
    let asking = TcpKeepalive::new().with_time(ask_after).with_interval(ASK_EVERY);
    // A UNIX socket has no keep-alive, and no host that could become unreachable.
    let _ = socket.set_tcp_keepalive(&asking);
    let _ = socket.set_tcp_user_timeout(Some(silence + ask_after));
}

fn parse(bytes: &[u8]) -> io::Result<Message> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        let what = format!("a message is none of ours: {error}");
        io::Error::new(io::ErrorKind::InvalidData, what)
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    use super::*;

    /// Switches the loopback device of this thread's network namespace on or off.
    fn set_loopback(is_up: bool) {
        // SAFETY: a plain system call.
        let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0) };
        assert!(socket >= 0, "{}", io::Error::last_os_error());
        // SAFETY: all zeros are a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        (request.ifr_name[0], request.ifr_name[1]) = (b'l' as libc::c_char, b'o' as libc::c_char);
        request.ifr_ifru.ifru_flags = if is_up { libc::IFF_UP as libc::c_short } else { 0 };
        // SAFETY: the request outlives the call; the socket is open and owned here.
        unsafe {
            assert_eq!(libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request), 0);
            libc::close(socket);
        }
    }

    fn pair() -> [OwnedFd; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        one.set_nonblocking(true).unwrap();
        [one.into(), other.into()]
    }

    #[test]
    fn a_host_is_silent_only_when_it_has_not_answered_for_that_long() {
        let test = "a_host_is_silent_only_when_it_has_not_answered_for_that_long";
        if !testkit::is_root() {
            return testkit::skip(test, "a network namespace needs root");
        }
        let silence = Duration::from_secs(3);
        let measured = std::thread::spawn(move || {
            // SAFETY: changes the network of this thread only.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "needs CAP_SYS_ADMIN");
            set_loopback(true);
            let [one, _other] = pair();
            let mut link = Link::new(one, false, silence);
            // The link stays idle until shortly before the kernel sends its first probe.
            std::thread::sleep(silence / 2 - Duration::from_millis(200));
            assert!(matches!(link.receive(), Ok(Received::Nothing)));
            set_loopback(false);
            let cut = Instant::now();
            while matches!(link.receive(), Ok(Received::Nothing)) {
                assert!(cut.elapsed() < Duration::from_secs(60), "it is never noticed");
                std::thread::sleep(Duration::from_millis(10));
            }
            cut.elapsed()
        });
        let measured = measured.join().unwrap();
        assert!(measured >= silence, "given up {measured:?} after the cut, not {silence:?}");
    }

    #[test]
    fn a_question_that_is_not_asked_yet_is_no_silence() {
        for seconds in [1, 2, 10, 600] {
            let silence = Duration::from_secs(seconds);
            let [one, _other] = pair();
            let link = Link::new(one, false, silence);
            let socket = SockRef::from(&link.socket);
            let limit = socket.tcp_user_timeout().unwrap().unwrap();
            // The kernel counts both times from the last packet that arrived.
            let asked_after = socket.tcp_keepalive_time().unwrap();
            assert!(limit >= silence + asked_after, "{limit:?}, asked after {asked_after:?}");
        }
    }
}
