//! Implements the state machine of one connection, as the stack calls it.
//!
//! The stack calls a method and then reads what changed: `deadline`, `wants_output`, `readiness`,
//! `state`. A connection has no access to tables, listeners or the timer wheel.
//!
//! The modules for the mechanisms, beside this one, have their own state and do not use the
//! connection. The modules below this one pass the results of one mechanism to the others.

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
use crate::socket::{ConnectionInfo, Readiness, SendFlags, Shutdown, SocketId, State};
use crate::time::Instant;
use crate::wire::ip::Ecn;
use crate::wire::tcp::TcpHeader;

/// State of the stack that a connection uses during a call.
pub(crate) struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a Config,
    pub(crate) counters: &'a mut Counters,
    pub(crate) pool: &'a mut BufferPool,
    /// Challenge acknowledgements that may still be sent in this second (RFC 5961, section 7).
    pub(crate) challenge_budget: &'a mut u32,
}

/// The parameters of a new connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionParameters {
    pub(crate) flow: Flow,
    /// Our initial sequence number.
    pub(crate) initial: Sequence,
    /// The offset that is added to the clock in our timestamps (RFC 7323, section 5.4).
    pub(crate) timestamp_offset: u32,
    pub(crate) options: Options,
    /// Bytes of an IP packet on the path, as far as known.
    pub(crate) path_mtu: u16,
}

/// The options of the peer's SYN that a SYN cookie has preserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remembered {
    pub(crate) maximum_segment: u16,
    pub(crate) window_scale: Option<u8>,
    pub(crate) sack_permitted: bool,
    pub(crate) timestamps: bool,
    pub(crate) ecn: bool,
}

/// The state for a TIME_WAIT record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remains {
    /// The next number that we would send, and the next that we expect.
    pub(crate) next: Sequence,
    pub(crate) expected: Sequence,
    /// The window field of our last segment, as sent.
    pub(crate) window: u16,
    /// With timestamps: TS.Recent, and the offset of our clock.
    pub(crate) timestamps: Option<(u32, u32)>,
}

/// A connection. Fields that every segment uses come first; the first and the last part of the
/// source file are rarely used code.
#[derive(Debug)]
pub(crate) struct Connection {
    state: State,
    /// Whether the peer opened it.
    passive: bool,
    /// Whether the application has closed it.
    orphan: bool,
    /// Whether it was ever established.
    started: bool,
    /// Whether more data follows soon: a partial segment is delayed (MSG_MORE).
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
    /// How many times the SYN or SYN-ACK was sent.
    syn_tries: u8,
    flow: Flow,
    options: Settings,
    /// The reason of a failure that was not reported yet.
    error: Option<Failure>,
    /// The last error that routers reported; it becomes the reason if the connection times out (RFC
    /// 5461, section 2.1).
    soft_error: Option<Failure>,
}

impl Connection {
    /// Creates a connection in SYN-SENT; the next `output` sends the SYN.
    pub(crate) fn open(parameters: &ConnectionParameters, context: &mut Context<'_>) -> Connection {
        Connection::begin(parameters, State::SynSent, context)
    }

    /// Creates a connection in SYN-RECEIVED from a SYN without ACK or RST; the next `output` sends
    /// the SYN-ACK. The ECN bits of the SYN's IP header have no meaning: senders leave them clear
    /// (RFC 3168, section 6.1.1).
    pub(crate) fn answer(
        parameters: &ConnectionParameters,
        syn: &TcpHeader,
        context: &mut Context<'_>,
    ) -> Connection {
        let mut connection = Connection::begin(parameters, State::SynReceived, context);
        connection.passive = true;
        connection.take_syn(syn, context);
        connection
    }

    /// Creates a connection in ESTABLISHED from the ACK that returned a cookie; the caller then
    /// passes the same segment to `input`.
    pub(crate) fn resume(
        parameters: &ConnectionParameters,
        remembered: &Remembered,
        ack: &TcpHeader,
        context: &mut Context<'_>,
    ) -> Connection {
        let mut connection = Connection::begin(parameters, State::SynReceived, context);
        connection.passive = true;
        connection.take_cookie(remembered, ack, context);
        connection
    }

    /// Processes a segment of this connection.
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

    /// Writes at most `limit` waiting segments. True if more are waiting: the limit was reached or
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

    /// Handles expired timers; the next `output` sends the resulting segments. Does nothing if no
    /// timer has expired.
    pub(crate) fn on_timer(&mut self, context: &mut Context<'_>) {
        self.run_timers(context);
    }

    /// When `on_timer` must be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// The most urgent kind of segment that `output` would write.
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

    /// Increases whenever further data arrives, so that the stack can report readiness again.
    pub(crate) fn arrivals(&self) -> u16 {
        self.receive.arrivals
    }

    #[cfg(test)]
    pub(crate) fn send(&mut self, data: &[u8], context: &mut Context<'_>) -> Result<usize, Error> {
        self.send_as(data, SendFlags::default(), context)
    }

    pub(crate) fn send_as(
        &mut self,
        data: &[u8],
        send_flags: SendFlags,
        context: &mut Context<'_>,
    ) -> Result<usize, Error> {
        self.take_data(data, send_flags, context)
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

    /// Handles the application's close; the connection ends by itself.
    pub(crate) fn close(&mut self, context: &mut Context<'_>) {
        self.give_up_by_application(context);
    }

    /// Enters CLOSED for this reason. The next `output` sends the peer a reset, if the state has a
    /// peer.
    pub(crate) fn abort(&mut self, reason: Failure, context: &mut Context<'_>) {
        self.fail(reason, true, context);
    }

    /// CLOSED with a reset, and without the data that was received: the application gets the error
    /// and not the end of the stream, also behind the peer's FIN.
    pub(crate) fn forfeit(&mut self, context: &mut Context<'_>) {
        self.fail(Failure::Aborted, true, context);
        self.receive.ended = false;
        self.release(context.pool);
    }

    pub(crate) fn take_error(&mut self) -> Option<Error> {
        self.error.take().map(Error::from)
    }

    /// Handles a router's report that packets are too long (RFC 1191, RFC 8201); `sequence` is that
    /// of the dropped packet.
    pub(crate) fn path_mtu(&mut self, mtu: u16, sequence: Sequence, context: &mut Context<'_>) {
        self.narrow_path(mtu, sequence, context);
    }

    /// Sets the MTU of the interface.
    pub(crate) fn link_mtu(&mut self, mtu: u16) {
        self.limit_path(mtu);
    }

    /// Handles the report of a router or the peer that a packet could not be delivered. It ends the
    /// connection in SYN-SENT and SYN-RECEIVED; in other states it is stored for a time-out (RFC
    /// 5461; RFC 5927).
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

    /// Applies all options from now on, except for the congestion control and the largest segment,
    /// which the handshake has determined.
    pub(crate) fn set_options(&mut self, options: &Options, context: &mut Context<'_>) {
        // The handshake has determined the segment size.
        let fixed = self.is_synchronized().then(|| self.options.maximum_segment());
        let maximum_segment = fixed.unwrap_or(options.maximum_segment);
        self.options.change(&Options { maximum_segment, ..*options });
        if self.is_synchronized() {
            self.fit_segments();
            self.apply_user_timeout(context);
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

    /// The state for a TIME_WAIT record: `Some` in TIME-WAIT once no data waits to be sent or
    /// received.
    pub(crate) fn remains(&self) -> Option<Remains> {
        self.what_remains()
    }

    /// Bytes of memory that the buffers hold for data that must not be dropped.
    pub(crate) fn held_bytes(&self) -> usize {
        self.send.ring.capacity() + self.receive.ring.capacity()
    }

    /// When the buffers last moved: the peer has acknowledged a full segment, or the application
    /// has read.
    pub(crate) fn idle_since(&self) -> Instant {
        self.alive.moved_at
    }

    /// Drops the data received out of order, which the peer sends again.
    pub(crate) fn drop_out_of_order(&mut self, pool: &mut BufferPool) {
        self.receive.drop_out_of_order(pool);
    }

    /// Returns the buffers to the pool; the connection is dropped afterwards.
    pub(crate) fn release(&mut self, pool: &mut BufferPool) {
        self.send.ring.release(pool);
        self.receive.release(pool);
    }
}
