//! Implements clients of the example servers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Time limit of an answer; longer than any server of a test takes.
const TIME_LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    stream.set_write_timeout(Some(TIME_LIMIT)).unwrap();
    stream
}

/// Sends messages of many sizes over several connections at once, and checks that each comes back.
pub(crate) fn play_ping_pong(address: SocketAddr) {
    let mut streams: Vec<TcpStream> = (0..20).map(|_| connect(address)).collect();
    for round in 0..20_usize {
        for (number, stream) in streams.iter_mut().enumerate() {
            let message = message(round * 977 % 9000 + 1, number);
            stream.write_all(&message).unwrap();
        }
        for (number, stream) in streams.iter_mut().enumerate() {
            let message = message(round * 977 % 9000 + 1, number);
            let mut echo = vec![0; message.len()];
            stream.read_exact(&mut echo).unwrap();
            assert!(echo == message, "round {round}, connection {number}");
        }
    }
}

fn message(bytes: usize, number: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + number) as u8).collect()
}

/// Sends bytes and returns all that arrives until the server ends the connection.
pub(crate) fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = connect(address);
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}
