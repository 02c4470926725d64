//! What goes out: the data of the application, and how much of it may go now (RFC 9293, sections
//! 3.7.4 and 3.8.6.2.1).

use super::congestion::CongestionControl;
use super::connection::{Birth, Connection, Context};
use super::rtt::RoundTrip;
use super::scoreboard::Scoreboard;
use super::timers::NEVER;
use crate::config::{Config, Congestion};
use crate::error::Error;
use crate::memory::Ring;
use crate::sequence::Sequence;
use crate::socket::{Manner, State};
use crate::time::Instant;
use std::time::Duration;

/// How long an application waits for memory before it may try again.
const MEMORY_RETRY: Duration = Duration::from_millis(20);

/// Beyond two segments, the initial window has no more than these bytes (RFC 6928, section 2).
const INITIAL_WINDOW_BYTES: u32 = 14_600;

#[derive(Debug)]
pub(super) struct Sender {
    /// ISS.
    pub(super) initial: Sequence,
    /// SND.UNA. Once our SYN is acknowledged, the ring begins here.
    pub(super) unacknowledged: Sequence,
    /// SND.NXT; it never moves back.
    pub(super) next: Sequence,
    /// SND.WND, unshifted.
    pub(super) window: u32,
    /// The largest window that the peer has ever offered.
    pub(super) window_max: u32,
    /// SND.WL1 and SND.WL2: the segment that set the window.
    window_sequence: Sequence,
    window_acknowledgement: Sequence,
    /// The largest segment that the peer takes.
    pub(super) peer_segment: u16,
    /// The largest segment that peer and path take, with room for options.
    pub(super) segment: u16,
    /// Bytes of data in it beside timestamps.
    pub(super) full: u16,
    /// How far the peer's windows are shifted.
    pub(super) scale: u8,
    pub(super) scale_agreed: bool,
    /// Both sides have agreed on SACK.
    pub(super) sack: bool,
    /// The application has ended this direction: a FIN follows the data.
    pub(super) fin: bool,
    /// That FIN was acknowledged.
    pub(super) fin_acknowledged: bool,
    /// A byte beyond the window was sent, which the peer may take or not.
    pub(super) probed: bool,
    /// Behind the last small segment that was sent.
    pub(super) small_end: Sequence,
    pub(super) ring: Ring,
    pub(super) scoreboard: Scoreboard,
    pub(super) congestion: CongestionControl,
    pub(super) rtt: RoundTrip,
    /// Data bytes that the peer has acknowledged.
    pub(super) bytes_acknowledged: u64,
}

/// New data that may go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fresh {
    pub(super) bytes: u32,
    /// A FIN goes with the last of these bytes.
    pub(super) fin: bool,
}

impl Sender {
    pub(super) fn new(birth: &Birth, config: &Config) -> Sender {
        Sender {
            initial: birth.initial,
            unacknowledged: birth.initial,
            next: birth.initial,
            window: 0,
            window_max: 0,
            window_sequence: Sequence(0),
            window_acknowledgement: Sequence(0),
            peer_segment: 536,
            segment: 536,
            full: 536,
            scale: 0,
            scale_agreed: false,
            sack: false,
            fin: false,
            fin_acknowledged: false,
            probed: false,
            small_end: birth.initial,
            ring: Ring::new(),
            scoreboard: Scoreboard::new(),
            congestion: CongestionControl::new(Congestion::default(), 536, 1),
            rtt: RoundTrip::new(config),
            bytes_acknowledged: 0,
        }
    }

    /// The connection is established.
    pub(super) fn start(&mut self, kind: Congestion, segments: u32) {
        let full = u32::from(self.full);
        let segments = segments.min((INITIAL_WINDOW_BYTES / full).max(2));
        let segments = u16::try_from(segments).unwrap_or(u16::MAX);
        self.congestion = CongestionControl::new(kind, self.full, segments);
    }

    /// Sequence numbers that are sent and not acknowledged.
    pub(super) fn outstanding(&self) -> u32 {
        self.next.since(self.unacknowledged)
    }

    /// Whether a small segment is sent and not acknowledged. One that was sent before the numbers
    /// wrapped lies ahead of all that was sent.
    fn has_small_outstanding(&self) -> bool {
        self.small_end > self.unacknowledged && self.small_end <= self.next
    }

    /// Behind the last number that an acknowledgement can name.
    pub(super) fn sendable_end(&self) -> Sequence {
        if self.probed { self.next.max(self.unacknowledged + 1) } else { self.next }
    }

    /// Behind the last byte of the application's data.
    pub(super) fn data_end(&self) -> Sequence {
        self.unacknowledged + self.ring.len() as u32
    }

    /// Whether data, or a FIN, were never sent.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        let ahead = self.data_end().distance(self.next);
        // Behind a FIN that was sent, the next number lies beyond the data.
        ahead > 0 || (ahead == 0 && self.fin && !self.fin_acknowledged)
    }

    /// Whether a FIN is among what was sent.
    pub(super) fn fin_sent(&self) -> bool {
        self.fin && (self.fin_acknowledged || self.next > self.data_end())
    }

    pub(super) fn maximum_segment(&self) -> u16 {
        self.full
    }

    /// Takes the window of a segment, unless a newer one has set it (RFC 9293, section 3.10.7.4,
    /// fifth step). True if it has changed.
    pub(super) fn update_window(&mut self, window: u32, sequence: Sequence, ack: Sequence) -> bool {
        // A repetition has an old number, but what it newly acknowledges tells that its window is
        // new as well: an older window beside the newer acknowledgement would reach too far.
        let newer = ack > self.unacknowledged
            || self.window_sequence < sequence
            || (self.window_sequence == sequence && self.window_acknowledgement <= ack);
        newer && self.set_window(window, sequence, ack)
    }

    pub(super) fn set_window(&mut self, window: u32, sequence: Sequence, ack: Sequence) -> bool {
        let changed = self.window != window;
        self.window = window;
        self.window_max = self.window_max.max(window);
        self.window_sequence = sequence;
        self.window_acknowledgement = ack;
        changed
    }
}

impl Connection {
    /// Whether data, or a FIN, were never sent.
    pub(super) fn has_unsent(&self) -> bool {
        self.send.has_unsent()
    }

    /// What may be sent for the first time: within the peer's window and the congestion window, and
    /// no small segments that waiting can make larger: Nagle's algorithm (RFC 9293, section 3.7.4)
    /// and the avoidance of silly windows (section 3.8.6.2.1). As in Linux, a small segment waits
    /// for small ones alone (draft-minshall-nagle): behind full-sized ones, the end of a message
    /// would wait for the delayed acknowledgement of a peer that has the rest.
    pub(super) fn fresh(&self) -> Option<Fresh> {
        let send = &self.send;
        if !send.has_unsent() {
            return None;
        }
        let unsent = send.data_end().distance(send.next).max(0) as u32;
        if matches!(self.state, State::SynSent | State::SynReceived | State::Closed) {
            return None;
        }
        let window = send.window.saturating_sub(send.outstanding());
        if unsent == 0 {
            return (window > 0).then_some(Fresh { bytes: 0, fin: true });
        }
        let full = u32::from(send.full);
        if send.scoreboard.lost_bytes() > 0 {
            // What is lost goes first.
            return None;
        }
        let in_flight = send.scoreboard.in_flight();
        let congestion = send.congestion.window().saturating_sub(in_flight);
        if congestion < full.min(unsent) && in_flight > 0 {
            return None;
        }
        let bytes = unsent.min(window).min(congestion.max(full));
        let all = bytes == unsent;
        let fin = all && send.fin && window > bytes;
        let part = if bytes < full { bytes } else { bytes % full };
        let urgent = self.is_sending_urgent();
        let held = (self.held || self.options.cork()) && !send.fin && !urgent;
        let no_delay = (self.options.no_delay || send.fin || urgent) && !held;
        let at_once = no_delay || (!send.has_small_outstanding() && !held);
        if part == 0 || (all && at_once) {
            return (bytes > 0).then_some(Fresh { bytes, fin });
        }
        if bytes >= full {
            return Some(Fresh { bytes: bytes - part, fin: false });
        }
        let worthwhile = send.window_max / 2;
        (send.outstanding() == 0 && worthwhile > 0 && bytes >= worthwhile && !(held && all))
            .then_some(Fresh { bytes, fin: false })
    }

    /// What a probe of the window sends: as much as fits, or one number beyond a closed window.
    pub(super) fn window_probe(&self) -> Option<Fresh> {
        if self.send.outstanding() > 0 || !self.has_unsent() || !self.is_synchronized() {
            return None;
        }
        let unsent = self.send.ring.len() as u32;
        let most = self.send.window.clamp(1, u32::from(self.send.full));
        Some(Fresh { bytes: unsent.min(most), fin: unsent < most && self.send.fin })
    }

    /// Whether the application can send.
    pub(super) fn has_room_to_send(&self) -> bool {
        let limit = self.options.send_buffer_bytes;
        let free = limit.saturating_sub(self.send.ring.len() as u32);
        let starved = self.timers.memory != NEVER;
        !starved && free >= self.options.send_low_water_bytes().clamp(1, limit.max(1))
    }

    /// Takes data of the application. Before the connection is established they wait, and go out
    /// with the ACK that completes the handshake.
    pub(super) fn take_data(
        &mut self,
        data: &[u8],
        manner: Manner,
        context: &mut Context<'_>,
    ) -> Result<usize, Error> {
        if self.state == State::Closed {
            return Err(self.error.take().map_or(Error::Shutdown, Error::from));
        }
        if self.send.fin {
            return Err(Error::Shutdown);
        }
        if data.is_empty() {
            return Ok(0);
        }
        if self.send.outstanding() == 0 && self.send.ring.is_empty() {
            let sent_at = self.send.scoreboard.sent_at();
            let idle = context.now.since(sent_at);
            let timeout = self.send.rtt.timeout();
            if sent_at != Instant::ZERO && idle > timeout {
                self.send.congestion.on_idle(context.now, idle, timeout);
            }
            self.alive.progress(context.now);
        }
        let limit = self.options.send_buffer_bytes as usize;
        let ring = &mut self.send.ring;
        let wanted = ring.len().saturating_add(data.len()).min(limit);
        let memory = if wanted <= ring.capacity() {
            limit
        } else {
            let block = context.pool.block_for_sending(wanted);
            let block = block.or_else(|| context.pool.block_for_sending(ring.len() + 1));
            block.unwrap_or(0).max(ring.capacity())
        };
        let taken = ring.push(context.pool, data, limit.min(memory));
        if taken == 0 {
            if self.send.ring.len() < limit {
                // Others hold the memory, and do not tell when they give it back.
                self.timers.memory = context.now + MEMORY_RETRY;
            }
            return Err(Error::WouldBlock);
        }
        self.held = manner.more;
        if manner.urgent && taken == data.len() {
            self.mark_urgent();
        }
        self.watch_window(context);
        Ok(taken)
    }
}
