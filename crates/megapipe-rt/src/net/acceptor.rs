//! Accepting without an address family: what every listener is made of.

use super::connection::Connection;
use super::stream::Stream;
use super::waiter::Waiter;
use crate::core::{Core, CoreChannel, Sink, WaiterKey};
use crate::record::{Reason, note};
use megapipe::{Accept, Accepted, Event, Handle};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

/// A listener of the calling core: [`TcpListener`](crate::TcpListener) or
/// [`UnixListener`](crate::UnixListener). For functions that take either, such as those of the
/// module `http`.
pub trait Listener: Prepare {
    /// The family of its connections.
    type Family: 'static;

    /// Waits for the next connection; see [`TcpListener::accept`](crate::TcpListener::accept).
    fn accept(&mut self) -> impl Future<Output = io::Result<Stream<Self::Family>>>;
}

/// What a server for requests and answers sets. It also keeps [`Listener`] to this crate.
pub trait Prepare {
    /// Makes each answer of the connections to come leave at once.
    fn send_at_once(&self) -> io::Result<()>;
}

/// Accepts connections on one core, from one or more listening sockets. Dropping it closes the
/// sockets, and connections that it had accepted and not returned.
pub(super) struct Acceptor {
    core: Rc<Core>,
    state: Rc<State>,
    waiter: Option<WaiterKey>,
    /// Number of connections that it accepts ahead of its task.
    ahead: u32,
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

impl Acceptor {
    /// Creates an acceptor without a socket, which accepts up to `ahead` connections before its
    /// task asks for them. The others wait in the kernel's accept queue.
    pub(super) fn new(core: Rc<Core>, ahead: u32) -> Acceptor {
        Acceptor { core, state: Rc::default(), waiter: None, ahead }
    }

    pub(super) fn core(&self) -> &Rc<Core> {
        &self.core
    }

    /// Adds a listening socket, which the closure registers.
    pub(super) fn add(
        &mut self,
        register: impl FnOnce(&mut CoreChannel, Rc<dyn Sink>) -> megapipe::Result<Handle>,
    ) -> io::Result<()> {
        let sink = Rc::clone(&self.state) as Rc<dyn Sink>;
        let handle = self.core.with_channel(|channel| Ok(register(channel, sink)?))?;
        self.state.sockets.borrow_mut().push((handle, Cell::new(0)));
        self.request()
    }

    /// Keeps the number of requested connections up.
    fn request(&self) -> io::Result<()> {
        for (handle, wanted) in &*self.state.sockets.borrow() {
            let missing = self.ahead - wanted.get();
            if missing > self.ahead / 2 {
                let accept = Accept::lightweight().count(missing);
                self.core.with_channel(|channel| Ok(channel.accept(*handle, accept)?))?;
                wanted.set(self.ahead);
            }
        }
        Ok(())
    }

    /// Waits for the next connection.
    pub(super) fn poll_accept<F>(&mut self, context: &Context<'_>) -> Poll<io::Result<Stream<F>>> {
        let accepted = self.state.accepted.borrow_mut().pop_front();
        if let Some(accepted) = accepted {
            let core = Rc::clone(&self.core);
            let connection = accepted.and_then(|it| Connection::accepted(core, it.socket));
            return Poll::Ready(connection.map(Stream::new));
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

    /// Sets `TCP_NODELAY` for the connections that arrive from now on.
    pub(super) fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        for (handle, _) in &*self.state.sockets.borrow() {
            self.core.with_channel(|channel| Ok(channel.set_nodelay(*handle, nodelay)?))?;
        }
        Ok(())
    }
}

impl Drop for Acceptor {
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
    }
}

/// The reason why a listener stopped accepting.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the runtime is shutting down and accepts no more connections: end the task")]
struct ShuttingDown;

/// Returns whether an error of an accept means that the shutdown of the runtime was requested.
pub fn is_shutdown(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<ShuttingDown>())
}
