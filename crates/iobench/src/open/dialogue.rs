//! Requests of a generator and the check of its answers, by the protocols of the closed loop.
//!
//! Every byte of every answer is compared. Nothing here allocates unless an answer is wrong.

use std::fmt;

use crate::client::protocol::echo::Echo;
use crate::client::protocol::filler::Filler;
use crate::client::protocol::{Complaint, Fed, Protocol};
use crate::exchange::Exchange;
use crate::open::Numbering;
use crate::random::SplitMix64;

/// A generator's requests and the check of its answers. Each of its threads has one.
pub(crate) struct Dialogue {
    exchange: Exchange,
    protocol: Exchanging,
    salt: u64,
    numbering: Numbering,
}

/// The protocol of an exchange.
enum Exchanging {
    Echo(Echo),
    Filler(Filler),
}

impl Dialogue {
    /// `is_ours`: the server answers as iobench's own do. `salt` makes requests differ between the
    /// generators of a run, and between runs.
    pub(crate) fn new(
        exchange: Exchange,
        is_ours: bool,
        salt: u64,
        numbering: Numbering,
    ) -> Dialogue {
        let protocol = if exchange.is_echo() {
            Exchanging::Echo(Echo::comparing_all(exchange.request_bytes))
        } else {
            let mut filler = Filler::new(exchange, 0);
            filler.restart(is_ours);
            Exchanging::Filler(filler)
        };
        Dialogue { exchange, protocol, salt, numbering }
    }

    pub(crate) fn request_bytes(&self) -> usize {
        self.exchange.request_bytes
    }

    /// Returns the bytes of a request, which is identified by its connection and its number on
    /// that.
    pub(crate) fn request(&mut self, connection: usize, number: u32) -> &[u8] {
        let stamp = self.stamp(connection, number);
        match &mut self.protocol {
            Exchanging::Echo(echo) => echo.render(stamp),
            Exchanging::Filler(filler) => filler.render(stamp),
        }
    }

    /// Checks the bytes that have arrived of an answer, up to its end. `received` is the number of
    /// its bytes before.
    pub(crate) fn feed(
        &mut self,
        received: &mut usize,
        connection: usize,
        number: u32,
        bytes: &[u8],
    ) -> Result<Fed, WrongReply> {
        let stamp = self.stamp(connection, number);
        let fed = match &mut self.protocol {
            Exchanging::Echo(echo) => echo.feed(received, stamp, bytes),
            Exchanging::Filler(filler) => filler.feed(received, stamp, bytes),
        };
        fed.map_err(|complaint| self.wrong(connection, number, complaint))
    }

    /// Returns the fault of bytes after a reply that belong to no request.
    pub(crate) fn surplus(&self, connection: usize, number: u32, bytes: usize) -> WrongReply {
        let due = self.exchange.response_bytes;
        let complaint = Complaint(format!("has {bytes} bytes more than {due}"));
        self.wrong(connection, number, complaint)
    }

    fn stamp(&self, connection: usize, number: u32) -> u64 {
        let name = (connection as u64) << 32 | u64::from(number);
        SplitMix64::new(self.salt ^ name).next()
    }

    fn wrong(&self, connection: usize, number: u32, complaint: Complaint) -> WrongReply {
        WrongReply { connection: self.numbering.of(connection), number, complaint }
    }
}

/// Describes a reply that differs from the expected one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WrongReply {
    /// Its number among those of all generators.
    connection: usize,
    /// The number of the request on its connection, counted from 0.
    number: u32,
    complaint: Complaint,
}

impl fmt::Display for WrongReply {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WrongReply { connection, number, complaint: Complaint(what) } = self;
        write!(formatter, "the reply to request {number} of connection {connection} {what}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn dialogue(request_bytes: usize, response_bytes: usize) -> Dialogue {
        let exchange = Exchange { request_bytes, response_bytes };
        Dialogue::new(exchange, true, 7, Numbering::ALONE)
    }

    proptest! {
        #[test]
        fn replies_match_in_any_pieces_and_a_changed_byte_is_named(
            length in 1_usize..10_000, echo: bool, cut in 0_usize..10_000, place in 0_usize..10_000,
            number: u32,
        ) {
            let mut dialogue = dialogue(if echo { length } else { length + 1 }, length);
            let mut reply = if echo {
                dialogue.request(3, number).to_vec()
            } else {
                dialogue.exchange.filler()
            };
            let (cut, place) = (cut % length, place % length);
            let mut received = 0;
            let fed = dialogue.feed(&mut received, 3, number, &reply[..cut]).unwrap();
            prop_assert_eq!(fed, Fed { used: cut, complete: false });
            let fed = dialogue.feed(&mut received, 3, number, &reply[cut..]).unwrap();
            prop_assert_eq!(fed, Fed { used: length - cut, complete: true });
            reply[place] ^= 4;
            let (mut from, piece) =
                if place < cut { (0, &reply[..cut]) } else { (cut, &reply[cut..]) };
            let words = dialogue.feed(&mut from, 3, number, piece).unwrap_err().to_string();
            let expected =
                format!("the reply to request {number} of connection 3 differs at byte {place}: ");
            prop_assert!(words.starts_with(&expected), "{}", words);
        }

        #[test]
        fn the_echo_of_another_request_is_wrong(
            length in 8_usize..100, connection in 0_usize..1000, number: u32, other: u32,
        ) {
            prop_assume!(number != other);
            let mut dialogue = dialogue(length, length);
            let reply = dialogue.request(connection, other).to_vec();
            prop_assert!(dialogue.feed(&mut 0, connection, number, &reply).is_err());
            prop_assert!(dialogue.feed(&mut 0, connection + 1, other, &reply).is_err());
        }
    }

    #[test]
    fn surplus_is_told_with_its_size() {
        let words = dialogue(64, 64).surplus(2, 9, 1).to_string();
        assert_eq!(words, "the reply to request 9 of connection 2 has 1 bytes more than 64");
    }
}
