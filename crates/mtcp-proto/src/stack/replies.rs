//! Queues segments that no connection sends: resets, SYN cookies, the last acknowledgement of
//! TIME_WAIT.

use crate::counters::Counters;
use crate::flow::Flow;
use crate::packet::{Packet, PartialChecksum, Sink};
use crate::sequence::Sequence;
use crate::wire::ip::{Ecn, IpHeader};
use crate::wire::tcp::{Flags, TcpHeader};
use crate::wire::{PROTOCOL_TCP, checksum};
use std::collections::VecDeque;

/// Most waiting replies. They answer packets that may be forged, so further ones are dropped;
/// genuine peers retransmit.
const LIMIT: usize = 1024;
/// Hops that packets may take (RFC 1700's recommendation).
const HOP_LIMIT: u8 = 64;

#[derive(Debug)]
struct Reply {
    flow: Flow,
    header: TcpHeader,
}

/// The segments that wait to be sent, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Replies(VecDeque<Reply>);

impl Replies {
    /// Queues a reply; false if there is no room.
    pub(super) fn push(&mut self, flow: Flow, header: TcpHeader) -> bool {
        let room = self.0.len() < LIMIT;
        if room {
            self.0.push_back(Reply { flow, header });
        }
        room
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sends the replies, the oldest first; false if the sink became full.
    pub(super) fn output(&mut self, sink: &mut dyn Sink, counters: &mut Counters) -> bool {
        let partial = sink.capabilities().checksum;
        while let Some(reply) = self.0.front() {
            if !reply.write(partial, sink) {
                return false;
            }
            counters.packets_sent += 1;
            if reply.header.flags.contains(Flags::RST) {
                counters.resets_sent += 1;
            }
            self.0.pop_front();
        }
        true
    }
}

impl Reply {
    fn write(&self, partial: bool, sink: &mut dyn Sink) -> bool {
        let (source, destination) = (self.flow.local_address(), self.flow.remote_address());
        let ip = IpHeader {
            source,
            destination,
            protocol: PROTOCOL_TCP,
            ecn: Ecn::NotCapable,
            hop_limit: HOP_LIMIT,
        };
        let (ip_bytes, tcp_bytes) = (ip.bytes(), self.header.bytes());
        let bytes = ip_bytes + tcp_bytes;
        let Some(room) = sink.room(bytes) else { return false };
        ip.write(tcp_bytes, &mut room[..ip_bytes]);
        let segment = &mut room[ip_bytes..bytes];
        self.header.write(segment);
        let partial_checksum = if partial {
            checksum::fill_tcp_partial(source, destination, segment);
            let offset = checksum::TCP_CHECKSUM_OFFSET as u16;
            Some(PartialChecksum { start: ip_bytes as u16, offset })
        } else {
            checksum::fill_tcp(source, destination, segment);
            None
        };
        sink.commit(Packet { bytes, destination, partial_checksum, segment_bytes: None });
        true
    }
}

/// The reset that answers a segment without a connection (RFC 9293, section 3.10.7.1); `None` for a
/// reset.
pub(super) fn reset(flow: &Flow, header: &TcpHeader, data_bytes: u32) -> Option<TcpHeader> {
    if header.flags.contains(Flags::RST) {
        return None;
    }
    let reply = TcpHeader {
        source_port: flow.local_port(),
        destination_port: flow.remote_port(),
        ..TcpHeader::default()
    };
    if header.flags.contains(Flags::ACK) {
        return Some(TcpHeader { sequence: header.acknowledgement, flags: Flags::RST, ..reply });
    }
    let control =
        u32::from(header.flags.contains(Flags::SYN)) + u32::from(header.flags.contains(Flags::FIN));
    Some(TcpHeader {
        sequence: Sequence(0),
        acknowledgement: header.sequence + data_bytes + control,
        flags: Flags::RST.with(Flags::ACK),
        ..reply
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::SinkCapabilities;

    struct Slots {
        packets: Vec<Vec<u8>>,
        room: [u8; 128],
        free: usize,
        checksum: bool,
    }

    impl Sink for Slots {
        fn capabilities(&self) -> SinkCapabilities {
            SinkCapabilities { checksum: self.checksum, segmentation_bytes: 0 }
        }

        fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
            (self.packets.len() < self.free).then_some(&mut self.room[..bytes])
        }

        fn commit(&mut self, packet: Packet) {
            assert_eq!(packet.partial_checksum.is_some(), self.checksum);
            self.packets.push(self.room[..packet.bytes].to_vec());
        }
    }

    fn flow(address: &str) -> Flow {
        let local = format!("{address}1").parse().unwrap();
        Flow::new((local, 80), (format!("{address}2").parse().unwrap(), 4000))
    }

    #[test]
    fn resets_answer_what_has_no_connection() {
        let header = |flags| TcpHeader {
            sequence: Sequence(u32::MAX),
            acknowledgement: Sequence(9),
            flags,
            ..TcpHeader::default()
        };
        let flow = flow("10.0.0.");
        assert_eq!(reset(&flow, &header(Flags::RST.with(Flags::ACK)), 0), None);
        let reply = reset(&flow, &header(Flags::ACK), 5).unwrap();
        assert_eq!((reply.sequence, reply.flags), (Sequence(9), Flags::RST));
        let reply = reset(&flow, &header(Flags::SYN.with(Flags::FIN)), 5).unwrap();
        assert_eq!((reply.sequence, reply.acknowledgement), (Sequence(0), Sequence(6)));
        assert_eq!(reply.flags, Flags::RST.with(Flags::ACK));
        assert_eq!((reply.source_port, reply.destination_port), (80, 4000));
    }

    #[test]
    fn replies_wait_for_room_in_order_and_are_bounded() {
        for (address, checksum) in [("10.0.0.", false), ("fd00::", false), ("fd00::", true)] {
            let mut replies = Replies::default();
            for number in 0..LIMIT as u32 + 5 {
                let header = TcpHeader {
                    sequence: Sequence(number),
                    flags: Flags::RST,
                    ..TcpHeader::default()
                };
                assert_eq!(replies.push(flow(address), header), number < LIMIT as u32);
            }
            let mut sink = Slots { packets: Vec::new(), room: [0; 128], free: 3, checksum };
            let mut counters = Counters::default();
            assert!(!replies.output(&mut sink, &mut counters) && !replies.is_empty());
            sink.free = usize::MAX;
            assert!(replies.output(&mut sink, &mut counters) && replies.is_empty());
            assert_eq!(counters.resets_sent, LIMIT as u64);
            for (number, packet) in sink.packets.iter().enumerate() {
                let (ip, segment) = IpHeader::parse(packet).unwrap();
                let verified = checksum::verify_tcp(ip.source, ip.destination, segment);
                assert!(verified || checksum);
                let (header, _) = TcpHeader::parse(segment).unwrap();
                assert_eq!(header.sequence, Sequence(number as u32));
            }
        }
    }
}
