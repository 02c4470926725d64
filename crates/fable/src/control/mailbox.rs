//! From the agent to the thread that uses a flow.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Result;
use crate::event::{event_descriptor, ring, silence};
use crate::kind::Kind;
use crate::transport::Transport;

/// The most mail of one kind that waits for an application that does not look at it.
const FAILURES_MAX: usize = 32;

/// What the agent tells a flow.
pub(crate) enum Mail {
    /// The path of the next epoch.
    Path { epoch: u32, kind: Kind, reason: String, transport: Box<dyn Transport>, permit: Permit },
    /// A move did not come about.
    Failed { kind: Kind, reason: String },
    /// The control link has ended: the peer is gone.
    Gone,
    /// The peer's host does not answer any more: what has not arrived will not.
    Silent,
    /// The peer broke the rules of the control link.
    Broken { what: String },
}

/// A queue with three ways of noticing that something is in it.
pub(crate) struct Mailbox {
    /// Not zero: look into the queue. A private futex for those who sleep.
    attention: AtomicU32,
    queue: Mutex<VecDeque<Mail>>,
    /// Readable while attention is wanted.
    bell: OwnedFd,
    /// Paths of this flow that exist: under way, in the queue, or in use.
    paths: AtomicU32,
}

impl Mailbox {
    pub(crate) fn new() -> Result<Mailbox> {
        Ok(Mailbox {
            attention: AtomicU32::new(0),
            queue: Mutex::new(VecDeque::new()),
            bell: event_descriptor()?,
            paths: AtomicU32::new(0),
        })
    }

    pub(crate) fn attention(&self) -> &AtomicU32 {
        &self.attention
    }

    #[inline]
    pub(crate) fn wants_attention(&self) -> bool {
        self.attention.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub(crate) fn put(&self, mail: Mail) {
        {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let is_failure = |mail: &Mail| matches!(mail, Mail::Failed { .. });
            if is_failure(&mail) && queue.iter().filter(|m| is_failure(m)).count() >= FAILURES_MAX {
                return;
            }
            queue.push_back(mail);
            // Under the lock: `take` must not forget what comes behind what it takes, and the bell
            // not ring behind it, which would keep who waits for it from sleeping.
            self.attention.store(1, Ordering::Release);
            ring(&self.bell);
        }
        // SAFETY: waking touches no memory of ours.
        unsafe {
            let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            libc::syscall(libc::SYS_futex, self.attention.as_ptr(), operation, i32::MAX);
        }
    }

    pub(crate) fn take(&self) -> VecDeque<Mail> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.attention.store(0, Ordering::Relaxed);
        silence(&self.bell);
        std::mem::take(&mut queue)
    }

    pub(crate) fn paths(&self) -> u32 {
        self.paths.load(Ordering::Relaxed)
    }
}

/// Counts a path for as long as it exists.
pub(crate) struct Permit(Arc<Mailbox>);

impl Permit {
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

    /// Who sleeps by the bell would not sleep.
    #[test]
    fn the_bell_is_silent_when_all_mail_is_taken() {
        for round in 0..400 {
            let mailbox = Arc::new(Mailbox::new().unwrap());
            let other = Arc::clone(&mailbox);
            let sender = thread::spawn(move || other.put(Mail::Gone));
            while !mailbox.wants_attention() {
                std::hint::spin_loop();
            }
            assert_eq!(mailbox.take().len(), 1);
            sender.join().unwrap();
            assert!(!is_ringing(&mailbox), "round {round}");
        }
    }
}
