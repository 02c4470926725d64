//! Messages over a control link's socket, without blocking.

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

/// The most messages that wait for a peer that does not read.
const WAITING_MAX: usize = 64;

/// How often a host that does not answer is asked, and from when on at the earliest.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// A host is asked when it has said nothing for this part of the time after which it is given up.
const ASK_PART: u32 = 10;

/// What a look at the link has brought.
#[derive(Debug)]
pub(crate) enum Received {
    Message(Message, Descriptors),
    Nothing,
    /// The peer has closed.
    End,
    /// The peer's host does not answer any more.
    Silence,
}

/// What comes with a message.
#[derive(Debug)]
pub(crate) enum Descriptors {
    All(Vec<OwnedFd>),
    /// They did not fit into this process, or there were too many.
    Lost,
}

impl Descriptors {
    pub(crate) const NONE: Descriptors = Descriptors::All(Vec::new());
}

/// A control link. On one host messages are packets, and may carry descriptors; between hosts they
/// are a stream, each behind its length in four bytes, most significant first.
#[derive(Debug)]
pub(crate) struct Link {
    socket: NotInherited,
    local: bool,
    waiting: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    /// What has arrived of a stream, and is no whole message yet.
    arrived: Vec<u8>,
}

impl Link {
    /// A link whose peer, if that is not local, is given up when its host does not answer for as
    /// long as `silence`.
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

    /// Tells a follower that waits for the first path why there will be none, and closes.
    pub(crate) fn decline(socket: OwnedFd, local: bool, kind: Kind, reason: &str) {
        let (waiting, arrived) = (VecDeque::new(), Vec::new());
        let mut link = Link { socket: NotInherited::new(socket), local, waiting, arrived };
        let (transport, reason) = (kind.to_string(), bounded(reason));
        // A follower that cannot be told sees the end.
        let _ = link.send(&Message::Decline { transport, reason }, Vec::new());
        link.shut_down();
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Tells the peer that this is the end, whoever else has the socket.
    pub(crate) fn shut_down(self) {
        // To a peer that is gone there is nothing to tell.
        let _ = SockRef::from(&self.socket).shutdown(Shutdown::Both);
    }

    /// Whether something has arrived that was not received yet; not the peer's end.
    pub(crate) fn has_something(&self) -> bool {
        crate::poll::look(self.socket.as_raw_fd(), libc::POLLIN) & libc::POLLIN != 0
    }

    pub(crate) fn wants_to_send(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends, or keeps it until the peer reads.
    ///
    /// # Errors
    /// The kernel's, or `OutOfMemory` for a peer that reads nothing. A peer that is gone is none:
    /// `receive` will tell.
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

    /// Sends what waits.
    ///
    /// # Errors
    /// As `send`.
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

    /// The next message.
    ///
    /// # Errors
    /// `InvalidData` for what no honest peer sends, or the kernel's.
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
                    // A peer that dies with unread messages resets the pair. The kernel says so
                    // once, and then gives what the peer had sent.
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
                    // Which of them it is depends on what the network has said last.
                    io::ErrorKind::TimedOut
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkUnreachable => return Ok(Received::Silence),
                    _ => return Err(error),
                },
            }
        }
    }
}

/// Lets the kernel notice a host that is gone without a word, which ends nothing by itself: tcp(7).
/// The kernel counts its limit from the last packet that has arrived, not from the first question
/// without answer: the time before that question comes on top, or an idle host would be given up
/// that much too early.
fn ask_now_and_then(socket: BorrowedFd<'_>, silence: Duration) {
    let socket = SockRef::from(&socket);
    let ask_after = (silence / ASK_PART).max(ASK_EVERY);
    let asking = TcpKeepalive::new().with_time(ask_after).with_interval(ASK_EVERY);
    // A link that is no TCP connection has no host that could fall silent.
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
        // SAFETY: plain data.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        (request.ifr_name[0], request.ifr_name[1]) = (b'l' as libc::c_char, b'o' as libc::c_char);
        request.ifr_ifru.ifru_flags = if is_up { libc::IFF_UP as libc::c_short } else { 0 };
        // SAFETY: the request outlives the call; the socket is ours.
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
        let silence = Duration::from_secs(3);
        let measured = std::thread::spawn(move || {
            // SAFETY: changes the network of this thread only.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "needs CAP_SYS_ADMIN");
            set_loopback(true);
            let [one, _other] = pair();
            let mut link = Link::new(one, false, silence);
            // The link is idle for most of the time after which the peer is asked at all.
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
            // The kernel counts both from the last packet that has arrived.
            let asked_after = socket.tcp_keepalive_time().unwrap();
            assert!(limit >= silence + asked_after, "{limit:?}, asked after {asked_after:?}");
        }
    }
}
