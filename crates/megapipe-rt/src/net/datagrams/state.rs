//! What completions leave for the tasks of a datagram socket.

use super::datagram::{Datagram, FamilyAddress};
use crate::core::{Core, CoreChannel, Sink};
use crate::net::state::{Receiving, errno_of};
use crate::net::waiters::Waiters;
use megapipe::{Buffer, Direction, Event, Handle, Repeat};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;

/// Bytes that may wait for a task that does not read, before the socket stops receiving, and the
/// default of [`State::high_water`].
const HIGH_WATER: usize = 256 << 10;
/// What a datagram counts besides its bytes, so that empty ones are bounded too.
const DATAGRAM_COST: usize = 256;

/// Returns what a datagram of so many bytes counts.
pub(super) fn cost_of(bytes: usize) -> usize {
    bytes + DATAGRAM_COST
}

/// See the module.
pub(crate) struct State<A> {
    input: RefCell<VecDeque<io::Result<Datagram<A>>>>,
    input_bytes: Cell<usize>,
    receiving: Cell<Receiving>,
    pub(crate) readers: Waiters,
    /// Submitted bytes that are not sent yet.
    output_bytes: Cell<usize>,
    /// Bytes of output from which on senders wait.
    high_water: Cell<usize>,
    /// The `errno` of the first datagram that the kernel refused.
    output_error: Cell<Option<i32>>,
    /// Whether the kernel refuses messages with a segment size.
    refuses_segments: Cell<bool>,
    pub(crate) writers: Waiters,
    /// Whether a writer waits for any completion of a send, because the channel was full.
    awaits_any: Cell<bool>,
    pub(super) flushers: Waiters,
}

impl<A> Default for State<A> {
    fn default() -> State<A> {
        State {
            input: RefCell::default(),
            input_bytes: Cell::new(0),
            receiving: Cell::new(Receiving::Idle),
            readers: Waiters::default(),
            output_bytes: Cell::new(0),
            high_water: Cell::new(HIGH_WATER),
            output_error: Cell::new(None),
            refuses_segments: Cell::new(false),
            writers: Waiters::default(),
            awaits_any: Cell::new(false),
            flushers: Waiters::default(),
        }
    }
}

impl<A: FamilyAddress> State<A> {
    /// Takes the first datagram or error.
    pub(super) fn take_input(&self) -> Option<io::Result<Datagram<A>>> {
        let first = self.input.borrow_mut().pop_front()?;
        if let Ok(datagram) = &first {
            self.input_bytes.set(self.input_bytes.get() - cost_of(datagram.len()));
        }
        Some(first)
    }

    /// Returns whether a datagram or an error waits.
    pub(super) fn has_input(&self) -> bool {
        !self.input.borrow().is_empty()
    }

    /// Takes the first datagram, unless an error comes before it.
    pub(crate) fn take_datagram(&self) -> Option<Datagram<A>> {
        if self.input.borrow().front()?.is_err() {
            return None;
        }
        self.take_input()?.ok()
    }

    /// Submits a receive, unless one is in flight.
    pub(super) fn start_receiving(
        &self,
        channel: &mut CoreChannel,
        handle: Handle,
    ) -> io::Result<()> {
        if self.receiving.get() == Receiving::Idle {
            channel.receive_from(handle, Repeat::UntilCancelled)?;
            self.receiving.set(Receiving::Active);
        }
        Ok(())
    }

    /// Cancels the receive in flight, whose last completion wakes the readers.
    pub(super) fn stop_receiving(&self, channel: &mut CoreChannel, handle: Handle) {
        if self.receiving.get() == Receiving::Active
            && channel.cancel_direction(handle, Direction::Inbound).is_ok()
        {
            self.receiving.set(Receiving::Cancelled);
        }
    }

    fn received(&self, core: &Core, handle: Handle, result: io::Result<megapipe::Datagram>) {
        match result.and_then(Datagram::new) {
            Ok(datagram) => {
                self.input_bytes.set(self.input_bytes.get() + cost_of(datagram.len()));
                self.input.borrow_mut().push_back(Ok(datagram));
            }
            // The socket itself cancels receives, and starts the next when a task waits again.
            Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => {}
            Err(error) => self.input.borrow_mut().push_back(Err(error)),
        }
        let waited = self.readers.wake_all();
        if !waited && self.input_bytes.get() >= HIGH_WATER {
            // Fails only after the end of the runtime.
            let _ = core.with_channel(|channel| {
                self.stop_receiving(channel, handle);
                Ok(())
            });
        }
    }

    pub(super) fn output_bytes(&self) -> usize {
        self.output_bytes.get()
    }

    pub(super) fn add_output(&self, cost: usize) {
        self.output_bytes.set(self.output_bytes.get() + cost);
    }

    pub(super) fn set_high_water(&self, bytes: usize) {
        self.high_water.set(bytes.max(1));
        if self.has_room() {
            self.writers.wake_all();
        }
    }

    /// Returns whether less than the high-water mark of output waits.
    pub(crate) fn has_room(&self) -> bool {
        self.output_bytes.get() < self.high_water.get()
    }

    /// Lets the next completion of a send wake the writers; returns false if none follows.
    pub(super) fn expect_room(&self) -> bool {
        let follows = self.output_bytes.get() > 0;
        self.awaits_any.set(follows);
        follows
    }

    pub(super) fn take_error(&self) -> Option<io::Error> {
        self.output_error.take().map(io::Error::from_raw_os_error)
    }

    /// Returns whether the kernel has refused a message because of its segment size.
    #[cfg(feature = "quinn")]
    pub(crate) fn refuses_segments(&self) -> bool {
        self.refuses_segments.get()
    }

    fn sent(&self, core: &Core, result: &io::Result<usize>, buffer: Buffer) {
        let left = self.output_bytes.get() - cost_of(buffer.len());
        self.output_bytes.set(left);
        if let Buffer::Owned(vector) = buffer {
            core.spare.keep(vector);
        }
        if let Err(error) = result
            && self.output_error.get().is_none()
        {
            self.output_error.set(Some(errno_of(error)));
        }
        if self.awaits_any.take() || left <= self.high_water.get() / 2 {
            self.writers.wake_all();
        }
        if left == 0 {
            self.flushers.wake_all();
        }
    }
}

impl<A: FamilyAddress> Sink for State<A> {
    fn complete(&self, core: &Core, handle: Handle, event: Event, more: bool) {
        match event {
            Event::ReceiveFrom(result) => {
                if !more {
                    self.receiving.set(Receiving::Idle);
                }
                self.received(core, handle, result);
            }
            Event::SendTo(result, buffer) | Event::Write(result, buffer) => {
                self.sent(core, &result, buffer);
            }
            Event::SendMessage(result, message) => {
                if let Err(error) = &result
                    && message.segment_size().is_some()
                    && [libc::EIO, libc::EINVAL].contains(&errno_of(error))
                {
                    self.refuses_segments.set(true);
                }
                self.sent(core, &result, message.into_buffer());
            }
            _ => {}
        }
    }
}
