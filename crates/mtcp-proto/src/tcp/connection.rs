//! The state machine of one connection: the face that the stack sees.
//!
//! The stack calls a method, and afterwards asks what changed: `deadline`, `wants_output`,
//! `readiness`, `state`. A connection knows nothing of tables, listeners or timers' wheels.

use crate::memory::BufferPool;
use crate::sequence::Sequence;
use crate::stack::{Config, ConnectionInfo, Counters, Error, Options, Readiness, Shutdown, Sink};
use crate::stack::{FourTuple, SocketId};
use crate::tcp::State;
use crate::time::Instant;
use crate::wire::ip::Ecn;
use crate::wire::tcp::TcpHeader;

/// What a connection borrows of its stack for the length of a call.
pub(crate) struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a Config,
    pub(crate) counters: &'a mut Counters,
    pub(crate) pool: &'a mut BufferPool,
    /// Challenge acknowledgements that may still be sent in this second (RFC 5961, section 7).
    pub(crate) challenge_budget: &'a mut u32,
}

/// What a new connection is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Birth {
    pub(crate) tuple: FourTuple,
    /// Our initial sequence number.
    pub(crate) initial: Sequence,
    /// What is added to the clock in our timestamps (RFC 7323, section 5.4).
    pub(crate) timestamp_offset: u32,
    pub(crate) options: Options,
    /// Bytes of an IP packet on the path, as far as known.
    pub(crate) path_mtu: u16,
}

/// What a SYN cookie has kept of the peer's SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remembered {
    pub(crate) maximum_segment: u16,
    pub(crate) window_scale: Option<u8>,
    pub(crate) sack_permitted: bool,
    pub(crate) timestamps: bool,
    pub(crate) ecn: bool,
}

/// What TIME_WAIT needs of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remains {
    pub(crate) tuple: FourTuple,
    /// The next number that we would send, and that we expect.
    pub(crate) next: Sequence,
    pub(crate) expected: Sequence,
    /// The window that our last segment announced, as it travels.
    pub(crate) window: u16,
    /// With timestamps: what we last heard, and what is added to our clock.
    pub(crate) timestamps: Option<(u32, u32)>,
}

#[derive(Debug)]
pub(crate) struct Connection {}

impl Connection {
    /// SYN-SENT; the SYN goes out at the next `output`.
    pub(crate) fn open(birth: &Birth, context: &mut Context<'_>) -> Connection {
        let _ = (birth, context);
        todo!()
    }

    /// SYN-RECEIVED, from a SYN without ACK or RST; the SYN-ACK goes out at the next `output`.
    pub(crate) fn answer(
        birth: &Birth,
        syn: &TcpHeader,
        ecn: Ecn,
        context: &mut Context<'_>,
    ) -> Connection {
        let _ = (birth, syn, ecn, context);
        todo!()
    }

    /// ESTABLISHED, from the ACK that brought a cookie back; `input` of the same segment follows.
    pub(crate) fn resume(
        birth: &Birth,
        remembered: &Remembered,
        ack: &TcpHeader,
        context: &mut Context<'_>,
    ) -> Connection {
        let _ = (birth, remembered, ack, context);
        todo!()
    }

    /// Takes a segment of this connection.
    pub(crate) fn input(
        &mut self,
        header: &TcpHeader,
        ecn: Ecn,
        data: &[u8],
        context: &mut Context<'_>,
    ) {
        let _ = (header, ecn, data, context);
        todo!()
    }

    /// Writes at most `limit` segments that are due. True if more are due: the limit was reached or
    /// the sink is full.
    pub(crate) fn output(
        &mut self,
        limit: usize,
        sink: &mut dyn Sink,
        context: &mut Context<'_>,
    ) -> bool {
        let _ = (limit, sink, context);
        todo!()
    }

    /// What is due goes out at the next `output`. Nothing happens if it is not yet time.
    pub(crate) fn on_timer(&mut self, context: &mut Context<'_>) {
        let _ = context;
        todo!()
    }

    /// When `on_timer` is to be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        todo!()
    }

    /// What `output` would write: the most urgent of it.
    pub(crate) fn wants_output(&self) -> Option<Urgency> {
        todo!()
    }

    pub(crate) fn state(&self) -> State {
        todo!()
    }

    pub(crate) fn readiness(&self) -> Readiness {
        todo!()
    }

    /// Counts up whenever further data comes, so that the stack can tell of it again.
    pub(crate) fn arrivals(&self) -> u32 {
        todo!()
    }

    pub(crate) fn send(&mut self, data: &[u8], context: &mut Context<'_>) -> Result<usize, Error> {
        let _ = (data, context);
        todo!()
    }

    pub(crate) fn receive(
        &mut self,
        room: &mut [u8],
        context: &mut Context<'_>,
    ) -> Result<usize, Error> {
        let _ = (room, context);
        todo!()
    }

    pub(crate) fn peek(&self, offset: usize, room: &mut [u8]) -> Result<usize, Error> {
        let _ = (offset, room);
        todo!()
    }

    pub(crate) fn shut_down(
        &mut self,
        how: Shutdown,
        context: &mut Context<'_>,
    ) -> Result<(), Error> {
        let _ = (how, context);
        todo!()
    }

    /// The application has gone; the connection ends by itself.
    pub(crate) fn close(&mut self, context: &mut Context<'_>) {
        let _ = context;
        todo!()
    }

    /// CLOSED for this reason, with a reset to the peer (if the state has a peer) at the next
    /// `output`.
    pub(crate) fn abort(&mut self, reason: Error, context: &mut Context<'_>) {
        let _ = (reason, context);
        todo!()
    }

    pub(crate) fn take_error(&mut self) -> Option<Error> {
        todo!()
    }

    /// A router wants smaller packets (RFC 1191, RFC 8201); `sequence` is of the packet it dropped.
    pub(crate) fn path_mtu(&mut self, mtu: u16, sequence: Sequence, context: &mut Context<'_>) {
        let _ = (mtu, sequence, context);
        todo!()
    }

    /// A router or the peer says that a packet could not be delivered: final in SYN-SENT and
    /// SYN-RECEIVED, kept for a time-out otherwise (RFC 5461; RFC 5927).
    pub(crate) fn unreachable(
        &mut self,
        reason: Error,
        sequence: Sequence,
        context: &mut Context<'_>,
    ) {
        let _ = (reason, sequence, context);
        todo!()
    }

    pub(crate) fn options(&self) -> &Options {
        todo!()
    }

    pub(crate) fn set_options(&mut self, options: &Options, context: &mut Context<'_>) {
        let _ = (options, context);
        todo!()
    }

    pub(crate) fn info(&self, socket: SocketId) -> ConnectionInfo {
        let _ = socket;
        todo!()
    }

    /// What TIME_WAIT needs; `Some` in TIME-WAIT once nothing waits to be sent or received.
    pub(crate) fn remains(&self) -> Option<Remains> {
        todo!()
    }

    /// Gives the buffers back; the connection is dropped afterwards.
    pub(crate) fn release(&mut self, pool: &mut BufferPool) {
        let _ = pool;
        todo!()
    }
}

/// In which order connections send (mTCP, section 4.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// SYN, FIN, RST.
    Control,
    /// An acknowledgement alone.
    Acknowledgement,
    /// Data.
    Data,
}
