//! What a client sends, and what it takes for the answer.
//!
//! Where request and response have the same size the response is an echo: every message carries a
//! stamp of its own at both ends and is compared with what comes back. Where the sizes differ only
//! the size of the response is known beforehand; the request is then an HTTP request where one
//! fits, so that real servers with answers of a constant size can be loaded as well.

use crate::exchange::Exchange;

/// Answers up to this size are compared completely, longer ones at the ends of every piece.
const FULL_COMPARE_BYTES: usize = 4096;
const EDGE_BYTES: usize = 64;
/// Before and after the query of the HTTP request, which is what makes it as long as asked for.
const HTTP_HEAD: &[u8] = b"GET /";
const HTTP_TAIL: &[u8] = b" HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// The request of all connections of a thread; stamps are rewritten for the connection at hand.
pub(crate) struct Message {
    exchange: Exchange,
    request: Vec<u8>,
}

impl Message {
    pub(crate) fn new(exchange: Exchange) -> Message {
        let request = match http_request(exchange.request_bytes) {
            Some(request) if !exchange.is_echo() => request,
            _ => (0..exchange.request_bytes).map(|index| (index * 31 % 251) as u8).collect(),
        };
        Message { exchange, request }
    }

    /// The bytes to send.
    pub(crate) fn request(&self) -> &[u8] {
        &self.request
    }

    pub(crate) fn response_bytes(&self) -> usize {
        self.exchange.response_bytes
    }

    pub(crate) fn is_echo(&self) -> bool {
        self.exchange.is_echo()
    }

    /// Writes a stamp into both ends of an echo's message; others have no place for one.
    pub(crate) fn stamp(&mut self, stamp: u64) {
        debug_assert!(self.is_echo(), "a stamp would spoil the request");
        let stamp = stamp.to_ne_bytes();
        let length = self.request.len();
        let width = length.min(stamp.len());
        self.request[..width].copy_from_slice(&stamp[..width]);
        self.request[length - width..].copy_from_slice(&stamp[..width]);
    }

    /// Whether bytes of an echo, received from offset `from` on, are those that were sent there.
    pub(crate) fn matches(&self, from: usize, received: &[u8]) -> bool {
        let count = received.len();
        let Some(sent) = self.request.get(from..from + count) else { return false };
        if count <= FULL_COMPARE_BYTES {
            return sent == received;
        }
        let tail = count - EDGE_BYTES;
        sent[..EDGE_BYTES] == received[..EDGE_BYTES] && sent[tail..] == received[tail..]
    }
}

/// A GET request of exactly `length` bytes, if it can be as short as that.
fn http_request(length: usize) -> Option<Vec<u8>> {
    let query_bytes = length.checked_sub(HTTP_HEAD.len() + HTTP_TAIL.len())?;
    let mut request = HTTP_HEAD.to_vec();
    request.extend((0..query_bytes).map(|index| if index == 0 { b'?' } else { b'x' }));
    request.extend_from_slice(HTTP_TAIL);
    Some(request)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_that_are_no_echo_speak_http_where_it_fits() {
        let request = |request_bytes| {
            Message::new(Exchange { request_bytes, response_bytes: 1 }).request().to_vec()
        };
        assert_eq!(request(35), b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(request(38), b"GET /?xx HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(request(34).len(), 34);
        assert!(!request(34).starts_with(b"GET"));
        assert!(!Message::new(Exchange::echo(40)).request().starts_with(b"GET"));
    }

    proptest! {
        #[test]
        fn every_request_has_its_size(
            request_bytes in 1_usize..20_000, response_bytes in 1_usize..9
        ) {
            let message = Message::new(Exchange { request_bytes, response_bytes });
            prop_assert_eq!(message.request().len(), request_bytes);
        }

        #[test]
        fn an_echo_matches_in_any_pieces_and_nothing_else_does(
            length in 1_usize..300, cut in 0_usize..300, place in 0_usize..300, stamp: u64
        ) {
            let mut message = Message::new(Exchange::echo(length));
            message.stamp(stamp);
            let mut echo = message.request().to_vec();
            let (cut, place) = (cut % (length + 1), place % length);
            prop_assert!(message.matches(0, &echo[..cut]) && message.matches(cut, &echo[cut..]));
            echo[place] ^= 1;
            prop_assert!(!message.matches(0, &echo));
            echo.push(0);
            prop_assert!(!message.matches(0, &echo));
        }
    }
}
