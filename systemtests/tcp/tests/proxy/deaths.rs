//! Tests backends or a proxy that are killed in the middle of a stream, and too few descriptors: no
//! client hangs, and later clients are served.

use crate::backend::accept;
use crate::client::{client, expect, is_reset, over, read_to_failure, send};
use crate::limits::limit_descriptors;
use crate::server::lighttpd;
use crate::site::{PEER, Site, Testbed};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::process::Command;
use testkit::process::succeed;
use testkit::retried;

/// More bytes than all buffers on the path hold.
const LARGE: usize = 64 << 20;

/// Checks that a client is served as usual.
fn assert_serves(site: &Site, listener: &TcpListener) {
    let mut client = client(site);
    send(&mut client, b"as usual");
    expect(&mut accept(listener), b"as usual");
}

/// Reads until the stream ends, in any way; returns the number of bytes.
fn read_to_end(stream: &mut impl Read) -> usize {
    let (mut room, mut total) = (vec![0; 64 << 10], 0);
    loop {
        match retried(|| stream.read(&mut room)) {
            Ok(0) => return total,
            Ok(count) => total += count,
            Err(error) => {
                // The kernel may still end the TCP stream in order, but not the TLS stream.
                let cut = error.kind() == ErrorKind::UnexpectedEof;
                assert!(cut || is_reset(&error), "{error}");
                return total;
            }
        }
    }
}

pub(crate) fn a_killed_backend_is_an_end_and_the_next_one_serves(testbed: Testbed) {
    let site = Site::new(testbed);
    let other = site.listen(81);
    let mut killed = lighttpd(&site, &[LARGE]);
    let backends = [format!("{PEER}:80"), format!("{PEER}:81")];
    let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
    let proxy = site.proxy_for(&backends, &["--cores", "1"]);
    let mut client = client(&site);
    send(&mut client, format!("GET /{LARGE} HTTP/1.0\r\n\r\n").as_bytes());
    client.read_exact(&mut vec![0; 1 << 20]).expect("the beginning");
    killed.end(libc::SIGKILL);
    assert!(read_to_end(&mut client) < LARGE, "the whole file has come");
    drop(client);
    proxy.await_counts(&[("open", 0)]);
    // The turn of the second backend, and then of the first, which no longer answers.
    for _ in 0..3 {
        assert_serves(&site, &other);
    }
}

pub(crate) fn after_a_killed_proxy_the_next_one_serves(testbed: Testbed) {
    let site = Site::new(testbed);
    let listener = site.listen(80);
    let proxy = site.proxy(&[]);
    let mut client = client(&site);
    let mut backend = accept(&listener);
    send(&mut client, b"a question");
    expect(&mut backend, b"a question");
    proxy.kill();
    let next = site.proxy(&[]);
    assert_serves(&site, &listener);
    // Connections to the first backend end at the latest when something is sent.
    let mut failures = 0;
    let client_fails = client.write_all(b"still there?").and_then(|()| client.flush()).is_err();
    failures += usize::from(client_fails || read_to_end(&mut client) == 0);
    let backend_fails = backend.write_all(b"still there?").is_err();
    failures += usize::from(backend_fails || read_to_end(&mut backend) == 0);
    assert_eq!(failures, 2);
    next.await_counts(&[("handshakes", 1)]);
}

pub(crate) fn descriptors_that_run_out_are_told_and_come_back(testbed: Testbed) {
    let site = Site::new(testbed);
    let listener = site.listen(80);
    let proxy = site.proxy(&["--cores", "1"]);
    limit_descriptors(proxy.id(), 3);
    let mut first = over(&site, site.connect());
    if testbed == Testbed::Epoll {
        // The client waits to be accepted, which needs a descriptor.
        assert_eq!(proxy.counts().of("connections"), 0);
    } else {
        // The client is accepted without a descriptor, and there is none for the backend.
        let error = match first.flush() {
            Ok(()) => read_to_failure(&mut first),
            Err(error) => error,
        };
        assert!(is_reset(&error), "{error}");
        let complaint = proxy.complaint();
        assert!(complaint.contains("raise `ulimit -n`"), "{complaint}");
    }
    limit_descriptors(proxy.id(), 4096);
    if testbed == Testbed::Epoll {
        send(&mut first, b"at last");
        expect(&mut accept(&listener), b"at last");
    }
    assert_serves(&site, &listener);
}

/// Many clients at once with few descriptors: each accepted one is served completely or reset, and
/// none hangs.
pub(crate) fn a_crowd_with_few_descriptors_is_served_or_reset(testbed: Testbed) {
    const CLIENTS: usize = 60;
    let site = Site::new(testbed);
    let mut server = lighttpd(&site, &[10_000]);
    let proxy = site.proxy(&["--cores", "1"]);
    let open = std::fs::read_dir(format!("/proc/{}/fd", proxy.id())).expect("/proc").count();
    limit_descriptors(proxy.id(), open as u64 + 10);
    let outcomes: Vec<bool> = std::thread::scope(|scope| {
        let fetch = || {
            let Ok(socket) = site.try_connect(&format!("{}:443", crate::site::PROXY)) else {
                return false;
            };
            let mut client = over(&site, socket);
            let request = b"GET /10000 HTTP/1.0\r\n\r\n";
            if client.write_all(request).and_then(|()| client.flush()).is_err() {
                return false;
            }
            read_to_end(&mut client) > 10_000
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(fetch)).collect();
        clients.into_iter().map(|client| client.join().expect("it ends")).collect()
    });
    assert!(outcomes.iter().any(|served| *served), "none was served");
    limit_descriptors(proxy.id(), 4096);
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--fail", "--max-time", "60", "--insecure"]);
    curl.arg(format!("https://{}/10000", crate::site::PROXY));
    assert_eq!(succeed(site.peers(), curl).stdout.len(), 10_000);
    proxy.await_counts(&[("open", 0)]);
    server.end(libc::SIGTERM);
}
