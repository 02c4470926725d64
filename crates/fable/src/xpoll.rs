//! Waits for flows, listeners and ordinary descriptors together (Table 2 of the paper).

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
    /// A flow on which a read, a write that has found no room, or `take_event` may succeed.
    Flow(&'a Flow),
    /// A listener that can accept a flow.
    Listener(&'a Listener),
    /// Events of poll(2), `libc::POLLIN` for example, of any descriptor.
    Descriptor(BorrowedFd<'a>, i16),
}

/// An interest that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Its index in the argument of `xpoll`.
    pub index: usize,
    /// The events of poll(2): `POLLIN` for flows and listeners; for other descriptors the requested
    /// ones, `POLLERR`, `POLLHUP` or `POLLNVAL`.
    pub events: i16,
}

/// Waits until one of the interests is ready, and returns those that are; none after `timeout`, and
/// `None` waits without limit. Like poll(2), it is level-triggered: it reports an interest until it
/// is handled.
///
/// A flow may be reported ready too early: use the calls that do not wait (`try_read`, `try_write`,
/// `try_accept`) and expect [`Error::WouldBlock`]. A flow that is waited for in this way does not
/// spin.
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
/// Those of [`Flow::descriptor`], or [`Error::System`] from poll(2).
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
