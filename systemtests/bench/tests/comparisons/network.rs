//! Tests of `iobench compare --path` with conditions, with the built program. On any machine
//! packets have to go through the path, round trips have to take their time, byte counts have to be
//! right, and no privilege beyond a user namespace's may be needed.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use serde_json::Value;
use systemtests_bench::{iobench, run, run_with_json, stderr, stdout};

const SHORT: [&str; 10] = [
    "--servers",
    "epoll",
    "--cores",
    "1",
    "--rounds",
    "1",
    "--duration",
    "200ms",
    "--connections",
    "16",
];

fn u(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// Fails unless both ends counted the same bytes, except for those in flight at the end of the two
/// slots.
fn assert_books(row: &Value, message_bytes: u64) {
    let books = &row["totals"];
    let count = |name: &str| u(&books[name]);
    assert!(count("client_transactions") > 0, "{books}");
    assert_eq!(count("server_accepted"), count("server_closed"), "{row}");
    assert!(count("client_bytes_sent") >= count("server_bytes_received"));
    assert!(count("server_bytes_sent") >= count("client_bytes_received"));
    let missing = count("client_bytes_sent") - count("client_bytes_received");
    assert!(missing <= 2 * 16 * message_bytes, "{books}");
}

#[test]
fn a_comparison_runs_over_the_path_and_its_books_balance() {
    let network = ["--path", "delay=2ms,loss=0.05,rate=100Mbit", "--transactions", "1,0"];
    let (status, document, printed) = run_with_json(&[&["compare"], &SHORT[..], &network].concat());
    assert_eq!(status, Some(0), "{printed}");
    let path = &document["network"];
    assert_eq!(path["conditions"]["delay"], "2ms");
    assert_eq!(path["description"], "2ms each way, 5 % loss, 100 Mbit/s, queue of 625000 B");
    let both =
        |name| ["to_server", "to_client"].map(|direction| u(&path["counters"][direction][name]));
    assert!(both("delivered").iter().all(|&count| count > 0), "{path}");
    assert!(both("lost").iter().sum::<u64>() > 0, "{path}");
    let rows = document["results"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_books(row, 64);
        let latency_us = &row["latency_us"]["p25"];
        assert!(latency_us.as_f64().unwrap() >= 3_900.0, "a round trip takes 4 ms: {latency_us}");
    }
    assert!(printed.contains("network: 2ms each way"), "{printed}");
}

#[test]
fn without_conditions_there_is_no_path() {
    let (_, document, printed) =
        run_with_json(&[&["compare"], &SHORT[..], &["--transactions", "0"]].concat());
    assert!(document["network"].is_null() && !printed.contains("network:"), "{printed}");
}

/// Removes CAP_SYS_ADMIN from root, as a container engine does; the program then needs a user
/// namespace.
fn without_system_administration(command: &mut Command) {
    let drop_right = || Ok(remove_capability_from_bounding_set(CapabilitySet::SYS_ADMIN)?);
    // SAFETY: the closure makes only the call above between fork and exec.
    unsafe { command.pre_exec(drop_right) };
}

#[test]
fn a_user_namespace_does_in_place_of_root() {
    let network = ["--path", "delay=1ms", "--transactions", "0"];
    let mut command = iobench(&[&["compare"], &SHORT[..], &network].concat());
    without_system_administration(&mut command);
    let output = command.output().unwrap();
    let printed = stdout(&output) + &stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{printed}");
    assert!(printed.contains("network: 1ms each way"), "{printed}");
}

#[test]
fn conditions_that_make_no_sense_are_refused() {
    for (conditions, part) in [
        ("delay=5", "a time needs a unit"),
        ("latency=1ms", "is no condition"),
        ("delay=1ms,jitter=2ms", "exceeds the delay"),
        ("delay=500ms", "too short for round trips"),
    ] {
        let output = run(&[&["compare"], &SHORT[..], &["--path", conditions]].concat());
        assert_eq!(output.status.code(), testkit::refusal_status(&output), "{conditions}");
        assert!(stderr(&output).contains(part), "{conditions}: {}", stderr(&output));
    }
    let output = run(&["compare", "--relay-cpu", "0"]);
    assert_eq!(output.status.code(), testkit::refusal_status(&output));
    assert!(stderr(&output).contains("--path delay="), "{}", stderr(&output));
}
