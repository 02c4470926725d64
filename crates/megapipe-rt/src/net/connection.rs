//! A connection without its address family, as methods that poll.

use super::received::Received;
use super::state::{Connect, Ending, Receiving, State};
use crate::core::{Core, CoreChannel, Sink};
use crate::record::{Reason, note};
use crate::spans::Span;
use megapipe::{Address, Buffer, Handle, Rejected, Repeat, Socket, Source};
use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// A registered connection. Dropping it closes it, after what was written is sent.
pub(crate) struct Connection {
    core: Rc<Core>,
    handle: Handle,
    pub(super) state: Rc<State>,
    /// Whether it is a lightweight socket, which the channel closes without a completion.
    lightweight: bool,
    /// Whether only a close ends the writing direction, as that of a pipe.
    is_pipe: bool,
    /// Whether the drop discards queued output and resets the connection.
    aborted: Cell<bool>,
    /// Ends with the connection.
    _span: Span,
}

impl Connection {
    /// Registers a connected socket.
    pub(super) fn register(core: Rc<Core>, source: impl Into<Source>) -> io::Result<Connection> {
        Connection::make(core, Connect::Done, |channel, sink| channel.register(source, sink))
    }

    /// Registers one end of a pipe.
    pub(super) fn of_pipe(core: Rc<Core>, descriptor: OwnedFd) -> io::Result<Connection> {
        let mut connection = Connection::register(core, descriptor)?;
        connection.is_pipe = true;
        Ok(connection)
    }

    /// Registers a connection that the channel accepted as a lightweight socket.
    pub(super) fn accepted(core: Rc<Core>, socket: Socket) -> io::Result<Connection> {
        let mut connection = Connection::register(core, socket)?;
        connection.lightweight = true;
        connection.core.meter.connection_accepted();
        Ok(connection)
    }

    /// Opens a socket and begins to connect it.
    pub(super) fn connecting(core: Rc<Core>, address: Address) -> io::Result<Connection> {
        let made = Connection::make(core, Connect::Pending, |channel, sink| {
            channel.connect_to(address, sink)
        });
        let mut connection = made?;
        connection.lightweight = true;
        Ok(connection)
    }

    fn make(
        core: Rc<Core>,
        connect: Connect,
        register: impl FnOnce(&mut CoreChannel, Rc<dyn Sink>) -> megapipe::Result<Handle>,
    ) -> io::Result<Connection> {
        let state = Rc::new(State::new(connect));
        let sink = Rc::clone(&state) as Rc<dyn Sink>;
        let handle = core.with_channel(|channel| Ok(register(channel, sink)?))?;
        core.meter.connection_opened();
        let span = Span::of_connection(core.index, handle.index());
        let (lightweight, is_pipe, aborted) = (false, false, Cell::new(false));
        Ok(Connection { core, handle, state, lightweight, is_pipe, aborted, _span: span })
    }

    pub(super) fn poll_connected(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        match self.state.connect.get() {
            Connect::Done => Poll::Ready(Ok(())),
            Connect::Failed(errno) => Poll::Ready(Err(io::Error::from_raw_os_error(errno))),
            Connect::Pending => {
                note(Reason::CONNECT);
                self.state.writer.wait(context);
                Poll::Pending
            }
        }
    }

    /// Waits for input and takes the first bytes of it; `None` is the end of the stream.
    pub(super) fn poll_read(&self, context: &Context<'_>) -> Poll<io::Result<Option<Received>>> {
        if let Some(received) = self.state.take_input() {
            return Poll::Ready(Ok(Some(received)));
        }
        self.poll_end(context).map_ok(|()| None)
    }

    /// Waits for input and copies it by `room`, which takes bytes and returns how many it took.
    /// Returns the number of bytes, 0 at the end of the stream.
    pub(crate) fn poll_copy(
        &self,
        context: &Context<'_>,
        mut room: impl FnMut(&[u8]) -> usize,
    ) -> Poll<io::Result<usize>> {
        if self.state.has_input() {
            return Poll::Ready(Ok(self.state.copy_input(&mut room)));
        }
        self.poll_end(context).map_ok(|()| 0)
    }

    /// Waits for input and copies it into a slice.
    pub(crate) fn poll_copy_into(
        &self,
        context: &Context<'_>,
        slice: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut filled = 0;
        self.poll_copy(context, |bytes| {
            let room = &mut slice[filled..];
            let count = bytes.len().min(room.len());
            room[..count].copy_from_slice(&bytes[..count]);
            filled += count;
            count
        })
    }

    /// Waits for input and copies the beginning of it into a slice, without taking it.
    pub(super) fn poll_peek(
        &self,
        context: &Context<'_>,
        slice: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if self.state.has_input() {
            return Poll::Ready(Ok(self.state.peek_input(slice)));
        }
        self.poll_end(context).map_ok(|()| 0)
    }

    /// Waits for more input; ready at the end of the stream.
    fn poll_end(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        match self.state.input_end() {
            Some(end) => Poll::Ready(end),
            None => self.start_receiving(context),
        }
    }

    /// Ensures that a receive is in flight; it is ready only with an error.
    fn start_receiving(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        note(Reason::READ);
        self.state.reader.wait(context);
        if self.state.receiving.get() != Receiving::Idle {
            return Poll::Pending;
        }
        self.state.check_no_message()?;
        let handle = self.handle;
        let (repeat, receiving) = match self.state.receives_once() {
            true => (Repeat::Once, Receiving::Once),
            false => (Repeat::UntilCancelled, Receiving::Active),
        };
        match self.core.with_channel(|channel| Ok(channel.receive(handle, repeat)?)) {
            Ok(()) => self.state.receiving.set(receiving),
            // The channel is full until it has dispatched completions.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                context.waker().wake_by_ref();
            }
            Err(error) => return Poll::Ready(Err(error)),
        }
        Poll::Pending
    }

    /// Waits until less than the high-water mark of output waits.
    pub(super) fn poll_room(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        self.state.check_output()?;
        let high_water = self.state.high_water.get();
        if self.state.output_bytes() < high_water {
            return Poll::Ready(Ok(()));
        }
        self.await_level(high_water / 2, context)
    }

    /// Waits until all output is written.
    pub(crate) fn poll_flush(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        self.state.check_output()?;
        if self.state.output_bytes() == 0 {
            return Poll::Ready(Ok(()));
        }
        self.await_level(0, context)
    }

    fn await_level(&self, bytes: usize, context: &Context<'_>) -> Poll<io::Result<()>> {
        if self.state.receives_once() {
            self.state.stop_receiving(&self.core, self.handle);
        }
        self.state.writer_level.set(bytes);
        note(Reason::WRITE);
        self.state.writer.wait(context);
        Poll::Pending
    }

    /// Submits a write of the whole buffer once there is room for it, and then leaves `None`.
    pub(super) fn poll_write(
        &self,
        context: &Context<'_>,
        buffer: &mut Option<Buffer>,
    ) -> Poll<io::Result<()>> {
        self.state.check_not_ended()?;
        ready!(self.poll_room(context))?;
        ready!(self.poll_gathered(context))?;
        let Some(bytes) = buffer.take() else { return Poll::Ready(Ok(())) };
        if bytes.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let count = bytes.len();
        let submitted = self.with_refused(buffer, |channel, handle| channel.write(handle, bytes));
        self.poll_submitted(context, submitted, count)
    }

    /// Calls a method of the channel that takes something to write, and returns it to `refused` if
    /// it does not take it.
    pub(super) fn with_refused<B>(
        &self,
        refused: &mut Option<B>,
        call: impl FnOnce(&mut CoreChannel, Handle) -> Result<(), Rejected<B>>,
    ) -> io::Result<()> {
        self.core.with_channel(|channel| {
            call(channel, self.handle).map_err(|rejected| {
                *refused = Some(rejected.buffer);
                rejected.error.into()
            })
        })
    }

    /// Counts `bytes` bytes of output that were submitted, or waits until the channel takes more.
    pub(super) fn poll_submitted(
        &self,
        context: &Context<'_>,
        submitted: io::Result<()>,
        bytes: usize,
    ) -> Poll<io::Result<()>> {
        match submitted {
            Ok(()) => {
                self.state.add_output(bytes);
                Poll::Ready(Ok(()))
            }
            // The channel is full: this stream's output or other completions make room.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match self.state.output_bytes() {
                    0 => context.waker().wake_by_ref(),
                    bytes => return self.await_level(bytes - 1, context),
                }
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Copies the beginning of the slices, at most 64 KiB, and returns the number of bytes. What is
    /// copied before the end of the task's poll is submitted together: ten frames of HTTP/2 take
    /// four requests, and the peer reads larger pieces.
    pub(crate) fn poll_write_copy<'a>(
        &self,
        context: &Context<'_>,
        slices: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Poll<io::Result<usize>> {
        self.state.check_not_ended()?;
        ready!(self.poll_room(context))?;
        if !self.state.has_room_to_gather(slices.clone().map(<[u8]>::len).sum()) {
            ready!(self.poll_gathered(context))?;
        }
        let (count, first) = self.state.gather(&self.core, slices);
        if first && count > 0 {
            self.core.gather(self.handle);
        }
        Poll::Ready(Ok(count))
    }

    /// Submits what was copied, which has to precede every other request that writes.
    pub(super) fn poll_gathered(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let submitted = self.state.try_submit_gathered(&self.core, self.handle);
        self.poll_submitted(context, submitted, 0)
    }

    /// Ends the writing direction after all that was written, and waits until that is written. The
    /// direction ends at the end of the turn, or when the connection is dropped before.
    pub(crate) fn poll_shutdown(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        if self.is_pipe {
            return self.poll_flush(context);
        }
        if self.state.shutdown.get() == Ending::No {
            self.state.shutdown.set(Ending::AfterOutput);
            self.state.end_output(&self.core, self.handle);
        }
        ready!(self.poll_flush(context))?;
        Poll::Ready(self.state.check_shutdown())
    }

    /// Returns what tells how much output the kernel has not taken.
    #[cfg(feature = "http")]
    pub(crate) fn queue(&self) -> Rc<dyn super::Queue> {
        Rc::clone(&self.state) as Rc<dyn super::Queue>
    }

    pub(crate) fn abort(&self) {
        self.aborted.set(true);
    }

    pub(super) fn set_high_water(&self, bytes: usize) {
        self.state.high_water.set(bytes.max(1));
    }

    /// Holds less input until the peer has read some; called before the first read.
    #[cfg(feature = "http")]
    pub(crate) fn hold_little(&self) {
        self.state.small_for.set(super::state::SMALL_FOR);
    }

    pub(super) fn queued_bytes(&self) -> usize {
        self.state.output_bytes()
    }

    /// Calls a method of the channel with the connection's handle.
    pub(super) fn with<T>(
        &self,
        call: impl FnOnce(&mut CoreChannel, Handle) -> megapipe::Result<T>,
    ) -> io::Result<T> {
        self.core.with_channel(|channel| Ok(call(channel, self.handle)?))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A peer must not take a part of the output for the whole.
        let submitted = self.state.try_submit_gathered(&self.core, self.handle);
        let abort =
            self.aborted.get() || self.state.connect.get() != Connect::Done || submitted.is_err();
        self.core.meter.connection_closed();
        // Fails only after the end of the runtime, which has closed the connection.
        let cookie = self.with(|channel, handle| match abort {
            true => channel.abort(handle),
            // The same close, without a completion that nobody waits for.
            false if self.lightweight => channel.unregister(handle).map(|left| Some(left.cookie)),
            false => channel.close(handle).map(Some),
        });
        // The channel is not borrowed any more: the state's wakers are foreign code.
        drop(cookie);
    }
}
