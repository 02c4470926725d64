//! Flows and listeners in a [`megapipe::Channel`].

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use megapipe::{Channel, Handle, Repeat};

use crate::endpoint::Listener;
use crate::error::{Error, Result};
use crate::event::EpollSet;
use crate::flow::Flow;

impl Flow {
    /// Registers the flow's readiness with a channel: from now on `dispatch` gives
    /// [`Event::Poll`](megapipe::Event::Poll) when the flow may go on, between the completions of
    /// sockets, files and timers.
    ///
    /// An event is told once: deal with all that is there, until `try_read` says
    /// [`Error::WouldBlock`], and take all events; else the next one may not come. `unregister`
    /// ends it and gives the cookie back, the flow stays as it is. The flow itself may be the
    /// cookie, or lie where the cookie says.
    ///
    /// ```
    /// use fable::{Endpoint, Error};
    /// use megapipe::{Channel, Event};
    ///
    /// let echo = Endpoint::register("unix://@fable-watch-doc")?;
    /// let listener = echo.listen()?;
    /// let client = Endpoint::anonymous().connect("unix://@fable-watch-doc")?;
    /// let server = listener.accept()?;
    ///
    /// let mut channel = Channel::new()?;
    /// server.watch(&mut channel, "server")?;
    /// let mut hello = client.write(5)?;
    /// hello.copy_from_slice(b"hello");
    /// hello.commit()?;
    ///
    /// 'served: loop {
    ///     let Some(done) = channel.dispatch(None)? else { continue };
    ///     assert!(matches!(done.event, Event::Poll(Ok(_))));
    ///     assert_eq!(channel.cookie(done.handle), Some(&"server"));
    ///     loop {
    ///         match server.try_read() {
    ///             Ok(Some(message)) => {
    ///                 assert_eq!(&message[..], b"hello");
    ///                 break 'served;
    ///             }
    ///             Ok(None) => unreachable!("the client has not ended"),
    ///             Err(Error::WouldBlock) => break,
    ///             Err(error) => return Err(error.into()),
    ///         }
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Channel`] if the channel takes no more, [`Error::System`] if there can be no
    /// further descriptor, and what [`Flow::descriptor`] says.
    pub fn watch<C>(&self, channel: &mut Channel<C>, cookie: C) -> Result<Handle> {
        watch(self.descriptor()?, channel, cookie)
    }
}

impl Listener {
    /// Registers the listener's readiness with a channel: `dispatch` gives
    /// [`Event::Poll`](megapipe::Event::Poll) when flows have come in. Accept all of them, until
    /// [`Listener::try_accept`] says [`Error::WouldBlock`]. As [`Flow::watch`] otherwise.
    ///
    /// # Errors
    /// As there.
    pub fn watch<C>(&self, channel: &mut Channel<C>, cookie: C) -> Result<Handle> {
        watch(self.descriptor(), channel, cookie)
    }
}

fn watch<C>(descriptor: BorrowedFd<'_>, channel: &mut Channel<C>, cookie: C) -> Result<Handle> {
    let handle = channel.register(watcher(descriptor)?, cookie).map_err(Error::Channel)?;
    channel.poll(handle, libc::POLLIN as u32, Repeat::UntilCancelled).map_err(|error| {
        // The cookie is lost with the error; the handle must not stay behind.
        let _ = channel.unregister(handle);
        Error::Channel(error)
    })?;
    Ok(handle)
}

/// A descriptor of the channel's own that is readable when this one is. The channel may set flags
/// of what it owns, which must not be those of our sockets.
fn watcher(descriptor: BorrowedFd<'_>) -> Result<OwnedFd> {
    let watcher = EpollSet::new().map_err(Error::system("epoll_create1 for a channel"))?;
    let (inner, events) = (descriptor.as_raw_fd(), libc::EPOLLIN as u32);
    let added = watcher.control(libc::EPOLL_CTL_ADD, inner, events, 0);
    added.map_err(Error::system("epoll_ctl for a channel"))?;
    Ok(watcher.into())
}
