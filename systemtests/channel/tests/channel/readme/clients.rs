//! Implements clients that send and do not read.

use crate::common::{Pattern, set_time_limit};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

/// Number of rounds without progress after which a client counts as stalled.
const STILL_ROUNDS: u32 = 100;

/// A client that sends messages and reads nothing before `finish`.
pub(crate) struct Flood {
    stream: TcpStream,
    pattern: Pattern,
    message: usize,
    total: usize,
    sent: usize,
}

impl Flood {
    pub(crate) fn new(address: SocketAddr, seed: u64, message: usize, total: usize) -> Flood {
        let stream = TcpStream::connect(address).unwrap();
        set_time_limit(&stream);
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        Flood { stream, pattern: Pattern::new(seed), message, total, sent: 0 }
    }

    pub(crate) fn sent(&self) -> usize {
        self.sent
    }

    /// Sends until the server takes no more; returns whether it took anything.
    fn send(&mut self) -> bool {
        let before = self.sent;
        loop {
            let bytes = self.message.min(self.total - self.sent);
            if bytes == 0 {
                break;
            }
            match self.stream.write(&self.pattern.bytes(self.sent, bytes)) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error} after {} bytes", self.sent),
            }
        }
        self.sent > before
    }

    /// Reads the echo, and sends the rest; returns the number of bytes.
    pub(crate) fn finish(self) -> usize {
        let Flood { stream, pattern, total, sent, .. } = self;
        stream.set_nonblocking(false).unwrap();
        let mut writing = stream.try_clone().unwrap();
        let rest = pattern.bytes(sent, total - sent);
        let writer = std::thread::spawn(move || {
            writing.write_all(&rest).unwrap();
            writing.shutdown(Shutdown::Write).unwrap();
        });
        let (mut reading, mut found) = (stream, Vec::new());
        reading.read_to_end(&mut found).unwrap();
        writer.join().unwrap();
        assert_eq!(found.len(), total);
        pattern.check(0, &found);
        total
    }
}

/// Lets all clients send until the server takes no more from any; runs `meanwhile` in between.
pub(crate) fn stall(floods: &mut [&mut Flood], mut meanwhile: impl FnMut()) {
    let mut still = 0;
    while still < STILL_ROUNDS {
        let mut moved = false;
        for flood in floods.iter_mut() {
            moved |= flood.send();
        }
        still = if moved { 0 } else { still + 1 };
        meanwhile();
    }
}
