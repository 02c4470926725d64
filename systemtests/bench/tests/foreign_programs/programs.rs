//! Tests of `iobench programs`: its output, that connections are upgraded, refusals, and its end.

use std::path::PathBuf;
use std::process::{Output, Stdio};

use serde_json::Value;
use systemtests_bench::{
    children, devices, is_alive, run_with_json, signal, stderr, stdout, wait, wait_until,
};
use testkit::process::Guard;

const SHORT: [&str; 4] = ["--rounds", "3", "--duration", "100ms"];

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("{field} in {row:#}"))
}

/// Fails if a row is invalid for another reason than a busy machine.
#[track_caller]
fn assert_measured(row: &Value) {
    let reasons = row["notes"].to_string();
    assert!(row["valid"] == true || reasons.contains("undisturbed"), "{row:#}");
    for field in ["operations", "throughput", "server_cpu_us", "client_cpu_us"] {
        assert!(number(row, field) > 0.0, "{row:#}");
    }
    assert!(number(row, "cpu_both_us") > number(row, "server_cpu_us"), "{row:#}");
    let upgraded = row["upgraded_connections"].as_u64();
    match row["subject"].as_str() {
        Some("fable" | "mtcp" | "mtcp/mtcp") => {
            assert!(upgraded >= row["connections"].as_u64(), "{row:#}")
        }
        _ => assert_eq!(upgraded, None, "{row:#}"),
    }
}

/// Returns whether nothing disturbed any round.
fn is_undisturbed(row: &Value) -> bool {
    let rounds = row["rounds"].as_array().expect("rounds");
    rounds.iter().all(|round| round["valid"] == true)
}

fn rows(document: &Value) -> &Vec<Value> {
    document["results"].as_array().expect("rows")
}

#[test]
fn redis_is_measured_over_tcp_its_socket_and_shared_memory() {
    let words = ["programs", "redis", "--connections", "1,4", "--pipeline", "1,2", "--seed", "7"];
    let (status, document, printed) = run_with_json(&[&words[..], &SHORT].concat());
    assert_eq!(status, Some(0), "{printed}");
    assert_eq!(
        (&document["baseline"], &document["environment"]["seed"]),
        (&"tcp".into(), &7.into())
    );
    let rows = rows(&document);
    assert_eq!(rows.len(), 3 * 2 * 2 * 2, "{printed}");
    for (index, row) in rows.iter().enumerate() {
        assert_measured(row);
        assert_eq!(row["subject"], ["tcp", "unix", "fable"][index % 3]);
        assert_eq!(row["workload"], ["redis get", "redis set"][index / 3 % 2]);
        assert_eq!(row["pipeline"].as_u64().unwrap_or(1), [1, 2][index / 6 % 2]);
        assert_eq!(row["connections"], [1, 4][index / 12]);
        assert_eq!(row["operations"], rows[index / 3 * 3]["operations"], "{row:#}");
        let latency = &row["reported_latency_us"];
        assert!(number(latency, "p50") > 0.0, "{row:#}");
        assert!(number(latency, "p99") >= number(latency, "p50"), "{row:#}");
        let rounds = row["rounds"].as_array().unwrap();
        assert!(rounds.len() == 3 && rounds.iter().all(|round| number(round, "throughput") > 0.0));
        let slices = row["slices"].as_object().unwrap().values();
        assert_eq!(slices.filter_map(Value::as_u64).sum::<u64>(), 3, "{row:#}");
    }
    assert_eq!(rows[0]["throughput_ratio"]["estimate"], 1.0);
    let unix = &document["versus"][0];
    assert_eq!(
        (&unix["baseline"], &unix["results"][1]["throughput_ratio"]["estimate"]),
        (&"unix".into(), &1.0.into())
    );
    assert_eq!(unix["results"].as_array().unwrap().len(), rows.len());
    let settings = document["experiment"]["file"].as_str().unwrap();
    assert!(settings.contains("redis: Redis server v="), "{settings}");
    assert!(printed.contains("Redis server v=") && printed.contains("x unix"), "{printed}");
}

#[test]
fn the_other_programs_are_measured_on_one_cpu() {
    let words = ["programs", "memcached", "postgres", "nginx", "--connections", "2"];
    let more = ["--placement", "same-core", "--rounds", "1", "--duration", "100ms"];
    let (status, document, printed) = run_with_json(&[&words[..], &more].concat());
    assert_eq!(status, Some(0), "{printed}");
    let rows = rows(&document);
    assert_eq!(rows.len(), 6, "{printed}");
    for (index, row) in rows.iter().enumerate() {
        assert_measured(row);
        let workload = ["memcached set", "postgres select", "nginx get"][index / 2];
        assert_eq!(row["workload"], workload, "{printed}");
        assert_eq!(row["subject"], ["tcp", "fable"][index % 2]);
        assert_eq!(row["placement"], "same-core");
        assert_eq!(row["server_cpus"], row["client_cpus"]);
        // One round has no interval.
        let interval = &row["throughput_ratio"];
        assert_eq!(interval.is_null(), index % 2 == 1, "{row:#}");
    }
    assert!(rows[0]["reported_latency_us"].is_null() && document["versus"].is_null());
    assert!(number(&rows[2]["reported_latency_us"], "mean") > 0.0);
    assert!(number(&rows[4]["reported_latency_us"], "p99") > 0.0);
}

#[test]
fn lighttpd_is_measured_over_the_kernel_and_over_stacks() {
    let before = devices();
    let words = ["programs", "lighttpd", "--connections", "1,8", "--seed", "3"];
    let (status, document, printed) = run_with_json(&[&words[..], &SHORT].concat());
    assert_eq!(status, Some(0), "{printed}");
    let rows = rows(&document);
    assert_eq!(rows.len(), 3 * 4 * 2, "{printed}");
    for (index, row) in rows.iter().enumerate() {
        assert_measured(row);
        let variant = ["tcp", "mtcp", "mtcp/mtcp"][index % 3];
        let operation = ["get-64", "get-8k", "get-64-kept", "get-8k-kept"][index / 3 % 4];
        assert_eq!((&row["subject"], &row["network"]), (&variant.into(), &"veth".into()));
        assert_eq!(row["workload"], format!("lighttpd {operation}"));
        assert_eq!(row["transactions"], u32::from(!operation.ends_with("kept")));
        assert_eq!(row["connections"], [1, 8][index / 12]);
        assert_eq!(row["operations"], rows[index / 3 * 3]["operations"], "{row:#}");
        // If a connection is for one request, all of them went through the stack.
        let has_many = !operation.ends_with("kept") && variant != "tcp";
        let upgraded = row["upgraded_connections"].as_f64();
        assert!(!has_many || upgraded >= row["operations"].as_f64(), "{row:#}");
        let latency = &row["reported_latency_us"];
        assert!(number(latency, "p50") > 0.0 && number(latency, "mean") > 0.0, "{row:#}");
        assert!(number(latency, "p99") >= number(latency, "p50"), "{row:#}");
        assert!(row["rounds"].as_array().is_some_and(|rounds| rounds.len() == 3), "{row:#}");
        // One round has no interval, and on a busy machine there may be no other round.
        let has_pairs = is_undisturbed(row) && is_undisturbed(&rows[index / 3 * 3]);
        let ratio = &row["cpu_both_ratio"];
        assert!(!has_pairs || number(ratio, "low") > 0.0, "{row:#}");
    }
    assert_eq!(rows[0]["cpu_both_ratio"]["estimate"], 1.0);
    assert!(printed.contains("lighttpd/1.") && printed.contains("veth pairs"), "{printed}");
    assert_eq!(devices(), before);
}

#[test]
fn a_proxy_is_measured_before_a_server_of_the_kernel() {
    let before = devices();
    let words = ["programs", "tls-proxy", "--connections", "4", "--rounds", "1"];
    let (status, document, printed) = run_with_json(&[&words[..], &SHORT[2..]].concat());
    assert_eq!(status, Some(0), "{printed}");
    let rows = rows(&document);
    assert_eq!(rows.len(), 2 * 4, "{printed}");
    for (index, row) in rows.iter().enumerate() {
        assert_measured(row);
        assert_eq!(row["subject"], ["tcp", "mtcp"][index % 2]);
        // The server behind the proxy works, too.
        let two = number(row, "server_cpu_us") + number(row, "client_cpu_us");
        assert!(number(row, "cpu_both_us") > two, "{row:#}");
    }
    let upgraded = rows[1]["upgraded_connections"].as_f64();
    assert!(upgraded >= rows[1]["operations"].as_f64(), "{:#}", rows[1]);
    assert_eq!(devices(), before);
}

#[test]
fn a_stack_that_is_missing_is_told_with_its_remedy() {
    let mut command = systemtests_bench::iobench(&["programs", "lighttpd"]);
    let output = command.env("MTCP_PRELOAD", "/no/such/library.so").output().unwrap();
    assert_refused(&output, &["libmtcp_preload.so", "cargo build --release -p mtcp"]);
}

#[track_caller]
fn assert_refused(output: &Output, parts: &[&str]) {
    let message = stderr(output);
    assert_eq!(output.status.code(), testkit::refusal_status(output), "{message}");
    for part in parts {
        assert!(message.contains(part), "no `{part}` in: {message}");
    }
}

fn without_path(words: &[&str]) -> Output {
    systemtests_bench::iobench(words).env("PATH", "/no/such/directory").output().unwrap()
}

/// Needs root: other users find postgres without the PATH.
#[test]
fn a_machine_without_programs_is_told_so() {
    assert_refused(&without_path(&["programs"]), &["none of the programs", "left out: "]);
}

#[test]
fn what_is_missing_is_told_with_its_remedy() {
    let redis = without_path(&["programs", "redis"]);
    assert_refused(&redis, &["redis-server is not installed", "the package redis-server"]);
    let output = systemtests_bench::run(&["programs", "apache"]);
    assert_refused(&output, &["apache", "redis"]);
    for wrong in ["0", "1001", "x"] {
        assert_refused(
            &systemtests_bench::run(&["programs", "--connections", wrong]),
            &["--connections"],
        );
    }
}

#[test]
fn a_library_that_is_missing_is_told_with_its_remedy() {
    let mut command = systemtests_bench::iobench(&["programs", "redis"]);
    let output = command.env("FABLE_PRELOAD", "/no/such/library.so").output().unwrap();
    assert_refused(&output, &["libfable_preload.so", "cargo build --release -p fabled"]);
}

#[test]
fn help_tells_what_is_measured_and_how() {
    let help = stdout(&systemtests_bench::run(&["programs", "--help"]));
    let names = ["redis-benchmark", "memcslap", "wrk", "pgbench", "lighttpd", "tls-proxy"];
    for part in names.into_iter().chain(["mtcp/mtcp", "INVALID", "Examples:"]) {
        assert!(help.contains(part), "no `{part}` in: {help}");
    }
}

/// Returns all descendants of a process.
fn descendants(process: u32) -> Vec<(u32, u64)> {
    let mut all = children(process);
    let mut next = 0;
    while next < all.len() {
        let more = children(all[next].0);
        all.extend(more);
        next += 1;
    }
    all
}

/// Directories that the program must remove, found by its process id.
fn leftovers(process: u32) -> Vec<PathBuf> {
    let mark = format!("-{process}-");
    let entries = std::fs::read_dir(std::env::temp_dir()).unwrap();
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with("iobench-") && name.contains(&mark)
        })
        .collect()
}

/// Starts a run that would take long; returns it with its processes: `servers` servers, and a
/// client.
fn start_long_run(program: &str, servers: usize) -> (Guard, Vec<(u32, u64)>) {
    let mut command =
        systemtests_bench::iobench(&["programs", program, "--rounds", "1000", "--duration", "1s"]);
    let guard = Guard::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
    let process = guard.0.id();
    let started = wait_until("servers and a client run", || {
        let all = descendants(process);
        (children(process).len() > servers).then_some(all)
    });
    assert!(!leftovers(process).is_empty());
    (guard, started)
}

#[track_caller]
fn assert_all_end(started: &[(u32, u64)]) {
    wait_until("all processes have ended", || {
        (!started.iter().copied().any(is_alive)).then_some(())
    });
}

#[test]
fn no_process_outlives_an_interruption() {
    let (mut run, started) = start_long_run("redis", 3);
    signal(run.0.id(), libc::SIGINT);
    assert_eq!(wait(&mut run.0), Some(130));
    assert_all_end(&started);
    assert_eq!(leftovers(run.0.id()), Vec::<PathBuf>::new());
}

#[test]
fn stacks_leave_nothing_after_an_interruption() {
    let before = devices();
    let (mut run, started) = start_long_run("lighttpd", 3);
    signal(run.0.id(), libc::SIGINT);
    assert_eq!(wait(&mut run.0), Some(130));
    assert_all_end(&started);
    assert_eq!(leftovers(run.0.id()), Vec::<PathBuf>::new());
    assert_eq!(devices(), before);
}

#[test]
fn servers_of_another_user_end_when_the_benchmark_is_killed() {
    let (run, started) = start_long_run("postgres", 2);
    let process = run.0.id();
    drop(run);
    assert_all_end(&started);
    // A killed process cannot clean up; the test does.
    leftovers(process).into_iter().for_each(|path| std::fs::remove_dir_all(path).unwrap());
}
