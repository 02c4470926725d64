//! Mailbox of a flow: the agent leaves paths, failures and the peer's end in it for the flow's
//! thread.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::thread::futex;

use crate::error::Result;
use crate::event::{event_descriptor, ring, silence};
use crate::kind::Kind;
use crate::transport::Transport;

/// The most failures that are kept for an application that does not take them.
const FAILURES_MAX: usize = 32;

/// A message from the agent to a flow.
pub(crate) enum FlowMessage {
    /// The path of the next epoch.
    Path { epoch: u32, kind: Kind, reason: String, transport: Box<dyn Transport>, permit: Permit },
    /// A move failed.
    Failed { kind: Kind, reason: String },
    /// The control link has ended: the peer has closed or died.
    Gone,
    /// The peer's host no longer answers: data that have not arrived are lost.
    Silent,
    /// The peer broke the rules of the control link.
    Broken { what: String },
}

/// A queue from the agent to a flow's thread. A word, which is also a futex, and an eventfd show
/// that it is not empty.
pub(crate) struct Mailbox {
    /// Not zero if the queue has messages. Sleeping threads wait on it as a private futex.
    attention: AtomicU32,
    queue: Mutex<VecDeque<FlowMessage>>,
    /// An eventfd that is readable while the queue has messages.
    bell: OwnedFd,
    /// The number of this flow's paths: being opened, queued, or in use.
    paths: AtomicU32,
}

impl Mailbox {
    /// Creates an empty mailbox.
    pub(crate) fn new() -> Result<Mailbox> {
        Ok(Mailbox {
            attention: AtomicU32::new(0),
            queue: Mutex::new(VecDeque::new()),
            bell: event_descriptor()?,
            paths: AtomicU32::new(0),
        })
    }

    /// Returns the word that is not zero while there are messages.
    pub(crate) fn attention(&self) -> &AtomicU32 {
        &self.attention
    }

    /// Returns whether there are messages.
    #[inline]
    pub(crate) fn wants_attention(&self) -> bool {
        self.attention.load(Ordering::Relaxed) != 0
    }

    /// Returns the eventfd that is readable while there are messages.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Appends a message and wakes the flow's thread.
    pub(crate) fn put(&self, mail: FlowMessage) {
        {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let is_failure = |mail: &FlowMessage| matches!(mail, FlowMessage::Failed { .. });
            if is_failure(&mail) && queue.iter().filter(|m| is_failure(m)).count() >= FAILURES_MAX {
                return;
            }
            queue.push_back(mail);
            // Under the lock: otherwise `take` could clear the word for a later message, or the
            // eventfd could stay readable for an empty queue, and its waiters would not sleep.
            self.attention.store(1, Ordering::Release);
            ring(&self.bell);
        }
        let _ = futex::wake(&self.attention, futex::Flags::PRIVATE, i32::MAX as u32);
    }

    /// Takes all messages.
    pub(crate) fn take(&self) -> VecDeque<FlowMessage> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.attention.store(0, Ordering::Relaxed);
        silence(&self.bell);
        std::mem::take(&mut queue)
    }

    /// Returns the number of paths that exist.
    pub(crate) fn paths(&self) -> u32 {
        self.paths.load(Ordering::Relaxed)
    }
}

/// Counts a path of the flow while it exists.
pub(crate) struct Permit(Arc<Mailbox>);

impl Permit {
    /// Counts one more path.
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> Permit {
        mailbox.paths.fetch_add(1, Ordering::Relaxed);
        Permit(mailbox)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.paths.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::thread;

    fn is_ringing(mailbox: &Mailbox) -> bool {
        let (fd, now) = (mailbox.bell().as_raw_fd(), std::time::Instant::now());
        crate::poll::wait_for(fd, libc::POLLIN, Some(now)).expect("a poll")
    }

    /// A thread that waits for the eventfd must be able to sleep.
    #[test]
    fn the_bell_is_silent_when_all_mail_is_taken() {
        for round in 0..400 {
            let mailbox = Arc::new(Mailbox::new().unwrap());
            let other = Arc::clone(&mailbox);
            let sender = thread::spawn(move || other.put(FlowMessage::Gone));
            while !mailbox.wants_attention() {
                std::hint::spin_loop();
            }
            assert_eq!(mailbox.take().len(), 1);
            sender.join().unwrap();
            assert!(!is_ringing(&mailbox), "round {round}");
        }
    }
}
