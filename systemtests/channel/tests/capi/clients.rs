//! Implements clients of the example servers, in C, C++ and Rust.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;
use testkit::process::Guard;

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

/// Checks that a server goes on whatever its clients do, and while it is stopped and continued, and
/// that they leave no descriptor. `greet` is a complete exchange with it.
#[track_caller]
pub(crate) fn try_patience(
    what: &str,
    server: &Guard,
    address: SocketAddr,
    request: &[u8],
    greet: impl Fn() -> io::Result<()>,
) {
    greet().unwrap();
    let before = server.descriptors();
    for _ in 0..3 {
        let stalled = misbehave(address, request);
        server.signal(libc::SIGSTOP);
        server.signal(libc::SIGCONT);
        greet().unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(stalled);
    }
    let back = testkit::eventually(TIME_LIMIT, || server.descriptors() <= before);
    assert!(back, "{what}: {} of {before} descriptors", server.descriptors());
}

/// Clients as they come: some leave, some leave in the middle, some end only their direction, some
/// reset, and some stall, which are returned.
fn misbehave(address: SocketAddr, request: &[u8]) -> Vec<TcpStream> {
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

/// Sends bytes, and shuts down a direction after that; returns all that arrives until the server
/// ends the connection.
pub(crate) fn exchange(
    address: SocketAddr,
    request: &str,
    shut: Option<Shutdown>,
) -> io::Result<String> {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes())?;
    if let Some(how) = shut {
        stream.shutdown(how)?;
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Fails unless an answer ends with the greeting of the examples.
pub(crate) fn expect_greeting(answer: &str) -> io::Result<()> {
    match answer.ends_with("hello!\n") {
        true => Ok(()),
        false => Err(io::Error::other(format!("{answer:?} and not the greeting"))),
    }
}
