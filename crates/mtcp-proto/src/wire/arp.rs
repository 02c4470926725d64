//! Parses and writes ARP packets for IPv4 on Ethernet (RFC 826).

use super::WireError;
use super::ethernet::{HardwareAddress, KIND_IPV4};
use std::net::Ipv4Addr;

/// Length of an ARP packet for IPv4 on Ethernet, in bytes.
pub const ARP_BYTES: usize = 28;

/// The first six bytes of all packets: Ethernet, IPv4, and the lengths of their addresses.
const PREFIX: [u8; 6] = [0, 1, (KIND_IPV4 >> 8) as u8, (KIND_IPV4 & 0xff) as u8, 6, 4];

/// The operation of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpOperation {
    /// Asks for the owner of an address.
    Request,
    /// Answers a request.
    Reply,
}

/// An ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpPacket {
    /// The operation.
    pub operation: ArpOperation,
    /// The sender's hardware address.
    pub sender_hardware: HardwareAddress,
    /// The sender's address; unspecified in a probe (RFC 5227, section 2.1.1), which must not
    /// change any cache.
    pub sender: Ipv4Addr,
    /// The receiver's hardware address; meaningless in a request.
    pub target_hardware: HardwareAddress,
    /// The requested address, or that of the requester.
    pub target: Ipv4Addr,
}

impl ArpPacket {
    /// Reads a packet, with or without padding behind it.
    ///
    /// # Errors
    /// [`WireError::Truncated`], or [`WireError::Unsupported`] for other networks and operations.
    pub fn parse(packet: &[u8]) -> Result<ArpPacket, WireError> {
        let packet: &[u8; ARP_BYTES] = packet.first_chunk().ok_or(WireError::Truncated)?;
        if packet[..6] != PREFIX {
            return Err(WireError::Unsupported("a network other than IPv4 on Ethernet"));
        }
        let operation = match packet[6..8] {
            [0, 1] => ArpOperation::Request,
            [0, 2] => ArpOperation::Reply,
            _ => return Err(WireError::Unsupported("an ARP operation")),
        };
        let hardware = |at: usize| std::array::from_fn(|index| packet[at + index]);
        let address = |at: usize| Ipv4Addr::from(std::array::from_fn(|index| packet[at + index]));
        Ok(ArpPacket {
            operation,
            sender_hardware: hardware(8),
            sender: address(14),
            target_hardware: hardware(18),
            target: address(24),
        })
    }

    /// Writes the packet.
    ///
    /// # Panics
    /// If `out` is shorter than [`ARP_BYTES`].
    pub fn write(&self, out: &mut [u8]) {
        let out: &mut [u8; ARP_BYTES] = out.first_chunk_mut().expect("room for an ARP packet");
        out[..6].copy_from_slice(&PREFIX);
        out[6] = 0;
        out[7] = match self.operation {
            ArpOperation::Request => 1,
            ArpOperation::Reply => 2,
        };
        out[8..14].copy_from_slice(&self.sender_hardware);
        out[14..18].copy_from_slice(&self.sender.octets());
        out[18..24].copy_from_slice(&self.target_hardware);
        out[24..28].copy_from_slice(&self.target.octets());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: [u8; 28] =
        [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 192, 0, 2, 9];

    #[test]
    fn a_request_is_read_and_written_byte_for_byte() {
        let request = ArpPacket {
            operation: ArpOperation::Request,
            sender_hardware: [2, 0, 0, 0, 0, 1],
            sender: Ipv4Addr::new(192, 0, 2, 1),
            target_hardware: [0; 6],
            target: Ipv4Addr::new(192, 0, 2, 9),
        };
        assert_eq!(ArpPacket::parse(&REQUEST), Ok(request));
        let padded = [&REQUEST[..], &[0xee; 18]].concat();
        assert_eq!(ArpPacket::parse(&padded), Ok(request));
        let mut out = [0xee; 28];
        request.write(&mut out);
        assert_eq!(out, REQUEST);
        let reply = ArpPacket { operation: ArpOperation::Reply, ..request };
        reply.write(&mut out);
        assert_eq!(ArpPacket::parse(&out), Ok(reply));
    }

    #[test]
    fn other_networks_and_operations_are_unsupported() {
        for (place, value) in [(1, 6), (2, 0x86), (4, 8), (5, 16), (6, 1), (7, 0), (7, 3), (7, 8)] {
            let mut packet = REQUEST;
            packet[place] = value;
            let error = ArpPacket::parse(&packet).expect_err("unsupported");
            assert!(matches!(error, WireError::Unsupported(_)), "{place}: {error}");
        }
        for length in 0..28 {
            assert_eq!(ArpPacket::parse(&REQUEST[..length]), Err(WireError::Truncated));
        }
    }
}
