//! Flows: connections whose transport changes while they live (section 3 of the paper).
//!
//! A [`Flow`] belongs to one thread. It reads one path and writes one; when its ends agree on
//! another, in the background, it goes over without losing, repeating or reordering a message.
//!
//! `core` reads and writes, `epochs` goes from one path to the next, `path` is one of them,
//! `buffer` what the application gets, `wait` sleeps, `watch` makes one descriptor of it all and
//! `arming` decides when that tells, `opening` begins.

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
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
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
/// of `fork` every call gives [`Error::Forked`].
///
/// Dropping it ends its direction in good order, as [`Flow::finish`] does, unless the thread is
/// panicking, and discards what the peer still sends. It waits up to
/// [`EndpointOptions::linger`](crate::EndpointOptions::linger) until the kernel or the peer has
/// taken what is committed; what then lies in a socket reaches the peer as long as this process
/// lives. What cannot be delivered is counted by
/// [`Endpoint::undelivered`](crate::Endpoint::undelivered). [`Flow::close`] waits for more and says
/// more.
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
            let draining: Vec<_> = state.draining.iter().map(|old| &old.path).collect();
            shown.field("ahead", &state.ahead).field("draining", &draining);
            shown.field("flushing", &state.flushing).field("late", &state.late);
            shown.field("backlog", &state.backlog.len()).field("private", &state.private.len());
        }
        shown.finish()
    }
}

impl Flow {
    /// Opens a flow: returns when its first path stands.
    ///
    /// # Errors
    /// As [`Opening::start`] and [`Opening::finish`].
    pub fn open(parts: FlowParts) -> Result<Flow> {
        Opening::start(parts)?.finish()
    }

    /// A flow over one path that never moves, without control link: for foreign names. Its
    /// transport says by [`crate::transport::Record::EndOfFlow`] that the peer has ended, and by
    /// [`crate::TransportError::Closed`] that it is gone without having done so.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn over(transport: Box<dyn Transport>, name: Name, peer: Peer) -> Result<Flow> {
        Flow::foreign(transport, name, peer, Timeouts::default(), Arc::default())
    }

    pub(crate) fn foreign(
        transport: Box<dyn Transport>,
        name: Name,
        peer: Peer,
        timeouts: Timeouts,
        undelivered: Arc<AtomicU64>,
    ) -> Result<Flow> {
        let core = opening::foreign(transport, name, peer, timeouts, undelivered)?;
        Ok(Flow { core: Rc::new(core), _thread: PhantomData })
    }

    /// The next message. Waits for it. `None`: the peer has ended its direction.
    ///
    /// # Errors
    /// [`Error::PeerDied`], [`Error::Corrupt`], [`Error::TooManyBuffers`] if too many read buffers
    /// are held, [`Error::Forked`], [`Error::System`].
    pub fn read(&self) -> Result<Option<ReadBuffer>> {
        self.core.wait_for(Direction::Read, None, || self.attempt_read())
    }

    /// The next message, if there is one now; else [`Error::WouldBlock`].
    ///
    /// # Errors
    /// That, and those of [`Flow::read`].
    pub fn try_read(&self) -> Result<Option<ReadBuffer>> {
        match self.attempt_read() {
            Err(Error::WouldBlock) => {
                self.core.arm(None)?;
                Err(Error::WouldBlock)
            }
            outcome => outcome,
        }
    }

    /// As [`Flow::read`], but gives up with [`Error::TimedOut`].
    ///
    /// # Errors
    /// That, and those of [`Flow::read`].
    pub fn read_timeout(&self, timeout: Duration) -> Result<Option<ReadBuffer>> {
        self.core.wait_for(Direction::Read, Some(timeout), || self.attempt_read())
    }

    #[inline]
    fn attempt_read(&self) -> Result<Option<ReadBuffer>> {
        let Some((slot, path)) = self.core.read_now()? else { return Ok(None) };
        // Whatever call has brought a message, whether it has slept or not: more may have come with
        // it that the descriptor does not show.
        self.core.got(&path);
        Ok(Some(ReadBuffer::new(slot, path)))
    }

    /// Room for a message of up to `bytes`, all of which are sent unless
    /// [`WriteBuffer::commit_first`] says fewer. Waits for it: this is where back-pressure happens.
    ///
    /// # Errors
    /// [`Error::TooLong`] beyond [`Flow::message_bytes_max`], [`Error::TooManyBuffers`],
    /// [`Error::Ended`] behind [`Flow::finish`], [`Error::PeerDied`], [`Error::Corrupt`],
    /// [`Error::Forked`], [`Error::System`].
    pub fn write(&self, bytes: usize) -> Result<WriteBuffer> {
        self.core.wait_for(Direction::Write, None, || self.attempt_write(bytes))
    }

    /// Room for a message, if there is some now; else [`Error::WouldBlock`].
    ///
    /// # Errors
    /// That, and those of [`Flow::write`].
    pub fn try_write(&self, bytes: usize) -> Result<WriteBuffer> {
        let attempt = self.attempt_write(bytes);
        if matches!(attempt, Err(Error::WouldBlock)) {
            self.core.arm(Some(bytes))?;
        }
        attempt
    }

    /// As [`Flow::write`], but gives up with [`Error::TimedOut`].
    ///
    /// # Errors
    /// That, and those of [`Flow::write`].
    pub fn write_timeout(&self, bytes: usize, timeout: Duration) -> Result<WriteBuffer> {
        self.core.wait_for(Direction::Write, Some(timeout), || self.attempt_write(bytes))
    }

    #[inline]
    fn attempt_write(&self, bytes: usize) -> Result<WriteBuffer> {
        match self.core.write_now(bytes) {
            Ok(room) => {
                // Room that any call has found settles what an earlier one wanted.
                self.core.found_room();
                Ok(WriteBuffer::new(room, Rc::clone(&self.core)))
            }
            Err(error) => {
                if !matches!(error, Error::WouldBlock) {
                    self.core.found_room();
                }
                Err(error)
            }
        }
    }

    /// Hands over what is committed, as far as the peer takes it now: false if something waits.
    /// Reads and writes that wait do this by themselves.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Forked`], [`Error::System`].
    pub fn flush(&self) -> Result<bool> {
        self.core.check_process()?;
        self.core.disarm();
        self.core.flush_all(&mut self.core.state.borrow_mut())
    }

    /// After how many commits the peer is told of them: 1, as at first, is batching off. The rest
    /// waits for [`Flow::flush`] or a call that waits.
    pub fn set_batch(&self, commits: u32) {
        let mut state = self.core.state.borrow_mut();
        state.batch = commits;
        state.writing.inner.borrow_mut().transport.set_batch(commits);
    }

    /// Ends this direction: the peer reads `None` behind the last message. Never waits; what has no
    /// room yet goes with later calls, or with the drop. Buffers that are still held are lost.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Forked`].
    pub fn finish(&self) -> Result<()> {
        self.core.finish()
    }

    /// Ends this direction, closes the flow, and waits up to `timeout` until the peer has what was
    /// committed. Zero only looks. The flow is closed in any case; what the peer still sends is
    /// discarded.
    ///
    /// A message is *delivered* when it lies where the peer can read it, whatever becomes of this
    /// process: in shared memory, in a pipe, or in the peer's kernel, which has acknowledged it.
    /// That the peer's application has read it only an answer of that application can tell; only
    /// of a peer on this host that is gone already is it known, and what it has not read is not
    /// delivered.
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
    /// [`Error::Undelivered`] with what was not delivered when the time was over, or when the
    /// peer turned out to be gone: what a connection has taken goes on to the peer as long as this
    /// process lives, the rest is lost. [`Error::TimedOut`] if all messages were delivered and only
    /// the end had no room, which the peer takes for a death. [`Error::Corrupt`],
    /// [`Error::Forked`], [`Error::System`].
    pub fn close(self, timeout: Duration) -> Result<()> {
        self.core.check_process()?;
        self.core.close(timeout, WaitFor::Delivered)
    }

    /// The flow's name in the cluster.
    pub fn id(&self) -> FlowId {
        self.core.id
    }

    /// The endpoint's name.
    pub fn name(&self) -> &Name {
        &self.core.name
    }

    /// The other end.
    pub fn peer(&self) -> &Peer {
        &self.core.peer
    }

    /// Which end this is.
    pub fn role(&self) -> Role {
        self.core.role
    }

    /// The epoch of new write buffers; of the last ones behind [`Flow::finish`].
    pub fn epoch(&self) -> u32 {
        self.core.state.borrow().writing.epoch
    }

    /// The transport of new write buffers.
    pub fn transport(&self) -> Kind {
        self.core.state.borrow().writing.kind
    }

    /// The oldest event that was not taken yet. The last 64 are kept.
    pub fn take_event(&self) -> Option<FlowEvent> {
        if !self.core.birth.is_here() {
            return None;
        }
        let mut state = self.core.state.borrow_mut();
        self.core.tend(&mut state);
        state.has_untold_event = false;
        state.events.pop_front()
    }

    /// Asks for a move; an event tells what became of it. Either end may ask, and the path changes
    /// for both.
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

    /// Becomes readable when `try_read`, or a `try_write` that has found no room, or `take_event`
    /// may go on; call them until they would block, then wait again. Stays the same for the flow's
    /// life. Calls that wait work beside it.
    ///
    /// A transport that spins rings no bell: on such a path the descriptor is always readable.
    /// The flow's page says that the flow is watched, so that the policy can choose another.
    ///
    /// # Errors
    /// [`Error::System`] if the kernel has no more descriptors, [`Error::Forked`].
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.core.check_process()?;
        let descriptor = self.core.descriptor()?;
        // SAFETY: the core keeps it open, and this flow keeps the core.
        Ok(unsafe { BorrowedFd::borrow_raw(descriptor) })
    }

    /// The longest message, in bytes, whatever the transport.
    pub fn message_bytes_max(&self) -> usize {
        self.core.message_bytes_max()
    }

    /// What the flow has done so far, as this end counts it.
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

    /// The flow from other threads; `None` for a foreign one.
    pub fn handle(&self) -> Option<FlowHandle> {
        self.core.control.as_ref().map(opening::handle_of)
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        if !self.core.birth.is_here() || self.core.is_closed.get() {
            return;
        }
        if std::thread::panicking() {
            self.core.abandon();
        } else {
            // What is lost is counted: `Endpoint::undelivered`.
            let _ = self.core.close(self.core.timeouts.linger, WaitFor::Handover);
        }
    }
}
