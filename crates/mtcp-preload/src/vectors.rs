//! The application's buffers: the vectors of readv(2) and its like, which need not be slices.

use crate::outcome::{Outcome, failure};
use core::ffi::c_int;
use libc::iovec;
use std::marker::PhantomData;

/// What readv(2) takes at most.
const COUNT_MAX: usize = 1024;
/// The bytes that one call moves at most, as in the kernel.
const BYTES_MAX: usize = 0x7fff_f000;

/// Buffers one after the other. Bases may be null, which is an error only where there are bytes.
#[derive(Clone, Copy)]
pub(crate) struct Vectors<'a> {
    list: *const iovec,
    count: usize,
    /// Bytes before the first buffer that is none.
    bytes: usize,
    /// Bytes of all entries, whether they have a buffer or not.
    announced: usize,
    /// There is such a buffer.
    faulty: bool,
    buffers: PhantomData<&'a mut [u8]>,
}

impl<'a> Vectors<'a> {
    /// The vectors of a call that fails with this errno if there are too many.
    ///
    /// # Errors
    /// `EFAULT`: there is no list; `EINVAL`: a length is negative.
    ///
    /// # Safety
    /// The list has so many entries, and each base that is not null its bytes, for `'a`. They are
    /// written to only by [`Vectors::rooms`].
    pub(crate) unsafe fn new(
        list: *const iovec,
        count: usize,
        too_many: c_int,
    ) -> Outcome<Vectors<'a>> {
        if count > COUNT_MAX {
            return failure(too_many);
        }
        if list.is_null() && count > 0 {
            return failure(libc::EFAULT);
        }
        let mut made =
            Vectors { list, count, bytes: 0, announced: 0, faulty: false, buffers: PhantomData };
        for index in 0..count {
            // SAFETY: promised by the caller.
            let vector = unsafe { list.add(index).read_unaligned() };
            if isize::try_from(vector.iov_len).is_err() {
                return failure(libc::EINVAL);
            }
            made.announced = made.announced.saturating_add(vector.iov_len).min(BYTES_MAX);
            made.faulty |= vector.iov_base.is_null() && vector.iov_len > 0;
            if !made.faulty {
                made.bytes = made.bytes.saturating_add(vector.iov_len).min(BYTES_MAX);
            }
        }
        Ok(made)
    }

    /// One buffer.
    ///
    /// # Errors
    /// As [`Vectors::new`].
    ///
    /// # Safety
    /// As for [`Vectors::new`].
    pub(crate) unsafe fn one(vector: &'a iovec) -> Outcome<Vectors<'a>> {
        // SAFETY: promised by the caller.
        unsafe { Vectors::new(vector, 1, libc::EINVAL) }
    }

    /// Bytes that can be moved.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of all entries, whether they have a buffer or not.
    pub(crate) fn announced_bytes(&self) -> usize {
        self.announced
    }

    /// Whether there is nothing to move, and nothing wrong.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0 && !self.faulty
    }

    /// Whether a call that moves more than [`Vectors::bytes`] reaches a null buffer.
    pub(crate) fn is_faulty(&self) -> bool {
        self.faulty
    }

    /// The buffers from a byte on, none of them empty, to read from.
    pub(crate) fn parts(self, skip: usize) -> impl Iterator<Item = &'a [u8]> {
        self.pieces(skip).map(|(base, length)| {
            // SAFETY: promised to `new`; not null, and within the entry.
            unsafe { std::slice::from_raw_parts(base, length) }
        })
    }

    /// The same to write into.
    pub(crate) fn rooms(self, skip: usize) -> impl Iterator<Item = &'a mut [u8]> {
        self.pieces(skip).map(|(base, length)| {
            // SAFETY: as above; one at a time is used.
            unsafe { std::slice::from_raw_parts_mut(base, length) }
        })
    }

    fn pieces(self, mut skip: usize) -> impl Iterator<Item = (*mut u8, usize)> {
        let mut left = self.bytes.saturating_sub(skip);
        (0..self.count).filter_map(move |index| {
            // SAFETY: promised to `new`.
            let vector = unsafe { self.list.add(index).read_unaligned() };
            let skipped = skip.min(vector.iov_len);
            skip -= skipped;
            let length = (vector.iov_len - skipped).min(left);
            left -= length;
            // SAFETY: within the entry.
            (length > 0).then(|| (unsafe { vector.iov_base.cast::<u8>().add(skipped) }, length))
        })
    }
}
