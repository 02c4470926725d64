//! Sending messages without ever waiting for the other thread.

use crate::engine::Alarm;
use crate::spsc::Producer;
use std::collections::VecDeque;
use std::sync::Arc;

/// A ring's producer with what does not fit yet. The excess is bounded by what connections may
/// have on their way, so neither thread waits for the other, and they cannot wait for each other.
pub(super) struct Sender<T> {
    ring: Producer<Option<T>>,
    excess: VecDeque<T>,
    alarm: Arc<Alarm>,
}

impl<T> Sender<T> {
    pub(super) fn new(ring: Producer<Option<T>>, alarm: Arc<Alarm>) -> Sender<T> {
        Sender { ring, excess: VecDeque::new(), alarm }
    }

    /// Sends, in order; seen after [`Sender::publish`].
    pub(super) fn send(&mut self, message: T) {
        if !self.excess.is_empty() {
            self.excess.push_back(message);
            return;
        }
        let mut message = Some(message);
        if !self.ring.write(|slot| *slot = message.take())
            && let Some(message) = message
        {
            self.excess.push_back(message);
        }
    }

    /// Shows the other thread what was sent, and wakes it if it sleeps.
    pub(super) fn publish(&mut self) {
        if self.show() || !self.ring.is_drained() {
            self.alarm.ring();
        }
    }

    /// Shows the other thread what was sent; from a short sleep it is not woken.
    pub(super) fn publish_lazily(&mut self) {
        if self.show() {
            self.alarm.ring_lazily();
        }
    }

    fn show(&mut self) -> bool {
        while let Some(message) = self.excess.pop_front() {
            let mut message = Some(message);
            if !self.ring.write(|slot| *slot = message.take()) {
                self.excess.extend(message);
                self.excess.rotate_right(1);
                break;
            }
        }
        self.ring.publish()
    }

    /// Whether something waits for room.
    pub(super) fn is_stuck(&self) -> bool {
        !self.excess.is_empty()
    }

    /// The other thread's.
    pub(super) fn alarm(&self) -> &Alarm {
        &self.alarm
    }
}
