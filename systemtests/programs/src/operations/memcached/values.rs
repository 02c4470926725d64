//! Scenarios with values of all sizes over both protocols and over UDP, and with clients that do
//! not read.

use super::super::Extent;
use super::super::content::content;
use super::super::counts::{Counts, End};
use super::super::load::{TIMEOUT, fault};
use super::super::outcome::Figures;
use crate::memcached::{Build, Client, Memcached};
use std::io;
use std::net::UdpSocket;
use std::thread;

/// Number of concurrent clients.
const CLIENTS: usize = 4;

const LARGE: usize = 40 << 20;

fn start(build: Build, threads: &str) -> io::Result<Memcached> {
    Memcached::start(build, None, &["-t", threads, "-m", "512", "-I", "64m", "-U", "-1"])
}

/// Functions that store a value and get it.
type Set = fn(&mut Client, &str, &[u8]) -> io::Result<()>;
type Get = fn(&mut Client, &str) -> io::Result<Option<Vec<u8>>>;

/// Several clients use the text protocol.
pub(super) fn text(build: Build, threads: &str, extent: Extent) -> Figures {
    store_and_get(&start(build, threads)?, extent, Client::set, Client::get)
}

/// Several clients use the binary protocol.
pub(super) fn binary(build: Build, threads: &str, extent: Extent) -> Figures {
    store_and_get(&start(build, threads)?, extent, Client::set_binary, Client::get_binary)
}

/// Several clients store and get values of their own; then one client stores and gets a large
/// value.
fn store_and_get(server: &Memcached, extent: Extent, set: Set, get: Get) -> Figures {
    let small = small_values(server, extent.pick(100, 10_000), set, get)?;
    let large = content(LARGE);
    let exchange = |_| {
        let mut client = server.client(TIMEOUT)?;
        set(&mut client, "large", &large)?;
        Ok(get(&mut client, "large")?.is_some_and(|got| got == large))
    };
    let large: Counts = (0..extent.pick(1, 5)).map(|number| End::of(exchange(number))).collect();
    Ok(small.with(large).figures())
}

fn small_values(server: &Memcached, each: usize, set: Set, get: Get) -> io::Result<Counts> {
    let values = content(3000);
    let client = |number: usize| {
        let values = &values;
        move || -> io::Result<Counts> {
            let mut client = server.client(TIMEOUT)?;
            let exchange = |round: usize| {
                let (key, value) = (format!("key{number}-{round}"), &values[..1 + round % 3000]);
                set(&mut client, &key, value)?;
                Ok(get(&mut client, &key)?.is_some_and(|got| got == value))
            };
            let mut exchange = exchange;
            Ok((0..each).map(|round| End::of(exchange(round))).collect())
        }
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(client(number))).collect();
        let mut total = Counts::default();
        for client in clients {
            total = total.with(client.join().map_err(|_| fault("a client panicked"))??);
        }
        Ok(total)
    })
}

/// One datagram for each request, and a value whose answer takes several.
pub(super) fn udp(build: Build, threads: &str, extent: Extent) -> Figures {
    let server = start(build, threads)?;
    let large = content(5000);
    let mut client = server.client(TIMEOUT)?;
    client.set("small", b"value")?;
    client.set("large", &large)?;
    let mut counts = Counts::default();
    for _ in 0..4 {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.connect(("127.0.0.1", server.udp_port()))?;
        for id in 0..extent.pick(25_u16, 2500) {
            let end = End::of(datagram(&socket, id, "small", b"value"));
            counts.add(end);
            if end == End::TimedOut {
                return Ok(counts.figures());
            }
        }
        counts.add(End::of(datagram(&socket, 9999, "large", &large)));
    }
    Ok(counts.figures())
}

/// Requests a value; returns whether all datagrams of its answer arrived, in order.
fn datagram(socket: &UdpSocket, id: u16, key: &str, value: &[u8]) -> io::Result<bool> {
    let [high, low] = id.to_be_bytes();
    let request = [&[high, low, 0, 0, 0, 1, 0, 0], format!("get {key}\r\n").as_bytes()].concat();
    socket.send(&request)?;
    let header = format!("VALUE {key} 0 {}\r\n", value.len());
    let expected = [header.as_bytes(), value, b"\r\nEND\r\n"].concat();
    let mut got = Vec::new();
    let mut room = [0; 2000];
    while got.len() < expected.len() {
        let bytes = socket.recv(&mut room)?;
        if bytes <= 8 || room[..2] != [high, low] {
            return Ok(false);
        }
        got.extend_from_slice(&room[8..bytes]);
    }
    Ok(got == expected)
}

/// Clients request far more than their connections hold and read nothing; others are served
/// meanwhile, and in the end the first clients get their answers.
pub(super) fn stalled(build: Build, threads: &str, extent: Extent) -> Figures {
    const READERS: usize = 50;
    const GETS: usize = 20;
    let server = start(build, threads)?;
    let value = content(1 << 20);
    server.client(TIMEOUT)?.set("value", &value)?;
    let ask = |_| {
        let mut client = server.client(TIMEOUT)?;
        client.send("get value\r\n".repeat(GETS).as_bytes())?;
        Ok(client)
    };
    let stalled = (0..READERS).map(ask).collect::<io::Result<Vec<Client>>>()?;
    let counts = small_values(&server, extent.pick(50, 5_000), Client::set, Client::get)?;
    for mut client in stalled.into_iter().take(extent.pick(3, READERS)) {
        for number in 0..GETS {
            if client.answer("value")?.is_none_or(|got| got != value) {
                return Err(fault(format!("a stalled reader's answer {number} is wrong")));
            }
        }
    }
    Ok(counts.figures())
}
