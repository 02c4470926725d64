//! Tests that stored values are returned: large ones, many at once, and slowly.

use crate::server::{DRIVERS, Server, TIME_LIMIT, pattern};
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use testkit::eventually;

#[test]
fn large_values_come_back_whole() {
    for driver in DRIVERS {
        let server = Server::start(driver, &["-t", "2", "-m", "256", "-I", "64m"]);
        let mut client = server.client();
        for bytes in [0, 1, 1024, 16 * 1024, 16 * 1024 + 1, 600_000, 1 << 20, 40 << 20] {
            let value = pattern(bytes, bytes);
            client.set("large", &value);
            assert!(client.get("large").is_some_and(|got| got == value), "{driver}: {bytes} bytes");
        }
        let in_place: u64 =
            (0..2).map(|i| client.number("megapipe", &format!("{i}:sent_in_place"))).sum();
        assert!(in_place >= 4, "{driver}: {in_place} answers were sent without a copy");
    }
}

#[test]
fn thousands_of_pipelined_gets_are_answered_in_order() {
    const KEYS: usize = 50;
    const GETS: usize = 5000;
    // memcached yields after 20 requests only if their answers are copied: 16 KiB at most.
    for driver in DRIVERS {
        let server = Server::start(driver, &["-t", "2"]);
        let mut client = server.client();
        for key in 0..KEYS {
            client.set(&format!("key{key}"), &pattern(key, 100 + key * 10));
        }
        let mut sending = client.stream().try_clone().unwrap();
        let sender = thread::spawn(move || {
            let requests: String = (0..GETS).map(|i| format!("get key{}\r\n", i % KEYS)).collect();
            sending.write_all(requests.as_bytes()).unwrap();
        });
        for i in 0..GETS {
            let key = i % KEYS;
            let value = client.answer(&format!("key{key}"));
            assert!(value == Some(pattern(key, 100 + key * 10)), "{driver}: {i}");
        }
        sender.join().unwrap();
        assert!(client.number("", "conn_yields") > 0, "{driver}: nobody else got a turn");
    }
}

#[test]
fn a_slow_reader_gets_everything_and_disturbs_nobody() {
    const GETS: usize = 200;
    for driver in DRIVERS {
        let server = Server::start(driver, &["-t", "1"]);
        let value = pattern(1, 100_000);
        let mut slow = server.client();
        slow.set("value", &value);
        // Far more than the socket's buffers hold.
        slow.send("get value\r\n".repeat(GETS).as_bytes());
        let mut other = server.client();
        for i in 0..100 {
            other.set("other", &pattern(i, 2000));
            assert!(other.get("other") == Some(pattern(i, 2000)), "{driver}");
        }
        for i in 0..GETS {
            assert!(slow.answer("value").is_some_and(|got| got == value), "{driver}: {i}");
        }
    }
}

#[test]
fn a_value_may_come_in_pieces() {
    for driver in DRIVERS {
        let server = Server::start(driver, &["-t", "1"]);
        let value = pattern(3, 300_000);
        let mut client = server.client();
        let mut other = server.client();
        client.send(format!("set pieces 0 0 {}\r\n", value.len()).as_bytes());
        for piece in value.chunks(77_777) {
            client.send(piece);
            assert_eq!(other.get("pieces"), None, "{driver}: a part was stored");
        }
        client.send(b"\r\n");
        assert_eq!(client.line(), "STORED");
        assert!(other.get("pieces") == Some(value), "{driver}");
    }
}

#[test]
fn a_value_that_is_too_large_is_swallowed() {
    for driver in DRIVERS {
        let server = Server::start(driver, &["-t", "1"]);
        let mut client = server.client();
        let value = pattern(5, 3 << 20);
        client.send(format!("set big 0 0 {}\r\n", value.len()).as_bytes());
        client.send(&value);
        client.send(b"\r\n");
        assert_eq!(client.line(), "SERVER_ERROR object too large for cache", "{driver}");
        client.set("small", b"after it");
        assert_eq!(client.get("small").as_deref(), Some(&b"after it"[..]), "{driver}");
    }
}

#[test]
fn the_binary_protocol_is_spoken() {
    for driver in DRIVERS {
        let server = Server::start(driver, &["-t", "2"]);
        server.client().set("key", b"value");
        let mut client = server.client();
        // Get, key of three bytes; then quit.
        client.send(&[&[0x80, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 3], &[0; 12][..], b"key"].concat());
        client.send(&[&[0x80, 7][..], &[0; 22]].concat());
        let answer = client.rest();
        assert_eq!(answer[..2], [0x81, 0], "{driver}");
        assert_eq!(answer[24 + 4..24 + 9], *b"value", "{driver}");
    }
}

#[test]
fn datagrams_are_answered() {
    for driver in DRIVERS {
        let server = Server::start(driver, &["-t", "2", "-U", "-1"]);
        server.client().set("key", b"value");
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(crate::server::TIME_LIMIT)).unwrap();
        socket.connect(("127.0.0.1", server.udp_port())).unwrap();
        for id in 0..20 {
            let request = [&[0, id, 0, 0, 0, 1, 0, 0][..], b"get key\r\n"].concat();
            socket.send(&request).unwrap();
            let mut answer = [0; 1500];
            let bytes = socket.recv(&mut answer).unwrap();
            assert_eq!(answer[1], id, "{driver}");
            assert_eq!(&answer[8..bytes], b"VALUE key 0 5\r\nvalue\r\nEND\r\n", "{driver}");
        }
    }
}

#[test]
fn requests_in_any_pieces_are_understood() {
    let long = "k".repeat(250);
    let requests = [
        ("set key 0 0 5\r\nvalue\r\n", "STORED"),
        ("get key\r\n", "VALUE key 0 5"),
        ("get  key \r\n", "VALUE key 0 5"),
        ("mg key v\r\n", "VA 5"),
        ("get\r\n", "ERROR"),
        ("get \r\n", "ERROR"),
        (" \r\n", "ERROR"),
        ("touch key 0\r\n", "TOUCHED"),
        (&format!("get {long}\r\n"), "END"),
        (&format!("get {long}k\r\n"), "CLIENT_ERROR bad command line format"),
    ];
    for driver in DRIVERS {
        let server = Server::start(driver, &["-t", "1"]);
        server.client().set("key", b"value");
        for (request, expected) in requests {
            // All at once, so that the pieces come in batches.
            let cuts = (1..=request.len()).step_by(1 + request.len() / 40);
            let mut clients: Vec<_> = cuts.map(|cut| (cut, server.client())).collect();
            for (cut, client) in &mut clients {
                client.send(&request.as_bytes()[..*cut]);
            }
            for (cut, client) in &mut clients {
                client.send(&request.as_bytes()[*cut..]);
                assert_eq!(client.line(), expected, "{driver}: `{request}` cut at {cut}");
            }
        }
    }
}

/// The channel brings a line in parts that the unmodified server reads at once.
#[test]
fn lines_of_up_to_the_size_of_the_read_buffer_are_understood() {
    for driver in DRIVERS {
        let server = Server::start(driver, &["-t", "1"]);
        server.client().set("key", b"value");
        for keys in [40, 100, 101, 102, 150, 300, 390] {
            let others: String = (0..keys).map(|i| format!(" {i:0>40}")).collect();
            for command in ["get", "gat 0"] {
                let mut client = server.client();
                client.send(format!("{command} key{others}\r\n").as_bytes());
                let value = client.answer("key");
                assert_eq!(value.as_deref(), Some(&b"value"[..]), "{driver}: {command} {keys}");
            }
        }
        // A line that never ends is not kept.
        let mut client = server.client();
        client.send(&[b'x'; 20_000]);
        let end = client.stream().try_clone().unwrap().read(&mut [0; 100]);
        assert!(!matches!(end, Ok(1..)), "{driver}");
    }
}

#[test]
fn the_table_grows_under_load() {
    const CLIENTS: usize = 8;
    const KEYS: usize = 10_000;
    for driver in DRIVERS {
        let server = Server::start(driver, &["-t", "2", "-o", "hashpower=12"]);
        let before = server.client().number("", "hash_power_level");
        let (address, grown) = (&server, &AtomicBool::new(false));
        let mut client = server.client();
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                scope.spawn(move || {
                    let mut connection = address.client();
                    let mut keys = 0..KEYS / CLIENTS;
                    while !grown.load(Ordering::Relaxed) || !keys.is_empty() {
                        if let Some(key) = keys.next() {
                            connection.set(&format!("key{client}-{key}"), &pattern(key, 20));
                        }
                        let first = connection.get(&format!("key{client}-0"));
                        assert!(first == Some(pattern(0, 20)), "{driver}: {client}");
                    }
                });
            }
            // memcached checks once a second whether to expand the table.
            let grows = || client.number("", "hash_power_level") > before;
            let in_time = eventually(TIME_LIMIT, grows);
            grown.store(true, Ordering::Relaxed);
            assert!(in_time, "{driver}: the table is as before");
        });
        for key in 0..KEYS / CLIENTS {
            let found = client.get(&format!("key3-{key}"));
            assert!(found == Some(pattern(key, 20)), "{driver}: {key}");
        }
    }
}
