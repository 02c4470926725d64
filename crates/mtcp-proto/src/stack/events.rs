//! Queues readiness events for applications: each increase of a socket's readiness once.

use super::lists::{Links, List};
use crate::socket::Readiness;

/// The readiness that an application was notified of, and the changes that it has not been notified
/// of.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Notice {
    known: Readiness,
    pending: Readiness,
    arrivals: u16,
}

impl Notice {
    /// Compares the present readiness with the notified one; true if there is a change to report.
    /// Further arrivals count only if the socket is readable.
    pub(super) fn update(&mut self, readiness: Readiness, arrivals: u16) -> bool {
        let mut grown = readiness.without(self.known);
        if arrivals != self.arrivals {
            self.arrivals = arrivals;
            grown = grown.with(Readiness(readiness.0 & Readiness::READABLE.0));
        }
        self.known = readiness;
        // A bit that was set and cleared again before its event was taken is not reported.
        self.pending = Readiness(self.pending.with(grown).0 & readiness.0);
        self.pending.0 != 0
    }

    /// The event to report, if it still applies: the present readiness, and the new bits.
    fn take(&mut self) -> Option<(Readiness, Readiness)> {
        let news = std::mem::take(&mut self.pending);
        (news.0 != 0).then_some((self.known, news))
    }
}

/// Stores the notices of sockets.
pub(super) trait Notices {
    /// The notice of the socket at this index.
    fn notice_mut(&mut self, index: u32) -> Option<&mut Notice>;
}

/// The sockets with events to report, each once, the oldest event first.
#[derive(Debug, Default)]
pub(super) struct Events {
    links: Links,
    queue: List,
}

impl Events {
    /// Queues a socket, unless it is queued already.
    pub(super) fn queue(&mut self, index: u32) {
        if !self.links.contains(index) {
            self.links.push_back(&mut self.queue, index);
        }
    }

    /// Removes a socket from the queue.
    pub(super) fn forget(&mut self, index: u32) {
        if self.links.contains(index) {
            self.links.remove(&mut self.queue, index);
        }
    }

    /// The next socket with an event: its readiness, and the new bits.
    pub(super) fn next(
        &mut self,
        notices: &mut impl Notices,
    ) -> Option<(u32, Readiness, Readiness)> {
        while let Some(index) = self.links.pop_front(&mut self.queue) {
            if let Some((readiness, news)) = notices.notice_mut(index).and_then(Notice::take) {
                return Some((index, readiness, news));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READABLE: Readiness = Readiness::READABLE;
    const WRITABLE: Readiness = Readiness::WRITABLE;

    #[test]
    fn growth_is_told_once_with_all_bits() {
        let mut notice = Notice::default();
        assert!(!notice.update(Readiness::default(), 0));
        assert!(notice.update(WRITABLE, 0));
        assert_eq!(notice.take(), Some((WRITABLE, WRITABLE)));
        assert!(!notice.update(WRITABLE, 0));
        assert!(notice.update(WRITABLE.with(READABLE), 1));
        assert_eq!(notice.take(), Some((WRITABLE.with(READABLE), READABLE)));
        assert_eq!(notice.take(), None);
        assert!(notice.update(WRITABLE.with(READABLE), 2), "further data is news");
        assert_eq!(notice.take(), Some((WRITABLE.with(READABLE), READABLE)));
        assert!(!notice.update(WRITABLE, 2), "less is no news");
        assert!(notice.update(WRITABLE.with(READABLE), 3), "a bit that comes back is");
    }

    #[test]
    fn what_is_gone_before_it_is_told_is_not_told() {
        let mut notice = Notice::default();
        assert!(notice.update(WRITABLE, 0));
        notice.take();
        assert!(notice.update(WRITABLE.with(READABLE), 1));
        assert!(!notice.update(WRITABLE, 1));
        assert_eq!(notice.take(), None);
        assert!(!notice.update(WRITABLE, 2), "data below the mark is no news");
    }

    #[test]
    fn sockets_are_told_in_order_and_once() {
        struct Three([Notice; 3]);
        impl Notices for Three {
            fn notice_mut(&mut self, index: u32) -> Option<&mut Notice> {
                self.0.get_mut(index as usize)
            }
        }
        let (mut events, mut notices) = (Events::default(), Three([Notice::default(); 3]));
        for index in [2, 0, 2, 1] {
            notices.0[index as usize].update(READABLE, 1);
            events.queue(index);
        }
        events.forget(0);
        events.forget(0);
        assert_eq!(events.next(&mut notices), Some((2, READABLE, READABLE)));
        assert_eq!(events.next(&mut notices), Some((1, READABLE, READABLE)));
        assert_eq!(events.next(&mut notices), None);
    }
}
