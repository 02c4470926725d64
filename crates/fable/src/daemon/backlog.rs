//! Queue of incoming flows that wait to be accepted.
//!
//! The agent opens a flow as soon as it arrives, while it waits here. `accept` takes the oldest
//! flow whose first path is open, so a peer that connects and then stalls delays no other flow.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::event::{EpollSet, event_descriptor, ring};
use crate::flow::{FlowSettings, Opening};

/// The most flows that wait, open or not.
const WAITING_MAX: usize = 128;

/// The queue of incoming flows of one listener.
#[derive(Debug)]
pub(crate) struct Backlog {
    settings: FlowSettings,
    /// Readable when a flow is open or has failed, or when the backlog is closed: an epoll
    /// descriptor that watches all openings and an eventfd.
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
    /// Creates an empty backlog, whose flows get these settings.
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

    /// Returns the settings of incoming flows.
    pub(crate) fn settings(&self) -> FlowSettings {
        self.settings.clone()
    }

    /// Returns whether the limit is reached.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().openings.len() >= WAITING_MAX
    }

    /// Adds a flow that has begun to open.
    pub(crate) fn add(&self, opening: Opening) {
        let mut waiting = self.lock();
        // After `close` the flow is dropped, which refuses it.
        if waiting.closed.is_none()
            && self.control(libc::EPOLL_CTL_ADD, opening.descriptor()).is_ok()
        {
            waiting.openings.push_back(opening);
        }
    }

    /// Refuses all flows from now on; `take` fails with the reason.
    pub(crate) fn close(&self, reason: String) {
        let mut waiting = self.lock();
        waiting.closed = Some(reason);
        let refused = std::mem::take(&mut waiting.openings);
        ring(&self.bell);
        drop(waiting);
        drop(refused);
    }

    /// Takes the oldest flow that is open or has failed to open.
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

    /// Returns the descriptor that is readable when `take` should be called.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.readiness.as_fd()
    }

    fn control(&self, operation: i32, descriptor: BorrowedFd<'_>) -> Result<()> {
        let (number, events) = (descriptor.as_raw_fd(), libc::EPOLLIN as u32);
        let done = self.readiness.control(operation, number, events, 0);
        done.map_err(Error::system("epoll_ctl for a listener"))
    }
}
