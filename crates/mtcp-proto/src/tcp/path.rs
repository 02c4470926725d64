//! Computes the largest packet of a path: path MTU discovery (RFC 1191, RFC 8201), and detection
//! of black holes, which drop large packets without a message (RFC 4821, section 7.7).

/// The least MTU that an ICMP message can set; smaller reports are most likely attacks. IPv6 has no
/// links with less (RFC 8200, section 5), and for IPv4 it is the value of Linux.
const MTU_MIN: u16 = 552;
const MTU_MIN_IPV6: u16 = 1280;

/// Segment sizes to fall back to after repeated time-outs, largest first.
const FALLBACK_SEGMENTS: [u16; 2] = [1220, 536];

/// Consecutive time-outs of large segments before the path counts as a black hole.
const SUSPICIOUS_TIMEOUTS: u8 = 3;

/// The MTU of a connection's path.
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

    /// Records that a full segment was acknowledged.
    pub(super) fn passed(&mut self) {
        self.timeouts = 0;
    }

    /// The MTU that a router reported, if it is smaller than before.
    pub(super) fn narrowed(&self, mtu: u16, ipv6: bool) -> Option<u16> {
        let least = if ipv6 { MTU_MIN_IPV6 } else { MTU_MIN };
        let mtu = mtu.max(least);
        (mtu < self.mtu).then_some(mtu)
    }

    /// Records that the first waiting segment, of `segment_bytes`, has timed out. True if the path
    /// now counts as a black hole, so that its MTU is reduced.
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

/// The largest segment that fits into packets of `mtu` bytes (RFC 9293, section 3.7.1; RFC 6691).
pub(super) fn largest_segment(mtu: u16, wanted: Option<u16>, ipv6: bool) -> u16 {
    let fits = mtu.saturating_sub(header_bytes(ipv6)).max(64);
    wanted.map_or(fits, |most| most.clamp(64, fits))
}
