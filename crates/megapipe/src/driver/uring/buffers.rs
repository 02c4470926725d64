//! A ring of buffers from which the kernel takes one when data arrives.

use super::ring::Ring;
use crate::pool::{Lease, Pool};
use crate::sys::Mapping;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

/// `struct io_uring_buf`; the tail of the ring lies over the `reserved` of its first entry.
#[repr(C)]
struct Entry {
    address: u64,
    bytes: u32,
    index: u16,
    reserved: u16,
}

/// The fewest buffers that the kernel holds.
const SMALLEST_WINDOW: u16 = 8;
/// The most bytes that it holds, whatever it asks for: more than that would not stay in cache, and
/// for large messages a copy out of cache costs more than asking again.
const LARGEST_WINDOW_BYTES: usize = 512 << 10;
/// Refills after which the window shrinks to what has been used.
const ROUNDS: u16 = 256;

/// The kernel takes buffers in the order in which it was given them, so it walks through all that
/// it has. It is therefore given few: a window that grows when it runs out and shrinks when it does
/// not need them.
pub(super) struct BufferRing {
    pool: Rc<Pool>,
    entries: Mapping,
    group: u16,
    mask: u16,
    tail: u16,
    /// Buffers in the kernel's hands, how many we let it have, and the most that may become.
    held: u16,
    window: u16,
    largest: u16,
    /// Buffers used since the last refill, and the most of any refill in these rounds.
    used: u16,
    peak: u16,
    rounds: u16,
}

impl BufferRing {
    /// Registers a ring for the buffers of `pool` under the number `group`.
    pub(super) fn new(ring: &Ring, group: u16, count: u16, pool: Rc<Pool>) -> io::Result<Self> {
        let entries = Mapping::anonymous(usize::from(count) * std::mem::size_of::<Entry>())?;
        // The kernel has pinned these pages: a child that wrote to its copy would part us from it.
        entries.advise(libc::MADV_DONTFORK)?;
        let address = entries.address() as u64;
        // SAFETY: the mapping is page-aligned, large enough and lives in the same driver as the
        // ring, which is dropped before it.
        unsafe { ring.submitter().register_buf_ring_with_flags(address, count, group, 0)? };
        let affordable = LARGEST_WINDOW_BYTES / pool.buffer_bytes();
        // Half of them are left to those who fetch a single datagram.
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

    /// Buffers that the kernel could be given next: those that it has and the free ones, up to the
    /// window, or twice that if the window may still grow.
    pub(super) fn offered(&self) -> usize {
        let window = usize::from(self.grown_window());
        window.min(usize::from(self.held) + self.pool.free_count())
    }

    fn grown_window(&self) -> u16 {
        self.window.saturating_mul(2).min(self.largest)
    }

    /// Gives the kernel free buffers, up to the window.
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
            // tail moves past it. `reserved` is left alone: in the first slot it is the tail.
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
            // SAFETY: the field is aligned, within the mapping and accessed atomically by both.
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

    /// The kernel has put `bytes` bytes into buffer `index`.
    pub(super) fn filled(&mut self, index: u16, bytes: usize) -> Lease {
        self.held -= 1;
        self.used += 1;
        self.pool.lease(index, bytes.min(self.pool.buffer_bytes()))
    }

    /// The kernel took buffer `index` and did not use it.
    pub(super) fn unused(&mut self, index: u16) {
        self.held -= 1;
        self.pool.give_back(index);
    }

    /// The kernel found no buffer: it may have more from now on.
    pub(super) fn ran_out(&mut self) {
        self.window = self.grown_window();
    }
}
