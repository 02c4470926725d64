//! iperf3, as Debian has it: as a server on the stack, as a client, and as both.

use crate::namespace::Namespace;
use crate::support::{Guard, KERNEL, SERVER, Site, await_port, succeed};
use serde_json::Value;
use std::process::Command;

const PORT: u16 = 5201;
const BYTES: u64 = 32 << 20;
/// To the server, from it, and over four connections at once.
const WAYS: [&[&str]; 3] = [&[], &["--reverse"], &["--parallel", "4"]];

fn server(mut command: Command) -> Command {
    // It listens on `::`, for IPv4 as well.
    command.args(["--server", "--port", &PORT.to_string()]);
    command.stdout(std::process::Stdio::null());
    command
}

/// Sends so many bytes and reads iperf3's account of it.
fn measure(at: &Namespace, mut command: Command, address: &str, way: &[&str]) {
    command.args(["--client", address, "--port", &PORT.to_string(), "--json"]);
    command.args(["--bytes", &BYTES.to_string()]).args(way);
    let output = succeed(at, command).stdout;
    let report: Value = serde_json::from_slice(&output).expect("a report");
    assert!(report["error"].is_null(), "{way:?}: {report}");
    let bytes = |side: &str| report["end"][side]["bytes"].as_u64().expect("a number");
    let (sent, received) = (bytes("sum_sent"), bytes("sum_received"));
    // The receiver's account ends with the sender's, when the last bytes may be under way.
    assert!(sent >= BYTES && received <= sent, "{way:?}: {sent} sent, {received} received");
    assert!(received >= BYTES / 2, "{way:?}: {sent} sent, {received} received");
}

#[test]
fn iperf3_on_the_stack_serves_iperf3_of_the_kernel_and_on_the_stack() {
    let site = Site::new("xdp");
    let mut running = Guard::spawn(&site.server, server(site.under_stack("server", &[], "iperf3")));
    await_port(&site.client, SERVER, PORT, &mut running);
    for way in WAYS {
        measure(&site.client, Command::new("iperf3"), SERVER, way);
        measure(&site.client, site.under_stack("client", &[], "iperf3"), SERVER, way);
    }
}

#[test]
fn iperf3_on_the_stack_reaches_iperf3_of_the_kernel() {
    let site = Site::new("packet");
    let mut running = Guard::spawn(&site.client, server(Command::new("iperf3")));
    await_port(&site.client, KERNEL, PORT, &mut running);
    for way in WAYS {
        measure(&site.server, site.under_stack("server", &[], "iperf3"), KERNEL, way);
    }
}
