//! Runs the short form of each scenario, and programs whose faults the harness has to find.

use std::process::{Command, Output};
use testkit::process::program;

/// Faults that were found and mended: a client that had offered memory and lacked its own; a lost
/// doorbell; an agent that did not notice commands; a lost bell; errors with another cause; the
/// program's descriptors taken for the stack's; numbers that do not exist; devices given up; an
/// address that was not the kernel's.
const MENDED: [&str; 12] = [
    "preload-client:mmap:3:ENOMEM",
    "preload-server:sendto:1:ENOMEM",
    "flow-client:epoll_ctl:1:ENOMEM",
    "flow-client:sendto:1:ENOBUFS",
    "flow-client:recvmsg:19:ENOBUFS",
    "flow-client:getsockopt:1:ENOBUFS",
    "preload-client:statx:2:ENOMEM",
    "mtcp-server:openat:4:EMFILE",
    "mtcp-server:socket:5:EMFILE",
    "mtcp-client:read:27:ENOMEM",
    "mtcp-server:read:40:EIO",
    "mtcp-server:getsockopt:1:ENOBUFS",
];

/// Runs the harness over one part of the scenarios.
fn faults(words: &[&str]) -> Output {
    Command::new(program("faults")).args(words).output().expect("it runs")
}

fn assert_no_faults(part: &str) {
    let output = faults(&["--short", "--only", part]);
    let [text, errors] = [&output.stdout, &output.stderr].map(|s| String::from_utf8_lossy(s));
    println!("{text}");
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
}

#[test]
fn a_channel_survives_failing_calls() {
    assert_no_faults("channel");
}

#[test]
fn the_daemon_survives_failing_calls() {
    assert_no_faults("fabled");
}

#[test]
fn flows_survive_failing_calls() {
    assert_no_faults("flow");
}

#[test]
fn programs_under_fable_run_survive_failing_calls() {
    assert_no_faults("preload");
}

#[test]
fn programs_under_mtcp_run_survive_failing_calls() {
    assert_no_faults("mtcp");
}

#[test]
fn what_was_mended_stays_mended() {
    for step in MENDED {
        let output = faults(&["--step", step]);
        let [text, errors] = [&output.stdout, &output.stderr].map(|s| String::from_utf8_lossy(s));
        assert!(output.status.success(), "{step}: {}\n{text}\n{errors}", output.status);
    }
}

#[test]
fn every_kind_of_fault_is_found() {
    let output = faults(&["--short", "--only", "proof-"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for (kind, told) in [
        ("cause", "the program exits with 1 (faults-end: something failed)"),
        ("child", "a process of the program outlives it"),
        ("file", "left behind: file /tmp/left"),
        ("leak", "1 descriptors leak"),
        ("panic", "the program exits with 101"),
        ("signal", "the program ends by signal 6"),
        ("silent", "the program exits with 1 ()"),
        ("wrong", "the program got wrong bytes"),
    ] {
        let line = format!("FAULT proof-{kind}:openat:1:EMFILE: {told}");
        assert!(text.contains(&line), "no `{line}` in\n{text}");
    }
}
