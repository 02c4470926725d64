//! The words of the shared page, and the checks of what they say.
//!
//! Each end can write every word at any time, those of its peer too. So an access reads a word
//! once and returns what was checked: a value within bounds that the reader knows by itself, or
//! one of a few cases. No method returns a word as it is. A caller that needs a value twice keeps
//! it: a second read may give another one, though also a checked one.

#[cfg(not(all(test, loom)))]
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(all(test, loom))]
use super::model::{AtomicU32, AtomicU64, Ordering, fence};

/// An exchange that fails shows what the peer did before its own: where its ring begins, for
/// example.
const EXCHANGE: (Ordering, Ordering) = (Ordering::AcqRel, Ordering::Acquire);

/// The most doorbells that may be on their way.
const DOORBELLS_MAX: u64 = 1 << 32;

/// Whether the page is used.
#[cfg_attr(all(test, loom), derive(Default))]
#[repr(transparent)]
pub(crate) struct Standing(AtomicU32);

impl Standing {
    /// The client has offered the page.
    const OFFERED: u32 = 0;
    /// The server that accepted the connection uses it.
    const ACCEPTED: u32 = 1;
    /// The client has given it up before anybody used it.
    const REVOKED: u32 = 2;

    /// Returns whether a word of a page that is not mapped is that of an offer that stands.
    pub(crate) fn is_offer(word: u32) -> bool {
        word == Self::OFFERED
    }

    pub(crate) fn is_accepted(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::ACCEPTED
    }

    /// Accepts an offer. Returns whether it stood.
    pub(crate) fn accept(&self) -> bool {
        exchange(&self.0, Self::OFFERED, Self::ACCEPTED)
    }

    /// Revokes an offer. Returns false if a server had accepted it.
    pub(crate) fn revoke(&self) -> bool {
        exchange(&self.0, Self::OFFERED, Self::REVOKED)
    }
}

/// How many listening sockets the client has sent the memory file to.
#[cfg_attr(all(test, loom), derive(Default))]
#[repr(transparent)]
pub(crate) struct Copies(AtomicU32);

impl Copies {
    /// Records their number, before the client connects.
    pub(crate) fn set(&self, count: usize) {
        self.0.store(count as u32, Ordering::Release);
    }

    /// Returns whether sockets that do not get the connection may keep the file.
    pub(crate) fn are_several(&self) -> bool {
        self.0.load(Ordering::Acquire) > 1
    }
}

/// Where the bytes of a direction go.
#[cfg_attr(all(test, loom), derive(Default))]
#[repr(transparent)]
struct Mode(AtomicU32);

impl Mode {
    /// Through the TCP stream, still.
    const STREAM: u32 = 0;
    /// Its sender has switched to the ring.
    const RING: u32 = 1;
    /// Its receiver has seen to it that the sender will not.
    const FORBIDDEN: u32 = 2;
}

/// A request for a doorbell, which is answered once.
#[cfg_attr(all(test, loom), derive(Default))]
#[repr(transparent)]
pub(crate) struct Request(AtomicU32);

impl Request {
    fn is_made(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Makes the request, before this end checks the memory again. Returns whether it is new.
    ///
    /// Either this end then sees what the peer has published, or the peer sees the request
    /// ([`Request::check`]): each writes first and reads after a fence.
    pub(crate) fn make(&self) -> bool {
        let is_new = !self.is_made() && self.0.swap(1, Ordering::AcqRel) == 0;
        fence(Ordering::SeqCst);
        is_new
    }

    /// Returns whether the peer has made the request, after this end has published something.
    pub(crate) fn check(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is_made()
    }

    /// Takes the request, to answer or withdraw it. Returns whether there was one.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(0, Ordering::SeqCst) != 0
    }
}

/// How a receiver goes back to TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Leaving {
    /// Not at all: it takes from its ring.
    Stays = 0,
    /// It takes nothing more; what it has not taken is to be sent again through TCP.
    Leaves = 1,
    /// It takes all that was written, but nothing more is to be written, and nothing is to come
    /// through TCP, which resets a connection that was shut in both directions.
    Drains = 2,
    /// It has closed the connection, and takes nothing more.
    Closed = 3,
    /// Nothing more is to be written, and what it has not taken comes through TCP if the socket has
    /// room for it.
    Returns = 4,
}

impl Leaving {
    fn from_word(word: u32) -> Leaving {
        match word {
            0 => Leaving::Stays,
            1 => Leaving::Leaves,
            2 => Leaving::Drains,
            4 => Leaving::Returns,
            // With an unknown number the peer has left, and nothing is owed to it.
            _ => Leaving::Closed,
        }
    }
}

/// A position plus one; 0 is none.
#[cfg_attr(all(test, loom), derive(Default))]
#[repr(transparent)]
struct Milestone(AtomicU64);

impl Milestone {
    fn set(&self, position: u64) {
        self.0.store(position.wrapping_add(1).max(1), Ordering::Release);
    }

    fn get(&self) -> Option<u64> {
        self.0.load(Ordering::Acquire).checked_sub(1)
    }
}

/// How far the peer had written, to be compared with a later mark.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mark(u64);

/// The bytes that a ring holds for its reader, as its writer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// So many bytes, as many as the ring has at most.
    Bytes(u64),
    /// No honest peer says this.
    Impossible,
}

/// What one side publishes about its outgoing direction.
#[cfg_attr(all(test, loom), derive(Default))]
#[repr(C, align(128))]
struct Outgoing {
    /// The receiver may change it from [`Mode::STREAM`] to [`Mode::FORBIDDEN`].
    mode: Mode,
    /// Bytes that wait to be sent found no room: ring the doorbell when there is some.
    starved: Request,
    /// How many bytes went through TCP before the ring.
    switch_at: Milestone,
    /// Bytes ever put into the ring.
    written: AtomicU64,
    /// Where in the ring the direction goes back to TCP.
    returned_at: Milestone,
    /// Doorbells in the TCP stream, each counted before it is sent.
    doorbells: AtomicU64,
    /// The sender takes back what the receiver has not taken, to send it through TCP. The receiver
    /// sets `taking` before it looks at this.
    recalled: AtomicU32,
}

/// What one side publishes about its incoming direction.
#[cfg_attr(all(test, loom), derive(Default))]
#[repr(C, align(128))]
struct Incoming {
    /// Bytes ever taken from the ring.
    read: AtomicU64,
    /// Ring the doorbell when there is something to read.
    sleeping: Request,
    /// A number of [`Leaving`].
    leaving: AtomicU32,
    /// Bytes are being taken from the ring at this moment.
    taking: AtomicU32,
    /// SO_RCVBUF, if the application has set it.
    receive_bytes: AtomicU32,
    /// The processor this side was last seen on, plus one.
    processor: AtomicU32,
    /// Doorbells ever removed from the TCP stream.
    discarded: AtomicU64,
    /// The end of this side resets the connection: it has SO_LINGER with a time of 0.
    aborts: AtomicU32,
    /// No process of this side uses the memory any more.
    is_unmapped: AtomicU32,
}

/// The half of the header that one side writes.
#[cfg_attr(all(test, loom), derive(Default))]
#[repr(C)]
pub(super) struct Side {
    outgoing: Outgoing,
    incoming: Incoming,
}

/// The half of the page that this end writes. What is there now may be the peer's doing, so this
/// end keeps what it needs to know in its private memory (`OwnState`).
#[derive(Clone, Copy)]
pub(crate) struct Mine<'a>(pub(super) &'a Side);

impl<'a> Mine<'a> {
    /// Returns the request for a doorbell when there is room in the outgoing ring.
    pub(crate) fn starved(self) -> &'a Request {
        &self.0.outgoing.starved
    }

    /// Returns the request for a doorbell when there is something to read.
    pub(crate) fn sleeping(self) -> &'a Request {
        &self.0.incoming.sleeping
    }

    /// Switches the outgoing direction to its ring after so many bytes. Returns whether the peer
    /// has not forbidden it.
    pub(crate) fn enter_ring(self, sent: u64) -> bool {
        self.0.outgoing.switch_at.set(sent);
        exchange(&self.0.outgoing.mode.0, Mode::STREAM, Mode::RING)
    }

    /// Announces that the outgoing direction will not switch to its ring.
    pub(crate) fn stay_in_stream(self) {
        self.0.outgoing.mode.0.store(Mode::FORBIDDEN, Ordering::Release);
    }

    pub(crate) fn set_written(self, position: u64) {
        self.0.outgoing.written.store(position, Ordering::Release);
    }

    pub(crate) fn set_returned_at(self, position: u64) {
        self.0.outgoing.returned_at.set(position);
    }

    pub(crate) fn set_doorbells(self, count: u64) {
        self.0.outgoing.doorbells.store(count, Ordering::Release);
    }

    pub(crate) fn set_recalled(self, yes: bool) {
        self.0.outgoing.recalled.store(u32::from(yes), Ordering::SeqCst);
    }

    pub(crate) fn set_read(self, position: u64) {
        self.0.incoming.read.store(position, Ordering::Release);
    }

    pub(crate) fn set_discarded(self, count: u64) {
        self.0.incoming.discarded.store(count, Ordering::Release);
    }

    pub(crate) fn set_aborts(self, yes: bool) {
        self.0.incoming.aborts.store(u32::from(yes), Ordering::Release);
    }

    /// Announces how this end leaves, before it checks how much is unread. Either it then sees the
    /// peer's last bytes, or the peer, which publishes them first, sees the announcement.
    pub(crate) fn set_leaving(self, how: Leaving) {
        self.0.incoming.leaving.store(how as u32, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Changes [`Leaving::Returns`] to [`Leaving::Drains`].
    pub(crate) fn drain_instead_of_returning(self) {
        let (from, to) = (Leaving::Returns as u32, Leaving::Drains as u32);
        let order = (Ordering::SeqCst, Ordering::Relaxed);
        let _ = self.0.incoming.leaving.compare_exchange(from, to, order.0, order.1);
    }

    pub(crate) fn begin_taking(self) {
        self.0.incoming.taking.swap(1, Ordering::SeqCst);
    }

    pub(crate) fn end_taking(self) {
        self.0.incoming.taking.store(0, Ordering::Release);
    }

    pub(crate) fn set_receive_bytes(self, bytes: u32) {
        self.0.incoming.receive_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Announces that this side does not use the memory any more, before it asks whether the peer
    /// does ([`Theirs::is_unmapped`]): the second one of the two sees both.
    pub(crate) fn set_unmapped(self) {
        self.0.incoming.is_unmapped.store(1, Ordering::SeqCst);
    }

    pub(crate) fn set_processor(self, processor: u32) {
        self.0.incoming.processor.store(processor, Ordering::Relaxed);
    }
}

/// The half of the page that the peer writes.
#[derive(Clone, Copy)]
pub(crate) struct Theirs<'a>(pub(super) &'a Side);

impl<'a> Theirs<'a> {
    /// Returns the peer's request for a doorbell when there is room in its outgoing ring.
    pub(crate) fn starved(self) -> &'a Request {
        &self.0.outgoing.starved
    }

    /// Returns the peer's request for a doorbell when there is something to read.
    pub(crate) fn sleeping(self) -> &'a Request {
        &self.0.incoming.sleeping
    }

    /// Prevents the peer from switching to its ring. Returns whether it had not.
    pub(crate) fn forbid(self) -> bool {
        exchange(&self.0.outgoing.mode.0, Mode::STREAM, Mode::FORBIDDEN)
    }

    pub(crate) fn is_forbidden(self) -> bool {
        self.0.outgoing.mode.0.load(Ordering::Acquire) == Mode::FORBIDDEN
    }

    /// Returns how many bytes the peer sent through TCP before it switched to its ring.
    pub(crate) fn switch_at(self) -> Option<u64> {
        self.0.outgoing.switch_at.get()
    }

    /// Returns how many bytes the ring holds for an end that has read up to a position: what the
    /// peer has written and not taken back.
    #[inline]
    pub(crate) fn filled(self, read: u64, ring_bytes: u64) -> Filled {
        let theirs = &self.0.outgoing;
        let written = theirs.written.load(Ordering::Acquire);
        let end = match theirs.recalled.load(Ordering::Acquire) {
            0 => written,
            _ => theirs.returned_at.get().unwrap_or(written),
        };
        let filled = end.wrapping_sub(read);
        if filled <= ring_bytes { Filled::Bytes(filled) } else { Filled::Impossible }
    }

    pub(crate) fn written_mark(self) -> Mark {
        Mark(self.0.outgoing.written.load(Ordering::Acquire))
    }

    /// Returns whether the peer's outgoing direction goes back to TCP.
    pub(crate) fn has_returned(self) -> bool {
        self.0.outgoing.returned_at.get().is_some()
    }

    /// Returns whether it goes back to TCP at this position.
    pub(crate) fn has_returned_at(self, position: u64) -> bool {
        self.0.outgoing.returned_at.get().is_some_and(|at| at == position)
    }

    pub(crate) fn is_recalling(self) -> bool {
        self.0.outgoing.recalled.load(Ordering::SeqCst) != 0
    }

    /// Returns how many doorbells the peer has counted beyond those that were discarded. `None`: no
    /// honest peer has counted so.
    pub(crate) fn doorbells_due(self, discarded: u64) -> Option<u64> {
        let counted = self.0.outgoing.doorbells.load(Ordering::Acquire);
        counted.checked_sub(discarded).filter(|due| *due <= DOORBELLS_MAX)
    }

    /// Returns whether the peer has not removed all of the doorbells that were sent to it.
    pub(crate) fn keeps_doorbells(self, sent: u64) -> bool {
        self.0.incoming.discarded.load(Ordering::Acquire) < sent
    }

    /// Returns whether the end of the peer resets the connection by its own wish.
    pub(crate) fn aborts(self) -> bool {
        self.0.incoming.aborts.load(Ordering::Acquire) != 0
    }

    /// Returns how many bytes of the outgoing ring the peer has not taken, of what was written up
    /// to a position. `None`: no honest peer says so.
    pub(crate) fn untaken(self, written: u64, ring_bytes: u64) -> Option<u64> {
        let untaken = written.wrapping_sub(self.0.incoming.read.load(Ordering::Acquire));
        (untaken <= ring_bytes).then_some(untaken)
    }

    pub(crate) fn leaving(self) -> Leaving {
        Leaving::from_word(self.0.incoming.leaving.load(Ordering::SeqCst))
    }

    pub(crate) fn is_taking(self) -> bool {
        self.0.incoming.taking.load(Ordering::SeqCst) != 0
    }

    pub(crate) fn receive_bytes(self) -> u32 {
        self.0.incoming.receive_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn is_unmapped(self) -> bool {
        self.0.incoming.is_unmapped.load(Ordering::SeqCst) != 0
    }

    pub(crate) fn was_on(self, processor: u32) -> bool {
        self.0.incoming.processor.load(Ordering::Relaxed) == processor
    }
}

fn exchange(word: &AtomicU32, from: u32, to: u32) -> bool {
    word.compare_exchange(from, to, EXCHANGE.0, EXCHANGE.1).is_ok()
}
