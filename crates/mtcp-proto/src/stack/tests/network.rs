//! Provides the fixture of the tests: two stacks and their packets.

use crate::config::{Config, ListenOptions, Options, Secret};
use crate::error::Error;
use crate::packet::{Checksum, Packet, Sink, SinkCapabilities};
use crate::socket::{Readiness, SocketId};
use crate::stack::Stack;
use crate::time::Instant;
use crate::wire::ip::{Ecn, IpHeader};
use crate::wire::tcp::TcpHeader;
use crate::wire::{PROTOCOL_TCP, checksum};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Rounds after which an exchange counts as endless.
const ROUNDS: usize = 20_000;

/// After this time, Nagle's algorithm no longer waits for the acknowledgement of a lone segment.
pub(super) const DELAYED_ACK: Duration = Duration::from_millis(50);

pub(super) const CLIENT: usize = 0;
pub(super) const SERVER: usize = 1;

/// A device with unlimited room.
#[derive(Debug, Default)]
pub(super) struct Wire {
    pub(super) packets: Vec<Vec<u8>>,
    room: Vec<u8>,
    pub(super) limit: Option<usize>,
}

impl Sink for Wire {
    fn capabilities(&self) -> SinkCapabilities {
        SinkCapabilities::default()
    }

    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if self.limit.is_some_and(|limit| self.packets.len() >= limit) {
            return None;
        }
        self.room.resize(bytes, 0);
        Some(&mut self.room)
    }

    fn commit(&mut self, packet: Packet) {
        self.packets.push(self.room[..packet.bytes].to_vec());
    }
}

/// A client, a server, and the packets in flight between them.
pub(super) struct Network {
    pub(super) now: Instant,
    pub(super) stacks: [Stack; 2],
    /// Packets that the stack with this index has sent and the other has not received.
    pub(super) wires: [Wire; 2],
}

pub(super) fn v4(host: usize) -> IpAddr {
    [10, 0, 0, 1 + host as u8].into()
}

pub(super) fn v6(host: usize) -> IpAddr {
    [0xfd00, 0, 0, 0, 0, 0, 0, 1 + host as u16].into()
}

pub(super) fn end(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address, port)
}

pub(super) fn secret(number: u8) -> Secret {
    Secret([number; 32])
}

impl Network {
    pub(super) fn new(client: Config, server: Config) -> Network {
        let now = Instant::from_nanos(5_000_000_000_123);
        let make = |config, host| {
            let mut stack = Stack::new(config, secret(1 + host as u8), now).expect("valid");
            stack.set_addresses(now, &[v4(host), v6(host)]);
            stack
        };
        Network {
            now,
            stacks: [make(client, CLIENT), make(server, SERVER)],
            wires: [Wire::default(), Wire::default()],
        }
    }

    pub(super) fn simple() -> Network {
        Network::new(Config::default(), Config::default())
    }

    pub(super) fn output(&mut self, from: usize) {
        self.stacks[from].output(self.now, &mut self.wires[from]);
    }

    /// Delivers the packets that one stack has sent.
    pub(super) fn deliver(&mut self, from: usize) {
        for packet in std::mem::take(&mut self.wires[from].packets) {
            self.stacks[1 - from].input(self.now, &packet, Checksum::Unverified);
        }
    }

    /// Exchanges packets until none is in flight. No time passes.
    pub(super) fn run(&mut self) {
        for _ in 0..ROUNDS {
            self.output(CLIENT);
            self.output(SERVER);
            if self.wires.iter().all(|wire| wire.packets.is_empty()) {
                return;
            }
            self.deliver(CLIENT);
            self.deliver(SERVER);
        }
        panic!("the stacks talk without an end");
    }

    /// Lets time pass and runs the timers.
    pub(super) fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        for _ in 0..ROUNDS {
            self.run();
            let next = self.stacks.iter().filter_map(Stack::deadline).min();
            match next.filter(|&next| next <= end) {
                Some(next) => self.now = self.now.max(next),
                None => {
                    self.now = end;
                    return self.run();
                }
            }
        }
        panic!("timers without an end");
    }

    pub(super) fn listen(&mut self, local: SocketAddr, backlog: u32) -> SocketId {
        let options = ListenOptions { backlog, ..ListenOptions::default() };
        self.stacks[SERVER].listen(local, &options).expect("free")
    }

    pub(super) fn connect(&mut self, remote: SocketAddr) -> Result<SocketId, Error> {
        self.stacks[CLIENT].connect(self.now, None, remote, &Options::default())
    }

    /// Opens a connection and accepts it; returns the client's socket and the server's.
    pub(super) fn pair(&mut self, listener: SocketId, remote: SocketAddr) -> (SocketId, SocketId) {
        let client = self.connect(remote).expect("possible");
        self.run();
        (client, self.stacks[SERVER].accept(listener).expect("established"))
    }

    pub(super) fn send(&mut self, host: usize, socket: SocketId, data: &[u8]) {
        assert_eq!(self.stacks[host].send(self.now, socket, data), Ok(data.len()));
    }

    pub(super) fn receive(&mut self, host: usize, socket: SocketId) -> Result<Vec<u8>, Error> {
        let mut room = [0; 4096];
        let bytes = self.stacks[host].receive(self.now, socket, &mut room)?;
        Ok(room[..bytes].to_vec())
    }

    pub(super) fn close(&mut self, host: usize, socket: SocketId) {
        self.stacks[host].close(self.now, socket);
    }

    /// Sends a request and its reply.
    pub(super) fn echo(&mut self, client: SocketId, server: SocketId) {
        for (from, socket, to, other) in
            [(CLIENT, client, SERVER, server), (SERVER, server, CLIENT, client)]
        {
            self.send(from, socket, b"64 bytes, or thereabouts");
            self.run();
            let received = self.receive(to, other);
            assert_eq!(received.as_deref(), Ok(&b"64 bytes, or thereabouts"[..]));
        }
    }

    pub(super) fn readiness(&self, host: usize, socket: SocketId) -> Readiness {
        self.stacks[host].readiness(socket).expect("held")
    }

    /// All events that the stack has to report.
    pub(super) fn events(&mut self, host: usize) -> Vec<(SocketId, Readiness)> {
        std::iter::from_fn(|| self.stacks[host].next_event()).collect()
    }

    /// Delivers a packet that the test has built to a stack.
    pub(super) fn forge(&mut self, to: usize, packet: &[u8]) {
        self.stacks[to].input(self.now, packet, Checksum::Unverified);
    }

    /// Checks that no state of a connection is left, except in TIME_WAIT.
    pub(super) fn assert_empty(&self) {
        for stack in &self.stacks {
            let connections = stack.sockets().filter(|info| info.remote.is_some()).count();
            assert_eq!(connections, 0, "{:?}", stack.sockets().collect::<Vec<_>>());
            assert_eq!(stack.shared.pool.used_bytes(), 0, "buffers leak");
            assert_eq!(stack.half_open, 0);
            assert_eq!(stack.flows.len(), stack.time_wait.len() as usize);
        }
    }
}

/// Builds a TCP packet with a valid checksum.
pub(super) fn packet(
    source: SocketAddr,
    destination: SocketAddr,
    header: &TcpHeader,
    data: &[u8],
) -> Vec<u8> {
    let header =
        TcpHeader { source_port: source.port(), destination_port: destination.port(), ..*header };
    let ip = IpHeader {
        source: source.ip(),
        destination: destination.ip(),
        protocol: PROTOCOL_TCP,
        ecn: Ecn::NotCapable,
        hop_limit: 64,
    };
    let (ip_bytes, tcp_bytes) = (ip.bytes(), header.bytes());
    let mut packet = vec![0; ip_bytes + tcp_bytes + data.len()];
    ip.write(tcp_bytes + data.len(), &mut packet);
    header.write(&mut packet[ip_bytes..]);
    packet[ip_bytes + tcp_bytes..].copy_from_slice(data);
    checksum::fill_tcp(ip.source, ip.destination, &mut packet[ip_bytes..]);
    packet
}

/// Parses a packet into its IP header, TCP header and data.
pub(super) fn parse(packet: &[u8]) -> (IpHeader, TcpHeader, &[u8]) {
    let (ip, payload) = IpHeader::parse(packet).expect("well formed");
    assert!(checksum::verify_tcp(ip.source, ip.destination, payload));
    let (header, data) = TcpHeader::parse(payload).expect("well formed");
    (ip, header, data)
}
