//! Memory that a fork shares.

/// What each of two processes tells the other and the test.
pub(crate) struct Board<T> {
    ends: *mut [T; 2],
}

impl<T> Board<T> {
    /// Zeroed.
    ///
    /// # Safety
    /// Zeroes are a valid `T`, which several processes may use at the same time: atomics.
    pub(crate) unsafe fn new() -> Board<T> {
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let bytes = size_of::<[T; 2]>();
        // SAFETY: an anonymous mapping at an address that the kernel chooses.
        let ends = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
        assert_ne!(ends, libc::MAP_FAILED);
        Board { ends: ends.cast() }
    }

    pub(crate) fn ends(&self) -> &[T; 2] {
        // SAFETY: mapped, aligned, and valid by the promise of `new`.
        unsafe { &*self.ends }
    }
}

impl<T> Drop for Board<T> {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and nobody borrows from it any more.
        unsafe { libc::munmap(self.ends.cast(), size_of::<[T; 2]>()) };
    }
}
