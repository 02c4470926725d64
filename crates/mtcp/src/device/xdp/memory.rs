//! Manages mapped memory, and the frames in it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

/// Memory from mmap(2), which is unmapped when it is dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is only an address range; its users guarantee correct access.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives only the address; users guarantee correct access to the memory.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps zeroed private memory.
    pub(super) fn anonymous(bytes: usize) -> io::Result<Mapping> {
        let mapping = Mapping::new(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)?;
        // Huge pages cause fewer TLB misses; an error means that there are none.
        // SAFETY: the range is that of the mapping.
        unsafe { libc::madvise(mapping.start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        Ok(mapping)
    }

    /// Maps a ring of an AF_XDP socket.
    pub(super) fn ring(socket: &OwnedFd, bytes: usize, offset: libc::off_t) -> io::Result<Mapping> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        Mapping::new(bytes, flags, socket.as_raw_fd(), offset)
    }

    fn new(bytes: usize, flags: i32, descriptor: i32, offset: libc::off_t) -> io::Result<Mapping> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses a free range, so no existing mapping is replaced.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, descriptor, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, bytes })
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is that of the mapping, and every user of it held a reference to the
        // mapping.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// The part of the shared frames (the UMEM) that one queue owns. No other queue uses these frames.
#[derive(Debug)]
pub(super) struct Frames {
    umem: Arc<Mapping>,
    first: u64,
    frame_bytes: u32,
    count: u32,
}

impl Frames {
    /// Divides the UMEM into equal parts; the size of a frame is a power of two.
    pub(super) fn split(umem: &Arc<Mapping>, frame_bytes: u32, parts: usize) -> Vec<Frames> {
        let count = (umem.bytes() / parts.max(1) / frame_bytes as usize) as u32;
        let part_bytes = u64::from(count) * u64::from(frame_bytes);
        let part = |index| Frames {
            umem: Arc::clone(umem),
            first: part_bytes * index as u64,
            frame_bytes,
            count,
        };
        (0..parts).map(part).collect()
    }

    pub(super) fn frame_bytes(&self) -> u32 {
        self.frame_bytes
    }

    /// The addresses of the frames as used in the rings: bytes from the start of the UMEM.
    pub(super) fn addresses(&self) -> impl Iterator<Item = u64> + use<> {
        let (first, frame_bytes) = (self.first, u64::from(self.frame_bytes));
        (0..u64::from(self.count)).map(move |index| first + index * frame_bytes)
    }

    /// The start of the frame that contains this address, if `bytes` bytes follow within it and the
    /// frame is one of these.
    pub(super) fn frame_of(&self, address: u64, bytes: u32) -> Option<u64> {
        let from = address.checked_sub(self.first)?;
        let frame_bytes = u64::from(self.frame_bytes);
        let offset = from % frame_bytes;
        let inside =
            from / frame_bytes < u64::from(self.count) && offset + u64::from(bytes) <= frame_bytes;
        inside.then_some(address - offset)
    }

    /// Returns bytes of a frame that the kernel has passed to this process.
    ///
    /// # Safety
    /// The kernel does not use the frame while the slice lives.
    ///
    /// # Panics
    /// If the bytes are not within one of these frames.
    pub(super) unsafe fn read(&self, address: u64, bytes: u32) -> &[u8] {
        assert!(self.frame_of(address, bytes).is_some(), "a frame of this queue");
        // SAFETY: the range is within the mapping, which `self` keeps. The frame belongs to this
        // queue, and the caller guarantees that the kernel does not write it.
        unsafe {
            let start = self.umem.start().add(address as usize);
            slice::from_raw_parts(start.as_ptr(), bytes as usize)
        }
    }

    /// Like [`Frames::read`], but for writing.
    ///
    /// # Safety
    /// As [`Frames::read`].
    ///
    /// # Panics
    /// As [`Frames::read`].
    pub(super) unsafe fn write(&mut self, address: u64, bytes: u32) -> &mut [u8] {
        assert!(self.frame_of(address, bytes).is_some(), "a frame of this queue");
        // SAFETY: the range is within the mapping, which `self` keeps. The caller guarantees that
        // the kernel does not use the frame; `&mut self` excludes other slices of these frames.
        unsafe {
            let start = self.umem.start().add(address as usize);
            slice::from_raw_parts_mut(start.as_ptr(), bytes as usize)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_own_disjoint_frames() {
        let umem = Arc::new(Mapping::anonymous(8 * 2048).expect("memory"));
        let parts = Frames::split(&umem, 2048, 2);
        let mut all: Vec<u64> = parts.iter().flat_map(Frames::addresses).collect();
        assert_eq!(all.len(), 8);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all, (0..8).map(|index| index * 2048).collect::<Vec<u64>>());
        for address in parts[0].addresses() {
            assert_eq!(parts[0].frame_of(address + 5, 2043), Some(address));
            assert_eq!(parts[1].frame_of(address + 5, 1), None);
        }
    }

    #[test]
    fn addresses_that_a_frame_does_not_hold_are_refused() {
        let umem = Arc::new(Mapping::anonymous(4 * 2048).expect("memory"));
        let frames = &Frames::split(&umem, 2048, 2)[1];
        assert_eq!(frames.frame_of(4096, 2048), Some(4096));
        assert_eq!(frames.frame_of(4096, 2049), None);
        assert_eq!(frames.frame_of(8191, 1), Some(6144));
        assert_eq!(frames.frame_of(8191, 2), None);
        assert_eq!(frames.frame_of(8192, 0), None);
        assert_eq!(frames.frame_of(4095, 1), None);
        assert_eq!(frames.frame_of(u64::MAX, u32::MAX), None);
    }
}
