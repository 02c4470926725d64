//! Answers of one size that differs from the request's.
//!
//! The answers of iobench's own servers are known. For other servers the first answer that is
//! examined becomes the reference: if it is HTTP, its status has to be success and its length
//! right, and everything but the headers has to be the same in all later ones. Answers up to 4 KiB
//! are compared completely. Of longer ones every sixteenth is; of the others only the size is
//! checked, which avoids the copy out of the kernel.

use crate::client::protocol::http::{Head, find_head_end};
use crate::client::protocol::{Complaint, Fed, HTTP, Intake, Protocol, compare, of_http, request};
use crate::exchange::Exchange;

/// Answers up to this size are all compared, longer ones one in `SAMPLE`.
const ALWAYS_SEEN_BYTES: usize = 4096;
const SAMPLE: u64 = 16;

/// Repeats one request and expects one answer.
pub(crate) struct Filler {
    request: Vec<u8>,
    response_bytes: usize,
    transactions: u32,
    /// Requests made since the slot began.
    requests: u64,
    reference: Reference,
}

/// The reference that answers are compared with.
#[derive(Debug)]
struct Reference {
    /// The whole answer, or the part of an unknown server's answer that has been seen so far.
    bytes: Vec<u8>,
    /// The answer is that of iobench's own servers, not learned.
    is_known: bool,
    /// For a learned HTTP answer: where the status line ends and where the body begins; the latter
    /// is `usize::MAX` until the whole head has arrived.
    headers: Option<(usize, usize)>,
}

impl Filler {
    /// Makes `transactions` requests for each connection, or 0 for no end.
    pub(crate) fn new(exchange: Exchange, transactions: u32) -> Filler {
        Filler {
            request: request(exchange),
            response_bytes: exchange.response_bytes,
            transactions,
            requests: 0,
            reference: Reference::known(exchange),
        }
    }
}

impl Protocol for Filler {
    /// The request's number.
    type Request = u64;
    /// Number of bytes received.
    type Answer = usize;

    fn restart(&mut self, is_ours: bool) {
        self.requests = 0;
        let exchange =
            Exchange { request_bytes: self.request.len(), response_bytes: self.response_bytes };
        if !is_ours {
            self.reference = Reference::unknown();
        } else if !self.reference.is_known {
            self.reference = Reference::known(exchange);
        }
    }

    fn connection_requests(&mut self) -> u32 {
        self.transactions
    }

    fn next_request(&mut self) -> u64 {
        self.requests += 1;
        self.requests - 1
    }

    fn render(&mut self, _number: u64) -> &[u8] {
        &self.request
    }

    fn begin_answer(received: &mut usize) {
        *received = 0;
    }

    fn intake(&self, received: &usize, number: u64) -> Intake {
        Intake {
            most_bytes: self.response_bytes - received + 1,
            is_seen: self.response_bytes <= ALWAYS_SEEN_BYTES || number.is_multiple_of(SAMPLE),
        }
    }

    fn feed(&mut self, received: &mut usize, _number: u64, bytes: &[u8]) -> Result<Fed, Complaint> {
        let used = bytes.len().min(self.response_bytes - *received);
        let checked = self.reference.check(&bytes[..used], *received, self.response_bytes);
        match checked {
            Err(complaint) if self.reference.is_known => {
                return Err(of_http(complaint, *received, bytes));
            }
            checked => checked?,
        }
        Ok(self.feed_unseen(received, used))
    }

    fn feed_unseen(&mut self, received: &mut usize, count: usize) -> Fed {
        let used = count.min(self.response_bytes - *received);
        *received += used;
        Fed { used, complete: *received == self.response_bytes }
    }
}

impl Reference {
    fn known(exchange: Exchange) -> Reference {
        Reference { bytes: exchange.filler(), is_known: true, headers: None }
    }

    fn unknown() -> Reference {
        Reference { bytes: Vec::new(), is_known: false, headers: None }
    }

    /// Compares a piece of an answer from a position on, and stores the part that is not known yet.
    fn check(&mut self, piece: &[u8], from: usize, response_bytes: usize) -> Result<(), Complaint> {
        let known = self.bytes.len().saturating_sub(from).min(piece.len());
        if known > 0 {
            self.compare(&piece[..known], from)?;
        }
        // After a complaint the answer may be ahead of the known bytes.
        if known == piece.len() || from + known != self.bytes.len() {
            return Ok(());
        }
        self.bytes.extend_from_slice(&piece[known..]);
        self.check_head(response_bytes).inspect_err(|_| *self = Reference::unknown())
    }

    fn compare(&self, piece: &[u8], from: usize) -> Result<(), Complaint> {
        let end = from + piece.len();
        let due = |from: usize, to: usize| &self.bytes[from..to];
        let Some((status_end, body)) = self.headers else {
            return compare(piece, due(from, end), from as u64);
        };
        // Servers send the time in their headers.
        if from < status_end {
            let count = status_end.min(end) - from;
            compare(&piece[..count], due(from, from + count), from as u64)?;
        }
        if end > body {
            let first = body.max(from);
            compare(&piece[first - from..], due(first, end), first as u64)?;
        }
        Ok(())
    }

    /// Checks the head of an HTTP answer, once it is complete.
    fn check_head(&mut self, response_bytes: usize) -> Result<(), Complaint> {
        if !self.bytes.starts_with(HTTP) || self.headers.is_some_and(|(_, end)| end != usize::MAX) {
            return Ok(());
        }
        let Some(newline) = self.bytes.iter().position(|&byte| byte == b'\n') else {
            return Ok(());
        };
        let status_end = newline + 1;
        let Some(end) = find_head_end(&self.bytes) else {
            // An answer that is too short for a whole head consists of the beginning of one.
            let may_follow = self.bytes.len() < response_bytes;
            self.headers = may_follow.then_some((status_end, usize::MAX));
            return Ok(());
        };
        let head = Head::parse(&self.bytes[..end])?;
        head.check_success()?;
        let body_bytes = (response_bytes - end) as u64;
        if let Some(length) = head.length.filter(|&length| length != body_bytes) {
            return Err(Complaint(format!(
                "announces a body of {length} bytes, where {body_bytes} make up the size that was \
                 asked for"
            )));
        }
        self.headers = Some((status_end, end));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OK: &str = "HTTP/1.1 200 OK\r\nDate: 1\r\nContent-Length: 5\r\n\r\nhello";

    fn filler(response_bytes: usize, is_ours: bool) -> Filler {
        let mut filler = Filler::new(Exchange { request_bytes: 40, response_bytes }, 1);
        filler.restart(is_ours);
        filler
    }

    /// Returns the complaint about one of these answers, each fed in one piece.
    fn complaint(answers: &[&[u8]], is_ours: bool) -> Option<String> {
        let mut filler = filler(answers[0].len(), is_ours);
        answers.iter().find_map(|bytes| {
            let request = filler.next_request();
            filler.feed(&mut 0, request, bytes).err().map(|Complaint(what)| what)
        })
    }

    #[test]
    fn the_content_of_our_own_servers_is_known() {
        let exchange = Exchange { request_bytes: 40, response_bytes: 100 };
        let right = exchange.filler();
        assert_eq!(complaint(&[&right, &right], true), None);
        let mut flipped = right.clone();
        flipped[99] ^= 0x10;
        let told = complaint(&[&right, &flipped], true);
        assert_eq!(told.as_deref(), Some("differs at byte 99: 0x3e where 0x2e was due"));
        let told = complaint(&[&[0; 100]], true);
        assert_eq!(told.as_deref(), Some("differs at byte 0: 0x00 where 0x48 was due"));
    }

    #[test]
    fn other_servers_answers_have_to_be_the_same() {
        assert_eq!(complaint(&[b"same", b"same", b"same"], false), None);
        let told = complaint(&[b"same", b"some"], false);
        assert_eq!(told.as_deref(), Some("differs at byte 1: 0x6f where 0x61 was due"));
        let later = OK.replace("Date: 1", "Date: 2");
        assert_eq!(complaint(&[OK.as_bytes(), later.as_bytes()], false), None);
        let told = complaint(&[OK.as_bytes(), later.replace("hello", "jello").as_bytes()], false);
        assert!(told.unwrap().starts_with("differs at byte 47: 0x6a"));
        let told = complaint(&[OK.as_bytes(), later.replace("200 OK", "500 No").as_bytes()], false);
        assert!(told.unwrap().starts_with("differs at byte 9: 0x35"));
    }

    #[test]
    fn an_http_answer_is_a_success_of_the_right_length() {
        let told = complaint(&[OK.replace("200 OK", "500 Oops").as_bytes()], false).unwrap();
        assert!(told.contains("has the status line `HTTP/1.1 500 Oops`"), "{told}");
        let told = complaint(&[OK.replace("th: 5", "th: 6").as_bytes()], false).unwrap();
        assert!(told.contains("a body of 6 bytes, where 5"), "{told}");
        let empty = b"HTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(complaint(&[empty, empty], false), None);
    }

    #[test]
    fn of_long_answers_a_sample_is_seen() {
        let count = |response_bytes| {
            let filler = filler(response_bytes, true);
            (0..160).filter(|&number| filler.intake(&0, number).is_seen).count()
        };
        assert_eq!((count(4_096), count(4_097)), (160, 10));
        assert!(filler(65_536, false).intake(&0, 0).is_seen, "the first is looked at");
        assert_eq!(filler(10, false).intake(&4, 0).most_bytes, 7);
    }

    proptest! {
        #[test]
        fn answers_are_compared_and_learned_in_any_pieces(
            is_ours: bool, size in 1_usize..200, place in 0_usize..200,
            mut cuts in prop::collection::vec(0_usize..200, 0..4),
        ) {
            let mut filler = filler(size, is_ours);
            let right = Exchange { request_bytes: 40, response_bytes: size }.filler();
            cuts.iter_mut().for_each(|cut| *cut %= size + 1);
            cuts.extend([0, size]);
            cuts.sort_unstable();
            let mut feed = |answer: &[u8]| {
                let mut received = 0;
                for cut in cuts.windows(2) {
                    filler.feed(&mut received, 0, &answer[cut[0]..cut[1]])?;
                }
                Ok::<usize, Complaint>(received)
            };
            prop_assert_eq!(feed(&right), Ok(size));
            prop_assert_eq!(feed(&right), Ok(size));
            let mut wrong = right.clone();
            let place = place % size;
            wrong[place] ^= 1;
            // The headers of a learned head are not compared.
            let in_headers = !is_ours && size >= 38 && wrong[place] != b'.' ^ 1 && place > 16;
            prop_assert!(in_headers || feed(&wrong).is_err());
        }
    }
}
