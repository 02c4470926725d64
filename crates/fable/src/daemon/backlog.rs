//! Flows that have come in and wait to be accepted.
//!
//! A flow is opened by the agent as soon as it comes in, while it waits here; `accept` takes the
//! oldest whose first path stands. So a peer that connects and then does nothing keeps nobody
//! behind it waiting.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::event::{EpollSet, event_descriptor, ring};
use crate::flow::{FlowSettings, Opening};

/// How many flows wait at most, opened or not.
const WAITING_MAX: usize = 128;

/// The queue of one listener.
#[derive(Debug)]
pub(crate) struct Backlog {
    settings: FlowSettings,
    /// Readable when a flow is open or has failed, or the backlog is closed: an epoll descriptor
    /// that watches all openings and the bell.
    readiness: EpollSet,
    bell: OwnedFd,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    openings: VecDeque<Opening>,
    closed: Option<String>,
}

impl Backlog {
    pub(crate) fn new(settings: FlowSettings) -> Result<Backlog> {
        let readiness = EpollSet::new().map_err(Error::system("epoll_create1 for a listener"))?;
        let bell = event_descriptor()?;
        let backlog = Backlog { settings, readiness, bell, waiting: Mutex::default() };
        backlog.control(libc::EPOLL_CTL_ADD, backlog.bell.as_fd())?;
        Ok(backlog)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn settings(&self) -> FlowSettings {
        self.settings.clone()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.lock().openings.len() >= WAITING_MAX
    }

    /// A flow that has begun to open.
    pub(crate) fn add(&self, opening: Opening) {
        let mut waiting = self.lock();
        // A flow that nobody would hear of is refused by dropping it.
        if waiting.closed.is_none()
            && self.control(libc::EPOLL_CTL_ADD, opening.descriptor()).is_ok()
        {
            waiting.openings.push_back(opening);
        }
    }

    /// Refuses everything from now on, and tells those who accept why.
    pub(crate) fn close(&self, reason: String) {
        let mut waiting = self.lock();
        waiting.closed = Some(reason);
        let refused = std::mem::take(&mut waiting.openings);
        ring(&self.bell);
        drop(waiting);
        drop(refused);
    }

    /// The oldest flow that is open, or has failed to.
    pub(crate) fn take(&self) -> Result<Option<Opening>> {
        let mut waiting = self.lock();
        if let Some(reason) = &waiting.closed {
            return Err(Error::Refused { reason: reason.clone() });
        }
        let ready = waiting.openings.iter().position(Opening::is_ready);
        let opening = ready.and_then(|index| waiting.openings.remove(index));
        if let Some(opening) = &opening {
            self.control(libc::EPOLL_CTL_DEL, opening.descriptor())?;
        }
        Ok(opening)
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.readiness.as_fd()
    }

    fn control(&self, operation: i32, descriptor: BorrowedFd<'_>) -> Result<()> {
        let (number, events) = (descriptor.as_raw_fd(), libc::EPOLLIN as u32);
        let done = self.readiness.control(operation, number, events, 0);
        done.map_err(Error::system("epoll_ctl for a listener"))
    }
}
