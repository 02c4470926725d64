//! Parses and writes the virtio header before a frame, which TAP and packet sockets use too. It
//! describes the offloads that the frame still needs (virtio 1.2, section 5.1.6;
//! linux/virtio_net.h). Its numbers are in the machine's byte order.

use super::{Received, Transmit};

/// Length of the header, without the buffer count that some devices add.
pub(super) const HEADER_BYTES: usize = 10;

/// The checksum is partial.
const FLAG_NEEDS_CHECKSUM: u8 = 1;
/// The checksum was verified.
const FLAG_DATA_VALID: u8 = 2;
const SEGMENT_NONE: u8 = 0;
const SEGMENT_TCP4: u8 = 1;
const SEGMENT_TCP6: u8 = 4;
/// Only the first segment may carry CWR; a flag beside the kind.
const SEGMENT_ECN: u8 = 0x80;

/// Parses the header of a frame of this length; `None` if it contradicts the frame.
pub(super) fn parse(header: [u8; HEADER_BYTES], frame_bytes: usize) -> Option<Received> {
    let [flags, kind, ..] = header;
    let number = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
    let (segment_bytes, start, offset) = (number(4), number(6), number(8));
    let partial = flags & FLAG_NEEDS_CHECKSUM != 0;
    if partial && start + offset + 2 > frame_bytes {
        return None;
    }
    if kind & !SEGMENT_ECN != SEGMENT_NONE && segment_bytes == 0 {
        return None;
    }
    // A frame with a partial checksum was never on a wire: it comes from this machine.
    Some(Received { checksum_verified: partial || flags & FLAG_DATA_VALID != 0 })
}

/// Builds the header for a frame to send; `None` if an offset is outside of the frame.
pub(super) fn write(frame: &Transmit) -> Option<[u8; HEADER_BYTES]> {
    let mut header = [0; HEADER_BYTES];
    let mut set = |at: usize, value: u16| {
        header[at..at + 2].copy_from_slice(&value.to_ne_bytes());
    };
    if let Some((start, offset)) = frame.partial_checksum {
        if usize::from(start) + usize::from(offset) + 2 > frame.bytes {
            return None;
        }
        set(6, start);
        set(8, offset);
    }
    if let Some(segmentation) = frame.segmentation {
        if segmentation.segment_bytes == 0
            || usize::from(segmentation.header_bytes) > frame.bytes
            || frame.partial_checksum.is_none()
        {
            return None;
        }
        set(2, segmentation.header_bytes);
        set(4, segmentation.segment_bytes);
        header[1] = if segmentation.ipv6 { SEGMENT_TCP6 } else { SEGMENT_TCP4 };
    }
    if frame.partial_checksum.is_some() {
        header[0] = FLAG_NEEDS_CHECKSUM;
    }
    Some(header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Segmentation;

    #[test]
    fn what_is_written_is_understood() {
        let plain = Transmit { bytes: 60, ..Transmit::default() };
        assert_eq!(write(&plain), Some([0; HEADER_BYTES]));
        assert_eq!(parse([0; HEADER_BYTES], 60), Some(Received { checksum_verified: false }));
        let segmentation = Segmentation { segment_bytes: 1448, header_bytes: 66, ipv6: true };
        let long = Transmit {
            bytes: 9000,
            partial_checksum: Some((34, 16)),
            segmentation: Some(segmentation),
        };
        let header = write(&long).unwrap();
        assert_eq!(header[..2], [FLAG_NEEDS_CHECKSUM, SEGMENT_TCP6]);
        assert_eq!(parse(header, 9000), Some(Received { checksum_verified: true }));
        assert_eq!(parse(header, 51), None, "the sum lies behind the frame");
    }

    #[test]
    fn impossible_requests_are_refused() {
        let outside = Transmit { bytes: 50, partial_checksum: Some((34, 16)), segmentation: None };
        assert_eq!(write(&outside), None);
        let none = Segmentation { segment_bytes: 0, header_bytes: 54, ipv6: false };
        let partial_checksum = Some((34, 16));
        assert_eq!(
            write(&Transmit { bytes: 900, partial_checksum, segmentation: Some(none) }),
            None
        );
        assert_eq!(parse([0, SEGMENT_TCP4, 0, 0, 0, 0, 0, 0, 0, 0], 100), None);
        assert_eq!(
            parse([FLAG_DATA_VALID, 0, 0, 0, 0, 0, 0, 0, 0, 0], 1),
            Some(Received { checksum_verified: true })
        );
    }
}
