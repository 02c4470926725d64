//! HTTP/1.1 from the client's side, as far as a web server under test needs it.

use std::io::Write;
use std::sync::Arc;

use crate::apps::generator::Protocol;
use crate::apps::generator::answer::{Answer, Complaint, Fed, shown};
use crate::apps::generator::content::Pattern;
use crate::apps::generator::draws::Deck;
use crate::apps::generator::mix::Requests;
use crate::random::SplitMix64;

const HEAD_END: &[u8] = b"\r\n\r\n";
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
    /// The seed tells threads apart.
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
    type Request = u32;

    fn restart(&mut self) {
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

    fn feed(&self, answer: &mut Answer, file: u32, bytes: &[u8]) -> Result<Fed, Complaint> {
        let size = self.sizes[file as usize];
        let mut begun = 0;
        if !answer.is_in_body() {
            let Some((head, taken)) = answer.head(bytes, HEAD_END)? else {
                return Ok(Fed { used: bytes.len(), complete: false });
            };
            let length = content_length(head)?;
            if length != size {
                return Err(Complaint(format!(
                    "Content-Length {length} for file {file}, which has {size} bytes"
                )));
            }
            begun = taken;
            answer.begin_body();
        }
        let fed = answer.body(&bytes[begun..], size, |at| self.pattern.piece(file, at));
        match fed {
            Ok(Fed { used, complete }) => Ok(Fed { used: begun + used, complete }),
            Err(Complaint(what)) => Err(Complaint(format!("file {file} has {what}"))),
        }
    }
}

/// The length that a head announces; a complaint if the answer is no success.
fn content_length(head: &[u8]) -> Result<u64, Complaint> {
    let mut lines = head.split(|&byte| byte == b'\n').map(|line| line.trim_ascii_end());
    let status = lines.next().unwrap_or_default();
    if !status.starts_with(b"HTTP/1.1 200") || !matches!(status.get(12), None | Some(b' ')) {
        return Err(Complaint(format!("the status line {}", shown(status))));
    }
    let mut length = None;
    for line in lines {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Err(Complaint(format!("an answer of unknown length: {}", shown(line))));
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            let number = value.iter().all(u8::is_ascii_digit).then(|| std::str::from_utf8(value));
            let number = number.and_then(|text| text.ok()?.parse::<u64>().ok());
            match (number, length) {
                (Some(number), None) => length = Some(number),
                _ => return Err(Complaint(format!("the header {}", shown(line)))),
            }
        }
    }
    length.ok_or_else(|| Complaint(format!("a head without Content-Length: {}", shown(head))))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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

    /// Feeds pieces and returns how many answers, in the order of `files`, were complete.
    fn feed_all(http: &Http, files: &[u32], pieces: &[&[u8]]) -> Result<usize, Complaint> {
        let (mut answer, mut done) = (Answer::default(), 0);
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() {
                let fed = http.feed(&mut answer, files[done], rest)?;
                assert!(fed.used <= rest.len() && (fed.used > 0 || fed.complete));
                rest = &rest[fed.used..];
                if fed.complete {
                    answer.reset();
                    done += 1;
                }
            }
        }
        Ok(done)
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
        let http = http(&[0, 33, 500]);
        for file in 0..3 {
            let bytes = response(&http, file);
            for cut in 0..=bytes.len() {
                let pieces = [&bytes[..cut], &bytes[cut..]];
                assert_eq!(feed_all(&http, &[file], &pieces), Ok(1), "{file} {cut}");
            }
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(feed_all(&http, &[file], &single), Ok(1));
        }
    }

    #[test]
    fn wrong_answers_are_noticed() {
        let http = http(&[100, 100]);
        let good = String::from_utf8_lossy(&response(&http, 0)).into_owned();
        let complaint = |bytes: &[u8]| feed_all(&http, &[0, 0], &[bytes]).unwrap_err().0;
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
        assert!(complaint(&response(&http, 1)).contains("file 0 has other content"), "{good}");
        let mut flipped = response(&http, 0);
        *flipped.last_mut().unwrap() ^= 1;
        assert!(complaint(&flipped).contains("other content"));
    }

    proptest! {
        #[test]
        fn answers_in_a_row_survive_any_split(
            files in prop::collection::vec(0_u32..4, 1..6),
            mut cuts in prop::collection::vec(0_usize..300_000, 0..10),
        ) {
            let http = http(&[0, 1, 700, 70_000]);
            let stream: Vec<u8> = files.iter().flat_map(|&file| response(&http, file)).collect();
            cuts.iter_mut().for_each(|cut| *cut %= stream.len() + 1);
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]).collect();
            prop_assert_eq!(feed_all(&http, &files, &pieces), Ok(files.len()));
        }

        #[test]
        fn no_bytes_upset_the_parser(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let http = http(&[5]);
            let mut answer = Answer::default();
            if let Ok(fed) = http.feed(&mut answer, 0, &bytes) {
                prop_assert!(fed.used <= bytes.len());
            }
        }
    }
}
