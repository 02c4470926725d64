//! Tests of the command line, against a real daemon.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use fable::page::{Counter, Page};
use fable::protocol::{FlowEntry, NameEntry, Role};
use systemtests_flows::{Daemon, Process, flow, within};
use testkit::documented;
use testkit::process::program;

#[test]
fn ls_and_top_show_names_and_flows() {
    let daemon = Daemon::start();
    assert_eq!(daemon.fable_says(&["ls"]).lines().count(), 1);
    let (_server, _client, end, _) = flow(&daemon);
    let listing = daemon.fable_says(&["ls"]);
    let line = listing.lines().nth(1).unwrap();
    let columns: Vec<_> = line.split_whitespace().collect();
    assert_eq!(columns[..3], ["fable://kv/1", "1", "here"]);
    assert_eq!(columns[3], std::process::id().to_string());
    let names: Vec<NameEntry> =
        serde_json::from_str(&daemon.fable_says(&["ls", "--json"])).unwrap();
    assert_eq!(names.len(), 1);
    let page = Page::open(end.page.as_fd()).unwrap();
    page.write(Role::Leader, Counter::LatencyNs, 1_500);
    page.write(Role::Leader, Counter::Cpu, 2);
    let flow = end.flow.to_string();
    let table = within("the page is read", || {
        Some(daemon.fable_says(&["top", "--once"])).filter(|table| table.contains("µs"))
    });
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with("FLOW "), "{table}");
    for part in [&flow, "fable://kv/1", "mempipe-futex-safe", "1.5 µs / -", "1 / -"] {
        assert!(lines[1].contains(part), "{part}: {table}");
    }
    let json = daemon.fable_says(&["top", "--once", "--json"]);
    let flows: Vec<FlowEntry> = serde_json::from_str(&json).unwrap();
    assert_eq!(flows[0].latency_ns, [Some(1_500), None]);
}

#[test]
fn lists_longer_than_a_packet_are_complete() {
    let daemon = Daemon::start();
    let mut server = Process::connect(&daemon);
    for _ in 0..300 {
        server.register("fable://many");
    }
    let names: Vec<NameEntry> =
        serde_json::from_str(&daemon.fable_says(&["ls", "--json"])).unwrap();
    assert_eq!(names.len(), 300);
}

#[test]
fn top_without_terminal_goes_on_until_nobody_reads() {
    let daemon = Daemon::start();
    let mut child = Command::new(program("fable"))
        .arg("--socket")
        .arg(daemon.socket())
        .args(["top", "--interval", "0.1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut seen = [0; 200];
    let mut stdout = child.stdout.take().unwrap();
    std::io::Read::read_exact(&mut stdout, &mut seen).unwrap();
    let text = String::from_utf8_lossy(&seen);
    assert!(text.matches("FLOW").count() >= 2 && !text.contains('\x1b'), "{text}");
    drop(stdout);
    let status = within("top ends", || child.try_wait().unwrap());
    assert!(status.success());
}

#[test]
fn move_why_and_protect_say_what_happens() {
    let daemon = Daemon::start();
    let (server, client, end, _) = flow(&daemon);
    let digits = &end.flow.to_string()[..6];
    let moved = std::thread::scope(|scope| {
        let command = scope.spawn(|| daemon.fable_says(&["move", digits, "unix"]));
        assert_eq!(server.ordered_move(end.flow).0, "unix");
        server.moved(end.flow, 2, "unix");
        command.join().unwrap()
    });
    assert!(moved.contains("uses unix from epoch 2 on"), "{moved}");
    let story = daemon.fable_says(&["why", digits]);
    for part in [
        "goes to fable://kv/1",
        "uses unix in epoch 2",
        "An operator chose its transport",
        "mempipe-futex-safe, because both ends are on this host (in use)",
        "unix, because an operator chose it (the choice now)",
    ] {
        assert!(story.contains(part), "{part}: {story}");
    }
    assert!(daemon.fable_says(&["why", digits, "--json"]).contains("\"decisions\""));
    assert!(daemon.fable_says(&["top", "--once"]).contains("unix* "));
    let protected = daemon.fable_says(&["protect", digits, "on"]);
    assert!(protected.contains("must be protected"), "{protected}");
    assert!(daemon.fable_says(&["top", "--once"]).contains("unix*! "));
    let auto = daemon.fable_says(&["move", digits, "auto"]);
    assert!(auto.contains("the policy chooses"), "{auto}");
    let error = daemon.fable_fails(&["move", "zzzz", "unix"]);
    assert!(error.contains("no flow zzzz") && error.contains("fable top"), "{error}");
    drop((server, client));
}

#[test]
fn every_column_of_top_is_documented() {
    let table = Daemon::start().fable_says(&["top", "--once"]);
    let heads = table.lines().next().unwrap().split_whitespace();
    let heads: BTreeSet<String> = heads.map(String::from).collect();
    assert_eq!(documented("counters.md", "fable"), heads);
}
