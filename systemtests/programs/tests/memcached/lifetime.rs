//! Tests of a server's end.

use crate::server::{DRIVERS, Server, TIME_LIMIT, pattern};
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;
use testkit::eventually;

#[test]
fn sigterm_leaves_nothing() {
    for driver in DRIVERS {
        let mut server = Server::start(driver, &["-t", "2"]);
        let mut clients: Vec<_> = (0..50).map(|_| server.client()).collect();
        for client in &mut clients {
            client.set("key", b"value");
        }
        server.process.signal(libc::SIGTERM).unwrap();
        let status = server.process.wait(TIME_LIMIT).unwrap();
        assert!(status.success(), "{driver}: {status}");
        for client in &mut clients {
            assert!(client.rest().is_empty(), "{driver}");
        }
        drop(clients);
        // The kernel frees the ring's files a moment after the end of the process.
        let free = || TcpListener::bind(server.address()).is_ok();
        assert!(eventually(TIME_LIMIT, free), "{driver}: the port is taken still");
    }
}

/// The kernel destroys a ring, with the files that its requests hold, after its process has ended.
/// The duration depends on the number of connections, and varies.
#[test]
fn the_next_server_starts_at_once_on_the_same_port() {
    for driver in DRIVERS {
        let mut server = Server::start(driver, &["-t", "4"]);
        let port = server.port().to_string();
        for signal in [libc::SIGTERM, libc::SIGKILL].repeat(2) {
            let clients: Vec<_> = (0..500).map(|_| server.served_client()).collect();
            server.process.signal(signal).unwrap();
            server.process.wait(TIME_LIMIT).unwrap();
            server = Server::start(driver, &["-t", "4", "-p", &port]);
            server.client().set("key", b"value");
            drop(clients);
        }
    }
}

#[test]
fn a_graceful_stop_ends_with_requests_under_way() {
    for driver in DRIVERS {
        let mut server = Server::start(driver, &["-t", "2"]);
        let value = pattern(6, 400_000);
        let mut clients: Vec<_> = (0..20).map(|_| server.client()).collect();
        clients[0].set("value", &value);
        for client in &mut clients {
            client.send("get value\r\n".repeat(30).as_bytes());
            assert!(client.answer("value").is_some_and(|got| got == value), "{driver}");
        }
        server.process.signal(libc::SIGUSR1).unwrap();
        let status = server.process.wait(TIME_LIMIT).unwrap();
        assert!(status.success(), "{driver}: {status}");
        // Clients receive the beginning of the right answer, and no other bytes.
        let whole = [b"VALUE value 0 400000\r\n", value.as_slice(), b"\r\nEND\r\n"].concat();
        for client in &mut clients {
            let rest = client.rest();
            let right = rest.chunks(whole.len()).all(|part| whole.starts_with(part));
            assert!(right, "{driver}: {} bytes came that are no answer", rest.len());
        }
    }
}

/// Bytes that have arrived and were not read.
fn waiting_in(stream: &UnixStream) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one int, for which there is room.
    assert_eq!(unsafe { libc::ioctl(stream.as_raw_fd(), libc::FIONREAD, &raw mut bytes) }, 0);
    bytes as usize
}

/// Returns the number of messages of this size that a local socket holds while its peer reads
/// nothing.
fn held_by_a_local_socket(message: &[u8]) -> usize {
    let (mut sender, _receiver) = UnixStream::pair().unwrap();
    sender.set_nonblocking(true).unwrap();
    (0..).take_while(|_| sender.write(message).is_ok_and(|sent| sent == message.len())).count()
}

fn a_peer_that_takes_nothing(driver: &'static str) {
    let server = Server::start_local(driver);
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", server.process.id())).unwrap().count();
    let mut watcher = server.local_client();
    let value = pattern(3, 10_000);
    watcher.set("value", &value);
    let whole = [b"VALUE value 0 10000\r\n", value.as_slice(), b"\r\nEND\r\n"].concat();
    let held = held_by_a_local_socket(&whole);
    assert!(held > 1, "{driver}: {held}");

    let mut silent = server.local_client();
    for answers in 1..held {
        silent.send(b"get value\r\n");
        let arrived = || waiting_in(silent.stream()) == answers * whole.len();
        assert!(eventually(TIME_LIMIT, arrived), "{driver}: {answers} of {held}");
    }
    // By that count one of these finds room; memcached keeps at most three for later.
    silent.send(b"get value\r\nget value\r\nget value\r\n");
    let sent = (held + 2) * whole.len();
    let with = descriptors();
    silent.send(b"quit\r\n");
    let closed = || watcher.number("", "curr_connections") == 1;
    assert!(eventually(TIME_LIMIT, closed), "{driver}: memcached has not closed it");
    assert_eq!(descriptors(), with, "{driver}: an answer was dropped at once");
    assert!(eventually(TIME_LIMIT, || descriptors() == with - 1), "{driver}: it stays for ever");
    let rest = silent.rest();
    assert!(rest.len() < sent, "{driver}: nothing was left to send");
    assert!(rest.chunks(whole.len()).all(|part| whole.starts_with(part)), "{driver}");
}

#[test]
fn a_closed_connection_waits_for_its_peer_only_so_long() {
    let waits = DRIVERS.map(|driver| thread::spawn(|| a_peer_that_takes_nothing(driver)));
    for wait in waits {
        wait.join().unwrap();
    }
}
