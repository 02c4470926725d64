//! Several hosts under Open MPI: network namespaces on a bridge stand in for them, five clients and
//! a server, as in Figure 1 of Kawai and Yamaguchi.

mod common;
#[path = "common/namespaces.rs"]
mod namespaces;

use common::{run, stderr, stdout};
use namespaces::{Hosts, count, ip, possible};

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
    if !possible("six_hosts_work_together") {
        return;
    }
    let hosts = Hosts::start(HOSTS);
    // Rank 0 has another address, which comes first in its list and which nobody else reaches.
    hosts.ip(0, &["address", "add", "10.99.0.1/32", "dev", "lo"]);
    let output = hosts.mpirun(&["hosts", "--check"]);
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

#[test]
fn an_address_that_nobody_reaches_is_reported() {
    if !possible("an_address_that_nobody_reaches_is_reported") {
        return;
    }
    let hosts = Hosts::start(3);
    hosts.ip(0, &["address", "add", "10.99.0.1/32", "dev", "lo"]);
    let output = hosts.mpirun(&["hosts", "--mpi-address", "10.99.0.1"]);
    let (table, notes) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(1), "{table}{notes}");
    assert_eq!(table.matches("not at all").count(), 2, "{table}");
    assert!(notes.contains("reached by all (10.99.0.1)"), "{notes}");
    assert!(notes.contains("--mpi-address"), "{notes}");
}

#[test]
fn an_error_of_one_process_ends_all_of_them() {
    if !possible("an_error_of_one_process_ends_all_of_them") {
        return;
    }
    let hosts = Hosts::start(3);
    // An address of node1, which rank 0 cannot listen on while the others wait for it.
    let output = hosts.mpirun(&["hosts", "--mpi-address", "10.77.0.2"]);
    let notes = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{}{notes}", stdout(&output));
    assert!(notes.contains("cannot listen on 10.77.0.2"), "{notes}");
    assert!(notes.contains("--mpi-address"), "{notes}");
}

#[test]
fn hosts_leave_nothing_behind() {
    if !possible("hosts_leave_nothing_behind") {
        return;
    }
    // No process has such a number, so its run must have been killed.
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
    let output = run(&["hosts", "--check"]);
    let notes = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{notes}");
    assert!(notes.contains("only one process") && notes.contains("mpirun -N 1"), "{notes}");
    assert!(stdout(&output).contains("the reference"));
}
