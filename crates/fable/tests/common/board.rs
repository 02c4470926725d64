//! Memory that forked processes share.

/// Memory in which each of two processes reports its state to the other and to the test.
pub(crate) struct Board<T> {
    ends: *mut [T; 2],
}

impl<T> Board<T> {
    /// Makes a zeroed board.
    ///
    /// # Safety
    /// All zeros must be a valid `T`, and several processes must be able to use it at the same time
    /// (atomics).
    pub(crate) unsafe fn new() -> Board<T> {
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let bytes = size_of::<[T; 2]>();
        // SAFETY: an anonymous mapping at an address that the kernel chooses.
        let ends = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
        assert_ne!(ends, libc::MAP_FAILED);
        Board { ends: ends.cast() }
    }

    /// Returns the state of each process.
    pub(crate) fn ends(&self) -> &[T; 2] {
        // SAFETY: the memory is mapped and aligned, and `new` demands that zeros are a valid `T`.
        unsafe { &*self.ends }
    }
}

impl<T> Drop for Board<T> {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the memory, and no borrow outlives the board.
        unsafe { libc::munmap(self.ends.cast(), size_of::<[T; 2]>()) };
    }
}
