//! Tests clients that use another protocol, and backends that do not answer.

use crate::backend::{self, accept};
use crate::client::{client, expect, is_reset, over, read_all, read_to_failure, say_goodbye, send};
use crate::site::{PEER, Site, Testbed};
use std::io::{ErrorKind, Read, Write};
use testkit::retried;

/// Checks that a client is served as usual.
fn assert_serves(site: &Site, listener: &std::net::TcpListener) {
    let mut client = client(site);
    let mut backend = accept(listener);
    send(&mut backend, b"as usual");
    drop(backend);
    assert_eq!(read_all(&mut client), b"as usual");
}

pub(crate) fn plain_http_gets_an_alert(testbed: Testbed) {
    let site = Site::new(testbed);
    let listener = site.listen(80);
    let proxy = site.proxy(&[]);
    let mut client = site.connect();
    send(&mut client, b"GET / HTTP/1.1\r\nHost: proxy.test\r\n\r\n");
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).expect("an alert and the end, and no reset");
    // A record with a fatal alert (RFC 8446, section 5.1 and 6).
    assert_eq!((answer[0], answer[5]), (21, 2), "{answer:?}");
    drop(client);
    proxy.await_counts(&[("failed", 1), ("open", 0)]);
    assert_serves(&site, &listener);
}

pub(crate) fn garbage_is_refused(testbed: Testbed) {
    let site = Site::new(testbed);
    let listener = site.listen(80);
    let proxy = site.proxy(&[]);
    let seed: u64 = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |time| time.as_nanos() as u64);
    println!("seed {seed}");
    let mut state = seed;
    for round in 0..20 {
        let mut bytes: Vec<u8> = (0..round * 997)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as u8
            })
            .collect();
        if round % 2 == 1 {
            // The bytes begin like a handshake.
            bytes[..5].copy_from_slice(&[22, 3, 1, 0x3f, 0xff]);
        }
        let mut client = site.connect();
        // The proxy may refuse the bytes before all of them have arrived.
        let _ = client.write_all(&bytes);
        let _ = client.shutdown(std::net::Shutdown::Write);
        let mut room = [0; 64];
        loop {
            match retried(|| client.read(&mut room)) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    assert_ne!(error.kind(), ErrorKind::WouldBlock, "round {round}: no end");
                    break;
                }
            }
        }
    }
    proxy.await_counts(&[("failed", 20), ("handshakes", 0), ("open", 0)]);
    assert_serves(&site, &listener);
}

pub(crate) fn a_change_on_the_way_is_noticed(testbed: Testbed) {
    let site = Site::new(testbed);
    let listener = site.listen(80);
    let proxy = site.proxy(&[]);
    let mut client = client(&site);
    let mut backend = accept(&listener);
    client.conn.writer().write_all(b"secret").expect("it is taken");
    let mut bytes = Vec::new();
    client.conn.write_tls(&mut bytes).expect("memory takes all");
    *bytes.last_mut().expect("a record") ^= 1;
    client.sock.write_all(&bytes).expect("it is sent");
    let error = retried(|| client.read(&mut [0; 16])).expect_err("an alert");
    assert!(error.to_string().contains("BadRecordMac"), "{error}");
    let error = read_to_failure(&mut backend);
    assert!(is_reset(&error), "{error}");
    drop(client);
    proxy.await_counts(&[("client", 1), ("open", 0)]);
    assert_serves(&site, &listener);
}

pub(crate) fn a_backend_that_is_down_is_passed_over(testbed: Testbed) {
    let complaint = passed_over(testbed, &format!("{PEER}:81"), &[], 4);
    assert!(complaint.contains("no server listens there"), "{complaint}");
}

/// Serves this number of clients although the first of two backends does not answer; returns the
/// proxy's messages about it.
pub(crate) fn passed_over(
    testbed: Testbed,
    silent: &str,
    options: &[&str],
    clients: usize,
) -> String {
    let site = Site::new(testbed);
    let up = format!("{PEER}:80");
    let server = backend::serve(site.listen(80), clients, backend::echo);
    let proxy = site.proxy_for(&[silent, &up], &[&["--cores", "1"], options].concat());
    for _ in 0..clients {
        let mut client = client(&site);
        send(&mut client, b"anybody");
        say_goodbye(&mut client);
        assert_eq!(read_all(&mut client), b"anybody");
    }
    server.join().expect("the backend");
    let complaint = proxy.complaint();
    assert!(complaint.contains(&format!("backend {silent}: ")), "{complaint}");
    let counts = proxy.end();
    assert_eq!((counts.of("whole"), counts.of("backend")), (clients as u64, 0), "{}", counts.0);
    complaint
}

pub(crate) fn without_a_backend_the_client_is_reset(testbed: Testbed) {
    let site = Site::new(testbed);
    let proxy = site.proxy(&[]);
    let mut client = over(&site, site.connect());
    // When the reset arrives, the handshake may just have succeeded, or may not have been reported.
    let error = match client.flush() {
        Ok(()) => read_to_failure(&mut client),
        Err(error) => error,
    };
    assert!(is_reset(&error), "{error}");
    proxy.await_counts(&[("backend", 1), ("open", 0)]);
    // The log reports when a backend fails and when it is reachable again.
    assert!(proxy.complaint().contains("no server listens there"));
    let listener = site.listen(80);
    let mut client = crate::client::client(&site);
    let mut backend = accept(&listener);
    send(&mut client, b"back");
    expect(&mut backend, b"back");
    assert!(proxy.complaint().contains("accepts connections again"));
}

pub(crate) fn a_backend_without_a_route_is_told(testbed: Testbed) {
    let site = Site::new(testbed);
    // Addresses for documentation (RFC 5737), to which this machine has no route.
    let proxy = site.proxy_for(&["192.0.2.1:80"], &[]);
    let mut client = over(&site, site.connect());
    let error = match client.flush() {
        Ok(()) => read_to_failure(&mut client),
        Err(error) => error,
    };
    assert!(is_reset(&error), "{error}");
    let complaint = proxy.complaint();
    assert!(complaint.contains("192.0.2.1:80: ") && complaint.contains("no route"), "{complaint}");
}
