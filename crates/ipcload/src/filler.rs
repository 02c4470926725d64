//! The responses of iobench's servers, in whichever program they are.

/// The beginning of each response that it fits into.
pub const FILLER_HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Length: ";

/// Returns a response of exactly `response_bytes`: an HTTP/1.1 response if its head fits, so that
/// HTTP clients can load the same server; otherwise the first bytes of one.
#[must_use]
pub fn filler(response_bytes: usize) -> Vec<u8> {
    let head = |body_bytes: usize, padding: usize| {
        format!("{FILLER_HEAD}{:padding$}{body_bytes}\r\n\r\n", "")
    };
    let shortest = head(0, 0);
    let Some(room) = response_bytes.checked_sub(shortest.len()) else {
        return shortest.into_bytes()[..response_bytes].to_vec();
    };
    // A longer body may need one more digit than there is room for; a space replaces it.
    let mut body_bytes = room;
    while head(body_bytes, 0).len() + body_bytes > response_bytes {
        body_bytes -= 1;
    }
    let padding = response_bytes - head(body_bytes, 0).len() - body_bytes;
    let mut bytes = head(body_bytes, padding).into_bytes();
    bytes.resize(response_bytes, b'.');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fillers_have_their_size_and_say_so() {
        for response_bytes in (1..2_000).chain([10_240, 99_999, 100_040, 1 << 20]) {
            let bytes = filler(response_bytes);
            assert_eq!(bytes.len(), response_bytes);
            if response_bytes < 38 {
                continue;
            }
            let text = std::str::from_utf8(&bytes).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            let (status, length) = head.split_once("\r\nContent-Length: ").unwrap();
            assert_eq!(status, "HTTP/1.1 200 OK");
            assert_eq!(length.trim_start().parse(), Ok(body.len()), "{response_bytes} bytes");
        }
    }
}
