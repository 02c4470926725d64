//! Reads recordings of GoReplay: records, separated by a line of three monkeys. A record begins
//! with a line of type, id and time in nanoseconds since 1970; then follows a raw HTTP message.
//! Type 1 is a request, and 2 the answer to the request with the same id.

use std::collections::HashMap;
use std::io::{self, BufRead, Read};

use hyper::body::Bytes;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, HeaderValue, TE, TRANSFER_ENCODING,
    UPGRADE,
};

use crate::access_log::logged::{Logged, RECORD_BYTES_MAX, Request};

/// The line between two records.
const SEPARATOR: &str = "\u{1f435}\u{1f648}\u{1f649}";
/// Most header fields of a request.
const HEADERS_MAX: usize = 100;
/// Requests whose answers are still looked for.
const OPEN_MAX: usize = 100_000;

/// Returns whether a line begins a record.
pub(super) fn is_header(line: &[u8]) -> bool {
    std::str::from_utf8(line).is_ok_and(|line| header(line).is_some())
}

/// Returns type, id and time of a record.
fn header(line: &str) -> Option<(char, &str, u64)> {
    let mut words = line.split(' ');
    let kind = words.next().filter(|kind| ["1", "2", "3"].contains(kind))?.chars().next()?;
    let id = words.next().filter(|id| id.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    Some((kind, id, words.next()?.parse().ok()?))
}

/// Passes each request with the line at which its record begins. Requests wait for their answers,
/// so that the status is known, and are passed without it at the end.
pub(super) fn read(
    mut reader: impl BufRead,
    mut take: impl FnMut(u64, Result<Logged, String>),
) -> io::Result<()> {
    let mut open: HashMap<String, (u64, Logged)> = HashMap::new();
    let (mut record, mut line) = (Vec::new(), 1);
    loop {
        let begins = line;
        let more = read_record(&mut reader, &mut record, &mut line)?;
        if !record.trim_ascii().is_empty() {
            match parse(&record) {
                Ok(Message::Request(id, logged)) => {
                    if open.len() == OPEN_MAX {
                        open.drain().for_each(|(_, (line, logged))| take(line, Ok(logged)));
                    }
                    if let Some((line, former)) = open.insert(id, (begins, logged)) {
                        take(line, Ok(former));
                    }
                }
                Ok(Message::Answer(id, status)) => {
                    if let Some((line, logged)) = open.remove(&id) {
                        take(line, Ok(Logged { status, ..logged }));
                    }
                }
                Ok(Message::Replayed) => {}
                Err(fault) => take(begins, Err(fault)),
            }
        }
        if !more {
            break;
        }
    }
    let mut rest: Vec<(u64, Logged)> = open.into_values().collect();
    rest.sort_by_key(|(line, _)| *line);
    rest.into_iter().for_each(|(line, logged)| take(line, Ok(logged)));
    Ok(())
}

/// Reads a record without its separator; returns whether others may follow.
fn read_record(
    reader: &mut impl BufRead,
    record: &mut Vec<u8>,
    line: &mut u64,
) -> io::Result<bool> {
    record.clear();
    loop {
        let begin = record.len();
        let left = RECORD_BYTES_MAX.saturating_sub(begin as u64);
        if reader.by_ref().take(left).read_until(b'\n', record)? == 0 {
            // The end of the file, or a record that is too long and goes on as another one.
            return Ok(left == 0);
        }
        *line += 1;
        if record[begin..].trim_ascii() == SEPARATOR.as_bytes() {
            // The line feed before the separator belongs to it.
            record.truncate(begin.saturating_sub(1));
            return Ok(true);
        }
    }
}

enum Message {
    Request(String, Logged),
    Answer(String, Option<u16>),
    /// The answer to a request that GoReplay itself had replayed.
    Replayed,
}

fn parse(record: &[u8]) -> Result<Message, String> {
    let end = record.iter().position(|&byte| byte == b'\n').unwrap_or(record.len());
    let first = String::from_utf8_lossy(&record[..end]);
    let (kind, id, at_ns) =
        header(first.trim_end()).ok_or_else(|| "it begins no record of GoReplay".to_owned())?;
    let message = record.get(end + 1..).unwrap_or_default();
    match kind {
        '1' => {
            let request = request(message)?;
            Ok(Message::Request(id.to_owned(), Logged { at_ns, request, status: None }))
        }
        '2' => {
            let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
            let mut response = httparse::Response::new(&mut headers);
            // A status is complete before an error that may follow.
            let _ = response.parse(message);
            Ok(Message::Answer(id.to_owned(), response.code))
        }
        _ => Ok(Message::Replayed),
    }
}

/// Parses a raw request. Its headers are kept, but those that belong to its connection.
fn request(message: &[u8]) -> Result<Request, String> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    let status = parsed.parse(message).map_err(|error| format!("no request: {error}"))?;
    let httparse::Status::Complete(head) = status else {
        return Err("its request has no end".to_owned());
    };
    let (method, path) = (parsed.method.unwrap_or_default(), parsed.path.unwrap_or_default());
    let mut request = Request::new(method, path)?;
    let mut chunked = false;
    for header in parsed.headers.iter() {
        let name: HeaderName = header.name.parse().map_err(|_| "a header has no name")?;
        let value = HeaderValue::from_bytes(header.value).map_err(|_| "a header has no value")?;
        chunked |= name == TRANSFER_ENCODING;
        let of_connection =
            [HOST, CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, TE, UPGRADE, EXPECT];
        let is_kept = !of_connection.contains(&name) && name != "keep-alive";
        if is_kept && name != "proxy-connection" {
            request.headers.push((name, value));
        }
    }
    if chunked {
        return Err("its body is chunked, which is not replayed".to_owned());
    }
    request.body = Bytes::copy_from_slice(&message[head..]);
    Ok(request)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RECORDING: &str = "\
1 aa 1000000000
POST /a HTTP/1.1\r
Host: old\r
Accept: x\r
Content-Length: 4\r
\r
a\nbc
\u{1f435}\u{1f648}\u{1f649}
1 bb 2000000000
GET /b HTTP/1.1\r
\r

\u{1f435}\u{1f648}\u{1f649}
2 aa 3000000000 5
HTTP/1.1 201 Created\r
\r

\u{1f435}\u{1f648}\u{1f649}
x
\u{1f435}\u{1f648}\u{1f649}
";

    fn all(text: &[u8]) -> Vec<(u64, Result<Logged, String>)> {
        let mut all = Vec::new();
        read(text, |line, logged| all.push((line, logged))).unwrap();
        all
    }

    #[test]
    fn requests_have_their_bodies_and_the_status_of_their_answers() {
        let all = all(RECORDING.as_bytes());
        let lines: Vec<u64> = all.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 20, 10], "{all:?}");
        let first = all[0].1.as_ref().unwrap();
        assert_eq!((first.at_ns, first.status), (1_000_000_000, Some(201)));
        assert_eq!((&first.request.path[..], &first.request.body[..]), ("/a", &b"a\nbc"[..]));
        let names: Vec<&str> =
            first.request.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["accept"]);
        assert!(all[1].1.as_ref().unwrap_err().contains("GoReplay"));
        let last = all[2].1.as_ref().unwrap();
        assert_eq!((last.status, &last.request.path[..], last.request.body.len()), (None, "/b", 0));
    }

    proptest! {
        #[test]
        fn no_bytes_upset_the_reader(
            bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0..200_usize,
        ) {
            let _ = all(&bytes);
            let _ = all(&[&RECORDING.as_bytes()[..cut], &bytes].concat());
        }
    }
}
