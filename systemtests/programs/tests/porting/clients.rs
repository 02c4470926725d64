//! Clients of echo servers, also those that do not behave.

use socket2::SockRef;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;
use systemtests_programs::TIME_LIMIT;

/// Connects, with a time limit on each call.
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    stream.set_write_timeout(Some(TIME_LIMIT)).unwrap();
    stream
}

/// Sends bytes, and returns what comes back; the client half-closes after the bytes, or waits for
/// as many as it sent.
pub(crate) fn echo(address: SocketAddr, bytes: &[u8], half_closes: bool) -> Vec<u8> {
    let mut stream = connect(address);
    let mut sender = stream.try_clone().unwrap();
    let mut answer = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            sender.write_all(bytes).unwrap();
            if half_closes {
                sender.shutdown(Shutdown::Write).unwrap();
            }
        });
        if half_closes {
            stream.read_to_end(&mut answer).unwrap();
        } else {
            answer.resize(bytes.len(), 0);
            stream.read_exact(&mut answer).unwrap();
        }
    });
    answer
}

/// Ends a connection with a reset.
pub(crate) fn reset(stream: &TcpStream) {
    SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
}

/// Returns a client that has sent as much as the server takes, and reads nothing.
pub(crate) fn stall(address: SocketAddr) -> TcpStream {
    let mut stream = connect(address);
    stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    loop {
        match stream.write(&[b'x'; 65536]) {
            Ok(_) => {}
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {
                return stream;
            }
            Err(error) => panic!("a client that does not read: {error}"),
        }
    }
}

/// Serves clients that leave, reset, stall and (if the server supports it) half-close, and checks
/// after each that others are answered.
pub(crate) fn misbehave(address: SocketAddr, half_closes: bool) {
    let content = testkit::content(3_000_000);
    let stalled = [stall(address), stall(address)];
    for round in 0..30 {
        let mut leaves = connect(address);
        leaves.write_all(b"leave").unwrap();
        drop(leaves);
        let mut resets = connect(address);
        resets.write_all(&content[..round * 1000]).unwrap();
        reset(&resets);
        drop(resets);
        let part = &content[..round * 311 + 1];
        assert!(echo(address, part, half_closes) == part, "round {round}");
    }
    assert!(echo(address, &content, half_closes) == content);
    reset(&stalled[0]);
    drop(stalled);
    assert!(echo(address, &content, half_closes) == content);
}
