//! How one channel's thread tells another which accept queues are its now.

use crate::source::Waker;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An accept queue: a listening socket, with O_NONBLOCK set, to accept from.
///
/// Only the partition stops the socket. Until then it listens, whoever else holds a descriptor.
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
    /// Whom it is for and which queue it is about.
    fn subject(&self) -> (u64, u64) {
        match self {
            Mail::Adopt { member, queue } => (*member, queue.id),
            Mail::Return { member, queue } => (*member, *queue),
        }
    }
}

/// A channel's mailbox, for all its memberships, shared with those who write to it.
///
/// The state of record is the partition's; mail only makes a channel follow it. So a channel that
/// ends need not read its mail.
#[derive(Debug)]
pub(crate) struct Office {
    mail: Mutex<VecDeque<Mail>>,
    waker: Waker,
}

impl Office {
    /// An empty mailbox; the waker tells its channel to [`drain`](Office::drain) it.
    pub(crate) fn new(waker: Waker) -> Arc<Office> {
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
