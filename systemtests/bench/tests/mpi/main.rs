//! Tests of several hosts under Open MPI: network namespaces on a bridge, five clients and a
//! server, as in Figure 1 of Kawai and Yamaguchi.

mod namespaces;

use namespaces::{Hosts, count, ip};
use serde_json::Value;
use systemtests_bench::{run, stderr, stdout};

const HOSTS: usize = 6;

/// Rank, host, clock offset and its bound, and the address of rank 0, of each line of the table.
struct Line<'a> {
    rank: &'a str,
    host: &'a str,
    offset_us: f64,
    bound_us: f64,
    address: &'a str,
}

/// Reads the lines of all ranks but 0.
fn clients(table: &str) -> Vec<Line<'_>> {
    let lines = table.lines().filter(|line| line.contains('±'));
    let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    words
        .map(|words| match words[..] {
            [rank, host, .., offset, "±", bound, _, address] => Line {
                rank,
                host,
                offset_us: offset.parse().expect("an offset"),
                bound_us: bound.parse().expect("a bound"),
                address,
            },
            _ => panic!("not a line of the table: {words:?}"),
        })
        .collect()
}

#[test]
fn six_hosts_work_together() {
    let hosts = Hosts::start(HOSTS);
    // Rank 0 has another address, which is first in its list and which no other host reaches.
    hosts.ip(0, &["address", "add", "10.99.0.1/32", "dev", "lo"]);
    let output = hosts.mpirun(&["agent", "--check"]);
    let (table, notes) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{table}{notes}");
    let server: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(server[..2], ["0", "node0"], "{table}");
    let clients = clients(&table);
    assert_eq!(clients.len(), HOSTS - 1, "{table}");
    for (client, rank) in clients.iter().zip(1..) {
        assert_eq!(client.rank, rank.to_string());
        assert_eq!(client.host, format!("node{rank}"));
        assert_eq!(client.address, "10.77.0.1", "{table}");
        // The namespaces share one clock, so the true offset is 0 and must lie within the bound.
        assert!(client.bound_us > 0.0 && client.offset_us.abs() <= client.bound_us, "{table}");
    }
    // Histograms of all clients, merged without loss.
    assert!(table.contains("\n320 round trips: "), "{table}");
    assert!(table.contains("1 MiB to and from rank 0 arrived whole at 6 of 6 ranks"), "{table}");
}

/// The set-up of the paper. Six hosts on a few CPUs disturb one another, so rows may be invalid
/// with a reason; the records of every client must be complete all the same.
#[test]
fn five_clients_load_one_server() {
    let hosts = Hosts::start(HOSTS);
    let directory = tempfile::tempdir().unwrap();
    let (file, json) = (directory.path().join("five.toml"), directory.path().join("five.json"));
    std::fs::write(&file, FIVE_CLIENTS).unwrap();
    let output = hosts.mpirun(&[
        "run",
        file.to_str().unwrap(),
        "--mpi",
        "--strict",
        "--json",
        json.to_str().unwrap(),
    ]);
    let printed = stdout(&output) + &stderr(&output);
    let document: Value = serde_json::from_slice(&std::fs::read(&json).expect(&printed)).unwrap();
    let rows = document["results"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{printed}");
    for row in rows {
        let count = |name: &str| row["accounts"][name].as_u64().unwrap();
        let ended = ["answered", "late", "lost", "refused", "reset", "wrong"].map(count);
        // Five clients send 40 requests a second each, evenly spaced, for a second, in one round.
        assert!((195..=205).contains(&count("scheduled")), "{printed}");
        assert_eq!(count("scheduled"), ended.iter().sum::<u64>(), "{printed}");
        assert_eq!(row["connections"], 52);
        assert_eq!(row["network"], "5 client hosts over MPI");
        for times in ["latency_us", "send_lag_us"] {
            assert!(row[times]["p50"].as_f64().is_some(), "{times}: {printed}");
        }
        assert!(row["server_cpu_us"].as_f64().is_some_and(|cpu_us| cpu_us > 0.0), "{printed}");
        if row["valid"] == false {
            assert!(row["notes"][0].as_str().unwrap().starts_with("rank "), "{printed}");
        }
    }
    let all_valid = rows.iter().all(|row| row["valid"] == true);
    assert_eq!(output.status.code(), Some(if all_valid { 0 } else { 3 }), "{printed}");
}

const FIVE_CLIENTS: &str = r#"
    name = "five"
    title = "Five clients and one server"
    kind = "open"
    rounds = 1
    [sweep]
    servers = ["epoll", "megapipe"]
    connections = 52
    request_rate = 200
    arrivals = "uniform"
    [periods]
    growth = "100ms"
    steady = "100ms"
    measure = "1s"
"#;

#[test]
fn an_address_that_nobody_reaches_is_reported() {
    let hosts = Hosts::start(3);
    hosts.ip(0, &["address", "add", "10.99.0.1/32", "dev", "lo"]);
    let output = hosts.mpirun(&["agent", "--check", "--mpi-address", "10.99.0.1"]);
    let (table, notes) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(1), "{table}{notes}");
    assert_eq!(table.matches("not at all").count(), 2, "{table}");
    assert!(notes.contains("reached by all (10.99.0.1)"), "{notes}");
    assert!(notes.contains("--mpi-address"), "{notes}");
}

#[test]
fn an_error_of_one_process_ends_all_of_them() {
    let hosts = Hosts::start(3);
    // An address of node1, which rank 0 cannot listen on while the others wait for it.
    let output = hosts.mpirun(&["agent", "--check", "--mpi-address", "10.77.0.2"]);
    let notes = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{}{notes}", stdout(&output));
    assert!(notes.contains("cannot listen on 10.77.0.2"), "{notes}");
    assert!(notes.contains("--mpi-address"), "{notes}");
}

#[test]
fn hosts_leave_nothing_behind() {
    // No process has this number, so the run appears to have been killed.
    let stale = "iobench-test-4294967295-0-0-node0";
    ip(&["netns", "add", stale]);
    let hosts = Hosts::start(2);
    assert_eq!(count(stale), 0, "what a killed run left is removed");
    let prefix = hosts.prefix();
    assert_eq!(count(&prefix), 3, "two hosts and the bridge");
    drop(hosts);
    assert_eq!(count(&prefix), 0);
}

#[test]
fn without_mpirun_there_is_one_process_and_advice() {
    let output = run(&["agent", "--check"]);
    let notes = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{notes}");
    assert!(notes.contains("only one process") && notes.contains("mpirun -N 1"), "{notes}");
    assert!(stdout(&output).contains("the reference"));
}
