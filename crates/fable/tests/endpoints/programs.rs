//! Tests of the example programs, each in its own process, including what remains when they are
//! killed.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use fable::{Error, Flow};
use testkit::process::{self, Guard};

use crate::rig::{GUARD, TestDaemon, eventually};

/// Returns the command of an example program, which cargo builds next to the tests.
fn example(daemon: &TestDaemon, name: &str) -> Command {
    let mut command = Command::new(process::example("fable", name));
    command.env("FABLE_SOCKET", daemon.path());
    command
}

/// Starts a server and waits until it listens.
fn serve(daemon: &TestDaemon, example_name: &str, name: &str) -> Guard {
    let mut command = example(daemon, example_name);
    let mut server = Guard::spawn(command.arg(name).stdout(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(server.output()).read_line(&mut line).unwrap();
    assert_eq!(line, format!("listening on {name}\n"));
    server
}

fn ask(daemon: &TestDaemon, words: &[&str]) -> String {
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
    let daemon = TestDaemon::start();
    let _server = serve(&daemon, "kv_server", "fable://kv");
    assert_eq!(ask(&daemon, &["set", "colour", "green"]), "stored\n");
    assert_eq!(ask(&daemon, &["get", "colour"]), "green\n");
    assert_eq!(ask(&daemon, &["get", "taste"]), "\n");
    assert_eq!(ask(&daemon, &["forget"]), "what?\n");
}

#[test]
fn an_echo_server_has_many_clients_in_one_channel() {
    let daemon = TestDaemon::start();
    let _server = serve(&daemon, "echo_channel", "fable://echo");
    let flows: Vec<_> =
        (0..8).map(|_| daemon.options().anonymous().connect("fable://echo").unwrap()).collect();
    for round in 0..20_u8 {
        for flow in &flows {
            send(flow, &[round; 100]);
        }
        for flow in &flows {
            assert_eq!(flow.read_timeout(GUARD).unwrap().unwrap()[..], [round; 100]);
        }
    }
    for flow in &flows {
        flow.finish().unwrap();
        assert!(flow.read_timeout(GUARD).unwrap().is_none());
    }
}

#[test]
fn a_killed_server_is_noticed_by_its_clients_and_its_name_is_free() {
    let daemon = TestDaemon::start();
    let server = serve(&daemon, "kv_server", "fable://kv");
    let flow = daemon.options().anonymous().connect("fable://kv").unwrap();
    send(&flow, b"get nothing");
    assert_eq!(flow.read_timeout(GUARD).unwrap().unwrap().len(), 0);
    drop(server);
    assert!(matches!(flow.read_timeout(GUARD), Err(Error::PeerDied)));
    eventually("the name is free", || {
        matches!(daemon.options().anonymous().connect("fable://kv"), Err(Error::Refused { .. }))
    });
    let _server = serve(&daemon, "kv_server", "fable://kv");
    assert_eq!(ask(&daemon, &["get", "colour"]), "\n");
}
