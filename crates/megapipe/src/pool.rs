//! Buffers that belong to the channel and are leased to the application.

use crate::sys::Mapping;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// A cache line between neighbours: equal offsets in page-sized buffers would all compete for
/// the same few sets of the first-level cache.
const STAGGER_BYTES: usize = 64;

/// Equal buffers in one mapping. A buffer is free, in the hands of the driver, or leased.
pub(crate) struct Pool {
    memory: Mapping,
    buffer_bytes: usize,
    count: usize,
    /// Buffers that are not in use, the most recently used (and so the warmest) on top.
    free: RefCell<Vec<u16>>,
    leased: Cell<usize>,
    /// Leases that were ever given.
    leases: Cell<u64>,
}

impl Pool {
    /// `count` buffers of `buffer_bytes` each; memory is taken when a buffer is first used.
    pub(crate) fn new(count: u16, buffer_bytes: usize) -> io::Result<Pool> {
        let memory = Mapping::anonymous(usize::from(count) * (buffer_bytes + STAGGER_BYTES))?;
        let free = RefCell::new((0..count).rev().collect());
        let (leased, leases) = (Cell::new(0), Cell::new(0));
        Ok(Pool { memory, buffer_bytes, count: usize::from(count), free, leased, leases })
    }

    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// How many buffers there are.
    fn count(&self) -> usize {
        self.count
    }

    /// Where the buffer starts.
    pub(crate) fn address(&self, index: u16) -> *mut u8 {
        let offset = usize::from(index) * (self.buffer_bytes + STAGGER_BYTES);
        debug_assert!(offset < self.memory.bytes());
        self.memory.address().wrapping_add(offset)
    }

    /// Buffers that are not in use.
    pub(crate) fn free_count(&self) -> usize {
        self.free.borrow().len()
    }

    /// Buffers that the application holds.
    pub(crate) fn leased_count(&self) -> usize {
        self.leased.get()
    }

    /// Leases that the application has had so far.
    pub(crate) fn lease_count(&self) -> u64 {
        self.leases.get()
    }

    /// Hands a free buffer to the driver.
    pub(crate) fn take(&self) -> Option<u16> {
        self.free.borrow_mut().pop()
    }

    /// Takes a buffer back from the driver.
    pub(crate) fn give_back(&self, index: u16) {
        self.free.borrow_mut().push(index);
    }

    /// Leases to the application a buffer that the driver took and has filled with `bytes` bytes.
    pub(crate) fn lease(self: &Rc<Pool>, index: u16, bytes: usize) -> Lease {
        debug_assert!(bytes <= self.buffer_bytes);
        self.leased.set(self.leased.get() + 1);
        self.leases.set(self.leases.get().wrapping_add(1));
        let filled = bytes as u32;
        Lease { pool: Some(Rc::clone(self)), index, first: 0, start: 0, end: filled, filled }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Pool({} bytes each, {} free)", self.buffer_bytes, self.free_count())
    }
}

/// A buffer that belongs to the channel, in the hands of a driver that fills it. Dropping it
/// returns the buffer.
#[derive(Debug)]
pub struct Room {
    pool: Rc<Pool>,
    index: u16,
}

impl Room {
    pub(crate) fn take(pool: &Rc<Pool>) -> Option<Room> {
        let index = pool.take()?;
        Some(Room { pool: Rc::clone(pool), index })
    }

    /// Leases its first `bytes` bytes to the application (all of them if there are fewer).
    pub fn lease(self, bytes: usize) -> Lease {
        let room = std::mem::ManuallyDrop::new(self);
        // SAFETY: the room is not used after this, so that the reference moves out of it.
        let pool = unsafe { std::ptr::read(&room.pool) };
        let bytes = bytes.min(pool.buffer_bytes());
        pool.lease(room.index, bytes)
    }
}

impl Deref for Room {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the buffer is this room's alone until it is dropped, and fresh memory is zeroed.
        unsafe {
            std::slice::from_raw_parts(self.pool.address(self.index), self.pool.buffer_bytes())
        }
    }
}

impl DerefMut for Room {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; the exclusive borrow of the room makes the slice exclusive.
        unsafe {
            std::slice::from_raw_parts_mut(self.pool.address(self.index), self.pool.buffer_bytes())
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.pool.give_back(self.index);
    }
}

/// Bytes in a buffer that belongs to the channel, leased to the application.
///
/// Reads as a `[u8]`. Dropping the lease returns the buffer; writing it
/// ([`Channel::write`](crate::Channel::write)) sends the bytes without copying them in user space
/// and returns it once they are sent; while more than half of the channel's buffers are leased, or
/// several writes of the handle wait already, `write` copies the bytes and returns the buffer at
/// once. A channel whose buffers are all leased stops receiving until one comes back, so a lease is
/// for handling a message, not for keeping it.
///
/// An empty lease is the end of the stream; it holds no buffer ([`Lease::is_end`]). Leases outlive
/// their channel.
pub struct Lease {
    pool: Option<Rc<Pool>>,
    index: u16,
    /// Where what arrived begins.
    first: u32,
    start: u32,
    end: u32,
    filled: u32,
}

impl Lease {
    /// The end of a stream.
    pub(crate) fn empty() -> Lease {
        Lease { pool: None, index: 0, first: 0, start: 0, end: 0, filled: 0 }
    }

    /// Whether it is the end of the stream, as opposed to an empty message of a packet socket.
    pub fn is_end(&self) -> bool {
        self.pool.is_none()
    }

    /// Removes the first `bytes` bytes for good.
    pub(crate) fn cut_front(&mut self, bytes: usize) {
        self.advance(bytes);
        self.first = self.start;
    }

    /// Whether the application holds so many buffers of this class that those who keep one for
    /// long, such as a write to a peer that does not read, should copy it instead.
    pub(crate) fn is_crowded(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| 2 * pool.leased_count() > pool.count())
    }

    /// Drops the first `bytes` bytes from view (all of them if there are fewer), as after parsing
    /// a header.
    pub fn advance(&mut self, bytes: usize) {
        self.start += bytes.min(self.len()) as u32;
    }

    /// Keeps only the first `bytes` bytes in view.
    pub fn truncate(&mut self, bytes: usize) {
        self.end = self.start + bytes.min(self.len()) as u32;
    }

    /// Has all that arrived in view again, as after a write of a part was refused.
    pub fn restore(&mut self) {
        (self.start, self.end) = (self.first, self.filled);
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let Some(pool) = &self.pool else { return &[] };
        let address = pool.address(self.index).wrapping_add(self.start as usize);
        // SAFETY: the buffer is this lease's alone until it is dropped, `start..end` lies within
        // it, and the driver has written those bytes.
        unsafe { std::slice::from_raw_parts(address, (self.end - self.start) as usize) }
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [u8] {
        let Some(pool) = &self.pool else { return &mut [] };
        let address = pool.address(self.index).wrapping_add(self.start as usize);
        // SAFETY: as for `deref`; the exclusive borrow of the lease makes the slice exclusive.
        unsafe { std::slice::from_raw_parts_mut(address, (self.end - self.start) as usize) }
    }
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Lease({} bytes)", self.len())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.leased.set(pool.leased.get() - 1);
            pool.give_back(self.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_returns_its_buffer_and_the_warmest_is_reused_first() {
        let pool = Rc::new(Pool::new(4, 128).unwrap());
        let first = pool.take().unwrap();
        let second = pool.take().unwrap();
        assert_ne!(first, second);
        let lease = pool.lease(second, 128);
        assert_eq!((pool.free_count(), pool.leased_count()), (2, 1));
        drop(lease);
        assert_eq!((pool.free_count(), pool.leased_count()), (3, 0));
        assert_eq!(pool.take(), Some(second));
    }

    #[test]
    fn a_room_is_leased_or_returned() {
        let pool = Rc::new(Pool::new(2, 64).unwrap());
        let mut room = Room::take(&pool).unwrap();
        assert_eq!(room.len(), 64);
        room[..3].copy_from_slice(b"abc");
        drop(Room::take(&pool).unwrap());
        let lease = room.lease(3);
        assert_eq!((&*lease, pool.leased_count(), Rc::strong_count(&pool)), (&b"abc"[..], 1, 2));
        drop(lease);
        assert_eq!((pool.free_count(), Rc::strong_count(&pool)), (2, 1));
    }

    #[test]
    fn views_shrink_from_both_ends_and_stop_there() {
        let pool = Rc::new(Pool::new(1, 16).unwrap());
        let index = pool.take().unwrap();
        let mut lease = pool.lease(index, 10);
        lease.copy_from_slice(b"0123456789");
        lease.advance(3);
        lease.truncate(4);
        assert_eq!(&*lease, b"3456");
        lease.advance(99);
        assert!(lease.is_empty());
        lease.truncate(99);
        assert!(lease.is_empty());
        lease.restore();
        assert_eq!(&*lease, b"0123456789");
    }

    #[test]
    fn buffers_do_not_overlap_and_outlive_the_pool_owner() {
        let pool = Rc::new(Pool::new(3, 100).unwrap());
        let mut leases: Vec<Lease> = Vec::new();
        while let Some(index) = pool.take() {
            leases.push(pool.lease(index, 100));
        }
        drop(pool);
        for (value, lease) in leases.iter_mut().enumerate() {
            lease.fill(value as u8);
        }
        for (value, lease) in leases.iter().enumerate() {
            assert!(lease.iter().all(|byte| *byte == value as u8));
        }
    }
}
