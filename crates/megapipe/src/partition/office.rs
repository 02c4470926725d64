//! How one channel's thread tells another which accept queues are its now.

use crate::source::Waker;
#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

/// An accept queue: a listening socket, with O_NONBLOCK set, to accept from.
///
/// Only the partition stops the socket. Until then it listens, whatever else holds a descriptor.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    /// Unique in the process.
    pub(crate) id: u64,
    pub(crate) descriptor: Arc<OwnedFd>,
}

/// What changed about the queues of a membership, see [`Membership::id`](super::Membership::id).
#[derive(Debug)]
pub(crate) enum Mail {
    /// Accept from this queue, too.
    Adopt { member: u64, queue: Queue },
    /// Accept no more from the queue with this id; others do. What was accepted is kept.
    Return { member: u64, queue: u64 },
}

impl Mail {
    /// The member that it is for and the queue that it is about.
    fn subject(&self) -> (u64, u64) {
        match self {
            Mail::Adopt { member, queue } => (*member, queue.id),
            Mail::Return { member, queue } => (*member, *queue),
        }
    }
}

/// What tells a channel that it has mail: a [`Waker`], but for the model that loom checks.
pub(crate) trait Wake {
    /// Leaves a wake-up behind that stays until the channel has seen it.
    fn wake(&self);
}

impl Wake for Waker {
    fn wake(&self) {
        Waker::wake(self);
    }
}

/// A channel's mailbox, for all its memberships, shared with those who write to it.
///
/// The state of record is the partition's; mail only makes a channel follow it. So a channel that
/// ends need not read its mail.
#[derive(Debug)]
pub(crate) struct Office<W = Waker> {
    mail: Mutex<VecDeque<Mail>>,
    waker: W,
}

impl<W: Wake> Office<W> {
    /// An empty mailbox; the waker tells its channel to [`drain`](Office::drain) it.
    pub(crate) fn new(waker: W) -> Arc<Office<W>> {
        Arc::new(Office { mail: Mutex::default(), waker })
    }

    /// Takes all mail, oldest first.
    pub(crate) fn drain(&self) -> Vec<Mail> {
        self.lock().drain(..).collect()
    }

    /// Posts mail, or, as mail about one queue says the one and the other in turn, takes back the
    /// unread one that it would undo.
    pub(super) fn post(&self, news: Mail) {
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

    /// Drops what a member that left has not read.
    pub(super) fn forget(&self, member: u64) {
        self.lock().retain(|mail| mail.subject().0 != member);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Mail>> {
        // The mail is whole after each step, whatever happened to the thread that held the lock.
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::thread;
    use std::collections::BTreeSet;

    /// An eventfd: wakes add up until the owner's read takes them all.
    struct Event(Arc<AtomicU64>);

    impl Wake for Event {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The channel's side, as the engine does it: first the wake-up goes, then the mail is read.
    struct Owner {
        office: Arc<Office<Event>>,
        wakes: Arc<AtomicU64>,
        queues: BTreeSet<(u64, u64)>,
    }

    impl Owner {
        fn new() -> Owner {
            let wakes = Arc::new(AtomicU64::new(0));
            let office = Office::new(Event(Arc::clone(&wakes)));
            Owner { office, wakes, queues: BTreeSet::new() }
        }

        /// Follows the mail if there is a wake-up; gives what it read.
        fn look(&mut self) -> usize {
            if self.wakes.swap(0, Ordering::AcqRel) == 0 {
                return 0;
            }
            let mail = self.office.drain();
            for mail in &mail {
                let subject = mail.subject();
                match mail {
                    Mail::Adopt { .. } => assert!(self.queues.insert(subject), "{subject:?} twice"),
                    Mail::Return { .. } => assert!(self.queues.remove(&subject), "{subject:?}"),
                }
            }
            mail.len()
        }
    }

    fn queue(id: u64) -> Queue {
        let null = std::fs::File::open("/dev/null").unwrap();
        Queue { id, descriptor: Arc::new(null.into()) }
    }

    fn post(office: &Arc<Office<Event>>, mail: Vec<Mail>) -> thread::JoinHandle<()> {
        let office = Arc::clone(office);
        thread::spawn(move || mail.into_iter().for_each(|news| office.post(news)))
    }

    #[test]
    fn loom_no_mail_stays_unread_without_a_wake_up() {
        let queues = [queue(10), queue(11), queue(12)];
        loom::model(move || {
            let [first, second, third] = queues.clone();
            let mut owner = Owner::new();
            let posters = [
                post(&owner.office, vec![Mail::Adopt { member: 1, queue: first }]),
                post(
                    &owner.office,
                    vec![
                        Mail::Adopt { member: 1, queue: second },
                        Mail::Adopt { member: 2, queue: third },
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
            let undone =
                vec![Mail::Adopt { member: 1, queue: lent }, Mail::Return { member: 1, queue: 10 }];
            let posters = [
                post(&owner.office, undone),
                post(&owner.office, vec![Mail::Adopt { member: 1, queue: kept }]),
            ];
            // Either both of a pair are read, each before the other is posted, or neither is.
            let early = owner.look();
            posters.into_iter().for_each(|poster| poster.join().unwrap());
            let read = early + owner.look();
            assert!(read == 1 || read == 3, "{read} of three read");
            assert_eq!(owner.queues, BTreeSet::from([(1, 11)]));
            assert!(owner.office.drain().is_empty());
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
        let office = Office::new(waker);
        let descriptor = Arc::new(OwnedFd::from(source));
        let adopt = |member, id| {
            let queue = Queue { id, descriptor: Arc::clone(&descriptor) };
            office.post(Mail::Adopt { member, queue });
        };
        adopt(1, 10);
        adopt(2, 10);
        adopt(2, 11);
        office.post(Mail::Return { member: 1, queue: 10 });
        office.post(Mail::Return { member: 1, queue: 12 });
        let subjects = |mail: Vec<Mail>| mail.iter().map(Mail::subject).collect::<Vec<_>>();
        assert_eq!(subjects(office.drain()), [(2, 10), (2, 11), (1, 12)]);
        assert!(office.drain().is_empty());

        office.post(Mail::Return { member: 2, queue: 10 });
        adopt(1, 13);
        office.forget(2);
        assert_eq!(subjects(office.drain()), [(1, 13)]);
    }
}
