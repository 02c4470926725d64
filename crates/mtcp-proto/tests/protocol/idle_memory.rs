//! Tests the memory of an idle connection.

use crate::Wire;
use mtcp_proto::{Checksum, Config, Instant, ListenOptions, Options, Secret, Stack};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use testkit::process::alone;

const CONNECTIONS: usize = 100_000;
const PORTS: u16 = 4;
/// Most bytes of memory for one end of an idle connection, including all tables.
const BOUND_BYTES: usize = 600;

fn address(host: u8) -> IpAddr {
    [10, 0, 0, host].into()
}

fn stack(host: u8, now: Instant) -> Stack {
    let config = Config { ephemeral_ports: 1024..=65535, ..Config::default() };
    let mut stack = Stack::new(config, Secret([host; 32]), now).expect("valid");
    stack.set_addresses(now, &[address(host)]);
    stack
}

/// Bytes of this process that are resident (`/proc/PID/statm`, see proc(5)).
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("proc is mounted");
    let pages = text.split(' ').nth(1).and_then(|field| field.parse::<usize>().ok());
    pages.expect("a number of pages") * 4096
}

fn exchange(now: Instant, stacks: &mut [Stack; 2]) {
    loop {
        let mut wires = [Wire::default(), Wire::default()];
        for (stack, wire) in stacks.iter_mut().zip(&mut wires) {
            stack.output(now, wire);
        }
        if wires.iter().all(|wire| wire.packets.is_empty()) {
            return;
        }
        for (from, wire) in wires.iter().enumerate() {
            for packet in &wire.packets {
                stacks[1 - from].input(now, packet, Checksum::Unverified);
            }
        }
    }
}

#[test]
fn a_hundred_thousand_idle_connections_cost_little() {
    alone("idle_memory::a_hundred_thousand_idle_connections_cost_little", measure);
}

fn measure() {
    let mut now = Instant::from_nanos(1 << 40);
    let mut stacks = [stack(1, now), stack(2, now)];
    let listeners: Vec<_> = (0..PORTS)
        .map(|port| {
            let local = SocketAddr::new(address(2), 80 + port);
            stacks[1].listen(local, &ListenOptions::default()).expect("free")
        })
        .collect();
    // The test's own memory is allocated before it measures.
    let mut pairs = vec![(listeners[0], listeners[1]); CONNECTIONS];
    pairs.clear();
    let before = resident_bytes();
    let options = Options::default();
    while pairs.len() < CONNECTIONS {
        let listener = listeners[pairs.len() % listeners.len()];
        let remote = SocketAddr::new(address(2), 80 + (pairs.len() % listeners.len()) as u16);
        let client = stacks[0].connect(now, None, remote, &options).expect("a free port");
        exchange(now, &mut stacks);
        let server = stacks[1].accept(listener).expect("established");
        // Each connection has carried data once, and has freed the memory for it.
        for (from, socket, other) in [(0, client, server), (1, server, client)] {
            stacks[from].send(now, socket, b"hello").expect("room");
            exchange(now, &mut stacks);
            let mut room = [0; 16];
            assert_eq!(stacks[1 - from].receive(now, other, &mut room), Ok(5));
        }
        pairs.push((client, server));
        now = now + Duration::from_micros(100);
    }
    for stack in &mut stacks {
        while stack.next_event().is_some() {}
    }
    let each = (resident_bytes() - before) / (2 * CONNECTIONS);
    println!("{each} bytes for each end of an idle connection");
    assert!(each <= BOUND_BYTES, "{each} bytes for each end");

    // All connections work: the first, the last and some between answer.
    for &(client, server) in pairs.iter().step_by(9_999) {
        stacks[0].send(now, client, b"still there?").expect("room");
        exchange(now, &mut stacks);
        let mut room = [0; 16];
        assert_eq!(stacks[1].receive(now, server, &mut room), Ok(12));
    }
}
