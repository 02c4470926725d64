//! Provides an established connection whose peer is the test itself.

use super::harness::{CLIENT_START, End, SERVER_START, Seen};
use crate::config::Config;
use crate::sequence::Sequence;
use crate::socket::State;
use crate::wire::ip::Ecn;
use crate::wire::tcp::{Flags, Options, SackBlock, TcpHeader, Timestamps};
use std::time::Duration;

/// A client that is connected to the connection under test.
pub(super) struct ByHand {
    pub(super) end: End,
    /// The next number that the client sends, and the next that it expects.
    pub(super) next: Sequence,
    pub(super) expected: Sequence,
    pub(super) window: u16,
    /// The client's timestamp clock, if timestamps are on.
    pub(super) clock: Option<u32>,
}

impl ByHand {
    pub(super) fn new(config: Config) -> ByHand {
        ByHand::with_options(config, 1460)
    }

    /// A client that accepts segments of `maximum_segment` bytes. Options are those of the
    /// configuration; windows are not scaled.
    pub(super) fn with_options(config: Config, maximum_segment: u16) -> ByHand {
        let clock = config.timestamps.then_some(5000);
        let sack = config.sack;
        let mut end = End::client(config);
        let syn = end.put().remove(0);
        assert_eq!(syn.header.sequence, CLIENT_START);
        let mut peer =
            ByHand { end, next: SERVER_START, expected: CLIENT_START + 1, window: 65_535, clock };
        peer.end.pass(Duration::from_millis(20));
        let mut answer = peer.segment(Flags::SYN.with(Flags::ACK), &[]);
        answer.header.options.maximum_segment = Some(maximum_segment);
        answer.header.options.sack_permitted = sack;
        if syn.has(Flags::ECE.with(Flags::CWR)) {
            answer.header.flags = answer.header.flags.with(Flags::ECE);
        }
        peer.next += 1;
        peer.end.take(&answer);
        let ack = peer.end.put();
        assert_eq!((ack.len(), ack[0].header.flags), (1, Flags::ACK));
        assert_eq!(peer.end.state(), State::Established);
        peer
    }

    /// A segment at the client's next number, which acknowledges the number that it expects.
    pub(super) fn segment(&self, flags: Flags, data: &[u8]) -> Seen {
        let echo = self.end.connection.stamps.clock(self.end.now);
        Seen {
            header: TcpHeader {
                sequence: self.next,
                acknowledgement: self.expected,
                flags,
                window: self.window,
                options: Options {
                    timestamps: self.clock.map(|value| Timestamps { value, echo }),
                    ..Options::default()
                },
                ..TcpHeader::default()
            },
            ecn: Ecn::NotCapable,
            data: data.to_vec(),
            segment_bytes: None,
        }
    }

    /// Sends the next data; returns the immediate answers.
    pub(super) fn data(&mut self, data: &[u8]) -> Vec<Seen> {
        let segment = self.segment(Flags::ACK, data);
        self.next += data.len() as u32;
        self.end.take(&segment);
        self.end.put()
    }

    /// Acknowledges all data that has arrived; returns the segments that follow.
    pub(super) fn acknowledge(&mut self) -> Vec<Seen> {
        self.acknowledge_with(&[])
    }

    pub(super) fn acknowledge_with(&mut self, blocks: &[(Sequence, Sequence)]) -> Vec<Seen> {
        let mut segment = self.segment(Flags::ACK, &[]);
        for (place, &(start, end)) in segment.header.options.sack.iter_mut().zip(blocks) {
            *place = SackBlock { start, end };
        }
        segment.header.options.sack_count = blocks.len() as u8;
        self.end.take(&segment);
        self.end.put()
    }

    /// Sends the next segment after `change` has modified it; returns the immediate answers.
    pub(super) fn odd(&mut self, change: impl FnOnce(&mut Seen)) -> Vec<Seen> {
        let mut segment = self.segment(Flags::ACK, &[]);
        change(&mut segment);
        self.end.take(&segment);
        self.end.put()
    }

    /// Sends from the connection, checks that all data arrives in segments, and returns them.
    pub(super) fn expect(&mut self, data: &[u8]) -> Vec<Seen> {
        assert_eq!(self.end.send(data), data.len());
        let sent = self.end.put();
        for seen in &sent {
            assert_eq!(seen.header.sequence, self.expected);
            self.expected += seen.data.len() as u32;
        }
        sent
    }
}
