//! TCP connections and listeners: one address, and an accept queue for each core.

use super::acceptor::{Acceptor, Listener, Prepare};
use super::connection::Connection;
use super::family::Tcp;
use super::stream::Stream;
use crate::core::current;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Number of connections that a core accepts ahead of its tasks.
const ACCEPTS_AHEAD: u32 = 128;

/// A TCP connection of the calling core; from [`TcpStream::connect`] or [`TcpListener::accept`].
/// Its methods are those of [`Stream`], and those of TCP alone.
pub type TcpStream = Stream<Tcp>;

impl Stream<Tcp> {
    /// Connects to an address. Dropping the future ends the attempt and closes the socket.
    ///
    /// The socket is a lightweight socket, as [`megapipe::Channel::connect_to`] describes.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
        let connection = Connection::connecting(current("TcpStream::connect"), address.into())?;
        poll_fn(|context| connection.poll_connected(context)).await?;
        Ok(Stream::new(connection))
    }

    /// Takes over a connected socket of the standard library, for example to set options before it
    /// connects.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn from_std(socket: std::net::TcpStream) -> io::Result<TcpStream> {
        Ok(Stream::new(Connection::register(current("TcpStream::from_std"), socket)?))
    }

    /// Returns the address of the peer. It costs a system call.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let address = self.connection.with(|channel, handle| channel.peer_address(handle))?;
        address.inet().ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))
    }

    /// Returns the local address. It costs several system calls. Afterwards the channel discards no
    /// input of the peer while it closes the connection, see [`megapipe::Channel::close`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let socket = self.connection.with(|channel, handle| channel.descriptor(handle))?;
        std::net::TcpStream::from(socket).local_addr()
    }

    /// Sets `TCP_NODELAY`: whether small segments are sent at once.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.connection.with(|channel, handle| channel.set_nodelay(handle, nodelay))
    }

    /// Sets `SO_LINGER`: how long a close waits for unsent data; zero resets the connection.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.connection.with(|channel, handle| channel.set_linger(handle, linger))
    }
}

/// A bound address that all cores of a runtime listen on; cheap to clone and to send.
///
/// Each core calls [`listen`](Bound::listen) once and accepts the connections whose handshake ran
/// on its CPUs, from an accept queue of its own (see
/// [`megapipe::Channel::register_listener`]). Clients see one address. Of more cores than CPUs,
/// some have no CPU and get a connection only by chance.
#[derive(Clone, Debug)]
pub struct Bound(Arc<BoundSocket>);

#[derive(Debug)]
struct BoundSocket {
    socket: std::net::TcpListener,
    /// Whether a core accepts from the original, which gets connections until all cores listen.
    original_taken: AtomicBool,
}

impl Bound {
    /// Binds an address and listens on it, as [`megapipe::listen`] does: with SO_REUSEADDR, the
    /// longest accept queue, and a wait of up to one second for an address in use. The error names
    /// address, cause and remedy. May be called anywhere, before the runtime is built too.
    pub fn tcp(address: impl ToSocketAddrs) -> io::Result<Bound> {
        megapipe::listen(address).map(Bound::from)
    }

    /// Returns the address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.socket.local_addr()
    }

    /// Begins to accept on the calling core.
    ///
    /// Fails if this core listens on the address already ([`megapipe::Error::Listener`]).
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn listen(&self) -> io::Result<TcpListener> {
        let acceptor = Acceptor::new(current("Bound::listen"), ACCEPTS_AHEAD);
        let mut listener = TcpListener { acceptor, bound: self.clone(), has_original: false };
        let core = Rc::clone(listener.acceptor.core());
        let partitioned = core.shared().cores.len() > 1 && !core.cpus.is_empty();
        if partitioned {
            // An accept queue of this core's own.
            listener
                .acceptor
                .add(|channel, sink| channel.register_listener(&self.0.socket, core.cpus, sink))?;
        }
        listener.has_original = !self.0.original_taken.swap(true, Ordering::AcqRel);
        if listener.has_original || !partitioned {
            listener.take_original()?;
        }
        Ok(listener)
    }
}

impl From<std::net::TcpListener> for Bound {
    /// Takes a listening socket, for example one with special options.
    fn from(socket: std::net::TcpListener) -> Bound {
        Bound(Arc::new(BoundSocket { socket, original_taken: AtomicBool::new(false) }))
    }
}

/// Accepts connections on one core; from [`Bound::listen`] or [`TcpListener::bind`].
///
/// Dropping it closes connections that it had accepted and not returned. Those in the kernel's
/// accept queue go to another core that listens on the same [`Bound`], if there is one.
pub struct TcpListener {
    acceptor: Acceptor,
    bound: Bound,
    has_original: bool,
}

impl TcpListener {
    /// Listens on an address with the calling core alone. For all cores use [`Bound`].
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<TcpListener> {
        let acceptor = Acceptor::new(current("TcpListener::bind"), ACCEPTS_AHEAD);
        let bound = Bound::tcp(address)?;
        let mut listener = TcpListener { acceptor, bound, has_original: false };
        listener.take_original()?;
        Ok(listener)
    }

    /// Accepts from the original socket.
    fn take_original(&mut self) -> io::Result<()> {
        let socket = self.bound.0.socket.try_clone()?;
        self.acceptor.add(|channel, sink| channel.register(socket, sink))
    }

    /// Waits for the next connection.
    ///
    /// An error such as `EMFILE` (too many open files) concerns one attempt: the listener goes on
    /// by itself, so call again. After the shutdown of the runtime was requested the result is an
    /// error for which [`is_shutdown`](crate::is_shutdown) is true. Dropping the future loses no
    /// connection.
    ///
    /// ```
    /// use megapipe_rt::{Runtime, TcpListener, TcpStream};
    /// let runtime = Runtime::builder().cores(1).build()?;
    /// runtime.block_on(async {
    ///     let mut listener = TcpListener::bind("127.0.0.1:0")?;
    ///     let mut client = TcpStream::connect(listener.local_addr()?).await?;
    ///     let mut server = listener.accept().await?;
    ///     client.write(b"hello").await?;
    ///     let message = server.read().await?.expect("the message");
    ///     assert_eq!(&*message, b"hello");
    ///     Ok::<(), std::io::Error>(())
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn accept(&mut self) -> io::Result<TcpStream> {
        poll_fn(|context| self.acceptor.poll_accept(context)).await
    }

    /// Returns the address that it listens on.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.bound.local_addr()
    }

    /// Sets `TCP_NODELAY` for the connections that arrive from now on.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.acceptor.set_nodelay(nodelay)
    }
}

impl Listener for TcpListener {
    type Family = Tcp;

    async fn accept(&mut self) -> io::Result<TcpStream> {
        TcpListener::accept(self).await
    }
}

impl Prepare for TcpListener {
    fn send_at_once(&self) -> io::Result<()> {
        self.set_nodelay(true)
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        if self.has_original {
            self.bound.0.original_taken.store(false, Ordering::Release);
        }
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("TcpListener").field("address", &self.local_addr().ok()).finish()
    }
}
