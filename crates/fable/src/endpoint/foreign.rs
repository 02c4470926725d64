//! Connections with foreign programs: `tcp://` and `unix://` sockets.

use std::fs;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::error::{Error, Result};
use crate::identity::Peer;
use crate::kind::Kind;
use crate::name::Name;
use crate::transport::{Transport, stream};

/// The most connections that the kernel queues for a listener.
const BACKLOG: i32 = 128;

/// The pause before another attempt at a UNIX socket whose queue is full.
const FULL_QUEUE_PAUSE: Duration = Duration::from_millis(2);

/// A socket that is bound to its name; `listen` follows.
#[derive(Debug)]
pub(super) struct Bound {
    socket: Socket,
    kind: Kind,
    /// Removes the socket's file when it is dropped.
    _file: Option<SocketFile>,
}

/// The name of a UNIX socket in the file system, removed with its owner.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
    process: u32,
}

/// A connection with a foreign program, and what the kernel reports about that program.
pub(super) struct Connection {
    pub(super) transport: Box<dyn Transport>,
    pub(super) peer: Peer,
}

impl Bound {
    /// Binds the name, and returns it with the port that the kernel chose for port 0.
    pub(super) fn new(name: &Name) -> Result<(Bound, Name)> {
        match name {
            Name::Tcp { host, port } => Bound::tcp(name, host, *port),
            Name::Unix { path } => Bound::unix(name, path),
            Name::Fable { .. } => unreachable!("names of ours belong to the daemon"),
        }
    }

    fn tcp(name: &Name, host: &str, port: u16) -> Result<(Bound, Name)> {
        let mut last = nothing_found(name);
        for address in resolve(name, host, port)? {
            match bind_tcp(address) {
                Ok(socket) => {
                    let chosen =
                        socket.local_addr().map_err(Error::system("getsockname"))?.as_socket();
                    let port = chosen.map_or(port, |address| address.port());
                    let full = Name::Tcp { host: host.to_owned(), port };
                    return Ok((Bound { socket, kind: Kind::TcpNodelay, _file: None }, full));
                }
                Err(error) => last = Error::system("bind")(error),
            }
        }
        Err(last)
    }

    fn unix(name: &Name, path: &str) -> Result<(Bound, Name)> {
        let socket =
            Socket::new(Domain::UNIX, Type::STREAM, None).map_err(Error::system("socket"))?;
        socket.bind(&unix_address(path)?).map_err(|source| {
            if source.kind() == io::ErrorKind::AddrInUse {
                let reason = format!(
                    "{name} is taken: stop the program that listens there, or remove the file if \
                     none does"
                );
                return Error::Refused { reason };
            }
            Error::System { call: "bind", source }
        })?;
        let file = if path.starts_with('@') { None } else { SocketFile::of(path.into()) };
        Ok((Bound { socket, kind: Kind::Unix, _file: file }, name.clone()))
    }

    /// Starts to listen.
    pub(super) fn listen(&self) -> Result<()> {
        self.socket.set_nonblocking(true).map_err(Error::system("fcntl(O_NONBLOCK)"))?;
        self.socket.listen(BACKLOG).map_err(Error::system("listen"))
    }

    /// Accepts a connection, if there is one in the queue.
    pub(super) fn accept(&self) -> Result<Option<Connection>> {
        match self.socket.accept() {
            Ok((socket, _)) => Connection::new(socket, self.kind).map(Some),
            Err(error) if is_nothing_yet(&error) => Ok(None),
            Err(error) => Err(Error::system("accept")(error)),
        }
    }

    /// Returns the socket, which is readable when a connection is in the queue.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns whether an error of accept(2) means that the queue is empty. A connection that ended
/// while it was queued counts as none.
fn is_nothing_yet(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
    )
}

impl SocketFile {
    fn of(path: PathBuf) -> Option<SocketFile> {
        let identity = identity(&path)?;
        Some(SocketFile { path, identity, process: std::process::id() })
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.process == std::process::id() && identity(&self.path) == Some(self.identity) {
            // Fails if the file is already removed.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Connection {
    fn new(socket: Socket, kind: Kind) -> Result<Connection> {
        let peer = match kind {
            Kind::Unix => unix_peer(&socket),
            _ => {
                // Answers of request-response programs must not wait for acknowledgements (Nagle's
                // algorithm).
                socket.set_tcp_nodelay(true).map_err(Error::system("setsockopt(TCP_NODELAY)"))?;
                let address = socket.peer_addr().ok().and_then(|address| address.as_socket());
                unknown_peer(address.map_or_else(String::new, |address| address.to_string()))
            }
        };
        Ok(Connection { transport: stream::foreign(socket, kind)?, peer })
    }

    /// Connects to a foreign program.
    pub(super) fn to(name: &Name, deadline: Instant) -> Result<Connection> {
        match name {
            Name::Tcp { host, port } => {
                let mut last = nothing_found(name);
                for address in resolve(name, host, *port)? {
                    match connect_tcp(address, deadline) {
                        Ok(socket) => return Connection::new(socket, Kind::TcpNodelay),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
            Name::Unix { path } => Connection::new(connect_unix(path, deadline)?, Kind::Unix),
            Name::Fable { .. } => unreachable!("names of ours are found by the daemon"),
        }
    }
}

/// Opens a TCP connection before the deadline.
pub(super) fn connect_tcp(address: SocketAddr, deadline: Instant) -> Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)
        .map_err(Error::system("socket"))?;
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Error::TimedOut);
    }
    match socket.connect_timeout(&address.into(), left) {
        Ok(()) => Ok(socket),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(Error::TimedOut),
        Err(error) => Err(Error::system("connect")(error)),
    }
}

fn connect_unix(path: &str, deadline: Instant) -> Result<Socket> {
    let address = unix_address(path)?;
    loop {
        let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)
            .map_err(Error::system("socket"))?;
        match socket.connect(&address) {
            Ok(()) => return Ok(socket),
            // The program's accept queue is full, and unix(7) offers no way to wait for room.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() >= deadline {
                    return Err(Error::TimedOut);
                }
                std::thread::sleep(FULL_QUEUE_PAUSE);
            }
            Err(error) => return Err(Error::system("connect")(error)),
        }
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn resolve(name: &Name, host: &str, port: u16) -> Result<impl Iterator<Item = SocketAddr>> {
    (host, port).to_socket_addrs().map_err(|error| Error::Refused {
        reason: format!("{name}: the host cannot be looked up: {error}"),
    })
}

fn nothing_found(name: &Name) -> Error {
    Error::Refused { reason: format!("{name}: the host has no address") }
}

fn unix_address(path: &str) -> Result<SockAddr> {
    let address = match path.strip_prefix('@') {
        Some(name) => SockAddr::unix(format!("\0{name}")),
        None => SockAddr::unix(path),
    };
    address.map_err(Error::system("making a socket address"))
}

fn unix_peer(socket: &Socket) -> Peer {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the credentials and their length are valid for writing and fit each other.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut bytes,
        )
    };
    if result < 0 {
        return unknown_peer(String::new());
    }
    let libc::ucred { pid, uid, gid } = credentials;
    let program = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let program = String::from_utf8_lossy(program.trim_ascii_end()).into_owned();
    Peer { host: String::new(), pid, uid, gid, program }
}

/// Returns the description of an unknown program at an address.
fn unknown_peer(host: String) -> Peer {
    Peer { host, pid: 0, uid: u32::MAX, gid: u32::MAX, program: String::new() }
}
