//! Writes captures for Wireshark, only after a failure.

use std::io::{self, Write};

/// The link type of raw IP, of either version.
const LINKTYPE_RAW: u32 = 101;

/// Packets with their times, up to a limit.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    packets: Vec<(u64, Vec<u8>)>,
    bytes: usize,
}

impl Capture {
    /// Most bytes of a capture; later packets are not recorded.
    const BYTES_MAX: usize = 256 << 20;

    pub(crate) fn record(&mut self, at_ns: u64, packet: &[u8]) {
        if self.bytes < Self::BYTES_MAX {
            self.bytes += packet.len();
            self.packets.push((at_ns, packet.to_vec()));
        }
    }

    /// Writes the capture in the format of libpcap with times in nanoseconds.
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&0xa1b2_3c4d_u32.to_le_bytes())?;
        out.write_all(&[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
        out.write_all(&65_535_u32.to_le_bytes())?;
        out.write_all(&LINKTYPE_RAW.to_le_bytes())?;
        for (at_ns, packet) in &self.packets {
            let length = packet.len() as u32;
            let fields =
                [(at_ns / 1_000_000_000) as u32, (at_ns % 1_000_000_000) as u32, length, length];
            for field in fields {
                out.write_all(&field.to_le_bytes())?;
            }
            out.write_all(packet)?;
        }
        Ok(())
    }
}

#[test]
fn a_capture_has_the_header_and_each_packet_with_its_time() {
    let mut capture = Capture::default();
    capture.record(3_000_000_007, b"abc");
    let mut bytes = Vec::new();
    capture.write(&mut bytes).unwrap();
    assert_eq!(bytes.len(), 24 + 16 + 3);
    assert_eq!(bytes[..4], [0x4d, 0x3c, 0xb2, 0xa1]);
    assert_eq!(bytes[20..24], [101, 0, 0, 0]);
    assert_eq!(bytes[24..32], [3, 0, 0, 0, 7, 0, 0, 0]);
    assert_eq!(bytes[40..], *b"abc");
}
