//! One descriptor for all that a flow may wait for, whatever its transport is at the moment.
//!
//! It is level-triggered. While the flow is *armed*, the paths' own descriptors tell; while it is
//! not, because something may be left that those do not show, a bell of our own keeps it readable
//! until a call finds that it would have to wait.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::error::{Error, Result};
use crate::event::{EpollSet, event_descriptor, ring, silence};

/// The descriptor and what it consists of.
pub(super) struct Watch {
    epoll: EpollSet,
    /// Readable while not armed.
    bell: OwnedFd,
    timer: OwnedFd,
    is_armed: bool,
    /// Of the paths.
    registered: Vec<(RawFd, i16)>,
    /// What a write that found no room wanted.
    pub(super) wanted_bytes: Option<usize>,
}

impl Watch {
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

    /// The one descriptor.
    pub(super) fn descriptor(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Forgets the paths' descriptors, which are about to change, while they are still open.
    pub(super) fn forget(&mut self) {
        for (descriptor, _) in std::mem::take(&mut self.registered) {
            // One that is gone already is what we want.
            let _ = self.control(libc::EPOLL_CTL_DEL, descriptor, 0);
        }
        self.disarm();
    }

    /// The next call looks for itself.
    pub(super) fn disarm(&mut self) {
        if self.is_armed {
            self.is_armed = false;
            ring(&self.bell);
        }
    }

    /// From now on these descriptors tell, and the deadline; at once if the flow is ready.
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

    /// Registers just these.
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
            // What is too long for a timer never comes, and no timer says the same.
            it_value: left.try_into().unwrap_or_default(),
        };
        // Setting a timer also takes back its expiry.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer);
    }
}
