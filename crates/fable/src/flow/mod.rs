//! Flows: message connections that can change their transport while they are open (section 3 of the
//! paper).
//!
//! A [`Flow`] belongs to one thread. It reads one path and writes one. When its ends have agreed on
//! another path, in the background, the flow continues there without losing, repeating or
//! reordering a message.
//!
//! `core` reads and writes. `epochs` moves from one path to the next; `path` is one of them.
//! `buffer` is what the application gets. `wait` sleeps. `watch` makes one descriptor of all that a
//! flow waits for, and `arming` decides when it is readable. `opening` opens a flow. `closing` and
//! `lingering` end one.

mod arming;
mod buffer;
mod closing;
mod core;
mod counters;
mod epochs;
mod lingering;
mod opening;
mod parts;
mod path;
mod wait;
mod watch;

use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

pub use crate::control::{FlowHandle, KeysAnswer, Reporter};
pub use buffer::{ReadBuffer, WriteBuffer};
pub use lingering::{Lingering, lingering};
pub use opening::Opening;
pub(crate) use parts::FlowSettings;
pub use parts::{FlowEvent, FlowParts, Statistics, Timeouts};

use self::closing::WaitFor;
use self::core::Core;
use crate::error::{Error, Result};
use crate::identity::{FlowId, Peer, Role};
use crate::kind::Kind;
use crate::name::Name;
use crate::transport::{Direction, Transport};

/// One end of a connection. It belongs to one thread, and to the process that opened it: in a child
/// of `fork` every call fails with [`Error::Forked`].
///
/// Dropping it ends its direction, as [`Flow::finish`] does, unless the thread is panicking, and
/// discards what the peer still sends. The drop waits up to
/// [`EndpointOptions::linger`](crate::EndpointOptions::linger) until the kernel or the peer has
/// taken the committed messages. Those in a socket then reach the peer as long as this process
/// lives. [`Endpoint::undelivered`](crate::Endpoint::undelivered) counts those that cannot be
/// delivered. [`Flow::close`] waits for delivery and returns what was not delivered.
pub struct Flow {
    core: Rc<Core>,
    _thread: PhantomData<*const ()>,
}

impl std::fmt::Debug for Flow {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("Flow");
        shown.field("id", &self.core.id).field("name", &self.core.name);
        shown.field("epoch", &self.epoch()).field("transport", &self.transport());
        if let Ok(state) = self.core.state.try_borrow() {
            shown.field("reading", &state.reading).field("awaited", &state.awaited);
            shown.field("ahead", &state.ahead).field("ending", &state.ending);
            shown.field("flushing", &state.flushing).field("late", &state.late);
            shown.field("backlog", &state.backlog.len()).field("private", &state.private.len());
        }
        shown.finish()
    }
}

impl Flow {
    /// Opens a flow. Returns when its first path is open.
    ///
    /// # Errors
    /// Those of [`Opening::start`] and [`Opening::finish`].
    pub fn open(parts: FlowParts) -> Result<Flow> {
        Opening::start(parts)?.finish()
    }

    /// Makes a flow over one path that never moves, without control link: for foreign names. Its
    /// transport returns [`crate::transport::Record::EndOfFlow`] when the peer has ended, and
    /// [`crate::TransportError::Closed`] when the peer is gone without having ended.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn over(transport: Box<dyn Transport>, name: Name, peer: Peer) -> Result<Flow> {
        Flow::foreign(transport, name, peer, FlowSettings::default())
    }

    /// Makes a flow over one path, with the counters of the endpoint that it belongs to.
    pub(crate) fn foreign(
        transport: Box<dyn Transport>,
        name: Name,
        peer: Peer,
        settings: FlowSettings,
    ) -> Result<Flow> {
        let core = opening::foreign(transport, name, peer, settings)?;
        Ok(Flow { core: Rc::new(core), _thread: PhantomData })
    }

    /// Waits for the next message and returns it; `None` if the peer has ended its direction.
    ///
    /// # Errors
    /// [`Error::PeerDied`], [`Error::Corrupt`], [`Error::TooManyBuffers`] if too many read buffers
    /// are held, [`Error::Forked`], [`Error::System`].
    pub fn read(&self) -> Result<Option<ReadBuffer>> {
        self.read_within(None)
    }

    /// Returns the next message if there is one now, else fails with [`Error::WouldBlock`].
    ///
    /// # Errors
    /// [`Error::WouldBlock`], and those of [`Flow::read`].
    pub fn try_read(&self) -> Result<Option<ReadBuffer>> {
        let attempt = self.attempt_read();
        if matches!(attempt, Err(Error::WouldBlock)) {
            self.core.arm(None)?;
        }
        attempt
    }

    /// Waits as [`Flow::read`] does, and fails with [`Error::TimedOut`] after `timeout`.
    ///
    /// # Errors
    /// [`Error::TimedOut`], and those of [`Flow::read`].
    pub fn read_timeout(&self, timeout: Duration) -> Result<Option<ReadBuffer>> {
        self.read_within(Some(timeout))
    }

    #[inline(always)]
    fn attempt_read(&self) -> Result<Option<ReadBuffer>> {
        self.core.read_now(ReadBuffer::new)
    }

    #[inline]
    fn read_within(&self, timeout: Option<Duration>) -> Result<Option<ReadBuffer>> {
        let attempt = self.attempt_read();
        if matches!(attempt, Err(Error::WouldBlock)) {
            return self.core.sleep_until(Direction::Read, timeout, || self.attempt_read());
        }
        attempt
    }

    /// Allocates a buffer of `bytes` bytes, all of which are sent unless
    /// [`WriteBuffer::commit_first`] takes fewer. Waits for room: this is where back-pressure
    /// happens.
    ///
    /// # Errors
    /// [`Error::TooLong`] beyond [`Flow::message_bytes_max`], [`Error::TooManyBuffers`],
    /// [`Error::Ended`] after [`Flow::finish`], [`Error::PeerDied`], [`Error::Corrupt`],
    /// [`Error::Forked`], [`Error::System`].
    pub fn write(&self, bytes: usize) -> Result<WriteBuffer> {
        self.write_within(bytes, None)
    }

    /// Allocates a buffer for a message if there is room now, else fails with
    /// [`Error::WouldBlock`].
    ///
    /// # Errors
    /// [`Error::WouldBlock`], and those of [`Flow::write`].
    pub fn try_write(&self, bytes: usize) -> Result<WriteBuffer> {
        let attempt = self.attempt_write(bytes);
        if matches!(attempt, Err(Error::WouldBlock)) {
            self.core.arm(Some(bytes))?;
        }
        attempt
    }

    /// Waits as [`Flow::write`] does, and fails with [`Error::TimedOut`] after `timeout`.
    ///
    /// # Errors
    /// [`Error::TimedOut`], and those of [`Flow::write`].
    pub fn write_timeout(&self, bytes: usize, timeout: Duration) -> Result<WriteBuffer> {
        self.write_within(bytes, Some(timeout))
    }

    #[inline(always)]
    fn attempt_write(&self, bytes: usize) -> Result<WriteBuffer> {
        let wrap = |room| WriteBuffer::new(room, Rc::clone(&self.core));
        let attempt = self.core.write_now(bytes, wrap);
        if !matches!(attempt, Err(Error::WouldBlock)) {
            // A call that found room fulfils what an earlier one waited for.
            self.core.found_room();
        }
        attempt
    }

    #[inline]
    fn write_within(&self, bytes: usize, timeout: Option<Duration>) -> Result<WriteBuffer> {
        let attempt = self.attempt_write(bytes);
        if matches!(attempt, Err(Error::WouldBlock)) {
            return self.core.sleep_until(Direction::Write, timeout, || self.attempt_write(bytes));
        }
        attempt
    }

    /// Sends the committed messages, as far as the peer takes them now. Returns false if some have
    /// to wait. Calls that wait do this by themselves.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Forked`], [`Error::System`].
    pub fn flush(&self) -> Result<bool> {
        self.core.check_process()?;
        self.core.disarm();
        self.core.flush_all(&mut self.core.state.borrow_mut())
    }

    /// Sets after how many commits the peer is notified. The default, 1, turns batching off. The
    /// remaining messages of a batch wait for [`Flow::flush`] or a call that waits.
    pub fn set_batch(&self, commits: u32) {
        let mut state = self.core.state.borrow_mut();
        state.batch = commits;
        state.writing.inner.borrow_mut().transport.set_batch(commits);
    }

    /// Ends this direction: the peer reads `None` after the last message. Never waits; messages
    /// without room are sent by later calls or by the drop. Buffers that are still held are lost.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Forked`].
    pub fn finish(&self) -> Result<()> {
        self.core.finish()
    }

    /// Ends this direction, closes the flow, and waits up to `timeout` until the peer has what was
    /// committed. A timeout of zero does not wait. The flow is closed in any case; what the peer
    /// still sends is discarded.
    ///
    /// A message is *delivered* when it lies where the peer can read it, whatever becomes of this
    /// process: in shared memory, in a socket, or in the peer's kernel, which has acknowledged it.
    /// Only an answer of the peer's application shows that the application has read it. There is
    /// one exception: if a peer on this host is gone already, what it has not read is known, and is
    /// not delivered.
    ///
    /// ```
    /// use fable::{Endpoint, Error};
    /// use std::time::Duration;
    ///
    /// # let log = Endpoint::register("unix://@fable-close-doc")?;
    /// # let listener = log.listen()?;
    /// let flow = Endpoint::anonymous().connect("unix://@fable-close-doc")?;
    /// let mut line = flow.write(6)?;
    /// line.copy_from_slice(b"last\n\n");
    /// line.commit()?;
    /// match flow.close(Duration::from_secs(5)) {
    ///     Ok(()) => println!("the peer has everything"),
    ///     Err(Error::Undelivered { messages, .. }) => println!("{messages} did not arrive"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok::<(), fable::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Undelivered`] with what was not delivered when the time was over, or when the peer
    /// turned out to be gone. What a connection has taken is still sent to the peer as long as this
    /// process lives; the rest is lost. [`Error::TimedOut`] if all messages were delivered and only
    /// the end had no room; the peer then sees [`Error::PeerDied`]. [`Error::Corrupt`],
    /// [`Error::Forked`], [`Error::System`].
    pub fn close(self, timeout: Duration) -> Result<()> {
        self.core.check_process()?;
        self.core.close(timeout, WaitFor::Delivered)
    }

    /// Returns the flow's identifier, which is unique in the cluster.
    pub fn id(&self) -> FlowId {
        self.core.id
    }

    /// Returns the endpoint's name.
    pub fn name(&self) -> &Name {
        &self.core.name
    }

    /// Returns the process at the other end.
    pub fn peer(&self) -> &Peer {
        &self.core.peer
    }

    /// Returns which end this is.
    pub fn role(&self) -> Role {
        self.core.role
    }

    /// Returns the epoch of new write buffers; after [`Flow::finish`], that of the last ones.
    pub fn epoch(&self) -> u32 {
        self.core.state.borrow().writing.epoch
    }

    /// Returns the transport of new write buffers.
    pub fn transport(&self) -> Kind {
        self.core.state.borrow().writing.kind
    }

    /// Takes the oldest event that was not taken yet. The latest 64 are kept.
    pub fn take_event(&self) -> Option<FlowEvent> {
        if !self.core.creator.is_here() {
            return None;
        }
        let mut state = self.core.state.borrow_mut();
        self.core.tend(&mut state);
        state.has_untold_event = false;
        state.events.pop_front()
    }

    /// Requests a move; an event reports the outcome. Either end may request one, and the path
    /// changes for both.
    ///
    /// # Errors
    /// [`Error::Refused`] for a flow that cannot move, [`Error::Forked`], [`Error::System`].
    pub fn move_to(&self, kind: Kind) -> Result<()> {
        self.core.check_process()?;
        let Some(handle) = self.handle() else {
            let reason = "a flow to a foreign name has one transport".to_owned();
            return Err(Error::Refused { reason });
        };
        handle.request_move(kind, "the application asked for it")
    }

    /// Returns a descriptor that becomes readable when `try_read`, a `try_write` that has found no
    /// room, or `take_event` may succeed. Call them until they would block, then wait again. The
    /// descriptor stays the same for the flow's life. Calls that wait may be used beside it.
    ///
    /// # Errors
    /// [`Error::System`] if the kernel has no more descriptors, [`Error::Forked`].
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.core.check_process()?;
        let descriptor = self.core.descriptor()?;
        // SAFETY: the core keeps the descriptor open, and this flow keeps the core.
        Ok(unsafe { BorrowedFd::borrow_raw(descriptor) })
    }

    /// Returns the length of the longest message, in bytes, whatever the transport.
    pub fn message_bytes_max(&self) -> usize {
        self.core.message_bytes_max()
    }

    /// Returns the counters of this end.
    pub fn statistics(&self) -> Statistics {
        let counters = &self.core.counters;
        Statistics {
            messages_sent: counters.messages_sent.get(),
            bytes_sent: counters.bytes_sent.get(),
            messages_received: counters.messages_received.get(),
            bytes_received: counters.bytes_received.get(),
            sleeps: counters.sleeps.get(),
            moves: counters.moves.get(),
            pause_max_ns: counters.pause_max_ns.get(),
            pause_total_ns: counters.pause_total_ns.get(),
            undelivered: self.core.undelivered().messages,
        }
    }

    /// Returns a handle on the flow for other threads; `None` for a foreign flow.
    pub fn handle(&self) -> Option<FlowHandle> {
        self.core.control.as_ref().map(opening::handle_of)
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        if !self.core.creator.is_here() || self.core.is_closed.get() {
            return;
        }
        if std::thread::panicking() {
            self.core.abandon();
        } else {
            // `Endpoint::undelivered` counts the lost messages.
            let _ = self.core.close(self.core.timeouts.linger, WaitFor::Handover);
        }
    }
}
