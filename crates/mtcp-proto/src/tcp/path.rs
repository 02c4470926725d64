//! How large packets may be: path MTU discovery (RFC 1191, RFC 8201) and what helps where routers
//! drop large packets in silence (RFC 4821, section 7.7).

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

    /// A full segment has passed.
    pub(super) fn passed(&mut self) {
        self.timeouts = 0;
    }

    /// What the path carries by a router's message, if that is less than before.
    pub(super) fn narrowed(&self, mtu: u16, ipv6: bool) -> Option<u16> {
        let least = if ipv6 { MTU_MIN_IPV6 } else { MTU_MIN };
        let mtu = mtu.max(least);
        (mtu < self.mtu).then_some(mtu)
    }

    /// A segment of so many bytes has timed out, the first of those that wait. True if the path is
    /// now taken for one that carries less.
    pub(super) fn timed_out(&mut self, segment_bytes: u16, ipv6: bool) -> bool {
        let smaller = FALLBACK_SEGMENTS.into_iter().find(|&size| size < segment_bytes);
        let Some(size) = smaller.filter(|&size| !ipv6 || size >= 1220) else { return false };
        self.timeouts = self.timeouts.saturating_add(1);
        if self.timeouts < SUSPICIOUS_TIMEOUTS {
            return false;
        }
        self.mtu = size + header_bytes(ipv6);
        self.timeouts = 0;
        true
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
