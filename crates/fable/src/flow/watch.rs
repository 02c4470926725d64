//! One descriptor for all that a flow may wait for, whatever its transport is at the moment.
//!
//! It is level-triggered. While the flow is *armed*, the paths' own descriptors tell; while it is
//! not, because something may be left that those do not show, a bell of our own keeps it readable
//! until a call finds that it would have to wait.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use super::core::Core;
use super::path::Path;
use crate::agent::{event_descriptor, ring, silence};
use crate::error::{Error, Result};
use crate::page::Counter;
use crate::poll::timespec;
use crate::transport::{Direction, Manner, Wait};

/// The descriptor and what it consists of.
pub(super) struct Watch {
    epoll: OwnedFd,
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
    fn new(mailbox_bell: BorrowedFd<'_>) -> Result<Watch> {
        // SAFETY: plain system calls.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(Error::last("epoll_create1"));
        }
        // SAFETY: the descriptor is new and ours.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: a plain system call.
        let timer = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if timer < 0 {
            return Err(Error::last("timerfd_create"));
        }
        // SAFETY: the descriptor is new and ours.
        let timer = unsafe { OwnedFd::from_raw_fd(timer) };
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
        let mut event = libc::epoll_event { events: u32::from(events.unsigned_abs()), u64: 0 };
        // SAFETY: the event outlives the call.
        let done = unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), operation, descriptor, &raw mut event)
        };
        if done < 0 { Err(Error::last("epoll_ctl")) } else { Ok(()) }
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
        let (value, once) = (timespec(left), timespec(Duration::ZERO));
        let timer = libc::itimerspec { it_interval: once, it_value: value };
        // SAFETY: the value outlives the call. Setting a timer also takes back its expiry.
        unsafe {
            libc::timerfd_settime(self.timer.as_raw_fd(), 0, &raw const timer, std::ptr::null_mut())
        };
    }
}

impl Core {
    /// The flow's descriptor, which lives as long as the flow.
    pub(super) fn descriptor(&self) -> Result<RawFd> {
        let mut watch = self.watch.borrow_mut();
        if watch.is_none() {
            *watch = Some(Watch::new(self.mailbox.bell())?);
            self.counters.write(Counter::Watched, 1);
        }
        Ok(watch.as_ref().map_or(-1, |watch| watch.epoll.as_raw_fd()))
    }

    pub(super) fn disarm(&self) {
        if let Some(watch) = &mut *self.watch.borrow_mut() {
            watch.disarm();
        }
    }

    /// A call has got something. A ring's bell stays as it is until the ring is empty; other
    /// transports may hold messages back that their descriptor does not show.
    #[inline]
    pub(super) fn got(&self, path: &Path) {
        if !path.is_ring()
            && let Some(watch) = &mut *self.watch.borrow_mut()
        {
            watch.disarm();
        }
    }

    /// A write that had found no room has it, or does not want it any more.
    #[inline]
    pub(super) fn found_room(&self) {
        if self.wants_room.replace(false)
            && let Some(watch) = &mut *self.watch.borrow_mut()
        {
            watch.wanted_bytes = None;
        }
    }

    /// A call would have to wait: from now on the descriptor tells when to try again.
    pub(super) fn arm(&self, wanted_bytes: Option<usize>) -> Result<()> {
        let mut watch = self.watch.borrow_mut();
        let Some(watch) = watch.as_mut() else { return Ok(()) };
        let mut state = self.state.borrow_mut();
        watch.wanted_bytes = wanted_bytes.or(watch.wanted_bytes);
        self.wants_room.set(watch.wanted_bytes.is_some());
        let mut wanted = Vec::new();
        // Told once: who takes no events is not to be woken by them for ever.
        let mut is_ready = std::mem::take(&mut state.has_untold_event);
        if watch.wanted_bytes.is_some() || state.wants_room() {
            is_ready |= prepare(state.bottleneck(), Direction::Write, &mut wanted);
        }
        for sender in state.senders() {
            if matches!(sender.inner.borrow_mut().transport.flush(), Ok(false)) {
                is_ready |= prepare(sender, Direction::Write, &mut wanted);
            }
        }
        if state.awaited.is_none() && !state.read_ended {
            is_ready |= prepare(&state.reading, Direction::Read, &mut wanted);
        }
        // One bell serves both directions of a ring, and preparing for the second silences what
        // was rung for the first: look again.
        if watch.wanted_bytes.is_some() {
            is_ready |= state.bottleneck().inner.borrow_mut().transport.has_room();
        }
        watch.register(wanted)?;
        watch.set_timer(state.next_deadline());
        if is_ready {
            watch.is_armed = false;
            ring(&watch.bell);
        } else if !watch.is_armed {
            watch.is_armed = true;
            silence(&watch.bell);
        }
        Ok(())
    }
}

/// Adds what tells that the path can go on; true if it can now, or will not tell.
fn prepare(path: &Path, direction: Direction, wanted: &mut Vec<(RawFd, i16)>) -> bool {
    let mut inner = path.inner.borrow_mut();
    match inner.transport.prepare_wait(direction, Manner::Descriptor) {
        Ok(Wait::Descriptor { descriptor, events }) => {
            match wanted.iter_mut().find(|(known, _)| *known == descriptor) {
                Some((_, known)) => *known |= events,
                None => wanted.push((descriptor, events)),
            }
            false
        }
        _ => true,
    }
}
