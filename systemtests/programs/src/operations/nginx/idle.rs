//! Scenarios with thousands of idle connections: their memory, other clients, and the end.

use super::super::Extent;
use super::super::load::{TIMEOUT, fault, shorts};
use super::super::outcome::{Figure, Figures, Rule};
use super::no_complaints;
use crate::http::Client;
use crate::nginx::{Nginx, Setup};
use crate::raise_descriptor_limit;
use std::fs;
use std::io;
use std::time::Instant;

/// Memory of all workers, in bytes.
fn memory(nginx: &Nginx) -> io::Result<u64> {
    nginx.workers().into_iter().map(resident).sum()
}

/// Returns the resident memory of a process, in bytes.
fn resident(id: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.map(|kilobytes| kilobytes * 1024).ok_or_else(|| fault("no VmRSS in /proc"))
}

/// Each client makes one request and stays connected; others are served; then the server is
/// terminated.
pub(super) fn idle(mut setup: Setup, extent: Extent) -> Figures {
    let count = extent.pick(1_000, 10_000);
    raise_descriptor_limit()?;
    setup.main.push_str("worker_rlimit_nofile 16384;");
    setup.events.push_str("worker_connections 16384;");
    let mut nginx = Nginx::start(&setup)?;
    let before = memory(&nginx)?;
    let connect = |number: usize| {
        let client = Client::connect_within(nginx.port(), TIMEOUT).and_then(|mut client| {
            client.get("/who")?;
            Ok(client)
        });
        client.map_err(|error| {
            let what = format!("connection {number} of {count}: {error}");
            io::Error::new(error.kind(), what)
        })
    };
    let clients = (0..count).map(connect).collect::<io::Result<Vec<Client>>>()?;
    let each = memory(&nginx)?.saturating_sub(before) / clients.len() as u64;
    let mut figures = shorts(nginx.port(), "/who", 100).figures();
    no_complaints(&nginx)?;
    let begin = Instant::now();
    nginx.signal(libc::SIGTERM)?;
    nginx.wait()?;
    let end_ms = begin.elapsed().as_millis() as u64;
    // One record of the channel for each connection, and 1 MiB of buffers in total.
    let rule = Rule::AtMost { factor: 1, slack: 512 + (1 << 20) / clients.len() as u64 };
    figures.push(Figure { rule, ..Figure::shown("B each", each) });
    // A duration is not judged on the busy machine that runs the tests.
    let rule = extent.pick(Rule::Shown, Rule::AtMost { factor: 3, slack: 1000 });
    figures.push(Figure { rule, ..Figure::shown("ms to end", end_ms) });
    drop(clients);
    Ok(figures)
}
