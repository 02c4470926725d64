//! Parses and writes TCP headers and their options (RFC 9293, section 3.1; RFC 7323; RFC 2018; RFC
//! 3168).

use super::{WireError, read_u32};
use crate::sequence::Sequence;

/// The shortest header, without options.
pub const HEADER_BYTES_MIN: usize = 20;

/// The longest header, with options.
pub const HEADER_BYTES_MAX: usize = 60;

/// The largest shift of a window (RFC 7323, section 2.3).
pub const WINDOW_SCALE_MAX: u8 = 14;

/// Kinds of options (RFC 9293, section 3.1; RFC 7323, sections 2.2 and 3.2; RFC 2018).
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const MAXIMUM_SEGMENT: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

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
    /// The last timestamp that the sender received; zero without ACK.
    pub echo: u32,
}

/// One block of selectively acknowledged data: `start..end` (RFC 2018).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlock {
    /// The first byte.
    pub start: Sequence,
    /// The end: the number after the last byte.
    pub end: Sequence,
}

/// The options that this stack knows; others are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The largest segment that the sender accepts; in a SYN only.
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
    /// The window field, not shifted.
    pub window: u16,
    /// The urgent pointer.
    pub urgent: u16,
    /// The options.
    pub options: Options,
}

impl TcpHeader {
    /// Parses a header, without checking its checksum; returns it with the segment's data. An
    /// option that is cut off or has an invalid length ends the options; those before it count.
    /// Options that belong in a SYN are ignored elsewhere (RFC 9293, section 3.2; RFC 7323, section
    /// 2.2). A window shift beyond 14 is read as 14 (RFC 7323, section 2.3).
    ///
    /// # Errors
    /// [`WireError::Truncated`], or [`WireError::Malformed`] for a data offset below five.
    #[inline]
    pub fn parse(segment: &[u8]) -> Result<(TcpHeader, &[u8]), WireError> {
        let fixed: &[u8; HEADER_BYTES_MIN] = segment.first_chunk().ok_or(WireError::Truncated)?;
        let header_bytes = usize::from(fixed[12] >> 4) * 4;
        if header_bytes < HEADER_BYTES_MIN {
            return Err(WireError::Malformed("data offset"));
        }
        let (header, data) = segment.split_at_checked(header_bytes).ok_or(WireError::Truncated)?;
        let mut parsed = TcpHeader {
            source_port: u16::from_be_bytes([fixed[0], fixed[1]]),
            destination_port: u16::from_be_bytes([fixed[2], fixed[3]]),
            sequence: Sequence(read_u32(fixed, 4)),
            acknowledgement: Sequence(read_u32(fixed, 8)),
            flags: Flags(fixed[13]),
            window: u16::from_be_bytes([fixed[14], fixed[15]]),
            urgent: u16::from_be_bytes([fixed[18], fixed[19]]),
            options: Options::default(),
        };
        let options = &header[HEADER_BYTES_MIN..];
        if !options.is_empty() {
            parsed.options.parse(options, parsed.flags.contains(Flags::SYN));
        }
        Ok((parsed, data))
    }

    /// Bytes that [`TcpHeader::write`] writes: a multiple of four, at most [`HEADER_BYTES_MAX`].
    #[inline]
    pub fn bytes(&self) -> usize {
        let options = &self.options;
        HEADER_BYTES_MIN + options.fixed_bytes() + options.sack_bytes(options.sack_written())
    }

    /// Writes the header with a checksum of zero; [`super::checksum`] computes it. SACK blocks for
    /// which the other options leave no room are omitted, the last ones first.
    ///
    /// # Panics
    /// If `out` is shorter than [`TcpHeader::bytes`].
    #[inline]
    pub fn write(&self, out: &mut [u8]) {
        let bytes = self.bytes();
        let (fixed, options) = out[..bytes]
            .split_first_chunk_mut::<HEADER_BYTES_MIN>()
            .expect("no header is shorter than its fixed part");
        fixed[0..2].copy_from_slice(&self.source_port.to_be_bytes());
        fixed[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        fixed[4..8].copy_from_slice(&self.sequence.0.to_be_bytes());
        fixed[8..12].copy_from_slice(&self.acknowledgement.0.to_be_bytes());
        fixed[12] = (bytes as u8 / 4) << 4;
        fixed[13] = self.flags.0;
        fixed[14..16].copy_from_slice(&self.window.to_be_bytes());
        fixed[16..18].copy_from_slice(&[0, 0]);
        fixed[18..20].copy_from_slice(&self.urgent.to_be_bytes());
        if !options.is_empty() {
            self.options.write(options);
        }
    }
}

#[inline]
fn read_timestamps(value: &[u8; 8]) -> Timestamps {
    Timestamps { value: read_u32(value, 0), echo: read_u32(value, 4) }
}

impl Options {
    /// Parses the options of a header; stops at an invalid one.
    #[inline]
    fn parse(&mut self, options: &[u8], synchronise: bool) {
        // The options of nearly every segment (RFC 7323, appendix A).
        if let &[NO_OPERATION, NO_OPERATION, TIMESTAMPS, 10, ref value @ ..] = options
            && let Ok(value) = value.try_into()
        {
            self.timestamps = Some(read_timestamps(value));
            return;
        }
        self.parse_any(options, synchronise);
    }

    fn parse_any(&mut self, mut options: &[u8], synchronise: bool) {
        while let Some(&kind) = options.first() {
            if kind == END {
                return;
            }
            if kind == NO_OPERATION {
                options = &options[1..];
                continue;
            }
            let Some(&length) = options.get(1) else { return };
            let length = usize::from(length);
            let Some(value) = options.get(2..length) else { return };
            if self.take(kind, value, synchronise).is_none() {
                return;
            }
            options = &options[length..];
        }
    }

    /// Stores one option; `None` if its kind does not have this length.
    fn take(&mut self, kind: u8, value: &[u8], synchronise: bool) -> Option<()> {
        match kind {
            MAXIMUM_SEGMENT => {
                let value = u16::from_be_bytes(value.try_into().ok()?);
                self.maximum_segment = synchronise.then_some(value).or(self.maximum_segment);
            }
            WINDOW_SCALE => {
                let &[shift] = value else { return None };
                let shift = shift.min(WINDOW_SCALE_MAX);
                self.window_scale = synchronise.then_some(shift).or(self.window_scale);
            }
            SACK_PERMITTED => {
                let [] = value else { return None };
                self.sack_permitted |= synchronise;
            }
            SACK => self.take_sack(value)?,
            TIMESTAMPS => self.timestamps = Some(read_timestamps(value.try_into().ok()?)),
            _ => {}
        }
        Some(())
    }

    fn take_sack(&mut self, value: &[u8]) -> Option<()> {
        let (blocks, rest) = value.as_chunks::<8>();
        if !rest.is_empty() || !(1..=self.sack.len()).contains(&blocks.len()) {
            return None;
        }
        self.sack = Default::default();
        for (place, block) in self.sack.iter_mut().zip(blocks) {
            *place = SackBlock {
                start: Sequence(read_u32(block, 0)),
                end: Sequence(read_u32(block, 4)),
            };
        }
        self.sack_count = blocks.len() as u8;
        Some(())
    }

    /// Bytes of all options but SACK, padded to words.
    #[inline]
    fn fixed_bytes(&self) -> usize {
        let mut bytes = 0;
        if self.maximum_segment.is_some() {
            bytes += 4;
        }
        if self.window_scale.is_some() {
            bytes += 4;
        }
        // Before timestamps it takes the place of their padding.
        if self.sack_permitted && self.timestamps.is_none() {
            bytes += 4;
        }
        if self.timestamps.is_some() {
            bytes += 12;
        }
        bytes
    }

    #[inline]
    fn sack_bytes(&self, blocks: usize) -> usize {
        if blocks == 0 { 0 } else { 4 + 8 * blocks }
    }

    /// The number of SACK blocks for which there is room.
    #[inline]
    fn sack_written(&self) -> usize {
        if self.sack_count == 0 {
            return 0;
        }
        let room = HEADER_BYTES_MAX - HEADER_BYTES_MIN - self.fixed_bytes();
        self.sack_blocks().len().min(room.saturating_sub(4) / 8)
    }

    /// Fills `out`, whose length is exact, with whole words.
    #[inline]
    fn write(&self, mut out: &mut [u8]) {
        if let Some(bytes) = self.maximum_segment {
            let [high, low] = bytes.to_be_bytes();
            out = put(out, &[MAXIMUM_SEGMENT, 4, high, low]);
        }
        if let Some(timestamps) = self.timestamps {
            let front = if self.sack_permitted {
                [SACK_PERMITTED, 2, TIMESTAMPS, 10]
            } else {
                [NO_OPERATION, NO_OPERATION, TIMESTAMPS, 10]
            };
            out = put(out, &front);
            out = put(out, &timestamps.value.to_be_bytes());
            out = put(out, &timestamps.echo.to_be_bytes());
        } else if self.sack_permitted {
            out = put(out, &[NO_OPERATION, NO_OPERATION, SACK_PERMITTED, 2]);
        }
        if let Some(shift) = self.window_scale {
            out = put(out, &[NO_OPERATION, WINDOW_SCALE, 3, shift]);
        }
        let blocks = self.sack_written();
        if blocks > 0 {
            let length = (2 + 8 * blocks) as u8;
            out = put(out, &[NO_OPERATION, NO_OPERATION, SACK, length]);
            for block in &self.sack[..blocks] {
                out = put(out, &block.start.0.to_be_bytes());
                out = put(out, &block.end.0.to_be_bytes());
            }
        }
        debug_assert!(out.is_empty(), "the room is what was counted");
    }
}

/// Writes a word; returns the room after it.
#[inline]
fn put<'a>(out: &'a mut [u8], word: &[u8; 4]) -> &'a mut [u8] {
    let (place, behind) = out.split_first_chunk_mut().expect("the room is what was counted");
    *place = *word;
    behind
}

#[cfg(test)]
mod tests;
