//! What the server holds for clients that do not read.

use crate::{ADAPTED, figure, start};
use std::net::TcpStream;
use systemtests_programs::TIME_LIMIT;
use systemtests_programs::redis::{Build, Redis, request};
use testkit::eventually;
use testkit::stalled::{allowed_for_each, anonymous_bytes};

const CLIENTS: usize = 60;
const VALUE_BYTES: usize = 100_000;
/// Answers for each client, more than the kernel's buffers hold.
const ANSWERS: usize = 100;

fn ask_without_reading(server: &Redis, answers: usize) -> TcpStream {
    let mut client = server.client().unwrap();
    client.send(&request(&[b"GET", b"v"]).repeat(answers)).unwrap();
    client.0.into_inner()
}

fn fill(server: &Redis) {
    let value = testkit::content(VALUE_BYTES);
    let mut client = server.client().unwrap();
    client.send(&request(&[b"SET", b"v", &value])).unwrap();
    assert_eq!(client.answer().unwrap(), b"+OK\r\n");
}

/// Returns the memory that a server holds for each client with many unread answers.
fn held_for_each(build: Build) -> u64 {
    let server = start(build, &[]);
    fill(&server);
    let commands = || figure(&server, "total_net_input_bytes");
    let before = (anonymous_bytes(&[server.process.id()]).unwrap(), commands());
    let clients: Vec<_> = (0..CLIENTS).map(|_| ask_without_reading(&server, ANSWERS)).collect();
    let sent = (request(&[b"GET", b"v"]).len() * ANSWERS * CLIENTS) as u64;
    assert!(eventually(TIME_LIMIT, || commands() >= before.1 + sent), "{build:?}");
    let held = anonymous_bytes(&[server.process.id()]).unwrap() - before.0;
    assert_eq!(figure(&server, "connected_clients") as usize, CLIENTS + 1);
    drop(clients);
    held / CLIENTS as u64
}

#[test]
fn stalled_clients_cost_no_more_than_unmodified() {
    let unmodified = held_for_each(Build::Stock);
    for build in ADAPTED {
        let held = held_for_each(build);
        // Almost all of it are redis' own buffers, less what the kernel has taken, which varies.
        let allowed = allowed_for_each(unmodified * 11 / 20, CLIENTS);
        assert!(held <= allowed, "{build:?}: {held} bytes each, unmodified {unmodified}");
    }
}

#[test]
fn the_limit_of_output_buffers_closes_clients_that_do_not_read() {
    for build in ADAPTED {
        let server = start(build, &["--client-output-buffer-limit", "normal 4mb 0 0"]);
        fill(&server);
        // 40 MB each.
        let clients: Vec<_> = (0..10).map(|_| ask_without_reading(&server, 400)).collect();
        let closed = || server.log().matches("of output buffer limits").count() == clients.len();
        assert!(eventually(TIME_LIMIT, closed), "{build:?}: {}", server.log());
        let gone = || figure(&server, "connected_clients") == 1;
        assert!(eventually(TIME_LIMIT, gone), "{build:?}: {}", server.log());
        drop(clients);
    }
}
