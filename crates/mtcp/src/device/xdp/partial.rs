//! Detects frames whose checksum the sender's kernel left for the network card to complete.
//!
//! A virtual cable (veth) has no card: frames of the kernel at its other end contain the sum of the
//! pseudo-header in place of a checksum, and XDP does not report that. Such a frame never left this
//! machine's memory. On a cable, a frame whose checksum field is that sum therefore counts as
//! verified. The stack verifies all others, for example those that a bridge forwards from a
//! network.

use mtcp_proto::wire::PROTOCOL_TCP;
use mtcp_proto::wire::checksum::Sum;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Offset of the EtherType, and then offsets in IPv4 and IPv6.
const TYPE: usize = 12;
const NETWORK: usize = 14;
/// Offset of the checksum in a TCP header.
const TCP_CHECKSUM: usize = 16;

/// Whether the frame is TCP and its checksum field is the sum of the pseudo-header (RFC 9293,
/// section 3.1; RFC 8200, section 8.1).
pub(super) fn has_partial_checksum(frame: &[u8]) -> bool {
    let Some(kind) = frame.get(TYPE..NETWORK) else { return false };
    let packet = &frame[NETWORK..];
    let sum = match kind {
        [0x08, 0x00] => ipv4(packet),
        [0x86, 0xdd] => ipv6(packet),
        _ => None,
    };
    sum.is_some_and(|(sum, transport)| {
        let field = packet.get(transport + TCP_CHECKSUM..transport + TCP_CHECKSUM + 2);
        field == Some(&sum.fold())
    })
}

/// Returns the sum of the pseudo-header and the offset of TCP.
fn ipv4(packet: &[u8]) -> Option<(Sum, usize)> {
    let header: &[u8; 20] = packet.first_chunk()?;
    let header_bytes = usize::from(header[0] & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header[0] >> 4 != 4 || header_bytes < header.len() || header[9] != PROTOCOL_TCP {
        return None;
    }
    let address = |at: usize| Ipv4Addr::from([at, at + 1, at + 2, at + 3].map(|at| header[at]));
    let bytes = total.checked_sub(header_bytes)?;
    let sum = Sum::pseudo_header(address(12).into(), address(16).into(), PROTOCOL_TCP, bytes);
    Some((sum, header_bytes))
}

fn ipv6(packet: &[u8]) -> Option<(Sum, usize)> {
    let header: &[u8; 40] = packet.first_chunk()?;
    if header[0] >> 4 != 6 || header[6] != PROTOCOL_TCP {
        return None;
    }
    let address = |part: &[u8]| part.first_chunk::<16>().map(|&bytes| Ipv6Addr::from(bytes));
    let bytes = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let (source, destination) = (address(&header[8..])?, address(&header[24..])?);
    let sum = Sum::pseudo_header(source.into(), destination.into(), PROTOCOL_TCP, bytes);
    Some((sum, header.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A TCP packet from 10.0.0.1 to 10.0.0.2: a header and one byte, with this checksum.
    fn frame_v4(checksum: u16) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00, 0x45, 0, 0, 41, 0, 0, 0x40, 0, 64, 6, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        let mut tcp = [0; 21];
        tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
        frame.extend(tcp);
        frame
    }

    #[test]
    fn the_sum_of_the_pseudo_header_is_recognised() {
        // 0x0a00 + 0x0001 + 0x0a00 + 0x0002 + 6 + 21.
        let sum = 0x141e;
        assert!(has_partial_checksum(&frame_v4(sum)));
        assert!(!has_partial_checksum(&frame_v4(sum + 1)));
        assert!(!has_partial_checksum(&frame_v4(!sum)));
    }

    #[test]
    fn both_families_are_read() {
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
        frame.extend([0xff; 32]);
        let mut tcp = [0; 20];
        // Sixteen times 0xffff is 0xffff again; 6 + 20 on top of it, with the carry, is 26.
        tcp[16..18].copy_from_slice(&26_u16.to_be_bytes());
        frame.extend(tcp);
        assert!(has_partial_checksum(&frame));
        frame[20] = 17;
        assert!(!has_partial_checksum(&frame), "not TCP");
    }

    #[test]
    fn frames_that_are_cut_off_are_not_partial() {
        let frame = frame_v4(0x141e);
        for end in 0..14 + 20 + 18 {
            assert!(!has_partial_checksum(&frame[..end]), "cut to {end} bytes");
        }
    }
}
