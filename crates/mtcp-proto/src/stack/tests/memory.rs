//! Tests that connections which hold buffers without use do not take the memory away from others.

use super::network::{CLIENT, Network, SERVER, end, packet, parse, v4};
use crate::config::{Config, ListenOptions};
use crate::error::Error;
use crate::sequence::Sequence;
use crate::socket::SocketId;
use crate::wire::tcp::{Flags, Options, TcpHeader};
use std::net::SocketAddr;
use std::time::Duration;

const ATTACKERS: u32 = 10_000;

/// All buffers of the server: 6.5 KiB for an attacker.
const LIMIT_BYTES: usize = 64 << 20;

/// The answer that attackers ask for, and one that an honest client reads.
static ANSWER: [u8; 1 << 20] = [7; 1 << 20];

/// A peer without a stack, which sends what it wants.
struct Attacker {
    address: SocketAddr,
    socket: SocketId,
    next: Sequence,
    /// The last segment of the server.
    heard: TcpHeader,
}

struct Scene {
    network: Network,
    listener: SocketId,
}

impl Scene {
    fn new() -> Scene {
        let config = Config { max_buffer_bytes: LIMIT_BYTES, ..Config::default() };
        let mut network = Network::new(Config::default(), config);
        let options = ListenOptions { backlog: ATTACKERS, ..ListenOptions::default() };
        let listener = network.stacks[SERVER].listen(end(v4(SERVER), 80), &options).unwrap();
        Scene { network, listener }
    }

    fn forge(&mut self, from: SocketAddr, header: &TcpHeader, data: &[u8]) {
        self.network.forge(SERVER, &packet(from, end(v4(SERVER), 80), header, data));
    }

    /// What the server sends to this address; everything else is lost.
    fn answers(&mut self, to: SocketAddr) -> Vec<TcpHeader> {
        self.network.output(SERVER);
        let packets = std::mem::take(&mut self.network.wires[SERVER].packets);
        let to_it = |packet: &Vec<u8>| {
            let (ip, header, _) = parse(packet);
            (ip.destination == to.ip() && header.destination_port == to.port()).then_some(header)
        };
        packets.iter().filter_map(to_it).collect()
    }

    /// A connection that the server has accepted.
    fn attacker(&mut self, number: u32) -> Attacker {
        let address = end([172, 16, (number >> 8) as u8, number as u8].into(), 1000);
        let next = Sequence(number.wrapping_mul(2_654_435_761));
        let options =
            Options { maximum_segment: Some(1460), window_scale: Some(7), ..Options::default() };
        let syn = TcpHeader {
            sequence: next,
            flags: Flags::SYN,
            window: 65535,
            options,
            ..TcpHeader::default()
        };
        self.forge(address, &syn, b"");
        let heard = *self.answers(address).last().expect("a SYN-ACK");
        let mut attacker = Attacker { address, socket: self.listener, next: next + 1, heard };
        self.acknowledge(&attacker, heard.sequence + 1, 65535 >> 7, b"");
        attacker.socket = self.network.stacks[SERVER].accept(self.listener).expect("established");
        attacker
    }

    fn acknowledge(&mut self, from: &Attacker, up_to: Sequence, window: u16, data: &[u8]) {
        let header = TcpHeader {
            sequence: from.next,
            acknowledgement: up_to,
            flags: Flags::ACK,
            window,
            ..TcpHeader::default()
        };
        self.forge(from.address, &header, data);
    }

    /// Sends until there is no room; waits for memory as an application does.
    fn send_all(&mut self, from: usize, socket: SocketId, data: &[u8], to: SocketId) -> usize {
        let (mut sent, mut received) = (0, 0);
        let mut room = vec![0; 64 << 10];
        for _ in 0..10_000 {
            match self.network.stacks[from].send(self.network.now, socket, &data[sent..]) {
                Ok(bytes) => sent += bytes,
                Err(error) => assert_eq!(error, Error::WouldBlock),
            }
            self.network.run();
            while let Ok(bytes) =
                self.network.stacks[1 - from].receive(self.network.now, to, &mut room)
            {
                received += bytes;
            }
            if received == data.len() {
                break;
            }
            self.network.pass(Duration::from_millis(20));
        }
        received
    }

    /// Requests of an honest client and their answers: small ones, and a large one.
    fn serve_honestly(&mut self) {
        let (client, server) = self.network.pair(self.listener, end(v4(SERVER), 80));
        for _ in 0..20 {
            assert_eq!(self.send_all(CLIENT, client, b"GET", server), 3);
            assert_eq!(self.send_all(SERVER, server, &ANSWER[..4096], client), 4096);
        }
        assert_eq!(self.send_all(SERVER, server, &ANSWER, client), ANSWER.len());
        assert!(self.network.stacks[SERVER].buffer_bytes() <= LIMIT_BYTES);
        self.network.stacks[CLIENT].abort(self.network.now, client);
        self.network.run();
        self.network.close(SERVER, server);
    }
}

/// The attack of one small packet per connection: a byte at the end of the window, after as much
/// as opens the window to its full size.
#[test]
fn a_byte_at_the_end_of_the_window_costs_a_byte() {
    let mut scene = Scene::new();
    for number in 0..ATTACKERS {
        let mut attacker = scene.attacker(number);
        let acknowledged = attacker.heard.sequence + 1;
        scene.acknowledge(&attacker, acknowledged, 512, b"open your window");
        attacker.next += 16;
        let taken = scene.network.receive(SERVER, attacker.socket);
        assert_eq!(taken.as_deref(), Ok(&b"open your window"[..]));
        scene.network.now = scene.network.now + Duration::from_millis(50);
        let window = scene.answers(attacker.address).last().map_or(0, |ack| ack.window);
        let edge = attacker.next + (u32::from(window) << 5);
        assert!(edge.since(attacker.next) >= 64 << 10, "{window}");
        attacker.next = edge - 1;
        scene.acknowledge(&attacker, acknowledged, 512, b"x");
    }
    let used = scene.network.stacks[SERVER].buffer_bytes();
    assert!(used <= ATTACKERS as usize * 2048, "{used} bytes");
    assert_eq!(scene.network.stacks[SERVER].counters().out_of_order, u64::from(ATTACKERS));
    scene.serve_honestly();
}

/// Clients that ask for an answer, acknowledge what a window holds, and never read.
#[test]
fn peers_that_never_read_lose_to_those_that_do() {
    let mut scene = Scene::new();
    let mut attackers = Vec::new();
    for number in 0..ATTACKERS {
        let attacker = scene.attacker(number);
        let mut sent = 0;
        let stack = &mut scene.network.stacks[SERVER];
        while let Ok(bytes) = stack.send(scene.network.now, attacker.socket, &ANSWER[sent..]) {
            sent += bytes;
        }
        if let Some(last) = scene.answers(attacker.address).last() {
            let end = last.sequence + 1;
            scene.acknowledge(&attacker, end, 0, b"");
        }
        attackers.push(attacker);
    }
    let used = scene.network.stacks[SERVER].buffer_bytes();
    assert!(used > LIMIT_BYTES / 2 && used <= LIMIT_BYTES, "{used} bytes: no attack");
    scene.serve_honestly();
    scene.network.pass(Duration::from_secs(61));
    scene.serve_honestly();
    let reset = scene.network.stacks[SERVER].counters().reset_for_memory;
    assert!(reset > 0 && reset < u64::from(ATTACKERS), "{reset}");
}

/// Data that a reset has discarded must not look like the end of the stream.
#[test]
fn who_loses_received_data_gets_an_error() {
    let mut scene = Scene::new();
    let victims: Vec<_> = (0..ATTACKERS)
        .map(|number| {
            let mut attacker = scene.attacker(number);
            let acknowledged = attacker.heard.sequence + 1;
            for _ in 0..40 {
                scene.acknowledge(&attacker, acknowledged, 512, &ANSWER[..1460]);
                attacker.next += 1460;
            }
            let (sequence, flags) = (attacker.next, Flags::ACK.with(Flags::FIN));
            let fin =
                TcpHeader { sequence, acknowledgement: acknowledged, flags, ..attacker.heard };
            scene.forge(attacker.address, &fin, b"");
            attacker.socket
        })
        .collect();
    scene.network.wires[SERVER].packets.clear();
    scene.network.pass(Duration::from_secs(61));
    scene.serve_honestly();
    let mut lost = 0;
    for socket in victims {
        match scene.network.receive(SERVER, socket) {
            Ok(data) => assert!(!data.is_empty(), "an end without the data before it"),
            Err(error) => lost += u64::from(error == Error::Aborted),
        }
    }
    assert_eq!(lost, scene.network.stacks[SERVER].counters().reset_for_memory);
    assert!(lost > 0);
}

/// Peers that send, to an application that reads nothing.
#[test]
fn unread_data_of_many_leaves_memory_for_others() {
    let mut scene = Scene::new();
    for number in 0..ATTACKERS {
        let mut attacker = scene.attacker(number);
        let acknowledged = attacker.heard.sequence + 1;
        for _ in 0..40 {
            scene.acknowledge(&attacker, acknowledged, 512, &ANSWER[..1460]);
            attacker.next += 1460;
        }
        scene.network.output(SERVER);
        scene.network.wires[SERVER].packets.clear();
    }
    assert!(scene.network.stacks[SERVER].counters().drop_no_memory > 0, "no attack");
    scene.network.pass(Duration::from_secs(61));
    scene.serve_honestly();
    let reset = scene.network.stacks[SERVER].counters().reset_for_memory;
    assert!(reset > 0 && reset < u64::from(ATTACKERS), "{reset}");
}
