//! Tests timeouts, and the limit of connections.

use crate::backend::{self, accept};
use crate::client::{
    Stream, client, expect, handshaken, is_reset, over, read_all, read_to_failure, say_goodbye,
    send,
};
use crate::refusals::passed_over;
use crate::site::{NOBODY, PROXY, Site, Testbed};
use std::collections::VecDeque;
use std::io::Write;

pub(crate) fn a_silent_client_is_cut(testbed: Testbed) {
    let site = Site::new(testbed);
    let proxy = site.proxy(&["--handshake-timeout", "0.2"]);
    // A client that sends nothing, and one that starts a handshake and stops.
    for beginning in [&[][..], &[22, 3, 1, 2, 0, 1]] {
        // The time may be over even before this is sent.
        let error = match site.try_connect(&format!("{PROXY}:443")) {
            Ok(mut client) => {
                let written = client.write_all(beginning);
                written.err().unwrap_or_else(|| read_to_failure(&mut client))
            }
            Err(error) => error,
        };
        assert!(is_reset(&error), "{error}");
    }
    proxy.await_counts(&[("failed", 2), ("open", 0)]);
}

pub(crate) fn nothing_moves_for_too_long(testbed: Testbed) {
    let site = Site::new(testbed);
    let listener = site.listen(80);
    let proxy = site.proxy(&["--idle-timeout", "5"]);
    let mut client = client(&site);
    let mut backend = accept(&listener);
    send(&mut client, b"a word");
    expect(&mut backend, b"a word");
    for error in [read_to_failure(&mut client), read_to_failure(&mut backend)] {
        assert!(is_reset(&error), "{error}");
    }
    proxy.await_counts(&[("proxy", 1), ("open", 0)]);
}

pub(crate) fn a_deaf_backend_is_passed_over(testbed: Testbed) {
    passed_over(testbed, &format!("{NOBODY}:80"), &["--connect-timeout", "3"], 2);
}

pub(crate) fn more_than_the_most_wait(testbed: Testbed) {
    let site = Site::new(testbed);
    let server = backend::serve(site.listen(80), 5, backend::echo);
    // Each of the two listening addresses has its share, so this one accepts two at a time.
    let proxy = site.proxy(&["--cores", "1", "--max-connections", "4"]);
    let mut inside: VecDeque<Stream> = (0..2).map(|_| client(&site)).collect();
    let mut outside: VecDeque<Stream> = (0..3).map(|_| over(&site, site.connect())).collect();
    while let Some(mut client) = inside.pop_front() {
        let counts = proxy.counts();
        assert!(counts.of("open") <= 2, "{}", counts.0);
        assert!(counts.of("connections") <= 5 - outside.len() as u64, "{}", counts.0);
        send(&mut client, b"in");
        say_goodbye(&mut client);
        assert_eq!(read_all(&mut client), b"in");
        // The next connection takes its place.
        inside.extend(outside.pop_front().map(handshaken));
    }
    server.join().expect("the backends");
    proxy.await_counts(&[("connections", 5), ("whole", 5), ("open", 0)]);
}

/// Sets the limit of descriptors of a process.
pub(crate) fn limit_descriptors(process: u32, most: u64) {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: 4096 };
    let (process, resource) = (process as i32, libc::RLIMIT_NOFILE);
    // SAFETY: the limit is valid for reads; a null pointer means that the old one is not returned.
    let set = unsafe { libc::prlimit(process, resource, &raw const limit, std::ptr::null_mut()) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn without_descriptors_clients_wait_until_there_are_some() {
    let site = Site::new(Testbed::Epoll);
    let listener = site.listen(80);
    let proxy = site.proxy(&["--cores", "1"]);
    limit_descriptors(proxy.id(), 3);
    let waiting = over(&site, site.connect());
    assert_eq!(proxy.counts().of("connections"), 0);
    limit_descriptors(proxy.id(), 4096);
    let mut waiting = handshaken(waiting);
    send(&mut waiting, b"at last");
    expect(&mut accept(&listener), b"at last");
}
