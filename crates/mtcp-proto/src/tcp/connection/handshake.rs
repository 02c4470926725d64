//! Opens connections: from a SYN to ESTABLISHED (RFC 9293, sections 3.5 and 3.10.7.3).

use super::{Connection, ConnectionParameters, Context, Remembered};
use crate::socket::State;
use crate::tcp::Failure;
use crate::tcp::acknowledge::Acknowledging;
use crate::tcp::due::Due;
use crate::tcp::ecn::Marking;
use crate::tcp::path::{self, Path};
use crate::tcp::probe::Alive;
use crate::tcp::receiver::{Receiver, scale_for};
use crate::tcp::recovery::Recovery;
use crate::tcp::sender::Sender;
use crate::tcp::settings::Settings;
use crate::tcp::timers::{Timers, Waiting};
use crate::tcp::timestamps::{CLOCK_TICK, Stamping};
use crate::wire::tcp::{Flags, Options, TcpHeader, Timestamps};

/// The least segment size that is accepted from a peer. With all options, 24 bytes of data remain.
/// A peer that announces less intends to cause many packets (CVE-2019-11479).
const PEER_SEGMENT_MIN: u16 = 64;

impl Connection {
    pub(super) fn begin(
        parameters: &ConnectionParameters,
        state: State,
        context: &mut Context<'_>,
    ) -> Connection {
        let ipv6 = parameters.flow.is_ipv6();
        let mut receive = Receiver::new();
        receive.largest =
            path::largest_segment(context.config.mtu, parameters.options.maximum_segment, ipv6);
        Connection {
            state,
            passive: false,
            orphan: false,
            started: false,
            held: false,
            due: Due { syn: true, ..Due::default() },
            acks: Acknowledging::new(),
            ecn: Marking::new(context.config.ecn && state == State::SynSent),
            timers: Timers::new(),
            send: Sender::new(parameters.initial, context.config),
            receive,
            stamps: Stamping::new(parameters.timestamp_offset),
            recovery: Recovery::new(),
            alive: Alive::new(context.now),
            path: Path::new(parameters.path_mtu.min(context.config.mtu)),
            syn_tries: 0,
            flow: parameters.flow,
            options: Settings::new(&parameters.options),
            error: None,
            soft_error: None,
        }
    }

    /// Processes the peer's SYN. An option is used if both sides offer it.
    pub(super) fn take_syn(&mut self, syn: &TcpHeader, context: &mut Context<'_>) {
        let offered = Remembered {
            maximum_segment: syn.options.maximum_segment.unwrap_or(self.default_segment()),
            window_scale: syn.options.window_scale,
            sack_permitted: syn.options.sack_permitted,
            timestamps: syn.options.timestamps.is_some(),
            ecn: false,
        };
        self.receive.begin(syn.sequence);
        self.agree(&offered, context);
        self.ecn.negotiate(syn.flags, context.config.ecn);
        if let Some(stamps) = syn.options.timestamps.filter(|_| self.stamps.on) {
            self.stamps.remember(stamps.value, context.now);
        }
        // The window of a SYN is never shifted.
        self.send.set_window(u32::from(syn.window), syn.sequence, syn.acknowledgement);
    }

    /// The segment size if the SYN has no such option (RFC 9293, section 3.7.1).
    fn default_segment(&self) -> u16 {
        if self.flow.is_ipv6() { 1220 } else { 536 }
    }

    fn agree(&mut self, offered: &Remembered, context: &mut Context<'_>) {
        let config = context.config;
        self.send.peer_segment = offered.maximum_segment.max(PEER_SEGMENT_MIN);
        self.stamps.on = config.timestamps && offered.timestamps;
        self.send.sack = config.sack && offered.sack_permitted;
        if let Some(scale) = offered.window_scale.filter(|_| config.window_scaling) {
            self.send.scale_agreed = true;
            self.send.scale = scale.min(14);
            self.receive.scale = scale_for(self.options.receive_buffer_bytes);
        }
        self.fit_segments();
    }

    /// Restores the state that the SYN cookie has kept: our SYN-ACK was sent, and its ACK follows.
    pub(super) fn take_cookie(
        &mut self,
        remembered: &Remembered,
        ack: &TcpHeader,
        context: &mut Context<'_>,
    ) {
        self.receive.begin(ack.sequence - 1);
        self.agree(remembered, context);
        self.ecn.resume(remembered.ecn && context.config.ecn);
        if let Some(stamps) = ack.options.timestamps.filter(|_| self.stamps.on) {
            self.stamps.remember(stamps.value, context.now);
        }
        // Memory may not have been short when the cookie went out with its window.
        self.receive.announce_unscaled(self.receive_limit(), false);
        self.send.next = self.send.initial + 1;
        self.send.unacknowledged = self.send.next;
        self.due.syn = false;
        let window = u32::from(ack.window) << self.send.scale;
        self.send.set_window(window, ack.sequence, ack.acknowledgement);
        self.establish(context);
    }

    /// Builds the header of the SYN or SYN-ACK.
    pub(crate) fn syn_header(&mut self, context: &Context<'_>) -> TcpHeader {
        let answers = self.state == State::SynReceived;
        let config = context.config;
        let scaling = config.window_scaling && (!answers || self.send.scale_agreed);
        let timestamps = config.timestamps && (!answers || self.stamps.on);
        let (limit, pressed) = (self.receive_limit(), context.pool.pressed());
        let mut flags = if answers { Flags::SYN.with(Flags::ACK) } else { Flags::SYN };
        flags = flags.with(self.ecn.syn_flags(answers, self.syn_tries));
        let window = if answers {
            self.receive.announce_unscaled(limit, pressed)
        } else {
            limit.min(u32::from(u16::MAX)) as u16
        };
        TcpHeader {
            sequence: self.send.initial,
            acknowledgement: self.receive.next,
            flags,
            window,
            options: Options {
                maximum_segment: Some(self.receive.largest),
                window_scale: scaling.then(|| scale_for(self.options.receive_buffer_bytes)),
                sack_permitted: if answers { self.send.sack } else { config.sack },
                timestamps: timestamps.then(|| Timestamps {
                    value: self.stamps.clock(context.now),
                    echo: self.stamps.recent,
                }),
                ..Options::default()
            },
            ..TcpHeader::default()
        }
    }

    /// Records that the SYN or SYN-ACK was sent.
    pub(super) fn sent_syn(&mut self, context: &mut Context<'_>) {
        self.due.syn = false;
        self.send.next = self.send.initial + 1;
        self.recovery.base = context.now;
        if self.syn_tries > 0 {
            context.counters.retransmissions += 1;
            self.recovery.retransmissions = self.recovery.retransmissions.saturating_add(1);
        }
        self.syn_tries = self.syn_tries.saturating_add(1);
        self.timers.arm(context.now + self.send.rtt.timeout(), Waiting::Retransmission);
    }

    /// Whether a segment acknowledges another SYN than ours, in a handshake that the peer began.
    pub(crate) fn is_answered_for_another(&self, header: &TcpHeader) -> bool {
        let control = header.flags.0 & (Flags::ACK.0 | Flags::RST.0 | Flags::SYN.0);
        header.acknowledgement != self.send.initial + 1
            && control == Flags::ACK.0
            && self.state == State::SynReceived
            && self.passive
    }

    /// Whether the SYN or SYN-ACK was sent again, because no answer arrived within the time-out.
    pub(crate) fn has_asked_again(&self) -> bool {
        self.syn_tries > 1
    }

    /// Whether a repeated SYN is answered: a peer that repeats it forever must not keep a
    /// connection half-open forever.
    pub(super) fn may_answer_again(&self, context: &Context<'_>) -> bool {
        self.syn_tries <= context.config.syn_retries
    }

    /// Sends the SYN or SYN-ACK again, or fails the connection.
    pub(super) fn on_handshake_timeout(&mut self, context: &mut Context<'_>) {
        context.counters.timeouts += 1;
        if !self.may_answer_again(context) {
            return self.time_out(false, context);
        }
        self.send.rtt.back_off();
        self.due.syn = true;
    }

    /// Processes a segment in SYN-SENT (RFC 9293, section 3.10.7.3).
    pub(super) fn input_syn_sent(
        &mut self,
        header: &TcpHeader,
        data: &[u8],
        context: &mut Context<'_>,
    ) {
        let acknowledges = header.flags.contains(Flags::ACK);
        let fits = self.send.next != self.send.initial && header.acknowledgement == self.send.next;
        if header.flags.contains(Flags::RST) {
            if acknowledges && fits {
                self.fail(Failure::Refused, false, context);
            } else {
                context.counters.drop_unproven_control += 1;
            }
            return;
        }
        if acknowledges && !fits {
            context.counters.drop_bad_ack += 1;
            self.due.reset_stray(header.acknowledgement);
            return;
        }
        if !header.flags.contains(Flags::SYN) {
            return;
        }
        self.take_syn(header, context);
        if !acknowledges {
            // Simultaneous open (RFC 9293, section 3.5, figure 7).
            self.state = State::SynReceived;
            self.due.syn = true;
            self.syn_tries = 0;
            return;
        }
        self.send.unacknowledged = header.acknowledgement;
        self.acks.due = true;
        let limit = self.receive_limit();
        self.receive.announce_unscaled(limit.min(u32::from(u16::MAX)), false);
        self.time_handshake(header, context);
        self.establish(context);
        let fin = header.flags.contains(Flags::FIN);
        if !data.is_empty() || fin {
            self.take_text(header.sequence + 1, data, fin, context);
        }
    }

    /// Processes a segment in SYN-RECEIVED; true if its ACK completes the handshake (RFC 9293,
    /// section 3.10.7.4, fifth step).
    pub(super) fn complete(&mut self, header: &TcpHeader, context: &mut Context<'_>) -> bool {
        let sent = self.send.next != self.send.initial;
        if !sent || header.acknowledgement != self.send.next {
            context.counters.drop_bad_ack += 1;
            self.due.reset_stray(header.acknowledgement);
            return false;
        }
        self.send.unacknowledged = header.acknowledgement;
        let scale = if header.flags.contains(Flags::SYN) { 0 } else { self.send.scale };
        let window = u32::from(header.window) << scale;
        self.send.set_window(window, header.sequence, header.acknowledgement);
        self.time_handshake(header, context);
        self.due.syn = false;
        self.establish(context);
        true
    }

    /// Takes the first measurement of the round trip, if the SYN was sent once (RFC 6298, section
    /// 3) or the echo is that of its last copy. A peer may continue to echo the first copy, however
    /// many of its answers are lost; that would measure how long we have tried.
    fn time_handshake(&mut self, header: &TcpHeader, context: &mut Context<'_>) {
        let waited = context.now.since(self.recovery.base);
        if self.syn_tries == 1 {
            self.send.rtt.sample(context.now, waited);
        } else if let Some(age) = self.stamps.round_trip(header, context.now)
            && age <= waited + CLOCK_TICK
        {
            self.send.rtt.sample(context.now, age);
        }
        if self.syn_tries > 1 {
            self.send.rtt.after_lost_syn();
        }
        self.send.rtt.reset_back_off();
    }

    fn establish(&mut self, context: &mut Context<'_>) {
        // A lost SYN suggests that the path is congested (RFC 5681, section 3.1).
        let segments = if self.syn_tries > 2 { 1 } else { context.config.initial_window };
        self.started = true;
        self.send.start(self.options.congestion, segments);
        self.timers.stop();
        self.alive.progress_at = context.now;
        self.alive.heard(context.now);
        self.state = if self.send.fin { State::FinWait1 } else { State::Established };
        if self.passive {
            context.counters.connections_accepted += 1;
        } else {
            context.counters.connections_opened += 1;
        }
        self.arm_keepalive(context);
        self.watch_window(context);
    }
}
