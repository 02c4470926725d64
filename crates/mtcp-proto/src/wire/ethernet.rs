//! Parses and writes Ethernet II headers.

use super::WireError;

/// A hardware address.
pub type HardwareAddress = [u8; 6];

/// The broadcast address.
pub const BROADCAST: HardwareAddress = [0xff; 6];

/// Bytes of an Ethernet header.
pub const HEADER_BYTES: usize = 14;

/// The EtherType of IPv4 (IEEE 802 numbers, as IANA lists them).
pub const KIND_IPV4: u16 = 0x0800;
/// The EtherType of ARP.
pub const KIND_ARP: u16 = 0x0806;
/// The EtherType of IPv6.
pub const KIND_IPV6: u16 = 0x86dd;

/// Whether the address can be that of one station: neither a group nor zero.
pub fn is_unicast(address: HardwareAddress) -> bool {
    address[0] & 1 == 0 && address != [0; 6]
}

/// An Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetHeader {
    /// The receiver.
    pub destination: HardwareAddress,
    /// The sender.
    pub source: HardwareAddress,
    /// The EtherType of the payload; at least 0x0600.
    pub kind: u16,
}

impl EthernetHeader {
    /// Parses a header; returns it with the payload, which may have padding at its end.
    ///
    /// # Errors
    /// [`WireError::Truncated`]; [`WireError::Unsupported`] if the field of the kind contains a
    /// length (IEEE 802.3).
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<(EthernetHeader, &[u8]), WireError> {
        const KIND_MIN: u16 = 0x0600;
        let (header, payload) =
            frame.split_first_chunk::<HEADER_BYTES>().ok_or(WireError::Truncated)?;
        let &[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, high, low] = header;
        let kind = u16::from_be_bytes([high, low]);
        if kind < KIND_MIN {
            return Err(WireError::Unsupported("an IEEE 802.3 frame"));
        }
        let destination = [d0, d1, d2, d3, d4, d5];
        Ok((EthernetHeader { destination, source: [s0, s1, s2, s3, s4, s5], kind }, payload))
    }

    /// Writes the header.
    ///
    /// # Panics
    /// If `out` is shorter than [`HEADER_BYTES`].
    #[inline]
    pub fn write(&self, out: &mut [u8]) {
        let out: &mut [u8; HEADER_BYTES] =
            out.first_chunk_mut().expect("room for an Ethernet header");
        out[..6].copy_from_slice(&self.destination);
        out[6..12].copy_from_slice(&self.source);
        out[12..].copy_from_slice(&self.kind.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_and_written_byte_for_byte() {
        let frame = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x06, b'x'];
        let header = EthernetHeader {
            destination: [2, 0, 0, 0, 0, 1],
            source: [2, 0, 0, 0, 0, 2],
            kind: KIND_ARP,
        };
        assert_eq!(EthernetHeader::parse(&frame), Ok((header, &b"x"[..])));
        let mut out = [0xee; 14];
        header.write(&mut out);
        assert_eq!(out, frame[..14]);
        for length in 0..14 {
            assert_eq!(EthernetHeader::parse(&frame[..length]), Err(WireError::Truncated));
        }
    }

    #[test]
    fn a_length_is_no_kind() {
        let mut frame = [0; 14];
        frame[12..].copy_from_slice(&0x05ff_u16.to_be_bytes());
        let error = Err(WireError::Unsupported("an IEEE 802.3 frame"));
        assert_eq!(EthernetHeader::parse(&frame), error);
    }

    #[test]
    fn groups_and_zero_are_no_stations() {
        assert!(is_unicast([2, 0, 0, 0, 0, 1]));
        for address in [BROADCAST, [0; 6], [0x33, 0x33, 0, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1]] {
            assert!(!is_unicast(address), "{address:?}");
        }
    }
}
