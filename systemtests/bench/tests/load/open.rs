//! Tests of the open loop with the built program. Figures are not judged, because the machine may
//! be busy, but these properties are: the effect of a paused server on the tail, that every request
//! is accounted for, and that a delayed generator reports it.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use sys::clock::monotonic_ns as now_ns;
use systemtests_bench::{Serving, iobench, run, run_with_json, scratch_file, signal, stderr, wait};

fn u(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

fn f(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// One line of a log.
#[derive(Debug, Clone, PartialEq)]
struct Entry {
    intended_ns: u64,
    actual_ns: u64,
    received_ns: Option<u64>,
    outcome: String,
    phase: String,
}

fn read_log(path: &Path) -> Vec<Entry> {
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("intended_ns,actual_ns,received_ns,connection,outcome,phase"));
    let entry = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        Entry {
            intended_ns: fields[0].parse().unwrap(),
            actual_ns: fields[1].parse().unwrap(),
            received_ns: (!fields[2].is_empty()).then(|| fields[2].parse().unwrap()),
            outcome: fields[4].to_owned(),
            phase: fields[5].to_owned(),
        }
    };
    lines.map(entry).collect()
}

fn assert_balanced(accounts: &Value) {
    let parts = ["answered", "late", "lost", "refused", "reset", "wrong"];
    let sum: u64 = parts.iter().map(|part| u(&accounts[part])).sum();
    assert_eq!(u(&accounts["scheduled"]), sum, "{accounts}");
}

/// Options with a time-out that no answer exceeds on a busy machine; the time-out is not tested.
const SHORT: [&str; 5] =
    ["--growth=100ms", "--steady=100ms", "--duration=1s", "--request-bytes=1", "--timeout=60s"];

#[test]
fn every_request_is_accounted_for_and_logged() {
    let server = Serving::start("epoll");
    let log = scratch_file();
    let (_, document, printed) = run_with_json(
        &[
            &["load", "--connect", &server.address, "--rate", "1000", "--connections", "50"][..],
            &["--arrivals", "uniform", "--seed", "3", "--log", log.to_str().unwrap()],
            &SHORT,
        ]
        .concat(),
    );
    let result = &document["results"][0];
    assert_balanced(&result["accounts"]);
    // A thousand requests, evenly spaced over a second.
    let scheduled = u(&result["accounts"]["scheduled"]);
    assert!((999..=1_001).contains(&scheduled), "{scheduled}");
    assert_eq!(u(&result["accounts"]["answered"]), scheduled, "{printed}");
    for name in ["latency_us", "send_lag_us", "transmit_us", "turnaround_us", "receive_lag_us"] {
        let values: Vec<f64> = ["p1", "p25", "p50", "p75", "p99", "p999", "max"]
            .iter()
            .map(|percentile| f(&result[name][percentile]))
            .collect();
        assert!(values.is_sorted() && values[0] >= 0.0, "{name}: {values:?}");
    }
    assert_eq!((&result["kind"], &result["request_rate"]), (&"open".into(), &1_000.0.into()));
    assert!(document["experiment"]["file"].as_str().unwrap().contains("uniform arrivals"));
    let entries = read_log(&log);
    fs::remove_file(&log).unwrap();
    let measured: Vec<&Entry> = entries.iter().filter(|e| e.phase == "measure").collect();
    assert_eq!(measured.len() as u64, scheduled);
    let mut intended: Vec<u64> = measured.iter().map(|entry| entry.intended_ns).collect();
    intended.sort_unstable();
    assert!(intended.windows(2).all(|pair| (pair[1] - pair[0]).abs_diff(1_000_000) <= 1));
    for entry in measured {
        assert!(entry.intended_ns <= entry.actual_ns, "{entry:?}");
        assert!(entry.actual_ns <= entry.received_ns.unwrap(), "{entry:?}");
        assert_eq!(entry.outcome, "answered");
    }
    let longest = entries.iter().filter(|entry| entry.phase == "measure");
    let longest = longest.map(|e| e.received_ns.unwrap() - e.intended_ns).max().unwrap();
    let reported = f(&result["latency_us"]["max"]) * 1e3;
    assert!((reported / longest as f64 - 1.0).abs() < 0.002, "{reported} {longest}");
}

/// A run in which the server was paused.
struct Paused {
    stopped_ns: u64,
    continued_ns: u64,
    measured: Vec<Entry>,
    p99_us: f64,
    /// The longest turnaround, and the longest receive lag.
    longest_parts_us: [f64; 2],
    notes: String,
}

impl Paused {
    /// Returns whether requests were scheduled before and after the pause. A busy machine may
    /// stretch or delay the pause beyond the measured time, and then there is nothing to compare.
    fn lies_within(&self) -> bool {
        let due = |entry: &Entry| entry.intended_ns;
        let (first, last) =
            (self.measured.iter().map(due).min(), self.measured.iter().map(due).max());
        first.is_some_and(|first_ns| first_ns <= self.stopped_ns)
            && last.is_some_and(|last_ns| self.continued_ns <= last_ns)
    }
}

/// Loads with a thousand requests per second for two seconds and pauses the server in between.
fn load_with_a_pause() -> Paused {
    let server = Serving::start("epoll");
    let log = scratch_file();
    let json = scratch_file();
    let mut load = iobench(&["load", "--connect", &server.address, "--rate", "1000"])
        .args(["--connections", "20", "--arrivals", "uniform", "--request-bytes", "1"])
        .args(["--growth", "0s", "--steady", "200ms", "--duration", "2s"])
        .args(["--timeout", "60s"])
        .args(["--log", log.to_str().unwrap(), "--json", json.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The log has its header when the connections are open and the run is about to begin.
    systemtests_bench::wait_until("the run begins", || log.exists().then_some(()));
    thread::sleep(Duration::from_millis(900));
    signal(server.id(), libc::SIGSTOP);
    systemtests_bench::wait_until("the server stands still", || server.is_stopped().then_some(()));
    let stopped_ns = now_ns();
    thread::sleep(Duration::from_millis(400));
    let continued_ns = now_ns();
    signal(server.id(), libc::SIGCONT);
    wait(&mut load);
    let entries = read_log(&log);
    let document: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    fs::remove_file(&log).unwrap();
    fs::remove_file(&json).unwrap();
    let measured = entries.into_iter().filter(|entry| entry.phase == "measure").collect();
    let row = &document["results"][0];
    Paused {
        stopped_ns,
        continued_ns,
        measured,
        p99_us: f(&row["latency_us"]["p99"]),
        longest_parts_us: ["turnaround_us", "receive_lag_us"].map(|part| f(&row[part]["max"])),
        notes: row["notes"].to_string(),
    }
}

/// A server that is paused from S to C answers nothing in that time. A request scheduled at t in
/// between is answered at C at the earliest, so it takes at least C - t; with evenly spaced
/// requests, a pause of P and a rate R, at least R·(P - x) requests take longer than x. A generator
/// that waited for the server (coordinated omission) would have sent at most one request per
/// connection.
#[test]
fn a_pause_of_the_server_shows_in_the_tail() {
    let undisturbed = (0..20).map(|_| load_with_a_pause()).find(Paused::lies_within);
    let undisturbed = undisturbed.expect("the pause never lay within the measured time");
    let Paused { stopped_ns, continued_ns, ref measured, p99_us, .. } = undisturbed;
    let paused = |entry: &&Entry| (stopped_ns..continued_ns).contains(&entry.intended_ns);
    let in_pause: Vec<&Entry> = measured.iter().filter(paused).collect();
    let pause_ms = (continued_ns - stopped_ns) / 1_000_000;
    assert!(pause_ms >= 400 && in_pause.len() as u64 >= pause_ms - 1, "{}", in_pause.len());
    for entry in &in_pause {
        let service_ns = entry.received_ns.unwrap() - entry.intended_ns;
        // The clocks are calibrated against each other; a tenth of a millisecond is a thousand
        // times their possible difference.
        assert!(service_ns + 100_000 >= continued_ns - entry.intended_ns, "{entry:?}");
    }
    let longer_than = |limit_ms: u64| {
        let long = |entry: &&Entry| {
            entry.received_ns.is_some_and(|at| at - entry.intended_ns >= limit_ms * 1_000_000)
        };
        measured.iter().filter(long).count() as u64
    };
    for limit_ms in [10, 50, 100, 150] {
        let expected = pause_ms - limit_ms - 2;
        assert!(longer_than(limit_ms) >= expected, "{limit_ms} ms: {}", longer_than(limit_ms));
    }
    // At least a fifth of the requests were due in the pause, so the 99th percentile is at most a
    // tenth of the pause below its longest.
    let least_us = (pause_ms as f64 * 0.9 - 2.0) * 1e3;
    assert!(p99_us >= least_us, "{p99_us} {least_us}");
    // Turnaround and receive lag are the time from the request to its answer.
    let waited_ns = measured.iter().map(|entry| entry.received_ns.unwrap() - entry.actual_ns).max();
    let parts_us = undisturbed.longest_parts_us.iter().sum::<f64>();
    assert!(parts_us * 1.002 >= waited_ns.unwrap() as f64 / 1e3, "{parts_us} {waited_ns:?}");
    assert!(undisturbed.notes.contains("no answer came for 0."), "{}", undisturbed.notes);
}

#[test]
fn a_starved_generator_is_invalid() {
    let server = Serving::start("epoll");
    let stop = Arc::new(AtomicBool::new(false));
    let cpu = last_cpu();
    // Five busy threads leave the generator a sixth of its CPU.
    let burners: Vec<_> = (0..5)
        .map(|_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                let _ = sys::cpus::pin_to(cpu);
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    let (status, document, printed) = run_with_json(
        &[
            &["load", "--connect", &server.address, "--rate", "2000", "--connections", "20"][..],
            &["--client-cpus", &cpu.to_string(), "--strict"],
            &SHORT,
        ]
        .concat(),
    );
    stop.store(true, Ordering::Relaxed);
    burners.into_iter().for_each(|burner| burner.join().unwrap());
    let result = &document["results"][0];
    assert_eq!((status, result["valid"].as_bool()), (Some(3), Some(false)), "{printed}");
    assert!(printed.contains("INVALID") && printed.contains("the generator was starved"));
    assert!(f(&result["starved"]) > 0.1, "{}", result["starved"]);
    assert_balanced(&result["accounts"]);
}

#[test]
fn a_server_that_vanishes_is_accounted_for() {
    let server = Serving::start("epoll");
    let log = scratch_file();
    let json = scratch_file();
    let mut load = iobench(&["load", "--connect", &server.address, "--rate", "500"])
        .args(["--connections", "10", "--growth=100ms", "--steady=100ms", "--duration=10s"])
        .args(["--request-bytes=1", "--timeout=60s", "--strict"])
        .args(["--log", log.to_str().unwrap(), "--json", json.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // By then the connections are open, and ten seconds of requests follow.
    systemtests_bench::wait_until("the run begins", || log.exists().then_some(()));
    drop(server);
    assert_eq!(wait(&mut load), Some(3));
    fs::remove_file(&log).unwrap();
    let document: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    fs::remove_file(&json).unwrap();
    let accounts = &document["results"][0]["accounts"];
    assert_balanced(accounts);
    assert!(u(&accounts["reset"]) + u(&accounts["refused"]) > 0, "{accounts}");
}

#[test]
fn churned_connections_are_accounted_for() {
    let server = Serving::start("epoll");
    let (_, document, printed) = run_with_json(
        &[
            &["load", "--connect", &server.address, "--rate", "300", "--transactions", "3"][..],
            // As many connections as requests, so that none is refused while another waits.
            &["--arrivals", "uniform", "--connections", "1000"],
            &SHORT,
        ]
        .concat(),
    );
    let result = &document["results"][0];
    assert_balanced(&result["accounts"]);
    let answered = u(&result["accounts"]["answered"]);
    assert!((299..=301).contains(&answered), "{printed}");
    assert_eq!((&result["kind"], &result["transactions"]), (&"churn".into(), &3.into()));
    assert!(f(&result["accept_us"]["p50"]) > 0.0 && f(&result["latency_us"]["p50"]) > 0.0);
    // The server counts the growth and the steady phase too: three requests and three answers of
    // one byte for each connection. The first test whether the server listens is also a connection.
    let totals = server.finish().1;
    let numbers: Vec<u64> =
        totals.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    let [connections, closed, received, sent, ..] = numbers[..] else { panic!("{totals}") };
    assert_eq!((closed, received, sent), (connections, 3 * (connections - 1), received));
}

#[test]
fn an_interrupted_load_ends_at_once_and_its_log_is_whole() {
    let server = Serving::start("epoll");
    let log = scratch_file();
    let mut load = iobench(&["load", "--connect", &server.address, "--rate", "500"])
        .args(["--connections", "10", "--steady", "60s", "--log", log.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    systemtests_bench::wait_until("the run begins", || log.exists().then_some(()));
    thread::sleep(Duration::from_millis(500));
    signal(load.id(), libc::SIGINT);
    assert_eq!(wait(&mut load), Some(130));
    let entries = read_log(&log);
    fs::remove_file(&log).unwrap();
    assert!(entries.iter().all(|entry| entry.phase != "measure"));
}

/// Starts a load, interrupts it after ever longer times until it had enough answers, and returns
/// its document.
fn interrupted(more: &[&str]) -> Value {
    let server = Serving::start("epoll");
    let json = scratch_file();
    for wait_ms in [500, 1_000, 2_000, 4_000, 8_000, 16_000] {
        let mut load = iobench(&["load", "--connect", &server.address, "--connections", "4"])
            .args(["--duration", "60s", "--json", json.to_str().unwrap()])
            .args(more)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(wait_ms));
        signal(load.id(), libc::SIGINT);
        assert_eq!(wait(&mut load), Some(130));
        let Ok(text) = fs::read(&json) else { continue };
        fs::remove_file(&json).unwrap();
        let document: Value = serde_json::from_slice(&text).unwrap();
        let row = &document["results"][0];
        let counts = [&row["accounts"]["answered"], &row["totals"]["client_transactions"]];
        if counts.iter().any(|count| count.as_u64() > Some(50)) {
            return document;
        }
    }
    panic!("it never had enough answers");
}

#[test]
fn an_interrupted_load_has_the_results_until_then() {
    for more in [&[][..], &["--rate", "500", "--growth", "0s", "--steady", "0s"]] {
        let document = interrupted(more);
        let row = &document["results"][0];
        assert_eq!(document["interrupted"], true, "{more:?}");
        assert!(row["notes"].to_string().contains("the run was interrupted"), "{}", row["notes"]);
        // Over the time that was measured, at most half a minute, not the planned minute.
        let answers = f(&row["throughput"]) * 30.0;
        let counted = ["accounts", "totals"].map(|name| &row[name]);
        let counted =
            counted[0]["answered"].as_u64().or(counted[1]["client_transactions"].as_u64());
        assert!(answers > counted.unwrap() as f64, "{more:?}: {row}");
        if !more.is_empty() {
            assert_balanced(&row["accounts"]);
            assert_eq!(u(&row["accounts"]["lost"]), 0, "{}", row["accounts"]);
        }
    }
}

#[test]
fn what_cannot_be_done_is_refused_with_its_remedy() {
    let server = Serving::start("epoll");
    let to = ["load", "--connect", server.address.as_str()];
    for (arguments, expected) in [
        (&["--rate", "0"][..], "choose a --rate"),
        (&["--rate", "10", "--arrivals", "bursts"], "slots, poisson or uniform"),
        (&["--rate", "10", "--generators", "999"], "do not fit"),
        (&["--arrivals", "poisson"], "--rate"),
        (&["--rate", "10", "--log", "/nowhere/at/all"], "directory"),
    ] {
        let output = run(&[&to[..], arguments].concat());
        assert_eq!(output.status.code(), testkit::refusal_status(&output), "{arguments:?}");
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
}

fn last_cpu() -> usize {
    thread::available_parallelism().map_or(0, |count| count.get() - 1)
}
