//! Sends messages to the other thread without waiting for it.

use crate::engine::Alarm;
use crate::spsc::Producer;
use std::collections::VecDeque;
use std::sync::Arc;

/// The producer of a ring, with the messages that do not fit yet. The windows of the connections
/// limit their number. Neither thread waits for the other, so there is no deadlock.
pub(super) struct Sender<T> {
    ring: Producer<Option<T>>,
    excess: VecDeque<T>,
    alarm: Arc<Alarm>,
}

impl<T> Sender<T> {
    pub(super) fn new(ring: Producer<Option<T>>, alarm: Arc<Alarm>) -> Sender<T> {
        Sender { ring, excess: VecDeque::new(), alarm }
    }

    /// Sends a message, in order; the other thread sees it after [`Sender::publish`].
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

    /// Publishes the messages to the other thread, and wakes it if it sleeps.
    pub(super) fn publish(&mut self) {
        if self.show() || !self.ring.is_drained() {
            self.alarm.ring();
        }
    }

    /// Publishes the messages to the other thread, without waking it from a short sleep.
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

    /// Whether a message waits for room in the ring.
    pub(super) fn is_stuck(&self) -> bool {
        !self.excess.is_empty()
    }

    /// The alarm of the other thread.
    pub(super) fn alarm(&self) -> &Alarm {
        &self.alarm
    }
}
