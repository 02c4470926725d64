//! Sends of datagrams and packets, which the driver repeats itself.
//!
//! io_uring repeats a send that would block once there is room. For messages that is wrong: a UNIX
//! socket copies a message before it looks at the queue of the receiver, and a large datagram of
//! UDP is copied fragment by fragment. After such an attempt the kernel takes the bytes as sent,
//! and the repeated send is empty or lacks its beginning (seen on Linux 6.18). Streams are not
//! affected, because they look for room first.
//!
//! So these sends do not wait (`MSG_DONTWAIT`). After `EAGAIN` the driver polls the socket for room
//! and submits the whole message again. A socket that is not connected reports room although the
//! queue of the receiver is full: if the repeated send is refused, too, the driver pauses for 1 ms,
//! 2 ms, … 32 ms, as the epoll driver does.

use super::UringDriver;
use crate::driver::{INSTALLED_TAG, Object, Operation};
use crate::slab::Key;
use std::time::{Duration, Instant};

/// First pause; pauses double up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const PAUSE_DOUBLINGS: u32 = 5;

/// The sends of messages in flight.
#[derive(Debug, Default)]
pub(super) struct MessageSends {
    /// By the index in their tags.
    sends: Vec<Option<Send>>,
    /// Those that are not in the kernel.
    paused: Vec<Paused>,
}

/// A send for which something is to be submitted.
#[derive(Clone, Copy, Debug)]
struct Paused {
    due: Instant,
    tag: u64,
    /// Whether the socket is polled for room; otherwise the send is repeated.
    polls: bool,
}

#[derive(Debug)]
struct Send {
    object: Object,
    operation: Operation,
    /// How often the socket had no room.
    refusals: u32,
    /// Whether the kernel polls for room; otherwise it has the send.
    polls: bool,
    cancelled: bool,
}

/// Returns whether the driver repeats this operation on a socket of messages.
pub(super) fn is_send(tag: u64, operation: &Operation) -> bool {
    let sends = matches!(operation, Operation::Write { .. } | Operation::SendTo { .. });
    sends && tag < INSTALLED_TAG
}

impl UringDriver {
    /// Submits the sends that are due, and the polls that come before them.
    pub(super) fn submit_due_messages(&mut self) {
        while let Some((tag, object, operation)) = self.messages.next_due() {
            let entry = self.entry(object, operation).user_data(tag);
            // SAFETY: the send has not had its outcome, so its memory is valid.
            if unsafe { self.push(&entry) }.is_err() {
                self.messages.return_due(tag);
                break;
            }
        }
    }
}

impl MessageSends {
    /// Records a send that is in the submission queue.
    pub(super) fn record(&mut self, tag: u64, object: Object, operation: Operation) {
        let index = Key::index_in(tag);
        if index >= self.sends.len() {
            self.sends.resize_with(index + 1, || None);
        }
        let send = Send { object, operation, refusals: 0, polls: false, cancelled: false };
        self.sends[index] = Some(send);
    }

    fn get(&mut self, tag: u64) -> Option<&mut Option<Send>> {
        self.sends.get_mut(Key::index_in(tag))
    }

    /// Takes a completion of a send. Returns its result if it is the last one; otherwise the send
    /// goes on.
    pub(super) fn complete(&mut self, tag: u64, result: i32) -> Option<i32> {
        let Some(slot) = self.get(tag) else { return Some(result) };
        let Some(send) = slot else { return Some(result) };
        let refused = !send.polls && result == -libc::EAGAIN;
        let ends = (!send.polls && !refused) || send.cancelled || result == -libc::ECANCELED;
        if ends {
            let interrupted = send.polls || refused;
            *slot = None;
            return Some(if interrupted { -libc::ECANCELED } else { result });
        }
        let mut paused = Paused { due: Instant::now(), tag, polls: false };
        if refused {
            send.refusals += 1;
            match send.refusals.checked_sub(2) {
                None => paused.polls = true,
                Some(pauses) => paused.due += FIRST_PAUSE * (1 << pauses.min(PAUSE_DOUBLINGS)),
            }
        }
        self.paused.push(paused);
        None
    }

    /// Returns the tag and object of the next send that is due, with the operation to submit: the
    /// send, or the poll before it.
    fn next_due(&mut self) -> Option<(u64, Object, Operation)> {
        if self.paused.is_empty() {
            return None;
        }
        let now = Instant::now();
        let at = self.paused.iter().position(|paused| paused.due <= now)?;
        let Paused { tag, polls, .. } = self.paused.swap_remove(at);
        let send = self.get(tag)?.as_mut()?;
        send.polls = polls;
        let poll = Operation::Poll { events: libc::POLLOUT as u32, repeat: false };
        Some((tag, send.object, if polls { poll } else { send.operation }))
    }

    /// Returns a send to those that are due, because the submission queue was full.
    fn return_due(&mut self, tag: u64) {
        if let Some(Some(send)) = self.get(tag) {
            let polls = send.polls;
            self.paused.push(Paused { due: Instant::now(), tag, polls });
        }
    }

    /// Returns when the next send is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.paused.iter().map(|paused| paused.due).min()
    }

    /// Makes a send end with its next completion. Returns true if there is none to come: the send
    /// has ended then, and the caller reports it.
    pub(super) fn cancel(&mut self, tag: u64) -> bool {
        let Some(slot @ Some(_)) = self.get(tag) else { return false };
        if let Some(send) = slot {
            send.cancelled = true;
        }
        let Some(at) = self.paused.iter().position(|paused| paused.tag == tag) else {
            return false;
        };
        self.paused.swap_remove(at);
        if let Some(slot) = self.get(tag) {
            *slot = None;
        }
        true
    }

    /// Makes all sends end with their next completion; returns the number of those that have none
    /// to come and have ended.
    pub(super) fn cancel_all(&mut self) -> u64 {
        self.sends.iter_mut().flatten().for_each(|send| send.cancelled = true);
        self.paused.drain(..).count() as u64
    }
}
