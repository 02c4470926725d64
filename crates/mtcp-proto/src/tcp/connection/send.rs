//! Takes the application's data, and decides how much of it may be sent now (RFC 9293, sections
//! 3.7.4 and 3.8.6.2.1).

use super::{Connection, Context};
use crate::error::Error;
use crate::memory::Purpose;
use crate::socket::{SendFlags, State};
use crate::tcp::sender::Fresh;
use crate::tcp::timers::NEVER;
use crate::time::Instant;
use std::time::Duration;

/// The part of the send buffer that does not depend on the congestion window.
const SEND_START_BYTES: u32 = 16 << 10;

/// How long an application waits for memory before it may try again, about as on Linux. Thousands
/// that wait must not keep a core busy with attempts.
const MEMORY_RETRY: Duration = Duration::from_millis(100);

impl Connection {
    /// Whether there is data, or a FIN, that was never sent.
    pub(super) fn has_unsent(&self) -> bool {
        self.send.has_unsent()
    }

    /// The data that may be sent for the first time: within the peer's window and the congestion
    /// window, and no small segments that waiting can make larger. These are Nagle's algorithm (RFC
    /// 9293, section 3.7.4) and the avoidance of silly windows (section 3.8.6.2.1). As in Linux, a
    /// small segment waits only for other small ones (draft-minshall-nagle). If it waited for
    /// full-sized ones, the end of a message would wait for the delayed acknowledgement of a peer
    /// that has the rest.
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
            // Lost data is sent first.
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

    /// The data of a window probe: as much as fits, or one byte beyond a closed window.
    pub(super) fn window_probe(&self) -> Option<Fresh> {
        if self.send.outstanding() > 0 || !self.has_unsent() || !self.is_synchronized() {
            return None;
        }
        let unsent = self.send.ring.len() as u32;
        let most = self.send.window.clamp(1, u32::from(self.send.full));
        Some(Fresh { bytes: unsent.min(most), fin: unsent < most && self.send.fin })
    }

    /// How much may wait to be sent and acknowledged. It grows with the congestion window, up to
    /// the send buffer: what the path does not carry within two round trips can wait in the
    /// application.
    fn send_limit(&self) -> u32 {
        let carried = self.send.congestion.window().saturating_mul(2);
        self.options.send_buffer_bytes.min(SEND_START_BYTES.saturating_add(carried))
    }

    /// Whether the application can send.
    pub(super) fn has_room_to_send(&self) -> bool {
        let limit = self.send_limit();
        let free = limit.saturating_sub(self.send.ring.len() as u32);
        let starved = self.timers.memory != NEVER;
        !starved && free >= self.options.send_low_water_bytes().clamp(1, limit.max(1))
    }

    /// Stores data of the application in the send buffer. Before the connection is established the
    /// data waits; it is sent with the ACK that completes the handshake.
    pub(super) fn take_data(
        &mut self,
        data: &[u8],
        send_flags: SendFlags,
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
            self.alive.moved_at = context.now;
        }
        let limit = self.send_limit() as usize;
        let taken = self.send.ring.push(context.pool, Purpose::Send, data, limit);
        if taken == 0 {
            if self.send.ring.len() < limit {
                // Other connections hold the memory, and do not report when they free it.
                self.timers.memory = context.now + MEMORY_RETRY;
            }
            return Err(Error::WouldBlock);
        }
        self.held = send_flags.more;
        if send_flags.urgent && taken == data.len() {
            let end = self.send.data_end();
            self.options.urgent_mut().mark_sent(end);
        }
        self.watch_window(context);
        Ok(taken)
    }
}
