//! Opens the standing connections of a run (period a of Kawai and Yamaguchi's Figure 5) and makes
//! one exchange on each, so that the server has accepted it before the first scheduled request; and
//! checks open connections with another exchange.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::client::protocol::answer::Answer;
use crate::client::protocol::{Fed, Protocol, get, request};
use crate::error::{Context, Error, Result};
use crate::exchange::Exchange;
use crate::sys::clock::now_ns;
use crate::sys::epoll::{Epoll, event_buffer};
use crate::sys::signals::Signals;
use crate::sys::socket::{self, CongestionControl, RawAddress};

/// Connections being opened at a time: fewer than any listen queue holds.
const WINDOW: usize = 64;
/// Time-out: without any progress for this long, opening fails.
const TIME_LIMIT_NS: u64 = 10_000_000_000;
/// Connections from one address: half of the usual range of local ports, because connect(2) first
/// tries every other port and slows down after that.
pub(crate) const PER_SOURCE: usize = 14_000;
/// Linux option: the port is chosen at connect(2), so that a port can be used for several peers.
const IP_BIND_ADDRESS_NO_PORT: libc::c_int = 24;

/// Destination and source addresses of connections.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    pub(crate) target: SocketAddr,
    /// Local addresses, used in turn; with none the kernel chooses.
    pub(crate) sources: Vec<IpAddr>,
}

impl Route {
    /// Returns a route for `connections` connections. On the loopback network there are enough
    /// source addresses to exceed the ports of one.
    pub(crate) fn new(target: SocketAddr, connections: usize) -> Result<Route> {
        let needed = connections.div_ceil(PER_SOURCE);
        if needed <= 1 {
            return Ok(Route { target, sources: Vec::new() });
        }
        match target.ip() {
            IpAddr::V4(ip) if ip.is_loopback() && needed < 250 => {
                let sources = (1..=needed as u8).map(|last| IpAddr::from([127, 0, 0, last]));
                Ok(Route { target, sources: sources.collect() })
            }
            _ => Err(Error::setup(
                format!("{connections} connections to {target} need {needed} local addresses"),
                format!("ask for at most {PER_SOURCE} connections, or use several client hosts"),
            )),
        }
    }

    /// Returns a connecting socket, and whether the connection is established already.
    pub(crate) fn connect(
        &self,
        number: usize,
        congestion: &CongestionControl,
    ) -> std::io::Result<OwnedFd> {
        let target = RawAddress::new(self.target);
        let socket = socket::new_tcp(target.family())?;
        let fd = socket.as_raw_fd();
        socket::set_close_by_reset(fd)?;
        socket::set_no_delay(fd)?;
        socket::set_congestion_control(fd, congestion)?;
        if !self.sources.is_empty() {
            let source = self.sources[number % self.sources.len()];
            socket::set_option(fd, libc::IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &1_i32)?;
            RawAddress::new(SocketAddr::new(source, 0)).bind(fd)?;
        }
        match target.connect(fd) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(socket),
        }
    }
}

/// The request on each connection, and the end of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// The answer has the size of the exchange; its bytes are not examined.
    Exchange(Exchange),
    /// `GET /BYTES` over HTTP/1.1; the answer is checked.
    Get(usize),
}

impl Opening {
    /// Returns the bytes of the request.
    pub(crate) fn request(self) -> Vec<u8> {
        match self {
            Opening::Exchange(exchange) => request(exchange),
            Opening::Get(bytes) => get::Get::new(bytes, 0).render(()).to_vec(),
        }
    }

    /// Takes bytes that have arrived; returns whether the answer is complete, or what is wrong.
    fn feed(self, candidate: &mut Candidate, bytes: &[u8]) -> std::result::Result<bool, String> {
        candidate.received += bytes.len();
        match self {
            Opening::Exchange(Exchange { request_bytes, response_bytes }) => {
                if candidate.received > response_bytes {
                    return Err(format!(
                        "answered {request_bytes} bytes with more than {response_bytes}"
                    ));
                }
                Ok(candidate.received == response_bytes)
            }
            Opening::Get(body_bytes) => {
                let fed = get::feed(&mut candidate.answer, body_bytes as u64, bytes);
                match fed.map_err(|complaint| format!("sent an answer that {}", complaint.0))? {
                    Fed { used, .. } if used < bytes.len() => {
                        Err("sent bytes after its answer".to_owned())
                    }
                    Fed { complete, .. } => Ok(complete),
                }
            }
        }
    }
}

/// A connection that is being opened.
struct Candidate {
    socket: OwnedFd,
    sent: usize,
    received: usize,
    /// The progress of an answer that is checked.
    answer: Answer,
    is_complete: bool,
}

/// Opens all connections of a run.
pub(crate) struct Connecting<'a> {
    pub(crate) route: &'a Route,
    pub(crate) opening: Opening,
    pub(crate) request: &'a [u8],
    pub(crate) congestion: &'a CongestionControl,
    pub(crate) signals: &'a Signals,
}

impl Connecting<'_> {
    /// Opens `count` connections; calls `progress` with the number of open ones.
    pub(crate) fn establish(
        &self,
        count: usize,
        progress: impl FnMut(usize),
    ) -> Result<Vec<OwnedFd>> {
        let connect = |number| {
            self.route.connect(number, self.congestion).or_else(|error| {
                let usual = "start a server there, or ask for fewer --connections";
                let remedy = socket::connect_remedy(&error, usual);
                Err(error)
                    .context(format!("make connection {number} to {}", self.route.target), remedy)
            })
        };
        self.exchange_once(count, connect, progress)
    }

    /// Makes one exchange on each of these connections.
    pub(crate) fn check(&self, sockets: &[&OwnedFd]) -> Result<()> {
        let duplicate = |number: usize| {
            sockets[number].try_clone().context("duplicate a descriptor", "raise `ulimit -n`")
        };
        self.exchange_once(sockets.len(), duplicate, |_| ()).map(drop)
    }

    /// Makes one exchange on each of `count` sockets, some at a time.
    fn exchange_once(
        &self,
        count: usize,
        mut socket: impl FnMut(usize) -> Result<OwnedFd>,
        mut progress: impl FnMut(usize),
    ) -> Result<Vec<OwnedFd>> {
        let epoll = Epoll::new()?;
        let mut events = event_buffer(WINDOW);
        let mut candidates: Vec<Option<Candidate>> = Vec::with_capacity(count);
        let mut ready = 0;
        let mut moved_ns = now_ns();
        while ready < count {
            while candidates.len() < count && candidates.len() - ready < WINDOW {
                let number = candidates.len();
                candidates.push(Some(begin(socket(number)?, number, &epoll)?));
            }
            let events_count = epoll.wait(&mut events, 10);
            for event in &events[..events_count] {
                let number = event.u64 as usize;
                if self.advance(&mut candidates[number], number)? {
                    ready += 1;
                    moved_ns = now_ns();
                }
            }
            self.signals.sleep_ms(0)?;
            progress(ready);
            if now_ns() - moved_ns > TIME_LIMIT_NS {
                return Err(self.stuck(ready, count));
            }
        }
        Ok(candidates.into_iter().flatten().map(|candidate| candidate.socket).collect())
    }

    /// Sends and receives as far as possible; true when the exchange has just completed.
    fn advance(&self, candidate: &mut Option<Candidate>, number: usize) -> Result<bool> {
        let Some(candidate) = candidate else { return Ok(false) };
        if candidate.is_complete {
            return Ok(false);
        }
        let fd = candidate.socket.as_raw_fd();
        let failed = |errno| {
            Err(std::io::Error::from_raw_os_error(errno)).context(
                format!("make an exchange on connection {number}"),
                "see the server's messages; it may have too few descriptors, threads or processes",
            )
        };
        while candidate.sent < self.request.len() {
            match socket::send(fd, &self.request[candidate.sent..]) {
                Ok(count) => candidate.sent += count,
                Err(libc::EAGAIN) => break,
                Err(libc::EINTR) => {}
                Err(errno) => return failed(errno),
            }
        }
        let mut buffer = [0; 16_384];
        loop {
            let count = match socket::receive(fd, &mut buffer) {
                Ok(0) => return failed(libc::ECONNRESET),
                Ok(count) => count,
                Err(libc::EAGAIN) => return Ok(false),
                Err(libc::EINTR) => continue,
                Err(errno) => return failed(errno),
            };
            let fed = self.opening.feed(candidate, &buffer[..count]);
            candidate.is_complete = fed.map_err(|what| wrong(number, &what))?;
            if candidate.is_complete {
                return Ok(true);
            }
        }
    }

    fn stuck(&self, ready: usize, count: usize) -> Error {
        Error::setup(
            format!(
                "only {ready} of {count} connections to {} had answered when nothing had moved \
                 for {} s",
                self.route.target,
                TIME_LIMIT_NS / 1_000_000_000
            ),
            "check that the server answers requests of this size and accepts that many \
             connections; servers of HTTP are loaded by their URL, `iobench load URL`",
        )
    }
}

fn wrong(number: usize, what: &str) -> Error {
    Error::setup(
        format!("on connection {number} the server {what}"),
        "set the same sizes for server and client, and check what the server answers; servers of \
         HTTP are loaded by their URL, `iobench load URL`",
    )
}

fn begin(socket: OwnedFd, number: usize, epoll: &Epoll) -> Result<Candidate> {
    let interest = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET;
    epoll
        .add(socket.as_raw_fd(), number as u64, interest)
        .context("watch a connection", "raise fs.epoll.max_user_watches")?;
    let answer = Answer::default();
    Ok(Candidate { socket, sent: 0, received: 0, answer, is_complete: false })
}

/// Returns the numbers of the descriptors, for threads that borrow them.
pub(crate) fn raw(sockets: &[OwnedFd]) -> Vec<RawFd> {
    sockets.iter().map(AsRawFd::as_raw_fd).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_connections_come_from_several_loopback_addresses() {
        let target: SocketAddr = "127.0.0.1:7000".parse().unwrap();
        assert!(Route::new(target, PER_SOURCE).unwrap().sources.is_empty());
        let route = Route::new(target, 2 * PER_SOURCE + 1).unwrap();
        assert_eq!(route.sources.len(), 3);
        let elsewhere: SocketAddr = "192.0.2.1:7000".parse().unwrap();
        assert!(Route::new(elsewhere, PER_SOURCE).is_ok());
        let message = Route::new(elsewhere, PER_SOURCE + 1).unwrap_err().to_string();
        assert!(message.contains("2 local addresses"), "{message}");
    }

    #[test]
    fn answers_end_by_their_size_or_by_their_head() {
        let feed = |opening: Opening, pieces: &[&[u8]]| {
            let socket = socket::new_tcp(rustix::net::AddressFamily::INET).unwrap();
            let answer = Answer::default();
            let mut candidate =
                Candidate { socket, sent: 0, received: 0, answer, is_complete: false };
            let mut fed = Ok(false);
            for piece in pieces {
                fed = opening.feed(&mut candidate, piece);
            }
            fed
        };
        let four = Opening::Exchange(Exchange { request_bytes: 1, response_bytes: 4 });
        assert_eq!(feed(four, &[b"abc"]), Ok(false));
        assert_eq!(feed(four, &[b"abc", b"d"]), Ok(true));
        assert!(feed(four, &[b"abc", b"de"]).unwrap_err().contains("more than 4"));
        let get = Opening::Get(3);
        assert!(get.request().starts_with(b"GET /3 HTTP/1.1\r\n"));
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n";
        assert_eq!(feed(get, &[&head[..20], &head[20..], b"xx"]), Ok(false));
        assert_eq!(feed(get, &[head, b"xx", b"x"]), Ok(true));
        assert!(feed(get, &[head, b"xxxy"]).unwrap_err().contains("bytes after its answer"));
        assert!(feed(get, &[b"HTTP/1.1 404 Not Found\r\n\r\n"]).unwrap_err().contains("404"));
    }
}
