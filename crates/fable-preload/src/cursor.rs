//! A position in the application's list of buffers.

use libc::iovec;

/// The position of a transfer in a list of buffers.
pub(crate) struct Cursor {
    list: *const iovec,
    left: usize,
    offset: usize,
    /// Bytes transferred so far.
    pub(crate) moved: usize,
}

impl Cursor {
    /// # Safety
    /// The list must have `count` entries, whose buffers belong to the application's call.
    pub(crate) unsafe fn new(list: *const iovec, count: usize) -> Self {
        Cursor { list, left: count, offset: 0, moved: 0 }
    }

    /// Returns the rest of the current buffer; `None` at the end.
    pub(crate) fn segment(&mut self) -> Option<(*mut u8, usize)> {
        while self.left > 0 {
            // SAFETY: entries are left.
            let entry = unsafe { &*self.list };
            if self.offset < entry.iov_len {
                // SAFETY: the offset lies within the buffer.
                let at = unsafe { entry.iov_base.cast::<u8>().add(self.offset) };
                return Some((at, entry.iov_len - self.offset));
            }
            // SAFETY: at most one past the last entry.
            self.list = unsafe { self.list.add(1) };
            self.left -= 1;
            self.offset = 0;
        }
        None
    }

    /// Fills `room` with the next buffers, for at most `limit` bytes.
    pub(crate) fn gather<'a>(&self, limit: usize, room: &'a mut [iovec]) -> &'a mut [iovec] {
        let mut ahead = Cursor { ..*self };
        let (mut count, mut left) = (0, limit);
        while count < room.len()
            && left > 0
            && let Some((at, length)) = ahead.segment()
        {
            let iov_len = length.min(left);
            room[count] = iovec { iov_base: at.cast(), iov_len };
            ahead.advance(iov_len);
            (count, left) = (count + 1, left - iov_len);
        }
        &mut room[..count]
    }

    /// Advances by this many bytes.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.moved += bytes;
        let mut left = bytes;
        while left > 0
            && let Some((_, length)) = self.segment()
        {
            let step = length.min(left);
            self.offset += step;
            left -= step;
        }
    }

    /// Returns whether no byte is left.
    pub(crate) fn is_done(&mut self) -> bool {
        self.segment().is_none()
    }
}
