//! Queues messages of other threads for one core, and decides who has to wake it.
//!
//! The owner announces that it is about to sleep ([`Inbox::lie_down`]) under the same lock under
//! which senders append. So either the owner sees the message and does not sleep, or the sender
//! sees a sleeping owner and wakes it. Of several senders one wakes it.
//!
//! The inbox does not sleep and makes no system call; that is the channel's part.

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

/// Messages to one core.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    messages: Vec<T>,
    asleep: bool,
    closed: bool,
}

/// What the sender of a message has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Nothing: the owner is awake and will look.
    Seen,
    /// Wake the owner.
    Wake,
}

impl<T> Inbox<T> {
    pub(crate) fn new() -> Inbox<T> {
        let state = State { messages: Vec::new(), asleep: false, closed: false };
        Inbox { state: Mutex::new(state) }
    }

    /// Locks the state. No code of a message runs under the lock, so it is whole even if poisoned.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a message; returns it if the inbox is closed.
    pub(crate) fn send(&self, message: T) -> Result<Sent, T> {
        let mut state = self.lock();
        if state.closed {
            return Err(message);
        }
        state.messages.push(message);
        let asleep = std::mem::take(&mut state.asleep);
        Ok(if asleep { Sent::Wake } else { Sent::Seen })
    }

    /// Moves all messages to the end of `into`. Only the owner calls this.
    pub(crate) fn drain_into(&self, into: &mut Vec<T>) {
        into.append(&mut self.lock().messages);
    }

    /// Announces that the owner is about to sleep. Returns false, and announces nothing, if there
    /// are messages.
    pub(crate) fn lie_down(&self) -> bool {
        let mut state = self.lock();
        state.asleep = state.messages.is_empty();
        state.asleep
    }

    /// Records that the owner is awake.
    pub(crate) fn get_up(&self) {
        self.lock().asleep = false;
    }

    /// Refuses messages from now on; returns those that wait.
    pub(crate) fn close(&self) -> Vec<T> {
        let mut state = self.lock();
        state.closed = true;
        std::mem::take(&mut state.messages)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_sender_wakes_an_owner_that_sleeps() {
        let inbox = Inbox::new();
        assert_eq!(inbox.send(1), Ok(Sent::Seen));
        assert!(!inbox.lie_down());
        let mut messages = Vec::new();
        inbox.drain_into(&mut messages);
        assert!(inbox.lie_down());
        assert_eq!(inbox.send(2), Ok(Sent::Wake));
        assert_eq!(inbox.send(3), Ok(Sent::Seen));
        inbox.drain_into(&mut messages);
        assert_eq!(messages, [1, 2, 3]);
        assert!(inbox.lie_down());
        inbox.get_up();
        assert_eq!(inbox.send(4), Ok(Sent::Seen));
        assert_eq!((inbox.close(), inbox.send(5)), (vec![4], Err(5)));
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    /// An eventfd that the owner's channel waits for.
    #[derive(Default)]
    struct Signal {
        count: Mutex<u32>,
        changed: Condvar,
    }

    impl Signal {
        fn wake(&self) {
            *self.count.lock().unwrap() += 1;
            self.changed.notify_one();
        }

        fn sleep(&self) {
            let mut count = self.count.lock().unwrap();
            while *count == 0 {
                count = self.changed.wait(count).unwrap();
            }
            *count = 0;
        }
    }

    /// If a wake-up were lost, the owner would sleep for ever, which loom reports as a deadlock.
    #[test]
    fn loom_no_message_is_left_to_an_owner_that_sleeps() {
        // Every run with up to three preemptions; without the bound the model takes minutes.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let inbox = Arc::new(Inbox::new());
            let signal = Arc::new(Signal::default());
            let senders: Vec<_> = (0..2)
                .map(|number| {
                    let (inbox, signal) = (Arc::clone(&inbox), Arc::clone(&signal));
                    thread::spawn(move || {
                        if inbox.send(number) == Ok(Sent::Wake) {
                            signal.wake();
                        }
                    })
                })
                .collect();
            let mut messages = Vec::new();
            while messages.len() < 2 {
                inbox.drain_into(&mut messages);
                if messages.len() < 2 && inbox.lie_down() {
                    signal.sleep();
                    inbox.get_up();
                }
            }
            messages.sort_unstable();
            assert_eq!(messages, [0, 1]);
            senders.into_iter().for_each(|sender| sender.join().unwrap());
        });
    }

    #[test]
    fn loom_a_message_is_delivered_or_refused_when_the_owner_leaves() {
        loom::model(|| {
            let inbox = Arc::new(Inbox::new());
            let sender = {
                let inbox = Arc::clone(&inbox);
                thread::spawn(move || inbox.send(7).is_ok())
            };
            let left = inbox.close();
            assert_eq!(sender.join().unwrap(), left == [7]);
        });
    }
}
