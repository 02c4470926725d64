//! What the application sends, and how much of it may go now (RFC 9293, sections 3.7.4 and
//! 3.8.6.2.1).

use super::{Connection, Context};
use crate::error::Error;
use crate::socket::{Manner, State};
use crate::tcp::sender::Fresh;
use crate::tcp::timers::NEVER;
use crate::time::Instant;
use std::time::Duration;

/// How long an application waits for memory before it may try again.
const MEMORY_RETRY: Duration = Duration::from_millis(20);

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
            let end = self.send.data_end();
            self.options.urgent_mut().mark_sent(end);
        }
        self.watch_window(context);
        Ok(taken)
    }
}
