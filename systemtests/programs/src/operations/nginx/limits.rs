//! Scenarios with more clients than the server can hold or its configuration allows.

use super::super::Extent;
use super::super::content::content;
use super::super::counts::{Counts, End};
use super::super::load::{TIMEOUT, crowd, crowd_with, fault, serves, until};
use super::super::outcome::{Figure, Figures};
use super::no_complaints;
use crate::http::Client;
use crate::nginx::{Nginx, Setup};
use std::collections::BTreeSet;
use std::io;
use std::thread;
use std::time::{Duration, Instant};
use testkit::{allowed_cpus, pin};

/// Number of clients: more than 2 workers with 64 connections or descriptors each can have.
const CROWD: usize = 200;

const CLOSING: &str = "GET /who HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";

/// Size of a file that exceeds a connection's buffers: a client that does not read it keeps its
/// connection.
const HELD: usize = 20_000_000;

const ASKING: &str = "GET /held HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";

/// Makes requests from one CPU, on which the handshakes of their connections run.
fn ask_from(cpu: usize, port: u16, clients: usize) -> io::Result<Vec<io::Result<Client>>> {
    let ask = move |_| {
        let mut client = Client::connect_within(port, TIMEOUT)?;
        client.send(ASKING)?;
        Ok(client)
    };
    let asked = move || {
        pin(cpu);
        (0..clients).map(ask).collect()
    };
    thread::spawn(asked).join().map_err(|_| fault("the clients panicked"))
}

/// Makes requests from these CPUs. All clients keep their connections until the last one is
/// answered. Returns the counts, and the workers that answered.
fn hold(port: u16, cpus: &[usize]) -> io::Result<(Counts, BTreeSet<String>)> {
    let asked = cpus.iter().map(|&cpu| ask_from(cpu, port, CROWD / cpus.len()));
    let asked = asked.collect::<io::Result<Vec<_>>>()?;
    let (mut kept, mut workers) = (Vec::new(), BTreeSet::new());
    let mut answer = |client: io::Result<Client>| {
        let mut client = client?;
        let answered = client.head();
        kept.push(client);
        let (status, head) = answered?;
        let worker = head.lines().find_map(|line| line.strip_prefix("X-Worker: "));
        workers.extend(worker.map(String::from));
        Ok(status == 200)
    };
    let ends = asked.into_iter().flatten().map(|client| End::of(answer(client)));
    let counts = ends.collect();
    Ok((counts, workers))
}

/// Each client holds its connection, so that the limit is reached; those above it are rejected.
fn fill(mut setup: Setup, extent: Extent, cpus: &[usize]) -> Figures {
    setup.events.push_str("worker_connections 64;");
    setup.server.push_str("location = /held { add_header X-Worker $pid; }");
    let several = setup.workers > 1;
    let nginx = Nginx::start(&setup)?;
    nginx.place("held", &content(HELD))?;
    let (mut counts, mut workers) = (Counts::default(), 0);
    let rounds = extent.pick(1, 5);
    for _ in 0..rounds {
        let (held, serving) = hold(nginx.port(), cpus)?;
        counts = counts.with(held);
        workers += serving.len() as u64;
        // Each worker has its connections until it has seen their ends.
        until("places are not free again", || serves(nginx.port(), "/who", 40).is_ok())?;
    }
    if !several {
        // A worker may need a connection for itself.
        return Ok(counts
            .figures()
            .into_iter()
            .map(|figure| figure.with_slack(4 * rounds))
            .collect());
    }
    // The distribution over several workers is random, but all serve, and reject what exceeds the
    // limit.
    let mut figures = counts.shown();
    figures.push(Figure::at_most("without an answer", counts.timed_out()));
    figures.push(Figure::at_least("workers serving", workers));
    Ok(figures)
}

/// Clients on all CPUs.
pub(super) fn connections(setup: Setup, extent: Extent) -> Figures {
    fill(setup, extent, &allowed_cpus())
}

/// Clients on one CPU, which share a worker if the listening socket is partitioned.
pub(super) fn connections_of_one_cpu(setup: Setup, extent: Extent) -> Figures {
    fill(setup, extent, &allowed_cpus()[..1])
}

/// Clients wait in the accept queue until descriptors are free again.
pub(super) fn descriptors(mut setup: Setup, extent: Extent) -> Figures {
    setup.main.push_str("worker_rlimit_nofile 64;");
    let nginx = Nginx::start(&setup)?;
    let mut counts = Counts::default();
    for _ in 0..extent.pick(1, 5) {
        let crowd = crowd_of_unknown_answers(nginx.port());
        counts = counts.with(crowd);
    }
    serves(nginx.port(), "/who", 40)?;
    Ok(counts.figures())
}

/// The answer is the worker's process id, so only its status is checked.
fn crowd_of_unknown_answers(port: u16) -> Counts {
    crowd_with(port, CLOSING, CROWD, |_| true)
}

/// The same scenario if each request needs a descriptor for a file.
pub(super) fn descriptors_for_files(mut setup: Setup, extent: Extent) -> Figures {
    setup.main.push_str("worker_rlimit_nofile 64;");
    let nginx = Nginx::start(&setup)?;
    let file = content(20_000);
    nginx.place("f", &file)?;
    let request = "GET /f HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    let mut counts = Counts::default();
    for _ in 0..extent.pick(1, 5) {
        counts = counts.with(crowd(nginx.port(), request, &file, CROWD));
    }
    serves(nginx.port(), "/f", 40)?;
    Ok(counts.figures())
}

/// A file arrives complete, and not faster than allowed.
pub(super) fn rate(mut setup: Setup, extent: Extent) -> Figures {
    const RATE: usize = 200_000;
    setup.server.push_str("location = /limited { limit_rate 200000; alias html/limited; }");
    let nginx = Nginx::start(&setup)?;
    // The part of the first second arrives at once.
    let seconds = extent.pick(2, 6);
    let file = content(RATE * seconds);
    nginx.place("limited", &file)?;
    let begin = Instant::now();
    let request = "GET /limited HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    let counts = crowd(nginx.port(), request, &file, 5);
    let least = Duration::from_secs(seconds as u64 - 1) / 2;
    if begin.elapsed() < least {
        return Err(fault(format!("{} s took {:?}", seconds, begin.elapsed())));
    }
    no_complaints(&nginx)?;
    Ok(counts.figures())
}

/// Of 10 concurrent clients 3 are served and the others get 503; the numbers are exact.
pub(super) fn simultaneous(mut setup: Setup, extent: Extent) -> Figures {
    setup.http.push_str("limit_conn_zone $binary_remote_addr zone=clients:1m;");
    setup.server.push_str("location = /held { limit_conn clients 3; }");
    let nginx = Nginx::start(&setup)?;
    nginx.place("held", &content(HELD))?;
    let (mut served, mut refused) = (0, 0);
    for _ in 0..extent.pick(1, 5) {
        let mut clients = Vec::new();
        for _ in 0..10 {
            let mut client = Client::connect_within(nginx.port(), TIMEOUT)?;
            client.send(ASKING)?;
            let (status, _) = client.head()?;
            served += u64::from(status == 200);
            refused += u64::from(status == 503);
            clients.push(client);
        }
        drop(clients);
        // nginx counts a client until it has seen its end.
        until("a place is not free again", || {
            let head = Client::connect_within(nginx.port(), TIMEOUT).and_then(|mut client| {
                client.send(ASKING)?;
                client.head()
            });
            head.is_ok_and(|(status, _)| status == 200)
        })?;
    }
    no_complaints(&nginx)?;
    Ok(vec![Figure::at_least("served", served), Figure::at_least("told 503", refused)])
}
