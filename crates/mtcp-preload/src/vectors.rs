//! Handles the application's buffers: the vectors of readv(2) and related calls, which need not be
//! valid slices.

use crate::outcome::{Outcome, failure};
use core::ffi::c_int;
use libc::iovec;
use std::marker::PhantomData;

/// Most entries of readv(2).
const COUNT_MAX: usize = 1024;
/// Most bytes that one call transfers, as in the kernel.
const BYTES_MAX: usize = 0x7fff_f000;

/// A list of buffers. A base may be null, which is an error only if its length is not zero.
#[derive(Clone, Copy)]
pub(crate) struct Vectors<'a> {
    list: *const iovec,
    count: usize,
    /// Bytes before the first null buffer.
    bytes: usize,
    /// Bytes of all entries, including those with a null buffer.
    announced: usize,
    /// Whether there is a null buffer whose length is not zero.
    faulty: bool,
    buffers: PhantomData<&'a mut [u8]>,
}

impl<'a> Vectors<'a> {
    /// Checks the vectors of a call that fails with this errno if there are too many.
    ///
    /// # Errors
    /// `EFAULT` if there is no list; `EINVAL` if a length is negative.
    ///
    /// # Safety
    /// The list has `count` entries, and each base that is not null points to its length of memory,
    /// for `'a`. Only [`Vectors::rooms`] writes it.
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
            // SAFETY: the caller guarantees this.
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

    /// Makes a list of one buffer.
    ///
    /// # Errors
    /// As [`Vectors::new`].
    ///
    /// # Safety
    /// As for [`Vectors::new`].
    pub(crate) unsafe fn one(vector: &'a iovec) -> Outcome<Vectors<'a>> {
        // SAFETY: the caller guarantees this.
        unsafe { Vectors::new(vector, 1, libc::EINVAL) }
    }

    /// Returns how many bytes can be transferred.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns how many bytes all entries have, including those with a null buffer.
    pub(crate) fn announced_bytes(&self) -> usize {
        self.announced
    }

    /// Returns whether there is nothing to transfer, and no error.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0 && !self.faulty
    }

    /// Returns whether a call that transfers more than [`Vectors::bytes`] reaches a null buffer.
    pub(crate) fn is_faulty(&self) -> bool {
        self.faulty
    }

    /// Iterates over the buffers from byte `skip` on, for reading; none is empty.
    pub(crate) fn parts(self, skip: usize) -> impl Iterator<Item = &'a [u8]> {
        self.pieces(skip).map(|(base, length)| {
            // SAFETY: the caller of `new` guarantees this; not null, and within the entry.
            unsafe { std::slice::from_raw_parts(base, length) }
        })
    }

    /// Iterates over the buffers from byte `skip` on, for writing; none is empty.
    pub(crate) fn rooms(self, skip: usize) -> impl Iterator<Item = &'a mut [u8]> {
        self.pieces(skip).map(|(base, length)| {
            // SAFETY: the caller of `new` guarantees this; not null, within the entry, and one at a
            // time is used.
            unsafe { std::slice::from_raw_parts_mut(base, length) }
        })
    }

    fn pieces(self, mut skip: usize) -> impl Iterator<Item = (*mut u8, usize)> {
        let mut left = self.bytes.saturating_sub(skip);
        (0..self.count).filter_map(move |index| {
            // SAFETY: the caller of `new` guarantees this.
            let vector = unsafe { self.list.add(index).read_unaligned() };
            let skipped = skip.min(vector.iov_len);
            skip -= skipped;
            let length = (vector.iov_len - skipped).min(left);
            left -= length;
            // SAFETY: the address is within the entry.
            (length > 0).then(|| (unsafe { vector.iov_base.cast::<u8>().add(skipped) }, length))
        })
    }
}
