//! Scenarios with more connections than allowed, and with the end of a server that has many.

use super::super::Extent;
use super::super::counts::{Counts, End};
use super::super::load::{TIMEOUT, fault, until};
use super::super::outcome::{Figure, Figures, Rule};
use crate::memcached::{Build, Client, Memcached};
use crate::{TIME_LIMIT, raise_descriptor_limit};
use std::io;
use std::time::Instant;

/// The answer to a client above the limit.
const REFUSAL: &str = "ERROR Too many open connections";

/// Returns whether a client that asks for the version gets it.
fn version(client: &mut Client) -> io::Result<bool> {
    let answer = client.ask("version\r\n")?;
    Ok(answer.starts_with("VERSION "))
}

/// 200 clients stay connected; those above the limit get an error. After they have closed, others
/// are served.
pub(super) fn too_many(build: Build, threads: &str, extent: Extent) -> Figures {
    let server = Memcached::start(build, None, &["-t", threads, "-c", "64"])?;
    let (mut served, mut told, mut others) = (0, 0, Counts::default());
    for _ in 0..extent.pick(1, 10) {
        let mut kept = Vec::new();
        for _ in 0..200 {
            let asked = server.client(TIMEOUT).and_then(|mut client| {
                let answer = client.ask("version\r\n")?;
                kept.push(client);
                Ok(answer)
            });
            match asked {
                Ok(answer) if answer.starts_with("VERSION ") => served += 1,
                Ok(answer) if answer == REFUSAL => told += 1,
                Ok(_) => others.add(End::Wrong),
                Err(error) => others.add(End::of_error(&error)),
            }
        }
        drop(kept);
        until("when all have gone, a new client is not served", || {
            server.client(TIMEOUT).and_then(|mut client| version(&mut client)).unwrap_or(false)
        })?;
    }
    let mut figures = vec![Figure::at_least("served", served), Figure::shown("refused", told)];
    figures.extend(others.figures().into_iter().filter(|figure| figure.name == "failed"));
    Ok(figures)
}

/// Ends a server with thousands of connections by `TERM`, and starts the next one at once on the
/// same port.
pub(super) fn terminate(build: Build, threads: &str, extent: Extent) -> Figures {
    raise_descriptor_limit()?;
    let options = ["-t", threads, "-c", "8192"];
    let mut server = Memcached::start(build, None, &options)?;
    let port = server.port();
    let connect = |_| {
        let mut client = server.client(TIMEOUT)?;
        if version(&mut client)? { Ok(client) } else { Err(fault("a client is not served")) }
    };
    let clients = (0..extent.pick(500, 5_000)).map(connect);
    let clients = clients.collect::<io::Result<Vec<Client>>>()?;
    let begin = Instant::now();
    server.process.signal(libc::SIGTERM)?;
    server.process.wait(TIME_LIMIT)?;
    let end_ms = begin.elapsed().as_millis() as u64;
    let next = Memcached::start(build, Some(port), &options)?;
    if !version(&mut next.client(TIMEOUT)?)? {
        return Err(fault("the next server does not serve"));
    }
    drop(clients);
    // memcached checks once a second whether it has to end, so the duration is random, and it is
    // not judged on the busy machine that runs the tests.
    let rule = extent.pick(Rule::Shown, Rule::AtMost { factor: 3, slack: 3000 });
    Ok(vec![Figure { rule, ..Figure::shown("ms to end", end_ms) }])
}
