//! Registers flows and listeners with a [`megapipe::Channel`].

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
    /// The event is reported once. Handle everything that is there, until `try_read` fails with
    /// [`Error::WouldBlock`], and take all flow events; otherwise the next event may not come.
    /// `unregister` ends it and returns the cookie; the flow does not change. The flow itself may
    /// be the cookie, or the cookie may say where the flow is stored.
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
    /// [`Event::Poll`](megapipe::Event::Poll) when flows have arrived. Accept all of them, until
    /// [`Listener::try_accept`] fails with [`Error::WouldBlock`]; otherwise the next event may not
    /// come. `unregister` ends it and returns the cookie.
    ///
    /// # Errors
    /// Those of [`Flow::watch`].
    pub fn watch<C>(&self, channel: &mut Channel<C>, cookie: C) -> Result<Handle> {
        watch(self.descriptor(), channel, cookie)
    }
}

fn watch<C>(descriptor: BorrowedFd<'_>, channel: &mut Channel<C>, cookie: C) -> Result<Handle> {
    let handle = channel.register(watcher(descriptor)?, cookie).map_err(Error::Channel)?;
    channel.poll(handle, libc::POLLIN as u32, Repeat::UntilCancelled).map_err(|error| {
        // The error drops the cookie; the handle must not remain.
        let _ = channel.unregister(handle);
        Error::Channel(error)
    })?;
    Ok(handle)
}

/// Makes a descriptor that the channel owns and that is readable when the given one is. The channel
/// may set file flags on its own descriptor, which must not change those of the flow's sockets.
fn watcher(descriptor: BorrowedFd<'_>) -> Result<OwnedFd> {
    let watcher = EpollSet::new().map_err(Error::system("epoll_create1 for a channel"))?;
    let (inner, events) = (descriptor.as_raw_fd(), libc::EPOLLIN as u32);
    let added = watcher.control(libc::EPOLL_CTL_ADD, inner, events, 0);
    added.map_err(Error::system("epoll_ctl for a channel"))?;
    Ok(watcher.into())
}
