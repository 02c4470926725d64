//! Tests streams through the proxy, as both ends see them.

use crate::backend::{self, accept};
use crate::client::{
    client, expect, handshaken, is_reset, over, read_all, read_to_failure, say_goodbye, send,
    settings, will_reset, with,
};
use crate::site::{PEER, PEER_V6, PROXY_V6, Site, Testbed};
use rustls::version::{TLS12, TLS13};
use rustls::{HandshakeKind, ProtocolVersion};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;
use testkit::content;
use testkit::process::TIME_LIMIT;
use testkit::retried;

pub(crate) fn both_versions_are_spoken_and_sessions_resumed(testbed: Testbed) {
    let site = Site::new(testbed);
    let listener = site.listen(80);
    let proxy = site.proxy(&[]);
    let versions = [(&TLS12, ProtocolVersion::TLSv1_2), (&TLS13, ProtocolVersion::TLSv1_3)];
    for (version, name) in versions {
        let settings = settings(&site, &[version]);
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::Resumed] {
            let mut client = handshaken(with(&settings, site.connect()));
            assert_eq!(client.conn.protocol_version(), Some(name));
            assert_eq!(client.conn.handshake_kind(), Some(kind), "{name:?}");
            assert_eq!(client.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
            send(&mut client, b"question");
            let mut backend = accept(&listener);
            expect(&mut backend, b"question");
            send(&mut backend, b"answer");
            drop(backend);
            // Tickets of TLS 1.3 arrive before the answer.
            assert_eq!(read_all(&mut client), b"answer");
        }
    }
    let counts = proxy.end();
    assert_eq!((counts.of("handshakes"), counts.of("resumed")), (6, 4), "{}", counts.0);
}

pub(crate) fn each_direction_ends_by_itself(testbed: Testbed) {
    let site = Site::new(testbed);
    let listener = site.listen(80);
    let proxy = site.proxy(&[]);
    // The client ends first: the backend answers when it has received everything.
    let mut client_end = client(&site);
    send(&mut client_end, b"all of it");
    say_goodbye(&mut client_end);
    let mut backend = accept(&listener);
    let mut heard = Vec::new();
    backend.read_to_end(&mut heard).expect("a whole stream");
    assert_eq!(heard, b"all of it");
    send(&mut backend, b"an answer to all of it");
    drop(backend);
    assert_eq!(read_all(&mut client_end), b"an answer to all of it");
    proxy.await_counts(&[("whole", 1), ("open", 0)]);
    // The backend ends first: the client continues.
    let mut client_end = client(&site);
    let mut backend = accept(&listener);
    send(&mut backend, b"a greeting");
    backend.shutdown(Shutdown::Write).expect("it is connected");
    assert_eq!(read_all(&mut client_end), b"a greeting");
    send(&mut client_end, b"and still a word");
    say_goodbye(&mut client_end);
    heard.clear();
    backend.read_to_end(&mut heard).expect("a whole stream");
    assert_eq!(heard, b"and still a word");
    proxy.await_counts(&[("whole", 2), ("open", 0)]);
    let counts = proxy.end();
    assert_eq!((counts.of("to backends"), counts.of("to clients")), (25, 32), "{}", counts.0);
}

pub(crate) fn a_backend_that_resets_resets_the_client(testbed: Testbed) {
    let site = Site::new(testbed);
    let listener = site.listen(80);
    let proxy = site.proxy(&[]);
    let mut client = client(&site);
    let mut backend = accept(&listener);
    send(&mut backend, b"half an ans");
    expect(&mut client, b"half an ans");
    will_reset(&backend);
    drop(backend);
    let error = read_to_failure(&mut client);
    assert!(is_reset(&error), "{error}");
    proxy.await_counts(&[("backend", 1), ("whole", 0), ("open", 0)]);
}

pub(crate) fn a_cut_client_is_no_end_for_the_backend(testbed: Testbed) {
    let site = Site::new(testbed);
    let listener = site.listen(80);
    let proxy = site.proxy(&[]);
    for resets in [false, true] {
        let mut client = client(&site);
        let mut backend = accept(&listener);
        send(&mut client, b"half a quest");
        expect(&mut backend, b"half a quest");
        // The end of the TCP stream without the end of the TLS stream, or a reset.
        if resets {
            will_reset(&client.sock);
        }
        drop(client);
        let error = read_to_failure(&mut backend);
        assert!(is_reset(&error), "{error}");
    }
    proxy.await_counts(&[("client", 2), ("whole", 0), ("open", 0)]);
}

/// Writes until no bytes are accepted for a while, and returns how many were accepted. The test
/// does not depend on the length of that while: fewer bytes make it stricter.
fn stuff(stream: &mut impl Write, most: usize) -> usize {
    let block = content(64 << 10);
    let mut taken = 0;
    while taken < most {
        match retried(|| stream.write(&block[taken % block.len()..])) {
            Ok(count) => taken += count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return taken;
            }
            Err(error) => panic!("{error}"),
        }
    }
    taken
}

/// Reads this number of bytes of the blocks that `stuff` writes.
fn unstuff(stream: &mut impl Read, bytes: usize) {
    let block = content(64 << 10);
    let mut room = vec![0; 64 << 10];
    let mut read = 0;
    while read < bytes {
        let limit = room.len().min(bytes - read);
        let count = retried(|| stream.read(&mut room[..limit])).expect("bytes");
        assert!(count > 0, "the end after {read} of {bytes} bytes");
        let mut at = 0;
        while at < count {
            let from = (read + at) % block.len();
            let length = (count - at).min(block.len() - from);
            assert!(room[at..at + length] == block[from..from + length], "others near {read}");
            at += length;
        }
        read += count;
    }
}

/// Most bytes in the buffers of two TCPs on each side of the proxy, far less than the test writes.
const MOST_IN_BUFFERS: usize = 48 << 20;
const WRITTEN: usize = 96 << 20;

pub(crate) fn a_slow_reader_holds_the_other_end_back(testbed: Testbed) {
    let site = Site::new(testbed);
    let listener = site.listen(80);
    let proxy = site.proxy(&[]);
    let pause = Some(Duration::from_millis(400));
    let mut client = client(&site);
    let mut backend = accept(&listener);
    backend.set_write_timeout(pause).expect("a time-out");
    let taken = stuff(&mut backend, WRITTEN);
    assert!(taken < MOST_IN_BUFFERS, "{taken} bytes are somewhere");
    let counts = proxy.counts();
    assert!(counts.of("to clients") < taken as u64, "the proxy has not read all: {}", counts.0);
    unstuff(&mut client, taken);
    proxy.await_counts(&[("to clients", taken as u64)]);
    // The other direction on the same connection, which the first one has not affected.
    client.sock.set_write_timeout(pause).expect("a time-out");
    // A stream that cannot write tries to read.
    client.sock.set_read_timeout(pause).expect("a time-out");
    let taken = stuff(&mut client, WRITTEN);
    assert!(taken < MOST_IN_BUFFERS, "{taken} bytes are somewhere");
    // TCP may not have all bytes that TLS has accepted.
    client.sock.set_write_timeout(Some(TIME_LIMIT)).expect("a time-out");
    client.sock.set_read_timeout(Some(TIME_LIMIT)).expect("a time-out");
    let reader = thread::spawn(move || {
        unstuff(&mut backend, taken);
        backend
    });
    client.flush().expect("the backend reads again");
    let mut backend = reader.join().expect("the backend");
    send(&mut backend, b"done");
    expect(&mut client, b"done");
}

pub(crate) fn many_streams_at_once(testbed: Testbed) {
    exchange_many(&Site::new(testbed));
}

/// Two hundred streams at a time, each with different bytes in both directions.
pub(crate) fn exchange_many(site: &Site) {
    const STREAMS: usize = 200;
    const BYTES: usize = 100_000;
    let server = backend::serve(site.listen(80), STREAMS, backend::echo);
    let proxy = site.proxy(&[]);
    let settings = settings(site, rustls::ALL_VERSIONS);
    // All are connected before the first one continues.
    let clients: Vec<_> =
        (0..STREAMS).map(|_| handshaken(with(&settings, site.connect()))).collect();
    proxy.await_counts(&[("handshakes", STREAMS as u64), ("open", STREAMS as u64)]);
    let work = |number: usize, mut client: crate::client::Stream| {
        // A different length for each, so that no stream can get another one's bytes.
        let bytes = content(BYTES + number);
        send(&mut client, &bytes);
        say_goodbye(&mut client);
        assert!(read_all(&mut client) == bytes, "stream {number} differs");
    };
    thread::scope(|scope| {
        for (number, client) in clients.into_iter().enumerate() {
            scope.spawn(move || work(number, client));
        }
    });
    server.join().expect("the backends");
    proxy.await_counts(&[("whole", STREAMS as u64), ("open", 0)]);
}

pub(crate) fn both_families(testbed: Testbed) {
    let site = Site::new(testbed);
    let (four, six) = (format!("{PEER}:80"), format!("[{PEER_V6}]:80"));
    // They take turns, in an unspecified order.
    let servers =
        [&four, &six].map(|address| backend::serve(site.listen_at(address), 2, backend::echo));
    let proxy = site.proxy_for(&[&four, &six], &["--cores", "1"]);
    for _ in 0..4 {
        let socket: TcpStream = site.connect_to(&format!("[{PROXY_V6}]:443"));
        let mut client = over(&site, socket);
        send(&mut client, b"over both");
        say_goodbye(&mut client);
        assert_eq!(read_all(&mut client), b"over both");
    }
    for server in servers {
        assert_eq!(server.join().expect("a backend").len(), 2);
    }
    drop(proxy);
}
