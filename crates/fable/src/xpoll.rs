//! Waiting for flows, listeners and ordinary descriptors together (Table 2 of the paper).

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::endpoint::Listener;
use crate::error::{Error, Result};
use crate::flow::Flow;
use crate::poll;

/// What [`xpoll`] waits for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Interest<'a> {
    /// That a read, a write that has found no room, or `take_event` may go on.
    Flow(&'a Flow),
    /// That a flow can be accepted.
    Listener(&'a Listener),
    /// Events of poll(2), `libc::POLLIN` for example, of any descriptor.
    Descriptor(BorrowedFd<'a>, i16),
}

/// One of the interests has come true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Its place in what `xpoll` was given.
    pub index: usize,
    /// The events of poll(2) that are there: `POLLIN` for flows and listeners; for others what was
    /// asked for, `POLLERR`, `POLLHUP` or `POLLNVAL`.
    pub events: i16,
}

/// Waits until one of the interests comes true, and says which have; none after `timeout`, which is
/// without end if it is `None`. Like poll(2), it goes on telling of what is not dealt with.
///
/// A flow may be told ready without need: use the calls that do not wait (`try_read`, `try_write`,
/// `try_accept`) and expect [`Error::WouldBlock`]. Flows that are waited for in this way cannot be
/// spun on; the daemon takes that into account when it chooses their transport.
///
/// ```
/// use fable::{Endpoint, Interest, xpoll};
/// use std::time::Duration;
///
/// let echo = Endpoint::register("unix://@fable-xpoll-doc")?;
/// let listener = echo.listen()?;
/// assert!(xpoll(&[Interest::Listener(&listener)], Duration::ZERO)?.is_empty());
///
/// let client = Endpoint::anonymous().connect("unix://@fable-xpoll-doc")?;
/// let ready = xpoll(&[Interest::Listener(&listener), Interest::Flow(&client)], None)?;
/// assert_eq!(ready[0].index, 0);
/// let server = listener.try_accept()?;
/// # drop(server);
/// # Ok::<(), fable::Error>(())
/// ```
///
/// # Errors
/// What [`Flow::descriptor`] says, or [`Error::System`] by poll(2).
pub fn xpoll(
    interests: &[Interest<'_>],
    timeout: impl Into<Option<Duration>>,
) -> Result<Vec<Ready>> {
    let deadline = timeout.into().and_then(|timeout| Instant::now().checked_add(timeout));
    let entries = interests.iter().map(|interest| {
        let (descriptor, events) = match interest {
            Interest::Flow(flow) => (flow.descriptor()?, libc::POLLIN),
            Interest::Listener(listener) => (listener.descriptor(), libc::POLLIN),
            Interest::Descriptor(descriptor, events) => (*descriptor, *events),
        };
        Ok(libc::pollfd { fd: descriptor.as_raw_fd(), events, revents: 0 })
    });
    let mut entries = entries.collect::<Result<Vec<_>>>()?;
    poll::wait(&mut entries, deadline).map_err(Error::system("poll for xpoll"))?;
    let ready = entries.iter().enumerate().filter(|(_, entry)| entry.revents != 0);
    Ok(ready.map(|(index, entry)| Ready { index, events: entry.revents }).collect())
}
