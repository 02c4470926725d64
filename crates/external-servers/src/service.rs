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
                Service::Exchange { request_bytes, response: ipcload::filler(response_bytes) }
            }
            _ => Service::Echo,
        }
    }
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
