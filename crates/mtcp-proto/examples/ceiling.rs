//! Measures how many short connections one core can carry with both of their ends: handshake, a
//! request and a reply of 64 bytes, and a full close, between two stacks in one thread. Only the
//! stacks are measured; packets stay in memory, as between two processes with a shared ring.
//!
//! `cargo run --release -p mtcp-proto --example ceiling [CONNECTIONS [AT_ONCE]]`

use mtcp_proto::{
    Checksum, Config, Error, Instant, ListenOptions, Options, Packet, Readiness, Secret, Sink,
    SinkCapabilities, SocketId, Stack,
};
use std::net::{IpAddr, SocketAddr};

const MESSAGE: [u8; 64] = [b'm'; 64];
const CLIENT: [u8; 4] = [10, 0, 0, 1];
const SERVER: [u8; 4] = [10, 0, 0, 2];
/// Number of server ports, so that no four-tuple is reused within the minute of TIME_WAIT.
const PORTS: std::ops::Range<u16> = 8000..8032;
const SLOT_BYTES: usize = 2048;
/// Most packets that are transferred at once.
const BURST: usize = 64;

/// Packets in flight in one direction, in memory that is allocated once.
struct Link {
    memory: Vec<u8>,
    lengths: Vec<usize>,
}

impl Link {
    fn new() -> Link {
        Link { memory: vec![0; BURST * SLOT_BYTES], lengths: Vec::with_capacity(BURST) }
    }

    /// Transfers all waiting packets from one stack to the other, in bursts.
    fn carry(&mut self, now: Instant, from: &mut Stack, to: &mut Stack) {
        let mut more = true;
        while more {
            more = from.output(now, self);
            for (slot, &bytes) in self.memory.chunks(SLOT_BYTES).zip(&self.lengths) {
                to.input(now, &slot[..bytes], Checksum::Verified);
            }
            self.lengths.clear();
        }
    }
}

impl Sink for Link {
    fn capabilities(&self) -> SinkCapabilities {
        SinkCapabilities { checksum: true, segmentation_bytes: 0 }
    }

    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let slot = self.lengths.len();
        if slot >= BURST || bytes > SLOT_BYTES {
            return None;
        }
        Some(&mut self.memory[slot * SLOT_BYTES..][..bytes])
    }

    fn commit(&mut self, packet: Packet) {
        self.lengths.push(packet.bytes);
    }
}

/// The client side: keeps a number of connections open until enough were opened.
struct Client {
    stack: Stack,
    begun: u64,
    done: u64,
    limit: u64,
    /// For each socket index, whether its request was sent.
    asked: Vec<bool>,
}

impl Client {
    fn connect(&mut self, now: Instant) -> Result<(), Error> {
        if self.begun == self.limit {
            return Ok(());
        }
        let port = PORTS.start + (self.begun % PORTS.len() as u64) as u16;
        let remote = SocketAddr::from((SERVER, port));
        let socket = self.stack.connect(now, None, remote, &Options::default())?;
        let index = socket.index as usize;
        if index >= self.asked.len() {
            self.asked.resize(index + 1, false);
        }
        self.asked[index] = false;
        self.begun += 1;
        Ok(())
    }

    fn turn(&mut self, now: Instant) -> Result<(), Error> {
        while let Some((socket, readiness)) = self.stack.next_event() {
            let index = socket.index as usize;
            if readiness.intersects(Readiness::ERROR) {
                return Err(self.stack.take_error(socket).unwrap_or(Error::Aborted));
            }
            if !self.asked[index] && readiness.contains(Readiness::WRITABLE) {
                self.asked[index] = true;
                assert_eq!(self.stack.send(now, socket, &MESSAGE)?, MESSAGE.len());
            }
            if readiness.contains(Readiness::READABLE) {
                let mut room = [0; 128];
                let bytes = self.stack.receive(now, socket, &mut room)?;
                assert_eq!(room[..bytes], MESSAGE);
                self.stack.close(now, socket);
                self.done += 1;
                self.connect(now)?;
            }
        }
        Ok(())
    }
}

/// The server side: answers each request, and closes after the client.
struct Server {
    stack: Stack,
    listeners: Vec<SocketId>,
}

impl Server {
    fn turn(&mut self, now: Instant) -> Result<(), Error> {
        while let Some((socket, readiness)) = self.stack.next_event() {
            // The listeners are the first sockets of the stack.
            if self.listeners.get(socket.index as usize) == Some(&socket) {
                while self.stack.accept(socket).is_ok() {}
            } else if readiness.contains(Readiness::READABLE) {
                let mut room = [0; 128];
                match self.stack.receive(now, socket, &mut room)? {
                    0 => self.stack.close(now, socket),
                    bytes => assert_eq!(self.stack.send(now, socket, &room[..bytes])?, bytes),
                }
            }
        }
        Ok(())
    }
}

fn stack(address: [u8; 4], now: Instant) -> Result<Stack, Error> {
    let config = Config { ephemeral_ports: 1024..=65535, ..Config::default() };
    let mut stack = Stack::new(config, Secret([address[3]; 32]), now)?;
    stack.set_addresses(now, &[IpAddr::from(address)]);
    Ok(stack)
}

/// CPU time of this process in nanoseconds (`/proc/PID/schedstat`, see proc(5)).
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|field| field.parse().ok()).unwrap_or(0)
}

fn run(limit: u64, at_once: u64) -> Result<(), Error> {
    let start = std::time::Instant::now();
    let clock = || Instant::from_nanos(1_000_000_000 + start.elapsed().as_nanos() as u64);
    let listeners = Vec::new();
    let mut server = Server { stack: stack(SERVER, clock())?, listeners };
    for port in PORTS {
        let local = SocketAddr::from((SERVER, port));
        server.listeners.push(server.stack.listen(local, &ListenOptions::default())?);
    }
    let client = stack(CLIENT, clock())?;
    let mut client = Client { stack: client, begun: 0, done: 0, limit, asked: Vec::new() };
    let (mut there, mut back) = (Link::new(), Link::new());
    for _ in 0..at_once {
        client.connect(clock())?;
    }
    let before_ns = cpu_ns();
    while client.done < limit || server.stack.sockets().nth(PORTS.len()).is_some() {
        let now = clock();
        client.turn(now)?;
        there.carry(now, &mut client.stack, &mut server.stack);
        server.turn(now)?;
        back.carry(now, &mut server.stack, &mut client.stack);
    }
    let spent_ns = cpu_ns() - before_ns;
    let packets = client.stack.counters().packets_sent + server.stack.counters().packets_sent;
    let again = client.stack.counters().retransmissions + server.stack.counters().retransmissions;
    println!(
        "{limit} connections, {at_once} at once: {:.0} connections/s of CPU, {:.2} µs each, \
         {:.1} packets each, {again} retransmissions",
        limit as f64 * 1e9 / spent_ns as f64,
        spent_ns as f64 / 1e3 / limit as f64,
        packets as f64 / limit as f64,
    );
    Ok(())
}

fn main() -> Result<(), Error> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse().unwrap_or(0).max(1));
    let limit = numbers.next().unwrap_or(1_000_000);
    run(limit, numbers.next().unwrap_or(64).min(limit))
}
