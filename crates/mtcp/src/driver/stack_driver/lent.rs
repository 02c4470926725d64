//! Tracks operations that the kernel driver executes on a socket which has not connected yet.
//!
//! Once the socket has connected over the stack, the kernel's socket is closed. A poll is then
//! cancelled there and begins again on the connection, as it would continue in the kernel; all
//! other operations end.

use super::MtcpDriver;
use crate::driver::entry::{Phase, Poll};
use crate::engine::Port;
use megapipe::driver_api::{Object, Operation, Outcome};

/// An operation of the kernel driver, until its last outcome.
pub(super) struct Lent {
    tag: u64,
    /// The number of its endpoint; `None` once that was released.
    number: Option<u32>,
    poll: Option<Poll>,
    /// Whether it ends in the kernel driver and continues on the connection.
    moves: bool,
}

impl<P: Port> MtcpDriver<P> {
    /// Records an operation that is submitted to the kernel driver.
    pub(super) fn lend(&mut self, number: u32, tag: u64, operation: &Operation) {
        let poll = match *operation {
            Operation::Poll { events, repeat } => Some(Poll { tag, events, repeat }),
            _ => None,
        };
        self.lent.push(Lent { tag, number: Some(number), poll, moves: false });
    }

    /// The kernel's socket of an endpoint that is about to leave the kernel, if it may have
    /// operations.
    pub(super) fn lent(&mut self, number: u32) -> Option<Object> {
        let is_lent = self.lent.iter().any(|lent| lent.number == Some(number));
        self.entries.get_mut(number)?.kernel.filter(|_| is_lent)
    }

    /// Marks the operations of the kernel's socket to continue on the established connection;
    /// returns their tags, to be cancelled.
    pub(super) fn move_lent(&mut self, number: u32) -> Vec<u64> {
        let own = self.lent.iter_mut().filter(|lent| lent.number == Some(number));
        let tags = own.map(|lent| {
            lent.moves = lent.poll.is_some();
            lent.tag
        });
        tags.collect()
    }

    /// Marks the operations that the channel has cancelled and `wanted` selects: they end and do
    /// not continue on the connection.
    pub(super) fn keep_lent(&mut self, number: u32, wanted: impl Fn(u64) -> bool) {
        let own = self.lent.iter_mut().filter(|lent| lent.number == Some(number));
        own.filter(|lent| wanted(lent.tag)).for_each(|lent| lent.moves = false);
    }

    /// Removes the endpoint from its operations; true if the kernel driver has any.
    pub(super) fn disown_lent(&mut self, number: u32) -> bool {
        let mut busy = false;
        for lent in self.lent.iter_mut().filter(|lent| lent.number == Some(number)) {
            (lent.number, lent.moves, busy) = (None, false, true);
        }
        busy
    }

    /// Processes an outcome of the kernel driver; true if it is the end of a poll that continues on
    /// its connection.
    pub(super) fn complete_lent(&mut self, outcome: &Outcome) -> bool {
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
        self.report_poll(number, readiness);
        true
    }
}
