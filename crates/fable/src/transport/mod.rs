//! The transports, behind one trait: each carries messages between the two ends of a path.
//!
//! A [`Transport`] is one end of a *path*. It allocates slots for messages: [`acquire_write`]
//! returns memory that the application fills, [`commit`] sends it; [`acquire_read`] returns a
//! message, [`release`] returns its memory. Which copies are made depends on the transport (Table 1
//! of the paper). Messages keep their boundaries and their order on every transport.
//!
//! Only [`Transport::wait`] blocks. A caller that waits for several things at once uses
//! [`Transport::prepare_wait`], which returns what to sleep on.
//!
//! [`acquire_write`]: Transport::acquire_write
//! [`commit`]: Transport::commit
//! [`acquire_read`]: Transport::acquire_read
//! [`release`]: Transport::release

mod delivery;
mod framing;
mod mempipe;
mod slot;
mod spin;
pub mod stream;
pub mod tls;
mod wait;

use std::os::fd::OwnedFd;
use std::time::Duration;

pub(crate) use delivery::Deliveries;
pub use delivery::{Remainder, Undelivered};
pub use slot::{ReadSlot, Record, SlotPlace, WriteSlot};
pub(crate) use spin::this_cpu;
pub use tls::TlsKeys;
pub use wait::{Direction, Wait, WaitMethod};

use crate::error::{TransportError, TransportResult};
use crate::kind::Kind;

/// The most slots of one direction that may be held at once.
pub const SLOTS_MAX: usize = 256;

/// One end of a path.
///
/// Slots are linear: each is returned to its transport, by `commit`, `abandon` or `release`. A slot
/// that is dropped instead keeps its memory for ever. The memory of a slot stays valid as long as
/// the slot exists: a transport that is dropped before its slots leaks it.
pub trait Transport: Send {
    /// Returns which transport this is.
    fn kind(&self) -> Kind;

    /// Returns the length of the longest message, in bytes.
    fn message_bytes_max(&self) -> usize;

    /// Sets the longest message that this end accepts, in bytes, if that is less than the transport
    /// carries. A longer one of the peer is [`TransportError::Corrupt`], and no memory is allocated
    /// for it. The limit holds for this end only: the peer has to know it.
    fn limit_reads(&mut self, bytes_max: usize);

    /// Allocates a slot for a message of up to `bytes`; `None` if there is no room now (the
    /// back-pressure of section 3). Several may be held; the messages arrive in the order of the
    /// acquisitions if they are committed in that order. Whether a message that is committed before
    /// an older slot arrives before it depends on the transport: on rings it waits, on sockets it
    /// is sent first.
    ///
    /// # Errors
    /// [`TransportError::TooLong`], [`TransportError::TooManySlots`], [`TransportError::Closed`],
    /// [`TransportError::Corrupt`] or [`TransportError::System`].
    fn acquire_write(&mut self, bytes: usize) -> TransportResult<Option<WriteSlot>>;

    /// Sends the first `bytes` bytes of the slot, which must not be more than it has. Unless
    /// batching is on, the peer sees the message without further calls of this end. There is one
    /// exception: if a socket takes no more, the rest waits for [`Transport::flush`].
    ///
    /// # Errors
    /// Those of [`Transport::acquire_write`], and [`TransportError::Foreign`].
    fn commit(&mut self, slot: WriteSlot, bytes: usize, record: Record) -> TransportResult<()>;

    /// Sends a message that is outside of this transport's slots, without copying it first. Returns
    /// false, and sends nothing, if that is not possible, or not now; the caller then uses a slot.
    /// Streams can do it, because the kernel copies anyway; a transport in shared memory cannot.
    ///
    /// # Errors
    /// Those of [`Transport::acquire_write`].
    fn forward(&mut self, _message: &[u8]) -> TransportResult<bool> {
        Ok(false)
    }

    /// Returns an unused slot.
    fn abandon(&mut self, slot: WriteSlot);

    /// Makes the peer skip this slot, although its memory may still be used here; the slot is
    /// returned later by `abandon`. For slots that are held when the last record of a path is sent,
    /// after which no slot is allocated.
    fn pass_over(&mut self, place: SlotPlace) {
        let _ = place;
    }

    /// Sets after how many commits the peer is notified. The default, 1, turns batching off. The
    /// remaining messages of a batch wait for [`Transport::flush`], or for an `acquire_write` that
    /// finds no room.
    fn set_batch(&mut self, commits: u32);

    /// Sends the committed messages. Returns false if a socket takes no more now: then wait
    /// for [`Direction::Write`] and call again.
    ///
    /// # Errors
    /// Those of [`Transport::acquire_write`].
    fn flush(&mut self) -> TransportResult<bool>;

    /// Returns the committed messages that would be lost if this process ended now: a socket has
    /// not taken them, or the peer's kernel has not acknowledged them. On shared memory nothing is
    /// undelivered after [`Transport::flush`].
    fn undelivered(&mut self) -> Undelivered {
        Undelivered::default()
    }

    /// Ends the sending direction after everything that was flushed. On network connections it may
    /// return a [`Remainder`], which must be kept until the peer has everything, because closing
    /// the socket would discard what is not acknowledged.
    fn end(&mut self) -> Option<Remainder> {
        None
    }

    /// Returns the next message, or `None` if there is none yet.
    ///
    /// # Errors
    /// [`TransportError::Closed`] when the peer has gone and everything was read (shared memory
    /// cannot notice that by itself), [`TransportError::TooManySlots`],
    /// [`TransportError::Corrupt`] or [`TransportError::System`].
    fn acquire_read(&mut self) -> TransportResult<Option<ReadSlot>>;

    /// Returns a message's memory. Slots may be returned in any order.
    fn release(&mut self, slot: ReadSlot);

    /// Returns whether the `acquire_write` that last found no room would find some now, as far as
    /// this end knows.
    fn has_room(&mut self) -> bool;

    /// Announces a sleep to the peer, and returns what to sleep on until `acquire_read` (or, for
    /// [`Direction::Write`], `flush` or the `acquire_write` that last found no room) may succeed.
    /// Call [`Transport::end_wait`] afterwards in any case.
    ///
    /// # Errors
    /// Those of [`Transport::acquire_read`].
    fn prepare_wait(&mut self, direction: Direction, method: WaitMethod) -> TransportResult<Wait>;

    /// Ends the sleep that `prepare_wait` has announced.
    fn end_wait(&mut self, direction: Direction);

    /// Waits in the transport's own way, such as spinning, until the call of this direction may
    /// succeed or `timeout` has passed. Returns whether it may succeed. `None` waits without limit.
    ///
    /// # Errors
    /// Those of [`Transport::acquire_read`].
    fn wait(&mut self, direction: Direction, timeout: Option<Duration>) -> TransportResult<bool>;
}

/// The descriptors with which the other end opens its side of a path. They travel by `SCM_RIGHTS`,
/// or are inherited.
#[derive(Debug)]
pub struct Offer {
    /// The transport.
    pub kind: Kind,
    /// The descriptors, in the order that the transport defines.
    pub descriptors: Vec<OwnedFd>,
}

/// The largest ring or shared heap.
pub(crate) const RING_BYTES_MAX: usize = 1 << 30;

/// The error for rings or heaps above the limit of the end that opens them.
const TOO_LARGE: TransportError = TransportError::BadOffer(
    "the peer's rings are larger than this end accepts: raise `ring_bytes` of this end",
);

/// What is wrong with a message above the reader's limit.
const TOO_LONG: &str = "a message is longer than this end accepts";

/// The options of a path.
#[derive(Clone, Copy, Debug)]
pub struct PathOptions {
    /// Bytes of each ring or shared heap; rounded up to a power of two between 4 KiB and 1 GiB.
    pub ring_bytes: usize,
    /// How long an end that waits on a ring spins before it sleeps, unless both ends share a CPU.
    /// [`Duration::MAX`] never sleeps. Sleeping and waking cost about 10 µs on the machines that
    /// were measured; spinning for longer than a few times that rarely pays.
    pub spin: Duration,
}

impl Default for PathOptions {
    fn default() -> PathOptions {
        PathOptions { ring_bytes: 1 << 20, spin: Duration::from_micros(50) }
    }
}

/// Makes a path between two processes of this kernel. Returns the end of the caller, and the offer
/// for the other end. [`Kind::Tls`] needs keys and cannot be made this way.
///
/// # Errors
/// [`TransportError::System`] if the kernel refuses, [`TransportError::BadOffer`] for a kind that
/// cannot be made this way.
pub fn create(kind: Kind, options: PathOptions) -> TransportResult<(Box<dyn Transport>, Offer)> {
    match kind {
        Kind::MempipeFutex(_) => mempipe::create(kind, options),
        Kind::Tcp | Kind::TcpNodelay | Kind::Unix | Kind::Mptcp => stream::create(kind),
        Kind::Tls => Err(TransportError::BadOffer("this transport cannot be made here")),
    }
}

/// Opens the other end of a path. The descriptors come from a peer and are checked first.
///
/// Rings and shared heaps may have any size that a path may have, up to 1 GiB: this end comes to
/// use as much memory as the peer has chosen. [`open_within`] limits that.
///
/// # Errors
/// [`TransportError::BadOffer`] if they are not those that the transport needs,
/// [`TransportError::System`] if the kernel refuses.
pub fn open(offer: Offer) -> TransportResult<Box<dyn Transport>> {
    open_within(offer, PathOptions { ring_bytes: RING_BYTES_MAX, ..PathOptions::default() })
}

/// Opens the other end of a path, as [`open`] does, whose rings or shared heaps have at most
/// `limits.ring_bytes` bytes each.
///
/// # Errors
/// As [`open`], and [`TransportError::BadOffer`] for larger ones, before they are mapped.
pub fn open_within(offer: Offer, limits: PathOptions) -> TransportResult<Box<dyn Transport>> {
    match offer.kind {
        Kind::MempipeFutex(_) => mempipe::open(offer, limits),
        Kind::Tcp | Kind::TcpNodelay | Kind::Unix | Kind::Mptcp => stream::open(offer),
        Kind::Tls => Err(TransportError::BadOffer("this transport cannot be opened this way")),
    }
}
