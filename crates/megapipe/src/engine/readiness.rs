//! Going on with operations that could not be carried out now.

use super::{Engine, Lane};
use crate::completion::Completion;
use crate::driver::{Operation, Outcome};
use crate::slab::Key;
use crate::source::Kind;

impl Engine {
    /// Begins a request again that a driver has ended before it was done: after a part was written,
    /// after a signal (`EINTR`), or, once the endpoint is ready, after `EAGAIN`.
    pub(super) fn go_on(&mut self, id: Key, result: i32) {
        self.land(id);
        if result != -libc::EAGAIN || !self.poll_first(id) {
            self.start_or_stall(id);
        }
    }

    /// Waits with the tag of the request until the endpoint is ready; false if that cannot be.
    fn poll_first(&mut self, id: Key) -> bool {
        let Some(request) = self.requests.get_mut(id) else { return true };
        let Some(member) = self.members.get_mut(request.handle) else { return true };
        let events = match request.lane {
            Lane::Outbound => libc::POLLOUT,
            _ => libc::POLLIN,
        };
        // A disk file is always ready.
        if member.kind == Kind::File {
            return false;
        }
        let operation = Operation::Poll { events: events as u32, repeat: false };
        if self.driver.submit(id.tag(), member.object, operation).is_err() {
            return false;
        }
        request.polling = true;
        request.in_flight = true;
        member.in_flight += 1;
        member.loose += u32::from(request.lane == Lane::None);
        true
    }

    /// Tries a request again whose endpoint has become ready; ends it if it has been cancelled.
    pub(super) fn settle_polling(&mut self, id: Key, outcome: Outcome) -> Option<Completion> {
        let request = self.requests.get_mut(id)?;
        request.polling = false;
        let ends = request.cancelled || outcome.result == -libc::ECANCELED;
        let recalled = std::mem::take(&mut request.recalled);
        if ends && !recalled {
            return self.settle(Outcome::plain(outcome.tag, -libc::ECANCELED));
        }
        self.go_on(id, 0);
        None
    }
}
