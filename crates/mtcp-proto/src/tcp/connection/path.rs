//! How large segments are on the path of a connection.

use super::{Connection, Context};
use crate::sequence::Sequence;
use crate::tcp::path::largest_segment;

impl Connection {
    /// Segments fit the path, the peer and the options.
    pub(super) fn fit_segments(&mut self) {
        let ipv6 = self.flow.is_ipv6();
        let fits = largest_segment(self.path.mtu, self.options.maximum_segment(), ipv6);
        self.send.segment = fits.min(self.send.peer_segment);
        let stamps = if self.stamps.on { 12 } else { 0 };
        self.send.full = self.send.segment - stamps;
        self.send.congestion.set_maximum_segment(self.send.full);
    }

    /// A router wants smaller packets. It must quote a segment that is under way (RFC 5927,
    /// section 7), and what it dropped is sent again at once, since this is no congestion.
    pub(super) fn narrow_path(&mut self, mtu: u16, sequence: Sequence, context: &mut Context<'_>) {
        let narrowed = self.path.narrowed(mtu, self.flow.is_ipv6());
        match narrowed.filter(|_| self.quotes(sequence)) {
            Some(mtu) => self.limit_path(mtu),
            None => context.counters.drop_icmp += 1,
        }
    }

    /// The path carries at most this. What was too long for it is sent again at once.
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

    /// The retransmission timer has expired. Not only full segments may be too long for the path:
    /// what counts is whether the one that waits could be sent in smaller ones.
    pub(super) fn suspect_black_hole(&mut self) {
        let waiting = self.send.outstanding().min(u32::from(self.send.segment)) as u16;
        if self.path.timed_out(waiting, self.flow.is_ipv6()) {
            self.fit_segments();
        }
    }
}
