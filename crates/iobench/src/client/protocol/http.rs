//! The client side of HTTP/1.1, as far as a web server under test needs it.

use std::io::Write;
use std::sync::Arc;

use crate::client::protocol::answer::{Answer, find, shown};
use crate::client::protocol::deck::Deck;
use crate::client::protocol::pattern::Pattern;
use crate::client::protocol::requests::Requests;
use crate::client::protocol::{Complaint, Fed, Intake, Protocol};
use crate::random::SplitMix64;

pub(super) const HEAD_END: &[u8] = b"\r\n\r\n";
/// Digits of a file's number in a request.
const DIGITS: usize = 5;
const BEFORE_NUMBER: &[u8] = b"GET /";
const AFTER_NUMBER: &str =
    ".html HTTP/1.1\r\nHost: localhost\r\nUser-Agent: iobench\r\nAccept: */*\r\n\r\n";

/// Requests for the files of a mix; a request is a file's number.
pub(crate) struct Http {
    sizes: Arc<[u64]>,
    pattern: Arc<Pattern>,
    requests: Requests,
    deck: Deck,
    random: SplitMix64,
    seed: u64,
    request: Vec<u8>,
}

impl Http {
    /// `seed` differs between threads, so that their requests do.
    pub(crate) fn new(
        sizes: Arc<[u64]>,
        pattern: Arc<Pattern>,
        requests: Requests,
        seed: u64,
    ) -> Http {
        let mut request = BEFORE_NUMBER.to_vec();
        request.extend([b'0'; DIGITS]);
        request.extend(AFTER_NUMBER.as_bytes());
        Http {
            deck: Deck::new(sizes.len() as u32, seed),
            sizes,
            pattern,
            requests,
            random: SplitMix64::new(seed),
            seed,
            request,
        }
    }
}

impl Protocol for Http {
    /// The file's number.
    type Request = u32;
    type Answer = Answer;

    fn restart(&mut self, _is_ours: bool) {
        self.deck.restart();
        self.random = SplitMix64::new(self.seed);
    }

    fn connection_requests(&mut self) -> u32 {
        self.requests.draw(&mut self.random)
    }

    fn next_request(&mut self) -> u32 {
        self.deck.draw()
    }

    fn render(&mut self, file: u32) -> &[u8] {
        let mut digits = &mut self.request[BEFORE_NUMBER.len()..BEFORE_NUMBER.len() + DIGITS];
        // A file set has fewer files than five digits can number, so this fits.
        let _ = write!(digits, "{file:0DIGITS$}");
        &self.request
    }

    fn begin_answer(answer: &mut Answer) {
        answer.reset();
    }

    fn intake(&self, _answer: &Answer, _file: u32) -> Intake {
        Answer::INTAKE
    }

    fn feed(&mut self, answer: &mut Answer, file: u32, bytes: &[u8]) -> Result<Fed, Complaint> {
        let size = self.sizes[file as usize];
        let mut begun = 0;
        if !answer.is_in_body() {
            let Some((head, taken)) = answer.head(bytes, HEAD_END)? else {
                return Ok(Fed { used: bytes.len(), complete: false });
            };
            let length = content_length(head)?;
            if length != size {
                return Err(Complaint(format!(
                    "has Content-Length {length} for file {file}, which has {size} bytes"
                )));
            }
            begun = taken;
            answer.begin_body();
        }
        let fed = answer.body(&bytes[begun..], size, |at| self.pattern.piece(file, at));
        match fed {
            Ok(Fed { used, complete }) => Ok(Fed { used: begun + used, complete }),
            Err(Complaint(what)) => Err(Complaint(format!("with file {file} {what}"))),
        }
    }

    /// Not called, because `intake` asks to see every byte.
    fn feed_unseen(&mut self, _answer: &mut Answer, count: usize) -> Fed {
        Fed { used: count, complete: false }
    }
}

/// Returns the position behind the head of an answer, if the head is complete.
pub(super) fn find_head_end(bytes: &[u8]) -> Option<usize> {
    find(bytes, HEAD_END).map(|at| at + HEAD_END.len())
}

/// The relevant fields of the head of an answer.
#[derive(Debug)]
pub(super) struct Head<'a> {
    status: &'a [u8],
    /// The body's length, from Content-Length.
    pub(super) length: Option<u64>,
    /// The header line Transfer-Encoding, if there is one: such a body has no known length.
    encoding: Option<&'a [u8]>,
}

impl<'a> Head<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Head<'a>, Complaint> {
        let mut lines = bytes.split(|&byte| byte == b'\n').map(|line| line.trim_ascii_end());
        let status = lines.next().unwrap_or_default();
        let mut head = Head { status, length: None, encoding: None };
        for line in lines {
            let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
            let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            if name.eq_ignore_ascii_case(b"transfer-encoding") {
                head.encoding = Some(line);
            }
            if name.eq_ignore_ascii_case(b"content-length") {
                match (decimal(value), head.length) {
                    (Some(number), None) => head.length = Some(number),
                    _ => return Err(Complaint(format!("has the header {}", shown(line)))),
                }
            }
        }
        Ok(head)
    }

    /// Fails if the status is not a success.
    pub(super) fn check_success(&self) -> Result<(), Complaint> {
        self.check_status(|digits| digits[0] == b'2' && digits[1..].iter().all(u8::is_ascii_digit))
    }

    fn check_status(&self, is_right: impl Fn(&[u8]) -> bool) -> Result<(), Complaint> {
        let digits = self.status.get(9..12).filter(|_| self.status.starts_with(b"HTTP/1.1 "));
        if digits.is_some_and(is_right) && matches!(self.status.get(12), None | Some(b' ')) {
            return Ok(());
        }
        Err(Complaint(format!("has the status line {}", shown(self.status))))
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Returns the length that a head announces; fails if the status is not a success.
pub(super) fn content_length(bytes: &[u8]) -> Result<u64, Complaint> {
    let head = Head::parse(bytes)?;
    head.check_status(|digits| digits == b"200")?;
    if let Some(encoding) = head.encoding {
        return Err(Complaint(format!("is of unknown length: {}", shown(encoding))));
    }
    let missing = || Complaint(format!("has a head without Content-Length: {}", shown(bytes)));
    head.length.ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::client::protocol::feed_all;

    fn http(sizes: &[u64]) -> Http {
        Http::new(sizes.into(), Arc::new(Pattern::new()), Requests::Fixed(1), 1)
    }

    fn response(http: &Http, file: u32) -> Vec<u8> {
        let size = http.sizes[file as usize];
        let mut bytes = format!(
            "HTTP/1.1 200 OK\r\nServer: x\r\ncontent-LENGTH:  {size}\r\nETag: \"1-2\"\r\n\r\n"
        )
        .into_bytes();
        let mut at = 0;
        while at < size {
            let piece = http.pattern.piece(file, at);
            let count = piece.len().min((size - at) as usize);
            bytes.extend(&piece[..count]);
            at += count as u64;
        }
        bytes
    }

    #[test]
    fn requests_name_their_file() {
        let mut http = http(&[1; 200]);
        let text = String::from_utf8(http.render(123).to_vec()).unwrap();
        assert!(text.starts_with("GET /00123.html HTTP/1.1\r\nHost: "), "{text}");
        assert!(text.ends_with("\r\n\r\n"), "{text}");
        assert!(http.render(7).starts_with(b"GET /00007.html "));
    }

    #[test]
    fn answers_may_be_split_at_every_byte() {
        let mut http = http(&[0, 33, 500]);
        for file in 0..3 {
            let bytes = response(&http, file);
            for cut in 0..=bytes.len() {
                let pieces = [&bytes[..cut], &bytes[cut..]];
                assert_eq!(feed_all(&mut http, &[file], &pieces), Ok(1), "{file} {cut}");
            }
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(feed_all(&mut http, &[file], &single), Ok(1));
        }
    }

    #[test]
    fn wrong_answers_are_noticed() {
        let http = http(&[100, 100]);
        let good = String::from_utf8_lossy(&response(&http, 0)).into_owned();
        let complaint =
            |bytes: &[u8]| feed_all(&mut self::http(&[100, 100]), &[0, 0], &[bytes]).unwrap_err().0;
        assert!(complaint(b"HTTP/1.1 404 Not Found\r\n\r\n").contains("404"));
        assert!(complaint(b"HTTP/1.1 2000 OK\r\n\r\n").contains("2000"));
        assert!(complaint(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n").contains("99"));
        assert!(complaint(b"HTTP/1.1 200 OK\r\n\r\n").contains("without Content-Length"));
        assert!(complaint(b"HTTP/1.1 200 OK\r\nContent-Length: +100\r\n\r\n").contains("+100"));
        let twice = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nContent-Length: 100\r\n\r\n";
        assert!(complaint(twice).contains("header"));
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert!(complaint(chunked).contains("chunked"));
        // The other file's content, of the same length.
        assert!(
            complaint(&response(&http, 1)).contains("with file 0 differs at byte 0: "),
            "{good}"
        );
        let mut flipped = response(&http, 0);
        *flipped.last_mut().unwrap() ^= 1;
        assert!(complaint(&flipped).contains("differs at byte 99: "));
    }

    proptest! {
        #[test]
        fn answers_in_a_row_survive_any_split(
            files in prop::collection::vec(0_u32..4, 1..6),
            mut cuts in prop::collection::vec(0_usize..300_000, 0..10),
        ) {
            let mut http = http(&[0, 1, 700, 70_000]);
            let stream: Vec<u8> = files.iter().flat_map(|&file| response(&http, file)).collect();
            cuts.iter_mut().for_each(|cut| *cut %= stream.len() + 1);
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]).collect();
            prop_assert_eq!(feed_all(&mut http, &files, &pieces), Ok(files.len()));
        }

        #[test]
        fn no_bytes_upset_the_parser(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut http = http(&[5]);
            let mut answer = Answer::default();
            if let Ok(fed) = http.feed(&mut answer, 0, &bytes) {
                prop_assert!(fed.used <= bytes.len());
            }
        }
    }
}
