//! The echo protocol: answers repeat the request. Every request carries a unique stamp at both
//! ends, so that an old answer or that of another connection is detected.

use crate::client::protocol::{Complaint, Fed, Intake, Protocol, compare, of_http, request};
use crate::exchange::Exchange;
use crate::random::SplitMix64;

/// Pieces up to this size are compared completely. Longer ones are compared at both ends, and
/// completely in every `SAMPLE`th answer only, unless all are to be.
const FULL_COMPARE_BYTES: usize = 4096;
const EDGE_BYTES: usize = 64;
const SAMPLE: u64 = 16;

/// The requests of one thread, all of one size.
pub(crate) struct Echo {
    /// The request of the present connection; its stamp is written anew for each.
    message: Vec<u8>,
    transactions: u32,
    stamps: SplitMix64,
    /// Of long answers one in so many is compared completely.
    sample: u64,
}

impl Echo {
    /// Requests of `message_bytes`, `transactions` per connection or 0 for no end; `thread` makes
    /// the requests of different threads differ.
    pub(crate) fn new(message_bytes: usize, transactions: u32, thread: usize) -> Echo {
        let stamps = SplitMix64::new((thread as u64 + 1) << 56);
        let message = request(Exchange::echo(message_bytes));
        Echo { message, transactions, stamps, sample: SAMPLE }
    }

    /// Requests whose answers are all compared completely.
    pub(crate) fn comparing_all(message_bytes: usize) -> Echo {
        Echo { sample: 1, ..Echo::new(message_bytes, 0, 0) }
    }
}

/// Writes a stamp into both ends of a message.
pub(crate) fn stamp(message: &mut [u8], stamp: u64) {
    let stamp = stamp.to_ne_bytes();
    let length = message.len();
    let width = length.min(stamp.len());
    message[..width].copy_from_slice(&stamp[..width]);
    message[length - width..].copy_from_slice(&stamp[..width]);
}

impl Protocol for Echo {
    /// The stamp of the request.
    type Request = u64;
    /// Number of bytes received.
    type Answer = usize;
    const ECHOES: bool = true;

    /// Does nothing: stamps continue, so that an answer from an earlier slot is detected.
    fn restart(&mut self, _is_ours: bool) {}

    fn connection_requests(&mut self) -> u32 {
        self.transactions
    }

    fn next_request(&mut self) -> u64 {
        self.stamps.next()
    }

    fn render(&mut self, stamp: u64) -> &[u8] {
        self::stamp(&mut self.message, stamp);
        &self.message
    }

    fn begin_answer(received: &mut usize) {
        *received = 0;
    }

    fn intake(&self, received: &usize, _stamp: u64) -> Intake {
        Intake { most_bytes: self.message.len() - received + 1, is_seen: true }
    }

    fn feed(&mut self, received: &mut usize, stamp: u64, bytes: &[u8]) -> Result<Fed, Complaint> {
        self::stamp(&mut self.message, stamp);
        let from = *received;
        let used = bytes.len().min(self.message.len() - from);
        let (bytes, due) = (&bytes[..used], &self.message[from..from + used]);
        let checked = if used <= FULL_COMPARE_BYTES || stamp.is_multiple_of(self.sample) {
            compare(bytes, due, from as u64)
        } else {
            let tail = used - EDGE_BYTES;
            compare(&bytes[..EDGE_BYTES], &due[..EDGE_BYTES], from as u64)
                .and_then(|()| compare(&bytes[tail..], &due[tail..], (from + tail) as u64))
        };
        checked.map_err(|complaint| of_http(complaint, from, bytes))?;
        *received += used;
        Ok(Fed { used, complete: *received == self.message.len() })
    }

    /// Not called, because `intake` asks to see every byte.
    fn feed_unseen(&mut self, received: &mut usize, count: usize) -> Fed {
        let used = count.min(self.message.len() - *received);
        *received += used;
        Fed { used, complete: *received == self.message.len() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Feeds an answer in two pieces.
    fn feed(echo: &mut Echo, stamp: u64, bytes: &[u8], cut: usize) -> Result<Fed, Complaint> {
        let mut received = 0;
        echo.feed(&mut received, stamp, &bytes[..cut])?;
        echo.feed(&mut received, stamp, &bytes[cut..])
    }

    #[test]
    fn stamps_differ_between_requests_and_threads() {
        let (mut first, mut second) = (Echo::new(8, 1, 0), Echo::new(8, 1, 1));
        let mut stamps: Vec<u64> =
            (0..1_000).flat_map(|_| [first.next_request(), second.next_request()]).collect();
        stamps.sort_unstable();
        stamps.dedup();
        assert_eq!(stamps.len(), 2_000);
    }

    #[test]
    fn every_byte_of_some_large_answers_is_compared_and_the_ends_of_all() {
        let mut echo = Echo::new(65_536, 1, 0);
        let differs = |echo: &mut Echo, stamp, place: usize| {
            let mut answer = echo.render(stamp).to_vec();
            answer[place] ^= 1;
            echo.feed(&mut 0, stamp, &answer).is_err()
        };
        assert!(differs(&mut echo, SAMPLE, 30_000));
        assert!(!differs(&mut echo, SAMPLE + 1, 30_000));
        assert!(differs(&mut echo, SAMPLE + 1, 8) && differs(&mut echo, SAMPLE + 1, 65_500));
    }

    proptest! {
        #[test]
        fn an_echo_matches_in_any_pieces_and_nothing_else_does(
            length in 1_usize..300, cut in 0_usize..300, place in 0_usize..300, stamp: u64
        ) {
            let mut echo = Echo::new(length, 1, 0);
            let mut answer = echo.render(stamp).to_vec();
            let (cut, place) = (cut % (length + 1), place % length);
            let fed = feed(&mut echo, stamp, &answer, cut).unwrap();
            prop_assert_eq!(fed, Fed { used: length - cut, complete: true });
            answer[place] ^= 1;
            let complaint = feed(&mut echo, stamp, &answer, cut).unwrap_err().0;
            let expected = format!("differs at byte {place}: ");
            prop_assert!(complaint.starts_with(&expected));
            answer[place] ^= 1;
            answer.push(0);
            let fed = feed(&mut echo, stamp, &answer, cut).unwrap();
            prop_assert_eq!(fed, Fed { used: length - cut, complete: true });
        }
    }
}
