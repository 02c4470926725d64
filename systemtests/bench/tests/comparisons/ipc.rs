//! Tests of `iobench ipc`: its output, refusals, end, and the page of its results.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use serde_json::Value;
use systemtests_bench::{
    NO_MESSAGE, children, iobench, is_alive, is_valid_or_disturbed, run, run_with_json,
    scratch_file, signal, stderr, stdout, wait, wait_until,
};

const BASELINES: [&str; 6] =
    ["tcp-blocking", "tcp-epoll", "unix-blocking", "unix-epoll", "pipe-blocking", "pipe-epoll"];

/// Transports of the paper that flows do not use.
const LOOPS: [&str; 2] = ["vmsplice-coop", "shmem-pipe-safe"];

const SHORT: [&str; 4] = ["--rounds", "3", "--duration", "100ms"];

fn rows(document: &Value) -> &Vec<Value> {
    document["results"].as_array().expect("rows")
}

fn notes(row: &Value) -> Vec<&str> {
    row["notes"].as_array().unwrap().iter().map(|note| note.as_str().unwrap()).collect()
}

/// Returns the row with this transport, workload and size.
fn find<'a>(
    document: &'a Value,
    subject: &str,
    workload: &str,
    bytes: &Value,
) -> Option<&'a Value> {
    rows(document).iter().find(|row| {
        row["subject"] == subject && row["workload"] == workload && row["request_bytes"] == *bytes
    })
}

/// Returns the row's main figure: the median round trip, or messages per second.
fn figure(row: &Value) -> &Value {
    if row["workload"] == "ping-pong" { &row["latency_us"]["p50"] } else { &row["throughput"] }
}

/// Returns the row's ratio to the baseline, in the row or in an entry of `versus`.
fn ratio<'a>(row: &Value, ratios: &'a Value) -> &'a Value {
    let is_ping_pong = row["workload"] == "ping-pong";
    &ratios[if is_ping_pong { "p50_ratio" } else { "throughput_ratio" }]["estimate"]
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("{field} in {row}"))
}

/// Measures in short rounds. Repeats the run if a row has no figures because no message arrived in
/// any round, which can happen on a busy machine, and nothing else is wrong; TLS is refused anyway.
fn run_short(words: &[&str]) -> (Option<i32>, Value, String) {
    let words = [words, &SHORT].concat();
    for _ in 0..20 {
        let (status, document, printed) = run_with_json(&words);
        let is_fine = |row: &Value| {
            is_valid_or_disturbed(row) || row["subject"].as_str().unwrap().contains("tls")
        };
        let lacks_figures =
            |row: &Value| notes(row).contains(&NO_MESSAGE) && row["throughput"].is_null();
        let rows = rows(&document);
        if !rows.iter().all(is_fine) || !rows.iter().any(lacks_figures) {
            return (status, document, printed);
        }
    }
    run_with_json(&words)
}

#[test]
fn every_row_has_every_figure() {
    let words = ["ipc", "--transports", "mempipe-spin,mempipe-futex-safe,cacheline"];
    let more = ["--message-bytes", "64,4096", "--placement", "same-core", "--seed", "7"];
    let (status, document, printed) = run_short(&[&words[..], &more].concat());
    assert_eq!(status, Some(0), "{printed}");
    let head = (&document["format"], &document["version"], &document["baseline"]);
    assert_eq!(head, (&"iobench-results".into(), &2.into(), &"tcp-blocking".into()));
    assert!(document["clock"]["cost_ns"].as_f64().unwrap() > 0.0);
    assert_eq!(document["environment"]["seed"], 7);
    assert_eq!(
        (&document["slots"]["rounds"], &document["slots"]["slice_ms"]),
        (&3.into(), &10.0.into())
    );
    // Three transports of two sizes, as ping-pong and in two batches, and the floor.
    assert_eq!(rows(&document).len(), 3 * 2 * 3 + 2, "{printed}");
    for row in rows(&document) {
        assert!(is_valid_or_disturbed(row), "{row}");
        assert_eq!((&row["placement"], &row["cores"]), (&"same-core".into(), &1.into()));
        assert_eq!(row["client_cpus"], row["server_cpus"]);
        assert_eq!((&row["shares_core"], &row["connections"]), (&true.into(), &1.into()));
        let (rate, bytes) = (number(row, "throughput"), number(row, "request_bytes"));
        if row["workload"] == "ping-pong" {
            let at = |name| number(&row["latency_us"], name);
            assert!(at("p1") > 0.0 && at("p1") <= at("p50") && at("p50") <= at("p99"), "{row}");
            assert!(at("p99") <= at("p999") && at("p999") <= at("max"), "{row}");
            assert!(row["kind"] == "closed" && row["histograms"]["service"].is_string(), "{row}");
            assert_eq!(row["request_bytes"], row["response_bytes"]);
            assert!(row["batch"].is_null() && row["gigabytes_per_s"].is_null(), "{row}");
            // An end that spun through its time slices on the shared CPU would use milliseconds.
            assert!(number(row, "cpu_both_us") < 1_000.0, "{row}");
        } else {
            assert_eq!((&row["kind"], &row["response_bytes"]), (&"one-way".into(), &0.into()));
            assert!((number(row, "gigabytes_per_s") / (rate * bytes / 1e9) - 1.0).abs() < 1e-9);
            assert!(row["batch"].is_null() || row["batch"] == 32, "{row}");
            assert!(row["latency_us"].is_null() && row["histograms"]["service"].is_null(), "{row}");
        }
        let [client, server] = ["client_cpu_us", "server_cpu_us"].map(|side| number(row, side));
        assert!(rate > 0.0 && client > 0.0 && server > 0.0 && number(row, "cpu_both_us") > 0.0);
        assert!(row["p50_ratio"].is_null() && row["throughput_ratio"].is_null(), "{row}");
        assert_eq!(row["rounds"].as_array().unwrap().len(), 3);
        for round in row["rounds"].as_array().unwrap() {
            let has_latency = round["latency_us"]["p50"].is_number();
            let is_whole = round["throughput"].is_number() && round["cpu_both_us"].is_number();
            assert!(round["valid"] == false || is_whole, "{row}");
            assert_eq!(has_latency, row["workload"] == "ping-pong" && is_whole, "{row}");
        }
    }
    assert_eq!(document["versus"], Value::Null, "neither of the further baselines was there");
    let floor = |workload| find(&document, "cacheline", workload, &8.into()).unwrap();
    assert!(floor("ping-pong")["batch"].is_null() && floor("one-way")["batch"].is_null());
    assert!(printed.contains("mempipe-spin-unsafe") && printed.contains("x floor"), "{printed}");
    let is_note = |line: &str| line.starts_with('(') || line.starts_with("iobench: ");
    // The marks of invalid rows follow the table's columns.
    let width = |line: &str| line.split("  INVALID").next().map_or(0, str::len);
    assert!(printed.lines().all(|line| width(line) <= 140 || is_note(line)), "{printed}");
}

#[test]
fn a_transport_that_cannot_be_made_is_a_row_with_the_reason() {
    let words = ["ipc", "--transports", "tls,mempipe-spin-safe", "--batch", "off"];
    let more = ["--message-bytes", "64", "--placement", "same-core"];
    let (status, _, printed) = run_short(&[&words[..], &more].concat());
    assert_eq!(status, Some(0), "{printed}");
    assert!(printed.contains("not all results are valid"), "{printed}");
    let (status, document, printed) = run_short(&[&words[..], &more, &["--strict"]].concat());
    assert_eq!(status, Some(3));
    for workload in ["ping-pong", "one-way"] {
        let row = |name| find(&document, name, workload, &64.into()).unwrap();
        assert_eq!(row("tls")["valid"], false);
        assert!(notes(row("tls"))[0].contains("refused"), "{}", row("tls"));
        assert!(figure(row("tls")).is_null(), "{}", row("tls"));
        assert!(is_valid_or_disturbed(row("mempipe-spin-safe")), "{printed}");
    }
    assert!(printed.contains("INVALID (1)"), "{printed}");
}

#[test]
fn a_flow_is_measured_beside_its_transport() {
    let words = ["ipc", "--transports", "flow-mempipe-futex-unsafe,flow-mempipe-spin-unsafe"];
    let more = ["--message-bytes", "64,4096", "--placement", "same-core"];
    let (status, document, printed) = run_short(&[&words[..], &more].concat());
    assert_eq!(status, Some(0), "{printed}");
    assert_eq!(rows(&document).len(), 2 * 2 * 3, "{printed}");
    for row in rows(&document) {
        let name = row["subject"].as_str().unwrap();
        assert!(name.starts_with("flow-mempipe-") && name.ends_with("-unsafe"), "{row}");
        assert!(is_valid_or_disturbed(row) && figure(row).as_f64().unwrap() > 0.0, "{row}");
    }
}

#[test]
fn every_row_is_compared_with_the_blocking_baselines() {
    let transports = [&BASELINES[..], &["unix"]].concat().join(",");
    let words = ["ipc", "--transports", &transports, "--message-bytes", "64,65536"];
    let more = ["--placement", "same-core", "--batch", "on,off"];
    let (status, document, printed) = run_short(&[&words[..], &more].concat());
    assert_eq!(status, Some(0), "{printed}");
    // Plain calls have no batches.
    assert_eq!(rows(&document).len(), 6 * 2 * 2 + 2 * 3, "{printed}");
    let further = document["versus"].as_array().unwrap();
    let names: Vec<&Value> = further.iter().map(|versus| &versus["baseline"]).collect();
    assert_eq!(names, ["unix-blocking", "pipe-blocking"]);
    for (place, row) in rows(&document).iter().enumerate() {
        assert!(is_valid_or_disturbed(row), "{row}");
        assert!(row["subject"] == "unix" || row["batch"].is_null(), "{row}");
        assert!(figure(row).as_f64().unwrap() > 0.0, "{row}");
        let of_further =
            further.iter().map(|versus| (&versus["baseline"], &versus["results"][place]));
        for (baseline, ratios) in [(&document["baseline"], row)].into_iter().chain(of_further) {
            let ratio = ratio(row, ratios);
            let name = baseline.as_str().unwrap();
            let workload = row["workload"].as_str().unwrap();
            let other = find(&document, name, workload, &row["request_bytes"]).unwrap();
            let both = row["valid"] == true && other["valid"] == true && row["batch"].is_null();
            assert_eq!(ratios["valid"], row["valid"]);
            // With fewer than three rounds there is no interval.
            let rounds = |row: &Value| row["rounds"].as_array().unwrap().clone();
            let pairs = rounds(row).into_iter().zip(rounds(other));
            let paired =
                pairs.filter(|(own, other)| own["valid"] == true && other["valid"] == true);
            let is_known = paired.count() >= 3 || row["subject"] == *baseline;
            assert_eq!(ratio.is_number(), both && is_known, "{name}: {row}");
            assert!(!both || row["subject"] != *baseline || *ratio == 1.0, "{row}");
        }
    }
    assert!(printed.contains("x tcp") && printed.contains("x pipe"), "{printed}");
}

#[test]
fn nothing_is_compared_with_an_invalid_row() {
    let words = ["ipc", "--transports", "unix-blocking,flow-tls", "--batch", "off", "--strict"];
    let more = ["--message-bytes", "64", "--placement", "same-core"];
    let (status, document, printed) = run_short(&[&words[..], &more].concat());
    assert_eq!(status, Some(3), "{printed}");
    for row in rows(&document) {
        let place = rows(&document).iter().position(|other| other == row).unwrap();
        let ratios = &document["versus"][0]["results"][place];
        assert!(row["valid"] == true || ratio(row, ratios).is_null(), "{row}");
    }
    let tls = find(&document, "flow-tls", "ping-pong", &64.into()).unwrap();
    assert!(notes(tls)[0].contains("keys are the daemon's"), "{tls}");
}

#[test]
fn what_does_not_fit_a_ring_is_told() {
    let words = ["ipc", "--transports", "mempipe-spin-safe", "--ring-bytes", "4096", "--strict"];
    let more = ["--message-bytes", "65536", "--placement", "same-core", "--batch", "off"];
    let (status, document, _) = run_short(&[&words[..], &more].concat());
    assert_eq!(status, Some(3));
    let reason = notes(&rows(&document)[0])[0];
    assert!(reason.contains("a message of 65536 bytes exceeds the limit"), "{reason}");
}

#[test]
fn mistakes_on_the_command_line_are_explained() {
    for (words, hint) in [
        (["--transports", "pigeon"], "vmsplice-coop"),
        (["--placement", "nowhere"], "all-pairs"),
        (["--message-bytes", "0"], "1 to 1048576"),
        (["--batch", "0"], "write off, on"),
        (["--duration", "5"], "needs a unit"),
        (["--rounds", "0"], "1..=1000"),
        (["--ring-bytes", "1"], "4096"),
        (["--json", "/no/such/directory/x.json"], "directory"),
    ] {
        let output = run(&[&["ipc"], &words[..]].concat());
        assert_eq!(output.status.code(), testkit::refusal_status(&output), "{words:?}");
        assert!(stderr(&output).contains(hint), "{words:?}: {}", stderr(&output));
    }
    let sockets = fs::read_dir("/sys/devices/system/cpu").unwrap().flatten().filter_map(|entry| {
        fs::read_to_string(entry.path().join("topology/physical_package_id")).ok()
    });
    let mut sockets: Vec<String> = sockets.collect();
    sockets.dedup();
    if sockets.len() == 1 {
        let output = run(&["ipc", "--placement", "other-socket"]);
        assert_eq!(output.status.code(), testkit::refusal_status(&output));
        assert!(
            stderr(&output).contains("no placement other-socket: this process"),
            "{}",
            stderr(&output)
        );
    }
}

/// The first process of a measurement, as `ipc` starts it.
struct First {
    child: Child,
    lines: Box<dyn Iterator<Item = String>>,
}

impl First {
    fn start(words: &[&str]) -> First {
        let mut child = iobench(&[&["ipc-end"], words].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        First { child, lines: Box::new(output.lines().map_while(Result::ok)) }
    }

    fn line(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().expect("a line")).expect("JSON")
    }
}

impl Drop for First {
    fn drop(&mut self) {
        // The second process ends when the first is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Tests that an end that blocks without a time limit is interrupted.
#[test]
fn both_processes_end_when_the_lifeline_is_cut() {
    for transport in [&BASELINES[..], &LOOPS, &["mempipe-futex-safe"]].concat() {
        for pattern in ["ping-pong", "one-way"] {
            let words = ["--transport", transport, "--pattern", pattern, "--cpus", "0,0"];
            let long = ["--slices", "1000", "--slice-ns", "60000000"];
            let mut first = First::start(&[&words[..], &long].concat());
            let ready = first.line();
            let second = ready["processes"][1].as_u64().unwrap() as u32;
            let second = (second, systemtests_bench::started(second).unwrap());
            drop(first.child.stdin.take());
            let done = first.line();
            let complaint = done["complaint"].as_str().unwrap();
            assert!(complaint.contains("stopped"), "{transport} {pattern}: {complaint}");
            wait(&mut first.child);
            assert!(!is_alive(second));
        }
    }
}

/// With the second process stopped, the first blocks in a call until the lifeline closes.
#[test]
fn an_end_that_blocks_is_interrupted() {
    for transport in [&["tcp-blocking", "unix-epoll", "pipe-epoll"][..], &LOOPS].concat() {
        let words = ["--transport", transport, "--pattern", "ping-pong", "--cpus", "0,0"];
        let long = ["--slices", "1000", "--slice-ns", "60000000"];
        let mut first = First::start(&[&words[..], &long].concat());
        let second = first.line()["processes"][1].as_u64().unwrap() as u32;
        signal(second, libc::SIGSTOP);
        let second = (second, systemtests_bench::started(second).unwrap());
        drop(first.child.stdin.take());
        let complaint = first.line()["complaint"].to_string();
        assert!(complaint.contains("stopped"), "{transport}: {complaint}");
        wait(&mut first.child);
        assert!(!is_alive(second));
    }
}

/// Returns a run that would take long, and its two measuring processes.
fn long_run(transport: &str, json: &str) -> (Child, [(u32, u64); 2]) {
    let words = ["ipc", "--transports", transport, "--message-bytes", "64"];
    let more = ["--duration", "10s", "--rounds", "1", "--batch", "off", "--json", json];
    let place = ["--placement", "same-core", "--strict"];
    let child = iobench(&[&words[..], &more, &place].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let pair = wait_until("both ends run", || {
        let first = *children(child.id()).first()?;
        let second = *children(first.0).first()?;
        // Between fork and exec a process still has its parent's name and arguments.
        let line = fs::read_to_string(format!("/proc/{}/cmdline", second.0)).ok()?;
        line.contains("--join").then_some([first, second])
    });
    (child, pair)
}

#[test]
fn an_end_that_is_killed_makes_the_row_invalid_and_leaves_nothing() {
    let transports = ["mempipe-spin-safe", "pipe-blocking", "tcp-epoll"];
    for (transport, victim) in transports.into_iter().flat_map(|t| [(t, 0), (t, 1)]) {
        let file = scratch_file();
        let (mut child, pair) = long_run(transport, file.to_str().unwrap());
        signal(pair[victim].0, libc::SIGKILL);
        // The second pattern must be stopped as well; otherwise it would take its ten seconds.
        let next = wait_until("the next measurement runs", || {
            children(child.id()).into_iter().find(|first| *first != pair[0])
        });
        signal(next.0, libc::SIGKILL);
        assert_eq!(wait(&mut child), Some(3));
        let document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        fs::remove_file(&file).unwrap();
        let reason = notes(&rows(&document)[0])[0];
        assert!(reason.contains("ended in the middle") && reason.contains("signal: 9"), "{reason}");
        for process in [pair[0], pair[1], next] {
            wait_until("it is gone", || (!is_alive(process)).then_some(()));
        }
    }
}

#[test]
fn an_interruption_ends_everything() {
    for transport in ["mempipe-spin-safe", "pipe-blocking"] {
        let file = scratch_file();
        let (mut child, pair) = long_run(transport, file.to_str().unwrap());
        signal(child.id(), libc::SIGINT);
        assert_eq!(wait(&mut child), Some(130));
        assert!(!file.exists());
        for process in pair {
            wait_until("it is gone", || (!is_alive(process)).then_some(()));
        }
    }
}

#[test]
fn the_page_has_heat_maps_and_bars_and_diff_compares() {
    let words = ["ipc", "--transports", "mempipe-spin-safe,cacheline,tls", "--batch", "off"];
    let more = ["--message-bytes", "64", "--placement", "all-pairs"];
    let (_, document, _) = run_short(&[&words[..], &more].concat());
    let file = scratch_file();
    fs::write(&file, document.to_string()).unwrap();
    let path = file.to_str().unwrap();
    let page = stdout(&run(&["report", path, "-o", "-"]));
    let diff = run(&["diff", path, path]);
    fs::remove_file(&file).unwrap();
    assert!(
        page.contains("Round trip by pair of CPUs") && page.contains("64 B messages"),
        "{page}"
    );
    let is_drawn = |row: &&Value| row["subject"] == "mempipe-spin-safe" && figure(row).is_number();
    let pairs = rows(&document).iter().filter(|row| row["workload"] == "ping-pong");
    for row in pairs.filter(is_drawn) {
        let cell = format!("data-us='{}'", row["latency_us"]["p50"]);
        assert!(page.contains(&cell.replace(".0'", "'")), "{cell}");
        let [first, second] = [&row["client_cpus"][0], &row["server_cpus"][0]];
        assert!(page.contains(&format!("<title>CPU {first} and {second}: ")), "{row}");
    }
    assert!(page.contains("class='plot bars'") && page.contains("MB/s</title>"), "no bars");
    assert!(page.contains("class=\"verdict invalid\"") && page.contains("tls "), "{page}");
    // The rows of TLS are valid in neither file.
    let text = stdout(&diff);
    assert_eq!(diff.status.code(), Some(3), "{text}{}", stderr(&diff));
    assert!(text.contains("tls, ping-pong") && text.contains("NOT COMPARED: not valid"), "{text}");
    assert!(text.contains("0 regressions"), "{text}");
}

#[test]
fn peers_are_rows_of_the_same_table() {
    for library in ["iceoryx2", "zeromq"] {
        let words = ["ipc", "--transports", library, "--message-bytes", "64"];
        let more = ["--placement", "same-core"];
        let (_, document, printed) = run_short(&[&words[..], &more].concat());
        assert_eq!(rows(&document).len(), 2, "{printed}");
        for row in rows(&document) {
            assert!(row["subject"] == library && is_valid_or_disturbed(row), "{row}");
            assert!(figure(row).as_f64().unwrap() > 0.0, "{row}");
        }
    }
}
