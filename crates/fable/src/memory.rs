//! Shared memory between processes: sealed memfds, and mappings in which a ring appears twice in a
//! row.

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{TransportError, TransportResult};

/// The size of a page, in bytes.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Without the seals a peer could shrink the file, and reading the mapping would raise `SIGBUS`.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Makes a sealed memfd of this size: no process can resize it any more.
pub(crate) fn create_sealed(name: &CStr, bytes: usize) -> TransportResult<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file =
        rustix::fs::memfd_create(name, flags).map_err(TransportError::system("memfd_create"))?;
    rustix::fs::ftruncate(&file, bytes as u64)
        .map_err(TransportError::system("ftruncate of shared memory"))?;
    rustix::fs::fcntl_add_seals(&file, SEALS)
        .map_err(TransportError::system("sealing shared memory"))?;
    Ok(file)
}

/// Returns the size of a memfd from a peer, after checking that it is sealed.
pub(crate) fn sealed_bytes(file: BorrowedFd<'_>) -> TransportResult<usize> {
    if !rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS)) {
        return Err(TransportError::BadOffer("the memory is not a memfd sealed against resizing"));
    }
    let system =
        rustix::fs::fstatfs(file).map_err(TransportError::system("fstatfs of shared memory"))?;
    if system.f_type != libc::TMPFS_MAGIC {
        // A peer could punch a hole into a file of huge pages, and there may be no page for the
        // next access.
        return Err(TransportError::BadOffer("the memory is not made of ordinary pages"));
    }
    let status =
        rustix::fs::fstat(file).map_err(TransportError::system("fstat of shared memory"))?;
    usize::try_from(status.st_size)
        .map_err(|_| TransportError::BadOffer("the memory has a negative size"))
}

/// A mapping of a whole sealed file, in which some parts appear twice in a row.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is an address range of the process, not of a thread; its users decide which
// thread may access which byte.
unsafe impl Send for Mapping {}
// SAFETY: a mapping may be used from any thread, and its own methods only read its address and
// size.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `file`: first `plain_bytes` of it, then `rings` areas of `ring_bytes` each. Each area
    /// is mapped twice in a row, so that an access beyond its end continues at its start. The file
    /// must be sealed and have exactly that size; all sizes are multiples of the page size.
    pub(crate) fn with_rings(
        file: BorrowedFd<'_>,
        plain_bytes: usize,
        rings: usize,
        ring_bytes: usize,
    ) -> TransportResult<Mapping> {
        let expected = plain_bytes + rings * ring_bytes;
        if sealed_bytes(file)? != expected {
            return Err(TransportError::BadOffer("the memory does not have its size"));
        }
        let mapping = Mapping::reserve(plain_bytes + 2 * rings * ring_bytes)?;
        mapping.place(file, 0, 0, plain_bytes)?;
        for ring in 0..rings {
            let in_file = plain_bytes + ring * ring_bytes;
            let in_memory = plain_bytes + 2 * ring * ring_bytes;
            mapping.place(file, in_file, in_memory, ring_bytes)?;
            mapping.place(file, in_file, in_memory + ring_bytes, ring_bytes)?;
        }
        Ok(mapping)
    }

    /// Maps private zeroed memory.
    pub(crate) fn private(bytes: usize) -> TransportResult<Mapping> {
        Mapping::anonymous(bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Returns the size of the mapping.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves a range of addresses.
    fn reserve(bytes: usize) -> TransportResult<Mapping> {
        Mapping::anonymous(bytes, ProtFlags::empty())
    }

    fn anonymous(bytes: usize, protection: ProtFlags) -> TransportResult<Mapping> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: an anonymous mapping at an address that the kernel chooses.
        let base = unsafe { rustix::mm::mmap_anonymous(null_mut(), bytes, protection, flags) }
            .map_err(TransportError::system("mapping memory"))?;
        let base = NonNull::new(base.cast()).expect("the kernel chooses no address of zero");
        Ok(Mapping { base, bytes })
    }

    fn place(
        &self,
        file: BorrowedFd<'_>,
        in_file: usize,
        in_memory: usize,
        bytes: usize,
    ) -> TransportResult<()> {
        if bytes == 0 {
            return Ok(());
        }
        assert!(in_memory + bytes <= self.bytes, "a part lies within the reserved addresses");
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the target lies within the range that `reserve` mapped, which nothing else uses
        // yet.
        unsafe {
            let target = self.base.add(in_memory).as_ptr().cast();
            rustix::mm::mmap(target, bytes, access, flags, file, in_file as u64)
        }
        .map(drop)
        .map_err(TransportError::system("mapping shared memory"))
    }

    /// Returns the address of this offset, and checks that at least `bytes` bytes are mapped there.
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(offset + bytes <= self.bytes, "an offset lies within the mapping");
        // SAFETY: the offset was just checked to lie within one mapped range.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping owns the range since `reserve`, and there is no reference into it:
        // transports with slots in use leak their mapping.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_ring_has_no_edge() {
        let file = create_sealed(c"test", 3 * PAGE_BYTES).unwrap();
        let mapping = Mapping::with_rings(file.as_fd(), PAGE_BYTES, 2, PAGE_BYTES).unwrap();
        let start = mapping.at(PAGE_BYTES, 2 * PAGE_BYTES);
        // SAFETY: both addresses lie within the mapping, which only this test uses.
        let seen = unsafe {
            start.add(PAGE_BYTES + 5).write(77);
            start.add(5).read()
        };
        assert_eq!(seen, 77);
    }

    #[test]
    fn memory_that_may_vanish_is_refused() {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        // A kernel without huge pages has no peer that sends them.
        let Ok(file) = rustix::fs::memfd_create(c"test", flags) else { return };
        rustix::fs::fcntl_add_seals(&file, SEALS).unwrap();
        let error = sealed_bytes(file.as_fd()).unwrap_err();
        assert!(error.to_string().contains("ordinary"), "{error}");
    }

    #[test]
    fn memory_that_can_shrink_is_refused() {
        let file = rustix::fs::memfd_create(c"test", MemfdFlags::ALLOW_SEALING).unwrap();
        let error = Mapping::with_rings(file.as_fd(), 0, 0, 0).unwrap_err();
        assert!(error.to_string().contains("sealed"), "{error}");
    }
}
