//! Flows: connections whose transport changes while they live (section 3 of the paper).

mod buffer;
mod parts;

use std::os::fd::BorrowedFd;
use std::time::Duration;

pub use crate::control::FlowHandle;
pub use buffer::{ReadBuffer, WriteBuffer};
pub use parts::{Description, FlowEvent, FlowParts, KeysAnswer, Reporter, Statistics, Timeouts};

use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::name::Name;
use crate::protocol::{FlowId, Peer, Role};
use crate::transport::Transport;

/// A flow whose first path is being made. Can be sent to the thread that is going to use the flow.
#[derive(Debug)]
pub struct Opening {}

impl Opening {
    /// Begins to make the first path, on the agent's thread.
    ///
    /// # Errors
    /// [`Error::System`] or [`Error::Transport`] for a page or link that cannot be used.
    pub fn start(parts: FlowParts) -> Result<Opening> {
        unimplemented!("{}", parts.name)
    }

    /// Becomes readable when [`Opening::finish`] will not wait, for better or worse.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        unimplemented!()
    }

    /// Whether `finish` will not wait.
    pub fn is_ready(&self) -> bool {
        unimplemented!()
    }

    /// The flow from outside.
    pub fn handle(&self) -> FlowHandle {
        unimplemented!()
    }

    /// Waits for the first path, on the thread that will use the flow.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::TimedOut`] after [`Timeouts::offer`], [`Error::PeerDied`].
    pub fn finish(self) -> Result<Flow> {
        unimplemented!()
    }
}

/// One end of a connection. It belongs to one thread.
#[derive(Debug)]
pub struct Flow {
    _thread: std::marker::PhantomData<*const ()>,
}

impl Flow {
    /// Opens a flow: returns when its first path stands.
    ///
    /// # Errors
    /// As [`Opening::start`] and [`Opening::finish`].
    pub fn open(parts: FlowParts) -> Result<Flow> {
        Opening::start(parts)?.finish()
    }

    /// A flow over one path that never moves, without control link: for foreign names.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn over(transport: Box<dyn Transport>, name: Name, peer: Peer) -> Result<Flow> {
        unimplemented!("{name} {peer:?} {}", transport.kind())
    }

    /// The next message. Waits for it. `None`: the peer has ended its direction.
    pub fn read(&self) -> Result<Option<ReadBuffer>> {
        unimplemented!()
    }

    /// The next message, if there is one now; else [`Error::WouldBlock`].
    pub fn try_read(&self) -> Result<Option<ReadBuffer>> {
        unimplemented!()
    }

    /// As [`Flow::read`], but gives up with [`Error::TimedOut`].
    pub fn read_timeout(&self, timeout: Duration) -> Result<Option<ReadBuffer>> {
        unimplemented!("{timeout:?}")
    }

    /// Room for a message. Waits for it: this is where back-pressure happens.
    pub fn write(&self, bytes: usize) -> Result<WriteBuffer> {
        unimplemented!("{bytes}")
    }

    /// Room for a message, if there is some now; else [`Error::WouldBlock`].
    pub fn try_write(&self, bytes: usize) -> Result<WriteBuffer> {
        unimplemented!("{bytes}")
    }

    /// As [`Flow::write`], but gives up with [`Error::TimedOut`].
    pub fn write_timeout(&self, bytes: usize, timeout: Duration) -> Result<WriteBuffer> {
        unimplemented!("{bytes} {timeout:?}")
    }

    /// Hands over what is committed, as far as the peer takes it now: true if all.
    pub fn flush(&self) -> Result<bool> {
        unimplemented!()
    }

    /// After how many commits the peer is told of them.
    pub fn set_batch(&self, commits: u32) {
        unimplemented!("{commits}")
    }

    /// Ends this direction: the peer reads `None` behind the last message.
    pub fn finish(&self) -> Result<()> {
        unimplemented!()
    }

    /// The flow's name in the cluster.
    pub fn id(&self) -> FlowId {
        unimplemented!()
    }

    /// The endpoint's name.
    pub fn name(&self) -> &Name {
        unimplemented!()
    }

    /// The other end.
    pub fn peer(&self) -> &Peer {
        unimplemented!()
    }

    /// Which end this is.
    pub fn role(&self) -> Role {
        unimplemented!()
    }

    /// The epoch of new write buffers.
    pub fn epoch(&self) -> u32 {
        unimplemented!()
    }

    /// The transport of new write buffers.
    pub fn transport(&self) -> Kind {
        unimplemented!()
    }

    /// The oldest event that was not taken yet.
    pub fn take_event(&self) -> Option<FlowEvent> {
        unimplemented!()
    }

    /// Asks for a move; an event tells what became of it.
    pub fn move_to(&self, kind: Kind) -> Result<()> {
        unimplemented!("{kind}")
    }

    /// Becomes readable when `read`, or a `write` that has found no room, or `take_event` may go
    /// on. Stays the same for the flow's life.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        Err(Error::WouldBlock)
    }

    /// The longest message, whatever the transport.
    pub fn message_bytes_max(&self) -> usize {
        unimplemented!()
    }

    /// What the flow has done so far.
    pub fn statistics(&self) -> Statistics {
        unimplemented!()
    }

    /// The flow from other threads.
    pub fn handle(&self) -> Option<FlowHandle> {
        unimplemented!()
    }
}
