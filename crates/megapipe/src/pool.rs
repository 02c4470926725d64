//! Manages the buffers that belong to a channel, and their leases to the application.

use crate::sys::Mapping;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// Distance between buffers: a cache line. With equal offsets in page-sized buffers, all would use
/// the same few sets of the level 1 cache.
const STAGGER_BYTES: usize = 64;

/// Buffers of one size in one mapping. A buffer is free, in use by the driver, or leased.
pub(crate) struct Pool {
    memory: Mapping,
    buffer_bytes: usize,
    count: usize,
    /// Free buffers; the last one was used most recently and is probably in the cache.
    free: RefCell<Vec<u16>>,
    leased: Cell<usize>,
    /// Total number of leases so far.
    leases: Cell<u64>,
}

impl Pool {
    /// Creates `count` buffers of `buffer_bytes` each; a buffer takes memory when it is first used.
    pub(crate) fn new(count: u16, buffer_bytes: usize) -> io::Result<Pool> {
        let memory = Mapping::anonymous(usize::from(count) * (buffer_bytes + STAGGER_BYTES))?;
        let free = RefCell::new((0..count).rev().collect());
        let (leased, leases) = (Cell::new(0), Cell::new(0));
        Ok(Pool { memory, buffer_bytes, count: usize::from(count), free, leased, leases })
    }

    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Returns the number of buffers.
    fn count(&self) -> usize {
        self.count
    }

    /// Returns the address of the buffer.
    pub(crate) fn address(&self, index: u16) -> *mut u8 {
        let offset = usize::from(index) * (self.buffer_bytes + STAGGER_BYTES);
        debug_assert!(offset < self.memory.bytes());
        self.memory.address().wrapping_add(offset)
    }

    /// Returns the number of free buffers.
    pub(crate) fn free_count(&self) -> usize {
        self.free.borrow().len()
    }

    /// Returns the number of leased buffers.
    pub(crate) fn leased_count(&self) -> usize {
        self.leased.get()
    }

    /// Returns the total number of leases so far.
    pub(crate) fn lease_count(&self) -> u64 {
        self.leases.get()
    }

    /// Takes a free buffer for the driver.
    pub(crate) fn take(&self) -> Option<u16> {
        self.free.borrow_mut().pop()
    }

    /// Returns a buffer from the driver to the free list.
    pub(crate) fn give_back(&self, index: u16) {
        self.free.borrow_mut().push(index);
    }

    /// Leases to the application a buffer that the driver has filled with `bytes` bytes.
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

/// A buffer of the channel that a driver fills. Dropping it returns the buffer.
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
        // SAFETY: the room is not used or dropped after this, so the reference moves out of it.
        let pool = unsafe { std::ptr::read(&room.pool) };
        let bytes = bytes.min(pool.buffer_bytes());
        pool.lease(room.index, bytes)
    }
}

impl Deref for Room {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: only this room uses the buffer until it is dropped, and fresh memory is zeroed.
        unsafe {
            std::slice::from_raw_parts(self.pool.address(self.index), self.pool.buffer_bytes())
        }
    }
}

impl DerefMut for Room {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: only this room uses the buffer until it is dropped, and fresh memory is zeroed;
        // the exclusive borrow of the room makes the slice exclusive.
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
/// Dereferences to `[u8]`. Dropping the lease returns the buffer. Writing it
/// ([`Channel::write`](crate::Channel::write)) sends the bytes without copying them in user space
/// and returns the buffer after they are sent. While more than half of the channel's buffers are
/// leased, or several writes of the handle already wait, `write` copies the bytes and returns the
/// buffer at once. A channel whose buffers are all leased stops receiving until one is returned, so
/// keep a lease only while you handle the message.
///
/// An empty lease is the end of the stream; it holds no buffer ([`Lease::is_end`]). Leases outlive
/// their channel.
pub struct Lease {
    pool: Option<Rc<Pool>>,
    index: u16,
    /// Offset of the received bytes.
    first: u32,
    start: u32,
    end: u32,
    filled: u32,
}

impl Lease {
    /// Creates the lease that stands for the end of a stream.
    pub(crate) fn empty() -> Lease {
        Lease { pool: None, index: 0, first: 0, start: 0, end: 0, filled: 0 }
    }

    /// Returns whether it is the end of the stream, and not an empty message of a packet socket.
    pub fn is_end(&self) -> bool {
        self.pool.is_none()
    }

    /// Removes the first `bytes` bytes permanently.
    pub(crate) fn cut_front(&mut self, bytes: usize) {
        self.advance(bytes);
        self.first = self.start;
    }

    /// Returns whether so many buffers of its size are leased, more than half, that a holder that
    /// keeps one for long should copy the bytes and drop the lease.
    pub fn is_crowded(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| 2 * pool.leased_count() > pool.count())
    }

    /// Hides the first `bytes` bytes (all of them if there are fewer), for example after parsing a
    /// header.
    pub fn advance(&mut self, bytes: usize) {
        self.start += bytes.min(self.len()) as u32;
    }

    /// Hides all but the first `bytes` bytes.
    pub fn truncate(&mut self, bytes: usize) {
        self.end = self.start + bytes.min(self.len()) as u32;
    }

    /// Makes all received bytes visible again, for example after a partial write was refused.
    pub fn restore(&mut self) {
        (self.start, self.end) = (self.first, self.filled);
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let Some(pool) = &self.pool else { return &[] };
        let address = pool.address(self.index).wrapping_add(self.start as usize);
        // SAFETY: only this lease uses the buffer until it is dropped, `start..end` lies within it,
        // and the driver has written those bytes.
        unsafe { std::slice::from_raw_parts(address, (self.end - self.start) as usize) }
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [u8] {
        let Some(pool) = &self.pool else { return &mut [] };
        let address = pool.address(self.index).wrapping_add(self.start as usize);
        // SAFETY: only this lease uses the buffer until it is dropped, `start..end` lies within it,
        // and the driver has written those bytes; the exclusive borrow makes the slice exclusive.
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
