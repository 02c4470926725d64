//! A ring of frames between two threads: one writes, one reads, neither locks or allocates.
//!
//! The ring is one stretch of cache lines through which frames wander, each behind a short header
//! and as long as it is: small frames stay within a few kilobytes of warm memory, and long ones
//! need no slots of their length. Positions count bytes since the beginning and never wrap; a frame
//! that does not fit before the end of the memory starts over at its beginning, and a header that
//! says so is left behind.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

const LINE_BYTES: usize = 64;
const HEADER_BYTES: usize = 16;
/// No ring is longer.
const RING_BYTES_MAX: usize = 1 << 30;
/// In place of a length: the next frame is at the beginning of the memory.
const WRAP: u32 = u32::MAX;

#[repr(C, align(64))]
struct Line(UnsafeCell<[u8; LINE_BYTES]>);

/// An index on a line of its own, so that one side's stores do not slow the other's.
#[repr(align(64))]
struct Position(AtomicU64);

/// What precedes a frame in the ring.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    bytes: u32,
    mark: u32,
}

struct Ring {
    lines: Box<[Line]>,
    /// Up to here frames are there to be read.
    tail: Position,
    /// Up to here frames have been read.
    head: Position,
    /// The reader is asleep, or about to be.
    reader_sleeps: AtomicBool,
    /// The writer waits for room, or is about to.
    writer_waits: AtomicBool,
    /// One side is gone.
    closed: AtomicBool,
}

// SAFETY: a byte of `lines` belongs to the writer while it lies outside of head..tail, and to the
// reader inside; both move their position with release and read the other's with acquire.
unsafe impl Sync for Ring {}

impl Ring {
    fn capacity(&self) -> usize {
        self.lines.len() * LINE_BYTES
    }

    /// The memory at a position; valid for the bytes up to the end of the ring.
    fn at(&self, position: u64) -> *mut u8 {
        let offset = position as usize & (self.capacity() - 1);
        // SAFETY: the offset lies within the lines, which are contiguous.
        unsafe { self.lines.as_ptr().cast_mut().cast::<u8>().add(offset) }
    }

    fn until_end(&self, position: u64) -> usize {
        self.capacity() - (position as usize & (self.capacity() - 1))
    }
}

/// Bytes that a frame takes in the ring, header and padding included.
const fn footprint(bytes: usize) -> usize {
    (HEADER_BYTES + bytes).next_multiple_of(LINE_BYTES)
}

/// A ring with at least so many bytes, in which frames of `longest` bytes always find room once it
/// is empty.
pub(super) fn ring(bytes: usize, longest: usize) -> (Writer, Reader) {
    let least = 2 * footprint(longest);
    let capacity = bytes.min(RING_BYTES_MAX).max(least).next_power_of_two();
    let lines = (0..capacity / LINE_BYTES).map(|_| Line(UnsafeCell::new([0; LINE_BYTES])));
    let ring = Arc::new(Ring {
        lines: lines.collect(),
        tail: Position(AtomicU64::new(0)),
        head: Position(AtomicU64::new(0)),
        reader_sleeps: AtomicBool::new(false),
        writer_waits: AtomicBool::new(false),
        closed: AtomicBool::new(false),
    });
    let writer = Writer { ring: ring.clone(), longest, tail: 0, published: 0, head: 0, room: None };
    (writer, Reader { ring, head: 0, tail: 0 })
}

/// The room that was given last.
#[derive(Clone, Copy)]
struct Room {
    /// Where its header goes.
    position: u64,
    bytes: usize,
}

/// The side that writes.
pub(super) struct Writer {
    ring: Arc<Ring>,
    longest: usize,
    /// Up to here frames are written.
    tail: u64,
    /// Up to here the reader knows of it.
    published: u64,
    /// What was last seen of the reader's position.
    head: u64,
    room: Option<Room>,
}

impl Writer {
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// Room for a frame; `None` if the ring is full or the frame too long for it.
    pub(super) fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.room = None;
        if bytes > self.longest {
            return None;
        }
        let until_end = self.ring.until_end(self.tail);
        let skip = if footprint(bytes) > until_end { until_end } else { 0 };
        let position = self.tail + skip as u64;
        let end = position + footprint(bytes) as u64;
        let capacity = self.ring.capacity() as u64;
        if end - self.head > capacity {
            self.head = self.ring.head.0.load(Ordering::Acquire);
            if end - self.head > capacity {
                return None;
            }
        }
        self.room = Some(Room { position, bytes });
        // SAFETY: the bytes lie between the tail and the head one turn on, which is the writer's
        // alone, and before the end of the memory; the borrow of `self` excludes a second slice.
        let room = unsafe {
            std::slice::from_raw_parts_mut(self.ring.at(position).add(HEADER_BYTES), bytes)
        };
        Some(room)
    }

    /// Adds the frame in the last room; false if there is none, or it is longer than its room.
    pub(super) fn commit(&mut self, bytes: usize, mark: u32) -> bool {
        let Some(room) = self.room.take().filter(|room| bytes <= room.bytes) else { return false };
        if room.position != self.tail {
            self.write_header(self.tail, Header { bytes: WRAP, mark: 0 });
        }
        self.write_header(room.position, Header { bytes: bytes as u32, mark });
        self.tail = room.position + footprint(bytes) as u64;
        true
    }

    fn write_header(&self, position: u64, header: Header) {
        // SAFETY: positions are multiples of a line, so a header fits and is aligned; unpublished
        // memory is the writer's alone.
        unsafe { self.ring.at(position).cast::<Header>().write(header) }
    }

    /// Shows the reader what was added; true if it is asleep and is to be woken.
    pub(super) fn publish(&mut self) -> bool {
        if self.published == self.tail {
            return false;
        }
        self.published = self.tail;
        self.ring.tail.0.store(self.tail, Ordering::Release);
        // Either the reader sees the new tail before it sleeps, or this sees that it sleeps.
        fence(Ordering::SeqCst);
        self.ring.reader_sleeps.load(Ordering::Relaxed)
            && self.ring.reader_sleeps.swap(false, Ordering::Relaxed)
    }

    /// Asks the reader to tell when there is room; false if there is room for `bytes` already.
    pub(super) fn wait_for_room(&mut self, bytes: usize) -> bool {
        self.ring.writer_waits.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.room(bytes).is_none()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.ring.closed.load(Ordering::Acquire)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.ring.closed.store(true, Ordering::Release);
    }
}

/// The side that reads.
pub(super) struct Reader {
    ring: Arc<Ring>,
    /// Up to here frames were read.
    head: u64,
    /// What was last seen of the writer's position.
    tail: u64,
}

impl Reader {
    /// Reads at most `limit` frames where they lie; gives their number, and whether the writer
    /// waits for the room that they leave.
    pub(super) fn read(&mut self, limit: usize, take: &mut dyn FnMut(&[u8], u32)) -> (usize, bool) {
        if self.head == self.tail {
            self.tail = self.ring.tail.0.load(Ordering::Acquire);
        }
        let mut count = 0;
        while count < limit && self.head != self.tail {
            // SAFETY: the writer has published a header here.
            let header = unsafe { self.ring.at(self.head).cast::<Header>().read() };
            if header.bytes == WRAP {
                self.head += self.ring.until_end(self.head) as u64;
                continue;
            }
            let bytes = header.bytes as usize;
            // SAFETY: the frame lies behind its header and was published with it; the writer does
            // not touch it before `head` moves on below.
            let frame = unsafe {
                std::slice::from_raw_parts(self.ring.at(self.head).add(HEADER_BYTES), bytes)
            };
            take(frame, header.mark);
            self.head += footprint(bytes) as u64;
            count += 1;
        }
        (count, count > 0 && self.release())
    }

    /// Gives the room of what was read back.
    fn release(&self) -> bool {
        self.ring.head.0.store(self.head, Ordering::Release);
        // Either the writer sees the room before it waits, or this sees that it waits.
        fence(Ordering::SeqCst);
        self.ring.writer_waits.load(Ordering::Relaxed)
            && self.ring.writer_waits.swap(false, Ordering::Relaxed)
    }

    /// Says that the reader will sleep; false if frames are there.
    pub(super) fn prepare_to_sleep(&mut self) -> bool {
        self.ring.reader_sleeps.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.head == self.ring.tail.0.load(Ordering::Acquire) {
            return true;
        }
        self.ring.reader_sleeps.store(false, Ordering::Relaxed);
        false
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.ring.closed.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(writer: &mut Writer, bytes: usize, value: u8) -> bool {
        let Some(room) = writer.room(bytes) else { return false };
        room.fill(value);
        assert!(writer.commit(bytes, u32::from(value)));
        true
    }

    #[test]
    fn frames_of_all_lengths_keep_their_order_around_the_end() {
        let (mut writer, mut reader) = ring(4096, 1500);
        let (mut written, mut read) = (0_u32, 0_u32);
        let length = |number: u32| (number as usize * 337) % 1500;
        for _ in 0..2000 {
            while write(&mut writer, length(written), written as u8) {
                written += 1;
            }
            writer.publish();
            reader.read(3, &mut |frame, mark| {
                assert_eq!(frame.len(), length(read));
                assert!(frame.iter().all(|&byte| byte == read as u8));
                assert_eq!(mark, u32::from(read as u8));
                read += 1;
            });
        }
        assert!(read > 1000, "only {read} frames came");
        assert!(written - read < 4096 / 64);
    }

    #[test]
    fn room_is_given_again_until_it_is_committed() {
        let (mut writer, mut reader) = ring(1024, 100);
        let first = writer.room(100).unwrap().as_ptr();
        assert_eq!(writer.room(100).unwrap().as_ptr(), first);
        assert!(!writer.commit(101, 0), "a frame longer than its room was taken");
        assert!(!writer.commit(10, 0), "a frame without room was taken");
        assert!(writer.room(101).is_none());
        assert!(write(&mut writer, 7, 1));
        assert_eq!(reader.read(9, &mut |_, _| ()).0, 0, "seen before it was published");
        writer.publish();
        assert_eq!(reader.read(9, &mut |frame, _| assert_eq!(frame, [1; 7])).0, 1);
    }

    #[test]
    fn the_longest_frame_fits_wherever_an_empty_ring_stands() {
        let (mut writer, mut reader) = ring(1, 1000);
        for number in 0..200 {
            let bytes = if number % 3 == 0 { 10 } else { 1000 };
            assert!(write(&mut writer, bytes, 9), "frame {number}");
            writer.publish();
            assert_eq!(reader.read(9, &mut |_, _| ()).0, 1);
        }
    }

    #[test]
    fn sleepers_are_told() {
        let (mut writer, mut reader) = ring(1024, 400);
        assert!(reader.prepare_to_sleep());
        assert!(write(&mut writer, 400, 1));
        assert!(writer.publish(), "the reader sleeps");
        assert!(!reader.prepare_to_sleep(), "a frame is there");
        assert!(write(&mut writer, 400, 1));
        assert!(!writer.publish(), "the reader is awake");
        assert!(!write(&mut writer, 400, 1));
        assert!(writer.wait_for_room(400));
        assert!(reader.read(1, &mut |_, _| ()).1, "the writer waits");
        assert!(!writer.wait_for_room(400));
    }
}
