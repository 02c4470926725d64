//! UNIX stream sockets: connections and listeners at paths and abstract names.

use super::acceptor::{Acceptor, Listener, Prepare};
use super::connection::Connection;
use super::family::Unix;
use super::stream::Stream;
use super::tcp::Bound;
use crate::core::current;
use megapipe::Address;
use std::fmt;
use std::fs;
use std::future::poll_fn;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{self as std_unix, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A connection over a UNIX socket, see unix(7); from [`UnixStream::connect`],
/// [`UnixListener::accept`] or [`UnixStream::pair`]. Its methods are those of [`Stream`], and those
/// of UNIX sockets alone.
pub type UnixStream = Stream<Unix>;

/// Converts an address of the channel to one of the standard library; one of another family is
/// `EAFNOSUPPORT`.
pub(super) fn std_address(address: Address) -> io::Result<SocketAddr> {
    match address {
        Address::Path(path) => SocketAddr::from_pathname(path),
        Address::Abstract(name) => SocketAddr::from_abstract_name(name),
        Address::Unnamed => SocketAddr::from_pathname(""),
        Address::Inet(_) => Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
    }
}

/// Converts an address of the standard library to one of the channel.
pub(super) fn channel_address(address: &SocketAddr) -> Address {
    match address.as_abstract_name() {
        Some(name) => Address::Abstract(name.to_vec()),
        None => address.as_pathname().map_or(Address::Unnamed, Address::from),
    }
}

impl Stream<Unix> {
    /// Connects to a path. Dropping the future ends the attempt and closes the socket.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
        UnixStream::connect_to(Address::from(path.as_ref())).await
    }

    /// Connects to an address, such as an abstract name
    /// ([`SocketAddrExt::from_abstract_name`]).
    ///
    /// ```
    /// use megapipe_rt::{Runtime, UnixListener, UnixStream};
    /// use std::os::{linux::net::SocketAddrExt, unix::net::SocketAddr};
    /// let name = format!("megapipe-rt example {}", std::process::id());
    /// let address = SocketAddr::from_abstract_name(name)?;
    /// Runtime::builder().cores(1).build()?.block_on(async {
    ///     let mut listener = UnixListener::bind_addr(&address)?;
    ///     let mut client = UnixStream::connect_addr(&address).await?;
    ///     let mut server = listener.accept().await?;
    ///     client.write(b"hello").await?;
    ///     assert_eq!(&*server.read().await?.expect("the message"), b"hello");
    ///     assert_eq!(server.peer_credentials()?.process, std::process::id());
    ///     Ok::<(), std::io::Error>(())
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    /// Outside of a runtime.
    pub async fn connect_addr(address: &SocketAddr) -> io::Result<UnixStream> {
        UnixStream::connect_to(channel_address(address)).await
    }

    async fn connect_to(address: Address) -> io::Result<UnixStream> {
        let connection = Connection::connecting(current("UnixStream::connect"), address)?;
        poll_fn(|context| connection.poll_connected(context)).await?;
        Ok(Stream::new(connection))
    }

    /// Creates two connected streams of the calling core.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let (left, right) = std_unix::UnixStream::pair()?;
        Ok((UnixStream::from_std(left)?, UnixStream::from_std(right)?))
    }

    /// Takes over a connected socket of the standard library.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn from_std(socket: std_unix::UnixStream) -> io::Result<UnixStream> {
        Ok(Stream::new(Connection::register(current("UnixStream::from_std"), socket)?))
    }

    /// Returns the address of the peer, which is unnamed if the peer has not bound its socket. It
    /// costs several system calls.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        std_address(self.connection.with(|channel, handle| channel.peer_address(handle))?)
    }

    /// Returns the local address. It costs several system calls. Afterwards the channel discards no
    /// input of the peer while it closes the connection, see [`megapipe::Channel::close`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let socket = self.connection.with(|channel, handle| channel.descriptor(handle))?;
        std_unix::UnixStream::from(socket).local_addr()
    }

    /// Returns the process at the other end, as it was when the connection or the
    /// [pair](UnixStream::pair) was made; of a listening process, as it was when it called
    /// listen(2). The kernel vouches for it (`SO_PEERCRED`).
    pub fn peer_credentials(&self) -> io::Result<Credentials> {
        let mut value = [0; size_of::<libc::ucred>()];
        let count = self.socket_option(libc::SOL_SOCKET, libc::SO_PEERCRED, &mut value)?;
        if count != value.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let field = |at: usize| {
            u32::from_ne_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]])
        };
        Ok(Credentials {
            process: field(std::mem::offset_of!(libc::ucred, pid)),
            user: field(std::mem::offset_of!(libc::ucred, uid)),
            group: field(std::mem::offset_of!(libc::ucred, gid)),
        })
    }
}

/// The process at the other end of a [`UnixStream`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its process id; 0 if this process's PID namespace does not have it.
    pub process: u32,
    /// Its effective user id.
    pub user: u32,
    /// Its effective group id.
    pub group: u32,
}

/// A bound UNIX address that all cores of a runtime may listen on; cheap to clone and to send.
///
/// UNIX sockets have one accept queue: whichever core asks first gets the connection. Each core
/// takes one connection ahead of its tasks.
///
/// # The socket file
///
/// If the address is a path that [`Bound::unix`] has bound, the last drop of the `BoundUnix`,
/// its clones and their listeners removes the file, provided that the path still leads to it. A
/// killed process leaves its file behind. Binding never removes a file, because a process may still
/// listen there: the error says what to do.
#[derive(Clone, Debug)]
pub struct BoundUnix(Arc<BoundSocket>);

#[derive(Debug)]
struct BoundSocket {
    socket: std_unix::UnixListener,
    /// Dropped after the socket: clients are refused, then find nothing.
    _file: Option<SocketFile>,
}

impl Bound {
    /// Binds a path and listens on it, with the longest accept queue. May be called anywhere,
    /// before the runtime is built too.
    ///
    /// The mode of the file is 0777 less the umask; to connect needs write permission, and search
    /// permission for the directories.
    pub fn unix(path: impl AsRef<Path>) -> io::Result<BoundUnix> {
        Bound::unix_addr(&SocketAddr::from_pathname(path)?)
    }

    /// Does the same with an address, such as an abstract name
    /// ([`SocketAddrExt::from_abstract_name`]).
    pub fn unix_addr(address: &SocketAddr) -> io::Result<BoundUnix> {
        let socket = std_unix::UnixListener::bind_addr(address)
            .map_err(|error| io::Error::new(error.kind(), Refusal::new(address, error)))?;
        let file = address.as_pathname().map(SocketFile::new).transpose()?;
        Ok(BoundUnix(Arc::new(BoundSocket { socket, _file: file })))
    }
}

impl BoundUnix {
    /// Returns the address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.socket.local_addr()
    }

    /// Begins to accept on the calling core.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn listen(&self) -> io::Result<UnixListener> {
        let core = current("BoundUnix::listen");
        // What a core takes ahead no other core can accept.
        let ahead = if core.shared().cores.len() > 1 { 1 } else { ACCEPTS_AHEAD };
        let mut acceptor = Acceptor::new(core, ahead);
        let socket = self.0.socket.try_clone()?;
        acceptor.add(|channel, sink| channel.register(socket, sink))?;
        Ok(UnixListener { acceptor, bound: self.clone() })
    }
}

impl From<std_unix::UnixListener> for BoundUnix {
    /// Takes a listening socket, for example one that a service manager has passed. Its file is not
    /// removed.
    fn from(socket: std_unix::UnixListener) -> BoundUnix {
        BoundUnix(Arc::new(BoundSocket { socket, _file: None }))
    }
}

/// Number of connections that a single core accepts ahead of its tasks.
const ACCEPTS_AHEAD: u32 = 128;

/// Accepts connections on one core; from [`BoundUnix::listen`] or [`UnixListener::bind`].
///
/// Dropping it closes connections that it had accepted and not returned. The last listener removes
/// the socket file, see [`BoundUnix`].
pub struct UnixListener {
    acceptor: Acceptor,
    bound: BoundUnix,
}

impl UnixListener {
    /// Listens on a path with the calling core alone. For all cores use [`BoundUnix`].
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixListener> {
        Bound::unix(path)?.listen()
    }

    /// Does the same with an address, such as an abstract name.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn bind_addr(address: &SocketAddr) -> io::Result<UnixListener> {
        Bound::unix_addr(address)?.listen()
    }

    /// Waits for the next connection, as [`TcpListener::accept`](crate::TcpListener::accept) does.
    pub async fn accept(&mut self) -> io::Result<UnixStream> {
        poll_fn(|context| self.acceptor.poll_accept(context)).await
    }

    /// Returns the address that it listens on.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.bound.local_addr()
    }
}

impl Listener for UnixListener {
    type Family = Unix;

    async fn accept(&mut self) -> io::Result<UnixStream> {
        UnixListener::accept(self).await
    }
}

impl Prepare for UnixListener {
    /// UNIX sockets always do.
    fn send_at_once(&self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for UnixListener {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("UnixListener").field("address", &self.local_addr().ok()).finish()
    }
}

/// The file of a bound socket. Dropping it removes the file.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
    /// The process that bound it: a forked child does not remove it.
    process: u32,
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<SocketFile> {
        // The working directory may change.
        let path = std::path::absolute(path)?;
        let identity = SocketFile::identity(&path)?;
        Ok(SocketFile { path, identity, process: std::process::id() })
    }

    fn identity(path: &Path) -> io::Result<(u64, u64)> {
        fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = SocketFile::identity(&self.path).is_ok_and(|found| found == self.identity);
        if ours
            && self.process == std::process::id()
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!("cannot remove the socket {}: {error}", self.path.display());
        }
    }
}

/// The reason why an address cannot be listened on, with the remedy.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; {}", self.remedy())]
struct Refusal {
    address: String,
    source: io::Error,
}

impl Refusal {
    fn new(address: &SocketAddr, source: io::Error) -> Refusal {
        let address = match (address.as_pathname(), address.as_abstract_name()) {
            (Some(path), _) => path.display().to_string(),
            (None, Some(name)) => format!("@{}", name.escape_ascii()),
            (None, None) => "a socket without a name".to_string(),
        };
        Refusal { address, source }
    }

    fn remedy(&self) -> &'static str {
        match self.source.raw_os_error() {
            Some(libc::EADDRINUSE) => {
                "if no process listens there (`ss -xlp` names it), a killed one has left the file: \
                 remove it; otherwise choose another path"
            }
            Some(libc::EACCES | libc::EROFS) => {
                "this user may not create files there: choose another directory or change its \
                 permissions"
            }
            Some(libc::ENOENT | libc::ENOTDIR) => "create the directory first",
            Some(libc::EMFILE | libc::ENFILE) => {
                "too many files are open: raise the limit (ulimit -n, or sysctl fs.file-max)"
            }
            _ => "bind(2) and unix(7) list the causes; choose another address",
        }
    }
}
