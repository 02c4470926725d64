//! Implements clients of the example servers.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
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

/// Clients as they come: some leave, some leave in the middle, some end only their direction, some
/// reset, and some stall, which are returned.
pub(crate) fn misbehave(address: SocketAddr, request: &[u8]) -> Vec<TcpStream> {
    let connected = |request: &[u8]| {
        let mut stream = connect(address);
        stream.write_all(request).unwrap();
        stream
    };
    for round in 0..40 {
        let half = &request[..request.len() / 2];
        drop(connected(if round % 2 == 0 { half } else { &[] }));
        for request in [&[], request] {
            let mut halved = connected(request);
            halved.shutdown(Shutdown::Write).unwrap();
            // The end, or a reset.
            let _ = halved.read_to_end(&mut Vec::new());
        }
        let reset = connected(if round % 2 == 0 { request } else { half });
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let bytes = size_of_val(&linger) as libc::socklen_t;
        let (fd, value) = (reset.as_raw_fd(), (&raw const linger).cast());
        // SAFETY: `linger` outlives the call and `bytes` is its size.
        let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, value, bytes) };
        assert_eq!(set, 0);
    }
    [&[], &request[..1], request, request].map(connected).into()
}

/// Sends bytes and returns all that arrives until the server ends the connection.
pub(crate) fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = connect(address);
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}
