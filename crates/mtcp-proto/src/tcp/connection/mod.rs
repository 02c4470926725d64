//! The state machine of one connection: the face that the stack sees.
//!
//! The stack calls a method, and afterwards asks what changed: `deadline`, `wants_output`,
//! `readiness`, `state`. A connection knows nothing of tables, listeners or timers' wheels.
//!
//! The mechanisms beside this module hold their own state and do not know the connection; the
//! modules below say what one of them means for the others.

mod closing;
mod defence;
mod handshake;
mod input;
mod output;
mod path;
mod probe;
mod progress;
mod receive;
mod recovery;
mod send;
#[cfg(test)]
mod tests;
mod timers;
mod urgent;

use super::Failure;
use super::acknowledge::Acknowledging;
use super::due::{Due, Plan, Urgency};
use super::ecn::Marking;
use super::path::Path;
use super::probe::Alive;
use super::receiver::Receiver;
use super::recovery::Recovery;
use super::sender::Sender;
use super::settings::Settings;
use super::timers::Timers;
use super::timestamps::Stamping;
use crate::config::{Config, Options};
use crate::counters::Counters;
use crate::error::Error;
use crate::flow::Flow;
use crate::memory::BufferPool;
use crate::packet::Sink;
use crate::sequence::Sequence;
use crate::socket::{ConnectionInfo, Manner, Readiness, Shutdown, SocketId, State};
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
    pub(crate) flow: Flow,
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
    /// The next number that we would send, and that we expect.
    pub(crate) next: Sequence,
    pub(crate) expected: Sequence,
    /// The window that our last segment announced, as it travels.
    pub(crate) window: u16,
    /// With timestamps: what we last heard, and what is added to our clock.
    pub(crate) timestamps: Option<(u32, u32)>,
}

/// A connection. What every segment touches comes first; the two ends of the file are cold.
#[derive(Debug)]
pub(crate) struct Connection {
    state: State,
    /// The peer began it.
    passive: bool,
    /// The application has gone.
    orphan: bool,
    /// It was established once.
    started: bool,
    /// More data follows soon: a segment that it can fill is held back (MSG_MORE).
    held: bool,
    due: Due,
    acks: Acknowledging,
    ecn: Marking,
    timers: Timers,
    send: Sender,
    receive: Receiver,
    stamps: Stamping,
    recovery: Recovery,
    alive: Alive,
    path: Path,
    /// How often the SYN or SYN-ACK was sent.
    syn_tries: u8,
    flow: Flow,
    options: Settings,
    /// Why the connection failed, until somebody was told.
    error: Option<Failure>,
    /// What routers said, in case that it times out (RFC 5461, section 2.1).
    soft_error: Option<Failure>,
}

impl Connection {
    /// SYN-SENT; the SYN goes out at the next `output`.
    pub(crate) fn open(birth: &Birth, context: &mut Context<'_>) -> Connection {
        Connection::begin(birth, State::SynSent, context)
    }

    /// SYN-RECEIVED, from a SYN without ACK or RST; the SYN-ACK goes out at the next `output`. The
    /// congestion bits of the SYN's packet say nothing: senders leave them clear (RFC 3168, section
    /// 6.1.1).
    pub(crate) fn answer(birth: &Birth, syn: &TcpHeader, context: &mut Context<'_>) -> Connection {
        let mut connection = Connection::begin(birth, State::SynReceived, context);
        connection.passive = true;
        connection.take_syn(syn, context);
        connection
    }

    /// ESTABLISHED, from the ACK that brought a cookie back; `input` of the same segment follows.
    pub(crate) fn resume(
        birth: &Birth,
        remembered: &Remembered,
        ack: &TcpHeader,
        context: &mut Context<'_>,
    ) -> Connection {
        let mut connection = Connection::begin(birth, State::SynReceived, context);
        connection.passive = true;
        connection.take_cookie(remembered, ack, context);
        connection
    }

    /// Takes a segment of this connection.
    pub(crate) fn input(
        &mut self,
        header: &TcpHeader,
        ecn: Ecn,
        data: &[u8],
        context: &mut Context<'_>,
    ) {
        if !self.predicted(header, ecn, data, context) {
            self.process(header, ecn, data, context);
        }
    }

    /// Writes at most `limit` segments that are due. True if more are due: the limit was reached or
    /// the sink is full.
    pub(crate) fn output(
        &mut self,
        limit: usize,
        sink: &mut dyn Sink,
        context: &mut Context<'_>,
    ) -> bool {
        for _ in 0..limit {
            if self.is_quiet() && !self.acknowledges() {
                return false;
            }
            let Some(plan) = self.plan() else { return false };
            if !self.transmit(plan, sink, context) {
                return true;
            }
        }
        self.plan().is_some()
    }

    /// What is due goes out at the next `output`. Nothing happens if it is not yet time.
    pub(crate) fn on_timer(&mut self, context: &mut Context<'_>) {
        self.run_timers(context);
    }

    /// When `on_timer` is to be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// What `output` would write: the most urgent of it.
    #[inline]
    pub(crate) fn wants_output(&self) -> Option<Urgency> {
        if self.is_quiet() {
            return self.acknowledges().then_some(Urgency::Acknowledgement);
        }
        self.plan().map(Plan::urgency)
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    pub(crate) fn readiness(&self) -> Readiness {
        self.ready()
    }

    pub(crate) fn was_established(&self) -> bool {
        self.started
    }

    pub(crate) fn has_peer_ended(&self) -> bool {
        self.receive.ended
    }

    /// Counts up whenever further data comes, so that the stack can tell of it again.
    pub(crate) fn arrivals(&self) -> u16 {
        self.receive.arrivals
    }

    #[cfg(test)]
    pub(crate) fn send(&mut self, data: &[u8], context: &mut Context<'_>) -> Result<usize, Error> {
        self.send_as(data, Manner::default(), context)
    }

    pub(crate) fn send_as(
        &mut self,
        data: &[u8],
        manner: Manner,
        context: &mut Context<'_>,
    ) -> Result<usize, Error> {
        self.take_data(data, manner, context)
    }

    pub(crate) fn receive(
        &mut self,
        room: &mut [u8],
        context: &mut Context<'_>,
    ) -> Result<usize, Error> {
        self.give_data(room, context)
    }

    pub(crate) fn peek(&self, offset: usize, room: &mut [u8]) -> Result<usize, Error> {
        self.show_data(offset, room)
    }

    pub(crate) fn shut_down(
        &mut self,
        how: Shutdown,
        context: &mut Context<'_>,
    ) -> Result<(), Error> {
        self.end_directions(how, context)
    }

    /// The application has gone; the connection ends by itself.
    pub(crate) fn close(&mut self, context: &mut Context<'_>) {
        self.give_up_by_application(context);
    }

    /// CLOSED for this reason, with a reset to the peer (if the state has a peer) at the next
    /// `output`.
    pub(crate) fn abort(&mut self, reason: Failure, context: &mut Context<'_>) {
        self.fail(reason, true, context);
    }

    pub(crate) fn take_error(&mut self) -> Option<Error> {
        self.error.take().map(Error::from)
    }

    /// A router wants smaller packets (RFC 1191, RFC 8201); `sequence` is of the packet it dropped.
    pub(crate) fn path_mtu(&mut self, mtu: u16, sequence: Sequence, context: &mut Context<'_>) {
        self.narrow_path(mtu, sequence, context);
    }

    /// The interface takes packets of at most so many bytes.
    pub(crate) fn link_mtu(&mut self, mtu: u16) {
        self.limit_path(mtu);
    }

    /// A router or the peer says that a packet could not be delivered: final in SYN-SENT and
    /// SYN-RECEIVED, kept for a time-out otherwise (RFC 5461; RFC 5927).
    pub(crate) fn unreachable(
        &mut self,
        reason: Failure,
        sequence: Sequence,
        context: &mut Context<'_>,
    ) {
        self.take_unreachable(reason, sequence, context);
    }

    pub(crate) fn flow(&self) -> &Flow {
        &self.flow
    }

    pub(crate) fn options(&self) -> Options {
        self.options.options()
    }

    /// All options hold from now on, but for the congestion control and the largest segment, which
    /// the handshake settles.
    pub(crate) fn set_options(&mut self, options: &Options, context: &mut Context<'_>) {
        // The segments of a connection were agreed on.
        let fixed = self.is_synchronized().then(|| self.options.maximum_segment());
        let maximum_segment = fixed.unwrap_or(options.maximum_segment);
        self.options.change(&Options { maximum_segment, ..*options });
        if self.is_synchronized() {
            self.fit_segments();
            self.lose_patience(context);
        }
        self.arm_keepalive(context);
        self.window_may_open(context);
    }

    pub(crate) fn info(&self, socket: SocketId) -> ConnectionInfo {
        let congestion = &self.send.congestion;
        ConnectionInfo {
            socket,
            local: self.flow.local(),
            remote: Some(self.flow.remote()),
            state: self.state,
            receive_queue: self.receive.ring.len() as u32,
            send_queue: self.send.ring.len() as u32,
            round_trip: self.send.rtt.smoothed(),
            retransmission_timeout: self.send.rtt.timeout(),
            congestion_window: congestion.window(),
            slow_start_threshold: congestion.threshold(),
            send_window: self.send.window,
            receive_window: self.receive.edge.since(self.receive.next),
            maximum_segment: self.send.maximum_segment(),
            bytes_acknowledged: self.send.bytes_acknowledged,
            bytes_received: self.receive.bytes,
            retransmissions: self.recovery.retransmissions,
        }
    }

    /// What TIME_WAIT needs; `Some` in TIME-WAIT once nothing waits to be sent or received.
    pub(crate) fn remains(&self) -> Option<Remains> {
        self.what_remains()
    }

    /// Gives the buffers back; the connection is dropped afterwards.
    pub(crate) fn release(&mut self, pool: &mut BufferPool) {
        self.send.ring.release(pool);
        self.receive.ring.release(pool);
    }
}
