//! Tests signals, and the counts at the end.

use crate::backend::accept;
use crate::client::{
    client, expect, handshaken, is_reset, over, read_all, read_to_failure, say_goodbye, send,
};
use crate::site::{PROXY, Proxy, Site, Testbed};
use std::time::{Duration, Instant};
use testkit::process::TIME_LIMIT;

/// Waits until connections are no longer accepted.
fn await_closed(site: &Site) {
    let begin = Instant::now();
    // A connection just before the end may still be accepted.
    while site.try_connect(&format!("{PROXY}:443")).is_ok() {
        assert!(begin.elapsed() < TIME_LIMIT, "it listens on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn what_is_under_way_is_ended_in_order(testbed: Testbed) {
    let site = Site::new(testbed);
    let listener = site.listen(80);
    let mut proxy = site.proxy(&["--drain", "60"]);
    let mut client = client(&site);
    let mut backend = accept(&listener);
    proxy.signal(libc::SIGTERM);
    await_closed(&site);
    send(&mut client, b"still");
    expect(&mut backend, b"still");
    send(&mut backend, b"served");
    drop(backend);
    assert_eq!(read_all(&mut client), b"served");
    say_goodbye(&mut client);
    let counts = proxy.wait();
    assert_eq!((counts.of("whole"), counts.of("proxy")), (1, 0), "{}", counts.0);
}

fn assert_cut(site: &Site, mut proxy: Proxy, signals: &[i32]) {
    let listener = site.listen(80);
    let mut client = client(site);
    let mut backend = accept(&listener);
    for signal in signals {
        proxy.signal(*signal);
        await_closed(site);
    }
    for error in [read_to_failure(&mut client), read_to_failure(&mut backend)] {
        assert!(is_reset(&error), "{error}");
    }
    let counts = proxy.wait();
    // The connections that checked whether it still listens may have been cut too.
    assert!(counts.of("whole") == 0 && counts.of("proxy") >= 1, "{}", counts.0);
}

pub(crate) fn the_rest_is_cut_after_the_drain(testbed: Testbed) {
    let site = Site::new(testbed);
    let proxy = site.proxy(&["--drain", "0.3"]);
    assert_cut(&site, proxy, &[libc::SIGINT]);
}

pub(crate) fn a_second_signal_ends_at_once(testbed: Testbed) {
    let site = Site::new(testbed);
    let proxy = site.proxy(&["--drain", "600000"]);
    assert_cut(&site, proxy, &[libc::SIGTERM, libc::SIGINT]);
}

pub(crate) fn counts_are_told_when_asked(testbed: Testbed) {
    let site = Site::new(testbed);
    let listener = site.listen(80);
    let proxy = site.proxy(&[]);
    assert_eq!(proxy.counts().of("connections"), 0);
    let mut client = over(&site, site.connect());
    send(&mut client, b"0123456789");
    let mut backend = accept(&listener);
    expect(&mut backend, b"0123456789");
    send(&mut backend, b"01234");
    expect(&mut client, b"01234");
    let wanted = [("connections", 1), ("open", 1), ("handshakes", 1), ("to backends", 10)];
    proxy.await_counts(&wanted);
    proxy.await_counts(&[("to clients", 5)]);
    drop((client, backend));
}

pub(crate) fn who_waits_to_be_let_in_is_served_before_the_end(testbed: Testbed) {
    let site = Site::new(testbed);
    let listener = site.listen(80);
    let mut proxy = site.proxy(&["--cores", "1", "--max-connections", "2", "--drain", "60"]);
    // Each of the two listening addresses accepts one connection at a time.
    let mut inside = client(&site);
    let mut first = accept(&listener);
    let waiting = over(&site, site.connect());
    proxy.signal(libc::SIGTERM);
    await_closed(&site);
    send(&mut first, b"first");
    drop(first);
    assert_eq!(read_all(&mut inside), b"first");
    say_goodbye(&mut inside);
    let mut waiting = handshaken(waiting);
    let mut second = accept(&listener);
    send(&mut second, b"second");
    drop(second);
    assert_eq!(read_all(&mut waiting), b"second");
    say_goodbye(&mut waiting);
    let counts = proxy.wait();
    assert!(counts.of("whole") == 2 && counts.of("proxy") == 0, "{}", counts.0);
}
