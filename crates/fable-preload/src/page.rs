//! The memory that both ends of a connection share: a header and a ring for each direction.
//!
//! Each side writes its own half of the header only (but for two words, by compare-exchange) and
//! treats the other half as hostile: every word is read once and checked before it is used. The
//! memory file is sealed against shrinking, which would turn a look at it into SIGBUS.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use preload::real;

use crate::sys::{self, Errno, Result};

/// Where the rings begin.
const HEADER_BYTES: usize = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"FABLEpr2");
/// The smallest and the largest ring for one direction.
pub(crate) const RING_BYTES: core::ops::RangeInclusive<u64> = 4096..=(16 << 20);

/// Without these the other side could take memory away that this one looks at.
const SEALS: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// The client has offered the page.
pub(crate) const OFFERED: u32 = 0;
/// The server that accepted the connection uses it.
pub(crate) const ACCEPTED: u32 = 1;
/// The client has given it up before anybody used it.
pub(crate) const REVOKED: u32 = 2;

/// A direction is still in the TCP stream.
pub(crate) const STREAM: u32 = 0;
/// Its sender has gone over to the ring.
pub(crate) const RING: u32 = 1;
/// Its receiver has seen to it that the sender will not.
pub(crate) const FORBIDDEN: u32 = 2;

/// A receiver takes from its ring.
pub(crate) const STAYS: u32 = 0;
/// It takes nothing more; what it has not taken is to be sent again through TCP.
pub(crate) const LEAVES: u32 = 1;
/// It takes all that was written, but nothing more is to be written, and nothing is to come through
/// TCP, which resets a connection that was shut in both directions.
pub(crate) const DRAINS: u32 = 2;
/// It has closed the connection, and takes nothing more.
pub(crate) const CLOSED: u32 = 3;
/// Nothing more is to be written, and what it has not taken comes through TCP if the socket has
/// room for it.
pub(crate) const RETURNS: u32 = 4;

/// The side that connected, and the side that accepted.
pub(crate) const CLIENT: usize = 0;
/// See [`CLIENT`].
pub(crate) const SERVER: usize = 1;

/// What one side says about its outgoing direction.
#[repr(C, align(128))]
pub(crate) struct Outgoing {
    /// [`STREAM`], [`RING`] or [`FORBIDDEN`]; the receiver may go from the first to the last.
    pub(crate) mode: AtomicU32,
    /// Bytes that wait to be sent found no room: ring the doorbell when there is some.
    pub(crate) starved: AtomicU32,
    /// How many bytes went through TCP before the ring, plus one; 0 while undecided.
    pub(crate) switch_at: AtomicU64,
    /// Bytes ever put into the ring.
    pub(crate) written: AtomicU64,
    /// Where in the ring the direction goes back to TCP, plus one; 0 while it does not.
    pub(crate) returned_at: AtomicU64,
    /// Doorbells in the TCP stream, each counted before it is sent.
    pub(crate) doorbells: AtomicU64,
    /// The sender takes back what the receiver has not taken, to send it through TCP. The receiver
    /// says [`Incoming::taking`] before it looks at this.
    pub(crate) recalled: AtomicU32,
}

/// What one side says about its incoming direction.
#[repr(C, align(128))]
pub(crate) struct Incoming {
    /// Bytes ever taken from the ring.
    pub(crate) read: AtomicU64,
    /// Ring the doorbell when there is something to read.
    pub(crate) sleeping: AtomicU32,
    /// [`STAYS`], [`LEAVES`], [`DRAINS`], [`CLOSED`] or [`RETURNS`]: how this side goes back to
    /// TCP.
    pub(crate) leaving: AtomicU32,
    /// Bytes are being taken from the ring at this moment.
    pub(crate) taking: AtomicU32,
    /// SO_RCVBUF, if the application has set it.
    pub(crate) receive_bytes: AtomicU32,
    /// The processor this side was last seen on, plus one.
    pub(crate) processor: AtomicU32,
}

/// What one side writes.
#[repr(C)]
pub(crate) struct Side {
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
}

/// The header.
#[repr(C)]
pub(crate) struct Page {
    magic: AtomicU64,
    ring_bytes: AtomicU64,
    /// [`OFFERED`], [`ACCEPTED`] or [`REVOKED`].
    pub(crate) standing: AtomicU32,
    pub(crate) sides: [Side; 2],
}

const _: () = assert!(size_of::<Page>() <= HEADER_BYTES);

/// The size of the memory file for rings of that size.
pub(crate) const fn file_bytes(ring_bytes: u64) -> usize {
    HEADER_BYTES + 2 * ring_bytes as usize
}

/// A fresh sealed memory file, and its mapping. The caller owns both.
pub(crate) fn create(ring_bytes: u64) -> Result<(c_int, *mut u8)> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name ends with zero.
    let fd = unsafe { libc::memfd_create(c"fable".as_ptr(), flags) };
    if fd < 0 {
        return Err(Errno(sys::errno()));
    }
    match fill(fd, ring_bytes) {
        Ok(at) => Ok((fd, at)),
        Err(errno) => {
            sys::close(fd);
            Err(errno)
        }
    }
}

fn fill(fd: c_int, ring_bytes: u64) -> Result<*mut u8> {
    let bytes = file_bytes(ring_bytes);
    // SAFETY: the descriptor is a memory file of ours.
    unsafe {
        if libc::ftruncate(fd, bytes as i64) != 0
            || real::fcntl(fd, libc::F_ADD_SEALS, SEALS as usize) != 0
        {
            return Err(Errno(sys::errno()));
        }
    }
    let at = sys::map_file(fd, bytes)?;
    // SAFETY: the mapping has the header's size and is zeroed, which is valid for atomics.
    let page = unsafe { &*at.cast::<Page>() };
    page.ring_bytes.store(ring_bytes, Ordering::Relaxed);
    page.magic.store(MAGIC, Ordering::Release);
    Ok(at)
}

/// Maps a memory file that somebody else made, after checking its seals and its size. Gives the
/// mapping, which the caller owns, and the size of a ring.
pub(crate) fn open(fd: c_int) -> Result<(*mut u8, u64)> {
    // SAFETY: F_GET_SEALS has no argument; another kind of file is an error.
    let seals = unsafe { real::fcntl(fd, libc::F_GET_SEALS, 0) };
    if seals < 0 || seals & SEALS != SEALS || seals & libc::F_SEAL_WRITE != 0 {
        return Err(Errno(libc::EPERM));
    }
    // SAFETY: the structure is plain data, and ours.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: as above.
    if unsafe { libc::fstat(fd, &mut status) } != 0 {
        return Err(Errno(sys::errno()));
    }
    let size = u64::try_from(status.st_size).unwrap_or(0);
    let ring_bytes = size.saturating_sub(HEADER_BYTES as u64) / 2;
    let fits = ring_bytes.is_power_of_two() && RING_BYTES.contains(&ring_bytes);
    if !fits || file_bytes(ring_bytes) as u64 != size {
        return Err(Errno(libc::EINVAL));
    }
    let at = sys::map_file(fd, size as usize)?;
    // SAFETY: the mapping is at least as large as the header.
    let page = unsafe { &*at.cast::<Page>() };
    if page.magic.load(Ordering::Acquire) != MAGIC {
        // SAFETY: nobody else knows this mapping.
        unsafe { sys::unmap(at, size as usize) };
        return Err(Errno(libc::EINVAL));
    }
    Ok((at, ring_bytes))
}

/// The bytes of one direction.
pub(crate) struct Ring {
    start: *mut u8,
    bytes: u64,
}

impl Ring {
    /// The ring that `side` writes, of a mapping with rings of that size.
    ///
    /// # Safety
    /// The mapping has [`file_bytes`] of `ring_bytes`, a power of two, and outlives the ring.
    pub(crate) unsafe fn of(mapping: *mut u8, ring_bytes: u64, side: usize) -> Ring {
        // SAFETY: promised by the caller.
        let start = unsafe { mapping.add(HEADER_BYTES + side * ring_bytes as usize) };
        Ring { start, bytes: ring_bytes }
    }

    /// The longest run of at most `wanted` bytes at a position that does not wrap.
    pub(crate) fn run(&self, position: u64, wanted: u64) -> (*mut u8, usize) {
        let offset = position & (self.bytes - 1);
        let length = wanted.min(self.bytes - offset);
        // SAFETY: the offset is masked to the ring.
        (unsafe { self.start.add(offset as usize) }, length as usize)
    }
}
