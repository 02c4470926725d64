//! Simulates the device between a stack and its link: limited room, checksum completion and
//! segmentation, as in hardware.

use super::packet::{self, CWR, FIN, PSH};
use super::random::Random;
use mtcp_proto::{Packet, Sink, SinkCapabilities};

/// A device for outgoing packets.
#[derive(Debug)]
pub(crate) struct Device {
    capabilities: SinkCapabilities,
    mtu: usize,
    random: Random,
    /// The probability that it is full when a caller asks for room.
    full: f64,
    room: Vec<u8>,
    /// The length that the last caller asked for.
    asked_bytes: usize,
    /// Packets that it has put on the link, oldest first.
    pub(crate) sent: Vec<Vec<u8>>,
    /// The number of packets that the stack has committed.
    pub(crate) commits: u64,
    /// Violations of the contract by the stack.
    pub(crate) faults: Vec<String>,
}

impl Device {
    pub(crate) fn new(
        capabilities: SinkCapabilities,
        mtu: u16,
        full: f64,
        random: Random,
    ) -> Device {
        Device {
            capabilities,
            mtu: usize::from(mtu),
            random,
            full,
            room: Vec::new(),
            asked_bytes: 0,
            sent: Vec::new(),
            commits: 0,
            faults: Vec::new(),
        }
    }

    fn fault(&mut self, what: String) {
        self.faults.push(what);
    }

    /// Checks that the packet keeps the contract of [`Packet`].
    fn check(&mut self, packet: &Packet) -> bool {
        let before = self.faults.len();
        if packet.bytes == 0 || packet.bytes > self.asked_bytes {
            self.fault(format!("{} bytes in a room of {}", packet.bytes, self.asked_bytes));
            return false;
        }
        if packet.partial_checksum.is_some() && !self.capabilities.checksum {
            self.fault("a partial checksum that the device cannot complete".into());
        }
        match packet.segment_bytes {
            Some(0) => self.fault("segments of no bytes".into()),
            Some(_) if packet.bytes > self.capabilities.segmentation_bytes as usize => {
                self.fault(format!("{} bytes are more than the device cuts", packet.bytes));
            }
            Some(_) if packet.partial_checksum.is_none() => {
                self.fault("a packet to be cut without a partial checksum".into());
            }
            None if packet.bytes > self.mtu => {
                self.fault(format!("{} bytes on an MTU of {}", packet.bytes, self.mtu));
            }
            _ => {}
        }
        self.faults.len() == before
    }
}

impl Sink for Device {
    fn capabilities(&self) -> SinkCapabilities {
        self.capabilities
    }

    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if bytes > 65_535 {
            self.fault(format!("room for {bytes} bytes was asked for"));
        }
        if self.random.chance(self.full) {
            return None;
        }
        self.asked_bytes = bytes;
        if self.room.len() < bytes {
            self.room.resize(bytes, 0);
        }
        Some(&mut self.room[..bytes])
    }

    fn commit(&mut self, packet: Packet) {
        self.commits += 1;
        if !self.check(&packet) {
            return;
        }
        let mut bytes = self.room[..packet.bytes].to_vec();
        match packet::parse_ip(&bytes) {
            Ok((_, destination, ..)) if destination == packet.destination => {}
            Ok(_) => self.fault("the packet's destination is not its header's".into()),
            Err(error) => return self.fault(error),
        }
        match (packet.partial_checksum, packet.segment_bytes) {
            (Some(_), Some(payload)) => match cut(&bytes, usize::from(payload), self.mtu) {
                Ok(segments) => self.sent.extend(segments),
                Err(error) => self.fault(error),
            },
            (Some(partial), None) => {
                let (start, offset) = (usize::from(partial.start), usize::from(partial.offset));
                if start != packet::ip_header_bytes(&bytes) || offset != 16 {
                    return self.fault(format!("a partial checksum at {start} + {offset}"));
                }
                let total = !packet::fold(packet::sum(&bytes[start..], 0));
                bytes[start + offset..start + offset + 2].copy_from_slice(&total.to_be_bytes());
                self.sent.push(bytes);
            }
            _ => self.sent.push(bytes),
        }
    }
}

/// Cuts a long packet into segments with this number of payload bytes.
fn cut(long: &[u8], payload_bytes: usize, mtu: usize) -> Result<Vec<Vec<u8>>, String> {
    let start = packet::ip_header_bytes(long);
    let headers = start + usize::from(long[start + 12] >> 4) * 4;
    if headers + payload_bytes > mtu {
        return Err(format!("segments of {} bytes on an MTU of {mtu}", headers + payload_bytes));
    }
    if headers >= long.len() {
        return Err("a packet without data is to be cut".into());
    }
    let count = (long.len() - headers).div_ceil(payload_bytes);
    let sequence = u32::from_be_bytes(long[start + 4..start + 8].try_into().expect("4 bytes"));
    let (source, destination, protocol, _) = packet::parse_ip(long)?;
    let pieces = long[headers..].chunks(payload_bytes).enumerate().map(|(at, payload)| {
        let mut piece = long[..headers].to_vec();
        piece.extend_from_slice(payload);
        let begin = sequence.wrapping_add((at * payload_bytes) as u32);
        piece[start + 4..start + 8].copy_from_slice(&begin.to_be_bytes());
        if at + 1 < count {
            piece[start + 13] &= !(FIN | PSH);
        }
        if at > 0 {
            piece[start + 13] &= !CWR;
        }
        packet::finish_ip(&mut piece);
        piece[start + 16..start + 18].copy_from_slice(&[0, 0]);
        let bytes = piece.len() - start;
        let pseudo = packet::pseudo_sum(source, destination, protocol, bytes);
        let total = !packet::fold(packet::sum(&piece[start..], pseudo));
        piece[start + 16..start + 18].copy_from_slice(&total.to_be_bytes());
        piece
    });
    Ok(pieces.collect())
}

#[cfg(test)]
mod tests {
    use super::super::packet::{ACK, Draft, parse};
    use super::*;
    use mtcp_proto::PartialChecksum;

    fn device(segmentation_bytes: u32) -> Device {
        let capabilities = SinkCapabilities { checksum: true, segmentation_bytes };
        Device::new(capabilities, 1500, 0.0, Random::new(1))
    }

    fn draft(data: &[u8]) -> Vec<u8> {
        Draft {
            source: "10.0.0.1:5".parse().unwrap(),
            destination: "10.0.0.2:6".parse().unwrap(),
            sequence: u32::MAX - 1000,
            acknowledgement: 1,
            flags: ACK | PSH | FIN | CWR,
            window: 9,
            options: &[],
            data,
        }
        .build()
    }

    fn send(device: &mut Device, bytes: &[u8], segment_bytes: Option<u16>) {
        let mut partial = bytes.to_vec();
        let (source, destination, protocol, _) = packet::parse_ip(bytes).unwrap();
        let pseudo = packet::pseudo_sum(source, destination, protocol, bytes.len() - 20);
        partial[36..38].copy_from_slice(&packet::fold(pseudo).to_be_bytes());
        device.room(partial.len()).unwrap().copy_from_slice(&partial);
        device.commit(Packet {
            bytes: partial.len(),
            destination,
            partial_checksum: Some(PartialChecksum { start: 20, offset: 16 }),
            segment_bytes,
        });
    }

    #[test]
    fn a_partial_checksum_is_completed() {
        let mut device = device(0);
        send(&mut device, &draft(b"hello"), None);
        assert_eq!(device.faults, Vec::<String>::new());
        assert_eq!(device.sent, [draft(b"hello")]);
    }

    #[test]
    fn a_long_packet_is_cut() {
        let mut device = device(65_535);
        let data: Vec<u8> = (0..3001_u32).map(|number| number as u8).collect();
        send(&mut device, &draft(&data), Some(1400));
        assert_eq!(device.faults, Vec::<String>::new());
        let segments: Vec<_> = device.sent.iter().map(|bytes| parse(bytes).unwrap()).collect();
        let shapes: Vec<_> = segments.iter().map(|one| (one.data_bytes, one.flags)).collect();
        let last = ACK | PSH | FIN;
        assert_eq!(shapes, [(1400, ACK | CWR), (1400, ACK), (201, last)]);
        assert_eq!(segments[1].sequence, 399);
        let joined: Vec<u8> =
            device.sent.iter().flat_map(|bytes| bytes[40..].iter().copied()).collect();
        assert_eq!(joined, data);
    }

    #[test]
    fn broken_promises_are_faults() {
        let mut device = device(2000);
        send(&mut device, &draft(&[0; 2500]), Some(1000));
        send(&mut device, &draft(&[0; 1800]), Some(1600));
        send(&mut device, &draft(&[0; 1600]), None);
        assert_eq!(device.faults.len(), 3, "{:?}", device.faults);
    }
}
