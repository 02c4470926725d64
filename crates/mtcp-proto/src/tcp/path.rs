//! How large packets may be: path MTU discovery (RFC 1191, RFC 8201) and what helps where routers
//! drop large packets in silence (RFC 4821, section 7.7).

use super::connection::{Connection, Context};
use crate::sequence::Sequence;

/// The least that a message can bring the path to; smaller ones are most likely attacks. IPv6
/// knows no smaller links (RFC 8200, section 5), and for IPv4 it is what Linux has.
const MTU_MIN: u16 = 552;
const MTU_MIN_IPV6: u16 = 1280;

/// What segments that time out again and again fall back to, largest first.
const FALLBACK_SEGMENTS: [u16; 2] = [1220, 536];

/// Time-outs of large segments in a row before the path is taken for a black hole.
const SUSPICIOUS_TIMEOUTS: u8 = 3;

#[derive(Debug)]
pub(super) struct Path {
    pub(super) mtu: u16,
    /// Time-outs of large segments since a full one was acknowledged.
    timeouts: u8,
}

impl Path {
    pub(super) fn new(mtu: u16) -> Path {
        Path { mtu, timeouts: 0 }
    }

    /// A segment has passed.
    pub(super) fn passed(&mut self) {
        self.timeouts = 0;
    }
}

/// Bytes of the IP and TCP headers without options.
fn header_bytes(ipv6: bool) -> u16 {
    if ipv6 { 60 } else { 40 }
}

/// The largest segment in packets of so many bytes (RFC 9293, section 3.7.1; RFC 6691).
pub(super) fn largest_segment(mtu: u16, wanted: Option<u16>, ipv6: bool) -> u16 {
    let fits = mtu.saturating_sub(header_bytes(ipv6)).max(64);
    wanted.map_or(fits, |most| most.clamp(64, fits))
}

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
        let least = if self.flow.is_ipv6() { MTU_MIN_IPV6 } else { MTU_MIN };
        let mtu = mtu.max(least);
        if !self.quotes(sequence) || mtu >= self.path.mtu {
            context.counters.drop_icmp += 1;
            return;
        }
        self.limit_path(mtu);
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
        let ipv6 = self.flow.is_ipv6();
        let waiting = self.send.outstanding().min(u32::from(self.send.segment)) as u16;
        let smaller = FALLBACK_SEGMENTS.into_iter().find(|&size| size < waiting);
        let Some(size) = smaller.filter(|&size| !ipv6 || size >= 1220) else { return };
        self.path.timeouts = self.path.timeouts.saturating_add(1);
        if self.path.timeouts >= SUSPICIOUS_TIMEOUTS {
            self.path.mtu = size + header_bytes(ipv6);
            self.path.timeouts = 0;
            self.fit_segments();
        }
    }
}
