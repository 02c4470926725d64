//! The shared page of a connection: a header and a ring for each direction.
//!
//! Each side writes only its own half of the header, except for two words that use
//! compare-exchange. It treats all of the page as hostile: `words` has the only accesses, each of
//! which reads a word once and checks it. The memory file is sealed, because shrinking it would
//! turn an access into SIGBUS.

mod words;

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};
use preload::real;

use crate::sys::{self, Errno, Result};
use words::{Copies, Side, Standing};
pub(crate) use words::{Filled, Leaving, Mark, Mine, Request, Theirs};

/// The offset of the rings.
const HEADER_BYTES: usize = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"FABLEpr2");
/// The smallest and the largest ring for one direction.
pub(crate) const RING_BYTES: core::ops::RangeInclusive<u64> = 4096..=(16 << 20);

/// Without these seals the other side could remove memory that this side accesses.
const SEALS: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// The side that connected.
pub(crate) const CLIENT: usize = 0;
/// The side that accepted.
pub(crate) const SERVER: usize = 1;

/// The header.
#[repr(C)]
pub(crate) struct Page {
    magic: AtomicU64,
    ring_bytes: AtomicU64,
    pub(crate) standing: Standing,
    pub(crate) copies: Copies,
    sides: [Side; 2],
}

impl Page {
    /// Returns the half that `side` writes, for that side.
    pub(crate) fn mine(&self, side: usize) -> Mine<'_> {
        Mine(&self.sides[side])
    }

    /// Returns the half that the peer of `side` writes.
    pub(crate) fn theirs(&self, side: usize) -> Theirs<'_> {
        Theirs(&self.sides[1 - side])
    }
}

const _: () = assert!(size_of::<Page>() <= HEADER_BYTES);

/// Returns the size of the memory file for rings of this size.
pub(crate) const fn file_bytes(ring_bytes: u64) -> usize {
    HEADER_BYTES + 2 * ring_bytes as usize
}

/// Makes a sealed memory file and its mapping. The caller owns both.
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
    // SAFETY: the descriptor is a memory file of this function.
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

/// Frees the memory of the rings, which read as zeros from then on.
///
/// # Safety
/// `mapping` must be one of a page with rings of this size, and nothing may use the rings any more.
pub(crate) unsafe fn free_rings(mapping: *mut u8, ring_bytes: u64) {
    // SAFETY: the caller guarantees that the range is mapped and unused.
    unsafe { sys::free_pages(mapping.add(HEADER_BYTES), file_bytes(ring_bytes) - HEADER_BYTES) };
}

/// Returns whether a file is a memory file with the seals of a page.
fn is_sealed(fd: c_int) -> bool {
    // SAFETY: F_GET_SEALS has no argument; for another type of file the call fails.
    let seals = unsafe { real::fcntl(fd, libc::F_GET_SEALS, 0) };
    seals >= 0 && seals & SEALS == SEALS && seals & libc::F_SEAL_WRITE == 0
}

/// Returns whether a file is a page whose offer stands, without mapping it.
pub(crate) fn is_offered(fd: c_int) -> bool {
    let offset = core::mem::offset_of!(Page, standing);
    is_sealed(fd) && sys::read_number_at(fd, offset as i64).is_ok_and(Standing::is_offer)
}

/// Maps a memory file of another process, after checking its seals and its size. Returns the
/// mapping, which the caller owns, and the size of a ring.
pub(crate) fn open(fd: c_int) -> Result<(*mut u8, u64)> {
    if !is_sealed(fd) {
        return Err(Errno(libc::EPERM));
    }
    // SAFETY: the structure is plain data, for which zeros are valid.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the structure is a local variable of the right type.
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
        // SAFETY: no other thread knows this mapping.
        unsafe { sys::unmap(at, size as usize) };
        return Err(Errno(libc::EINVAL));
    }
    Ok((at, ring_bytes))
}

/// The bytes of one direction's ring.
pub(crate) struct Ring {
    start: *mut u8,
    bytes: u64,
}

impl Ring {
    /// Returns the ring that `side` writes, in a mapping with rings of that size.
    ///
    /// # Safety
    /// The mapping must have [`file_bytes`] of `ring_bytes`, a power of two, and outlive the ring.
    pub(crate) unsafe fn of(mapping: *mut u8, ring_bytes: u64, side: usize) -> Ring {
        // SAFETY: the caller guarantees that the mapping contains the ring.
        let start = unsafe { mapping.add(HEADER_BYTES + side * ring_bytes as usize) };
        Ring { start, bytes: ring_bytes }
    }

    /// Returns the longest piece of at most `wanted` bytes at a position that does not wrap.
    pub(crate) fn run(&self, position: u64, wanted: u64) -> (*mut u8, usize) {
        let offset = position & (self.bytes - 1);
        let length = wanted.min(self.bytes - offset);
        // SAFETY: the offset is masked to the ring.
        (unsafe { self.start.add(offset as usize) }, length as usize)
    }
}
