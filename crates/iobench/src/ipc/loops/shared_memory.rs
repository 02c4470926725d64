//! Memory that both processes map.

use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};

use ipcload::Result;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::failed;

pub(super) struct SharedMemory {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for SharedMemory {}

impl SharedMemory {
    /// Makes memory of so many zeros, and the descriptor by which the other process maps it.
    pub(super) fn create(bytes: usize) -> Result<(SharedMemory, OwnedFd)> {
        let file = memfd_create(c"iobench-ipc", MemfdFlags::CLOEXEC)
            .and_then(|file| ftruncate(&file, bytes as u64).map(|()| file))
            .map_err(|errno| failed("make shared memory", errno))?;
        Ok((SharedMemory::map(&file, bytes)?, file))
    }

    /// Maps memory of this size, which another process has made.
    pub(super) fn map(file: &OwnedFd, bytes: usize) -> Result<SharedMemory> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap(null_mut(), bytes, access, MapFlags::SHARED, file, 0) }
            .map_err(|errno| failed("map shared memory", errno))?;
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at zero");
        Ok(SharedMemory { start, bytes })
    }

    /// Returns the address of so many bytes.
    pub(super) fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(offset + bytes <= self.bytes, "an offset lies within the memory");
        // SAFETY: the offset lies within the mapping.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and what points into it does not outlive it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
