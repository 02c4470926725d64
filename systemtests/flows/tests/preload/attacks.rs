//! Tests of a server under `fable run` with clients that speak the rendezvous themselves and lie,
//! in their offers and in the shared page.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use testkit::process::{Guard, TIME_LIMIT};
use testkit::within;

use crate::support::{Program, Runner, compile, end_of, shared_sum};

/// An echo server under `fable run`.
struct Server {
    _program: Program,
    runner: Runner,
    process: Guard,
    port: String,
}

impl Server {
    fn start() -> Server {
        let (program, runner) = (compile("echo"), Runner::new());
        let mut command = runner.command(&[]);
        command.arg(program.path());
        let mut process = Guard::spawn_piped(&mut command);
        let mut port = String::new();
        BufReader::new(process.output()).read_line(&mut port).unwrap();
        Server { _program: program, runner, process, port: port.trim().to_owned() }
    }

    /// How many descriptors it has.
    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.process.0.id())).unwrap().count()
    }

    /// Waits until it has no more than these: what connections end with may be on its way.
    fn await_descriptors(&self, count: usize) {
        let has_closed = || (self.descriptors() <= count).then_some(());
        within(TIME_LIMIT, "the server closes what it does not use", has_closed);
    }

    /// Runs a case of `attacks.c` against it.
    fn withstand(&self, attacks: &Program, case: &str) {
        let mut command = Command::new(attacks.path());
        let status = end_of(command.args([case, &self.port]));
        assert!(status.success(), "{case}: {status}");
    }

    /// Ends it, which it does in order if it was not harmed. Returns its statistics.
    fn end(mut self) -> String {
        drop(self.process.0.stdin.take());
        assert!(self.process.wait().success());
        self.runner.statistics()
    }
}

#[test]
fn a_lying_peer_harms_only_its_own_connection() {
    let (server, client) = (Server::start(), compile("hostile"));
    for seed in 1..=30 {
        let mut command = Command::new(client.path());
        let status = end_of(command.args([&server.port, &seed.to_string()]));
        assert!(status.success(), "hostile client with seed {seed}: {status}");
    }
    assert!(shared_sum(&server.end(), "reset_nonsense") > 0);
}

#[test]
fn descriptors_that_come_with_offers_are_closed() {
    let (server, attacks) = (Server::start(), compile("attacks"));
    let before = server.descriptors();
    server.withstand(&attacks, "descriptors");
    server.await_descriptors(before);
    server.end();
}

#[test]
fn a_client_that_says_nothing_delays_nobody() {
    let (server, attacks) = (Server::start(), compile("attacks"));
    server.withstand(&attacks, "visitors");
    assert_eq!(shared_sum(&server.end(), "accepted"), 1, "the client that spoke late");
}

#[test]
fn silent_clients_are_not_kept_as_descriptors() {
    let (server, attacks) = (Server::start(), compile("attacks"));
    let before = server.descriptors();
    let mut command = Command::new(attacks.path());
    command.args(["crowd", &server.port]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut crowd = Guard::spawn(&mut command);
    let mut line = String::new();
    BufReader::new(crowd.output()).read_line(&mut line).unwrap();
    assert_eq!(line, "\n", "the honest clients were served");
    server.await_descriptors(before);
    drop(crowd.0.stdin.take());
    assert!(crowd.wait().success());
    server.end();
}

/// Runs a case whose connections are reset or served, but harm no other one.
fn server_withstands(case: &str) {
    let (server, attacks) = (Server::start(), compile("attacks"));
    server.withstand(&attacks, case);
    server.end();
}

#[test]
fn a_position_that_changes_between_two_reads_sends_no_byte_twice() {
    server_withstands("flips");
}

#[test]
fn a_state_that_no_honest_end_leaves_resets_the_connection() {
    server_withstands("recalled");
}

#[test]
fn doorbells_without_end_do_not_keep_the_server() {
    server_withstands("doorbells");
}
