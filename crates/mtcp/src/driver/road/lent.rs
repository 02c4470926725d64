//! Operations that the kernel's driver carries out on a socket which has not connected yet.
//!
//! Once the socket has connected over the stack, the kernel's socket goes. A poll is then cancelled
//! there and begins again on the connection, as it would go on in the kernel; everything else ends.

use super::Road;
use crate::driver::entry::{Phase, Poll};
use crate::engine::Port;
use megapipe::road::{Object, Operation, Outcome};

/// Such an operation, until its last outcome.
pub(super) struct Lent {
    tag: u64,
    /// Whose it is; `None` once that has gone.
    number: Option<u32>,
    poll: Option<Poll>,
    /// It ends with the kernel's socket, and goes on with the connection.
    moves: bool,
}

impl<P: Port> Road<P> {
    /// Takes note of an operation that is handed to the kernel's driver.
    pub(super) fn lend(&mut self, number: u32, tag: u64, operation: &Operation) {
        let poll = match *operation {
            Operation::Poll { events, repeat } => Some(Poll { tag, events, repeat }),
            _ => None,
        };
        self.lent.push(Lent { tag, number: Some(number), poll, moves: false });
    }

    /// The kernel's socket of an endpoint that is about to leave it, if it may be busy there.
    pub(super) fn lent(&mut self, number: u32) -> Option<Object> {
        let is_lent = self.lent.iter().any(|lent| lent.number == Some(number));
        self.entries.get_mut(number)?.kernel.filter(|_| is_lent)
    }

    /// The connection stands: what the kernel's socket was busy with, to be cancelled there.
    pub(super) fn move_lent(&mut self, number: u32) -> Vec<u64> {
        let own = self.lent.iter_mut().filter(|lent| lent.number == Some(number));
        let tags = own.map(|lent| {
            lent.moves = lent.poll.is_some();
            lent.tag
        });
        tags.collect()
    }

    /// The channel has cancelled what `wanted` picks: that ends and moves nowhere.
    pub(super) fn keep_lent(&mut self, number: u32, wanted: impl Fn(u64) -> bool) {
        let own = self.lent.iter_mut().filter(|lent| lent.number == Some(number));
        own.filter(|lent| wanted(lent.tag)).for_each(|lent| lent.moves = false);
    }

    /// An endpoint goes; true if the kernel's driver is busy for it.
    pub(super) fn disown_lent(&mut self, number: u32) -> bool {
        let mut busy = false;
        for lent in self.lent.iter_mut().filter(|lent| lent.number == Some(number)) {
            (lent.number, lent.moves, busy) = (None, false, true);
        }
        busy
    }

    /// Looks at an outcome of the kernel's driver; true if it is the end of a poll that goes on
    /// with its connection.
    pub(super) fn settle_lent(&mut self, outcome: &Outcome) -> bool {
        if outcome.more {
            return false;
        }
        let Some(at) = self.lent.iter().position(|lent| lent.tag == outcome.tag) else {
            return false;
        };
        let lent = self.lent.swap_remove(at);
        let (Some(number), Some(poll)) = (lent.number, lent.poll) else { return false };
        if !lent.moves || outcome.result != -libc::ECANCELED {
            return false;
        }
        let Some(entry) = self.entries.get_mut(number) else { return false };
        let Phase::Connected(socket) = entry.phase else { return false };
        entry.poll = Some(poll);
        let readiness = self.port.readiness(socket);
        self.tell_poll(number, readiness);
        true
    }
}
