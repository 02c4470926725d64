//! Implements poll operations, whose outcome is the readiness of an endpoint.

use super::EpollDriver;
use super::objects::Poll;
use crate::driver::{Object, Outcome};

/// Events that poll(2) reports even if they were not requested.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

impl EpollDriver {
    /// Starts a poll: reports the pending events; edges report later ones. An endpoint has one poll
    /// at a time; another one fails with `EBUSY`.
    pub(super) fn poll(&mut self, object: Object, poll: Poll) {
        let Some(entry) = self.objects.get_mut(object) else { return };
        if entry.poll.is_some() {
            return self.outcomes.push_back(Outcome::plain(poll.tag, -libc::EBUSY));
        }
        entry.poll = Some(poll);
        if entry.registered {
            let fd = entry.fd();
            let events = self.calls.poll(fd, (poll.events & !ALWAYS) as i16);
            return self.report_poll(object, events);
        }
        // Epoll reports the state at the registration as a first edge.
        match self.poller.add(&self.calls, entry.fd(), u64::from(object.0)) {
            Ok(()) => entry.registered = true,
            Err(errno) => {
                entry.poll = None;
                self.outcomes.push_back(Outcome::plain(poll.tag, -errno));
            }
        }
    }

    /// Reports events to the poll of an endpoint, if there is one that requested them.
    pub(super) fn report_poll(&mut self, object: Object, events: u32) {
        let Some(entry) = self.objects.get_mut(object) else { return };
        let Some(poll) = entry.poll else { return };
        let events = events & (poll.events | ALWAYS);
        if events == 0 {
            return;
        }
        if !poll.repeat {
            entry.poll = None;
        }
        let outcome = Outcome::plain(poll.tag, events as i32);
        self.outcomes.push_back(Outcome { more: poll.repeat, ..outcome });
    }
}
