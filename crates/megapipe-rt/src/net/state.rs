//! What completions leave for the tasks of a connection.

use super::received::Received;
use super::waiter::Waiter;
use crate::core::{Core, Sink};
use megapipe::{Buffer, Direction, Event, Handle, Lease, Message};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;

/// Bytes of input that may wait for a task that does not read, before the connection stops
/// receiving, and of output that are gathered for one write. 64 KiB are what one request writes or
/// receives at most. Four times as much saves no measurable CPU time in bulk, and a stalled peer
/// costs the double; a quarter costs two thirds more CPU time for answers of 1 MiB.
const WINDOW: usize = 64 << 10;
/// Bytes of output that wait when a peer that has not moved enough is received from once.
const MUCH_OUTPUT: usize = 16 << 10;
/// After so many bytes a peer has read some: more than the kernel's buffers take without it.
pub(super) const SMALL_FOR: usize = 8 << 20;

/// The state of the connection's repeating receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiving {
    /// There is none.
    Idle,
    /// Completions follow.
    Active,
    /// It does not repeat: one completion follows.
    Once,
    /// It was cancelled, because too much input waits; its last completion follows.
    Cancelled,
}

/// The state of a connection's receive of a message with descriptors.
#[derive(Debug)]
pub(super) enum Incoming {
    None,
    Pending,
    Arrived(io::Result<Message>),
}

/// The state of a connection's connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connect {
    Pending,
    Done,
    /// An `errno`.
    Failed(i32),
}

/// The end of a connection's writing direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It was not asked for.
    No,
    /// It comes when all output is written.
    AfterOutput,
    /// It comes at the end of the turn, unless the connection is dropped before.
    AfterTurn,
    Submitted,
    /// An `errno`.
    Failed(i32),
}

/// See the module. One task reads and one task writes at a time.
pub(super) struct State {
    input: RefCell<VecDeque<Received>>,
    input_bytes: Cell<usize>,
    pub(super) receiving: Cell<Receiving>,
    /// How the input ends: 0 for the end of the stream, or an `errno`.
    input_end: Cell<Option<i32>>,
    pub(super) incoming: Cell<Incoming>,
    pub(super) reader: Waiter,
    /// Bytes that were copied and are not submitted yet.
    gathered: RefCell<Vec<u8>>,
    /// Gathered and submitted bytes that are not written yet.
    output_bytes: Cell<usize>,
    /// Bytes of output from which on a writer waits.
    pub(super) high_water: Cell<usize>,
    /// Bytes that are still to be read and written until receives always repeat.
    pub(super) small_for: Cell<usize>,
    /// The `errno` of the first write that failed.
    output_error: Cell<Option<i32>>,
    /// The writer is woken when at most so many bytes wait.
    pub(super) writer_level: Cell<usize>,
    pub(super) writer: Waiter,
    pub(super) connect: Cell<Connect>,
    pub(super) shutdown: Cell<Ending>,
}

impl State {
    pub(super) fn new(connect: Connect) -> State {
        State {
            input: RefCell::default(),
            input_bytes: Cell::new(0),
            receiving: Cell::new(Receiving::Idle),
            input_end: Cell::new(None),
            incoming: Cell::new(Incoming::None),
            reader: Waiter::default(),
            gathered: RefCell::default(),
            output_bytes: Cell::new(0),
            high_water: Cell::new(WINDOW),
            small_for: Cell::new(0),
            output_error: Cell::new(None),
            writer_level: Cell::new(0),
            writer: Waiter::default(),
            connect: Cell::new(connect),
            shutdown: Cell::new(Ending::No),
        }
    }

    fn note_moved(&self, bytes: usize) {
        self.small_for.set(self.small_for.get().saturating_sub(bytes));
    }

    /// Returns whether the connection receives only one piece: the first one, and while output
    /// waits, until the peer has moved enough. A repeating receive takes all that the kernel holds.
    pub(super) fn receives_once(&self) -> bool {
        let left = self.small_for.get();
        left == SMALL_FOR || left > 0 && self.output_bytes() >= MUCH_OUTPUT
    }

    /// Takes the first bytes of the input.
    pub(super) fn take_input(&self) -> Option<Received> {
        let received = self.input.borrow_mut().pop_front()?;
        self.input_bytes.set(self.input_bytes.get() - received.len());
        Some(received)
    }

    /// Puts bytes that were taken back before the others.
    pub(super) fn put_back(&self, received: Received) {
        self.input_bytes.set(self.input_bytes.get() + received.len());
        self.input.borrow_mut().push_front(received);
    }

    /// Returns whether there is input.
    pub(super) fn has_input(&self) -> bool {
        !self.input.borrow().is_empty()
    }

    /// Returns how the stream ended, if it has: well, or each time with the same error.
    pub(super) fn input_end(&self) -> Option<io::Result<()>> {
        Some(match self.input_end.get()? {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        })
    }

    /// Copies input into `room`, as far as both reach; returns the number of bytes.
    pub(super) fn copy_input(&self, room: &mut impl FnMut(&[u8]) -> usize) -> usize {
        let mut copied = 0;
        let mut emptied = None;
        let mut input = self.input.borrow_mut();
        while let Some(first) = input.front_mut() {
            let count = room(first);
            first.advance(count);
            copied += count;
            if !first.is_empty() {
                break;
            }
            emptied = input.pop_front();
        }
        drop(input);
        drop(emptied);
        self.input_bytes.set(self.input_bytes.get() - copied);
        self.note_moved(copied);
        copied
    }

    /// Copies the beginning of the input into a slice; returns the number of bytes.
    pub(super) fn peek_input(&self, slice: &mut [u8]) -> usize {
        let mut filled = 0;
        for received in &*self.input.borrow() {
            let room = &mut slice[filled..];
            let count = received.len().min(room.len());
            room[..count].copy_from_slice(&received[..count]);
            filled += count;
        }
        filled
    }

    pub(super) fn output_bytes(&self) -> usize {
        self.output_bytes.get()
    }

    pub(super) fn add_output(&self, bytes: usize) {
        self.output_bytes.set(self.output_bytes.get() + bytes);
        #[cfg(feature = "http")]
        super::queued::add(bytes);
    }

    /// Copies bytes behind those that were gathered, up to [`WINDOW`] in all. Returns their
    /// number, and whether they are the first ones.
    pub(super) fn gather<'a>(
        &self,
        core: &Core,
        slices: impl Iterator<Item = &'a [u8]>,
    ) -> (usize, bool) {
        let mut gathered = self.gathered.borrow_mut();
        if gathered.capacity() == 0 {
            *gathered = core.spare.take();
        }
        let before = gathered.len();
        for slice in slices {
            let room = WINDOW.saturating_sub(gathered.len());
            gathered.extend_from_slice(&slice[..slice.len().min(room)]);
        }
        let count = gathered.len() - before;
        self.add_output(count);
        (count, before == 0)
    }

    /// Returns whether so many bytes can be gathered behind others. Any number can be the first.
    pub(super) fn has_room_to_gather(&self, bytes: usize) -> bool {
        let gathered = self.gathered.borrow().len();
        gathered == 0 || gathered + bytes <= WINDOW
    }

    /// Submits the gathered bytes. Fails with [`io::ErrorKind::WouldBlock`] if the channel is full;
    /// any other error is that of the write.
    pub(super) fn try_submit_gathered(&self, core: &Core, handle: Handle) -> io::Result<()> {
        let gathered = self.gathered.take();
        let count = gathered.len();
        if count == 0 {
            return Ok(());
        }
        let submitted = core.with_channel(|channel| {
            channel.write(handle, gathered).map_err(|rejected| {
                if let Buffer::Owned(refused) = rejected.buffer {
                    self.gathered.replace(refused);
                }
                rejected.error.into()
            })
        });
        if let Err(error) = &submitted
            && error.kind() != io::ErrorKind::WouldBlock
        {
            self.gathered.take();
            self.written(count, &Err(io::Error::from_raw_os_error(errno_of(error))));
            self.end_output(core, handle);
        }
        submitted
    }

    /// Fails with the error of the first write that failed.
    pub(super) fn check_output(&self) -> io::Result<()> {
        self.output_error.get().map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }

    fn received(&self, core: &Core, handle: Handle, lease: Lease) {
        if lease.is_empty() {
            self.input_end.set(Some(0));
        } else {
            self.input_bytes.set(self.input_bytes.get() + lease.len());
            self.input.borrow_mut().push_back(Received::new(lease));
        }
        let waited = self.reader.wake();
        if !waited && self.input_bytes.get() >= WINDOW {
            self.stop_receiving(core, handle);
        }
    }

    /// Cancels the repeating receive, if there is one.
    pub(super) fn stop_receiving(&self, core: &Core, handle: Handle) {
        if self.receiving.get() != Receiving::Active {
            return;
        }
        let cancelled =
            core.with_channel(|channel| Ok(channel.cancel_direction(handle, Direction::Inbound)?));
        if cancelled.is_ok() {
            self.receiving.set(Receiving::Cancelled);
        }
    }

    fn failed_to_receive(&self, error: &io::Error) {
        let errno = errno_of(error);
        // The connection itself cancels receives, and starts the next when a task reads again.
        if errno != libc::ECANCELED {
            self.input_end.set(Some(errno));
        }
        self.reader.wake();
    }

    /// Fails unless a message with descriptors can be received: if reads have taken, or will take,
    /// what arrives.
    pub(super) fn check_unread(&self) -> io::Result<()> {
        let unread = self.receiving.get() == Receiving::Idle
            && self.input_end.get().is_none()
            && !self.has_input();
        if unread { Ok(()) } else { Err(invalid("receive messages before the first read")) }
    }

    /// Fails if a message is being received, or has been and waits to be taken.
    pub(super) fn check_no_message(&self) -> io::Result<()> {
        let incoming = self.incoming.replace(Incoming::None);
        let none = matches!(incoming, Incoming::None);
        self.incoming.set(incoming);
        if none { Ok(()) } else { Err(invalid("call receive_message again before the next read")) }
    }

    /// Ends the writing direction after the output, if that was asked for.
    pub(super) fn end_output(&self, core: &Core, handle: Handle) {
        if self.shutdown.get() == Ending::AfterOutput && self.output_bytes() == 0 {
            self.shutdown.set(Ending::AfterTurn);
            core.end_output(handle);
        }
    }

    /// Fails a write if the writing direction has ended, or is about to.
    pub(super) fn check_not_ended(&self) -> io::Result<()> {
        if self.shutdown.get() != Ending::No && self.output_error.get().is_none() {
            self.output_error.set(Some(libc::EPIPE));
        }
        self.check_output()
    }

    /// Fails with the error of a shutdown that was submitted.
    pub(super) fn check_shutdown(&self) -> io::Result<()> {
        match self.shutdown.get() {
            Ending::Failed(errno) => Err(io::Error::from_raw_os_error(errno)),
            _ => Ok(()),
        }
    }

    fn written(&self, bytes: usize, result: &io::Result<usize>) {
        let left = self.output_bytes.get() - bytes;
        self.output_bytes.set(left);
        self.note_moved(bytes);
        #[cfg(feature = "http")]
        super::queued::remove(bytes);
        if let Err(error) = result
            && self.output_error.get().is_none()
        {
            self.output_error.set(Some(errno_of(error)));
        }
        if result.is_err() || left <= self.writer_level.get() {
            self.writer.wake();
        }
    }
}

#[cfg(feature = "http")]
impl super::queued::Queue for State {
    fn queued_bytes(&self) -> usize {
        self.output_bytes()
    }
}

#[cfg(feature = "http")]
impl Drop for State {
    fn drop(&mut self) {
        super::queued::remove(self.output_bytes());
    }
}

impl Sink for State {
    fn submit_gathered(&self, core: &Core, handle: Handle) -> bool {
        let submitted = self.try_submit_gathered(core, handle);
        !submitted.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    fn submit_shutdown(&self, core: &Core, handle: Handle) -> bool {
        let submitted =
            core.with_channel(|channel| Ok(channel.disconnect(handle, Shutdown::Write)?));
        self.shutdown.set(match submitted {
            Ok(()) => Ending::Submitted,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(error) => Ending::Failed(errno_of(&error)),
        });
        true
    }

    fn complete(&self, core: &Core, handle: Handle, event: Event, more: bool) {
        match event {
            Event::Receive(result) => {
                if !more {
                    self.receiving.set(Receiving::Idle);
                }
                match result {
                    Ok(lease) => self.received(core, handle, lease),
                    Err(error) => self.failed_to_receive(&error),
                }
            }
            Event::Write(result, buffer) => {
                self.written(buffer.len(), &result);
                self.end_output(core, handle);
                if let Buffer::Owned(vector) = buffer {
                    core.spare.keep(vector);
                }
            }
            Event::SendMessage(result, message) => {
                self.written(message.bytes().len(), &result);
                self.end_output(core, handle);
            }
            Event::ReceiveMessage(result, message) => {
                self.incoming.set(Incoming::Arrived(result.map(|_| message)));
                self.reader.wake();
            }
            Event::Connect(result) => {
                self.connect.set(match result {
                    Ok(()) => Connect::Done,
                    Err(error) => Connect::Failed(errno_of(&error)),
                });
                self.writer.wake();
            }
            Event::Disconnect(Err(error)) if errno_of(&error) != libc::ENOTCONN => {
                self.shutdown.set(Ending::Failed(errno_of(&error)));
            }
            _ => {}
        }
    }
}

/// Returns the number of an error of a completion, which always has one.
pub(super) fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn invalid(remedy: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, remedy)
}
