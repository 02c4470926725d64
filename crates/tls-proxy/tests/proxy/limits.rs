//! Time-outs and the most connections.

use crate::backend::{self, accept};
use crate::client::{
    Stream, client, expect, handshaken, is_reset, over, read_all, read_to_failure, say_goodbye,
    send,
};
use crate::refusals::passed_over;
use crate::site::{NOBODY, PROXY, Road, Site};
use std::collections::VecDeque;
use std::io::Write;

pub(crate) fn a_silent_client_is_cut(road: Road) {
    let site = Site::new(road);
    let proxy = site.proxy(&["--handshake-timeout", "0.2"]);
    // One that says nothing, and one that begins and does not go on.
    for beginning in [&[][..], &[22, 3, 1, 2, 0, 1]] {
        // The time may be over before we come to say even that.
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

pub(crate) fn nothing_moves_for_too_long(road: Road) {
    let site = Site::new(road);
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

pub(crate) fn a_deaf_backend_is_passed_over(road: Road) {
    passed_over(road, &format!("{NOBODY}:80"), &["--connect-timeout", "3"], 2);
}

pub(crate) fn more_than_the_most_wait(road: Road) {
    let site = Site::new(road);
    let server = backend::serve(site.listen(80), 5, backend::echo);
    // Each of the two listening addresses has its share, so two at a time come in by this one.
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
        // Its place is the next one's.
        inside.extend(outside.pop_front().map(handshaken));
    }
    server.join().expect("the backends");
    proxy.await_counts(&[("connections", 5), ("whole", 5), ("open", 0)]);
}

/// Sets how many descriptors a process may have.
pub(crate) fn limit_descriptors(process: u32, most: u64) {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: 4096 };
    let (process, resource) = (process as i32, libc::RLIMIT_NOFILE);
    // SAFETY: the limit is valid for reads; the old one is not asked for.
    let set = unsafe { libc::prlimit(process, resource, &raw const limit, std::ptr::null_mut()) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn without_descriptors_clients_wait_until_there_are_some() {
    let site = Site::new(Road::Epoll);
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
