//! The client side of HTTP/1.1 for one resource, whose body repeats one byte: the application that
//! `http` compares on several runtimes.

use crate::client::protocol::answer::Answer;
use crate::client::protocol::http::{HEAD_END, content_length};
use crate::client::protocol::{Complaint, Fed, Intake, Protocol};

/// The byte that bodies repeat.
const BODY: [u8; 16 * 1024] = [b'x'; 16 * 1024];

/// Requests for `/BYTES`.
pub(crate) struct Get {
    request: Vec<u8>,
    body_bytes: u64,
    /// Requests per connection; 0: connections persist.
    transactions: u32,
}

impl Get {
    pub(crate) fn new(body_bytes: usize, transactions: u32) -> Get {
        let request = format!(
            "GET /{body_bytes} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: iobench\r\n\
             Accept: */*\r\n\r\n"
        );
        Get { request: request.into_bytes(), body_bytes: body_bytes as u64, transactions }
    }

    pub(crate) fn request_bytes(&self) -> usize {
        self.request.len()
    }
}

impl Protocol for Get {
    /// All requests are the same.
    type Request = ();
    type Answer = Answer;

    fn restart(&mut self, _is_ours: bool) {}

    fn connection_requests(&mut self) -> u32 {
        self.transactions
    }

    fn next_request(&mut self) {}

    fn render(&mut self, (): ()) -> &[u8] {
        &self.request
    }

    fn begin_answer(answer: &mut Answer) {
        answer.reset();
    }

    fn intake(&self, _answer: &Answer, (): ()) -> Intake {
        Answer::INTAKE
    }

    fn feed(&mut self, answer: &mut Answer, (): (), bytes: &[u8]) -> Result<Fed, Complaint> {
        feed(answer, self.body_bytes, bytes)
    }

    /// Not called, because `intake` asks to see every byte.
    fn feed_unseen(&mut self, _answer: &mut Answer, count: usize) -> Fed {
        Fed { used: count, complete: false }
    }
}

/// Checks the bytes that have arrived of the answer to a request for `body_bytes`, up to its end.
pub(crate) fn feed(answer: &mut Answer, body_bytes: u64, bytes: &[u8]) -> Result<Fed, Complaint> {
    let mut begun = 0;
    if !answer.is_in_body() {
        let Some((head, taken)) = answer.head(bytes, HEAD_END)? else {
            return Ok(Fed { used: bytes.len(), complete: false });
        };
        let length = content_length(head)?;
        if length != body_bytes {
            let what =
                format!("has Content-Length {length} where {body_bytes} bytes were asked for");
            return Err(Complaint(what));
        }
        begun = taken;
        answer.begin_body();
    }
    let Fed { used, complete } = answer.body(&bytes[begun..], body_bytes, |_| &BODY)?;
    Ok(Fed { used: begun + used, complete })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::protocol::feed_all;

    fn answer(bytes: usize) -> Vec<u8> {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\ndate: now\r\n\r\n");
        [head.as_bytes(), &vec![b'x'; bytes]].concat()
    }

    #[test]
    fn answers_may_be_split_at_every_byte() {
        for bytes in [0, 64] {
            let stream = [answer(bytes), answer(bytes)].concat();
            for cut in 0..=stream.len() {
                let pieces = [&stream[..cut], &stream[cut..]];
                let (mut get, requests) = (Get::new(bytes, 0), [(), ()]);
                assert_eq!(feed_all(&mut get, &requests, &pieces), Ok(2), "{bytes} {cut}");
            }
        }
        assert_eq!(feed_all(&mut Get::new(100_000, 0), &[()], &[&answer(100_000)]), Ok(1));
    }

    #[test]
    fn wrong_answers_are_noticed() {
        let complaint =
            |bytes: &[u8]| feed_all(&mut Get::new(64, 0), &[()], &[bytes]).unwrap_err().0;
        assert!(complaint(&answer(63)).contains("has Content-Length 63 where 64"));
        assert!(complaint(b"HTTP/1.1 404 Not Found\r\n\r\n").contains("404"));
        let mut flipped = answer(64);
        *flipped.last_mut().unwrap() = b'y';
        assert!(complaint(&flipped).contains("differs at byte 63: "));
    }

    #[test]
    fn the_request_names_the_size() {
        let mut get = Get::new(64, 1);
        assert!(get.render(()).starts_with(b"GET /64 HTTP/1.1\r\n"));
        assert_eq!((get.request_bytes(), get.connection_requests()), (get.request.len(), 1));
    }
}
