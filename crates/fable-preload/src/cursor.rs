//! A place in the list of buffers that an application gave.

use libc::iovec;

/// Where in a list of buffers a transfer stands.
pub(crate) struct Cursor {
    list: *const iovec,
    left: usize,
    offset: usize,
    /// Bytes transferred so far.
    pub(crate) moved: usize,
}

impl Cursor {
    /// # Safety
    /// The list has `count` entries, whose buffers are the application's for the time of its call.
    pub(crate) unsafe fn new(list: *const iovec, count: usize) -> Self {
        Cursor { list, left: count, offset: 0, moved: 0 }
    }

    /// The rest of the buffer that the cursor is in; `None` at the end.
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

    /// What is left of the buffers, at most `limit` bytes of it; how many entries of `list` that
    /// takes.
    pub(crate) fn segments(&mut self, limit: usize, list: &mut [iovec]) -> usize {
        let (mut count, mut room) = (0, limit);
        if self.segment().is_none() {
            return 0;
        }
        for place in 0..self.left.min(list.len()) {
            // SAFETY: so many entries are left.
            let entry = unsafe { &*self.list.add(place) };
            let offset = if place == 0 { self.offset } else { 0 };
            let length = (entry.iov_len - offset).min(room);
            // SAFETY: the offset lies within the buffer.
            let at = unsafe { entry.iov_base.cast::<u8>().add(offset) };
            list[place] = iovec { iov_base: at.cast(), iov_len: length };
            count = place + 1;
            room -= length;
            if room == 0 {
                break;
            }
        }
        count
    }

    /// Steps over bytes of the present buffer and of those behind it.
    pub(crate) fn skip(&mut self, bytes: usize) {
        let mut left = bytes;
        while left > 0
            && let Some((_, length)) = self.segment()
        {
            self.advance(length.min(left));
            left -= length.min(left);
        }
    }

    /// Steps over bytes of the present buffer.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.offset += bytes;
        self.moved += bytes;
    }

    /// Whether no byte is left.
    pub(crate) fn is_done(&mut self) -> bool {
        self.segment().is_none()
    }
}
