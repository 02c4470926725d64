//! Adapts the size of segments to the path of a connection.

use super::{Connection, Context};
use crate::sequence::Sequence;
use crate::tcp::path::largest_segment;

impl Connection {
    /// Sets the segment size from the path, the peer and the options.
    pub(super) fn fit_segments(&mut self) {
        let ipv6 = self.flow.is_ipv6();
        let fits = largest_segment(self.path.mtu, self.options.maximum_segment(), ipv6);
        self.send.segment = fits.min(self.send.peer_segment);
        let stamps = if self.stamps.on { 12 } else { 0 };
        self.send.full = self.send.segment - stamps;
        self.send.congestion.set_maximum_segment(self.send.full);
    }

    /// Handles a router's report of a smaller MTU. It must quote a segment in flight (RFC 5927,
    /// section 7). The dropped segments are sent again at once, because the cause is not
    /// congestion.
    pub(super) fn narrow_path(&mut self, mtu: u16, sequence: Sequence, context: &mut Context<'_>) {
        let narrowed = self.path.narrowed(mtu, self.flow.is_ipv6());
        match narrowed.filter(|_| self.quotes(sequence)) {
            Some(mtu) => self.limit_path(mtu),
            None => context.counters.drop_icmp += 1,
        }
    }

    /// Limits the MTU of the path. Segments that were too long for it are sent again at once.
    pub(super) fn limit_path(&mut self, mtu: u16) {
        if mtu >= self.path.mtu {
            return;
        }
        self.path.mtu = mtu;
        if self.is_synchronized() {
            let before = self.send.full;
            self.fit_segments();
            if self.send.full < before {
                self.send.scoreboard.mark_all_lost();
            }
        }
    }

    /// Handles the expired retransmission timer for the detection of black holes. Segments need not
    /// be full to be too long for the path: the condition is whether the waiting one could be sent
    /// in smaller segments.
    pub(super) fn suspect_black_hole(&mut self) {
        let waiting = self.send.outstanding().min(u32::from(self.send.segment)) as u16;
        if self.path.timed_out(waiting, self.flow.is_ipv6()) {
            self.fit_segments();
        }
    }
}
