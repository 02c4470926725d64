//! Tests of the example programs, each in its own process, including what remains when they are
//! killed.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use fable::{Endpoint, EndpointOptions, Error, Flow};
use systemtests_flows::{Daemon, TIME_LIMIT, within};
use testkit::process::{self, Guard};

/// Returns the command of an example program, which cargo builds next to the tests.
fn example(daemon: &Daemon, name: &str) -> Command {
    let mut command = Command::new(process::example("fable", name));
    command.env("FABLE_SOCKET", daemon.socket());
    command
}

/// Starts a server and waits until it listens.
fn serve(daemon: &Daemon, example_name: &str, name: &str) -> Guard {
    let mut command = example(daemon, example_name);
    let mut server = Guard::spawn(command.arg(name).stdout(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(server.output()).read_line(&mut line).unwrap();
    assert_eq!(line, format!("listening on {name}/1\n"));
    server
}

fn options(daemon: &Daemon) -> EndpointOptions {
    Endpoint::options().socket(daemon.socket()).timeout(TIME_LIMIT)
}

fn ask(daemon: &Daemon, words: &[&str]) -> String {
    let output = example(daemon, "kv_client").args(words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn send(flow: &Flow, bytes: &[u8]) {
    let mut buffer = flow.write(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    buffer.commit().unwrap();
}

#[test]
fn a_store_and_its_clients_are_processes() {
    let daemon = Daemon::start();
    let _server = serve(&daemon, "kv_server", "fable://kv");
    assert_eq!(ask(&daemon, &["set", "colour", "green"]), "stored\n");
    assert_eq!(ask(&daemon, &["get", "colour"]), "green\n");
    assert_eq!(ask(&daemon, &["get", "taste"]), "\n");
    assert_eq!(ask(&daemon, &["forget"]), "what?\n");
}

#[test]
fn an_echo_server_has_many_clients_in_one_channel() {
    let daemon = Daemon::start();
    let _server = serve(&daemon, "echo_channel", "fable://echo");
    let flows: Vec<_> =
        (0..8).map(|_| options(&daemon).anonymous().connect("fable://echo").unwrap()).collect();
    for round in 0..20_u8 {
        for flow in &flows {
            send(flow, &[round; 100]);
        }
        for flow in &flows {
            assert_eq!(flow.read_timeout(TIME_LIMIT).unwrap().unwrap()[..], [round; 100]);
        }
    }
    for flow in &flows {
        flow.finish().unwrap();
        assert!(flow.read_timeout(TIME_LIMIT).unwrap().is_none());
    }
}

#[test]
fn a_killed_server_is_noticed_by_its_clients_and_its_name_is_free() {
    let daemon = Daemon::start();
    let server = serve(&daemon, "kv_server", "fable://kv");
    let flow = options(&daemon).anonymous().connect("fable://kv").unwrap();
    send(&flow, b"get nothing");
    assert_eq!(flow.read_timeout(TIME_LIMIT).unwrap().unwrap().len(), 0);
    drop(server);
    assert!(matches!(flow.read_timeout(TIME_LIMIT), Err(Error::PeerDied)));
    within("the name is free", || {
        let outcome = options(&daemon).anonymous().connect("fable://kv");
        matches!(outcome, Err(Error::Refused { .. })).then_some(())
    });
    let _server = serve(&daemon, "kv_server", "fable://kv");
    assert_eq!(ask(&daemon, &["get", "colour"]), "\n");
}
