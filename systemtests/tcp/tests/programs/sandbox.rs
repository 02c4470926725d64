//! Tests that the stack's threads are restricted, and that the program is not.

use crate::support::{Guard, SERVER, Site};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Stdio;

/// Listens, starts another program, serves a connection as another user, and waits to be ended.
const PROGRAM: &str = "
import os, socket, subprocess, time
listener = socket.create_server(('10.9.0.1', 80))
print('listening', flush=True)
connection, _ = listener.accept()
subprocess.run(['true'], check=True)
open('/dev/null', 'w').close()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
while data := connection.recv(100):
    connection.sendall(data)
connection.close()
print('served', flush=True)
time.sleep(60)
";

/// Runs the program with these options, and passes the values of the field that the kernel has for
/// its threads: first the main thread's, and then those of the stack's threads.
fn values_of_threads(site: &Site, options: &[&str], fields: &[&str]) -> Vec<Vec<String>> {
    let mut command = site.under_stack("server", options, "python3");
    command.args(["-c", PROGRAM]).stdout(Stdio::piped());
    let mut running = Guard::spawn_in(&site.server, command);
    let output = running.0.stdout.take().expect("a pipe");
    let mut lines = BufReader::new(output).lines().map(|line| line.expect("text"));
    assert_eq!(lines.next().as_deref(), Some("listening"));
    let mut client = site.client.run(|| TcpStream::connect((SERVER, 80))).expect("a connection");
    client.write_all(b"hello").expect("it takes data");
    client.shutdown(Shutdown::Write).expect("it is connected");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    assert_eq!((answer.as_str(), lines.next().as_deref()), ("hello", Some("served")));
    let of = |field: &&str| {
        let all = testkit::of_threads(running.0.id(), field);
        let mut stack: Vec<_> =
            all.iter().filter(|(thread, _)| thread.starts_with("mtcp-")).collect();
        stack.sort();
        let names: Vec<&str> = stack.iter().map(|(thread, _)| thread.as_str()).collect();
        assert_eq!(names, ["mtcp-0", "mtcp-stat"]);
        let main = all.iter().find(|(thread, _)| !thread.starts_with("mtcp-"));
        main.into_iter().chain(stack).map(|(_, value)| value.clone()).collect()
    };
    fields.iter().map(of).collect()
}

#[test]
fn the_threads_of_the_stack_are_restricted_and_the_program_is_not() {
    let site = Site::new("packet");
    let values = values_of_threads(&site, &[], &["Seccomp", "NoNewPrivs", "Uid", "CapEff"]);
    assert_eq!(values[0], ["0", "2", "2"]);
    assert_eq!(values[1], ["0", "1", "1"]);
    assert_eq!(values[2], ["65534 65534 65534 65534"; 3], "all change the user together");
    assert_eq!(values[3], ["0000000000000000"; 3]);
}

#[test]
fn the_filter_can_be_left_out() {
    let site = Site::new("packet");
    let values = values_of_threads(&site, &["--no-seccomp"], &["Seccomp", "NoNewPrivs"]);
    assert_eq!(values, [["0"; 3]; 2]);
}

#[test]
fn a_sandbox_without_seccomp_is_told() {
    let site = Site::new("packet");
    let mut command = site.under_stack("server", &[], "python3");
    command.args(["-c", "import socket; socket.create_server(('10.9.0.1', 80))"]);
    command.stderr(Stdio::piped());
    testkit::bar_seccomp(&mut command);
    let mut running = Guard::spawn_in(&site.server, command);
    let mut text = String::new();
    let mut errors = running.0.stderr.take().expect("a pipe");
    errors.read_to_string(&mut text).expect("it is text");
    assert!(text.contains("bars seccomp(2); `mtcp run --no-seccomp` runs"), "{text}");
    assert!(text.contains("Network is down"), "{text}");
    assert_eq!(running.wait().code(), Some(1));
}
