//! Memory shared between processes: sealed memfds, mapped so that a ring has no edge.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use crate::error::{TransportError, TransportResult};

/// The size of a page on the machines that we run on.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Without these a peer could shrink the file, and reading the mapping would be `SIGBUS`.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Makes a memfd of this size that nobody can resize any more.
pub(crate) fn create_sealed(
    name: &'static std::ffi::CStr,
    bytes: usize,
) -> TransportResult<OwnedFd> {
    // SAFETY: the name ends in a zero byte.
    let descriptor =
        unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if descriptor < 0 {
        return Err(TransportError::last("memfd_create"));
    }
    // SAFETY: the descriptor is new and ours.
    let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let length = libc::off_t::try_from(bytes)
        .map_err(|_| TransportError::BadOffer("more memory than a file can have"))?;
    // SAFETY: plain system calls on a descriptor of ours.
    if unsafe { libc::ftruncate(file.as_raw_fd(), length) } < 0 {
        return Err(TransportError::last("ftruncate of shared memory"));
    }
    // SAFETY: as above.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } < 0 {
        return Err(TransportError::last("sealing shared memory"));
    }
    Ok(file)
}

/// The size of a memfd from a peer, if it is sealed.
pub(crate) fn sealed_bytes(file: BorrowedFd<'_>) -> TransportResult<usize> {
    // SAFETY: a plain system call on a valid descriptor.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & SEALS != SEALS {
        return Err(TransportError::BadOffer("the memory is not a memfd sealed against resizing"));
    }
    // SAFETY: `statfs` is plain data, valid when zeroed.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is valid, and `system` outlives the call.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut system) } < 0 {
        return Err(TransportError::last("fstatfs of shared memory"));
    }
    if system.f_type != libc::TMPFS_MAGIC {
        // Huge pages can be taken back by making a hole, and may not be there when touched again.
        return Err(TransportError::BadOffer("the memory is not made of ordinary pages"));
    }
    // SAFETY: `stat` is plain data, valid when zeroed.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is valid, and `status` outlives the call.
    if unsafe { libc::fstat(file.as_raw_fd(), &raw mut status) } < 0 {
        return Err(TransportError::last("fstat of shared memory"));
    }
    usize::try_from(status.st_size)
        .map_err(|_| TransportError::BadOffer("the memory has a negative size"))
}

/// A mapping of a whole sealed file, in which some parts appear twice in a row.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is an address range of the process, not of a thread; who may touch which byte
// of it is the affair of its users.
unsafe impl Send for Mapping {}
// SAFETY: as above; the methods of the mapping itself only read its address and size.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `file`: first `plain_bytes` of it, then `rings` areas of `ring_bytes` each, each of
    /// which is mapped twice in a row, so that what runs over its end goes on at its start. The
    /// file must be sealed and have exactly that size; all sizes are multiples of the page size.
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

    /// Zeroed memory of this process alone. What of it is in a pipe when it is unmapped stays.
    pub(crate) fn private(bytes: usize) -> TransportResult<Mapping> {
        Mapping::anonymous(bytes, libc::PROT_READ | libc::PROT_WRITE)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps a range of addresses free of everything else.
    fn reserve(bytes: usize) -> TransportResult<Mapping> {
        Mapping::anonymous(bytes, libc::PROT_NONE)
    }

    fn anonymous(bytes: usize, protection: libc::c_int) -> TransportResult<Mapping> {
        // SAFETY: an anonymous mapping at an address that the kernel chooses.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => Ok(Mapping { base, bytes }),
            _ => Err(TransportError::last("mapping memory")),
        }
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
        // SAFETY: the target lies within the range that `reserve` took, which nobody else uses yet.
        let placed = unsafe {
            libc::mmap(
                self.base.as_ptr().add(in_memory).cast(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                file.as_fd().as_raw_fd(),
                libc::off_t::try_from(in_file).unwrap_or(libc::off_t::MAX),
            )
        };
        if placed == libc::MAP_FAILED {
            return Err(TransportError::last("mapping shared memory"));
        }
        Ok(())
    }

    /// The address of this offset, of which at least `bytes` are mapped.
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(offset + bytes <= self.bytes, "an offset lies within the mapping");
        // SAFETY: the offset was just checked to lie within one mapped range.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours since `reserve`, and nobody holds a reference into it: slots
        // keep their transport's mapping by leaking it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_has_no_edge() {
        let file = create_sealed(c"test", 3 * PAGE_BYTES).unwrap();
        let mapping = Mapping::with_rings(file.as_fd(), PAGE_BYTES, 2, PAGE_BYTES).unwrap();
        let start = mapping.at(PAGE_BYTES, 2 * PAGE_BYTES);
        // SAFETY: both addresses lie within the mapping, which nobody else uses.
        let seen = unsafe {
            start.add(PAGE_BYTES + 5).write(77);
            start.add(5).read()
        };
        assert_eq!(seen, 77);
    }

    #[test]
    fn memory_that_may_vanish_is_refused() {
        let flags = libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB;
        // SAFETY: the name ends in a zero byte.
        let descriptor = unsafe { libc::memfd_create(c"test".as_ptr(), flags) };
        if descriptor < 0 {
            // This kernel has no huge pages, so no peer has any either.
            return;
        }
        // SAFETY: the descriptor is new and ours.
        let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // SAFETY: a plain system call on a descriptor of ours.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) }, 0);
        let error = sealed_bytes(file.as_fd()).unwrap_err();
        assert!(error.to_string().contains("ordinary"), "{error}");
    }

    #[test]
    fn memory_that_can_shrink_is_refused() {
        // SAFETY: the name ends in a zero byte.
        let descriptor = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING) };
        // SAFETY: the descriptor is new and ours.
        let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let error = Mapping::with_rings(file.as_fd(), 0, 0, 0).unwrap_err();
        assert!(error.to_string().contains("sealed"), "{error}");
    }
}
