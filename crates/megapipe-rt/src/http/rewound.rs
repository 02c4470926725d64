//! A stream with bytes that were read before, which are the next to be read.

use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::progress;

/// Most bytes that [`Rewound::poll_more`] reads: enough for most headers, because hyper doubles its
/// buffer if it has to read again.
const MORE_MAX: usize = 1_024;

/// See the module. Reads and writes are told to [`progress`].
pub(super) struct Rewound<I> {
    stream: I,
    /// What was read before; empty without memory.
    bytes: Vec<u8>,
    /// How much of it was read again.
    taken: usize,
}

impl<I: Read + Write + Unpin> Rewound<I> {
    pub(super) fn new(stream: I) -> Rewound<I> {
        Rewound { stream, bytes: Vec::new(), taken: 0 }
    }

    /// Puts bytes back that were the last to be read.
    pub(super) fn put_back(&mut self, bytes: &[u8]) {
        self.bytes = [bytes, self.unread()].concat();
        self.taken = 0;
    }

    /// The bytes that are the next to be read.
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Waits for bytes and reads some to be read again; returns their number, 0 at the end.
    pub(super) fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut room = [const { MaybeUninit::uninit() }; MORE_MAX];
        let mut buffer = ReadBuf::uninit(&mut room);
        std::task::ready!(Pin::new(&mut self.stream).poll_read(context, buffer.unfilled()))?;
        self.bytes.extend_from_slice(buffer.filled());
        Poll::Ready(Ok(buffer.filled().len()))
    }
}

impl<I: Read + Unpin> Read for Rewound<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.bytes.is_empty() {
            let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
            if polled.is_ready() {
                progress::note_read();
            }
            return polled;
        }
        let count = buffer.remaining().min(self.bytes.len() - self.taken);
        buffer.put_slice(&self.bytes[self.taken..self.taken + count]);
        self.taken += count;
        if self.taken == self.bytes.len() {
            (self.bytes, self.taken) = (Vec::new(), 0);
        }
        progress::note_read();
        Poll::Ready(Ok(()))
    }
}

impl<I: Write + Unpin> Write for Rewound<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        progress::note_written(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        progress::note_written(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        progress::note_flushed(polled.is_ready());
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        progress::note_flushed(polled.is_ready());
        polled
    }
}
