//! How one thread gets another to look up.

use crate::spsc::{Doorbell, EventDescriptor, Signal, Sleep};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The doorbell of an engine or of an application's thread, and whether somebody called for a
/// reason that lies in no ring.
#[derive(Debug)]
pub(crate) struct Alarm {
    bell: Doorbell<EventDescriptor>,
    called: AtomicBool,
}

impl Alarm {
    /// # Errors
    /// As eventfd(2).
    pub(crate) fn new() -> io::Result<Alarm> {
        Ok(Alarm { bell: Doorbell::new(EventDescriptor::new()?), called: AtomicBool::new(false) })
    }

    /// Tells of a message that was published in a ring.
    pub(crate) fn ring(&self) {
        self.bell.ring();
    }

    /// The same for what can wait until a short sleep ends.
    pub(crate) fn ring_lazily(&self) {
        self.bell.ring_lazily();
    }

    /// Whether the owner is awake; it may lie down at any time.
    pub(crate) fn is_awake(&self) -> bool {
        self.bell.is_awake()
    }

    /// Asks for a look at everything.
    pub(crate) fn call(&self) {
        self.called.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Whether somebody called since the last time.
    pub(crate) fn answer(&self) -> bool {
        self.called.load(Ordering::Relaxed) && self.called.swap(false, Ordering::Acquire)
    }

    /// Whether somebody has called and got no answer.
    pub(crate) fn is_called(&self) -> bool {
        self.called.load(Ordering::Acquire)
    }

    pub(crate) fn lie_down(&self, sleep: Sleep) {
        self.bell.lie_down(sleep);
    }

    /// Ends what [`Alarm::lie_down`] began; the eventfd is read if it woke somebody.
    pub(crate) fn get_up(&self, woken: bool) {
        self.bell.get_up();
        if woken {
            self.bell.signal().clear();
        }
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.bell.signal().as_fd().as_raw_fd()
    }

    /// Wakes the sleeper even if it says that it is awake.
    pub(crate) fn force(&self) {
        self.bell.signal().wake();
    }
}
