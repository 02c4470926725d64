//! Accepts incoming flows.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::foreign::Connection;
use super::registration::{Registration, Registry};
use crate::daemon::Backlog;
use crate::error::{Error, Result};
use crate::flow::{Flow, FlowSettings};
use crate::name::Name;
use crate::poll;

/// Accepts flows to an endpoint; made by [`Endpoint::listen`](crate::Endpoint::listen).
///
/// Up to 128 flows wait; further ones are refused. Each is opened while it waits, so a peer that
/// connects and then stalls delays no other. Dropping the listener refuses the waiting flows.
/// Several threads may accept from one listener.
#[derive(Debug)]
pub struct Listener {
    registration: Arc<Registration>,
    /// `None` for foreign names: the kernel queues their connections.
    backlog: Option<Arc<Backlog>>,
    settings: FlowSettings,
}

impl Listener {
    /// Makes a listener that takes flows from this backlog, or from the name's own socket.
    pub(super) fn new(
        registration: Arc<Registration>,
        backlog: Option<Arc<Backlog>>,
        settings: FlowSettings,
    ) -> Listener {
        Listener { registration, backlog, settings }
    }

    /// Returns the endpoint's full name.
    pub fn name(&self) -> &Name {
        self.registration.name()
    }

    /// Waits for the next flow and returns it.
    ///
    /// # Errors
    /// [`Error::Refused`] when the name was lost to another process while there was no daemon;
    /// [`Error::Forked`]; [`Error::System`].
    pub fn accept(&self) -> Result<Flow> {
        self.accept_before(None)
    }

    /// Waits for the next flow as [`Listener::accept`] does, and fails with [`Error::TimedOut`]
    /// after `timeout`.
    ///
    /// # Errors
    /// [`Error::TimedOut`], and those of [`Listener::accept`].
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Flow> {
        self.accept_before(Instant::now().checked_add(timeout))
    }

    /// Returns the next flow if one has arrived, else fails with [`Error::WouldBlock`].
    ///
    /// # Errors
    /// [`Error::WouldBlock`], and those of [`Listener::accept`].
    pub fn try_accept(&self) -> Result<Flow> {
        self.registration.check_process()?;
        self.next()?.ok_or(Error::WouldBlock)
    }

    /// Returns a descriptor that becomes readable when `try_accept` should be called. It stays the
    /// same for the listener's life.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        match (&self.backlog, self.registration.place()) {
            (Some(backlog), _) => backlog.descriptor(),
            (None, Registry::Socket(bound)) => bound.descriptor(),
            (None, Registry::Daemon(..)) => unreachable!("names of the daemon's have a backlog"),
        }
    }

    fn accept_before(&self, deadline: Option<Instant>) -> Result<Flow> {
        self.registration.check_process()?;
        loop {
            if let Some(flow) = self.next()? {
                return Ok(flow);
            }
            let descriptor = self.descriptor().as_raw_fd();
            let ready = poll::wait_for(descriptor, libc::POLLIN, deadline);
            if !ready.map_err(Error::system("poll"))? {
                return Err(Error::TimedOut);
            }
        }
    }

    fn next(&self) -> Result<Option<Flow>> {
        match (&self.backlog, self.registration.place()) {
            (Some(backlog), _) => {
                while let Some(opening) = backlog.take()? {
                    // A failed opening is skipped: its peer was informed.
                    if let Ok(flow) = opening.finish() {
                        return Ok(Some(flow));
                    }
                }
                Ok(None)
            }
            (None, Registry::Socket(bound)) => {
                let Some(Connection { transport, peer }) = bound.accept()? else {
                    return Ok(None);
                };
                let name = self.name().clone();
                Flow::foreign(transport, name, peer, self.settings.clone()).map(Some)
            }
            (None, Registry::Daemon(..)) => unreachable!("names of the daemon's have a backlog"),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let (Some(backlog), Registry::Daemon(daemon, number)) =
            (&self.backlog, self.registration.place())
            && !daemon.is_inherited()
        {
            daemon.stop_listening(self.name(), *number);
            backlog.close("the listener was dropped".to_owned());
        }
    }
}
