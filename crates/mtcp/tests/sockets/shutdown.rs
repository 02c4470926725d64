//! Tests that nothing is left of stacks after their end.

use crate::pair::{GUARD, config};
use mtcp::config::Mode;
use mtcp::{Config, Family, Mtcp};
use std::time::Instant;
use testkit::process::alone;

fn count(directory: &str) -> usize {
    std::fs::read_dir(directory).expect("/proc").count()
}

fn on_two_cores(address: &str, mode: Mode) -> Config {
    let mut config = config(address, mode);
    config.engine.cores = 2;
    config
}

#[test]
fn no_thread_and_no_descriptor_stays() {
    alone("shutdown::no_thread_and_no_descriptor_stays", count_what_stays);
}

fn count_what_stays() {
    let before = (count("/proc/self/task"), count("/proc/self/fd"));
    for mode in [Mode::Complete, Mode::Paired] {
        let (left, right) = Mtcp::pair(
            on_two_cores("10.0.0.1", mode),
            on_two_cores("10.0.0.2", mode),
            Default::default(),
        )
        .expect("stacks");
        let mut server = left.context(0).expect("a context");
        let mut client = right.context(0).expect("a context");
        let listener = server.socket(Family::V4).expect("a socket");
        server.bind(listener, "10.0.0.1:80".parse().expect("an address")).expect("free");
        server.listen(listener, 16).expect("to listen");
        let socket = client.socket(Family::V4).expect("a socket");
        client.set_nonblocking(socket, true).expect("a socket");
        // The context may be dropped in any state, also while it connects.
        client.connect(socket, "10.0.0.1:80".parse().expect("an address")).expect_err("later");
        client.turn().expect("a device");
        assert!(count("/proc/self/fd") > before.1);
        drop((left, right));
        drop(client);
        drop(server);
    }
    // A joined thread leaves the list a moment later.
    let begin = Instant::now();
    loop {
        let now = (count("/proc/self/task"), count("/proc/self/fd"));
        if now == before {
            break;
        }
        assert!(begin.elapsed() < GUARD, "{now:?} instead of {before:?}");
        std::thread::yield_now();
    }
}
