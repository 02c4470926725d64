//! Tests iperf3, as packaged by Debian: as a server on the stack, as a client, and as both.

use crate::support::{Guard, KERNEL, SERVER, Site, TIME_LIMIT};
use serde_json::Value;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use testkit::Namespace;

const PORT: u16 = 5201;
const BYTES: u64 = 32 << 20;
/// To the server, from it, and over four connections at once.
const WAYS: [&[&str]; 3] = [&[], &["--reverse"], &["--parallel", "4"]];

fn server(mut command: Command) -> Command {
    // The server listens on `::`, also for IPv4.
    command.args(["--server", "--port", &PORT.to_string()]);
    command.stdout(std::process::Stdio::null());
    command
}

/// Runs iperf3's client. Between two clients, the server starts to listen again: a client that
/// connects too early is refused, or reset before its test has begun.
fn client(at: &Namespace, command: impl Fn() -> Command, address: &str, way: &[&str]) -> Value {
    let begin = Instant::now();
    loop {
        let mut command = command();
        command.args(["--client", address, "--port", &PORT.to_string(), "--json"]);
        command.args(["--bytes", &BYTES.to_string()]).args(way);
        let output = at.run(|| command.output()).expect("iperf3: cargo xtask setup");
        let text = String::from_utf8_lossy(&output.stdout);
        let report: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{output:?}"));
        let began = report["start"]["connected"].as_array().is_some_and(|all| !all.is_empty());
        if began || begin.elapsed() > TIME_LIMIT {
            return report;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Sends this number of bytes and parses iperf3's report.
fn measure(at: &Namespace, command: impl Fn() -> Command, address: &str, way: &[&str]) {
    let report = client(at, command, address, way);
    assert!(report["error"].is_null(), "{way:?}: {report}");
    let bytes = |side: &str| report["end"][side]["bytes"].as_u64().expect("a number");
    let (sent, received) = (bytes("sum_sent"), bytes("sum_received"));
    // The receiver's measurement ends with the sender's, when the last bytes may be in flight: up
    // to a send buffer of some megabytes for each connection.
    assert!(sent >= BYTES && received <= sent, "{way:?}: {sent} sent, {received} received");
    assert!(received >= BYTES / 4, "{way:?}: {sent} sent, {received} received");
}

#[test]
fn iperf3_on_the_stack_serves_iperf3_of_the_kernel_and_on_the_stack() {
    let site = Site::new("xdp");
    let _running = Guard::spawn_in(&site.server, server(site.under_stack("server", &[], "iperf3")));
    for way in WAYS {
        measure(&site.client, || Command::new("iperf3"), SERVER, way);
        measure(&site.client, || site.under_stack("client", &[], "iperf3"), SERVER, way);
    }
}

#[test]
fn iperf3_on_the_stack_reaches_iperf3_of_the_kernel() {
    let site = Site::new("packet");
    let _running = Guard::spawn_in(&site.client, server(Command::new("iperf3")));
    for way in WAYS {
        measure(&site.server, || site.under_stack("server", &[], "iperf3"), KERNEL, way);
    }
}
