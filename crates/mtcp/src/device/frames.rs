//! Implements a ring of frames between two threads: one writes and one reads, without locks or
//! allocation.
//!
//! The ring is one contiguous array of cache lines. Each frame follows a short header and takes
//! only its own length. Small frames therefore stay within a few kilobytes of warm memory, and long
//! ones need no slots of their length. Positions count bytes since the beginning and never wrap. A
//! frame that does not fit before the end of the memory is stored at its beginning, and a header
//! before the end marks that.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

const LINE_BYTES: usize = 64;
const HEADER_BYTES: usize = 16;
/// The largest ring, in bytes.
const RING_BYTES_MAX: usize = 1 << 30;
/// A header with this length means that the next frame is at the beginning of the memory.
const WRAP: u32 = u32::MAX;

#[repr(C, align(64))]
struct Line(UnsafeCell<[u8; LINE_BYTES]>);

/// A position on its own cache line, so that the stores of one side do not slow the other.
#[repr(align(64))]
struct Position(AtomicU64);

/// The header before each frame in the ring.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    bytes: u32,
    mark: u32,
}

struct Ring {
    lines: Box<[Line]>,
    /// The end of the frames that can be read.
    tail: Position,
    /// The end of the frames that have been read.
    head: Position,
    /// Whether the reader sleeps, or is about to.
    reader_sleeps: AtomicBool,
    /// Whether the writer waits for room, or is about to.
    writer_waits: AtomicBool,
    /// Whether one side was dropped.
    closed: AtomicBool,
}

// SAFETY: a byte of `lines` belongs to the writer while it is outside of head..tail, and to the
// reader while it is inside. Both store their position with release and load the other's with
// acquire.
unsafe impl Sync for Ring {}

impl Ring {
    fn capacity(&self) -> usize {
        self.lines.len() * LINE_BYTES
    }

    /// The memory at a position; valid for the bytes up to the end of the memory.
    fn at(&self, position: u64) -> *mut u8 {
        let offset = position as usize & (self.capacity() - 1);
        // SAFETY: the offset is within the lines, which are contiguous.
        unsafe { self.lines.as_ptr().cast_mut().cast::<u8>().add(offset) }
    }

    fn until_end(&self, position: u64) -> usize {
        self.capacity() - (position as usize & (self.capacity() - 1))
    }
}

/// Bytes that a frame takes in the ring, including header and padding.
const fn footprint(bytes: usize) -> usize {
    (HEADER_BYTES + bytes).next_multiple_of(LINE_BYTES)
}

/// Creates a ring with at least this number of bytes, in which a frame of `longest` bytes always
/// fits when it is empty.
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

/// The room that was returned last.
#[derive(Clone, Copy)]
struct ReservedSlot {
    /// The position of its header.
    position: u64,
    bytes: usize,
}

/// The writing side.
pub(super) struct Writer {
    ring: Arc<Ring>,
    longest: usize,
    /// The end of the written frames.
    tail: u64,
    /// The end of the frames that the reader can see.
    published: u64,
    /// The reader's position when it was last loaded.
    head: u64,
    room: Option<ReservedSlot>,
}

impl Writer {
    /// The longest frame for which there can be room, in bytes.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// Returns room for a frame; `None` if the ring is full or the frame is too long for it.
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
        self.room = Some(ReservedSlot { position, bytes });
        // SAFETY: the bytes are between the tail and the head plus one turn, which only the writer
        // uses, and before the end of the memory. The borrow of `self` excludes a second slice.
        let room = unsafe {
            std::slice::from_raw_parts_mut(self.ring.at(position).add(HEADER_BYTES), bytes)
        };
        Some(room)
    }

    /// Adds the frame in the last room; false if there is none, or if the frame is longer than the
    /// room.
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
        // SAFETY: positions are multiples of a line, so a header fits and is aligned; only the
        // writer uses unpublished memory.
        unsafe { self.ring.at(position).cast::<Header>().write(header) }
    }

    /// Publishes the added frames to the reader; true if it sleeps and has to be woken.
    pub(super) fn publish(&mut self) -> bool {
        if self.published == self.tail {
            return false;
        }
        self.published = self.tail;
        self.ring.tail.0.store(self.tail, Ordering::Release);
        // Either the reader sees the new tail before it sleeps, or this load sees that it sleeps.
        fence(Ordering::SeqCst);
        self.ring.reader_sleeps.load(Ordering::Relaxed)
            && self.ring.reader_sleeps.swap(false, Ordering::Relaxed)
    }

    /// Asks the reader to report when there is room; false if there is room for `bytes` already.
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

/// The reading side.
pub(super) struct Reader {
    ring: Arc<Ring>,
    /// The end of the frames that were read.
    head: u64,
    /// The writer's position when it was last loaded.
    tail: u64,
}

impl Reader {
    /// Reads at most `limit` frames in place; returns their number, and whether the writer waits
    /// for the room that they leave.
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
            // SAFETY: the frame follows its header and was published with it; the writer does not
            // touch it before `head` is stored below.
            let frame = unsafe {
                std::slice::from_raw_parts(self.ring.at(self.head).add(HEADER_BYTES), bytes)
            };
            take(frame, header.mark);
            self.head += footprint(bytes) as u64;
            count += 1;
        }
        (count, count > 0 && self.release())
    }

    /// Frees the room of the frames that were read; true if the writer waits for it.
    fn release(&self) -> bool {
        self.ring.head.0.store(self.head, Ordering::Release);
        // Either the writer sees the room before it waits, or this load sees that it waits.
        fence(Ordering::SeqCst);
        self.ring.writer_waits.load(Ordering::Relaxed)
            && self.ring.writer_waits.swap(false, Ordering::Relaxed)
    }

    /// Announces that the reader will sleep; false if there are frames.
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
