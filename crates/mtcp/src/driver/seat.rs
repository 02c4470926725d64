//! Holds an engine while a channel uses it, and returns it at the end.

use crate::engine::Port;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// An engine that a channel uses.
pub(super) struct Seat<P: Port> {
    port: ManuallyDrop<P>,
    home: Option<Box<dyn FnOnce(P)>>,
    grace: Duration,
}

impl<P: Port> Seat<P> {
    /// `home` takes the engine back; `grace` is how long unsent data may take at the end.
    pub(super) fn new(port: P, home: Box<dyn FnOnce(P)>, grace: Duration) -> Seat<P> {
        Seat { port: ManuallyDrop::new(port), home: Some(home), grace }
    }

    /// Runs the engine until unsent data is sent, at most for the grace time.
    pub(super) fn finish(&mut self) {
        let until = Instant::now() + self.grace;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.port.turn().is_err() || self.port.unfinished() == 0 {
                return;
            }
            if self.port.wait(Some(left)).is_err() {
                return;
            }
        }
    }
}

impl<P: Port> Deref for Seat<P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.port
    }
}

impl<P: Port> DerefMut for Seat<P> {
    fn deref_mut(&mut self) -> &mut P {
        &mut self.port
    }
}

impl<P: Port> Drop for Seat<P> {
    fn drop(&mut self) {
        // SAFETY: the port is not used after this.
        let port = unsafe { ManuallyDrop::take(&mut self.port) };
        if let Some(home) = self.home.take() {
            home(port);
        }
    }
}
