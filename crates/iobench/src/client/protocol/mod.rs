//! Client protocols without sockets: produce requests as bytes, and check answers that arrive in
//! pieces.
//!
//! `echo` and `filler` are the exchanges of `compare`; `http` and `memcache` are for real servers,
//! `get` is for the application of `iobench http`.
//! A wrong answer is described in words that continue "answer 17 ...".

pub(crate) mod answer;
mod deck;
pub(crate) mod echo;
pub(crate) mod filler;
pub(crate) mod get;
pub(crate) mod http;
pub(crate) mod memcache;
pub(crate) mod pattern;
pub(crate) mod requests;

use crate::exchange::Exchange;

/// Text before the query of the HTTP request; the query pads the request to its size.
const HTTP_HEAD: &[u8] = b"GET /";
const HTTP_TAIL: &[u8] = b" HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// The beginning of every answer of HTTP/1.
const HTTP: &[u8] = b"HTTP/1.";

/// What is wrong with an answer, in words that continue "answer 17 ...".
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Complaint(pub(crate) String);

/// How many bytes were consumed, and whether the answer ends with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fed {
    pub(crate) used: usize,
    pub(crate) complete: bool,
}

/// Parameters of the next receive on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Intake {
    /// Longest receive: one byte more than the answer still needs, so that surplus bytes are
    /// detected without another call.
    pub(crate) most_bytes: usize,
    /// The bytes are examined; otherwise only their number is.
    pub(crate) is_seen: bool,
}

/// The client side of a protocol. Every client thread has its own.
pub(crate) trait Protocol {
    /// Identifies one request; its bytes and its answer follow from it.
    type Request: Copy + Default;
    /// The progress of an answer.
    type Answer: Default;
    /// The answer may begin before the whole request is sent, but is never longer than what was
    /// sent.
    const ECHOES: bool = false;

    /// Restarts the sequence of requests, so that every slot has the same one. `is_ours`: the
    /// server answers as iobench's own do.
    fn restart(&mut self, is_ours: bool);
    /// Returns the number of requests of the next connection; 0 for as many as fit into the slot.
    fn connection_requests(&mut self) -> u32;
    fn next_request(&mut self) -> Self::Request;
    /// Returns the bytes of the request; the same for the same request.
    fn render(&mut self, request: Self::Request) -> &[u8];
    /// Prepares for the answer to the next request.
    fn begin_answer(answer: &mut Self::Answer);
    /// Returns how much of an answer to receive next.
    fn intake(&self, answer: &Self::Answer, request: Self::Request) -> Intake;
    /// Checks the bytes that have arrived of an answer, up to its end.
    fn feed(
        &mut self,
        answer: &mut Self::Answer,
        request: Self::Request,
        bytes: &[u8],
    ) -> Result<Fed, Complaint>;
    /// Counts bytes that `intake` did not ask to see.
    fn feed_unseen(&mut self, answer: &mut Self::Answer, count: usize) -> Fed;
}

/// Compares a piece of an answer with the expected one, from position `at` on.
fn compare(received: &[u8], due: &[u8], at: u64) -> Result<(), Complaint> {
    if received == due {
        return Ok(());
    }
    let mut pairs = received.iter().zip(due).zip(at..);
    Err(Complaint(match pairs.find(|((received, due), _)| received != due) {
        Some(((received, due), place)) => {
            format!("differs at byte {place}: {received:#04x} where {due:#04x} was due")
        }
        None => format!("has {} bytes where {} were due", received.len(), due.len()),
    }))
}

/// Adds to a complaint about bytes of an answer, from position `from` on, which command is for the
/// server, if they begin an answer of HTTP other than those of iobench's own servers.
fn of_http(Complaint(what): Complaint, from: usize, bytes: &[u8]) -> Complaint {
    let is_http = bytes.starts_with(HTTP) && !bytes.starts_with(ipcload::FILLER_HEAD.as_bytes());
    Complaint(match from {
        0 if is_http => {
            format!("{what}; it is one of HTTP, whose servers `iobench load URL` loads")
        }
        _ => what,
    })
}

/// Returns the request of an exchange. If it is not an echo and long enough, it is HTTP, so that
/// real servers with answers of a constant size can be loaded as well.
pub(crate) fn request(exchange: Exchange) -> Vec<u8> {
    match http_request(exchange.request_bytes) {
        Some(request) if !exchange.is_echo() => request,
        _ => (0..exchange.request_bytes).map(|index| (index * 31 % 251) as u8).collect(),
    }
}

/// Returns a GET request of exactly `length` bytes; `None` if that is too short.
fn http_request(length: usize) -> Option<Vec<u8>> {
    let query_bytes = length.checked_sub(HTTP_HEAD.len() + HTTP_TAIL.len())?;
    let mut request = HTTP_HEAD.to_vec();
    request.extend((0..query_bytes).map(|index| if index == 0 { b'?' } else { b'x' }));
    request.extend_from_slice(HTTP_TAIL);
    Some(request)
}

/// Feeds pieces to a protocol in a test; returns how many answers, in the order of `requests`, were
/// complete.
#[cfg(test)]
fn feed_all<P: Protocol>(
    protocol: &mut P,
    requests: &[P::Request],
    pieces: &[&[u8]],
) -> Result<usize, Complaint> {
    let (mut answer, mut done) = (P::Answer::default(), 0);
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            let fed = protocol.feed(&mut answer, requests[done], rest)?;
            assert!(fed.used <= rest.len() && (fed.used > 0 || fed.complete));
            rest = &rest[fed.used..];
            if fed.complete {
                P::begin_answer(&mut answer);
                done += 1;
            }
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_that_are_no_echo_speak_http_where_it_fits() {
        let request = |request_bytes| request(Exchange { request_bytes, response_bytes: 1 });
        assert_eq!(request(35), b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(request(38), b"GET /?xx HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(request(34).len(), 34);
        assert!(!request(34).starts_with(b"GET"));
        assert!(!super::request(Exchange::echo(40)).starts_with(b"GET"));
    }

    #[test]
    fn the_first_difference_is_named() {
        let complaint = compare(b"abcd", b"abXd", 100).unwrap_err().0;
        assert_eq!(complaint, "differs at byte 102: 0x63 where 0x58 was due");
        assert_eq!(compare(b"", b"", 0), Ok(()));
    }

    proptest! {
        #[test]
        fn every_request_has_its_size(
            request_bytes in 1_usize..20_000, response_bytes in 1_usize..9
        ) {
            let exchange = Exchange { request_bytes, response_bytes };
            prop_assert_eq!(request(exchange).len(), request_bytes);
        }
    }
}
