//! Connects paths between hosts: the leader listens at the address of its control link, and the
//! follower connects there and sends the token of the offer as proof.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use crate::agent::{Agent, WatchId, WatchOutcome, Watched};
use crate::kind::Kind;
use crate::socket;

/// A token: 128 random bits, in hexadecimal digits.
const TOKEN_BYTES: usize = 32;

/// The most accepted connections at a time that have not shown the token yet.
const GREETINGS_MAX: u32 = 8;

type Outcome = Result<Reached, String>;

/// The TCP connection of a path.
pub(super) struct Reached {
    pub(super) socket: OwnedFd,
    /// The listener by which the peer's kernel adds subflows; without one it refuses them (RFC
    /// 8684, 3.2). Only for Multipath TCP.
    pub(super) joins: Option<Arc<Socket>>,
}

/// Receives the connection of a path, or the reason why there is none.
type Taker = Box<dyn FnOnce(Outcome) + Send>;

/// A listener for one path; dropping it stops listening.
pub(super) struct Listening {
    pub(super) port: u16,
    pub(super) token: String,
    visitors: Visitors,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.visitors.over.store(true, Ordering::Relaxed);
        self.visitors.have_changed();
    }
}

fn failed(what: &'static str) -> impl FnOnce(std::io::Error) -> String {
    move |error| format!("{what}: {error}")
}

fn socket(kind: Kind, address: &SocketAddr) -> Result<Socket, String> {
    let protocol = if kind == Kind::Mptcp { Protocol::MPTCP } else { Protocol::TCP };
    let socket = Socket::new(Domain::for_address(*address), Type::STREAM, Some(protocol))
        .map_err(failed("socket (Multipath TCP needs sysctl net.mptcp.enabled=1)"))?;
    socket.set_nonblocking(true).map_err(failed("O_NONBLOCK"))?;
    Ok(socket)
}

fn address(found: std::io::Result<SockAddr>) -> Result<SocketAddr, String> {
    let found = found.map_err(failed("the control link's address"))?;
    found.as_socket().ok_or_else(|| "the control link has no internet address".to_owned())
}

fn random_token() -> Result<String, String> {
    let random = sys::random::bytes::<{ TOKEN_BYTES / 2 }>().map_err(failed("getrandom"))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Listens at the control link's own address. Passes the connection to `reached` later, on the
/// agent's thread.
pub(super) fn listen(
    link: BorrowedFd<'_>,
    kind: Kind,
    timeout: Duration,
    reached: impl Fn(Outcome) + Send + Sync + 'static,
) -> Result<Listening, String> {
    let mut own = address(SockRef::from(&link).local_addr())?;
    own.set_port(0);
    let listener = socket(kind, &own)?;
    listener.bind(&own.into()).map_err(failed("bind beside the control link"))?;
    listener.listen(8).map_err(failed("listen beside the control link"))?;
    let port = address(listener.local_addr())?.port();
    let token = random_token()?;
    let visitors = Visitors {
        token: token.clone(),
        over: Arc::default(),
        places: Arc::default(),
        greetings: Arc::new(AtomicU32::new(0)),
        deadline: Instant::now() + timeout,
        reached: Arc::new(reached),
    };
    let agent = Agent::get().map_err(|error| error.to_string())?;
    let listener = Arc::new(listener);
    visitors.watch(agent, Box::new(Doorman { listener, kind, visitors: visitors.clone() }));
    Ok(Listening { port, token, visitors })
}

/// The state that the listener shares with the connections that it accepted.
#[derive(Clone)]
struct Visitors {
    token: String,
    over: Arc<AtomicBool>,
    /// The agent's entries for the listener and its connections.
    places: Arc<Mutex<Vec<WatchId>>>,
    greetings: Arc<AtomicU32>,
    deadline: Instant,
    reached: Arc<dyn Fn(Outcome) + Send + Sync>,
}

impl Visitors {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) || self.deadline <= Instant::now()
    }

    fn watch(&self, agent: &Agent, watched: Box<dyn Watched>) {
        let place = agent.watch(watched);
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        // The oldest connections are over.
        if places.len() > 2 * GREETINGS_MAX as usize {
            places.remove(1);
        }
        places.push(place);
    }

    /// Makes the agent look at the entries at once, not at their deadline: they are over.
    fn have_changed(&self) {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(agent) = Agent::get() {
            places.iter().for_each(|place| agent.look(*place));
        }
    }

    fn next_look(&self) -> Instant {
        if self.is_over() { Instant::now() } else { self.deadline }
    }
}

struct Doorman {
    listener: Arc<Socket>,
    kind: Kind,
    visitors: Visitors,
}

impl Watched for Doorman {
    fn descriptor(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    fn events(&self) -> i16 {
        libc::POLLIN
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.visitors.next_look())
    }

    fn ready(&mut self, _events: i16) -> WatchOutcome {
        if self.visitors.is_over() {
            return WatchOutcome::Not;
        }
        let socket = match self.listener.accept() {
            Ok((socket, _)) => socket,
            Err(error) => match error.raw_os_error() {
                // A connection that cannot be accepted would keep the listener readable and the
                // agent busy.
                Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => {
                    self.visitors.over.store(true, Ordering::Relaxed);
                    self.visitors.have_changed();
                    (self.visitors.reached)(Err(failed("accept beside the control link")(error)));
                    return WatchOutcome::Not;
                }
                _ => return WatchOutcome::Watching,
            },
        };
        if self.visitors.greetings.fetch_add(1, Ordering::Relaxed) < GREETINGS_MAX
            && let Ok(agent) = Agent::get()
        {
            let visitors = self.visitors.clone();
            let joins = (self.kind == Kind::Mptcp).then(|| Arc::clone(&self.listener));
            let greeting = Greeting { socket: Some(socket), joins, visitors, said: Vec::new() };
            self.visitors.watch(agent, Box::new(greeting));
        } else {
            self.visitors.greetings.fetch_sub(1, Ordering::Relaxed);
        }
        WatchOutcome::Watching
    }
}

/// A connection that has not shown the token yet.
struct Greeting {
    socket: Option<Socket>,
    joins: Option<Arc<Socket>>,
    visitors: Visitors,
    said: Vec<u8>,
}

impl Watched for Greeting {
    fn descriptor(&self) -> RawFd {
        self.socket.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    fn events(&self) -> i16 {
        libc::POLLIN
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.visitors.next_look())
    }

    fn ready(&mut self, _events: i16) -> WatchOutcome {
        let Some(socket) = self.socket.as_ref().filter(|_| !self.visitors.is_over()) else {
            return WatchOutcome::Not;
        };
        // Reads no byte beyond the token: the bytes after it belong to the path.
        let mut room = [0_u8; TOKEN_BYTES];
        let missing = TOKEN_BYTES - self.said.len();
        match socket::receive(socket, &mut room[..missing]) {
            Ok(0) => return WatchOutcome::Not,
            Ok(count) => self.said.extend_from_slice(&room[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                return WatchOutcome::Watching;
            }
            Err(_) => return WatchOutcome::Not,
        }
        if self.said.len() < TOKEN_BYTES {
            return WatchOutcome::Watching;
        }
        if self.said == self.visitors.token.as_bytes()
            && !self.visitors.over.swap(true, Ordering::Relaxed)
            && let Some(socket) = self.socket.take()
        {
            self.visitors.have_changed();
            let joins = self.joins.take();
            (self.visitors.reached)(Ok(Reached { socket: socket.into(), joins }));
        }
        WatchOutcome::Not
    }
}

impl Drop for Greeting {
    fn drop(&mut self) {
        self.visitors.greetings.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Connects to the leader's listener. Passes the connection to `reached` later, on the agent's
/// thread.
pub(super) fn connect(
    link: BorrowedFd<'_>,
    kind: Kind,
    port: u16,
    token: String,
    timeout: Duration,
    reached: impl FnOnce(Outcome) + Send + 'static,
) -> Result<(), String> {
    if token.len() != TOKEN_BYTES {
        return Err("a token has 32 digits".to_owned());
    }
    let mut peer = address(SockRef::from(&link).peer_addr())?;
    peer.set_port(port);
    let socket = socket(kind, &peer)?;
    match socket.connect(&peer.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(failed("connect beside the control link")(error)),
    }
    let deadline = Instant::now() + timeout;
    let agent = Agent::get().map_err(|error| error.to_string())?;
    let reached: Taker = Box::new(reached);
    agent.watch(Box::new(Visit { rest: Some((socket, reached)), token, deadline }));
    Ok(())
}

/// A connection to the leader that is being opened.
struct Visit {
    rest: Option<(Socket, Taker)>,
    token: String,
    deadline: Instant,
}

impl Watched for Visit {
    fn descriptor(&self) -> RawFd {
        self.rest.as_ref().map_or(-1, |(socket, _)| socket.as_raw_fd())
    }

    fn events(&self) -> i16 {
        libc::POLLOUT
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.deadline)
    }

    fn ready(&mut self, events: i16) -> WatchOutcome {
        let Some((socket, reached)) = self.rest.take() else { return WatchOutcome::Not };
        let outcome = if events == 0 {
            Err("nobody answers beside the control link".to_owned())
        } else if let Ok(Some(error)) = socket.take_error() {
            Err(failed("connect beside the control link")(error))
        } else {
            match socket::send(&socket, self.token.as_bytes()) {
                Ok(TOKEN_BYTES) => Ok(Reached { socket: socket.into(), joins: None }),
                Ok(_) => Err("the token was cut".to_owned()),
                Err(error) => Err(failed("send the token")(error)),
            }
        };
        reached(outcome);
        WatchOutcome::Not
    }
}
