//! Tests of a server's end.

use crate::server::{Client, DRIVERS, Server, TIME_LIMIT, pattern};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;
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

/// A server with a client that has quit and read nothing, and whose last answers do not fit into
/// the socket.
struct Quitted {
    server: Server,
    /// Another client, whose descriptor counts.
    watcher: Client<UnixStream>,
    client: Client<UnixStream>,
    /// Number of answers that the socket holds, and of those that the client has asked for.
    held: usize,
    asked: usize,
    /// One answer.
    answer: Vec<u8>,
    /// Number of descriptors of the server, with that of the client.
    descriptors: usize,
}

impl Quitted {
    fn new(driver: &'static str) -> Quitted {
        let server = Server::start_local(driver);
        let mut watcher = server.local_client();
        let value = pattern(3, 10_000);
        watcher.set("value", &value);
        let answer = [b"VALUE value 0 10000\r\n", value.as_slice(), b"\r\nEND\r\n"].concat();
        let held = held_by_a_local_socket(&answer);
        assert!(held > 1, "{driver}: {held}");

        let mut client = server.local_client();
        for answers in 1..held {
            client.send(b"get value\r\n");
            let arrived = || waiting_in(client.stream()) == answers * answer.len();
            assert!(eventually(TIME_LIMIT, arrived), "{driver}: {answers} of {held}");
        }
        // By that count one of these finds room, and memcached keeps the other one for later.
        client.send(b"get value\r\nget value\r\n");
        let descriptors = descriptors_of(&server);
        client.send(b"quit\r\n");
        let closed = || watcher.number("", "curr_connections") == 1;
        assert!(eventually(TIME_LIMIT, closed), "{driver}: memcached has not closed it");
        assert_eq!(descriptors_of(&server), descriptors, "{driver}: an answer was dropped at once");
        Quitted { server, watcher, client, held, asked: held + 1, answer, descriptors }
    }
}

fn descriptors_of(server: &Server) -> usize {
    fs::read_dir(format!("/proc/{}/fd", server.process.id())).unwrap().count()
}

fn a_peer_that_takes_nothing(driver: &'static str) {
    let Quitted { server, mut client, asked, answer, descriptors, watcher: _watcher, .. } =
        Quitted::new(driver);
    let gone = || descriptors_of(&server) == descriptors - 1;
    assert!(eventually(TIME_LIMIT, gone), "{driver}: it stays for ever");
    let rest = client.rest();
    assert!(rest.len() < asked * answer.len(), "{driver}: nothing was left to send");
    assert!(rest.chunks(answer.len()).all(|part| answer.starts_with(part)), "{driver}");
}

/// Reads for longer than a client may take nothing, and so little that the socket, which reports
/// room when three quarters of it are free, reports none.
fn a_peer_that_takes_little(driver: &'static str) {
    let Quitted { server: _server, mut client, held, asked, answer, .. } = Quitted::new(driver);
    let reads = held / 2;
    let mut got = Vec::new();
    for _ in 0..reads {
        thread::sleep(Duration::from_secs(24) / reads as u32);
        let mut part = vec![0; answer.len()];
        client.stream().read_exact(&mut part).unwrap();
        got.extend(part);
    }
    got.extend(client.rest());
    assert!(got == answer.repeat(asked), "{driver}: {} of {}", got.len(), asked * answer.len());
}

#[test]
fn a_closed_connection_waits_for_a_peer_only_while_it_takes_something() {
    thread::scope(|scope| {
        for driver in DRIVERS {
            scope.spawn(move || a_peer_that_takes_nothing(driver));
            scope.spawn(move || a_peer_that_takes_little(driver));
        }
    });
}
