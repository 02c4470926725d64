//! Computes the Internet checksum (RFC 1071, RFC 1624).
//!
//! Sums are taken over words in the machine's own byte order, eight bytes at a time, because the
//! ones' complement sum does not depend on the order (RFC 1071, section 2B). They stay 64 bits wide
//! until they are folded, so no carry is lost.

use super::{PROTOCOL_TCP, ipv6_octets};
use std::net::IpAddr;

/// Offset of the checksum in a TCP header (RFC 9293, section 3.1).
pub const TCP_CHECKSUM_OFFSET: usize = 16;

/// An incomplete ones' complement sum.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of a pseudo-header (RFC 9293, section 3.1; RFC 8200, section 8.1), with the length
    /// of header and data of the upper layer. Addresses of two families count as IPv6 ones.
    #[inline]
    pub fn pseudo_header(
        source: IpAddr,
        destination: IpAddr,
        protocol: u8,
        upper_bytes: usize,
    ) -> Sum {
        let mut sum = Sum(0);
        if let (IpAddr::V4(source), IpAddr::V4(destination)) = (source, destination) {
            sum.add_word(u64::from(u32::from_ne_bytes(source.octets())));
            sum.add_word(u64::from(u32::from_ne_bytes(destination.octets())));
        } else {
            sum.add(&ipv6_octets(source));
            sum.add(&ipv6_octets(destination));
        }
        // No packet has a length beyond 32 bits, and a cut length changes only the sum.
        sum.add_word(u64::from((upper_bytes as u32).to_be()));
        sum.add_word(u64::from(u16::from(protocol).to_be()));
        sum
    }

    #[inline]
    fn add_word(&mut self, word: u64) {
        let (sum, carried) = self.0.overflowing_add(word);
        self.0 = sum + u64::from(carried);
    }

    /// Adds bytes that begin at an even offset. If their number is odd, they must be the last ones.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        const BULK_BYTES: usize = 64;
        let (bulk, bytes) = bytes.split_at(bytes.len() - bytes.len() % BULK_BYTES);
        if !bulk.is_empty() {
            self.add_bulk(bulk);
        }
        let (words, tail) = bytes.as_chunks::<8>();
        for word in words {
            self.add_word(u64::from_ne_bytes(*word));
        }
        // There is no copy with a variable length here: a call of memcpy would cost more than the
        // sum.
        let (words, tail) = tail.as_chunks::<4>();
        for word in words {
            self.add_word(u64::from(u32::from_ne_bytes(*word)));
        }
        let (words, tail) = tail.as_chunks::<2>();
        for word in words {
            self.add_word(u64::from(u16::from_ne_bytes(*word)));
        }
        if let &[last] = tail {
            self.add_word(u64::from(u16::from_ne_bytes([last, 0])));
        }
    }

    /// Adds whole words without a carry between them, so that the compiler can use vector
    /// instructions. Each lane gains less than 2^32 per round, which is enough for 2^32 rounds.
    fn add_bulk(&mut self, bytes: &[u8]) {
        let mut lanes = [0u64; 8];
        for block in bytes.as_chunks::<32>().0 {
            for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<4>().0) {
                *lane = lane.wrapping_add(u64::from(u32::from_ne_bytes(*word)));
            }
        }
        for lane in lanes {
            self.add_word(lane);
        }
    }

    /// Returns the sum in 16 bits, in network byte order, not complemented.
    #[inline]
    pub fn fold(self) -> [u8; 2] {
        let sum = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        let sum = (sum >> 32) + (sum & 0xffff_ffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        (sum as u16).to_ne_bytes()
    }

    /// Returns the checksum in network byte order: the complement of the sum.
    #[inline]
    pub fn finish(self) -> [u8; 2] {
        self.fold().map(|byte| !byte)
    }

    /// Whether the summed bytes, which include their checksum, are unchanged.
    #[inline]
    pub fn is_valid(self) -> bool {
        self.fold() == [0xff; 2]
    }
}

/// Returns the checksum, in network byte order, of bytes in which the checksum field is zero.
#[inline]
pub fn of(bytes: &[u8]) -> [u8; 2] {
    let mut sum = Sum::default();
    sum.add(bytes);
    sum.finish()
}

/// Whether bytes that include their checksum are unchanged.
#[inline]
pub fn verify(bytes: &[u8]) -> bool {
    let mut sum = Sum::default();
    sum.add(bytes);
    sum.is_valid()
}

/// Writes the checksum of a TCP segment (header and data), whatever the field contained.
///
/// # Panics
/// If the segment is shorter than a TCP header without options.
#[inline]
pub fn fill_tcp(source: IpAddr, destination: IpAddr, segment: &mut [u8]) {
    segment[TCP_CHECKSUM_OFFSET..TCP_CHECKSUM_OFFSET + 2].fill(0);
    let mut sum = Sum::pseudo_header(source, destination, PROTOCOL_TCP, segment.len());
    sum.add(segment);
    segment[TCP_CHECKSUM_OFFSET..TCP_CHECKSUM_OFFSET + 2].copy_from_slice(&sum.finish());
}

/// Writes the sum of the pseudo-header, for a device that completes the checksum
/// ([`crate::PartialChecksum`]). As in Linux and virtio, the length is that of the whole segment
/// even if the device cuts it.
///
/// # Panics
/// As [`fill_tcp`].
#[inline]
pub fn fill_tcp_partial(source: IpAddr, destination: IpAddr, segment: &mut [u8]) {
    let sum = Sum::pseudo_header(source, destination, PROTOCOL_TCP, segment.len());
    segment[TCP_CHECKSUM_OFFSET..TCP_CHECKSUM_OFFSET + 2].copy_from_slice(&sum.fold());
}

/// Whether the checksum of a TCP segment (header and data) is correct.
#[inline]
pub fn verify_tcp(source: IpAddr, destination: IpAddr, segment: &[u8]) -> bool {
    verify_transport(source, destination, PROTOCOL_TCP, segment)
}

/// Whether the checksum of an upper-layer packet is correct, where the checksum includes a
/// pseudo-header.
#[inline]
pub fn verify_transport(source: IpAddr, destination: IpAddr, protocol: u8, packet: &[u8]) -> bool {
    let mut sum = Sum::pseudo_header(source, destination, protocol, packet.len());
    sum.add(packet);
    sum.is_valid()
}

/// Returns the checksum after one of the summed words, at an even offset, has changed (RFC 1624,
/// equation 3). All words are in network byte order.
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    let sum = (sum >> 16) + (sum & 0xffff);
    !((sum >> 16) + sum) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The algorithm as in RFC 1071, section 4.1: word after word, an odd byte padded.
    fn plain(bytes: &[u8]) -> u16 {
        let mut sum = 0u64;
        for pair in bytes.chunks(2) {
            sum += u64::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        }
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        !(sum as u16)
    }

    fn scrambled(length: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let step = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..length).map(step).collect()
    }

    #[test]
    fn the_example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        let mut sum = Sum::default();
        sum.add(&bytes);
        assert_eq!(sum.fold(), [0xdd, 0xf2]);
    }

    #[test]
    fn every_length_agrees_with_the_plain_sum() {
        let bytes = scrambled(700);
        for length in 0..bytes.len() {
            let part = &bytes[..length];
            assert_eq!(of(part), plain(part).to_be_bytes(), "{length} bytes");
            assert_eq!(of(&vec![0xff; length]), plain(&vec![0xff; length]).to_be_bytes());
        }
        let long = vec![0xff; 70_000];
        assert_eq!(of(&long), plain(&long).to_be_bytes());
    }

    #[test]
    fn pieces_sum_to_the_whole() {
        let bytes = scrambled(301);
        for cut in (0..=300).step_by(2) {
            let mut sum = Sum::default();
            sum.add(&bytes[..cut]);
            sum.add(&bytes[cut..]);
            assert_eq!(sum.finish(), of(&bytes), "cut at {cut}");
        }
    }

    #[test]
    fn a_changed_word_updates_the_checksum() {
        // The example of RFC 1624, section 4, where older equations give 0xffff.
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0);
        let mut bytes = scrambled(40);
        for place in (0..40).step_by(2) {
            let before = plain(&bytes);
            let old = u16::from_be_bytes([bytes[place], bytes[place + 1]]);
            let new = old.wrapping_mul(31).wrapping_add(7);
            bytes[place..place + 2].copy_from_slice(&new.to_be_bytes());
            assert_eq!(update(before, old, new), plain(&bytes));
        }
    }

    #[test]
    fn a_segment_verifies_until_a_bit_changes() {
        let pairs: [(IpAddr, IpAddr); 2] = [
            ([192, 0, 2, 1].into(), [198, 51, 100, 7].into()),
            ("2001:db8::1".parse().expect("valid"), "2001:db8::7".parse().expect("valid")),
        ];
        for (source, destination) in pairs {
            for length in [20, 21, 84, 1460] {
                let mut segment = scrambled(length);
                fill_tcp(source, destination, &mut segment);
                assert!(verify_tcp(source, destination, &segment));
                assert!(verify_tcp(destination, source, &segment), "addition commutes");
                for bit in 0..length * 8 {
                    segment[bit / 8] ^= 1 << (bit % 8);
                    assert!(!verify_tcp(source, destination, &segment), "bit {bit}");
                    segment[bit / 8] ^= 1 << (bit % 8);
                }
                let complete = segment.clone();
                fill_tcp_partial(source, destination, &mut segment);
                let completed = of(&segment);
                segment[16..18].copy_from_slice(&completed);
                assert_eq!(segment, complete, "a device completes the partial checksum");
            }
        }
    }
}
