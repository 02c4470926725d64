//! Makes requests and checks replies byte by byte.
//!
//! If both have the same size, the reply is an echo of the request, which carries a unique stamp at
//! both ends, so that the reply to another request is detected. If the sizes differ, a server of
//! iobench sends the filler of `exchange.rs`. Any other server may send an HTTP response of that
//! size: the status line and the body have to be those of the first response, and only the header
//! fields, which may contain a date, may change. Nothing here allocates per request.

use std::fmt;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::time::Duration;

use crate::client::protocol::{echo, request};
use crate::exchange::Exchange;
use crate::open::Numbering;
use crate::open::connect::Route;
use crate::random::SplitMix64;

/// Time-out of the first response, which is used as the reference.
const FIRST_RESPONSE_LIMIT: Duration = Duration::from_secs(10);

/// The expected reply, if it is not an echo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template {
    bytes: Vec<u8>,
    /// The range of bytes that may differ.
    skipped: Range<usize>,
}

impl Template {
    /// Returns the reply of iobench's own servers.
    pub(crate) fn of_ours(exchange: Exchange) -> Template {
        Template { bytes: exchange.filler(), skipped: 0..0 }
    }

    /// Learns the reply of any server from one request. Without a reply, or with one that is
    /// neither the filler nor an HTTP response of the right size, the filler is expected.
    pub(crate) fn learn(exchange: Exchange, route: &Route) -> Template {
        let ours = Template::of_ours(exchange);
        if exchange.is_echo() {
            return ours;
        }
        match first_response(exchange, route) {
            Ok(bytes) if bytes != ours.bytes => http_template(bytes).unwrap_or(ours),
            _ => ours,
        }
    }

    /// Returns the first wrong byte of a piece that begins at `from`.
    fn mismatch(&self, from: usize, piece: &[u8]) -> Option<usize> {
        let to = from + piece.len();
        [from..to.min(self.skipped.start), from.max(self.skipped.end)..to]
            .into_iter()
            .filter(|part| part.start < part.end)
            .find_map(|part| {
                let found = &piece[part.start - from..part.end - from];
                let first = first_difference(&self.bytes[part.clone()], found)?;
                Some(part.start - from + first)
            })
    }
}

/// Returns the first index at which two slices of the same length differ.
fn first_difference(expected: &[u8], found: &[u8]) -> Option<usize> {
    if expected == found {
        return None;
    }
    expected.iter().zip(found).position(|(expected, found)| expected != found)
}

fn first_response(exchange: Exchange, route: &Route) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&route.target, FIRST_RESPONSE_LIMIT)?;
    stream.set_read_timeout(Some(FIRST_RESPONSE_LIMIT))?;
    stream.write_all(&request(exchange))?;
    let mut response = vec![0; exchange.response_bytes];
    stream.read_exact(&mut response)?;
    Ok(response)
}

/// Returns the template of a successful HTTP response with a known length; only its header fields
/// may change.
fn http_template(bytes: Vec<u8>) -> Option<Template> {
    let body_at = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&bytes[..body_at]).ok()?;
    let (status, fields) = head.split_once("\r\n")?;
    let code = status.strip_prefix("HTTP/1.")?.split(' ').nth(1)?;
    let length = fields.split("\r\n").find_map(|field| {
        let (name, value) = field.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let body_bytes = bytes.len() - body_at;
    if !code.starts_with('2') || length.unwrap_or(0) != body_bytes {
        return None;
    }
    // The blank line is compared, because the body begins after it.
    let skipped = status.len() + 2..(body_at - 4).max(status.len() + 2);
    Some(Template { bytes, skipped })
}

/// A generator's requests and the check of its replies. Each of its threads has one.
pub(crate) struct Dialogue {
    exchange: Exchange,
    /// The request; an echo gets a new stamp for each request.
    request: Vec<u8>,
    template: Template,
    salt: u64,
    numbering: Numbering,
}

impl Dialogue {
    /// `salt` makes stamps differ between the generators of a run, and between runs.
    pub(crate) fn new(
        exchange: Exchange,
        template: &Template,
        salt: u64,
        numbering: Numbering,
    ) -> Dialogue {
        let (request, template) = (request(exchange), template.clone());
        Dialogue { exchange, request, template, salt, numbering }
    }

    pub(crate) fn response_bytes(&self) -> usize {
        self.exchange.response_bytes
    }

    pub(crate) fn request_bytes(&self) -> usize {
        self.exchange.request_bytes
    }

    /// Returns the bytes of a request, which is identified by its connection and its number on
    /// that.
    pub(crate) fn request(&mut self, connection: usize, number: u32) -> &[u8] {
        if self.exchange.is_echo() {
            let name = (connection as u64) << 32 | u64::from(number);
            echo::stamp(&mut self.request, SplitMix64::new(self.salt ^ name).next());
        }
        &self.request
    }

    /// Compares the bytes of a reply from its byte `from` on; they must not exceed its end.
    pub(crate) fn check(
        &mut self,
        connection: usize,
        number: u32,
        from: usize,
        piece: &[u8],
    ) -> Result<(), WrongReply> {
        let numbering = self.numbering;
        let wrong = |place: usize, expected| {
            let found = piece[place];
            let fault = Fault::Byte { offset: from + place, found, expected };
            Err(WrongReply { connection: numbering.of(connection), number, fault })
        };
        if !self.exchange.is_echo() {
            return match self.template.mismatch(from, piece) {
                None => Ok(()),
                Some(place) => wrong(place, self.template.bytes[from + place]),
            };
        }
        let expected = &self.request(connection, number)[from..from + piece.len()];
        let place = first_difference(expected, piece);
        place.map_or(Ok(()), |place| wrong(place, expected[place]))
    }

    /// Returns the fault of bytes after a reply that belong to no request.
    pub(crate) fn surplus(&self, connection: usize, number: u32, bytes: usize) -> WrongReply {
        let fault = Fault::Surplus { reply_bytes: self.response_bytes(), bytes };
        WrongReply { connection: self.numbering.of(connection), number, fault }
    }
}

/// Describes a reply that differs from the expected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WrongReply {
    /// Its number among those of all generators.
    connection: usize,
    /// The number of the request on its connection, counted from 0.
    number: u32,
    fault: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Byte { offset: usize, found: u8, expected: u8 },
    Surplus { reply_bytes: usize, bytes: usize },
}

impl fmt::Display for WrongReply {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WrongReply { connection, number, fault } = self;
        match fault {
            Fault::Byte { offset, found, expected } => write!(
                formatter,
                "byte {offset} of the reply to request {number} of connection {connection} is \
                 {found:#04x} instead of {expected:#04x}"
            ),
            Fault::Surplus { reply_bytes, bytes } => write!(
                formatter,
                "the reply to request {number} of connection {connection} has {bytes} bytes more \
                 than {reply_bytes}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn dialogue(request_bytes: usize, response_bytes: usize) -> Dialogue {
        let exchange = Exchange { request_bytes, response_bytes };
        let alone = Numbering::ALONE;
        Dialogue::new(exchange, &Template::of_ours(exchange), 7, alone)
    }

    proptest! {
        #[test]
        fn replies_match_in_any_pieces_and_a_changed_byte_is_named(
            length in 1_usize..300, echo: bool, cut in 0_usize..300, place in 0_usize..300,
            number: u32,
        ) {
            let mut dialogue = dialogue(if echo { length } else { length + 1 }, length);
            let mut reply = if echo {
                dialogue.request(3, number).to_vec()
            } else {
                Template::of_ours(dialogue.exchange).bytes
            };
            let (cut, place) = (cut % (length + 1), place % length);
            prop_assert_eq!(dialogue.check(3, number, 0, &reply[..cut]), Ok(()));
            prop_assert_eq!(dialogue.check(3, number, cut, &reply[cut..]), Ok(()));
            reply[place] ^= 4;
            let (from, piece) = if place < cut { (0, &reply[..cut]) } else { (cut, &reply[cut..]) };
            let words = dialogue.check(3, number, from, piece).unwrap_err().to_string();
            let expected = format!("byte {place} of the reply to request {number} of connection 3");
            prop_assert!(words.contains(&expected), "{}", words);
        }

        #[test]
        fn the_echo_of_another_request_is_wrong(
            length in 8_usize..100, connection in 0_usize..1000, number: u32, other: u32,
        ) {
            prop_assume!(number != other);
            let mut dialogue = dialogue(length, length);
            let reply = dialogue.request(connection, other).to_vec();
            prop_assert!(dialogue.check(connection, number, 0, &reply).is_err());
            prop_assert!(dialogue.check(connection + 1, other, 0, &reply).is_err());
        }
    }

    #[test]
    fn http_responses_may_differ_in_their_header_fields_only() {
        let response = |status: &str, date: &str, length: &str, body: &str| {
            format!("HTTP/1.1 {status}\r\nDate: {date}\r\nContent-Length: {length}\r\n\r\n{body}")
                .into_bytes()
        };
        let first = response("200 OK", "Mon", "4", "body");
        let template = http_template(first.clone()).unwrap();
        assert_eq!(template.mismatch(0, &first), None);
        assert_eq!(template.mismatch(0, &response("200 OK", "Tue", "4", "body")), None);
        assert_eq!(template.mismatch(0, &response("500 NO", "Mon", "4", "body")), Some(9));
        let last = first.len() - 1;
        assert_eq!(template.mismatch(0, &response("200 OK", "Mon", "4", "bodx")), Some(last));
        assert!(http_template(response("404 No", "Mon", "4", "body")).is_none());
        assert!(http_template(response("200 OK", "Mon", "5", "body")).is_none());
        assert!(http_template(vec![0; 100]).is_none());
        assert!(http_template(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()).is_some());
    }

    #[test]
    fn surplus_is_told_with_its_size() {
        let words = dialogue(64, 64).surplus(2, 9, 1).to_string();
        assert_eq!(words, "the reply to request 9 of connection 2 has 1 bytes more than 64");
    }
}
