//! TCP headers and their options (RFC 9293, section 3.1; RFC 7323; RFC 2018; RFC 3168).

use super::WireError;
use crate::sequence::Sequence;

/// The longest header, with options.
pub const HEADER_BYTES_MAX: usize = 60;

/// The control bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Flags = Flags(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Flags = Flags(0x02);
    /// Reset the connection.
    pub const RST: Flags = Flags(0x04);
    /// Push.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgement is valid.
    pub const ACK: Flags = Flags(0x10);
    /// The urgent pointer is valid.
    pub const URG: Flags = Flags(0x20);
    /// Echo of congestion experience.
    pub const ECE: Flags = Flags(0x40);
    /// The congestion window was reduced.
    pub const CWR: Flags = Flags(0x80);

    /// Whether all bits of `other` are set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any bit of `other` is set.
    pub const fn intersects(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    /// The bits of both.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// A timestamps option (RFC 7323, section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// The sender's clock.
    pub value: u32,
    /// What the sender last heard; zero without ACK.
    pub echo: u32,
}

/// One block of selectively acknowledged data: `start..end` (RFC 2018).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlock {
    /// The first byte.
    pub start: Sequence,
    /// Behind the last byte.
    pub end: Sequence,
}

/// The options that this stack knows; others are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The largest segment the sender takes; in a SYN only.
    pub maximum_segment: Option<u16>,
    /// The shift of the sender's windows, at most 14; in a SYN only.
    pub window_scale: Option<u8>,
    /// Whether the sender understands SACK; in a SYN only.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks, of which the first `sack_count` are valid.
    pub sack: [SackBlock; 4],
    /// At most 4, and at most 3 beside timestamps.
    pub sack_count: u8,
}

impl Options {
    /// The valid SACK blocks.
    pub fn sack_blocks(&self) -> &[SackBlock] {
        &self.sack[..usize::from(self.sack_count).min(4)]
    }
}

/// A TCP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpHeader {
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
    /// The number of the first byte, or of the SYN.
    pub sequence: Sequence,
    /// The next number that the sender expects.
    pub acknowledgement: Sequence,
    /// The control bits.
    pub flags: Flags,
    /// The window as it travels, unscaled.
    pub window: u16,
    /// The urgent pointer.
    pub urgent: u16,
    /// The options.
    pub options: Options,
}

impl TcpHeader {
    /// Reads a header, without its checksum; gives it with the segment's data. An option that is
    /// cut off or has an impossible length ends the options; those before it count.
    ///
    /// # Errors
    /// [`WireError::Truncated`], or [`WireError::Malformed`] for a data offset below five.
    pub fn parse(segment: &[u8]) -> Result<(TcpHeader, &[u8]), WireError> {
        let _ = segment;
        todo!()
    }

    /// Bytes that [`TcpHeader::write`] writes: a multiple of four, at most [`HEADER_BYTES_MAX`].
    pub fn bytes(&self) -> usize {
        todo!()
    }

    /// Writes the header with a checksum of zero, for [`super::checksum`] to fill in.
    ///
    /// # Panics
    /// If `out` is shorter than [`TcpHeader::bytes`].
    pub fn write(&self, out: &mut [u8]) {
        let _ = out;
        todo!()
    }
}
