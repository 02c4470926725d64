//! One descriptor for everything that a flow can wait for, whatever its present transport.
//!
//! It is level-triggered. While the watch is *armed*, the paths' own descriptors make it readable.
//! While it is disarmed, there may be input that those do not show: an eventfd keeps it readable
//! until a call finds that it would have to wait.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::error::{Error, Result};
use crate::event::{EpollSet, event_descriptor, ring, silence};

/// The epoll set behind a flow's descriptor, and its members.
pub(super) struct Watch {
    epoll: EpollSet,
    /// An eventfd that is readable while the watch is disarmed.
    bell: OwnedFd,
    timer: OwnedFd,
    is_armed: bool,
    /// The paths' descriptors that are in the set, with their events.
    registered: Vec<(RawFd, i16)>,
    /// The length that a write without room has requested.
    pub(super) wanted_bytes: Option<usize>,
}

impl Watch {
    /// Creates a disarmed watch that also shows messages in the mailbox.
    pub(super) fn new(mailbox_bell: BorrowedFd<'_>) -> Result<Watch> {
        let epoll = EpollSet::new().map_err(Error::system("epoll_create1"))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(Error::system("timerfd_create"))?;
        let bell = event_descriptor()?;
        let (registered, wanted_bytes) = (Vec::new(), None);
        let watch = Watch { epoll, bell, timer, is_armed: false, registered, wanted_bytes };
        watch.control(libc::EPOLL_CTL_ADD, mailbox_bell.as_raw_fd(), libc::POLLIN)?;
        watch.control(libc::EPOLL_CTL_ADD, watch.bell.as_raw_fd(), libc::POLLIN)?;
        watch.control(libc::EPOLL_CTL_ADD, watch.timer.as_raw_fd(), libc::POLLIN)?;
        ring(&watch.bell);
        Ok(watch)
    }

    fn control(&self, operation: i32, descriptor: RawFd, events: i16) -> Result<()> {
        let events = u32::from(events.unsigned_abs());
        let done = self.epoll.control(operation, descriptor, events, 0);
        done.map_err(Error::system("epoll_ctl"))
    }

    /// Returns the descriptor of the epoll set.
    pub(super) fn descriptor(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Removes the paths' descriptors from the set while they are still open, before they change.
    pub(super) fn forget(&mut self) {
        for (descriptor, _) in std::mem::take(&mut self.registered) {
            // An error means that the descriptor is closed, and so no longer in the set.
            let _ = self.control(libc::EPOLL_CTL_DEL, descriptor, 0);
        }
        self.disarm();
    }

    /// Disarms the watch: the descriptor is readable until the next call that would have to wait.
    pub(super) fn disarm(&mut self) {
        if self.is_armed {
            self.is_armed = false;
            ring(&self.bell);
        }
    }

    /// Arms the watch with these descriptors and the deadline; if the flow is ready, the descriptor
    /// becomes readable at once.
    pub(super) fn arm(
        &mut self,
        wanted: Vec<(RawFd, i16)>,
        deadline: Option<Instant>,
        is_ready: bool,
    ) -> Result<()> {
        self.register(wanted)?;
        self.set_timer(deadline);
        if is_ready {
            self.is_armed = false;
            ring(&self.bell);
        } else if !self.is_armed {
            self.is_armed = true;
            silence(&self.bell);
        }
        Ok(())
    }

    /// Registers these descriptors and removes all others.
    fn register(&mut self, wanted: Vec<(RawFd, i16)>) -> Result<()> {
        for (descriptor, events) in &wanted {
            match self.registered.iter().find(|(known, _)| known == descriptor) {
                Some((_, known)) if known == events => {}
                Some(_) => self.control(libc::EPOLL_CTL_MOD, *descriptor, *events)?,
                None => self.control(libc::EPOLL_CTL_ADD, *descriptor, *events)?,
            }
        }
        for (descriptor, _) in &self.registered {
            if !wanted.iter().any(|(kept, _)| kept == descriptor) {
                self.control(libc::EPOLL_CTL_DEL, *descriptor, 0)?;
            }
        }
        self.registered = wanted;
        Ok(())
    }

    fn set_timer(&self, deadline: Option<Instant>) {
        let left = deadline.map_or(Duration::ZERO, |at| {
            at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1))
        });
        let timer = Itimerspec {
            it_interval: Timespec::default(),
            // A deadline beyond the timer's range sets no timer: it is never reached.
            it_value: left.try_into().unwrap_or_default(),
        };
        // Setting the timer also clears an expiration.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer);
    }
}
