//! Provides buffers in a ring, from which the kernel takes one when data arrives.

use super::ring::Ring;
use crate::pool::{Lease, Pool};
use crate::sys::Mapping;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

/// `struct io_uring_buf`; the `reserved` of the first entry is the tail of the ring.
#[repr(C)]
struct Entry {
    address: u64,
    bytes: u32,
    index: u16,
    reserved: u16,
}

/// The locked memory of an entry.
pub(super) const ENTRY_BYTES: usize = std::mem::size_of::<Entry>();

/// The smallest number of buffers that the kernel gets.
const SMALLEST_WINDOW: u16 = 8;
/// The largest number of bytes that the kernel gets. More would not stay in the cache, and for
/// large messages a copy from uncached memory costs more than another request.
const LARGEST_WINDOW_BYTES: usize = 512 << 10;
/// Number of refills after which the window shrinks to what was used.
const ROUNDS: u16 = 256;

/// A ring of provided buffers. The kernel takes buffers in the order in which it got them, so it
/// cycles through all of them. To keep them in the cache, the driver provides few: a window that
/// grows when the kernel runs out of buffers and shrinks when it does not use them.
pub(super) struct BufferRing {
    pool: Rc<Pool>,
    entries: Mapping,
    group: u16,
    mask: u16,
    tail: u16,
    /// Buffers that the kernel holds, the window, and its largest size.
    held: u16,
    window: u16,
    largest: u16,
    /// Buffers used since the last refill, and the largest such number in these rounds.
    used: u16,
    peak: u16,
    rounds: u16,
}

impl BufferRing {
    /// Registers a ring for the buffers of `pool` under the number `group`.
    pub(super) fn new(ring: &Ring, group: u16, count: u16, pool: Rc<Pool>) -> io::Result<Self> {
        let entries = Mapping::anonymous(usize::from(count) * ENTRY_BYTES)?;
        // The kernel has pinned these pages. A copy-on-write after a fork would give this process a
        // page that the kernel does not read.
        entries.advise(libc::MADV_DONTFORK)?;
        let address = entries.address() as u64;
        // SAFETY: the mapping is page-aligned, large enough and lives in the same driver as the
        // ring, which is dropped before it.
        unsafe { ring.submitter().register_buf_ring_with_flags(address, count, group, 0)? };
        let affordable = LARGEST_WINDOW_BYTES / pool.buffer_bytes();
        // Half of the buffers stay available for fetching single datagrams.
        let available = count / 2;
        let largest = available.min(affordable.clamp(usize::from(SMALLEST_WINDOW), 1 << 15) as u16);
        Ok(BufferRing {
            pool,
            entries,
            group,
            mask: count - 1,
            tail: 0,
            held: 0,
            window: SMALLEST_WINDOW.min(available),
            largest,
            used: 0,
            peak: 0,
            rounds: 0,
        })
    }

    pub(super) fn pool(&self) -> &Rc<Pool> {
        &self.pool
    }

    pub(super) fn group(&self) -> u16 {
        self.group
    }

    /// Returns the number of buffers that the kernel could get next: those that it has and the free
    /// ones, up to the window, or twice that if the window may still grow.
    pub(super) fn offered(&self) -> usize {
        let window = usize::from(self.grown_window());
        window.min(usize::from(self.held) + self.pool.free_count())
    }

    fn grown_window(&self) -> u16 {
        self.window.saturating_mul(2).min(self.largest)
    }

    /// Provides free buffers to the kernel, up to the window.
    pub(super) fn refill(&mut self) {
        self.adapt();
        let tail = self.tail;
        while self.held < self.window {
            let Some(index) = self.pool.take() else { break };
            let slot = usize::from(self.tail & self.mask);
            let entry = self.entries.address().cast::<Entry>().wrapping_add(slot);
            let address = self.pool.address(index) as u64;
            let bytes = self.pool.buffer_bytes() as u32;
            // SAFETY: the slot lies within the mapping and the kernel does not read it before the
            // tail moves past it. `reserved` is not written: in the first slot it is the tail.
            unsafe {
                (&raw mut (*entry).address).write(address);
                (&raw mut (*entry).bytes).write(bytes);
                (&raw mut (*entry).index).write(index);
            }
            self.tail = self.tail.wrapping_add(1);
            self.held += 1;
        }
        if tail != self.tail {
            let first = self.entries.address().cast::<Entry>();
            // SAFETY: the field is aligned, within the mapping, and both sides access it
            // atomically.
            let shared = unsafe { AtomicU16::from_ptr(&raw mut (*first).reserved) };
            shared.store(self.tail, Ordering::Release);
        }
    }

    fn adapt(&mut self) {
        self.peak = self.peak.max(self.used);
        self.used = 0;
        self.rounds += 1;
        if self.rounds == ROUNDS {
            let needed = (self.peak + self.peak / 4 + 1).max(SMALLEST_WINDOW);
            self.window = self.window.min(needed);
            self.peak = 0;
            self.rounds = 0;
        }
    }

    /// Leases buffer `index`, which the kernel has filled with `bytes` bytes.
    pub(super) fn filled(&mut self, index: u16, bytes: usize) -> Lease {
        self.held -= 1;
        self.used += 1;
        self.pool.lease(index, bytes.min(self.pool.buffer_bytes()))
    }

    /// Takes back buffer `index`, which the kernel took and did not use.
    pub(super) fn unused(&mut self, index: u16) {
        self.held -= 1;
        self.pool.give_back(index);
    }

    /// Enlarges the window, because the kernel found no buffer.
    pub(super) fn ran_out(&mut self) {
        self.window = self.grown_window();
    }
}
