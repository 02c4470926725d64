//! What carries bytes between two ends, behind one trait.
//!
//! A [`Transport`] is one end of a *path*. It hands out places for messages: [`acquire_write`]
//! gives room that the application fills, [`commit`] sends it; [`acquire_read`] gives a message,
//! [`release`] returns its memory. What is copied on the way is the transport's affair (Table 1 of
//! the paper). Messages keep their boundaries and their order on every transport.
//!
//! Nothing here blocks except [`Transport::wait`]; whoever waits for several things at once asks
//! [`Transport::prepare_wait`] what to sleep on.
//!
//! [`acquire_write`]: Transport::acquire_write
//! [`commit`]: Transport::commit
//! [`acquire_read`]: Transport::acquire_read
//! [`release`]: Transport::release

mod cacheline;
mod delivery;
mod framing;
mod mempipe;
mod pipe;
pub(crate) mod raw;
mod shmem_pipe;
mod sigpipe;
mod slot;
mod spin;
pub mod stream;
pub mod tls;
mod vmsplice;
mod wait;

use std::os::fd::OwnedFd;
use std::time::Duration;

pub(crate) use delivery::Deliveries;
pub use delivery::{Remainder, Undelivered};
pub use slot::{ReadSlot, Record, SlotPlace, WriteSlot};
pub(crate) use spin::this_cpu;
pub use tls::TlsKeys;
pub use wait::{Direction, Manner, Wait};

use crate::error::{TransportError, TransportResult};
use crate::kind::Kind;

/// The most slots of one direction that may be held at once.
pub const SLOTS_MAX: usize = 256;

/// One end of a path.
///
/// Slots are linear: each goes back into the transport it came from, by `commit`, `abandon` or
/// `release`. A slot that is dropped instead keeps its place for good. The memory of a slot stays
/// valid as long as the slot exists: a transport that is dropped before its slots leaks it.
pub trait Transport: Send {
    /// Which transport this is.
    fn kind(&self) -> Kind;

    /// The longest message, in bytes.
    fn message_bytes_max(&self) -> usize;

    /// Room for a message of up to `bytes`; `None` if there is none now (the back-pressure of
    /// section 3). Several may be held; the messages arrive in the order of the acquisitions if
    /// they are committed in that order. Whether a message that is committed before an older slot
    /// arrives before it depends on the transport: on rings it waits, on sockets it goes first.
    ///
    /// # Errors
    /// [`TransportError::TooLong`], [`TransportError::TooManySlots`], [`TransportError::Closed`],
    /// [`TransportError::Corrupt`] or [`TransportError::System`].
    fn acquire_write(&mut self, bytes: usize) -> TransportResult<Option<WriteSlot>>;

    /// Sends the first `bytes` of the slot, which must not be more than it has. Unless batching is
    /// on, the peer sees the message without further calls of this end, except that a socket that
    /// takes no more keeps the rest until [`Transport::flush`].
    ///
    /// # Errors
    /// As [`Transport::acquire_write`], and [`TransportError::Foreign`].
    fn commit(&mut self, slot: WriteSlot, bytes: usize, record: Record) -> TransportResult<()>;

    /// Sends a message from where it lies, which is not a slot of this transport's, without
    /// copying it first. False if that is not possible, or not now; then nothing was sent, and a
    /// slot is the way. Streams can, because the kernel copies anyway; into memory that the peer
    /// sees it has to be copied.
    ///
    /// # Errors
    /// As [`Transport::acquire_write`].
    fn forward(&mut self, _message: &[u8]) -> TransportResult<bool> {
        Ok(false)
    }

    /// Gives room back unused.
    fn abandon(&mut self, slot: WriteSlot);

    /// The peer does not wait for this slot any more, though somebody may still look at its memory;
    /// it comes back by `abandon`. For slots that are held when the last record of a path is sent,
    /// after which nothing is acquired.
    fn pass_over(&mut self, place: SlotPlace) {
        let _ = place;
    }

    /// After how many commits the peer is told of them; 1, as at first, is batching off. With more,
    /// the rest waits for [`Transport::flush`], or for `acquire_write` finding no room.
    fn set_batch(&mut self, commits: u32);

    /// Hands over what is committed. False if a socket or pipe takes no more now: then wait for
    /// [`Direction::Write`] and call again.
    ///
    /// # Errors
    /// As [`Transport::acquire_write`].
    fn flush(&mut self) -> TransportResult<bool>;

    /// What was committed and would be lost if this process ended now: a socket has not taken it,
    /// or the peer's kernel has not acknowledged it. Shared memory has nothing of that kind behind
    /// [`Transport::flush`].
    fn undelivered(&mut self) -> Undelivered {
        Undelivered::default()
    }

    /// Ends the sending direction for good, behind everything that was flushed. Gives what must
    /// live on until the peer has all of it, where closing this end would throw it away: on network
    /// connections.
    fn end(&mut self) -> Option<Remainder> {
        None
    }

    /// The next message, or `None` if there is none yet.
    ///
    /// # Errors
    /// [`TransportError::Closed`] when the peer has gone and everything was read (shared memory
    /// cannot notice that by itself), [`TransportError::TooManySlots`],
    /// [`TransportError::Corrupt`] or [`TransportError::System`].
    fn acquire_read(&mut self) -> TransportResult<Option<ReadSlot>>;

    /// Returns a message's memory. Slots may be returned in any order.
    fn release(&mut self, slot: ReadSlot);

    /// Whether the `acquire_write` that last found no room would find some now, as far as this end
    /// has been told.
    fn has_room(&mut self) -> bool;

    /// What to sleep on until `acquire_read` (or, for [`Direction::Write`], `flush` or the
    /// `acquire_write` that last found no room) may succeed; the peer has been told.
    /// Call [`Transport::end_wait`] afterwards, whatever happened.
    ///
    /// # Errors
    /// As [`Transport::acquire_read`].
    fn prepare_wait(&mut self, direction: Direction, manner: Manner) -> TransportResult<Wait>;

    /// The sleep of `prepare_wait` is over.
    fn end_wait(&mut self, direction: Direction);

    /// Waits in the transport's own way (spinning, if that is its way) until the call of this
    /// direction may succeed or `timeout` has passed, and says whether it may. `None` waits without
    /// end.
    ///
    /// # Errors
    /// As [`Transport::acquire_read`].
    fn wait(&mut self, direction: Direction, timeout: Option<Duration>) -> TransportResult<bool>;
}

/// What the other end needs to open its side of a path. Descriptors travel by `SCM_RIGHTS`, or are
/// inherited.
#[derive(Debug)]
pub struct Offer {
    /// The transport.
    pub kind: Kind,
    /// Its descriptors, in the order that the transport knows.
    pub descriptors: Vec<OwnedFd>,
}

/// How much memory a path may use.
#[derive(Clone, Copy, Debug)]
pub struct PathOptions {
    /// Bytes of each ring or shared heap; rounded up to a power of two between 4 KiB and 1 GiB.
    pub ring_bytes: usize,
}

impl Default for PathOptions {
    fn default() -> PathOptions {
        PathOptions { ring_bytes: 1 << 20 }
    }
}

/// Makes a path between two processes of this kernel: the end of the caller, and what the other end
/// needs. [`Kind::Tls`] needs keys and cannot be made this way.
///
/// # Errors
/// [`TransportError::System`] if the kernel refuses, [`TransportError::BadOffer`] for a kind that
/// needs more than this.
pub fn create(kind: Kind, options: PathOptions) -> TransportResult<(Box<dyn Transport>, Offer)> {
    match kind {
        Kind::MempipeFutex(_) | Kind::MempipeSpin(_) => mempipe::create(kind, options),
        Kind::Cacheline => cacheline::create(),
        Kind::Tcp | Kind::TcpNodelay | Kind::Unix | Kind::Mptcp => stream::create(kind),
        Kind::Pipe => pipe::create(options),
        Kind::ShmemPipe(_) => shmem_pipe::create(kind, options),
        Kind::VmspliceCoop => vmsplice::create(options),
        _ => Err(TransportError::BadOffer("this transport cannot be made here")),
    }
}

/// Opens the other end of a path. The descriptors come from a peer and are checked first.
///
/// # Errors
/// [`TransportError::BadOffer`] if they are not what the transport needs,
/// [`TransportError::System`] if the kernel refuses.
pub fn open(offer: Offer) -> TransportResult<Box<dyn Transport>> {
    match offer.kind {
        Kind::MempipeFutex(_) | Kind::MempipeSpin(_) => mempipe::open(offer),
        Kind::Cacheline => cacheline::open(offer),
        Kind::Tcp | Kind::TcpNodelay | Kind::Unix | Kind::Mptcp => stream::open(offer),
        Kind::Pipe => pipe::open(offer),
        Kind::ShmemPipe(_) => shmem_pipe::open(offer),
        Kind::VmspliceCoop => vmsplice::open(offer),
        _ => Err(TransportError::BadOffer("this transport cannot be opened this way")),
    }
}
