//! Listening TCP sockets: one address, and an accept queue for each core.

use super::tcp::TcpStream;
use super::waiter::Waiter;
use crate::core::{Core, Sink, WaiterKey, current};
use crate::record::{Reason, note};
use megapipe::{Accept, Accepted, Event, Handle};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

/// Number of connections that a core accepts ahead of its tasks. The others wait in the kernel's
/// accept queue.
const ACCEPTS_AHEAD: u32 = 128;

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
    pub fn listen(&self) -> io::Result<TcpListener> {
        let core = current("Bound::listen");
        let mut listener = TcpListener::new(core, self.clone());
        let partitioned = listener.core.shared().cores.len() > 1 && !listener.core.cpus.is_empty();
        if partitioned {
            listener.join()?;
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
    core: Rc<Core>,
    state: Rc<State>,
    waiter: Option<WaiterKey>,
    bound: Bound,
    has_original: bool,
}

/// What completions leave for the task that accepts.
#[derive(Default)]
struct State {
    accepted: RefCell<VecDeque<io::Result<Accepted>>>,
    /// The listening sockets, with the numbers of connections that were requested of them.
    sockets: RefCell<Vec<(Handle, Cell<u32>)>>,
    accepter: Waiter,
}

impl Sink for State {
    fn complete(&self, _: &Core, handle: Handle, event: Event, more: bool) {
        let Event::Accept(result) = event else { return };
        if let Some((_, wanted)) = self.sockets.borrow().iter().find(|(own, _)| *own == handle) {
            // The last completion ends all that was requested.
            wanted.set(if more {
                wanted.get().saturating_sub(u32::from(result.is_ok()))
            } else {
                0
            });
        }
        self.accepted.borrow_mut().push_back(result);
        self.accepter.wake();
    }
}

impl TcpListener {
    /// Listens on an address with the calling core alone. For all cores use [`Bound`].
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<TcpListener> {
        let core = current("TcpListener::bind");
        let bound = Bound::tcp(address)?;
        let mut listener = TcpListener::new(core, bound);
        listener.take_original()?;
        Ok(listener)
    }

    fn new(core: Rc<Core>, bound: Bound) -> TcpListener {
        TcpListener { core, state: Rc::default(), waiter: None, bound, has_original: false }
    }

    /// Gets an accept queue of this core's own.
    fn join(&mut self) -> io::Result<()> {
        let sink = Rc::clone(&self.state) as Rc<dyn Sink>;
        let handle = self.core.with_channel(|channel| {
            Ok(channel.register_listener(&self.bound.0.socket, self.core.cpus, sink)?)
        })?;
        self.add(handle)
    }

    /// Accepts from the original socket.
    fn take_original(&mut self) -> io::Result<()> {
        let sink = Rc::clone(&self.state) as Rc<dyn Sink>;
        let socket = self.bound.0.socket.try_clone()?;
        let handle = self.core.with_channel(|channel| Ok(channel.register(socket, sink)?))?;
        self.add(handle)
    }

    fn add(&mut self, handle: Handle) -> io::Result<()> {
        self.state.sockets.borrow_mut().push((handle, Cell::new(0)));
        self.request()
    }

    /// Keeps the number of requested connections up.
    fn request(&self) -> io::Result<()> {
        for (handle, wanted) in &*self.state.sockets.borrow() {
            let missing = ACCEPTS_AHEAD - wanted.get();
            if missing >= ACCEPTS_AHEAD / 2 {
                let accept = Accept::lightweight().count(missing);
                self.core.with_channel(|channel| Ok(channel.accept(*handle, accept)?))?;
                wanted.set(ACCEPTS_AHEAD);
            }
        }
        Ok(())
    }

    /// Waits for the next connection.
    ///
    /// An error such as `EMFILE` (too many open files) concerns one attempt: the listener goes on
    /// by itself, so call again. After the shutdown of the runtime was requested the result is an
    /// error for which [`is_shutdown`] is true. Dropping the future loses no connection.
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
        poll_fn(|context| self.poll_accept(context)).await
    }

    fn poll_accept(&mut self, context: &Context<'_>) -> Poll<io::Result<TcpStream>> {
        let accepted = self.state.accepted.borrow_mut().pop_front();
        if let Some(accepted) = accepted {
            let core = Rc::clone(&self.core);
            return Poll::Ready(accepted.and_then(|it| TcpStream::accepted(core, it.socket)));
        }
        if self.core.stop.is_requested() {
            return Poll::Ready(Err(io::Error::other(ShuttingDown)));
        }
        note(Reason::ACCEPT);
        self.state.accepter.wait(context);
        self.waiter = Some(self.core.stop.wait(self.waiter, context.waker().clone()));
        match self.request() {
            Ok(()) => {}
            // The channel is full until it has dispatched completions.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                context.waker().wake_by_ref();
            }
            Err(error) => return Poll::Ready(Err(error)),
        }
        Poll::Pending
    }

    /// Returns the address that it listens on.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.bound.local_addr()
    }

    /// Sets `TCP_NODELAY` for the connections that arrive from now on.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        for (handle, _) in &*self.state.sockets.borrow() {
            self.core.with_channel(|channel| Ok(channel.set_nodelay(*handle, nodelay)?))?;
        }
        Ok(())
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        if let Some(key) = self.waiter {
            self.core.stop.forget(key);
        }
        let sockets = self.state.sockets.take();
        for (handle, _) in sockets {
            // Fails only after the end of the runtime, which has closed the sockets.
            let cookie = self.core.with_channel(|channel| Ok(channel.close(handle)?));
            drop(cookie);
        }
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

/// The reason why a listener stopped accepting.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the runtime is shutting down and accepts no more connections: end the task")]
struct ShuttingDown;

/// Returns whether an error of [`TcpListener::accept`] means that the shutdown of the runtime was
/// requested.
pub fn is_shutdown(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<ShuttingDown>())
}
