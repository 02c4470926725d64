//! The header before each message in a stream of bytes.

use crate::transport::Record;

/// The header's size.
pub(in crate::transport) const HEADER_BYTES: usize = 8;

/// The longest piece of a stream without headers.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// Returns the length of the longest message behind headers of this size.
pub(super) const fn message_bytes_max(header: usize) -> usize {
    if header == 0 { PIECE_BYTES_MAX } else { MESSAGE_BYTES_MAX }
}

/// The longest message on a stream. A peer that announces one makes its reader reserve this much
/// memory.
pub(in crate::transport) const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// The header of a message. On the wire: the length in four bytes, little-endian, the record in
/// one, and three reserved bytes, which are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) struct Header {
    pub(in crate::transport) bytes: usize,
    pub(in crate::transport) record: Record,
}

impl Header {
    pub(in crate::transport) fn to_wire(self) -> [u8; HEADER_BYTES] {
        (self.bytes as u64 | (self.record as u64) << 32).to_le_bytes()
    }

    /// Parses the header that the peer wrote, and checks it.
    pub(super) fn from_wire(wire: [u8; HEADER_BYTES]) -> Result<Header, &'static str> {
        let word = u64::from_le_bytes(wire);
        let bytes = (word & 0xffff_ffff) as usize;
        if bytes > MESSAGE_BYTES_MAX {
            return Err("a message is longer than any may be");
        }
        if word >> 40 != 0 {
            return Err("reserved bytes of a header are not zero");
        }
        let record = Record::from_wire((word >> 32) as u8).ok_or("an unknown record")?;
        Ok(Header { bytes, record })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_back() {
        for bytes in [0, 1, 255, 256, MESSAGE_BYTES_MAX] {
            for record in [Record::Data, Record::EndOfEpoch, Record::EndOfFlow] {
                let header = Header { bytes, record };
                assert_eq!(Header::from_wire(header.to_wire()), Ok(header));
            }
        }
    }

    #[test]
    fn what_no_peer_may_write_is_refused() {
        let wire = Header { bytes: 7, record: Record::Data }.to_wire();
        for (place, value) in [(3, 2), (4, 0), (4, 4), (5, 1), (6, 1), (7, 0x80)] {
            let mut bad = wire;
            bad[place] = value;
            assert!(Header::from_wire(bad).is_err(), "{bad:?}");
        }
    }
}
