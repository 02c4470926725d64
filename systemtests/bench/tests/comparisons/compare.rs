//! Tests of `iobench compare` with the built program. Figures are not judged: on a busy machine
//! rows may be invalid. On any machine the shape of the report and the byte counts have to be
//! right, and no process may be left behind.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Stdio};

use serde_json::Value;
use systemtests_bench::{
    children, iobench, is_alive, run, run_with_json, signal, stderr, stdout, wait,
    wait_for_children,
};

const SHORT: [&str; 8] =
    ["--rounds", "3", "--duration", "250ms", "--cores", "1", "--transactions", "1,0"];

fn u(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// Fails unless the figure is a number, or null on a busy machine.
fn assert_figure(row: &Value, name: &str) {
    let value = &row[name];
    assert!(value.is_null() || value.as_f64().is_some_and(|v| v >= 0.0), "{name}: {value}");
}

fn assert_row(row: &Value) {
    for name in ["throughput", "server_cpu_us", "system_calls"] {
        assert_figure(row, name);
    }
    for name in ["throughput_ratio", "cpu_ratio", "p50_ratio", "p99_ratio"] {
        let ratio = &row[name];
        if !ratio.is_null() {
            let [low, median, high] =
                ["low", "estimate", "high"].map(|field| ratio[field].as_f64().unwrap());
            assert!(0.0 < low && low <= median && median <= high, "{ratio}");
        }
    }
    if !row["latency_us"].is_null() {
        let latencies: Vec<f64> = ["p1", "p25", "p50", "p75", "p99", "p999", "max"]
            .iter()
            .map(|name| row["latency_us"][name].as_f64().unwrap())
            .collect();
        assert!(latencies.is_sorted() && latencies[0] > 0.0, "{latencies:?}");
    }
    let bounds = ["client", "server", "both", "neither", "shared", "unknown"];
    assert!(bounds.contains(&row["bound"].as_str().unwrap()), "{}", row["bound"]);
    assert!(row["notes"].as_array().unwrap().iter().all(Value::is_string));
    if row["valid"] == false {
        assert!(!row["notes"].as_array().unwrap().is_empty(), "invalid without a reason");
    }
}

/// Fails unless client and server counted the same bytes, except for those in flight at a slot's
/// end.
fn assert_books(row: &Value, slots: u64) {
    let books = &row["totals"];
    let message_bytes = u(&row["request_bytes"]);
    let flow = [
        "client_bytes_sent",
        "server_bytes_received",
        "server_bytes_sent",
        "client_bytes_received",
    ]
    .map(|name| u(&books[name]));
    assert!(flow.is_sorted_by(|a, b| a >= b), "bytes from nowhere: {flow:?}");
    let in_flight = slots * u(&row["connections"]) * message_bytes;
    assert!(flow[0] - flow[3] <= in_flight, "{flow:?}, at most {in_flight} may be under way");
    assert!(flow[3] >= u(&books["client_transactions"]) * message_bytes, "{books}");
    assert!(u(&books["client_transactions"]) > 0);
    assert_eq!(books["server_accepted"], books["server_closed"]);
    assert!(u(&books["server_accepted"]) <= u(&books["client_connections"]));
    assert_eq!(u(&books["server_errors"]), 0);
}

#[test]
fn a_comparison_reports_every_row_and_its_books_balance() {
    let servers = ["compare", "--servers", "epoll,epoll-partitioned", "--seed", "7", "--strict"];
    let (status, document, printed) = run_with_json(&[&servers[..], &SHORT].concat());
    let rows = document["results"].as_array().unwrap();
    let keys: Vec<_> = rows
        .iter()
        .map(|row| (row["subject"].as_str().unwrap(), u(&row["transactions"])))
        .collect();
    let expected = [("epoll", 1), ("epoll-partitioned", 1), ("epoll", 0), ("epoll-partitioned", 0)];
    assert_eq!(keys, expected);
    for row in rows {
        assert_row(row);
        assert_books(row, 6);
        assert_eq!((u(&row["cores"]), u(&row["connections"])), (1, 256));
        let slices = ["clean", "stolen", "delayed", "late"].map(|name| u(&row["slices"][name]));
        assert_eq!(slices.iter().sum::<u64>(), 30);
        assert_eq!(row["rounds"].as_array().unwrap().len(), 3);
        assert!(u(&row["pairs"]) <= 6);
    }
    let asked = document["environment"]["congestion_control"].as_str().unwrap();
    assert!(printed.contains(&format!("congestion control {asked}")), "{printed}");
    for (index, name) in [(0, "throughput_ratio"), (2, "cpu_ratio")] {
        assert_eq!(
            rows[index][name],
            serde_json::json!({"estimate": 1.0, "low": 1.0, "high": 1.0})
        );
    }
    let all_valid = rows.iter().all(|row| row["valid"] == true);
    assert_eq!(status, Some(if all_valid { 0 } else { 3 }), "{printed}");
    assert_eq!(document["baseline"], "epoll");
    assert_eq!((&document["format"], &document["version"]), (&"iobench-results".into(), &2.into()));
    assert_eq!((u(&document["slots"]["rounds"]), u(&document["slots"]["per_round"])), (3, 2));
    assert_eq!(document["environment"]["seed"], 7);
    for name in ["kernel", "cpu_model", "date", "congestion_control"] {
        assert!(document["environment"][name].is_string(), "{name}");
    }
    assert!(printed.contains("throughput ratio") && printed.contains("epoll-partitioned"));
    assert!(printed.contains("epoll-partitioned against epoll at 1 transaction per connection"));
}

#[test]
fn figures_of_the_first_round_come_before_the_second() {
    let output = run(&[&["compare", "--servers", "epoll,select"], &SHORT[..]].concat());
    let (notes, table) = (stderr(&output), stdout(&output));
    let (first, rest) = notes.split_once("iobench: round 2 of 3").expect("a second round");
    for server in ["epoll ", "select"] {
        let told = first.matches(&format!("iobench: provisional: {server} ")).count();
        assert_eq!(told, 2, "for one transaction per connection and for many: {first}");
    }
    assert!(first.contains(" k/s  p50 ") && first.contains("persistent, 64 B, 1 core"), "{first}");
    assert!(!rest.contains("provisional") && !table.contains("provisional"), "{rest}{table}");
}

#[test]
fn large_messages_balance_too() {
    let arguments = ["compare", "--servers", "epoll", "--request-bytes", "65536,1"];
    let more = ["--connections", "16", "--cores", "1", "--rounds", "1", "--duration", "200ms"];
    let (_, document, printed) =
        run_with_json(&[&arguments[..], &more, &["--transactions", "3"]].concat());
    let rows = document["results"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{printed}");
    for row in rows {
        assert_row(row);
        assert_books(row, 2);
        assert_eq!(row["request_bytes"], row["response_bytes"]);
    }
}

#[test]
fn answers_of_several_sizes_are_compared_each_in_rows_of_their_own() {
    let arguments = ["compare", "--servers", "epoll,megapipe", "--transactions", "10"];
    let sizes = ["--request-bytes", "64", "--response-bytes", "64,1,65536"];
    let more = ["--connections", "16", "--cores", "1", "--rounds", "1", "--duration", "200ms"];
    let (_, document, printed) = run_with_json(&[&arguments[..], &sizes, &more].concat());
    let rows = document["results"].as_array().unwrap();
    assert_eq!(rows.len(), 6, "{printed}");
    for (row, response_bytes) in rows.iter().zip([64, 64, 1, 1, 65_536, 65_536]) {
        assert_row(row);
        assert_eq!((u(&row["request_bytes"]), u(&row["response_bytes"])), (64, response_bytes));
        let echo = response_bytes == 64;
        assert_eq!(row["request_bytes"] == row["response_bytes"], echo);
        let books = &row["totals"];
        assert!(u(&books["client_transactions"]) > 0, "{row}");
        let answered = u(&books["client_bytes_received"]) / response_bytes;
        assert!(u(&books["client_bytes_sent"]) / 64 >= answered, "{books}");
        assert!(!row["notes"].to_string().contains("nowhere"), "{row}");
        assert!(!row["notes"].to_string().contains("never answered"), "{row}");
    }
    assert!(printed.contains("64-byte requests, 65536-byte answers"), "{printed}");
}

#[test]
fn wrong_sizes_are_refused() {
    for wrong in [
        &["--message-bytes", "64", "--request-bytes", "64", "--response-bytes", "64"][..],
        &["--message-bytes", "64", "--response-bytes", "64"],
        &["--request-bytes", "64", "--response-bytes", "0"],
    ] {
        let output = run(&[&["compare"], wrong].concat());
        assert_eq!(output.status.code(), testkit::refusal_status(&output), "{wrong:?}");
    }
}

/// Starts a comparison; returns it with its servers, which all serve once the first round is
/// announced. The pipe has to stay open, or the comparison could not print.
fn start(arguments: &[&str]) -> (Child, Vec<(u32, u64)>, BufReader<ChildStderr>) {
    let mut child =
        iobench(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut printed = BufReader::new(child.stderr.take().unwrap());
    let mut lines = printed.by_ref().lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("round 1 of ")), "it ended before its first round");
    let servers = children(child.id());
    (child, servers, printed)
}

/// Returns a comparison that would run for a minute.
fn long_comparison() -> (Child, Vec<(u32, u64)>, BufReader<ChildStderr>) {
    let arguments = ["compare", "--servers", "epoll,epoll-partitioned", "--cores", "1"];
    let long = start(&[&arguments[..], &["--duration", "2s", "--rounds", "20"]].concat());
    assert_eq!(long.1.len(), 2);
    long
}

#[test]
fn an_interrupted_comparison_leaves_no_process() {
    for number in [libc::SIGINT, libc::SIGTERM] {
        let (mut child, servers, _printed) = long_comparison();
        signal(child.id(), number);
        assert_eq!(wait(&mut child), Some(130));
        assert!(!servers.iter().any(|server| is_alive(*server)), "{servers:?} live on");
    }
}

#[test]
fn servers_die_with_a_killed_parent() {
    let (mut child, servers, _printed) = long_comparison();
    child.kill().unwrap();
    child.wait().unwrap();
    systemtests_bench::wait_until("the servers are gone", || {
        (!servers.iter().any(|server| is_alive(*server))).then_some(())
    });
}

#[test]
fn a_server_that_dies_makes_its_rows_invalid() {
    let file = systemtests_bench::scratch_file();
    let path = file.to_str().unwrap();
    let arguments = [
        "compare",
        "--servers",
        "epoll",
        "--transactions",
        "0",
        "--duration",
        "1s",
        "--json",
        path,
    ];
    let more = ["--cores", "1", "--rounds", "3", "--strict"];
    let (mut child, servers, mut printed) = start(&[&arguments[..], &more].concat());
    signal(servers[0].0, libc::SIGKILL);
    let (status, mut errors) = (wait(&mut child), String::new());
    printed.read_to_string(&mut errors).unwrap();
    assert_eq!(status, Some(3), "{errors}");
    let document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    let row = &document["results"][0];
    assert_eq!(row["valid"], false);
    assert!(row["notes"].to_string().contains("the server process ended"), "{}", row["notes"]);
}

/// Runs a short comparison to its end; returns the servers seen meanwhile.
fn watched_to_its_end(arguments: &[&str]) -> Vec<(u32, u64)> {
    let mut child = iobench(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let (servers, status) = systemtests_bench::wait_until("the comparison is over", || {
        let seen = children(child.id());
        let ended = child.try_wait().unwrap();
        (!seen.is_empty() || ended.is_some()).then_some((seen, ended))
    });
    let status = status.map_or_else(|| wait(&mut child), |status| status.code());
    assert_eq!(status, Some(0));
    servers
}

#[test]
fn no_server_outlives_a_finished_comparison() {
    let arguments = ["compare", "--servers", "epoll", "--cores", "1", "--rounds", "1"];
    let more = ["--duration", "100ms", "--transactions", "1"];
    let arguments = [&arguments[..], &more].concat();
    // The server lives for half a second, in which a busy machine may not let the test see it.
    let seen = (0..20).map(|_| watched_to_its_end(&arguments)).find(|seen| !seen.is_empty());
    let servers = seen.expect("no server was ever seen");
    assert!(!servers.iter().any(|server| is_alive(*server)), "{servers:?} live on");
}

#[test]
fn the_cpu_time_of_threads_and_processes_of_connections_is_the_servers() {
    let servers = ["compare", "--servers", "thread,process,blocking-pool", "--connections", "8"];
    let (_, document, printed) = run_with_json(&[&servers[..], &SHORT].concat());
    for row in document["results"].as_array().unwrap() {
        assert_row(row);
        assert_eq!(row["totals"]["server_accepted"], row["totals"]["server_closed"], "{row}");
        // Every kernel needs more time to receive and send; the accepting threads sleep meanwhile.
        let cpu_us = &row["server_cpu_us"];
        assert!(cpu_us.is_null() || cpu_us.as_f64().unwrap() > 1.0, "{row}; {printed}");
    }
}

#[test]
fn killing_a_comparison_leaves_no_child_of_a_server_behind() {
    let arguments = ["compare", "--servers", "process", "--transactions", "0", "--rounds", "50"];
    let mut comparison = iobench(&arguments).spawn().unwrap();
    let servers = wait_for_children(comparison.id(), 1);
    let mut processes: Vec<_> =
        servers.iter().flat_map(|(server, _)| wait_for_children(*server, 1)).collect();
    processes.extend(servers);
    signal(comparison.id(), libc::SIGKILL);
    wait(&mut comparison);
    systemtests_bench::wait_until("all are gone", || {
        (!processes.iter().any(|process| is_alive(*process))).then_some(())
    });
}

#[test]
fn a_comparison_where_io_uring_is_barred_says_once_which_driver_it_uses_and_why() {
    let calls = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    let mut command = iobench(&["compare", "--servers", "epoll,megapipe,megapipe-pb"]);
    command.args(SHORT).env_remove("MEGAPIPE_DRIVER");
    testkit::bar_calls(&mut command, &calls);
    let output = command.output().expect("the program starts");
    let printed = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let driver = "driver of megapipe, megapipe-pb: epoll, because no io_uring: ";
    assert_eq!(printed.matches(driver).count(), 1, "{printed}");
}

#[test]
fn a_comparison_whose_table_cannot_be_written_fails_and_keeps_its_file() {
    let file = systemtests_bench::scratch_file();
    let full = std::fs::File::options().write(true).open("/dev/full").expect("/dev/full");
    let mut command = iobench(&["compare", "--servers", "epoll", "--json"]);
    let output = command.arg(&file).args(SHORT).stdout(full).output().expect("it starts");
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("cannot write to standard output"), "{message}");
    std::fs::remove_file(file).expect("the result file");
}
