//! Tests of the adapted redis by clients; every test runs over both drivers.

mod clients;
mod differential;
mod memory;
mod processes;

use std::io::{ErrorKind, Read};
use systemtests_programs::redis::{Build, Client, Redis};

/// The adapted server over both drivers.
const ADAPTED: [Build; 2] = [Build::Adapted("auto"), Build::Adapted("epoll")];

/// All builds, the unmodified one first.
const ALL: [Build; 3] = [Build::Stock, Build::Adapted("auto"), Build::Adapted("epoll")];

fn start(build: Build, options: &[&str]) -> Redis {
    Redis::start(build, options).unwrap()
}

/// Returns a number of the command INFO.
fn figure(server: &Redis, name: &str) -> u64 {
    figure_by(&mut server.client().unwrap(), name)
}

fn figure_by(client: &mut Client, name: &str) -> u64 {
    let text = client.ask("INFO everything").unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("no {name}: {text}"))
}

/// Reads until the end, or a reset.
fn read_to_end(stream: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => bytes,
        Err(error) => panic!("{error} behind {} bytes", bytes.len()),
    }
}
