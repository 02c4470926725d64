//! Passes accept queues between the threads of channels: each channel has a mailbox, whose messages
//! say which queues it gained or lost.

use crate::source::Waker;
#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

/// An accept queue: a listening socket. O_NONBLOCK is set, except on the original, of which the
/// application chooses it.
///
/// Only the partition stops the socket. Until then it listens, even if other descriptors of it are
/// closed.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    /// The queue's number, unique in the process.
    pub(crate) id: u64,
    pub(crate) descriptor: Arc<OwnedFd>,
}

/// A change in the queues of a membership, see [`Membership::id`](super::Membership::id).
#[derive(Debug)]
pub(crate) enum QueueChange {
    /// Accept from this queue, too.
    Adopt { member: u64, queue: Queue },
    /// Stop accepting from the queue with this id; another member does. Connections already
    /// accepted are kept.
    Return { member: u64, queue: u64 },
}

impl QueueChange {
    /// Returns the member and the queue of the message.
    fn subject(&self) -> (u64, u64) {
        match self {
            QueueChange::Adopt { member, queue } => (*member, queue.id),
            QueueChange::Return { member, queue } => (*member, *queue),
        }
    }
}

/// Notifies a channel of its mailbox: a [`Waker`], except in loom tests.
pub(crate) trait Wake {
    /// Wakes the channel; the wake-up stays pending until the channel has seen it.
    fn wake(&self);
}

impl Wake for Waker {
    fn wake(&self) {
        Waker::wake(self);
    }
}

/// A channel's mailbox, for all its memberships, shared with the threads that write to it.
///
/// The partition has the authoritative state; messages only make a channel follow it. So a channel
/// that ends need not read its mailbox.
#[derive(Debug)]
pub(crate) struct Mailbox<W = Waker> {
    mail: Mutex<VecDeque<QueueChange>>,
    waker: W,
}

impl<W: Wake> Mailbox<W> {
    /// Creates an empty mailbox; the waker makes its channel [`drain`](Mailbox::drain) it.
    pub(crate) fn new(waker: W) -> Arc<Mailbox<W>> {
        Arc::new(Mailbox { mail: Mutex::default(), waker })
    }

    /// Takes all messages, oldest first.
    pub(crate) fn drain(&self) -> Vec<QueueChange> {
        self.lock().drain(..).collect()
    }

    /// Adds a message. If there is an unread message that it would undo, removes that message
    /// instead: messages about one queue alternate between adopting and returning.
    pub(super) fn post(&self, news: QueueChange) {
        let subject = news.subject();
        let mut mail = self.lock();
        if let Some(position) = mail.iter().position(|old| old.subject() == subject) {
            mail.remove(position);
            return;
        }
        mail.push_back(news);
        drop(mail);
        self.waker.wake();
    }

    /// Removes the unread messages of a member that left.
    pub(super) fn forget(&self, member: u64) {
        self.lock().retain(|mail| mail.subject().0 != member);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<QueueChange>> {
        // The mailbox is consistent after each step, even if the thread that held the lock
        // panicked.
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::thread;
    use std::collections::BTreeSet;

    /// A model of an eventfd: wake-ups add up until a read takes them all.
    struct Event(Arc<AtomicU64>);

    impl Wake for Event {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The channel's side, as in the engine: takes the wake-up first, then reads the mailbox.
    struct Owner {
        mailbox: Arc<Mailbox<Event>>,
        wakes: Arc<AtomicU64>,
        queues: BTreeSet<(u64, u64)>,
    }

    impl Owner {
        fn new() -> Owner {
            let wakes = Arc::new(AtomicU64::new(0));
            let mailbox = Mailbox::new(Event(Arc::clone(&wakes)));
            Owner { mailbox, wakes, queues: BTreeSet::new() }
        }

        /// Reads the mailbox if there is a wake-up; returns the number of messages.
        fn look(&mut self) -> usize {
            if self.wakes.swap(0, Ordering::AcqRel) == 0 {
                return 0;
            }
            let mail = self.mailbox.drain();
            for mail in &mail {
                let subject = mail.subject();
                match mail {
                    QueueChange::Adopt { .. } => {
                        assert!(self.queues.insert(subject), "{subject:?} twice")
                    }
                    QueueChange::Return { .. } => {
                        assert!(self.queues.remove(&subject), "{subject:?}")
                    }
                }
            }
            mail.len()
        }
    }

    fn queue(id: u64) -> Queue {
        let null = std::fs::File::open("/dev/null").unwrap();
        Queue { id, descriptor: Arc::new(null.into()) }
    }

    fn post(mailbox: &Arc<Mailbox<Event>>, mail: Vec<QueueChange>) -> thread::JoinHandle<()> {
        let mailbox = Arc::clone(mailbox);
        thread::spawn(move || mail.into_iter().for_each(|news| mailbox.post(news)))
    }

    #[test]
    fn loom_no_mail_stays_unread_without_a_wake_up() {
        let queues = [queue(10), queue(11), queue(12)];
        loom::model(move || {
            let [first, second, third] = queues.clone();
            let mut owner = Owner::new();
            let posters = [
                post(&owner.mailbox, vec![QueueChange::Adopt { member: 1, queue: first }]),
                post(
                    &owner.mailbox,
                    vec![
                        QueueChange::Adopt { member: 1, queue: second },
                        QueueChange::Adopt { member: 2, queue: third },
                    ],
                ),
            ];
            owner.look();
            owner.look();
            posters.into_iter().for_each(|poster| poster.join().unwrap());
            // Only a wake-up makes the channel look, so one must be pending if any mail is.
            owner.look();
            assert_eq!(owner.queues, BTreeSet::from([(1, 10), (1, 11), (2, 12)]));
        });
    }

    #[test]
    fn loom_undone_mail_disappears() {
        let queues = [queue(10), queue(11)];
        loom::model(move || {
            let [lent, kept] = queues.clone();
            let mut owner = Owner::new();
            let undone = vec![
                QueueChange::Adopt { member: 1, queue: lent },
                QueueChange::Return { member: 1, queue: 10 },
            ];
            let posters = [
                post(&owner.mailbox, undone),
                post(&owner.mailbox, vec![QueueChange::Adopt { member: 1, queue: kept }]),
            ];
            // Either both of a pair are read, each before the other is posted, or neither is.
            let early = owner.look();
            posters.into_iter().for_each(|poster| poster.join().unwrap());
            let read = early + owner.look();
            assert!(read == 1 || read == 3, "{read} of three read");
            assert_eq!(owner.queues, BTreeSet::from([(1, 11)]));
            assert!(owner.mailbox.drain().is_empty());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::wake_pair;

    #[test]
    fn unread_mail_that_is_undone_disappears() {
        let (waker, source) = wake_pair().unwrap();
        let mailbox = Mailbox::new(waker);
        let descriptor = Arc::new(OwnedFd::from(source));
        let adopt = |member, id| {
            let queue = Queue { id, descriptor: Arc::clone(&descriptor) };
            mailbox.post(QueueChange::Adopt { member, queue });
        };
        adopt(1, 10);
        adopt(2, 10);
        adopt(2, 11);
        mailbox.post(QueueChange::Return { member: 1, queue: 10 });
        mailbox.post(QueueChange::Return { member: 1, queue: 12 });
        let subjects =
            |mail: Vec<QueueChange>| mail.iter().map(QueueChange::subject).collect::<Vec<_>>();
        assert_eq!(subjects(mailbox.drain()), [(2, 10), (2, 11), (1, 12)]);
        assert!(mailbox.drain().is_empty());

        mailbox.post(QueueChange::Return { member: 2, queue: 10 });
        adopt(1, 13);
        mailbox.forget(2);
        assert_eq!(subjects(mailbox.drain()), [(1, 13)]);
    }
}
