//! Tests of `iobench compare --path veth` with the built program, with servers and clients on
//! user-level TCP. Figures are not judged. On any machine every byte has to arrive, byte counts
//! have to be right, and nothing may be left behind.

use std::fs;
use std::process::Stdio;

use serde_json::Value;
use systemtests_bench::{
    children, devices, iobench, is_alive, run, run_with_json, signal, stderr, wait,
};

/// Attempts with a short measurement until every server has answered something.
const ATTEMPTS: u32 = 5;

const SHORT: [&str; 12] = [
    "compare",
    "--path",
    "veth",
    "--cores",
    "1",
    "--rounds",
    "1",
    "--duration",
    "200ms",
    "--connections",
    "16",
    "--transactions",
];

fn u(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// Fails unless both ends counted the same bytes, except for those in flight at the end of the two
/// slots.
fn assert_books(row: &Value) {
    let books = &row["totals"];
    let count = |name: &str| u(&books[name]);
    assert!(count("client_transactions") > 0, "{row}");
    assert_eq!(count("server_accepted"), count("server_closed"), "{row}");
    assert_eq!(count("server_errors"), 0, "{row}");
    assert!(count("client_bytes_sent") >= count("server_bytes_received"), "{row}");
    assert!(count("server_bytes_sent") >= count("client_bytes_received"), "{row}");
    // All other notes report that the machine was too busy.
    let notes = row["notes"].to_string();
    for wrong in ["differed", "nowhere", "never answered", "failed", "kept connections", "reset"] {
        assert!(!notes.contains(wrong), "{notes}");
    }
}

#[test]
fn the_kernel_and_stacks_are_compared_in_one_run() {
    let before = devices();
    let more = ["--servers", "epoll,megapipe,mtcp,mtcp/mtcp,epoll/mtcp"];
    let baselines = ["--baseline", "epoll,megapipe"];
    let (_, document, printed) = run_with_json(&[&SHORT[..], &["1,0"], &more, &baselines].concat());
    let rows = document["results"].as_array().unwrap();
    let servers: Vec<&str> = rows.iter().map(|row| row["subject"].as_str().unwrap()).collect();
    let once = ["epoll", "megapipe", "mtcp", "mtcp/mtcp", "epoll/mtcp"];
    assert_eq!(servers, [once, once].concat(), "{printed}");
    for row in rows {
        assert_books(row);
        assert_eq!(row["network"], "veth");
        let figure = |name: &str| row[name].as_f64();
        assert!(figure("cpu_both_us") >= figure("server_cpu_us"), "{row}");
        let counts = !row["subject"].as_str().unwrap().starts_with("mtcp");
        assert!(counts || row["system_calls"].is_null(), "{row}");
    }
    let versus = &document["versus"][0];
    assert_eq!(versus["baseline"], "megapipe");
    assert_eq!(versus["results"][1]["cpu_both_ratio"]["estimate"], 1.0);
    assert!(printed.contains("Ratios against megapipe"), "{printed}");
    assert_eq!(devices(), before);
}

#[test]
fn every_device_and_both_modes_serve() {
    let more = ["--servers", "mtcp-paired,mtcp-packet,mtcp-tap"];
    let (_, document, printed) = run_with_json(&[&SHORT[..], &["8"], &more].concat());
    let rows = document["results"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "{printed}");
    rows.iter().for_each(assert_books);
}

/// The kernel's answers about neighbours arrive in one queue, whichever core has asked.
#[test]
fn two_cores_serve_clients_of_the_kernel() {
    let two = SHORT.map(|word| if word == "1" { "2" } else { word });
    let more = ["--servers", "mtcp,mtcp-packet,mtcp-tap"];
    let (_, document, printed) = run_with_json(&[&two[..], &["1,0"], &more].concat());
    let rows = document["results"].as_array().unwrap();
    assert_eq!(rows.len(), 6, "{printed}");
    rows.iter().for_each(assert_books);
}

#[test]
fn bulk_rows_tell_bytes() {
    let more = ["--servers", "epoll,mtcp,mtcp-tap,mtcp/mtcp", "--request-bytes", "64,1048576"];
    let sizes = ["--response-bytes", "64"];
    let (_, document, printed) = run_with_json(&[&SHORT[..], &["0"], &more, &sizes].concat());
    let rows = document["results"].as_array().unwrap();
    assert_eq!(rows.len(), 8, "{printed}");
    for row in rows {
        assert_books(row);
        // On a busy machine a slice may be too short for so many bytes.
        let bulk = u(&row["request_bytes"]) > 64 && row["throughput"].is_f64();
        for name in ["gigabytes_per_s", "cpu_s_per_gib"] {
            assert_eq!(row[name].as_f64().is_some_and(|value| value > 0.0), bulk, "{row}");
        }
    }
    assert!(printed.contains("GB/s"), "{printed}");
}

#[test]
fn stacks_without_a_device_are_refused_with_the_remedy() {
    for (words, expected) in [
        (&["compare", "--servers", "mtcp"][..], "--path veth"),
        (&["serve", "--server", "mtcp"], "compare --path veth"),
        (&["compare", "--path", "veth", "--network", "delay=1ms"], "cannot be used with"),
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), testkit::refusal_status(&output), "{words:?}");
        let message = stderr(&output);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_killed_comparison_leaves_nothing_behind() {
    let before = devices();
    let arguments = ["compare", "--path", "veth", "--servers", "mtcp,mtcp/mtcp", "--cores", "1"];
    let mut child = iobench(&[&arguments[..], &["--rounds", "1000"]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let servers = systemtests_bench::wait_for_children(child.id(), 2);
    signal(child.id(), libc::SIGKILL);
    wait(&mut child);
    systemtests_bench::wait_until("the servers are gone", || {
        (!servers.iter().any(|server| is_alive(*server))).then_some(())
    });
    assert!(children(child.id()).is_empty());
    // The devices of a namespace disappear a moment after its last process.
    systemtests_bench::wait_until("the devices are gone", || (devices() == before).then_some(()));
}

#[test]
fn open_loops_run_over_veth() {
    for (kind, transactions) in [("open", ""), ("churn", "transactions = 2")] {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            r#"
            name = "veth"
            title = "over veth"
            kind = "{kind}"
            rounds = 1
            network = "veth"
            [sweep]
            servers = ["epoll", "mtcp", "mtcp-tap"]
            connections = 8
            request_rate = 200
            request_bytes = 64
            response_bytes = 512
            {transactions}
            [periods]
            growth = "50ms"
            steady = "50ms"
            measure = "300ms"
            "#
        );
        fs::write(file.path(), text).unwrap();
        let path = file.path().to_str().unwrap();
        let has_answers = |row: &Value| {
            let accounts = &row["accounts"];
            u(&accounts["answered"]) + u(&accounts["late"]) > 0
        };
        // On a busy machine a generator may not run at all in such short periods.
        let mut attempts = 0;
        let (document, printed) = loop {
            let (_, document, printed) = run_with_json(&["run", path]);
            attempts += 1;
            let all =
                document["results"].as_array().is_some_and(|rows| rows.iter().all(has_answers));
            if all || attempts == ATTEMPTS {
                break (document, printed);
            }
        };
        let rows = document["results"].as_array().unwrap();
        assert_eq!(rows.len(), 3, "{printed}");
        for row in rows {
            assert_eq!(row["network"], "veth");
            assert!(has_answers(row), "{row}");
            assert_eq!(u(&row["accounts"]["reset"]), 0, "{row}");
        }
    }
}

#[test]
fn an_experiment_on_the_loopback_device_has_no_place_for_stacks() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "name = \"n\"\ntitle = \"t\"\nkind = \"open\"\n[sweep]\nservers = [\"mtcp\"]\n\
                request_rate = 100\n";
    fs::write(file.path(), text).unwrap();
    let output = run(&["run", file.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("network = \"veth\""), "{}", stderr(&output));
}
