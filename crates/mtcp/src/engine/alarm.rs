//! Wakes the thread of an engine or of an application.

use crate::spsc::{Doorbell, EventDescriptor, Signal, Sleep};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Wakes the thread of an engine or of an application through an eventfd. Also stores whether
/// another thread has called for a reason that is not in a ring.
#[derive(Debug)]
pub(crate) struct Alarm {
    bell: Doorbell<EventDescriptor>,
    called: AtomicBool,
}

impl Alarm {
    /// # Errors
    /// The errors of eventfd(2).
    pub(crate) fn new() -> io::Result<Alarm> {
        Ok(Alarm { bell: Doorbell::new(EventDescriptor::new()?), called: AtomicBool::new(false) })
    }

    /// Wakes the owner if it sleeps, after a message was published in a ring.
    pub(crate) fn ring(&self) {
        self.bell.ring();
    }

    /// Like [`Alarm::ring`], but for messages that can wait until a short sleep ends.
    pub(crate) fn ring_lazily(&self) {
        self.bell.ring_lazily();
    }

    /// Whether the owner is awake; it may go to sleep at any time.
    pub(crate) fn is_awake(&self) -> bool {
        self.bell.is_awake()
    }

    /// Requests that the owner checks everything, and wakes it.
    pub(crate) fn call(&self) {
        self.called.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Whether another thread has called since the last answer.
    pub(crate) fn answer(&self) -> bool {
        self.called.load(Ordering::Relaxed) && self.called.swap(false, Ordering::Acquire)
    }

    /// Whether another thread has called and was not answered yet.
    pub(crate) fn is_called(&self) -> bool {
        self.called.load(Ordering::Acquire)
    }

    /// Announces that the owner is about to sleep.
    pub(crate) fn lie_down(&self, sleep: Sleep) {
        self.bell.lie_down(sleep);
    }

    /// Ends the sleep that [`Alarm::lie_down`] began; reads the eventfd if that woke the owner.
    pub(crate) fn get_up(&self, woken: bool) {
        self.bell.get_up();
        if woken {
            self.bell.signal().clear();
        }
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.bell.signal().as_fd().as_raw_fd()
    }

    /// Wakes the owner even if it counts as awake.
    pub(crate) fn force(&self) {
        self.bell.signal().wake();
    }
}
