//! Tests of `iobench compare --idle` with the built program. Figures are not judged: on a busy
//! machine rows may be invalid. On any machine idle connections have to stay open and be accounted
//! for, and a server that cannot hold them must have no figures.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use serde_json::Value;
use systemtests_bench::{
    children, iobench, is_alive, run, run_with_json, scratch_file, signal, stderr, stdout, wait,
};
use testkit::process::program;

const SHORT: [&str; 10] = [
    "compare",
    "--cores",
    "1",
    "--connections",
    "16",
    "--rounds",
    "1",
    "--duration",
    "200ms",
    "--transactions",
];

fn u(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// Returns the rows by server and idle connections.
fn keys(document: &Value) -> Vec<(&str, u64)> {
    let rows = document["results"].as_array().unwrap();
    rows.iter().map(|row| (row["subject"].as_str().unwrap(), u(&row["idle"]))).collect()
}

/// Fails if there is a complaint about idle connections, or if the slots' counts include them.
fn assert_row(row: &Value) {
    let (notes, books) = (row["notes"].to_string(), &row["totals"]);
    assert!(!notes.contains("idle connections") && !notes.contains("kept"), "{notes}");
    assert!(row["valid"] == true || notes != "[]", "invalid without a reason: {row}");
    assert!(u(&books["client_transactions"]) > 0, "{row}");
    assert_eq!(books["server_accepted"], books["server_closed"], "{row}");
    if !books["server_accepted"].is_null() {
        assert!(u(&books["server_accepted"]) <= u(&books["client_connections"]), "{row}");
        assert_eq!(u(&books["server_errors"]), 0, "{row}");
    }
}

#[test]
fn servers_are_measured_beside_idle_connections() {
    let more = ["1", "--servers", "epoll,megapipe,megapipe-epoll", "--idle", "0,200"];
    let (_, document, printed) = run_with_json(&[&SHORT[..], &more].concat());
    let servers = ["epoll", "megapipe", "megapipe-epoll"];
    let expected: Vec<(&str, u64)> =
        [0, 200].into_iter().flat_map(|idle| servers.map(|server| (server, idle))).collect();
    assert_eq!(keys(&document), expected, "{printed}");
    document["results"].as_array().unwrap().iter().for_each(assert_row);
    for row in document["results"].as_array().unwrap() {
        assert_eq!(row["idle_bytes"].is_number(), row["idle"] == 200, "{row}");
    }
    assert!(printed.contains("trans  idle  server") && printed.contains("B/idle"), "{printed}");
    let sentence = "at 1 transaction per connection beside 200 idle connections on 1 core";
    assert!(printed.contains(&format!("megapipe against epoll {sentence}")), "{printed}");
    assert_saved(&document);
}

/// Checks that rows of result files differ by their number of idle connections.
fn assert_saved(document: &Value) {
    let file = scratch_file();
    std::fs::write(&file, document.to_string()).unwrap();
    let path = file.to_str().unwrap();
    let page = stdout(&run(&["report", "-o", "-", path]));
    let changes = stdout(&run(&["diff", path, path]));
    std::fs::remove_file(&file).unwrap();
    assert!(page.contains("Throughput and CPU by idle connections"), "{page}");
    let beside = "1 transaction per connection, 200 idle connections, requests of 64 B";
    assert_eq!(changes.matches(beside).count(), 3, "{changes}");
    assert_eq!(changes.matches("1 transaction per connection, requests").count(), 3, "{changes}");
}

#[test]
fn an_interrupted_run_leaves_no_server_beside_its_idle_connections() {
    let arguments = ["compare", "--servers", "epoll", "--cores", "1", "--transactions", "1"];
    let long = ["--idle", "5000", "--duration", "2s", "--rounds", "50"];
    let mut command = iobench(&[&arguments[..], &long].concat());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // Kept open until the end; otherwise the program could not print any more.
    let mut printed = BufReader::new(child.stderr.take().unwrap());
    let mut lines = printed.by_ref().lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "iobench: opening 5000 idle connections to epoll"));
    let servers = children(child.id());
    assert_eq!(servers.len(), 1);
    signal(child.id(), libc::SIGINT);
    assert_eq!(wait(&mut child), Some(130));
    assert!(!servers.iter().any(|server| is_alive(*server)), "{servers:?} live on");
}

#[test]
fn without_idle_connections_nothing_is_said_of_them() {
    let more = ["0", "--servers", "epoll", "--baseline", "epoll,epoll"];
    let (_, document, printed) = run_with_json(&[&SHORT[..], &more].concat());
    assert_eq!(keys(&document), [("epoll", 0)]);
    assert!(!printed.contains("idle"), "{printed}");
}

#[test]
fn a_server_that_cannot_hold_them_has_the_reason_in_its_row() {
    let program = program("iobench");
    let serve = format!(
        "exec {} serve --server epoll --port {{port}} --server-cpus {{cpus}}",
        program.display()
    );
    let few = format!("few=sh -c 'ulimit -n 100 && {serve}'");
    let many = format!("many=sh -c '{serve}'");
    let more = ["1,0", "--servers", "epoll", "--peer", &few, "--peer", &many, "--idle", "150"];
    let (_, document, printed) = run_with_json(&[&SHORT[..], &more].concat());
    let servers = ["epoll", "few", "many"].map(|server| (server, 150));
    assert_eq!(keys(&document), [servers, servers].concat(), "{printed}");
    for row in document["results"].as_array().unwrap() {
        if row["subject"] != "few" {
            assert_row(row);
            continue;
        }
        let reason = row["notes"][0].as_str().unwrap();
        assert!(reason.starts_with("its idle connections could not be opened: only "), "{reason}");
        assert_eq!((&row["valid"], &row["throughput"]), (&Value::from(false), &Value::Null));
        assert!(row["idle_bytes"].is_null(), "{row}");
    }
}

#[test]
fn they_pass_veth_pairs_to_servers_with_a_tcp_of_their_own() {
    let more = ["1", "--path", "veth", "--servers", "epoll,mtcp,mtcp-tap", "--idle", "50"];
    let (_, document, printed) = run_with_json(&[&SHORT[..], &more].concat());
    assert_eq!(keys(&document), ["epoll", "mtcp", "mtcp-tap"].map(|server| (server, 50)));
    document["results"].as_array().unwrap().iter().for_each(assert_row);
    assert_eq!(document["results"][0]["network"], "veth", "{printed}");
}

#[test]
fn numbers_of_idle_connections_are_refused_with_the_range_or_the_remedy() {
    for (words, part) in [
        (&["--idle", "1,x"][..], "0 to 100000"),
        (&["--idle", "100001"], "0 to 100000"),
        (&["--idle", "0,-1"], "0 to 100000"),
        (&["--idle", ""], "0 to 100000"),
        (&["--idle", "0,8", "--path", "veth", "--servers", "epoll/mtcp"], "epoll/kernel"),
        (&["--idle", "100000", "--quick", "--rounds", "1"], "--idle"),
    ] {
        let output = run(&[&["compare"], words].concat());
        assert_eq!(output.status.code(), testkit::refusal_status(&output), "{words:?}");
        let message = stderr(&output);
        assert!(message.contains(part), "{words:?}: no `{part}` in: {message}");
    }
}
