//! The server's response to what it receives, the same on every runtime.

/// Bytes of the buffer for one read of a connection.
pub(crate) const BUFFER_BYTES: usize = 16 * 1024;

/// An echo, or one response of a fixed size for every request of a fixed size.
pub(crate) enum Service {
    /// Sends back every byte as it arrives.
    Echo,
    /// Sends the whole response after each `request_bytes`.
    Exchange { request_bytes: usize, response: Vec<u8> },
}

impl Service {
    /// Equal sizes give an echo, whose bytes the client can compare.
    pub(crate) fn new(sizes: Option<(usize, usize)>) -> Service {
        match sizes {
            Some((request_bytes, response_bytes)) if request_bytes != response_bytes => {
                Service::Exchange { request_bytes, response: response_of(response_bytes) }
            }
            _ => Service::Echo,
        }
    }
}

/// Returns a response of this size: an HTTP response if it is large enough, so that an HTTP client
/// can load the server.
fn response_of(bytes: usize) -> Vec<u8> {
    // The header contains the length of the body, which depends on the length of the header.
    for digits in 1..=7 {
        let fixed = "HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n".len() + digits;
        let Some(body) = bytes.checked_sub(fixed) else { break };
        let mut response = format!("HTTP/1.1 200 OK\r\nContent-Length: {body:0digits$}\r\n\r\n");
        if response.len() == fixed {
            response.push_str(&"x".repeat(body));
            return response.into_bytes();
        }
    }
    // As in iobench's own servers: the beginning of an HTTP response.
    "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".as_bytes()[..bytes].to_vec()
}

/// Counts the complete requests of one connection's stream.
#[derive(Default)]
pub(crate) struct Framer {
    partial_bytes: usize,
}

impl Framer {
    /// Returns the number of requests that `received_bytes` more complete.
    pub(crate) fn completed(&mut self, received_bytes: usize, request_bytes: usize) -> usize {
        let bytes = self.partial_bytes + received_bytes;
        self.partial_bytes = bytes % request_bytes;
        bytes / request_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_have_their_size_and_are_http_where_that_fits() {
        for bytes in (1..300).chain([1_037, 1_038, 10_240, 1 << 20]) {
            let response = response_of(bytes);
            assert_eq!(response.len(), bytes);
            let text = String::from_utf8(response).unwrap();
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                assert!(bytes < 38, "{bytes} bytes are enough for a header");
                continue;
            };
            let length: usize = head.rsplit_once(' ').unwrap().1.parse().unwrap();
            assert_eq!(length, body.len(), "of {bytes}");
        }
    }

    #[test]
    fn requests_are_counted_however_they_are_cut() {
        let mut framer = Framer::default();
        let counts = [3, 4, 1, 24, 7, 1].map(|received| framer.completed(received, 8));
        assert_eq!(counts, [0, 0, 1, 3, 0, 1]);
    }

    #[test]
    fn equal_sizes_are_an_echo() {
        assert!(matches!(Service::new(Some((64, 64))), Service::Echo));
        assert!(matches!(Service::new(None), Service::Echo));
        assert!(matches!(Service::new(Some((64, 65))), Service::Exchange { .. }));
    }
}
